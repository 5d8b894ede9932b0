"""The file itself: how it is made, opened, locked, and what is wrong with it in one sentence."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from sre.errors import StateError

SCHEMA_VERSION = 4
OLDEST_VERSION = 1
"""The oldest that ``migrate`` brings up to date."""
APPLICATION_ID = 0x53524547  # "SREG": in the file's header, so that a foreign SQLite file is known as one
GENESIS = "0" * 64
"""What the first journal row names as the hash before it."""

BUSY_TIMEOUT_SECONDS = 5.0
"""How long a writer waits for the other one; the guard's and an operator's transactions take milliseconds."""

WAL_LIMIT_BYTES = 4 * 1024 * 1024
"""The write-ahead log is cut back to this after a checkpoint."""

TABLES: dict[str, str] = {
    "state": """
CREATE TABLE state (
  id INTEGER PRIMARY KEY CHECK (id = 1), document TEXT NOT NULL, sha256 TEXT NOT NULL, saved_wall REAL NOT NULL,
  boot_id TEXT NOT NULL);
""",
    "journal": """
CREATE TABLE journal (
  seq INTEGER PRIMARY KEY, at_wall REAL NOT NULL, at_monotonic REAL NOT NULL, boot_id TEXT NOT NULL, kind TEXT NOT NULL,
  incident_id TEXT, target TEXT NOT NULL, action TEXT, reason TEXT NOT NULL, data TEXT NOT NULL,
  prev_hash TEXT NOT NULL, hash TEXT NOT NULL);
CREATE INDEX journal_incident ON journal (incident_id, seq);
CREATE INDEX journal_action ON journal (action, target, seq) WHERE kind = 'intent';
""",
    "chain": f"""
CREATE TABLE chain (
  id INTEGER PRIMARY KEY CHECK (id = 1), anchor_seq INTEGER NOT NULL, anchor_hash TEXT NOT NULL,
  head_seq INTEGER NOT NULL, head_hash TEXT NOT NULL);
INSERT INTO chain VALUES (1, 0, '{GENESIS}', 0, '{GENESIS}');
""",
    "outbox": """
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT, incident_id TEXT NOT NULL, event TEXT NOT NULL, channel TEXT NOT NULL,
  level INTEGER NOT NULL, payload TEXT NOT NULL, opened TEXT, severity TEXT NOT NULL, rank INTEGER NOT NULL,
  state TEXT NOT NULL
    CHECK (state IN ('held', 'pending', 'sending', 'sent', 'dead', 'superseded', 'digested')),
  waits_for TEXT NOT NULL DEFAULT ''
    CHECK (waits_for IN ('', 'quiet_hours', 'quiet_hours_over', 'gathering', 'by_hand')),
  attempts INTEGER NOT NULL DEFAULT 0, unknown_outcomes INTEGER NOT NULL DEFAULT 0, boot_id TEXT NOT NULL,
  due_at REAL NOT NULL, lease_owner TEXT, last_error TEXT,
  created_wall REAL NOT NULL, created_at REAL NOT NULL, created_boot TEXT NOT NULL,
  begun_at REAL, begun_boot TEXT, slot INTEGER NOT NULL DEFAULT 0, own_end INTEGER NOT NULL DEFAULT 0,
  is_digest INTEGER NOT NULL DEFAULT 0, open_left INTEGER, digest_id INTEGER, fallback_of INTEGER,
  fell_back INTEGER NOT NULL DEFAULT 0, sent_wall REAL,
  UNIQUE (incident_id, event, channel, level));
CREATE INDEX outbox_open ON outbox (state, channel, id) WHERE state IN ('held', 'pending', 'sending');
CREATE INDEX outbox_new ON outbox (channel, waits_for, own_end, rank, id)
  WHERE state IN ('held', 'pending') AND begun_boot IS NULL;
CREATE INDEX outbox_again ON outbox (channel, rank, id)
  WHERE state IN ('held', 'pending', 'sending') AND begun_boot IS NOT NULL;
