"""What an incident folder holds: contexts, timeline, redaction. Pure."""
