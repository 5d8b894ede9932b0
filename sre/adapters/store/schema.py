"""The file itself: how it is made, opened, locked, and what is wrong with it in one sentence."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from sre.errors import StateError

SCHEMA_VERSION = 1
APPLICATION_ID = 0x53524547  # "SREG": in the file's header, so that a foreign SQLite file is known as one
GENESIS = "0" * 64
"""What the first journal row names as the hash before it."""

BUSY_TIMEOUT_SECONDS = 5.0
"""How long a writer waits for the other one; the guard's and an operator's transactions take milliseconds."""

WAL_LIMIT_BYTES = 4 * 1024 * 1024
"""The write-ahead log is cut back to this after a checkpoint."""

SCHEMA = f"""
CREATE TABLE state (
  id INTEGER PRIMARY KEY CHECK (id = 1), document TEXT NOT NULL, sha256 TEXT NOT NULL, saved_wall REAL NOT NULL,
  boot_id TEXT NOT NULL);
CREATE TABLE journal (
  seq INTEGER PRIMARY KEY, at_wall REAL NOT NULL, at_monotonic REAL NOT NULL, boot_id TEXT NOT NULL, kind TEXT NOT NULL,
  incident_id TEXT, target TEXT NOT NULL, action TEXT, reason TEXT NOT NULL, data TEXT NOT NULL,
  prev_hash TEXT NOT NULL, hash TEXT NOT NULL);
CREATE INDEX journal_incident ON journal (incident_id, seq);
CREATE INDEX journal_action ON journal (action, target, seq) WHERE kind = 'intent';
CREATE TABLE chain (
  id INTEGER PRIMARY KEY CHECK (id = 1), anchor_seq INTEGER NOT NULL, anchor_hash TEXT NOT NULL,
  head_seq INTEGER NOT NULL, head_hash TEXT NOT NULL);
INSERT INTO chain VALUES (1, 0, '{GENESIS}', 0, '{GENESIS}');
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT, incident_id TEXT NOT NULL, event TEXT NOT NULL, channel TEXT NOT NULL,
  level INTEGER NOT NULL, payload TEXT NOT NULL, opened TEXT,
  state TEXT NOT NULL CHECK (state IN ('held', 'pending', 'sending', 'sent', 'dead', 'superseded')),
  attempts INTEGER NOT NULL DEFAULT 0, boot_id TEXT NOT NULL, due_at REAL NOT NULL, lease_owner TEXT, last_error TEXT,
  created_wall REAL NOT NULL, created_at REAL NOT NULL, created_boot TEXT NOT NULL, sent_wall REAL,
  UNIQUE (incident_id, event, channel, level));
CREATE INDEX outbox_open ON outbox (state, channel, id) WHERE state IN ('held', 'pending', 'sending');
"""
# outbox.due_at, created_at: CLOCK_MONOTONIC of the boot beside them, so that a step of the wall clock neither delays
# nor repeats a page. Of another boot they mean nothing: such a row is due. due_at is the end of the hold, of the
# back-off or of the lease, by state.

Trace = Callable[[str], None]


def problem(path: Path, error: Exception) -> StateError:
    """Return what ``error`` means for the person who looks after ``path``."""
    name = getattr(error, "sqlite_errorname", "") or ""
    where = f"guard state {path}"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return corrupt(path, str(error))
    if name.startswith("SQLITE_FULL"):
        return StateError(f"{where}: the disk is full; free space there, the guard then goes on by itself")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return StateError(f"{where}: cannot be opened for writing ({error}); check owner and mode of its folder")
    if name.startswith("SQLITE_BUSY"):
        return StateError(f"{where}: another process holds it ({error}); find it with: fuser {path}")
    if name.startswith("SQLITE_IOERR"):
        return StateError(f"{where}: the disk refuses ({error}, {name}); check free space, quota and kernel log")
    if isinstance(error, OSError):
        return StateError(f"{where}: {error.strerror or error}; check owner, mode and free space of its folder")
    return StateError(f"{where}: {error}")


def corrupt(path: Path, what: str) -> StateError:
    """Return the error for a file that exists and cannot be trusted."""
    return StateError(
        f"guard state {path}: corrupt ({what}); the guard does not act on it. To start over without its memory of"
        f" openings, budgets and unsent messages: mv {path} {path}.corrupt"
    )


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system raise inside into a StateError about ``path``."""
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeError, OverflowError) as error:
        raise problem(path, error) from error


def lock(path: Path) -> int:
    """
    Return a file descriptor that holds the writer's lock of ``path``; closing it, or death, releases it.

    Raises:
        StateError: Another process holds it.
    """
    name = path.with_name(path.name + ".lock")
    with explained(path):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "?"
        os.close(descriptor)
        raise StateError(
            f"guard state {path}: in use by a guard with pid {holder}; stop that one first, or use another --state-dir"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise problem(path, error) from error
    # The number is only for people: where the disk is too full for it, the lock is held all the same.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def create(path: Path) -> None:
    """
    Make an empty state at ``path``, whole or not at all.

    It is made beside and renamed, so that an empty or half-made file at ``path`` is always damage.
    """
    fresh = path.with_name(path.name + ".new")
    with explained(path):
        for leftover in (fresh, path.with_name(fresh.name + "-journal")):
            leftover.unlink(missing_ok=True)
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(fresh, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.executescript(
                f"BEGIN; {SCHEMA} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
            )
        finally:
            connection.close()
        os.replace(fresh, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def refuse_damage(path: Path) -> bool:
    """Return whether ``path`` exists. Raises StateError when what lies there shows that a state was lost."""
    with explained(path):
        exists = path.exists()
        if exists and path.stat().st_size == 0:
            raise corrupt(path, "the file is empty")
        if not exists and path.with_name(path.name + "-wal").exists():
            raise corrupt(path, f"the file is gone, its log {path.name}-wal is still there")
    return exists


def connect(path: Path, *, readonly: bool, trace: Trace | None = None) -> sqlite3.Connection:
    """
    Open the existing state ``path`` and check that it is ours, of a version we know, and whole.

    Raises:
        StateError: It is not.
    """
    mode = "ro" if readonly else "rw"
    with explained(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=BUSY_TIMEOUT_SECONDS,
            check_same_thread=False,
        )
    try:
        with explained(path):
            _check_identity(connection, path)
            if not readonly:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute(f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}")
                found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise corrupt(path, str(found).replace("\n", " "))
            if trace is not None:
                connection.set_trace_callback(trace)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_identity(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise corrupt(path, "an SQLite file, but not one of ours")
    if version > SCHEMA_VERSION:
        raise StateError(
            f"guard state {path}: written by a newer sre (schema {version}, this one knows {SCHEMA_VERSION});"
            " install that version again"
        )
    if version < SCHEMA_VERSION:
        raise corrupt(path, f"schema version {version}")
