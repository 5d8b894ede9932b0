"""
What a channel is sent next, chosen by ``sre.notify.policy`` from what the outbox holds.

Every question here takes as long with ten thousand rows as with ten: each has an index of its own.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sre.actions.records import OutboxRow
from sre.adapters.store import digests
from sre.adapters.store.moment import Now
from sre.adapters.store.repeats import unneeded
from sre.adapters.store.rows import AGAIN, COLUMNS, as_row
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
    too_old,
)

AT_ONCE = ("", "quiet_hours_over")
"""What a new message may wait for when it may be taken; one that quiet hours hold is not among them."""

NEW = "state IN ('held', 'pending') AND begun_boot IS NULL"
IS_DUE = "(boot_id != :boot OR due_at <= :at)"
IN_ORDER = (
    "NOT EXISTS (SELECT 1 FROM outbox before WHERE before.incident_id = outbox.incident_id"
    " AND before.channel = outbox.channel AND before.id < outbox.id AND before.state = 'sending')"
)
"""The messages of one incident on one channel keep their order."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What one channel is sent next. ``row`` is None where nothing is, or a digest that is yet to be made."""

    row: OutboxRow | None
    plan: Plan
    oldest_seconds: float = 0.0
    """So long the new message waits that waits longest."""


@dataclass(frozen=True, slots=True)
class View:
    """One channel at one moment, but for the rows ``exclude``."""

    connection: sqlite3.Connection
    now: Now
    channel: str
    quiet: Collection[int]
    """Ranks that wait for the end of quiet hours."""
    exclude: Collection[int]

    def new(self, *, own_end: bool, ranks: Collection[int], waits_for: Sequence[str], limit: int) -> list[OutboxRow]:
        """New messages that are due, most urgent and oldest first, at most ``limit``."""
        found: list[OutboxRow] = []
        for rank in sorted(set(ranks) - set(self.quiet)):
            of_rank: list[OutboxRow] = []
            for what in waits_for:
                rows = self.connection.execute(
                    f"SELECT {COLUMNS} FROM outbox WHERE channel = :channel AND {NEW} AND waits_for = :waits"
                    f" AND own_end = :own_end AND rank = :rank AND {IS_DUE} AND {IN_ORDER} ORDER BY id LIMIT :limit",
                    {
                        "channel": self.channel,
                        "waits": what,
                        "own_end": int(own_end),
                        "rank": rank,
                        "boot": self.now.boot_id,
                        "at": self.now.monotonic,
                        "limit": limit + len(self.exclude),
                    },
                )
                of_rank += [
                    row for row in (as_row(columns, self.now) for columns in rows) if row.id not in self.exclude
                ]
            found += sorted(of_rank, key=lambda row: row.id)
            if len(found) >= limit:
                break
        return found[:limit]

    def waiting(self, ranks: Collection[int], waits_for: str, most: int) -> tuple[int, float]:
        """How many new messages are due, counted up to ``most``, and how long the first of them waits."""
        count, waited = 0, 0.0
        for rank in sorted(set(ranks) - set(self.quiet)):
            rows = self.connection.execute(
                "SELECT count(*), max(age) FROM (SELECT CASE WHEN created_boot = :boot THEN :at - created_at"
                " ELSE :wall - created_wall END AS age FROM outbox WHERE channel = :channel"
                f" AND {NEW} AND waits_for = :waits AND own_end = 0 AND rank = :rank AND {IS_DUE} AND {IN_ORDER}"
                f" AND id NOT IN ({','.join(map(str, self.exclude))}) ORDER BY id LIMIT :most)",
                {
                    "channel": self.channel,
                    "waits": waits_for,
                    "rank": rank,
                    "boot": self.now.boot_id,
                    "at": self.now.monotonic,
                    "wall": self.now.wall,
                    "most": most,
                },
            ).fetchone()
            count, waited = count + int(rows[0]), max(waited, float(rows[1] or 0.0))
        return count, waited

    def again(self) -> OutboxRow | None:
        """The next due message that was tried before. Quiet hours hold it, too, unless a person sent it."""
        rows = self.connection.execute(
            f"SELECT {COLUMNS} FROM outbox WHERE channel = :channel AND {AGAIN} AND {IS_DUE} AND {IN_ORDER}"
            " ORDER BY rank, id",
            {"channel": self.channel, "boot": self.now.boot_id, "at": self.now.monotonic},
        )
        for columns in rows:
            row = as_row(columns, self.now)
            if row.id not in self.exclude and (RANKS[row.severity] not in self.quiet or row.waits_for == "by_hand"):
                return row
        return None


