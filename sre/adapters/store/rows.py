"""Rows of the outbox as values, and what is asked about them."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from functools import partial

from sre.actions.records import OutboxLoad, OutboxRow, OutboxState
from sre.adapters.store.moment import Now
from sre.notify.envelope import message_from_text
from sre.notify.policy import RANKS

COLUMNS = (
    "id, payload, opened, channel, level, state, attempts, boot_id, due_at, last_error, created_wall, created_at,"
    " created_boot, sent_wall, severity, waits_for, fallback_of, fell_back, is_digest,"
    " (SELECT d.incident_id FROM outbox d WHERE d.id = outbox.digest_id), incident_id, event, unknown_outcomes"
)


AGAIN = "state IN ('held', 'pending', 'sending') AND begun_boot IS NOT NULL"
"""Messages that were tried before, as an index of theirs says it."""

PERHAPS_TOLD = (
    "(unknown_outcomes > 0 AND (rank > 0 OR event IN ('resolve', 'acknowledge'))"
    " OR EXISTS (SELECT 1 FROM outbox t LEFT JOIN outbox g ON g.id = t.digest_id"
    "  WHERE t.incident_id = outbox.incident_id AND t.event = outbox.event AND t.level = outbox.level"
    "  AND t.channel != outbox.channel AND outbox.fell_back AND (t.state = 'sent' OR g.state = 'sent')))"
)
"""
Of what is dead: what may have arrived, and what another channel delivered in its place. Not a page that may have
arrived: it is tried until it is too old, and then nobody is known to have got it.
"""


def select(
    connection: sqlite3.Connection,
    now: Now,
    *,
    states: Collection[OutboxState] | None = None,
    incident_id: str | None = None,
    row_id: int | None = None,
    digest: str | None = None,
    limit: int,
) -> list[OutboxRow]:
    """Return the newest ``limit`` rows that match, oldest first."""
    clauses, args = ["1"], []
    if states is not None:
        clauses.append(f"state IN ({','.join('?' * len(states))})")
        args += [state.value for state in states]
    if incident_id is not None:
        clauses.append("incident_id = ?")
        args.append(incident_id)
    if row_id is not None:
        clauses.append("id = ?")
        args.append(str(row_id))
    if digest is not None:
        clauses.append("digest_id IN (SELECT d.id FROM outbox d WHERE d.incident_id = ? AND d.is_digest)")
        args.append(digest)
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM outbox WHERE {' AND '.join(clauses)} ORDER BY id DESC LIMIT ?", (*args, limit)
    )
    return [as_row(columns, now) for columns in reversed(rows.fetchall())]


def load(connection: sqlite3.Connection, now: Now) -> list[OutboxLoad]:
    """Return what waits and what is dead, per channel."""
    rows = connection.execute(
        "SELECT channel, sum(waiting), sum(dead), max(age), sum(told) FROM ("
        " SELECT channel, count(*) AS waiting, 0 AS dead, 0 AS told, max(CASE WHEN waits_for != 'quiet_hours' THEN"
        "  CASE WHEN created_boot = ? THEN ? - created_at ELSE ? - created_wall END END) AS age"
        "  FROM outbox WHERE state IN ('held', 'pending', 'sending') GROUP BY channel"
        f" UNION ALL SELECT channel, 0, count(*), sum({PERHAPS_TOLD}), NULL FROM outbox WHERE state = 'dead'"
        " GROUP BY channel"
        ") GROUP BY channel ORDER BY channel",
        (now.boot_id, now.monotonic, now.wall),
    )
    return [
        OutboxLoad(str(channel), int(pending), int(dead), oldest, perhaps_told=int(told))
        for channel, pending, dead, oldest, told in rows
    ]


def as_row(columns: Sequence[object], now: Now) -> OutboxRow:
    """Return a row of ``COLUMNS`` as a value; a payload that cannot be read becomes a message that says so."""
    (row_id, payload, opened, channel, level, state, attempts, boot_id, due_at, last_error) = columns[:10]
    created_wall, created_at, created_boot, sent_wall, severity, waits_for, fallback_of, fell_back = columns[10:18]
    is_digest, digest, incident_id, event, unknown_outcomes = columns[18:]
    same_boot = created_boot == now.boot_id
    known = str(severity) if severity in RANKS else "ticket"
    wall = float(str(created_wall))
    read = partial(message_from_text, incident_id=str(incident_id), severity=known, at_wall=wall)
    return OutboxRow(
        id=int(str(row_id)),
        message=read(str(payload), event=str(event)),
        opened=None if opened is None else read(str(opened)),
        channel=str(channel),
        level=int(str(level)),
        state=OutboxState(state),
        attempts=int(str(attempts)),
        due_in_seconds=float(str(due_at)) - now.monotonic if boot_id == now.boot_id else 0.0,
        last_error=None if last_error is None else str(last_error),
        created_wall=wall,
        age_seconds=now.monotonic - float(str(created_at)) if same_boot else now.wall - wall,
        sent_wall=None if sent_wall is None else float(str(sent_wall)),
        severity=known,
        waits_for=str(waits_for),
        digest=None if digest is None else str(digest),
        fallback_of=None if fallback_of is None else int(str(fallback_of)),
        fell_back=bool(fell_back),
        is_digest=bool(is_digest),
        unknown_outcomes=int(str(unknown_outcomes)),
    )
