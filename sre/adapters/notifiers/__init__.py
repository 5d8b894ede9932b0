"""Delivery through Apprise: a process each (``worker``), ended at a hard deadline by its parent (``process``)."""
