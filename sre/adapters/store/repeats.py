"""
What is repeated because it may not have arrived: what ends that, and what brings it forward.

Somebody who answers has it; a channel that delivers something else probably delivers it, too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from sre.actions.records import OutboxRow
from sre.adapters.store import incidents
from sre.adapters.store.moment import Now
from sre.adapters.store.outbox import fold, incidents_of_digest
from sre.adapters.store.rows import AGAIN
from sre.notify.escalation import FIRST_LEVEL

FREE = "(state IN ('held', 'pending') OR (state = 'sending' AND (boot_id != :boot OR due_at <= :at)))"
"""No sender has it now."""

MAY_HAVE_ARRIVED = "event IN ('open', 'escalate', 'digest', 'blind', 'test') AND unknown_outcomes > 0"


def unneeded(connection: sqlite3.Connection, row: OutboxRow, now: Now) -> bool:
    """
    Supersede ``row`` if nobody needs it any more, and return whether that is so: its incident was resolved or
    acknowledged while a sender had it that never told how that ended, or that failed.
    """
    name = row.message.incident_id
    if _resolved_opener(connection, row):
        return fold(connection, name, now) > 0
    if row.message.event == "digest":
        return bool(row.unknown_outcomes) and _answered(connection, name) and hush(connection, name, now) > 0
    level = row.message.event == "escalate" and row.level > FIRST_LEVEL
    if not level and not (row.message.event in ("open", "escalate") and row.unknown_outcomes):
        return False
    found = incidents.one(connection, name)
    return found is not None and found.acknowledged_wall is not None and hush(connection, name, now) > 0


def _resolved_opener(connection: sqlite3.Connection, row: OutboxRow) -> bool:
    """Whether ``row`` opens an incident on a channel that has its "resolve" message too: ``fold`` takes it."""
    if row.message.event not in ("open", "escalate", "acknowledge", "digest"):
        return False
    found = connection.execute(
        "SELECT 1 FROM outbox WHERE incident_id = ? AND event = 'resolve' AND channel = ?",
        (row.message.incident_id, row.channel),
    ).fetchone()
    return found is not None


def hush(connection: sqlite3.Connection, name: str, now: Now) -> int:
    """
    Somebody answered an incident, a digest or a notice: supersede what was queued because nobody did, and what is only
    repeated because it may not have arrived. Return how many messages. Inside a transaction.
    """
    return connection.execute(
        "UPDATE outbox SET state = 'superseded', lease_owner = NULL,"
        " last_error = coalesce(last_error || '; ', '') || 'acknowledged' WHERE incident_id = :name"
        f" AND (event = 'escalate' AND level > :level OR {MAY_HAVE_ARRIVED}) AND {FREE}",
        {"name": name, "level": FIRST_LEVEL, "boot": now.boot_id, "at": now.monotonic},
    ).rowcount


def hush_digests(connection: sqlite3.Connection, answered: Collection[str], now: Now) -> int:
    """
    The same for digests that tell the incidents ``answered``, by themselves or by way of another digest: one whose
    incidents are all answered or over says nothing that is not known. Inside a transaction.
    """
    checked: set[str] = set()
    count = 0
    names = list(answered)
    for name in names:  # grows meanwhile
        rows = connection.execute(
            "SELECT DISTINCT d.incident_id FROM outbox o JOIN outbox d ON d.id = o.digest_id WHERE o.incident_id = ?",
            (name,),
        )
        for (digest,) in rows.fetchall():
            if digest in checked:
                continue
            checked.add(str(digest))
            names.append(str(digest))
            waits = connection.execute(
                f"SELECT 1 FROM outbox WHERE incident_id = ? AND {MAY_HAVE_ARRIVED}"
                " AND state IN ('held', 'pending', 'sending') LIMIT 1",
                (digest,),
            ).fetchone()
            if waits is not None and _answered(connection, str(digest)):
                count += hush(connection, str(digest), now)
    return count


def _answered(connection: sqlite3.Connection, digest: str) -> bool:
    """Whether each incident that a digest tells is acknowledged or over. One of notices alone has none to answer."""
    known = [one for name in incidents_of_digest(connection, digest) if (one := incidents.one(connection, name))]
    return bool(known) and all(one.acknowledged_wall is not None or one.resolved_wall is not None for one in known)


def bring_forward(
    connection: sqlite3.Connection, channel: str, now: Now, *, unknown_outcomes: int, exclude: Collection[int]
) -> int | None:
    """
    Make the most urgent and oldest message due that waits because it may have arrived ``unknown_outcomes`` times or
    more; return it, None where none waits. Inside a transaction.
    """
    row_id = next_seldom(connection, channel, now, unknown_outcomes=unknown_outcomes, exclude=exclude)
    if row_id is not None:
        connection.execute("UPDATE outbox SET due_at = ? WHERE id = ?", (now.monotonic, row_id))
    return row_id


def next_seldom(
    connection: sqlite3.Connection, channel: str, now: Now, *, unknown_outcomes: int, exclude: Collection[int]
) -> int | None:
    """Return what ``bring_forward`` would make due."""
    found = connection.execute(
        f"SELECT id FROM outbox WHERE channel = ? AND {AGAIN} AND state = 'pending' AND unknown_outcomes >= ?"
        f" AND boot_id = ? AND due_at > ? AND id NOT IN ({','.join(map(str, exclude))}) ORDER BY rank, id LIMIT 1",
        (channel, unknown_outcomes, now.boot_id, now.monotonic),
    ).fetchone()
    return None if found is None else int(found[0])