CREATE INDEX outbox_begun ON outbox (channel, begun_boot, begun_at) WHERE begun_boot IS NOT NULL;
CREATE INDEX outbox_dead ON outbox (channel) WHERE state = 'dead';
CREATE INDEX outbox_finished ON outbox (id) WHERE state IN ('sent', 'superseded', 'digested');
CREATE INDEX outbox_digest ON outbox (digest_id, id) WHERE digest_id IS NOT NULL;
CREATE INDEX outbox_digests ON outbox (incident_id) WHERE is_digest;
CREATE INDEX outbox_fallback ON outbox (fallback_of) WHERE fallback_of IS NOT NULL;
""",
    "incident": """
CREATE TABLE incident (
  id TEXT PRIMARY KEY, severity TEXT NOT NULL, rank INTEGER NOT NULL, payload TEXT NOT NULL, opened_wall REAL NOT NULL,
  resolved_wall REAL, acked_wall REAL, acked_by TEXT, ack_note TEXT, level INTEGER NOT NULL DEFAULT 0,
  wanted INTEGER NOT NULL DEFAULT 0, step_at REAL NOT NULL, step_boot TEXT NOT NULL, step_wall REAL NOT NULL)
  WITHOUT ROWID;
CREATE INDEX incident_unanswered ON incident (rank, level, step_at) WHERE resolved_wall IS NULL AND acked_wall IS NULL;
CREATE INDEX incident_opened ON incident (opened_wall);
""",
}
"""Table → how it is made, with its indexes. A further one needs nothing else but a step in ``migrate``."""
# outbox.due_at, created_at, begun_at: CLOCK_MONOTONIC of the boot beside them, so that a step of the wall clock neither
# delays nor repeats a page. Of another boot they mean nothing: such a row is due, and was not begun lately. due_at is
# the end of the hold, of the back-off or of the lease, by state. created_at is when it could first have gone out;
# created_wall is when it was queued. begun_*: its first try; without it the message is new, and counts against the
# limit of its channel when it is begun. slot: it went out as a digest, or in the place of one. own_end: it ends what
# the channel was told by itself, and counts against no limit. open_left: incidents told in this digest that are open.
# incident.step_*: when it began, or when its last level was told. wanted: some channel was to be told that it began; if
# none was, none is told of its end.

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
                f"BEGIN; {''.join(TABLES.values())} PRAGMA application_id={APPLICATION_ID};"
                f" PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
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


def absent(path: Path) -> StateError:
    """What is raised where there is no file. Whether there ever was one cannot be known."""
    return StateError(
        f"guard state {path}: not there; the guard has not run yet, or it was moved or deleted: start the guard with"
        " sre up, or put it back"
    )


def connect(
    path: Path, *, readonly: bool, trace: Trace | None = None, older: Callable[[sqlite3.Connection], None] | None = None
) -> sqlite3.Connection:
    """
    Open the existing state ``path`` and check that it is ours, of a version we know, and whole.

    Args:
        older: Brings a file that an older sre wrote to this version; without it such a file is refused.

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
            version = _check_identity(connection, path, older is not None)
            if not readonly:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute(f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}")
                found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise corrupt(path, str(found).replace("\n", " "))
            if trace is not None:
                connection.set_trace_callback(trace)
            if older is not None and version < SCHEMA_VERSION:
                older(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_identity(connection: sqlite3.Connection, path: Path, take_older: bool) -> int:
    """Return the version of the file."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise corrupt(path, "an SQLite file, but not one of ours")
    if version > SCHEMA_VERSION:
        raise StateError(
            f"guard state {path}: written by a newer sre (schema {version}, this one knows {SCHEMA_VERSION});"
            " install that version again"
        )
    if version < OLDEST_VERSION:
        raise corrupt(path, f"schema version {version}")
    if version < SCHEMA_VERSION and not take_older:
        raise StateError(
            f"guard state {path}: written by an older sre (schema {version}, this one reads {SCHEMA_VERSION}); it is"
            " brought up to date at the next start: sre down, then sre up; or end sre webhook serve and start it again"
        )
    return int(version)
