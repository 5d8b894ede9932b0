"""
The outbox table: messages that must reach a person at least once.

A row goes ``held → pending → sending → sent | dead``, back to ``pending`` after a failed try. It becomes ``superseded``
when nobody needs it any more (the incident was resolved before anybody heard of it: then the "resolve" message tells
both; or it was acknowledged, or dropped by hand), and ``digested`` when a digest tells it with others.

What is sent next is chosen in ``dispatch``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from sre.actions import facts
from sre.actions.records import OutboxLoad, OutboxMessage, OutboxRow, OutboxState
from sre.actions.types import Message
from sre.adapters.store import incidents
from sre.adapters.store.moment import Now as Now
from sre.notify.envelope import message_from_json, message_to_json
from sre.notify.escalation import FIRST_LEVEL
from sre.notify.policy import RANKS, rank_of

FINISHED_KEPT = 50_000
"""Sent, superseded and digested rows kept: they answer "was somebody told?"."""

COLUMNS = (
    "id, payload, opened, channel, level, state, attempts, boot_id, due_at, last_error, created_wall, created_at,"
    " created_boot, sent_wall, severity, waits_for, fallback_of, fell_back,"
    " (SELECT d.incident_id FROM outbox d WHERE d.id = outbox.digest_id)"
)

LONGEST_ERROR = 2_000
"""Characters kept of what a provider said."""

LONGEST_REASON = 200
"""Characters of it that the fallback's message repeats."""

FALLBACKS_AT_ONCE = 500
"""Messages of a channel that is down which go to its fallback in one transaction; the next failure takes the next."""

OF_THE_INCIDENT = ("resolve", "acknowledge")
"""Events whose own severity is "info": how urgent they are is a matter of their incident."""


def enqueue(connection: sqlite3.Connection, messages: Sequence[OutboxMessage], now: Now) -> None:
    """
    Add ``messages`` that are not there yet; inside a transaction, and after ``incidents.record``.

    Of two messages that are the same (incident, event, channel, level) the first counts; if it is new and the second
    one is more urgent, it becomes the second.
    """
    for item in messages:
        message = item.message
        severity = (
            incidents.severity_of(connection, message.incident_id) if message.event in OF_THE_INCIDENT else None
        ) or message.severity
        connection.execute(
            "INSERT INTO outbox (incident_id, event, channel, level, payload, severity, rank, state, waits_for,"
            " boot_id, due_at, created_wall, created_at, created_boot) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
            " ON CONFLICT (incident_id, event, channel, level) DO UPDATE SET payload = excluded.payload,"
            "  severity = excluded.severity, rank = excluded.rank, waits_for = ''"
            " WHERE state IN ('held', 'pending') AND begun_boot IS NULL AND excluded.rank < rank",
            (
                message.incident_id,
                message.event,
                item.channel,
                item.level,
                json.dumps(message_to_json(message)),
                severity,
                rank_of(severity),
                "held" if item.hold_seconds > 0 else "pending",
                "digest" if _told_in_a_digest(connection, item) else "",
                now.boot_id,
                now.monotonic + max(0.0, item.hold_seconds),
                now.wall,
                now.monotonic,
                now.boot_id,
            ),
        )
    for message in {item.message.incident_id: item.message for item in messages}.values():
        _keep_together(connection, message.incident_id)
    for incident_id in {item.message.incident_id for item in messages if item.message.event == "resolve"}:
        fold(connection, incident_id, now)


def _told_in_a_digest(connection: sqlite3.Connection, item: OutboxMessage) -> bool:
    """Whether this is the end of what this channel was told in a digest: then a digest tells it too."""
    if item.message.event not in OF_THE_INCIDENT:
        return False
    found = connection.execute(
        "SELECT 1 FROM outbox WHERE incident_id = ? AND event = 'open' AND channel = ? AND state = 'digested'",
        (item.message.incident_id, item.channel),
    ).fetchone()
    return found is not None


