"""The incident table: what people were to be told of, who acknowledged it, and how far it was escalated."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from sre.actions.records import Acknowledgement, AckOutcome, IncidentRow
from sre.actions.types import Message
from sre.adapters.store.moment import Now
from sre.notify.envelope import message_from_text, message_to_json
from sre.notify.escalation import Escalation, Step, Unanswered, step
from sre.notify.policy import PAGE_RANK, rank_of

RESOLVED_KEPT = 50_000
"""Resolved incidents kept: they answer "did somebody acknowledge it?"."""

LONGEST_NAME = 200
LONGEST_NOTE = 1_000

COLUMNS = "id, severity, payload, opened_wall, resolved_wall, acked_wall, acked_by, ack_note, level"

UNANSWERED = "resolved_wall IS NULL AND acked_wall IS NULL"


def record(connection: sqlite3.Connection, message: Message, now: Now) -> bool:
    """
    Note what ``message`` says of its incident; inside a transaction. Return whether it ended now.

    What began is remembered once, its severity is the worst it had: a ticket that becomes a page waits for an
    acknowledgement from then on.
    """
    if message.event in ("open", "escalate"):
        rank = rank_of(message.severity)
        connection.execute(
            "INSERT INTO incident (id, severity, rank, payload, opened_wall, step_at, step_boot, step_wall)"
            " VALUES (?,?,?,?,?,?,?,?)"
            " ON CONFLICT (id) DO UPDATE SET severity = excluded.severity, rank = excluded.rank,"
            " step_at = excluded.step_at, step_boot = excluded.step_boot, step_wall = excluded.step_wall,"
            # Whoever acknowledged the lesser thing has not seen this one.
            " acked_wall = NULL, acked_by = NULL, ack_note = NULL"
            " WHERE excluded.rank < rank",
            (
                message.incident_id,
                message.severity,
                rank,
                json.dumps(message_to_json(message)),
                now.wall,
                now.monotonic,
                now.boot_id,
                now.wall,
            ),
        )
    elif message.event == "resolve":
        ended = connection.execute(
            "UPDATE incident SET resolved_wall = ? WHERE id = ? AND resolved_wall IS NULL",
            (now.wall, message.incident_id),
        ).rowcount
        return bool(ended)
    return False


def severity_of(connection: sqlite3.Connection, incident_id: str) -> str | None:
    """Return the worst severity an incident had; None if there is no such incident."""
    found = connection.execute("SELECT severity FROM incident WHERE id = ?", (incident_id,)).fetchone()
    return None if found is None else str(found[0])


def want(connection: sqlite3.Connection, incident_id: str) -> None:
    """Some channel is to be told that this incident began. Inside a transaction."""
    connection.execute("UPDATE incident SET wanted = 1 WHERE id = ? AND wanted = 0", (incident_id,))


def unwanted(connection: sqlite3.Connection, incident_id: str) -> bool:
    """Whether no channel was ever to be told that this incident began; False also where that is not known."""
    found = connection.execute("SELECT wanted FROM incident WHERE id = ?", (incident_id,)).fetchone()
    return found is not None and not found[0]


def due(connection: sqlite3.Connection, now: Now, escalation: Escalation, *, limit: int) -> list[IncidentRow]:
    """Return incidents whose next level is told now, those that wait longest for it first, at most ``limit``."""
    found: list[IncidentRow] = []
    for level in range(escalation.max_levels):
        rows = connection.execute(
            f"SELECT {COLUMNS}, step_at FROM incident WHERE {UNANSWERED} AND rank = {PAGE_RANK} AND level = ?"
            " ORDER BY step_at LIMIT ?",
            (level, limit - len(found)),
        )
        for *columns, step_at in rows.fetchall():
            row = as_row(columns)
            waited = now.monotonic - step_at
            seen = Unanswered(
                row.severity, row.resolved_wall is not None, row.acknowledged_wall is not None, row.level, waited
            )
            if step(seen, escalation) is not Step.TELL:
                break  # the rest of this level waits no longer
            found.append(row)
    return found


def told(connection: sqlite3.Connection, incident_id: str, now: Now) -> None:
    """One more level was told. Inside a transaction."""
    connection.execute(
        "UPDATE incident SET level = level + 1, step_at = ?, step_boot = ?, step_wall = ? WHERE id = ?",
        (now.monotonic, now.boot_id, now.wall, incident_id),
    )


def carry_over(connection: sqlite3.Connection, now: Now) -> None:
    """
    After a reboot, count on: the monotonic clock began anew, so what passed is taken from the wall clock (nothing, if
    that went back). Inside a transaction.
    """
    connection.execute(
        "UPDATE incident SET step_at = ? - max(0.0, ? - step_wall), step_boot = ?"
        f" WHERE step_boot != ? AND {UNANSWERED}",
        (now.monotonic, now.wall, now.boot_id, now.boot_id),
    )


def acknowledge(
    connection: sqlite3.Connection, incidents: Sequence[str], *, by: str, note: str, now: Now
) -> Acknowledgement:
    """Note that ``by`` takes care of ``incidents``; who was first stays. Inside a transaction."""
    rows = [row for name in incidents if (row := one(connection, name)) is not None]
    if not rows:
        return Acknowledgement(AckOutcome.UNKNOWN)
    open_ones = [row for row in rows if row.resolved_wall is None]
    fresh = [row for row in open_ones if row.acknowledged_wall is None]
    for row in fresh:
        connection.execute(
            "UPDATE incident SET acked_wall = ?, acked_by = ?, ack_note = ? WHERE id = ?",
            (now.wall, by[:LONGEST_NAME], note[:LONGEST_NOTE], row.id),
        )
    if fresh:
        return Acknowledgement(AckOutcome.ACKNOWLEDGED, tuple(row.id for row in fresh), by[:LONGEST_NAME], now.wall)
    if open_ones:
        first = open_ones[0]
        return Acknowledgement(AckOutcome.ALREADY, (), first.acknowledged_by, first.acknowledged_wall)
    return Acknowledgement(AckOutcome.RESOLVED, (), rows[-1].acknowledged_by, rows[-1].resolved_wall)


def one(connection: sqlite3.Connection, incident_id: str) -> IncidentRow | None:
    found = connection.execute(f"SELECT {COLUMNS} FROM incident WHERE id = ?", (incident_id,)).fetchone()
    return None if found is None else as_row(found)


def select(connection: sqlite3.Connection, *, limit: int) -> list[IncidentRow]:
    """Return the newest ``limit`` incidents, oldest first."""
    rows = connection.execute(f"SELECT {COLUMNS} FROM incident ORDER BY opened_wall DESC, id DESC LIMIT ?", (limit,))
    return [as_row(columns) for columns in reversed(rows.fetchall())]


def unacknowledged(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many incidents wait for an acknowledgement, by severity."""
    rows = connection.execute(f"SELECT severity, count(*) FROM incident WHERE {UNANSWERED} GROUP BY severity")
    return {str(severity): int(count) for severity, count in rows}


