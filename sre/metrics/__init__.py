"""Every metric, label and signal name, spelled once."""
