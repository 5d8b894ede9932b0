"""
What a channel is sent next, chosen by ``sre.notify.policy`` from what the outbox holds, and carried out on it.

Every question here takes as long with ten thousand rows as with ten: each has an index of its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from sre.actions.records import OutboxRow
from sre.actions.types import Message
from sre.adapters.store.moment import Now
from sre.adapters.store.outbox import COLUMNS, as_row, fold, resolved_opener
from sre.notify.digest import IDS_NAMED, LINES_SHOWN, Gathered, digest_message
from sre.notify.envelope import message_from_json, message_to_json
from sre.notify.policy import (
    ALL_RANKS,
    MANY_IN_THE_MORNING,
    PAGE_RANK,
    RANKS,
    Dispatch,
    Plan,
    Take,
    Traffic,
    plan,
    quiet_ranks,
)

AT_ONCE = ("", "quiet_hours_over")
WAITING = (*AT_ONCE, "digest")
"""What new messages may wait for when they may be taken; those that quiet hours hold are not among them."""

NEW = "state IN ('held', 'pending') AND begun_boot IS NULL"
AGAIN = "state IN ('held', 'pending', 'sending') AND begun_boot IS NOT NULL"
IS_DUE = "(boot_id != :boot OR due_at <= :at)"
IN_ORDER = (
    "NOT EXISTS (SELECT 1 FROM outbox before WHERE before.incident_id = outbox.incident_id"
    " AND before.channel = outbox.channel AND before.id < outbox.id AND before.state = 'sending')"
)
"""The messages of one incident on one channel keep their order."""

COUNTED = 2
"""So many that wait are as good as any number."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What one channel is sent next. ``row`` is None where nothing is, or a digest that is yet to be made."""

    row: OutboxRow | None
    plan: Plan


def choose(
    connection: sqlite3.Connection, now: Now, channel: str, dispatch: Dispatch, exclude: Collection[int] = ()
) -> Choice:
    """
    Return what ``channel`` is sent next, but none of ``exclude``.

    Due is what waits no longer: a back-off, a hold or a lease that ended, or any of an earlier boot.
    """
    quiet = quiet_ranks(dispatch.quiet_hours, now.wall)
    again = _again(connection, now, channel, quiet, exclude)
    found = plan(_traffic(connection, now, channel, quiet, dispatch, exclude), dispatch.storm)
    new = _new(connection, now, channel, quiet, found.take, exclude)
    if again is None:
        return Choice(new, found)
    if found.take is Take.DIGEST and RANKS[again.severity] != PAGE_RANK:
        return Choice(None, found)  # the digest is at most this old, and may hold pages
    return Choice(again if new is None or _order(again) < _order(new) else new, found)


def peek(
    connection: sqlite3.Connection, now: Now, channel: str, dispatch: Dispatch, exclude: Collection[int] = ()
) -> OutboxRow | None:
    """Return what ``channel`` is sent next where nothing can be written: of a digest, its first message."""
    chosen = choose(connection, now, channel, dispatch, exclude)
    if chosen.row is None and chosen.plan.take is Take.DIGEST:
        quiet = quiet_ranks(dispatch.quiet_hours, now.wall)
        return _new(connection, now, channel, quiet, Take.LAST, exclude)
    return chosen.row


def has_work(
    connection: sqlite3.Connection, now: Now, channel: str, dispatch: Dispatch, exclude: Collection[int] = ()
) -> bool:
    """Whether ``take`` has something to write."""
    if hours_change(connection, now, channel, dispatch):
        return True
    chosen = choose(connection, now, channel, dispatch, exclude)
    return chosen.row is not None or chosen.plan.take is Take.DIGEST


def _order(row: OutboxRow) -> tuple[int, int]:
    return RANKS[row.severity], row.id


def _again(
    connection: sqlite3.Connection, now: Now, channel: str, quiet: Collection[int], exclude: Collection[int]
) -> OutboxRow | None:
    """The next due row that was tried before. Quiet hours hold it, too, unless a person sent it."""
    rows = connection.execute(
        f"SELECT {COLUMNS}, rank FROM outbox WHERE channel = :channel AND {AGAIN} AND {IS_DUE} AND {IN_ORDER}"
        " ORDER BY rank, id",
        {"channel": channel, "boot": now.boot_id, "at": now.monotonic},
    )
    for *columns, found_rank in rows:
        row = as_row(columns, now)
        if row.id not in exclude and (found_rank not in quiet or row.waits_for == "by_hand"):
            return row
    return None