def prune(connection: sqlite3.Connection, *, keep: int = RESOLVED_KEPT) -> int:
    """Forget the oldest resolved incidents beyond ``keep``. Inside a transaction."""
    last = connection.execute(
        "SELECT opened_wall FROM incident WHERE resolved_wall IS NOT NULL ORDER BY opened_wall DESC LIMIT 1 OFFSET ?",
        (keep,),
    ).fetchone()
    if last is None:
        return 0
    return connection.execute(
        "DELETE FROM incident WHERE resolved_wall IS NOT NULL AND opened_wall <= ?", last
    ).rowcount


def as_row(columns: Sequence[object]) -> IncidentRow:
    """Return a row of ``COLUMNS`` as a value; an opening that cannot be read becomes one that says so."""
    name, severity, payload, opened_wall, resolved_wall, acked_wall, acked_by, note, level = columns
    return IncidentRow(
        id=str(name),
        severity=str(severity),
        opening=message_from_text(
            str(payload), incident_id=str(name), severity=str(severity), at_wall=float(str(opened_wall))
        ),
        opened_wall=float(str(opened_wall)),
        resolved_wall=_number(resolved_wall),
        acknowledged_wall=_number(acked_wall),
        acknowledged_by=None if acked_by is None else str(acked_by),
        note=str(note) if note else None,
        level=int(str(level)),
    )


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))
