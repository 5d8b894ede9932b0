"""
The outbox table: messages that must reach a person at least once.

A row goes ``held → pending → sending → sent | dead``, back to ``pending`` after a failed try, and to ``superseded``
when the incident was resolved before anybody heard of it: then the "resolve" message tells both.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sre.actions.records import OutboxLoad, OutboxMessage, OutboxRow, OutboxState
from sre.notify.envelope import message_from_json, message_to_json

FINISHED_KEPT = 5_000
"""Sent and superseded rows kept: they answer "was somebody told?"."""

COLUMNS = (
    "id, payload, opened, channel, level, state, attempts, boot_id, due_at, last_error, created_wall, created_at,"
    " created_boot, sent_wall"
)

LONGEST_ERROR = 2_000
"""Characters kept of what a provider said."""


@dataclass(frozen=True, slots=True)
class Now:
    """The present, read once per transaction."""

    monotonic: float
    wall: float
    boot_id: str


def enqueue(connection: sqlite3.Connection, messages: Sequence[OutboxMessage], now: Now) -> None:
    """Add ``messages`` that are not there yet; inside a transaction."""
    for item in messages:
        held = item.hold_seconds > 0
        connection.execute(
            "INSERT INTO outbox (incident_id, event, channel, level, payload, state, boot_id, due_at, created_wall,"
            " created_at, created_boot) VALUES (?,?,?,?,?,?,?,?,?,?,?)"
            " ON CONFLICT (incident_id, event, channel, level) DO NOTHING",
            (
                item.message.incident_id,
                item.message.event,
                item.channel,
                item.level,
                json.dumps(message_to_json(item.message)),
                "held" if held else "pending",
                now.boot_id,
                now.monotonic + max(0.0, item.hold_seconds),
                now.wall,
                now.monotonic,
                now.boot_id,
            ),
        )
    if any(item.message.event == "resolve" for item in messages):
        fold(connection, now)


FOLDABLE = """
SELECT o.id, o.event, o.payload, r.id, r.state FROM outbox o JOIN outbox r
  ON r.incident_id = o.incident_id AND r.channel = o.channel AND r.event = 'resolve'
WHERE o.event IN ('open', 'escalate')
  AND (o.state IN ('held', 'pending') OR (o.state = 'sending' AND (o.boot_id != ? OR o.due_at <= ?)))
ORDER BY o.id
"""


def fold(connection: sqlite3.Connection, now: Now) -> None:
    """
    Supersede every message that opens an incident and is still unsent though the incident is resolved already: an
    alarm after the all-clear would be false. The all-clear carries its text if it is unsent itself.
    """
    for opener, event, payload, resolver, state in connection.execute(
        FOLDABLE, (now.boot_id, now.monotonic)
    ).fetchall():
        if event == "open" and state in ("held", "pending", "sending"):
            connection.execute("UPDATE outbox SET opened = ? WHERE id = ?", (payload, resolver))
        connection.execute("UPDATE outbox SET state = 'superseded', lease_owner = NULL WHERE id = ?", (opener,))


DUE = f"""
SELECT {COLUMNS} FROM outbox o
WHERE state IN ('held', 'pending', 'sending') AND (boot_id != ? OR due_at <= ?)
  AND NOT EXISTS (SELECT 1 FROM outbox before WHERE before.incident_id = o.incident_id AND before.channel = o.channel
                  AND before.id < o.id AND before.state = 'sending')
