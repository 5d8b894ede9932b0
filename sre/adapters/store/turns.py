"""Threads take turns, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Turns:
    """
    A lock that goes to who waits longest.

    ``threading.Lock`` may go back to who gave it up a moment ago: who does its work in many short parts would keep all
    others waiting.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        try:
            mine.wait()
        except BaseException:
            # Interrupted by a signal: nobody may be handed a turn that no one takes.
            with self._guard:
                if not mine.is_set():
                    self._waiting.remove(mine)
                    raise
            self.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()  # handed over: it stays taken
            else:
                self._taken = False
