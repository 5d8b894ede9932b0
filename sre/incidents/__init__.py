"""What an incident folder holds: contexts, redaction. Pure."""
