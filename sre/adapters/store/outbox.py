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

from sre.actions.records import AckOutcome, OutboxMessage, OutboxRow, OutboxState
from sre.actions.types import Message
from sre.adapters.store import ends, incidents
from sre.adapters.store.moment import Now
from sre.notify.envelope import message_from_json, message_to_json
from sre.notify.policy import NAMES, rank_of

FINISHED_KEPT = 50_000
"""Sent, superseded and digested rows kept: they answer "was somebody told?"."""

LONGEST_ERROR = 2_000
"""Characters kept of what a provider said."""

MAY_ARRIVE = "NOT (state = 'superseded' AND begun_boot IS NULL)"
"""Rows that a channel has got, or may get: not those that nobody needed before their first try."""

OF_THE_INCIDENT = ("resolve", "acknowledge")
"""Events whose own severity is "info": how urgent they are is a matter of their incident."""


def enqueue(connection: sqlite3.Connection, messages: Sequence[OutboxMessage], now: Now) -> None:
    """
    Add ``messages`` that are not there yet; inside a transaction, and after ``incidents.record``.

    Of two messages that are the same (incident, event, channel, level) the first counts; if it is new and the second
    one is more urgent, it becomes the second. The end of an incident goes where its beginning went, or is to go.
    """
    for item in messages:
        message, severity, own_end = item.message, item.message.severity, 0
        if message.event in OF_THE_INCIDENT:
            begun, digest, known = connection.execute(
                f"SELECT max(begun_boot IS NOT NULL), max(digest_id), min(rank) FROM outbox WHERE incident_id = ?"
                f" AND channel = ? AND {ends.BEGINS} AND {MAY_ARRIVE}",
                (message.incident_id, item.channel),
            ).fetchone()
            if known is None and (item.where_begun or _concerns_others(connection, message.incident_id)):
                continue  # who was not to hear of the beginning does not hear of the end
            # Whatever began there under the incident's own id, and may have arrived, ends under it.
            own_end = int(bool(begun))
            if not begun and digest is not None:
                if message.event == "resolve":
                    ends.end_in_digest(connection, item, int(digest), message_to_json(message), now)
                continue
            worst = severity if known is None else NAMES[known]
            severity = incidents.severity_of(connection, message.incident_id) or worst
        else:
            incidents.want(connection, message.incident_id)
        connection.execute(
            "INSERT INTO outbox (incident_id, event, channel, level, payload, severity, rank, state, own_end,"
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
                own_end,
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


def _concerns_others(connection: sqlite3.Connection, incident_id: str) -> bool:
    """
    Whether it is known who was to be told that this incident began: some channels, or none. False where that is
    forgotten.
    """
    if incidents.unwanted(connection, incident_id):
        return True
    found = connection.execute(
        f"SELECT 1 FROM outbox WHERE incident_id = ? AND {ends.BEGINS} LIMIT 1", (incident_id,)
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
WHERE o.incident_id = ? AND o.event IN ('open', 'escalate', 'acknowledge', 'digest')
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
        if event in ("open", "digest"):
            connection.execute(
                "UPDATE outbox SET opened = ? WHERE id = ? AND state IN ('held', 'pending', 'sending')",
                (payload, resolver),
            )
        connection.execute("UPDATE outbox SET state = 'superseded', lease_owner = NULL WHERE id = ?", (opener,))
    return len(rows)


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
    unknown_outcomes: int = 0,
) -> bool:
    """
    Record how a delivery by ``owner`` ended; False if the row is finished, or leased to another now.

    The row need not be leased: a sender that could not write then tells the outcome later.
    """
    done = bool(
        connection.execute(
            "UPDATE outbox SET state = ?, lease_owner = NULL, last_error = ?,"
            " attempts = attempts + CASE state WHEN 'sending' THEN 0 ELSE 1 END, boot_id = ?, due_at = ?,"
            " sent_wall = ?, unknown_outcomes = max(unknown_outcomes, ?),"
            " begun_at = coalesce(begun_at, ?), begun_boot = coalesce(begun_boot, ?)"
            " WHERE id = ? AND (state IN ('held', 'pending')"
            "  OR (state = 'sending' AND (lease_owner = ? OR boot_id != ? OR due_at <= ?)))",
            (
                state.value,
                storable(error)[:LONGEST_ERROR] if error else None,
                now.boot_id,
                now.monotonic + retry_after_seconds,
                now.wall if state is OutboxState.SENT else None,
                unknown_outcomes,
                now.monotonic,
                now.boot_id,
                row_id,
                owner,
                now.boot_id,
                now.monotonic,
            ),
        ).rowcount
    )
    if not done and state is not OutboxState.DEAD:
        # It was sent without a lease, and nobody needed it any more meanwhile. It may have arrived all the same: its
        # end goes there, too, and if that waits already, by itself.
        connection.execute(
            "UPDATE outbox SET begun_at = ?, begun_boot = ? WHERE id = ? AND state = 'superseded'"
            " AND begun_boot IS NULL",
            (now.monotonic, now.boot_id, row_id),
        )
        connection.execute(
            "UPDATE outbox SET own_end = 1 WHERE event = 'resolve' AND begun_boot IS NULL"
            " AND state IN ('held', 'pending') AND (incident_id, channel) IN"
            " (SELECT incident_id, channel FROM outbox WHERE id = ? AND state = 'superseded')",
            (row_id,),
        )
    if done and state is OutboxState.PENDING:
        name = connection.execute("SELECT incident_id FROM outbox WHERE id = ?", (row_id,)).fetchone()[0]
        fold(connection, str(name), now)
    if done and state is OutboxState.SENT:
        # Its own channel has delivered it after all; the fallback need not, if it has not begun.
        connection.execute(
            "UPDATE outbox SET state = 'superseded',"
            " last_error = coalesce(last_error || '; ', '') || 'its own channel delivered it'"
            " WHERE fallback_of = ? AND state IN ('held', 'pending') AND begun_boot IS NULL",
            (row_id,),
        )
    return done


def storable(text: str) -> str:
    """Return ``text`` without what no file takes: half a surrogate pair, from what a system calls a file, becomes ?"""
    return text.encode("utf-8", "replace").decode()


def incidents_of_digest(connection: sqlite3.Connection, digest: str) -> tuple[str, ...]:
    """Return the incidents that a digest tells, also by way of another digest; none if there is no such digest."""
    found: dict[str, None] = {}
    asked = [digest]
    for name in asked:  # grows meanwhile
        rows = connection.execute(
            "SELECT DISTINCT o.incident_id, o.incident_id IN (SELECT incident_id FROM outbox WHERE is_digest)"
            " FROM outbox d JOIN outbox o ON o.digest_id = d.id WHERE d.incident_id = ? AND d.is_digest",
            (name,),
        )
        for incident_id, is_digest in rows:
            if not is_digest:
                found[str(incident_id)] = None
            elif incident_id not in asked:
                asked.append(str(incident_id))
    return tuple(found)


def kind_of(connection: sqlite3.Connection, name: str) -> AckOutcome:
    """Return what a name is that no incident has: a notice, an incident that is over and forgotten, or nothing."""
    found = connection.execute(
        "SELECT max(event IN ('open', 'escalate', 'resolve')) FROM outbox WHERE incident_id = ?", (name,)
    ).fetchone()[0]
    if found is None:
        return AckOutcome.UNKNOWN
    # The end of a digest of notices is a "resolve", too: all of what it told is over.
    return AckOutcome.RESOLVED if found else AckOutcome.NOTICE


def opening(connection: sqlite3.Connection, name: str) -> Message | None:
    """Return what began an incident, or the message of a digest."""
    row = incidents.one(connection, name)
    if row is not None:
        return row.opening
    found = connection.execute("SELECT payload FROM outbox WHERE incident_id = ? AND is_digest", (name,)).fetchone()
    return None if found is None else message_from_json(json.loads(found[0]))


def channels_told(connection: sqlite3.Connection, incident_id: str, among: Collection[str]) -> list[str]:
    """Return which of ``among`` were to be told of an incident, or of a digest."""
    rows = connection.execute(
        "SELECT DISTINCT channel FROM outbox WHERE incident_id = ? AND event IN ('open', 'escalate', 'digest')",
        (incident_id,),
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


def has_strays(connection: sqlite3.Connection, known_channels: Collection[str]) -> bool:
    """Whether anything waits for a channel that is not among ``known_channels``."""
    found = connection.execute(
        "SELECT 1 FROM outbox WHERE state IN ('held', 'pending', 'sending')"
        f" AND channel NOT IN ({','.join('?' * len(known_channels))}) LIMIT 1",
        tuple(known_channels),
    ).fetchone()
    return found is not None


def orphans(connection: sqlite3.Connection, known_channels: Collection[str]) -> list[tuple[int, str, str]]:
    """
    Return (row, severity, channel) of what waits for a channel that is not configured any more and tells of something
    that nobody else was told, or is about to be.
    """
    marks = ",".join("?" * len(known_channels))
    rows = connection.execute(
        "SELECT id, severity, channel FROM outbox WHERE state IN ('held', 'pending', 'sending')"
        f" AND channel NOT IN ({marks}) AND {ends.BEGINS} AND fell_back = 0 AND NOT EXISTS (SELECT 1 FROM outbox t"
        f"  WHERE t.incident_id = outbox.incident_id AND t.channel IN ({marks}) AND t.{ends.BEGINS}"
        "  AND t.state NOT IN ('dead', 'superseded')) ORDER BY id",
        (*known_channels, *known_channels),
    )
    return [(int(row_id), str(severity), str(channel)) for row_id, severity, channel in rows]


def strand(connection: sqlite3.Connection, known_channels: Collection[str]) -> int:
    """Give up what waits for a channel that is not configured any more: it shows as dead. Inside a transaction."""
    marks = ",".join("?" * len(known_channels))
    return connection.execute(
        "UPDATE outbox SET state = 'dead', lease_owner = NULL,"
        " last_error = coalesce(last_error || '; ', '') || 'channel ' || channel || ' is not in sre.yaml'"
        f" WHERE state IN ('held', 'pending', 'sending') AND channel NOT IN ({marks})",
        tuple(known_channels),
    ).rowcount


def retry(connection: sqlite3.Connection, row_id: int, now: Now) -> bool:
    """An operator sends a dead or waiting message again, with all its tries; no storm and no quiet hours hold it."""
    return (
        connection.execute(
            "UPDATE outbox SET state = 'pending', waits_for = 'by_hand', attempts = 0, unknown_outcomes = 0,"
            " boot_id = ?, due_at = ?,"
            " created_at = ?, created_boot = ?, fell_back = 0, begun_at = coalesce(begun_at, ?),"
            " begun_boot = coalesce(begun_boot, ?) WHERE id = ? AND state IN ('held', 'pending', 'dead')"
            " AND waits_for != 'gathering'",
            (now.boot_id, now.monotonic, now.monotonic, now.boot_id, now.monotonic, now.boot_id, row_id),
        ).rowcount
        == 1
    )


def dead(connection: sqlite3.Connection, channel: str | None) -> list[int]:
    """Return the messages that are given up (for ``channel``; None: for any), oldest first."""
    rows = connection.execute(
        "SELECT id FROM outbox WHERE state = 'dead' AND (? IS NULL OR channel = ?) ORDER BY id", (channel, channel)
    )
    return [int(row_id) for (row_id,) in rows]


def drop(connection: sqlite3.Connection, row_id: int) -> bool:
    """An operator gives up a message that is not finished and not under way. It stays on record as superseded."""
    return (
        connection.execute(
            "UPDATE outbox SET state = 'superseded', last_error = coalesce(last_error || '; ', '') || 'dropped by hand'"
            " WHERE id = ? AND state IN ('held', 'pending', 'dead')"
            " AND waits_for != 'gathering'",
            (row_id,),
        ).rowcount
        == 1
    )


def prune(connection: sqlite3.Connection, *, keep: int = FINISHED_KEPT) -> int:
    """
    Forget the oldest finished rows beyond ``keep``. Dead ones stay, and so does what a digest tells that is not
    finished. What belongs to an incident or digest that is not over is kept as long again: its end has to find who was
    told of it. Inside a transaction.
    """
    last, oldest = (_finished(connection, offset) for offset in (keep, 2 * keep))
    if last is None:
        return 0
    return connection.execute(
        "DELETE FROM outbox WHERE state IN ('sent', 'superseded', 'digested') AND id <= ?"
        " AND (digest_id IS NULL OR digest_id NOT IN (SELECT d.id FROM outbox d WHERE d.is_digest"
        " AND d.state IN ('held', 'pending', 'sending', 'dead')))"
        " AND (id <= ? OR NOT EXISTS (SELECT 1 FROM incident i WHERE i.id = outbox.incident_id"
        "  AND i.resolved_wall IS NULL UNION ALL SELECT 1 FROM outbox d WHERE d.incident_id = outbox.incident_id"
        "  AND d.is_digest AND d.open_left > 0))",
        (last, -1 if oldest is None else oldest),
    ).rowcount


def _finished(connection: sqlite3.Connection, newest: int) -> int | None:
    """Return the last finished row but for the ``newest``."""
    found = connection.execute(
        "SELECT id FROM outbox WHERE state IN ('sent', 'superseded', 'digested') ORDER BY id DESC LIMIT 1 OFFSET ?",
        (newest,),
    ).fetchone()
    return None if found is None else int(found[0])