OTHER_RANKS = tuple(rank for rank in ALL_RANKS if rank != PAGE_RANK)


def choose(view: View, dispatch: Dispatch) -> Choice:
    """
    Return what the channel is sent next.

    Due is what waits no longer: a back-off, a hold or a lease that ended, or any of an earlier boot.
    """
    traffic = _traffic(view, dispatch)
    found = plan(traffic, dispatch.storm)
    oldest = max(traffic.pages_waited_seconds, traffic.others_waited_seconds)
    free = [row for row in (view.again(), *view.new(own_end=True, ranks=ALL_RANKS, waits_for=AT_ONCE, limit=1)) if row]
    new = _planned(view, found.take)
    if found.take is Take.DIGEST and not any(RANKS[row.severity] == PAGE_RANK for row in free):
        return Choice(None, found, oldest)  # it may hold pages
    return Choice(min((*free, *new), key=_order, default=None), found, oldest)


def _order(row: OutboxRow) -> tuple[int, int]:
    return RANKS[row.severity], row.id


def _planned(view: View, take: Take) -> list[OutboxRow]:
    ranks = {Take.PAGE: (PAGE_RANK,), Take.OTHER: OTHER_RANKS, Take.LAST: ALL_RANKS}.get(take)
    return [] if ranks is None else view.new(own_end=False, ranks=ranks, waits_for=AT_ONCE, limit=1)


def _traffic(view: View, dispatch: Dispatch) -> Traffic:
    storm, now = dispatch.storm, view.now
    limit = int(storm.max_messages) if math.isfinite(storm.max_messages) else 0
    most = max(MANY_IN_THE_MORNING, limit) + 1
    pages, pages_waited = view.waiting((PAGE_RANK,), "", most)
    late_pages, late_pages_waited = view.waiting((PAGE_RANK,), "quiet_hours_over", most)
    others, others_waited = view.waiting(OTHER_RANKS, "", most)
    morning, morning_waited = view.waiting(OTHER_RANKS, "quiet_hours_over", most)
    seen = Traffic(
        pages=pages + late_pages,
        others=others + morning,
        from_quiet_hours=morning,
        pages_waited_seconds=max(pages_waited, late_pages_waited),
        others_waited_seconds=max(others_waited, morning_waited),
    )
    if not seen.pages and not seen.others:
        return seen
    begun, pages_begun = view.connection.execute(
        "SELECT count(*), coalesce(sum(rank = 0), 0) FROM outbox"
        " WHERE channel = ? AND begun_boot = ? AND begun_at > ? AND own_end = 0",
        (view.channel, now.boot_id, now.monotonic - storm.window_seconds),
    ).fetchone()
    slot = view.connection.execute(
        "SELECT max(begun_at) FROM outbox WHERE channel = ? AND begun_boot = ? AND begun_at > ? AND slot = 1",
        (view.channel, now.boot_id, now.monotonic - storm.digest_seconds),
    ).fetchone()[0]
    return replace(
        seen,
        begun=int(begun),
        pages_begun=int(pages_begun),
        since_slot_seconds=None if slot is None else now.monotonic - float(slot),
    )


def view_of(
    connection: sqlite3.Connection, now: Now, channel: str, dispatch: Dispatch, exclude: Collection[int]
) -> View:
    """Return ``channel`` as it is now."""
    return View(connection, now, channel, quiet_ranks(dispatch.quiet_hours, now.wall), exclude)


def peek(view: View, dispatch: Dispatch) -> OutboxRow | None:
    """Return what the channel is sent next where nothing can be written: of a digest, its first message."""
    chosen = choose(view, dispatch)
    if chosen.row is None and chosen.plan.take is Take.DIGEST:
        return next(iter(_planned(view, Take.LAST)), None)
    return chosen.row


def has_work(view: View, dispatch: Dispatch) -> bool:
    """Whether ``take`` has something to write."""
    if _hours_change(view) or digests.gathering(view.connection, view.channel) is not None:
        return True
    chosen = choose(view, dispatch)
    return chosen.row is not None or chosen.plan.take is Take.DIGEST


@dataclass(frozen=True, slots=True)
class Taken:
    """What ``take`` found. ``gathering``: a digest is being put together; call again."""

    row: OutboxRow | None = None
    gathering: bool = False


