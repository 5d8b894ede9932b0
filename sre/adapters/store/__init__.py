"""
The guard's memory: state, journal and outbox in one SQLite file.

One process writes it: the guard, proven by a lock file. Commands read it while the guard runs, and an operator's
command may revive or drop a message of the outbox. A file that cannot be trusted is never taken for an empty one.
"""

from sre.adapters.store.desk import OutboxDesk
from sre.adapters.store.reader import StoreReader
from sre.adapters.store.writer import GuardStore

__all__ = ["GuardStore", "OutboxDesk", "StoreReader"]
