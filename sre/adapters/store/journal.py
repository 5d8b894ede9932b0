"""The journal table: rows chained by hash, counted for budgets, pruned from the old end."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from sre.actions.records import JournalEntry, JournalRow
from sre.adapters.store.schema import corrupt
from sre.errors import StateError

ROWS_KEPT = 20_000
"""About 10 MB. The oldest go first, but never one that a budget may still count."""

PRUNE_SLACK = 1_000
"""Rows above ROWS_KEPT before a commit prunes: so that it does so seldom."""

NEVER_PRUNED_SECONDS = 2 * 3600.0
"""Budgets look back one hour."""

COLUMNS = "seq, at_wall, at_monotonic, boot_id, kind, incident_id, target, action, reason, data"


def row_hash(prev_hash: str, fields: Sequence[object]) -> str:
    """SHA-256 over the previous row's hash and the row's columns in the order of ``COLUMNS``."""
    text = json.dumps([prev_hash, *fields], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def encode_data(entry: JournalEntry) -> str:
    """Return ``entry.data`` as JSON. Raises StateError when it holds what JSON cannot."""
    try:
        return json.dumps(dict(entry.data), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StateError(f"journal entry {entry.kind} {entry.reason} for {entry.target}: {error}") from error


def append(connection: sqlite3.Connection, entries: Sequence[JournalEntry], boot_id: str) -> None:
    """Add ``entries`` to the chain; inside a transaction."""
    if not entries:
        return
    seq, last = connection.execute("SELECT head_seq, head_hash FROM chain").fetchone()
    for entry in entries:
        seq += 1
        fields = (
            seq,
            float(entry.at_wall),
            float(entry.at_monotonic),
            boot_id,
            entry.kind,
            entry.incident_id,
            entry.target,
            entry.action,
            entry.reason,
            encode_data(entry),
        )
        digest = row_hash(last, fields)
        connection.execute(
            f"INSERT INTO journal ({COLUMNS}, prev_hash, hash) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            (*fields, last, digest),
        )
        last = digest
    connection.execute("UPDATE chain SET head_seq = ?, head_hash = ?", (seq, last))


def prune(connection: sqlite3.Connection, *, now_wall: float, rows_kept: int, max_age_seconds: float | None) -> int:
    """
    Drop the oldest rows above ``rows_kept`` or older than ``max_age_seconds``; return how many. Inside a transaction.

    The hash of the last row dropped stays as the anchor of the chain. Rows go in order of ``seq`` only: a row with
    an odd wall time keeps those after it.
    """
    anchor, head = connection.execute("SELECT anchor_seq, head_seq FROM chain").fetchone()
    last = head - rows_kept
    if max_age_seconds is not None:
        young = connection.execute(
            "SELECT min(seq) FROM journal WHERE at_wall >= ?", (now_wall - max_age_seconds,)
        ).fetchone()[0]
        last = max(last, head if young is None else young - 1)
    counted = connection.execute(
        "SELECT min(seq) FROM journal WHERE at_wall >= ?", (now_wall - NEVER_PRUNED_SECONDS,)
    ).fetchone()[0]
    if counted is not None:
        last = min(last, counted - 1)
    if last <= anchor:
        return 0
    digest = connection.execute("SELECT hash FROM journal WHERE seq = ?", (last,)).fetchone()[0]
    connection.execute("DELETE FROM journal WHERE seq <= ?", (last,))
    connection.execute("UPDATE chain SET anchor_seq = ?, anchor_hash = ?", (last, digest))
    return int(last - anchor)


def verify(connection: sqlite3.Connection, path: Path, *, last_rows: int | None = None) -> int:
    """
    Return how many rows were checked; all of them by default.

    Raises:
        StateError: A row was changed, or one is missing.
    """
    anchor_seq, anchor_hash, head_seq, head_hash = connection.execute(
        "SELECT anchor_seq, anchor_hash, head_seq, head_hash FROM chain"
    ).fetchone()
    expected, last, checked = anchor_seq, anchor_hash, 0
    if last_rows is not None and head_seq - last_rows > anchor_seq:
        expected = head_seq - last_rows
        before = connection.execute("SELECT hash FROM journal WHERE seq = ?", (expected,)).fetchone()
        if before is None:
            raise corrupt(path, f"journal row {expected} is missing")
        last = before[0]
    rows = connection.execute(f"SELECT {COLUMNS}, prev_hash, hash FROM journal WHERE seq > ? ORDER BY seq", (expected,))
    for *fields, prev_hash, digest in rows:
        expected += 1
        if fields[0] != expected:
            raise corrupt(path, f"journal row {expected} is missing")
        if prev_hash != last or digest != row_hash(last, fields):
            raise corrupt(path, f"journal row {expected} was changed after it was written")
        last = digest
        checked += 1
    if (expected, last) != (head_seq, head_hash):
        raise corrupt(path, f"the journal ends with row {expected} instead of {head_seq}")
    return checked


def select(connection: sqlite3.Connection, *, incident_id: str | None, limit: int) -> Iterator[JournalRow]:
    """Yield the newest ``limit`` rows, oldest first."""
    where, args = ("WHERE incident_id = ?", (incident_id,)) if incident_id is not None else ("", ())
    rows = connection.execute(f"SELECT {COLUMNS}, hash FROM journal {where} ORDER BY seq DESC LIMIT ?", (*args, limit))
    for seq, at_wall, at_monotonic, boot_id, kind, incident, target, action, reason, data, digest in reversed(
        rows.fetchall()
    ):
        entry = JournalEntry(
            kind=kind,
            target=target,
            reason=reason,
            at_wall=at_wall,
            at_monotonic=at_monotonic,
            incident_id=incident,
            action=action,
            data=json.loads(data),
        )
        yield JournalRow(seq, boot_id, entry, digest)


def count_intents(
    connection: sqlite3.Connection,
    *,
    action: str,
    target: str,
    since_wall: float,
    boot_id: str,
    since_monotonic: float,
) -> int:
    """Intents for ``action`` on ``target``: of this boot by monotonic time, of others by wall time."""
    row = connection.execute(
        "SELECT count(*) FROM journal WHERE kind = 'intent' AND action = ? AND target = ?"
        " AND CASE WHEN boot_id = ? THEN at_monotonic >= ? ELSE at_wall >= ? END",
        (action, target, boot_id, since_monotonic, since_wall),
    ).fetchone()
    return int(row[0])
