"""The watchdog's own process: waits for signs of life, and reverts when they end."""

from __future__ import annotations

import enum
import os
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from sre.watchdog.journal import Journal, JournalUnreadable, Plan
from sre.watchdog.processes import Handle, own_identity, state
from sre.watchdog.revert import Outcome, check_verbs, open_handles, revert, standing

WAKE_SECONDS = 0.2
"""The watchdog looks at the stop files at least this often."""

# One byte each way. The injector says:
BEAT = b"b"
LEAVE = b"Q"
# The watchdog says:
READY = b"A"
ECHO = b"e"
REVERTED = b"R"
DIRTY = b"D"


class Cause(enum.Enum):
    """Why the watchdog reverts."""

    INJECTOR_GONE = "injector_gone"  # its end of the pipe closed
    LEASE_EXPIRED = "lease_expired"  # no beat for one lease: stopped, stuck
    TTL_EXPIRED = "ttl_expired"  # it beats, but the run lasts too long
    STOP_FILE = "stop_file"
    SIGNAL = "signal"


def guard(journal: Journal, beat_fd: int, reply_fd: int) -> int:
    """
    Watch over one run until it is closed; return the exit code: 0 clean, 4 not proven reverted, 1 could not arm.
    """
    wake_fd = _listen_to_signals()
    for descriptor in (beat_fd, reply_fd):
        os.set_blocking(descriptor, False)
    try:
        plan = journal.read().plan
        if plan is None:
            raise JournalUnreadable(f"{journal.path}: no plan in it")
        check_verbs(plan)
    except JournalUnreadable as error:
        print(f"watchdog: {error}", flush=True)
        return 1
    handles = open_handles(plan)
    _say(reply_fd, READY)
    print(f"watchdog: {own_identity()} guards {plan.run_id}", flush=True)
    cause = _watch(journal, plan, beat_fd, reply_fd, wake_fd)
    if cause is None:
        return 0
    print(f"watchdog: {cause.value}: reverting", flush=True)
    outcome = _revert(journal, cause, plan, handles)
    _say(reply_fd, REVERTED if outcome.clean else DIRTY)
    outcome = _linger(journal, plan, beat_fd, handles, outcome)
    print(f"watchdog: {'clean' if outcome.clean else 'DIRTY: ' + ', '.join(outcome.unproven)}", flush=True)
    return 0 if outcome.clean else 4


def _watch(journal: Journal, plan: Plan, beat_fd: int, reply_fd: int, wake_fd: int) -> Cause | None:
    """Return why to revert; None when the injector closed the run itself and said so."""
    poll = select.poll()
    for descriptor in (beat_fd, wake_fd):
        poll.register(descriptor, select.POLLIN)
    last_beat = started = time.monotonic()
    while True:
        remaining = min(last_beat + plan.lease_seconds, started + plan.ttl_seconds) - time.monotonic()
        events = dict(poll.poll(max(0.0, min(WAKE_SECONDS, remaining)) * 1000))
        if wake_fd in events:
            return Cause.SIGNAL
        if beat_fd in events:
            said = os.read(beat_fd, 65536)
            if not said or LEAVE in said:
                return None if _closed(journal) else Cause.INJECTOR_GONE
            # Stamped at receipt, on our own monotonic clock: a wall clock may step, a sender may lie.
            last_beat = time.monotonic()
            _say(reply_fd, ECHO)
        now = time.monotonic()
        if now - last_beat >= plan.lease_seconds:
            return Cause.LEASE_EXPIRED
        if now - started >= plan.ttl_seconds:
            return Cause.TTL_EXPIRED
        if any(path.exists() for path in plan.stop_files):
            return Cause.STOP_FILE


def _closed(journal: Journal) -> bool:
    try:
        return journal.read().finished
    except JournalUnreadable:
        return False


def _revert(journal: Journal, cause: Cause, plan: Plan, handles: Mapping[int, Handle]) -> Outcome:
    return revert(journal, by="watchdog", cause=cause.value, plan=plan, handles=handles)


def _linger(journal: Journal, plan: Plan, beat_fd: int, handles: Mapping[int, Handle], outcome: Outcome) -> Outcome:
    """
    Stay until the injector is gone. A *stopped* injector may have been about to inject: continued later, it would place
    the fault with nobody left to lift it. So look again, and revert again.
    """
    poll = select.poll()
    poll.register(beat_fd, select.POLLIN)
    give_up = time.monotonic() + max(plan.ttl_seconds, 3600.0)
    while time.monotonic() < give_up:
        gone = state(plan.injector) is None  # its end of the pipe may live on in a child it forked
        if poll.poll(WAKE_SECONDS * 1000):
            gone |= not os.read(beat_fd, 65536)
        if (outcome.clean and standing(plan)) or (gone and not outcome.clean):
            outcome = _revert(journal, Cause.INJECTOR_GONE if gone else Cause.LEASE_EXPIRED, plan, handles)
        if gone:
            break
    return outcome


def _listen_to_signals() -> int:
    """SIGHUP and SIGPIPE do nothing; SIGTERM, SIGINT and SIGQUIT make the returned descriptor readable."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    return read_end


def _say(reply_fd: int, word: bytes) -> None:
    # A stopped or dead injector does not read: that is no reason to stop.
    try:
        os.write(reply_fd, word)
    except (BlockingIOError, BrokenPipeError):
        return


def run(journal_path: str, beat_fd: int, reply_fd: int) -> int:
    """Entry of ``python -m sre.watchdog``."""
    return guard(Journal(Path(journal_path)), beat_fd, reply_fd)