ORDER BY id
"""


def due(
    connection: sqlite3.Connection, now: Now, *, channels: Collection[str], exclude: Collection[int] = ()
) -> list[OutboxRow]:
    """
    Return the oldest due row of each of ``channels``, but none of ``exclude``.

    Due is what waits no longer: a back-off, a hold or a lease that ended, or any of an earlier boot. The messages of
    one incident on one channel keep their order.
    """
    found: dict[str, OutboxRow] = {}
    for columns in connection.execute(DUE, (now.boot_id, now.monotonic)):
        row = as_row(columns, now)
        if row.channel in channels and row.channel not in found and row.id not in exclude:
            found[row.channel] = row
    return list(found.values())


def lease(connection: sqlite3.Connection, rows: Iterable[OutboxRow], now: Now, *, owner: str, seconds: float) -> None:
    """Give ``rows`` to ``owner``: another sender gets them only after ``seconds``. Inside a transaction."""
    for row in rows:
        connection.execute(
            "UPDATE outbox SET state = 'sending', attempts = attempts + 1, boot_id = ?, due_at = ?, lease_owner = ?"
            " WHERE id = ?",
            (now.boot_id, now.monotonic + seconds, owner, row.id),
        )


def finish(
    connection: sqlite3.Connection,
    row_id: int,
    now: Now,
    *,
    owner: str,
    state: OutboxState,
    error: str | None = None,
    retry_after_seconds: float = 0.0,
) -> bool:
    """
    Record how a delivery by ``owner`` ended; False if the row is finished, or leased to another now.

    The row need not be leased: a sender that could not write then tells the outcome later.
    """
    cursor = connection.execute(
        "UPDATE outbox SET state = ?, lease_owner = NULL, last_error = ?,"
        " attempts = attempts + CASE state WHEN 'sending' THEN 0 ELSE 1 END, boot_id = ?, due_at = ?, sent_wall = ?"
        " WHERE id = ? AND (state IN ('held', 'pending')"
        "  OR (state = 'sending' AND (lease_owner = ? OR boot_id != ? OR due_at <= ?)))",
        (
            state.value,
            error[:LONGEST_ERROR] if error else None,
            now.boot_id,
            now.monotonic + retry_after_seconds,
            now.wall if state is OutboxState.SENT else None,
            row_id,
            owner,
            now.boot_id,
            now.monotonic,
        ),
    )
    if state is OutboxState.PENDING:
        fold(connection, now)
    return cursor.rowcount == 1


def release(connection: sqlite3.Connection, now: Now, *, owner: str | None) -> int:
    """Take all leases (of ``owner``; None: of anybody) back: those rows are due now. Inside a transaction."""
    return connection.execute(
        "UPDATE outbox SET state = 'pending', lease_owner = NULL, boot_id = ?, due_at = ?,"
        " last_error = 'the sender ended before it knew the outcome'"
        " WHERE state = 'sending' AND (? IS NULL OR lease_owner = ?)",
        (now.boot_id, now.monotonic, owner, owner),
    ).rowcount


def release_held(connection: sqlite3.Connection, incident_id: str, now: Now) -> int:
    """Let the held messages of an incident go. Inside a transaction."""
    return connection.execute(
        "UPDATE outbox SET state = 'pending', boot_id = ?, due_at = ? WHERE state = 'held' AND incident_id = ?",
        (now.boot_id, now.monotonic, incident_id),
    ).rowcount


def strand(connection: sqlite3.Connection, known_channels: Collection[str]) -> int:
    """Give up what waits for a channel that is not configured any more: it shows as dead. Inside a transaction."""
    marks = ",".join("?" * len(known_channels))
    return connection.execute(
        "UPDATE outbox SET state = 'dead', lease_owner = NULL,"
        " last_error = 'channel ' || channel || ' is not in sre.yaml'"
        f" WHERE state IN ('held', 'pending', 'sending') AND channel NOT IN ({marks})",
        tuple(known_channels),
    ).rowcount


def retry(connection: sqlite3.Connection, row_id: int, now: Now) -> bool:
    """An operator sends a dead or waiting message again, with all its tries."""
    return (
        connection.execute(
            "UPDATE outbox SET state = 'pending', attempts = 0, boot_id = ?, due_at = ?, created_at = ?,"
            " created_boot = ? WHERE id = ? AND state IN ('held', 'pending', 'dead')",
            (now.boot_id, now.monotonic, now.monotonic, now.boot_id, row_id),
        ).rowcount
        == 1
    )


def drop(connection: sqlite3.Connection, row_id: int) -> bool:
    """An operator gives up a message that is not finished and not under way. It stays on record as superseded."""
    return (
        connection.execute(
            "UPDATE outbox SET state = 'superseded', last_error = coalesce(last_error || '; ', '') || 'dropped by hand'"
            " WHERE id = ? AND state IN ('held', 'pending', 'dead')",
            (row_id,),
        ).rowcount
        == 1
    )


def prune(connection: sqlite3.Connection, *, keep: int = FINISHED_KEPT) -> int:
    """Forget the oldest sent and superseded rows beyond ``keep``; dead ones stay. Inside a transaction."""
    return connection.execute(
        "DELETE FROM outbox WHERE state IN ('sent', 'superseded') AND id NOT IN"
        " (SELECT id FROM outbox WHERE state IN ('sent', 'superseded') ORDER BY id DESC LIMIT ?)",
        (keep,),
    ).rowcount


def select(
    connection: sqlite3.Connection,
    now: Now,
    *,
    states: Collection[OutboxState] | None = None,
    incident_id: str | None = None,
    row_id: int | None = None,
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
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM outbox WHERE {' AND '.join(clauses)} ORDER BY id DESC LIMIT ?", (*args, limit)
    )
    return [as_row(columns, now) for columns in reversed(rows.fetchall())]


def load(connection: sqlite3.Connection, now: Now) -> list[OutboxLoad]:
    """Return what waits and what is dead, per channel."""
    waits = "state IN ('held', 'pending', 'sending')"
    rows = connection.execute(
        f"SELECT channel, sum({waits}), sum(state = 'dead'),"
        f" max(CASE WHEN {waits} THEN CASE WHEN created_boot = ? THEN ? - created_at ELSE ? - created_wall END END)"
        " FROM outbox WHERE state IN ('held', 'pending', 'sending', 'dead') GROUP BY channel ORDER BY channel",
        (now.boot_id, now.monotonic, now.wall),
    )
    return [OutboxLoad(str(channel), int(pending), int(dead), oldest) for channel, pending, dead, oldest in rows]


def as_row(columns: Sequence[object], now: Now) -> OutboxRow:
    """Return a row of ``COLUMNS`` as a value. Raises ValueError when its payload is not ours."""
    (row_id, payload, opened, channel, level, state, attempts, boot_id, due_at, last_error) = columns[:10]
    created_wall, created_at, created_boot, sent_wall = columns[10:]
    same_boot = created_boot == now.boot_id
    return OutboxRow(
        id=int(str(row_id)),
        message=message_from_json(json.loads(str(payload))),
        opened=None if opened is None else message_from_json(json.loads(str(opened))),
        channel=str(channel),
        level=int(str(level)),
        state=OutboxState(state),
        attempts=int(str(attempts)),
        due_in_seconds=float(str(due_at)) - now.monotonic if boot_id == now.boot_id else 0.0,
        last_error=None if last_error is None else str(last_error),
        created_wall=float(str(created_wall)),
        age_seconds=now.monotonic - float(str(created_at)) if same_boot else now.wall - float(str(created_wall)),
        sent_wall=None if sent_wall is None else float(str(sent_wall)),
    )