def _new(
    connection: sqlite3.Connection,
    now: Now,
    channel: str,
    quiet: Collection[int],
    take: Take,
    exclude: Collection[int],
) -> OutboxRow | None:
    if take in (Take.NOTHING, Take.DIGEST):
        return None
    ranks = [PAGE_RANK] if take is Take.PAGE else [r for r in ALL_RANKS if r != PAGE_RANK or take is Take.LAST]
    for wanted in ranks:
        if wanted in quiet:
            continue
        found: list[OutboxRow] = []
        for waits_for in WAITING if take is Take.LAST else AT_ONCE:
            rows = connection.execute(
                f"SELECT {COLUMNS} FROM outbox WHERE channel = :channel AND {NEW} AND waits_for = :waits"
                f" AND rank = :rank AND {IS_DUE} AND {IN_ORDER} ORDER BY id LIMIT :limit",
                {
                    "channel": channel,
                    "waits": waits_for,
                    "rank": wanted,
                    "boot": now.boot_id,
                    "at": now.monotonic,
                    "limit": len(exclude) + 1,
                },
            )
            found += [row for row in (as_row(columns, now) for columns in rows) if row.id not in exclude][:1]
        if found:
            return min(found, key=_order)
    return None


def _traffic(
    connection: sqlite3.Connection,
    now: Now,
    channel: str,
    quiet: Collection[int],
    dispatch: Dispatch,
    exclude: Collection[int],
) -> Traffic:
    def waiting(waits_for: str, ranks: Collection[int], most: int) -> int:
        total = 0
        for one in ranks:
            if one in quiet:
                continue
            rows = connection.execute(
                f"SELECT id FROM outbox WHERE channel = :channel AND {NEW} AND waits_for = :waits AND rank = :rank"
                f" AND {IS_DUE} AND {IN_ORDER} LIMIT :limit",
                {
                    "channel": channel,
                    "waits": waits_for,
                    "rank": one,
                    "boot": now.boot_id,
                    "at": now.monotonic,
                    "limit": most + len(exclude),
                },
            )
            total += sum(row_id not in exclude for (row_id,) in rows)
        return min(total, most)

    others = [r for r in ALL_RANKS if r != PAGE_RANK]
    morning = waiting("quiet_hours_over", others, MANY_IN_THE_MORNING + 1)
    seen = Traffic(
        pages=sum(waiting(what, [PAGE_RANK], COUNTED) for what in AT_ONCE),
        others=waiting("", others, COUNTED) + morning,
        echoes=waiting("digest", ALL_RANKS, COUNTED),
        from_quiet_hours=morning,
    )
    if not seen.pages + seen.others + seen.echoes:
        return seen
    storm = dispatch.storm
    begun, pages_begun = connection.execute(
        "SELECT count(*), coalesce(sum(rank = 0), 0) FROM outbox WHERE channel = ? AND begun_boot = ? AND begun_at > ?",
        (channel, now.boot_id, now.monotonic - storm.window_seconds),
    ).fetchone()
    slot = connection.execute(
        "SELECT max(begun_at) FROM outbox WHERE channel = ? AND begun_boot = ? AND begun_at > ? AND slot = 1",
        (channel, now.boot_id, now.monotonic - storm.digest_seconds),
    ).fetchone()[0]
    return Traffic(
        begun=int(begun),
        pages_begun=int(pages_begun),
        pages=seen.pages,
        others=seen.others,
        echoes=seen.echoes,
        from_quiet_hours=seen.from_quiet_hours,
        since_slot_seconds=None if slot is None else now.monotonic - float(slot),
    )


def hours_change(connection: sqlite3.Connection, now: Now, channel: str, dispatch: Dispatch) -> bool:
    """Whether ``keep_hours`` has something to write."""
    quiet = quiet_ranks(dispatch.quiet_hours, now.wall)
    held, free = _hours(quiet)
    found = connection.execute(
        f"SELECT EXISTS (SELECT 1 FROM outbox WHERE channel = ?1 AND {NEW} AND waits_for = '' AND rank IN ({held}))"
        f" OR EXISTS (SELECT 1 FROM outbox WHERE channel = ?1 AND {NEW} AND waits_for = 'quiet_hours'"
        f" AND rank IN ({free}))",
        (channel,),
    ).fetchone()
    return bool(found[0])


def keep_hours(connection: sqlite3.Connection, now: Now, channel: str, dispatch: Dispatch) -> None:
    """
    Mark what quiet hours hold, and let go what they held: from then on it is as old as a new message. Inside a
    transaction.
    """
    quiet = quiet_ranks(dispatch.quiet_hours, now.wall)
    held, free = _hours(quiet)
    connection.execute(
        f"UPDATE outbox SET waits_for = 'quiet_hours' WHERE channel = ? AND {NEW} AND waits_for = ''"
        f" AND rank IN ({held})",
        (channel,),
    )
    connection.execute(
        "UPDATE outbox SET waits_for = 'quiet_hours_over', created_at = ?, created_boot = ?"
        f" WHERE channel = ? AND {NEW} AND waits_for = 'quiet_hours' AND rank IN ({free})",
        (now.monotonic, now.boot_id, channel),
    )


