"""Facts about this machine that decide whether a stack can run on it. Changes nothing; a hung file system blocks it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import resource
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
IN_CLOEXEC = 0o2000000
TIME_ERROR = 5
"""What adjtimex returns while the clock is not synchronized."""
TIMEX_BYTES = 512
"""More than struct timex has on any architecture."""


def nearest_existing(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def write_problem(folder: Path) -> str | None:
    """Return why nothing can be written in ``folder`` (or made under its nearest existing parent); None when it can."""
    there = nearest_existing(folder)
    if not there.is_dir():
        return f"{there} is not a folder"
    if there != folder:
        return None if os.access(there, os.W_OK | os.X_OK) else f"you may not make a folder in {there}"
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None


def filesystem_of(path: Path, mountinfo: str | None = None) -> str | None:
    """Return the type of the file system that holds ``path`` (``ext4``, ``nfs4``, ``tmpfs``); None when not known."""
    if mountinfo is None:
        try:
            mountinfo = MOUNTINFO.read_text("utf-8", "surrogateescape")
        except OSError:
            return None
    there = nearest_existing(path).resolve()
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        # ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAGS…] - TYPE SOURCE SUPEROPTIONS
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5 or not right.split():
            continue
        mount = Path(_unescaped(fields[4]))
        depth = len(mount.parts)
        # Of two mounts on one point the later one is seen.
        if there.is_relative_to(mount) and (best is None or depth >= best[0]):
            best = (depth, right.split()[0])
    return None if best is None else best[1]


def _unescaped(text: str) -> str:
    r"""Undo the kernel's ``\040`` for blanks and the like."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def free_bytes(path: Path) -> int | None:
    """Return the bytes an ordinary user can still write where ``path`` is; None when not known."""
    try:
        stats = os.statvfs(nearest_existing(path))
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize


def inotify_problem() -> str | None:
    """Return why no further file watch can be made; None when one can."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(IN_CLOEXEC)
    if descriptor < 0:
        return os.strerror(ctypes.get_errno())
    os.close(descriptor)
    return None


def clock_synchronized() -> bool | None:
    """Return whether the kernel considers its clock synchronized; None when it does not say."""
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)  # modes = 0: only read
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    return None if state < 0 else state != TIME_ERROR


def nofile_limits() -> tuple[int, int]:
    """Return (soft, hard) limit of open files."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def programs(names: Iterable[str]) -> dict[str, str | None]:
    """Return the path per program; ``a|b`` is either name."""
    return {name.partition("|")[0]: next(filter(None, map(shutil.which, name.split("|"))), None) for name in names}


def installed_version(distribution: str) -> str | None:
    """Return the installed version of a Python distribution; None when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
