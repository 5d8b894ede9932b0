"""
The journal of one run: JSON lines, written ahead of each deed, fsynced one by one.

``<chaos folder>/<run id>/journal.jsonl``, folder 0700, file 0600. Records, in the order of a run::

    planned   schema, run_id, fault, engine, boot_id, lease_seconds, ttl_seconds, stop_files, injector, steps …
    armed     watchdog {pid, start_ticks}
    injecting step            the deed may have begun
    injected  step
    effective evidence
    reverting by, cause
    reverted  step, result, detail
    closed    outcome         nothing of ours is left
    dirty     steps           these could not be proven reverted
    torn      -               the line before is half a record (its writer died)

Every record carries ``wall`` and ``monotonic``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat as file_mode
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sre.watchdog.processes import Identity

SCHEMA = 1
FILE_NAME = "journal.jsonl"
MAX_BYTES = 16 * 1024 * 1024
"""A run writes a few kilobytes."""
STOP_NAME = "stop"
LEVER_NAME = "STOP"
"""Safety lever: while this file exists in the chaos folder, what runs is reverted and nothing starts."""


class JournalUnreadable(Exception):
    """The journal cannot be understood, so nobody knows what is left to revert."""


class JournalUnwritable(Exception):
    """The journal, or its folder, cannot be written or trusted: nothing may be injected."""


@dataclass(frozen=True, slots=True)
class Step:
    """One deed and its undoing, as the watchdog needs it."""

    index: int
    name: str
    revert_verb: str
    revert_args: Mapping[str, Any]
    fallback_verb: str | None
    deadline_seconds: float
    tag: str
    target: Identity | None

    @classmethod
    def parse(cls, index: int, data: Mapping[str, Any]) -> Step:
        """Raises KeyError, TypeError or ValueError on anything but a step."""
        target = data["target"]
        return cls(
            index=index,
            name=str(data["name"]),
            revert_verb=str(data["revert_verb"]),
            revert_args=dict(data["revert_args"]),
            fallback_verb=None if data["fallback_verb"] is None else str(data["fallback_verb"]),
            deadline_seconds=float(data["deadline_seconds"]),
            tag=str(data["tag"]),
            target=None if target is None else Identity(int(target["pid"]), int(target["start_ticks"])),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Record ``planned``."""

    run_id: str
    boot_id: str
    lease_seconds: float
    ttl_seconds: float
    """The watchdog reverts this long after it was ready, whatever the injector says."""
    stop_files: tuple[Path, ...]
    injector: Identity
    steps: tuple[Step, ...]
    raw: Mapping[str, Any]

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Plan:
        """Raises JournalUnreadable."""
        try:
            if record["schema"] != SCHEMA:
                raise ValueError(f"schema {record['schema']!r}, this version reads {SCHEMA}")
            return cls(
                run_id=str(record["run_id"]),
                boot_id=str(record["boot_id"]),
                lease_seconds=float(record["lease_seconds"]),
                ttl_seconds=float(record["ttl_seconds"]),
                stop_files=tuple(Path(p) for p in record["stop_files"]),
                injector=Identity(int(record["injector"]["pid"]), int(record["injector"]["start_ticks"])),
                steps=tuple(Step.parse(i, s) for i, s in enumerate(record["steps"])),
                raw=record,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise JournalUnreadable(f"record planned: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Story:
    """What a journal tells."""

    plan: Plan | None
    """None: the writer died before ``planned`` was complete, so nothing was injected."""
    records: tuple[Mapping[str, Any], ...] = ()
    torn: bool = False
    """The last line is half a record: the deed it announced may have begun."""
    begun: frozenset[int] = field(default_factory=frozenset)
    """Steps that may have been done."""
    finished: bool = False
    """Closed, and nothing was begun since."""
    dirty: bool = False
    """The last attempt to revert could not prove it."""

    def last(self, record: str) -> Mapping[str, Any] | None:
        """The latest record of that kind."""
        return next((r for r in reversed(self.records) if r["record"] == record), None)

    @classmethod
    def parse(cls, data: bytes) -> Story:
        """Read a journal. Raises JournalUnreadable."""
        lines = data.split(b"\n")
        tail = lines.pop()
        torn = bool(tail)
        parsed = [_record(line) for line in lines]
        records: list[Mapping[str, Any]] = []
        for number, record in enumerate(parsed):
            if record is not None:
                records.append(record)
                continue
            following = parsed[number + 1] if number + 1 < len(parsed) else None
            if following is None or following["record"] != "torn":
                raise JournalUnreadable(f"line {number + 1} is not a record")
        plan: Plan | None = None
        begun: set[int] = set()
        finished = dirty = False
        for record in records:
            match record["record"]:
                case "planned":
                    if plan is not None:
                        raise JournalUnreadable("two records planned")
                    plan = Plan.parse(record)
                case "injecting":
                    begun.add(_step(record))
                    finished = False
                case "torn":
                    # Half a record hides which step it announced: all of them.
                    begun.update(range(len(plan.steps)) if plan else ())
                    finished = False
                case "dirty":
                    dirty, finished = True, False
                case "closed":
                    dirty, finished = False, True
        if torn:
            begun.update(range(len(plan.steps)) if plan else ())
            finished = False
        if records and plan is None and any(r["record"] not in ("torn", "closed") for r in records):
            raise JournalUnreadable("no record planned before the others")
        return cls(plan, tuple(records), torn, frozenset(begun), finished, dirty)


def _record(line: bytes) -> Mapping[str, Any] | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) and isinstance(data.get("record"), str) else None


def _step(record: Mapping[str, Any]) -> int:
    index = record.get("step")
    if not isinstance(index, int):
        raise JournalUnreadable(f"record {record['record']}: step {index!r} is not a number")
    return index


class Journal:
    """One journal file on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, chaos_folder: Path, run_id: str) -> Journal:
        """
        Make the run's folder and an empty journal in it, both on disk when this returns.

        Raises:
            JournalUnwritable: No permission, no space, or a folder that others may write in.
        """
        folder = chaos_folder / run_id
        try:
            check_folder(chaos_folder)
            folder.mkdir(mode=0o700)
            os.close(os.open(folder / FILE_NAME, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            _sync_folder(folder)
            _sync_folder(chaos_folder)
        except OSError as error:
            raise JournalUnwritable(f"{folder}: {error.strerror or error}") from error
        return cls(folder / FILE_NAME)

    def append(self, record: str, **fields: Any) -> None:
        """
        Add one record: one write, one fsync.

        Raises:
            JournalUnwritable: It is not certain to be on disk.
        """
        line = json.dumps({"record": record, **fields, "wall": time.time(), "monotonic": time.monotonic()}, default=str)
        data = line.encode() + b"\n"
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    data = b'\n{"record": "torn"}\n' + data
                written = os.write(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise JournalUnwritable(f"{self.path}: {error.strerror or error}") from error
        if written != len(data):
            raise JournalUnwritable(f"{self.path}: no space left, only half a record was written")

    def read(self) -> Story:
        """Raises JournalUnreadable: also for what is not a file of ours."""
        try:
            return Story.parse(_read_own(self.path))
        except OSError as error:
            raise JournalUnreadable(f"{self.path}: {error.strerror or error}") from error
        except JournalUnreadable as error:
            raise JournalUnreadable(f"{self.path}: {error}") from error

    @contextlib.contextmanager
    def locked(self, timeout_seconds: float) -> Iterator[bool]:
        """
        Hold the journal's lock, or go on without it after ``timeout_seconds``: a stopped process may hold it for ever,
        and all that is done under it may be done twice. Yields whether it is held.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield False
            return
        try:
            yield _flock(descriptor, timeout_seconds)
        finally:
            os.close(descriptor)


def _read_own(path: Path) -> bytes:
    """Read a regular file that belongs to us and is no larger than a journal can be."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        seen = os.fstat(descriptor)
        if not file_mode.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid():
            raise JournalUnreadable("not a file of ours")
        if seen.st_size > MAX_BYTES:
            raise JournalUnreadable(f"larger than {MAX_BYTES} bytes")
        return file.read(MAX_BYTES)


def _flock(descriptor: int, timeout_seconds: float) -> bool:
    give_up = time.monotonic() + timeout_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
            time.sleep(0.01)
        else:
            return True


def check_folder(folder: Path) -> None:
    """Raise JournalUnwritable unless ``folder`` is ours alone to write, and nobody can replace it."""
    seen = folder.lstat()
    if not file_mode.S_ISDIR(seen.st_mode):
        raise JournalUnwritable(f"{folder}: not a folder (a link is refused too)")
    if seen.st_uid != os.geteuid():
        raise JournalUnwritable(f"{folder}: belongs to uid {seen.st_uid}, not to you")
    if seen.st_mode & 0o022:
        raise JournalUnwritable(f"{folder}: others may write in it; run chmod go-w {folder}")
    for parent in folder.resolve().parents:
        mode = parent.stat().st_mode
        if mode & 0o002 and not mode & file_mode.S_ISVTX:
            raise JournalUnwritable(f"{folder}: everybody may write in {parent}; move the state folder")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
