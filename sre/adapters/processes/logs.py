"""Log files of processes that write them themselves: size-bound rotation and the last lines."""

from __future__ import annotations

import os
from pathlib import Path

CHUNK_BYTES = 1 << 20


def rotate(path: Path, *, max_bytes: int, backups: int) -> bool:
    """
    Rotate ``path`` when it is larger than ``max_bytes``: its content moves to ``path.1``, older ones on to ``.2`` …
    ``.backups``; the file itself is emptied in place. Returns whether it was rotated.

    The writer keeps its open file: it must have opened it for appending. Lines written between the end of the copy and
    the truncation (microseconds) are lost; that is the price of files that survive their supervisor.

    Raises:
        OSError: The disk refuses.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return False
    if size <= max_bytes:
        return False
    if backups > 0:
        for number in range(backups - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        _copy_then_empty(path, path.with_name(f"{path.name}.1"))
    else:
        os.truncate(path, 0)
    return True


def _copy_then_empty(source: Path, target: Path) -> None:
    unfinished = target.with_name(f"{target.name}.part")
    with source.open("r+b") as reader:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as writer:
            while chunk := reader.read(CHUNK_BYTES):
                writer.write(chunk)
            reader.truncate(0)
    unfinished.replace(target)


def tail(path: Path, lines: int, *, max_bytes: int = 64 * 1024) -> list[str]:
    """Return the last ``lines`` lines, of at most the last ``max_bytes``; empty when there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
            text = file.read(max_bytes).decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]