def _hours(quiet: Collection[int]) -> tuple[str, str]:
    """Ranks that wait now and those that do not, as SQL."""
    held = ",".join(str(r) for r in ALL_RANKS if r in quiet)
    free = ",".join(str(r) for r in ALL_RANKS if r not in quiet)
    return held or "NULL", free or "NULL"


def take(
    connection: sqlite3.Connection, now: Now, channel: str, dispatch: Dispatch, exclude: Collection[int] = ()
) -> tuple[OutboxRow, Plan] | None:
    """
    Return the row that ``channel`` is sent next, after making the digest where the plan says so. Inside a transaction.
    """
    keep_hours(connection, now, channel, dispatch)
    chosen = choose(connection, now, channel, dispatch, exclude)
    while chosen.row is not None and resolved_opener(connection, chosen.row):
        # Its incident was resolved while a sender had it that never told how that ended.
        fold(connection, chosen.row.message.incident_id, now)
        chosen = choose(connection, now, channel, dispatch, exclude)
    if chosen.row is not None:
        if chosen.plan.take is Take.LAST:
            connection.execute("UPDATE outbox SET slot = 1 WHERE id = ? AND begun_boot IS NULL", (chosen.row.id,))
        return chosen.row, chosen.plan
    if chosen.plan.take is Take.DIGEST:
        return make_digest(connection, now, channel, dispatch, chosen.plan, exclude), chosen.plan
    return None


def make_digest(
    connection: sqlite3.Connection,
    now: Now,
    channel: str,
    dispatch: Dispatch,
    why: Plan,
    exclude: Collection[int] = (),
) -> OutboxRow:
    """Put everything new that waits for ``channel`` into one message; return that. Inside a transaction."""
    ranks = ",".join(str(r) for r in ALL_RANKS if r not in quiet_ranks(dispatch.quiet_hours, now.wall))
    taken = (
        f"channel = :channel AND {NEW} AND waits_for IN ('', 'quiet_hours_over', 'digest') AND rank IN ({ranks})"
        f" AND {IS_DUE} AND {IN_ORDER} AND id NOT IN (SELECT value FROM json_each(:exclude))"
    )
    values = {
        "channel": channel,
        "boot": now.boot_id,
        "at": now.monotonic,
        "exclude": json.dumps(list(exclude)),
    }
    number = connection.execute(
        "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'outbox'"
    ).fetchone()[0]
    message = digest_message(_gathered(connection, taken, values, number), why.why, now.wall)
    digest = connection.execute(
        "INSERT INTO outbox (incident_id, event, channel, level, payload, severity, rank, state, boot_id, due_at,"
        " created_wall, created_at, created_boot, slot) VALUES (?,?,?,0,?,?,?,'pending',?,?,?,?,?,1) RETURNING id",
        (
            message.incident_id,
            message.event,
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
    ).fetchall()[0][0]
    connection.execute(
        f"UPDATE outbox SET state = 'digested', digest_id = :digest WHERE {taken} AND id != :digest",
        {**values, "digest": digest},
    )
    columns = connection.execute(f"SELECT {COLUMNS} FROM outbox WHERE id = ?", (digest,)).fetchone()
    return as_row(columns, now)


def _gathered(connection: sqlite3.Connection, taken: str, values: dict[str, object], number: int) -> Gathered:
    counts = connection.execute(
        "SELECT sum(event NOT IN ('escalate', 'acknowledge', 'resolve')), sum(event IN ('escalate', 'acknowledge')),"
        " sum(event = 'resolve'), count(DISTINCT incident_id), min(rank), min(created_wall), max(created_wall)"
        f" FROM outbox WHERE {taken}",
        values,
    ).fetchone()
    begun, escalated, ended, incidents, worst, first_wall, last_wall = counts
    ids = connection.execute(
        f"SELECT incident_id FROM outbox WHERE {taken} GROUP BY incident_id"
        f" ORDER BY min(rank), min(id) LIMIT {IDS_NAMED}",
        values,
    )
    sample = connection.execute(
        f"SELECT payload FROM outbox WHERE {taken} ORDER BY rank, id LIMIT {LINES_SHOWN}", values
    )
    return Gathered(
        number=number,
        begun=int(begun),
        escalated=int(escalated),
        ended=int(ended),
        incidents=int(incidents),
        worst=next(name for name, value in RANKS.items() if value == worst),
        first_wall=float(first_wall),
        last_wall=float(last_wall),
        ids=[str(name) for (name,) in ids],
        sample=[_message(payload) for (payload,) in sample],
    )


def _message(payload: str) -> Message:
    return message_from_json(json.loads(payload))