def _keep_together(connection: sqlite3.Connection, incident_id: str) -> None:
    """New messages of one incident are as urgent as the most urgent of them, so that they keep their order."""
    connection.execute(
        "UPDATE outbox SET (severity, rank, waits_for) = (SELECT severity, rank, '' FROM incident i WHERE i.id = ?)"
        " WHERE incident_id = ? AND state IN ('held', 'pending') AND begun_boot IS NULL"
        " AND rank > (SELECT rank FROM incident i WHERE i.id = ?)",
        (incident_id, incident_id, incident_id),
    )


FOLDABLE = """
SELECT o.id, o.event, o.payload, o.fallback_of, r.id FROM outbox o JOIN outbox r
  ON r.incident_id = o.incident_id AND r.channel = o.channel AND r.event = 'resolve'
WHERE o.incident_id = ? AND o.event IN ('open', 'escalate', 'acknowledge')
  AND (o.state IN ('held', 'pending') OR (o.state = 'sending' AND (o.boot_id != ? OR o.due_at <= ?)))
ORDER BY o.id
"""


def fold(connection: sqlite3.Connection, incident_id: str, now: Now) -> int:
    """
    Supersede every message that opens this incident and is still unsent though it is resolved already: an alarm after
    the all-clear would be false. The all-clear carries its text if it is unsent itself. Returns how many.
    """
    rows = connection.execute(FOLDABLE, (incident_id, now.boot_id, now.monotonic)).fetchall()
    for opener, event, payload, _, resolver in rows:
        if event == "open":
            connection.execute(
                "UPDATE outbox SET opened = ? WHERE id = ? AND state IN ('held', 'pending', 'sending')",
                (payload, resolver),
            )
        connection.execute("UPDATE outbox SET state = 'superseded', lease_owner = NULL WHERE id = ?", (opener,))
    return len(rows)


def resolved_opener(connection: sqlite3.Connection, row: OutboxRow) -> bool:
    """Whether ``row`` opens an incident on a channel that has its "resolve" message too: ``fold`` takes it."""
    if row.message.event not in ("open", "escalate", "acknowledge"):
        return False
    found = connection.execute(
        "SELECT 1 FROM outbox WHERE incident_id = ? AND event = 'resolve' AND channel = ?",
        (row.message.incident_id, row.channel),
    ).fetchone()
    return found is not None


