"""A disk that hangs: the store's COMMIT does not return until it is let go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class HangingDisk:
    """Give it to ``GuardStore.open`` as ``trace``."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self.waiting = 0

    def __call__(self, statement: str) -> None:
        if statement == "COMMIT" and not self._free.is_set():
            self.waiting += 1
            self._free.wait()
            self.waiting -= 1

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Nothing is committed inside; everything that waits goes on afterwards."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()
