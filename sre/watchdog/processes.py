"""Facts about processes from /proc, and signals that cannot hit a stranger."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

GONE_STATES = frozenset("ZXx")
"""A zombie runs nothing any more: it counts as gone."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat, clock ticks since boot."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says. ``state`` is its letter: R, S, D, T, Z …"""

    pid: int
    state: str
    ppid: int
    start_ticks: int

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.start_ticks)


def boot_id() -> str:
    """Identifier of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def stat(pid: int) -> Stat | None:
    """Return the facts of ``pid``; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name may hold blanks and parentheses: fields are counted after the last ")".
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(pid, fields[0].decode("ascii"), int(fields[1]), int(fields[19]))


def state(identity: Identity) -> str | None:
    """State letter of exactly this process; None when it is gone, a zombie, or its pid belongs to another."""
    seen = stat(identity.pid)
    if seen is None or seen.start_ticks != identity.start_ticks or seen.state in GONE_STATES:
        return None
    return seen.state


def own_identity() -> Identity:
    """Identity of the calling process."""
    seen = stat(os.getpid())
    assert seen is not None, "/proc shows the reader itself"
    return seen.identity


class Handle:
    """
    A grip on one process through a pidfd: a signal sent with it reaches that process or nobody.

    Close it when done.
    """

    def __init__(self, identity: Identity, pidfd: int) -> None:
        self.identity = identity
        self._pidfd = pidfd

    @classmethod
    def open(cls, identity: Identity) -> Handle | None:
        """Return a handle; None when the process is gone or the pid belongs to another by now."""
        try:
            pidfd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return None
        # Compared after the grip: what the pidfd holds cannot change any more.
        if state(identity) is None:
            os.close(pidfd)
            return None
        return cls(identity, pidfd)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process is gone. Raises PermissionError."""
        if self._pidfd < 0 or state(self.identity) is None:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
