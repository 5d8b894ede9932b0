"""Reads what a log file gained, through rotation, truncation and torn lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

MAX_LINE_BYTES = 1 << 20
"""A line longer than this is no line of ours; it is skipped up to the next newline."""


class LogTail:
    """
    Follows ``path`` by name: after a rename it reads the old file to its end, then the new one.

    Args:
        tail_bytes: How much of what is there at first use is returned by the first ``read``.
    """

    def __init__(self, path: Path, tail_bytes: int) -> None:
        self._path = path
        self._tail_bytes = tail_bytes
        self._file: BinaryIO | None = None
        self._inode = 0
        self._rest = b""
        self._first = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self, max_bytes: int) -> list[bytes]:
        """Return the complete lines that were added, at most about ``max_bytes``; empty when the file is missing."""
        if self._file is None and not self._open(self._path):
            return []
        # Asked before reading: the writer leaves a file for good when it opens the next one, so that what is read to
        # its end afterwards is complete.
        following = self._following()
        lines = self._lines(max_bytes)
        if not lines and following is not None:
            self.close()
            self._rest = b""
            if self._open(following):
                lines = self._lines(max_bytes)
        return lines

    def _open(self, path: Path) -> bool:
        try:
            self._file = open(path, "rb")  # noqa: SIM115 - kept open between reads, closed by close()
        except OSError:
            self._file = None
            return False
        status = os.fstat(self._file.fileno())
        self._inode = status.st_ino
        if self._first and status.st_size > self._tail_bytes:
            self._file.seek(status.st_size - self._tail_bytes)
            self._file.readline()
        self._first = False
        return True

    def _following(self) -> Path | None:
        """The file after the one that is open: None while that is the current one, else the next newer by number."""
        newer = self._path
        number = 0
        while True:
            path = self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")
            try:
                inode = os.stat(path).st_ino
            except OSError:
                # The current file is about to appear, or ours was removed as the oldest.
                return None if number == 0 else newer
            if inode == self._inode:
                return None if number == 0 else newer
            newer, number = path, number + 1

    def _lines(self, max_bytes: int) -> list[bytes]:
        assert self._file is not None
        try:
            if os.fstat(self._file.fileno()).st_size < self._file.tell():
                self._file.seek(0)  # truncated in place
                self._rest = b""
            data = self._rest + self._file.read(max_bytes)
        except OSError:
            self.close()
            return []
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
        return [line for line in lines if line]
