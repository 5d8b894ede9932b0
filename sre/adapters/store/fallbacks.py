"""What one channel cannot deliver is queued for another one, too."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

from sre.actions import facts
from sre.actions.records import OutboxMessage
from sre.actions.types import Message
from sre.adapters.store import ends
from sre.adapters.store.moment import Now
from sre.adapters.store.outbox import OF_THE_INCIDENT, enqueue, fold
from sre.adapters.store.rows import select
from sre.notify.digest import digest_over_message
from sre.notify.envelope import message_from_text, message_to_json

LONGEST_REASON = 200
"""Characters of it that the fallback's message repeats."""

FALLBACKS_AT_ONCE = 500
"""Messages of a channel that is down which go to its fallback in one transaction; the next look takes the next."""


def fall_back(connection: sqlite3.Connection, row_id: int, channel: str, reason: str, now: Now) -> bool:
    """
    Queue what ``row_id`` says for ``channel``, too; False if that channel has it, or has all of it. Inside a
    transaction. The message says which channel it comes from and why.
    """
    row = select(connection, now, row_id=row_id, limit=1)[0]
    connection.execute("UPDATE outbox SET fell_back = 1 WHERE id = ?", (row_id,))
    name = row.message.incident_id
    if row.message.event == "digest" and not _misses_some(connection, name, channel):
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
        if row.message.event == "digest" and ends.is_over(connection, name):
            enqueue(connection, [OutboxMessage(digest_over_message(row.message, now.wall), channel)], now)
        elif row.message.event not in OF_THE_INCIDENT:
            enqueue(connection, _end_of(connection, name, channel), now)
        fold(connection, name, now)
    return bool(queued)


def _end_of(connection: sqlite3.Connection, incident_id: str, channel: str) -> list[OutboxMessage]:
    """The end of an incident for ``channel``, if others were told of it already."""
    found = connection.execute(
        "SELECT payload, severity, created_wall FROM outbox WHERE incident_id = ? AND event = 'resolve' LIMIT 1",
        (incident_id,),
    ).fetchone()
    if found is None:
        return []
    payload, severity, wall = found
    message = message_from_text(
        payload, incident_id=incident_id, severity=severity, at_wall=float(wall), event="resolve"
    )
    return [OutboxMessage(message, channel)]


def waiting(connection: sqlite3.Connection, channel: str, now: Now) -> list[int]:
    """
    Return what waits for ``channel`` and was not queued for its fallback, at most FALLBACKS_AT_ONCE. What quiet hours
    hold, or a hold that has not ended, is not late.
    """
    rows = connection.execute(
        "SELECT id FROM outbox WHERE channel = ? AND state IN ('held', 'pending', 'sending') AND fell_back = 0"
        " AND waits_for NOT IN ('quiet_hours', 'gathering') AND (state != 'held' OR boot_id != ? OR due_at <= ?)"
        " ORDER BY rank, id LIMIT ?",
        (channel, now.boot_id, now.monotonic, FALLBACKS_AT_ONCE),
    )
    return [int(row_id) for (row_id,) in rows]


def _misses_some(connection: sqlite3.Connection, digest: str, channel: str) -> bool:
    """Whether something that the digest of this name tells was not queued for ``channel`` by itself."""
    found = connection.execute(
        "SELECT 1 FROM outbox d JOIN outbox o ON o.digest_id = d.id WHERE d.incident_id = ? AND d.is_digest"
        " AND NOT EXISTS (SELECT 1 FROM outbox t WHERE"
        " t.incident_id = o.incident_id AND t.event = o.event AND t.channel = ? AND t.level = o.level) LIMIT 1",
        (digest, channel),
    ).fetchone()
    return found is not None


def _instead(message: Message, channel: str, reason: str) -> Message:
    why = " ".join(reason.split())
    why = why if len(why) <= LONGEST_REASON else why[: LONGEST_REASON - 3] + "..."
    return replace(message, facts=((facts.INSTEAD_OF, f"{channel}: {why}" if why else channel), *message.facts))
