"""Processes of this machine: identity, /proc, pidfds, start, end, logs, the lock and the ledger of what we started."""