def lease(connection: sqlite3.Connection, rows: Iterable[OutboxRow], now: Now, *, owner: str, seconds: float) -> None:
    """Give ``rows`` to ``owner``: another sender gets them only after ``seconds``. Inside a transaction."""
    for row in rows:
        connection.execute(
            "UPDATE outbox SET state = 'sending', attempts = attempts + 1, boot_id = ?, due_at = ?, lease_owner = ?,"
            " begun_at = coalesce(begun_at, ?), begun_boot = coalesce(begun_boot, ?) WHERE id = ?",
            (now.boot_id, now.monotonic + seconds, owner, now.monotonic, now.boot_id, row.id),
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
    done = connection.execute(
        "UPDATE outbox SET state = ?, lease_owner = NULL, last_error = ?,"
        " attempts = attempts + CASE state WHEN 'sending' THEN 0 ELSE 1 END, boot_id = ?, due_at = ?, sent_wall = ?,"
        " begun_at = coalesce(begun_at, ?), begun_boot = coalesce(begun_boot, ?)"
        " WHERE id = ? AND (state IN ('held', 'pending')"
        "  OR (state = 'sending' AND (lease_owner = ? OR boot_id != ? OR due_at <= ?))) RETURNING incident_id",
        (
            state.value,
            error[:LONGEST_ERROR] if error else None,
            now.boot_id,
            now.monotonic + retry_after_seconds,
            now.wall if state is OutboxState.SENT else None,
            now.monotonic,
            now.boot_id,
            row_id,
            owner,
            now.boot_id,
            now.monotonic,
        ),
    ).fetchall()
    if done and state is OutboxState.PENDING:
        fold(connection, str(done[0][0]), now)
    if done and state is OutboxState.SENT:
        # Its own channel has delivered it after all; the fallback need not, if it has not begun.
        connection.execute(
            "UPDATE outbox SET state = 'superseded', last_error = 'its own channel delivered it'"
            " WHERE fallback_of = ? AND state IN ('held', 'pending') AND begun_boot IS NULL",
            (row_id,),
        )
    return bool(done)


def fall_back(connection: sqlite3.Connection, row_id: int, channel: str, reason: str, now: Now) -> bool:
    """
    Queue what ``row_id`` says for ``channel``, too; False if that channel has it, or has all of it. Inside a
    transaction. The message says which channel it comes from and why.
    """
    row = select(connection, now, row_id=row_id, limit=1)[0]
    connection.execute("UPDATE outbox SET fell_back = 1 WHERE id = ?", (row_id,))
    if row.message.event == "digest" and not _misses_some(connection, row_id, channel):
        return False
    queued = connection.execute(
        "INSERT INTO outbox (incident_id, event, channel, level, payload, opened, severity, rank, state, boot_id,"
        " due_at, created_wall, created_at, created_boot, fallback_of)"
        " SELECT incident_id, event, ?, level, ?, opened, severity, rank, 'pending', ?, ?, ?, ?, ?, id"
        " FROM outbox WHERE id = ?"
        " ON CONFLICT (incident_id, event, channel, level) DO NOTHING",
        (
            channel,
            json.dumps(message_to_json(_instead(row.message, row.channel, reason))),
            now.boot_id,
            now.monotonic,
            now.wall,
            now.monotonic,
            now.boot_id,
            row_id,
        ),
    ).rowcount
    if queued:
        fold(connection, row.message.incident_id, now)
    return bool(queued)


def fall_back_all(connection: sqlite3.Connection, down: str, channel: str, reason: str, now: Now) -> int:
    """Queue for ``channel`` what waits for the channel ``down``, quiet hours aside; return how many."""
    waiting = connection.execute(
        "SELECT id FROM outbox WHERE channel = ? AND state IN ('held', 'pending', 'sending') AND fell_back = 0"
        " AND waits_for != 'quiet_hours' AND (state != 'held' OR boot_id != ? OR due_at <= ?)"
        " ORDER BY rank, id LIMIT ?",
        (down, now.boot_id, now.monotonic, FALLBACKS_AT_ONCE),
    ).fetchall()
    return sum(fall_back(connection, row_id, channel, reason, now) for (row_id,) in waiting)


def _misses_some(connection: sqlite3.Connection, digest: int, channel: str) -> bool:
    """Whether something that a digest tells was not queued for ``channel`` by itself."""
    found = connection.execute(
        "SELECT 1 FROM outbox o WHERE o.digest_id = ? AND NOT EXISTS (SELECT 1 FROM outbox t WHERE"
        " t.incident_id = o.incident_id AND t.event = o.event AND t.channel = ? AND t.level = o.level) LIMIT 1",
        (digest, channel),
    ).fetchone()
    return found is not None


def _instead(message: Message, channel: str, reason: str) -> Message:
    why = " ".join(reason.split())
    why = why if len(why) <= LONGEST_REASON else why[: LONGEST_REASON - 3] + "..."
    return replace(message, facts=((facts.INSTEAD_OF, f"{channel}: {why}" if why else channel), *message.facts))


def hush(connection: sqlite3.Connection, incident_id: str) -> int:
    """Somebody acknowledged it: supersede what was queued because nobody did. Inside a transaction."""
    return connection.execute(
        "UPDATE outbox SET state = 'superseded', last_error = 'acknowledged' WHERE incident_id = ?"
        " AND event = 'escalate' AND level > ? AND state IN ('held', 'pending')",
        (incident_id, FIRST_LEVEL),
    ).rowcount


def incidents_of_digest(connection: sqlite3.Connection, digest: str) -> tuple[str, ...]:
    """Return the incidents that a digest tells, also by way of another digest; none if there is no such digest."""
    found: dict[str, None] = {}
    asked = [digest]
    for name in asked:  # grows meanwhile
        rows = connection.execute(
            "SELECT DISTINCT o.incident_id, o.event = 'digest' FROM outbox o JOIN outbox d ON d.id = o.digest_id"
            " WHERE d.incident_id = ? AND d.event = 'digest'",
            (name,),
        )
        for incident_id, is_digest in rows:
            if not is_digest:
                found[str(incident_id)] = None
            elif incident_id not in asked:
                asked.append(str(incident_id))
    return tuple(found)


def channels_told(connection: sqlite3.Connection, incident_id: str, among: Collection[str]) -> list[str]:
    """Return which of ``among`` were to be told of an incident."""
    rows = connection.execute(
        "SELECT DISTINCT channel FROM outbox WHERE incident_id = ? AND event IN ('open', 'escalate')", (incident_id,)
    )
    return [str(channel) for (channel,) in rows if channel in among]


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
    """An operator sends a dead or waiting message again, with all its tries; no storm and no quiet hours hold it."""
    return (
        connection.execute(
            "UPDATE outbox SET state = 'pending', waits_for = 'by_hand', attempts = 0, boot_id = ?, due_at = ?,"
            " created_at = ?, created_boot = ?, fell_back = 0, begun_at = coalesce(begun_at, ?),"
            " begun_boot = coalesce(begun_boot, ?) WHERE id = ? AND state IN ('held', 'pending', 'dead')",
            (now.boot_id, now.monotonic, now.monotonic, now.boot_id, now.monotonic, now.boot_id, row_id),
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
    """
    Forget the oldest finished rows beyond ``keep``. Dead ones stay, and so does what a digest tells that is not
    finished. Inside a transaction.
    """
    last = connection.execute(
        "SELECT id FROM outbox WHERE state IN ('sent', 'superseded', 'digested') ORDER BY id DESC LIMIT 1 OFFSET ?",
        (keep,),
    ).fetchone()
    if last is None:
        return 0
    return connection.execute(
        "DELETE FROM outbox WHERE state IN ('sent', 'superseded', 'digested') AND id <= ?"
        " AND (digest_id IS NULL OR digest_id NOT IN (SELECT d.id FROM outbox d WHERE d.event = 'digest'"
        " AND d.state IN ('held', 'pending', 'sending', 'dead')))",
        last,
    ).rowcount


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
        clauses.append("digest_id IN (SELECT d.id FROM outbox d WHERE d.incident_id = ? AND d.event = 'digest')")
        args.append(digest)
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM outbox WHERE {' AND '.join(clauses)} ORDER BY id DESC LIMIT ?", (*args, limit)
    )
    return [as_row(columns, now) for columns in reversed(rows.fetchall())]


def load(connection: sqlite3.Connection, now: Now) -> list[OutboxLoad]:
    """Return what waits and what is dead, per channel."""
    rows = connection.execute(
        "SELECT channel, sum(waiting), sum(dead), max(age) FROM ("
        " SELECT channel, count(*) AS waiting, 0 AS dead, max(CASE WHEN waits_for != 'quiet_hours' THEN"
        "  CASE WHEN created_boot = ? THEN ? - created_at ELSE ? - created_wall END END) AS age"
        "  FROM outbox WHERE state IN ('held', 'pending', 'sending') GROUP BY channel"
        " UNION ALL SELECT channel, 0, count(*), NULL FROM outbox WHERE state = 'dead' GROUP BY channel"
        ") GROUP BY channel ORDER BY channel",
        (now.boot_id, now.monotonic, now.wall),
    )
    return [OutboxLoad(str(channel), int(pending), int(dead), oldest) for channel, pending, dead, oldest in rows]


def as_row(columns: Sequence[object], now: Now) -> OutboxRow:
    """Return a row of ``COLUMNS`` as a value. Raises ValueError when its payload is not ours."""
    (row_id, payload, opened, channel, level, state, attempts, boot_id, due_at, last_error) = columns[:10]
    created_wall, created_at, created_boot, sent_wall, severity, waits_for, fallback_of, fell_back, digest = columns[
        10:
    ]
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
        severity=str(severity) if severity in RANKS else "ticket",
        waits_for=str(waits_for),
        digest=None if digest is None else str(digest),
        fallback_of=None if fallback_of is None else int(str(fallback_of)),
        fell_back=bool(fell_back),
    )
