"""The injector's end of the leash: starts the watchdog, sends signs of life, and knows when nobody listens."""

from __future__ import annotations

import contextlib
import enum
import os
import subprocess
import sys
import time
from pathlib import Path

from sre.watchdog.journal import Journal
from sre.watchdog.loop import BEAT, DIRTY, LEAVE, READY, REVERTED
from sre.watchdog.processes import Identity, stat

BEATS_PER_LEASE = 5


class Bond(enum.Enum):
    """How the injector and its watchdog stand."""

    STARTING = "starting"
    HELD = "held"
    GONE = "watchdog_gone"  # its end of a pipe closed
    SILENT = "watchdog_silent"  # a beat was not echoed for one lease: stopped
    REVERTED = "watchdog_reverted"  # it acted; nothing of ours is left
    DIRTY = "watchdog_dirty"  # it acted, and could not prove the revert


class Lease:
    """
    One watchdog process and the two pipes to it. No method blocks, except ``finish``.

    The caller sends a beat every ``beat_seconds`` from the loop that can also end the fault; never from a thread beside
    it, which would go on while that loop is stuck.
    """

    def __init__(self, process: subprocess.Popen[bytes], beat_fd: int, reply_fd: int, lease_seconds: float) -> None:
        self._process = process
        self._beat_fd = beat_fd
        self._reply_fd = reply_fd
        self._lease_seconds = lease_seconds
        self._unanswered_since: float | None = None
        self.bond = Bond.STARTING
        self.beat_seconds = lease_seconds / BEATS_PER_LEASE
        seen = stat(process.pid)
        self.watchdog = Identity(process.pid, seen.start_ticks if seen else 0)

    @classmethod
    def start(cls, journal: Journal, lease_seconds: float) -> Lease:
        """Start the watchdog of ``journal`` in its own session. Raises OSError."""
        beat_read, beat_write = os.pipe2(os.O_CLOEXEC)
        reply_read, reply_write = os.pipe2(os.O_CLOEXEC)
        environment = dict(os.environ)
        # From "/" a package that was found through the current folder would not be found again.
        places = [str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in places if p)
        try:
            with open(journal.path.with_name("watchdog.log"), "ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "sre.watchdog", str(journal.path), str(beat_read), str(reply_write)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=environment,
                    start_new_session=True,
                    pass_fds=(beat_read, reply_write),
                )
        except BaseException:
            os.close(beat_write)
            os.close(reply_read)
            raise
        finally:
            os.close(beat_read)
            os.close(reply_write)
        os.set_blocking(beat_write, False)
        os.set_blocking(reply_read, False)
        return cls(process, beat_write, reply_read, lease_seconds)

    def listen(self) -> Bond:
        """Read what the watchdog said; return how things stand."""
        try:
            said = os.read(self._reply_fd, 65536)
        except BlockingIOError:
            said = None
        if said is not None:
            self._unanswered_since = None
            if DIRTY in said:
                self.bond = Bond.DIRTY
            elif REVERTED in said:
                self.bond = Bond.REVERTED
            elif READY in said and self.bond is Bond.STARTING:
                self.bond = Bond.HELD
            if not said and self.bond in (Bond.STARTING, Bond.HELD, Bond.SILENT):
                self.bond = Bond.GONE
        if (
            self.bond is Bond.HELD
            and self._unanswered_since is not None
            and time.monotonic() - self._unanswered_since > self._lease_seconds
        ):
            self.bond = Bond.SILENT
        return self.bond

    def beat(self) -> Bond:
        """Send one sign of life; return how things stand."""
        if self.listen() is not Bond.HELD:
            return self.bond
        try:
            os.write(self._beat_fd, BEAT)
        except BlockingIOError:
            pass  # a full pipe: nobody reads, and the missing echo will say so
        except BrokenPipeError:
            self.bond = Bond.GONE
            return self.bond
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()
        return self.bond

    def finish(self, timeout_seconds: float = 2.0) -> None:
        """Let the watchdog go: call only after the journal was closed, or when the watchdog is to act itself. A stopped
        watchdog is killed."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._beat_fd, LEAVE)
        os.close(self._beat_fd)
        try:
            self._process.wait(0 if self.bond is Bond.SILENT else timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._reply_fd)
