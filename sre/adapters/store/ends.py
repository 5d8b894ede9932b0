"""
The end of what a digest told: when all of its incidents are over, whoever was told of the digest is told that.

A digest counts the incidents it told that are not over (``open_left``). A digest that another one tells, because it
came to a fallback in a storm, counts there as an incident: it is over when all of its own are. So whatever opened an
alert under a digest's name at a provider, its own channel or a fallback of it, closes it there.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from sre.actions.records import OutboxMessage
from sre.adapters.store.moment import Now
from sre.notify.digest import digest_over_message
from sre.notify.envelope import message_from_text

BEGINS = "event NOT IN ('resolve', 'acknowledge')"
"""Rows that open something under their incident's id, where the channel has such a thing."""


def count_open(connection: sqlite3.Connection, digest: int) -> int | None:
    """
    Return of how many incidents that ``digest`` tells nobody heard the end yet; None if it tells something that has
    none, and nothing else that is open.
    """
    found, endless = connection.execute(
        "SELECT coalesce(sum(open), 0), coalesce(sum(endless), 0) FROM (SELECT max(CASE"
        "   WHEN i.id IS NOT NULL THEN i.resolved_wall IS NULL ELSE d.open_left > 0 END) AS open,"
        "  max(i.id IS NULL AND d.open_left IS NULL) AS endless"
        "  FROM outbox m LEFT JOIN incident i ON i.id = m.incident_id"
        "  LEFT JOIN outbox d ON d.incident_id = m.incident_id AND d.is_digest"
        f"  WHERE m.digest_id = ? AND m.{BEGINS} GROUP BY m.incident_id)",
        (digest,),
    ).fetchone()
    return None if endless and not found else int(found)


def over(connection: sqlite3.Connection, ended: Sequence[str], now: Now) -> list[OutboxMessage]:
    """
    Return what is to be told now that the incidents ``ended`` are over: the end of digests. In a transaction, once per
    incident.
    """
    messages: list[OutboxMessage] = []
    names = list(ended)
    for name in names:  # grows meanwhile
        rows = connection.execute(
            f"SELECT DISTINCT digest_id FROM outbox WHERE incident_id = ? AND digest_id IS NOT NULL AND {BEGINS}",
            (name,),
        )
        for (digest,) in rows.fetchall():
            counted = connection.execute(
                "UPDATE outbox SET open_left = open_left - 1 WHERE id = ? AND open_left > 0", (digest,)
            ).rowcount
            found = connection.execute("SELECT open_left, incident_id FROM outbox WHERE id = ?", (digest,)).fetchone()
            if counted and found[0] == 0:
                names.append(str(found[1]))
                messages += _ends(connection, str(found[1]), now)
    return messages


def is_over(connection: sqlite3.Connection, digest: str) -> bool:
    """Whether all incidents of the digest of this name are over."""
    found = connection.execute(
        "SELECT open_left FROM outbox WHERE incident_id = ? AND is_digest AND event = 'digest'", (digest,)
    ).fetchone()
    return found is not None and found[0] == 0


def _ends(connection: sqlite3.Connection, digest: str, now: Now) -> list[OutboxMessage]:
    """The end for each channel that was to be told of the digest by itself, but for those where a person dropped it."""
    rows = connection.execute(
        "SELECT channel, payload, severity, created_wall FROM outbox WHERE incident_id = ? AND event = 'digest'"
        " AND state != 'digested' AND NOT (state = 'superseded' AND begun_boot IS NULL) ORDER BY id",
        (digest,),
    )
    return [
        OutboxMessage(
            digest_over_message(
                message_from_text(payload, incident_id=digest, severity=severity, at_wall=float(wall)), now.wall
            ),
            channel,
        )
        for channel, payload, severity, wall in rows.fetchall()
    ]


def end_in_digest(connection: sqlite3.Connection, item: OutboxMessage, digest: int, payload: object, now: Now) -> None:
    """
    What a digest told of a beginning is told of the end: with the last of its incidents, once for all. Until then the
    end of one, ``item``, counts as told.
    """
    connection.execute(
        "INSERT INTO outbox (incident_id, event, channel, level, payload, severity, rank, state, boot_id, due_at,"
        " created_wall, created_at, created_boot, digest_id)"
        " SELECT ?, ?, ?, ?, ?, severity, rank, 'digested', ?, ?, ?, ?, ?, id FROM outbox WHERE id = ?"
        " ON CONFLICT (incident_id, event, channel, level) DO NOTHING",
        (
            item.message.incident_id,
            item.message.event,
            item.channel,
            item.level,
            json.dumps(payload),
            now.boot_id,
            now.monotonic,
            now.wall,
            now.monotonic,
            now.boot_id,
            digest,
        ),
    )
