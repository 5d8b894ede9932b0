"""The kernel's log, as far as it speaks of the NVIDIA driver."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KMSG = Path("/dev/kmsg")
NVIDIA = re.compile(r"NVRM|\bXid\b|nvidia|nvlink", re.IGNORECASE)
LONGEST_READ_BYTES = 16 * 1024 * 1024
"""The kernel keeps less; a regular file in its place is read this far."""


@dataclass(frozen=True, slots=True)
class KernelLog:
    """``lines`` begin with the seconds since boot. ``problem`` says why none could be read; None when they could."""

    lines: Sequence[str]
    problem: str | None


def read_nvidia_lines(path: Path = KMSG, *, limit: int = 200) -> KernelLog:
    """Return the newest ``limit`` lines of the NVIDIA driver. Never blocks and never raises."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return KernelLog((), f"{path}: {error.strerror}; run as root, or: sysctl kernel.dmesg_restrict=0")
    parts: list[bytes] = []
    size = 0
    try:
        while size < LONGEST_READ_BYTES:
            try:
                part = os.read(descriptor, 8192)
            except BlockingIOError:
                break  # all records read
            except BrokenPipeError:
                continue  # the record was overwritten meanwhile; the next read gives the oldest there is
            if not part:
                break
            parts.append(part)
            size += len(part)
    except OSError as error:
        return KernelLog((), f"{path}: {error.strerror}; run as root")
    finally:
        os.close(descriptor)
    return KernelLog(nvidia_lines(b"".join(parts).decode("utf-8", "replace"))[-limit:], None)


def nvidia_lines(text: str) -> list[str]:
    """
    Return the lines of the NVIDIA driver in a kernel log.

    Wire: ``priority,sequence,microseconds,flags;message`` per record, continuation lines begin with a space.
    """
    found = []
    for line in text.splitlines():
        head, separator, message = line.partition(";")
        fields = head.split(",")
        if not separator or line.startswith(" ") or len(fields) < 3 or not fields[2].isdigit():
            continue
        if NVIDIA.search(message):
            found.append(f"[{int(fields[2]) / 1e6:.6f}] {message}")
    return found