def take(view: View, dispatch: Dispatch) -> Taken:
    """Return the row that the channel is sent next, and make the digest where that is the plan. In a transaction."""
    connection, now, channel = view.connection, view.now, view.channel
    _keep_hours(view)
    digest = digests.gathering(connection, channel)
    if digest is None:
        chosen = choose(view, dispatch)
        if chosen.oldest_seconds > dispatch.max_age_seconds:
            _give_up_old(view, dispatch)
            chosen = choose(view, dispatch)
        while chosen.row is not None and unneeded(connection, chosen.row, now):
            chosen = choose(view, dispatch)
        if chosen.plan.take is not Take.DIGEST or chosen.row is not None:
            if chosen.row is not None and chosen.plan.take is Take.LAST:
                connection.execute(
                    "UPDATE outbox SET slot = 1 WHERE id = ? AND begun_boot IS NULL AND own_end = 0", (chosen.row.id,)
                )
            return Taken(chosen.row)
        digest = digests.begin(connection, channel, chosen.plan.why, now)
    ranks = [rank for rank in ALL_RANKS if rank not in view.quiet]
    which = (
        f"channel = :channel AND {NEW} AND waits_for IN ('', 'quiet_hours_over') AND own_end = 0"
        f" AND rank IN ({','.join(map(str, ranks))}) AND {IS_DUE} AND {IN_ORDER}"
    )
    if digests.gather(connection, digest, which, now, view.exclude):
        return Taken(gathering=True)
    return Taken(digests.complete(connection, digest, now))


def _hours_change(view: View) -> bool:
    held, free = _hours(view.quiet)
    found = view.connection.execute(
        f"SELECT EXISTS (SELECT 1 FROM outbox WHERE channel = ?1 AND {NEW} AND waits_for = '' AND own_end IN (0, 1)"
        f"  AND rank IN ({held}))"
        f" OR EXISTS (SELECT 1 FROM outbox WHERE channel = ?1 AND {AGAIN} AND state != 'sending' AND waits_for = ''"
        f"  AND rank IN ({held}))"
        f" OR EXISTS (SELECT 1 FROM outbox WHERE channel = ?1 AND {NEW} AND waits_for = 'quiet_hours'"
        f"  AND own_end IN (0, 1) AND rank IN ({free}))"
        f" OR EXISTS (SELECT 1 FROM outbox WHERE channel = ?1 AND {AGAIN} AND waits_for = 'quiet_hours'"
        f"  AND rank IN ({free}))",
        (view.channel,),
    ).fetchone()
    return bool(found[0])


def _keep_hours(view: View) -> None:
    """
    Mark what quiet hours hold, and let go what they held: from then on it is as old as a new message. In a transaction.
    """
    held, free = _hours(view.quiet)
    for index, which in (("outbox_new", f"{NEW} AND own_end IN (0, 1)"), ("outbox_again", AGAIN)):
        view.connection.execute(
            f"UPDATE outbox INDEXED BY {index} SET waits_for = 'quiet_hours' WHERE channel = ? AND {which}"
            f" AND state != 'sending' AND waits_for = '' AND rank IN ({held})",
            (view.channel,),
        )
        view.connection.execute(
            f"UPDATE outbox INDEXED BY {index} SET waits_for = 'quiet_hours_over', created_at = ?, created_boot = ?"
            f" WHERE channel = ? AND {which} AND waits_for = 'quiet_hours' AND rank IN ({free})",
            (view.now.monotonic, view.now.boot_id, view.channel),
        )


def _give_up_old(view: View, dispatch: Dispatch) -> None:
    """What is too old goes into no digest and costs no try: it is dead, and shows as that. In a transaction."""
    age = "CASE WHEN created_boot = ? THEN ? - created_at ELSE ? - created_wall END"
    view.connection.execute(
        f"UPDATE outbox INDEXED BY outbox_new SET state = 'dead', last_error = ? WHERE channel = ? AND {NEW}"
        f" AND waits_for IN ('', 'quiet_hours_over') AND own_end IN (0, 1) AND {age} > ?",
        (
            too_old(dispatch.max_age_seconds),
            view.channel,
            view.now.boot_id,
            view.now.monotonic,
            view.now.wall,
            dispatch.max_age_seconds,
        ),
    )


def _hours(quiet: Collection[int]) -> tuple[str, str]:
    """Ranks that wait now and those that do not, as SQL."""
    held = ",".join(str(rank) for rank in ALL_RANKS if rank in quiet)
    free = ",".join(str(rank) for rank in ALL_RANKS if rank not in quiet)
    return held or "NULL", free or "NULL"
