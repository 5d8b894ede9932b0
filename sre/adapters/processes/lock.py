"""One supervisor per stack: a lock that dies with its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import NoReturn

from sre.errors import Refused, StateError


class StackLock:
    """flock on a file that names its holder. Children do not inherit it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> bool:
        """
        Take the lock; False when another process holds it.

        Raises:
            StateError: The file cannot be opened.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StateError(f"{self._path}: {error.strerror}; check its permissions") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise StateError(f"{self._path}: {error.strerror}; free space there, or use another --state-dir") from error
        self._descriptor = descriptor
        return True

    def refuse_if_held(self, root: Path) -> None:
        """
        Take nothing.

        Raises:
            Refused: Another supervisor holds the stack in state folder ``root``.
            StateError: The file cannot be opened.
        """
        if not self.acquire():
            self.refuse(root)
        self.release()

    def refuse(self, root: Path) -> NoReturn:
        """Raise Refused with the sentence about who holds it."""
        raise Refused(
            f"already running as pid {self.holder()} (state folder {root}); look with: sre status, or stop it with:"
            " sre down"
        )

    def holder(self) -> int | None:
        """Pid written by the present or last holder; None when nobody ever held it."""
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return None

    def release(self) -> None:
        """Give it back."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1
