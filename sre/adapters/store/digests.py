"""
Digests: many messages told as one.

A digest is a row of the outbox that stands for others. It is begun (state "held"), gathers the rows before it a part at
a time, so that no transaction is long, and is completed: only then it has its text and can be sent. Killed between any
two of these, the next sender goes on.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from typing import NamedTuple

from sre.actions.records import OutboxRow
from sre.adapters.store.ends import BEGINS, count_open
from sre.adapters.store.moment import Now
from sre.adapters.store.rows import COLUMNS, as_row
from sre.notify.digest import IDS_NAMED, LINES_SHOWN, Gathered, digest_message
from sre.notify.envelope import message_from_text, message_to_json
from sre.notify.policy import NAMES, RANKS, Why

GATHERED_AT_ONCE = 500
"""Rows in one transaction: about 15 ms."""


class Digest(NamedTuple):
    """One that is being put together."""

    id: int
    why: Why
    begun_wall: float


def gathering(connection: sqlite3.Connection, channel: str) -> Digest | None:
    """Return the digest of ``channel`` that is being put together, if there is one."""
    found = connection.execute(
        "SELECT id, incident_id, payload, created_wall FROM outbox WHERE channel = ? AND state IN ('held', 'pending')"
        " AND begun_boot IS NULL AND waits_for = 'gathering'",
        (channel,),
    ).fetchone()
    if found is None:
        return None
    begun = message_from_text(found[2], incident_id=found[1], severity="info", at_wall=found[3])
    return Digest(found[0], next((why for why in Why if why.value == begun.reason), Why.STORM), found[3])


def begin(connection: sqlite3.Connection, channel: str, why: Why, now: Now) -> Digest:
    """Begin a digest for ``channel``. In a transaction."""
    number = connection.execute(
        "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'outbox'"
    ).fetchone()
    nothing_yet = Gathered(int(number[0]), 0, 0, 0, 0, "info", now.wall, now.wall, (), ())
    message = digest_message(nothing_yet, why, now.wall, opens=True)
    found = connection.execute(
        "INSERT INTO outbox (incident_id, event, channel, level, payload, severity, rank, state, waits_for, boot_id,"
        " due_at, created_wall, created_at, created_boot, slot, is_digest)"
        " VALUES (?, 'digest', ?, 0, ?, ?, ?, 'held', 'gathering', ?, ?, ?, ?, ?, 1, 1)",
        (
            message.incident_id,
            channel,
            json.dumps(message_to_json(message)),
            message.severity,
            RANKS[message.severity],
            now.boot_id,
            now.monotonic,
            now.wall,
            now.monotonic,
            now.boot_id,
        ),
    ).lastrowid
    return Digest(int(found or 0), why, now.wall)


def gather(connection: sqlite3.Connection, digest: Digest, which: str, now: Now, exclude: Collection[int]) -> bool:
    """
    Take the next part of the rows ``which`` into ``digest``; return whether there may be more. In a transaction.

    Only rows before the digest's own: what comes meanwhile is for the next one.
    """
    channel = connection.execute("SELECT channel FROM outbox WHERE id = ?", (digest.id,)).fetchone()[0]
    taken = connection.execute(
        "UPDATE outbox SET state = 'digested', digest_id = :digest WHERE id IN (SELECT id FROM outbox WHERE"
        f" {which} AND id < :digest AND id NOT IN ({','.join(map(str, exclude))}) LIMIT :most)",
        {
            "digest": digest.id,
            "channel": channel,
            "boot": now.boot_id,
            "at": now.monotonic,
            "most": GATHERED_AT_ONCE,
        },
    ).rowcount
    return taken == GATHERED_AT_ONCE


def complete_orphans(connection: sqlite3.Connection, known_channels: Collection[str], now: Now) -> None:
    """Complete what is being put together for channels that are not configured any more. In a transaction."""
    rows = connection.execute("SELECT DISTINCT channel FROM outbox WHERE waits_for = 'gathering' AND state = 'held'")
    for (channel,) in rows.fetchall():
        digest = None if channel in known_channels else gathering(connection, str(channel))
        if digest is not None:
            complete(connection, digest, now)


def complete(connection: sqlite3.Connection, digest: Digest, now: Now) -> OutboxRow | None:
    """Give ``digest`` its text, to be sent; None, and it is gone, if nothing was left to tell. In a transaction."""
    found = _gathered(connection, digest)
    if found is None:
        connection.execute("DELETE FROM outbox WHERE id = ?", (digest.id,))
        return None
    left = count_open(connection, digest.id)
    message = digest_message(found, digest.why, digest.begun_wall, opens=left != 0, ends=left is not None)
    connection.execute(
        "UPDATE outbox SET event = ?, payload = ?, severity = ?, rank = ?, state = 'pending', waits_for = '',"
        " boot_id = ?, due_at = ?, open_left = ? WHERE id = ?",
        (
            message.event,
            json.dumps(message_to_json(message)),
            message.severity,
            RANKS[message.severity],
            now.boot_id,
            now.monotonic,
            left,
            digest.id,
        ),
    )
    columns = connection.execute(f"SELECT {COLUMNS} FROM outbox WHERE id = ?", (digest.id,)).fetchone()
    return as_row(columns, now)


def _gathered(connection: sqlite3.Connection, digest: Digest) -> Gathered | None:
    begun, escalated, ended, incidents, worst, first_wall, last_wall = connection.execute(
        f"SELECT sum({BEGINS} AND event != 'escalate'), sum(event IN ('escalate', 'acknowledge')),"
        " sum(event = 'resolve'), count(DISTINCT incident_id), min(rank), min(created_wall), max(created_wall)"
        " FROM outbox WHERE digest_id = ?",
        (digest.id,),
    ).fetchone()
    if not incidents:
        return None
    ids = connection.execute(
        "SELECT incident_id FROM outbox WHERE digest_id = ? GROUP BY incident_id ORDER BY min(rank), min(id) LIMIT ?",
        (digest.id, IDS_NAMED),
    )
    sample = connection.execute(
        "SELECT payload, incident_id, severity, created_wall FROM outbox WHERE digest_id = ? ORDER BY rank, id LIMIT ?",
        (digest.id, LINES_SHOWN),
    )
    return Gathered(
        number=digest.id,
        begun=int(begun),
        escalated=int(escalated),
        ended=int(ended),
        incidents=int(incidents),
        worst=NAMES[worst],
        first_wall=float(first_wall),
        last_wall=float(last_wall),
        ids=[str(name) for (name,) in ids],
        sample=[
            message_from_text(payload, incident_id=name, severity=severity, at_wall=wall)
            for payload, name, severity, wall in sample
        ],
    )
