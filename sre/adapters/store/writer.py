"""The guard's own hand on the store."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from sre.actions.records import (
    IncidentRow,
    JournalEntry,
    OutboxMessage,
    OutboxRow,
    OutboxState,
)
from sre.actions.types import Message
from sre.adapters.store import digests, fallbacks, repeats, schema
from sre.adapters.store import dispatch as dispatching
from sre.adapters.store import incidents as incident_table
from sre.adapters.store import journal as journal_table
from sre.adapters.store import outbox as outbox_table
from sre.adapters.store import rows as rows_table
from sre.adapters.store.migrate import migrate
from sre.adapters.store.moment import Now
from sre.adapters.store.reader import UNLIMITED
from sre.adapters.store.writing import Writing
from sre.clock import Clock
from sre.notify.envelope import unreadable
from sre.notify.escalation import FIRST_LEVEL, Escalation, escalation_message
from sre.notify.policy import Dispatch

JOURNAL_MAX_AGE_SECONDS = 90 * 86400.0

VERIFIED_AT_OPEN = 2_000
"""Newest journal rows whose chain is checked at each start: about 20 ms."""

PRUNED_EVERY = 2_000
"""Messages queued after which a commit drops the oldest finished ones."""

ESCALATED_AT_ONCE = 200
"""Incidents in one transaction; in a storm the next call takes the next."""

GATHER_SECONDS = 0.5
"""A digest is put together for so long at a stretch; then what else was leased is sent first."""


NO_HEIRS: Mapping[str, Sequence[str]] = {}


class GuardStore(Writing):
    """The one writer. Blocking: a loop calls it in a thread. Opened with ``open``, released by ``close`` or death."""

    _lock: int
    _queued = 0
    """Messages since the outbox was last pruned."""

    @classmethod
    def open(cls, path: Path, *, clock: Clock, boot_id: str, trace: schema.Trace | None = None) -> Self:
        """
        Lock the store at ``path``, make it if there is none, check it, and take back the leases of senders that are
        gone. One that an older sre wrote is brought up to date.

        Args:
            trace: Called with each SQL statement before it runs.

        Raises:
            StateError: Locked by another guard, corrupt, written by a newer version, or not writable.
        """
        lock = schema.lock(path)
        try:
            if not schema.refuse_damage(path):
                schema.create(path)
            connection = schema.connect(
                path, readonly=False, trace=trace, older=lambda found: migrate(found, clock=clock, boot_id=boot_id)
            )
            try:
                store = cls(path, connection, clock, boot_id)
                store._lock = lock
                store._inode = os.stat(path).st_ino
                store.load_state()
                store.verify_chain(last_rows=VERIFIED_AT_OPEN)
                store._begin()
            except BaseException:
                connection.close()
                raise
        except BaseException:
            os.close(lock)
            raise
        return store

    def close(self) -> None:
        super().close()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _begin(self) -> None:
        with self._transaction() as connection:
            # Whoever sent for an earlier guard is dead or about to be: a worker ends with its parent.
            outbox_table.release(connection, self._now(), owner=None)
            incident_table.carry_over(connection, self._now())
            outbox_table.prune(connection)
            incident_table.prune(connection)
            journal_table.prune(
                connection,
                now_wall=self._clock.wall(),
                rows_kept=journal_table.ROWS_KEPT,
                max_age_seconds=JOURNAL_MAX_AGE_SECONDS,
            )

    def commit(
        self,
        *,
        state: str | None,
        journal: Sequence[JournalEntry] = (),
        outbox: Sequence[OutboxMessage] = (),
        told: Sequence[Message] = (),
    ) -> None:
        """
        Write ``state`` (None: leave it), journal entries and messages in one transaction, on disk when this returns.

        A message whose incident, event, channel and level are there already is ignored.

        Args:
            told: Messages that no channel may want, but that open, worsen or resolve an incident all the same.

        Raises:
            StateError: Nothing of it was written; the sentence says why.
        """
        with self._transaction() as connection:
            if state is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO state (id, document, sha256, saved_wall, boot_id) VALUES (1, ?, ?, ?, ?)",
                    (state, hashlib.sha256(state.encode()).hexdigest(), self._clock.wall(), self._boot_id),
                )
            self._write(connection, journal=journal, outbox=outbox, told=told)
            self._prune_grown(connection, len(outbox))

    def _prune_grown(self, connection: sqlite3.Connection, queued: int) -> None:
        """Keep the file bounded, seldom and a little at a time; inside a transaction."""
        anchor, head = connection.execute("SELECT anchor_seq, head_seq FROM chain").fetchone()
        if head - anchor > journal_table.ROWS_KEPT + journal_table.PRUNE_SLACK:
            journal_table.prune(
                connection, now_wall=self._clock.wall(), rows_kept=journal_table.ROWS_KEPT, max_age_seconds=None
            )
        self._queued += queued
        if self._queued >= PRUNED_EVERY:
            self._queued = 0
            outbox_table.prune(connection)
            incident_table.prune(connection)

    def prune(self, *, journal_rows: int, journal_max_age_seconds: float | None, outbox_rows: int) -> tuple[int, int]:
        """Drop old journal rows and finished messages; return how many of each. ``open`` and ``commit`` do it too."""
        with self._transaction() as connection:
            rows = journal_table.prune(
                connection,
                now_wall=self._clock.wall(),
                rows_kept=journal_rows,
                max_age_seconds=journal_max_age_seconds,
            )
            return rows, outbox_table.prune(connection, keep=outbox_rows)

    def release_held(self, incident_id: str) -> int:
        """Let the held messages of this incident go now; return how many. A hold that ended needs no call."""
        with self._transaction() as connection:
            return outbox_table.release_held(connection, incident_id, self._now())

    def lease(
        self,
        *,
        owner: str,
        seconds: float,
        channels: Collection[str],
        exclude: Collection[int] = (),
        dispatch: Dispatch = UNLIMITED,
    ) -> Sequence[OutboxRow]:
        """
        Take the next message of each of ``channels`` for ``seconds``; return them as they were before.

        ``dispatch`` decides which is next, and when many become one digest. Writes nothing when nothing is due.
        """
        with self._reading() as connection:
            now = self._now()
            views = [dispatching.view_of(connection, now, channel, dispatch, exclude) for channel in channels]
            busy = [view.channel for view in views if dispatching.has_work(view, dispatch)]
        leased: list[OutboxRow] = []
        until = self._clock.monotonic() + GATHER_SECONDS
        while busy:
            with self._transaction() as connection:
                now, rows, unfinished = self._now(), [], []
                for channel in busy:
                    taken = dispatching.take(dispatching.view_of(connection, now, channel, dispatch, exclude), dispatch)
                    if taken.gathering:
                        unfinished.append(channel)
                    if taken.row is not None:
                        rows.append(taken.row)
                        self._note_digest(connection, taken.row)
                outbox_table.lease(connection, rows, now, owner=owner, seconds=seconds)
            leased += rows
            # Between two parts of a digest others have their turn.
            busy = unfinished if self._clock.monotonic() < until else []
        return leased

    def _note_digest(self, connection: sqlite3.Connection, row: OutboxRow) -> None:
        """Journal a digest that goes out for the first time."""
        if row.is_digest and row.attempts == 0:
            data: dict[str, object] = {"outbox_id": row.id, "summary": row.message.summary}
            entry = self._entry("note", row.channel, f"digest_{row.message.reason}", data, row.message.incident_id)
            journal_table.append(connection, [entry], self._boot_id)

    def escalate(self, escalation: Escalation) -> int:
        """
        Queue the next level of every incident that waits for an acknowledgement for too long; return how many
        incidents. Writes nothing when there is none. No level is told twice, whenever the guard dies.
        """
        with self._reading() as connection:
            if not incident_table.due(connection, self._now(), escalation, limit=1):
                return 0
        with self._transaction() as connection:
            now = self._now()
            rows = incident_table.due(connection, now, escalation, limit=ESCALATED_AT_ONCE)
            for row in rows:
                connection.execute("SAVEPOINT one")
                try:
                    self._escalate_one(connection, row, row.opening, escalation, now)
                except (ValueError, OverflowError):  # no text that the file takes: one such incident stops no other
                    connection.execute("ROLLBACK TO one")
                    opening = unreadable(row.id, row.severity, row.opened_wall)
                    self._escalate_one(connection, row, opening, escalation, now)
                connection.execute("RELEASE one")
        return len(rows)

    def _escalate_one(
        self, connection: sqlite3.Connection, row: IncidentRow, opening: Message, escalation: Escalation, now: Now
    ) -> None:
        level = row.level + 1
        message = escalation_message(opening, level, now.wall)
        data: dict[str, object] = {"level": level, "channels": [*escalation.channels]}
        entry = self._entry("note", opening.scope, "not_acknowledged", data, row.id)
        outbox = [OutboxMessage(message, channel, FIRST_LEVEL + level) for channel in escalation.channels]
        self._write(connection, journal=[entry], outbox=outbox)
        incident_table.told(connection, row.id, now)

    def mark_sent(self, row_id: int, *, owner: str) -> bool:
        """Record that the provider accepted it; False if it is finished already, or leased to another now."""
        return self._finish(row_id, owner=owner, state=OutboxState.SENT)

    def mark_failed(
        self,
        row_id: int,
        *,
        owner: str,
        error: str,
        retry_after_seconds: float,
        fallback: str | None = None,
        unknown_outcomes: int = 0,
    ) -> bool:
        """
        Record a failed or unknown try, to be repeated after ``retry_after_seconds``.

        Args:
            fallback: Channel that is told it, too.
            unknown_outcomes: So many tries of it, with those before, may have arrived.
        """
        return self._finish(
            row_id, owner=owner, state=OutboxState.PENDING, error=error, retry_after_seconds=retry_after_seconds,
            fallback=fallback, unknown_outcomes=unknown_outcomes,
        )  # fmt: skip

    def mark_dead(
        self, row_id: int, *, owner: str, error: str, fallback: str | None = None, unknown_outcomes: int = 0
    ) -> bool:
        """Record that it is given up: a person has to look. The rest as in ``mark_failed``."""
        return self._finish(
            row_id, owner=owner, state=OutboxState.DEAD, error=error, fallback=fallback,
            unknown_outcomes=unknown_outcomes,
        )  # fmt: skip

    def bring_forward(self, channel: str, *, unknown_outcomes: int, exclude: Collection[int] = ()) -> int | None:
        """
        Make one message of ``channel`` due that waits because it may have arrived ``unknown_outcomes`` times or more;
        return its number. None, and nothing is written, where none waits but those of ``exclude``.
        """
        with self._reading() as connection:
            if (
                repeats.next_seldom(
                    connection, channel, self._now(), unknown_outcomes=unknown_outcomes, exclude=exclude
                )
                is None
            ):
                return None
        with self._transaction() as connection:
            return repeats.bring_forward(
                connection, channel, self._now(), unknown_outcomes=unknown_outcomes, exclude=exclude
            )

    def divert(self, channel: str, fallback: str, reason: str) -> int:
        """
        Tell ``fallback`` whatever waits for ``channel``, which is down; return how many messages it had not got. Writes
        nothing when nothing waits.
        """
        with self._reading() as connection:
            if not fallbacks.waiting(connection, channel, self._now()):
                return 0
        with self._transaction() as connection:
            now = self._now()
            rows = fallbacks.waiting(connection, channel, now)
            queued = sum(fallbacks.fall_back(connection, row_id, fallback, reason, now) for row_id in rows)
            if queued:
                self._note_fallback(connection, channel, fallback, queued, reason)
        return queued

    def _note_fallback(self, connection: sqlite3.Connection, channel: str, to: str, count: int, reason: str) -> None:
        problem = outbox_table.storable(reason)[: outbox_table.LONGEST_ERROR]
        data: dict[str, object] = {"to": to, "messages": count, "problem": problem}
        journal_table.append(connection, [self._entry("note", channel, "fallback", data)], self._boot_id)

    def release_leases(self, *, owner: str) -> int:
        """Put what ``owner`` was sending back, due now: it stops before it knows the outcome."""
        with self._transaction() as connection:
            return outbox_table.release(connection, self._now(), owner=owner)

    def strand(self, known_channels: Collection[str], heirs: Mapping[str, Sequence[str]] = NO_HEIRS) -> int:
        """
        Give up what waits for channels that are not configured; return how many messages. What nobody else was told
        goes to ``heirs``: severity → channels. Writes nothing when nothing waits for such a channel.
        """
        with self._reading() as connection:
            if not outbox_table.has_strays(connection, known_channels):
                return 0
        with self._transaction() as connection:
            now = self._now()
            digests.complete_orphans(connection, known_channels, now)
            for row_id, severity, channel in outbox_table.orphans(connection, known_channels):
                why = "not in sre.yaml any more"
                for heir in heirs.get(severity, ()):
                    if fallbacks.fall_back(connection, row_id, heir, why, now):
                        self._note_fallback(connection, channel, heir, 1, why)
            return outbox_table.strand(connection, known_channels)

    def _finish(
        self,
        row_id: int,
        *,
        owner: str,
        state: OutboxState,
        error: str = "",
        retry_after_seconds: float = 0.0,
        fallback: str | None = None,
        unknown_outcomes: int = 0,
    ) -> bool:
        with self._transaction() as connection:
            now = self._now()
            done = outbox_table.finish(
                connection, row_id, now, owner=owner, state=state, error=error,
                retry_after_seconds=retry_after_seconds, unknown_outcomes=unknown_outcomes,
            )  # fmt: skip
            if done and fallback is not None:
                row = rows_table.select(connection, now, row_id=row_id, limit=1)[0]
                # An alarm that was folded meanwhile is told with the end of its incident.
                if (
                    row.state is not OutboxState.SUPERSEDED
                    and not row.fell_back
                    and fallbacks.fall_back(connection, row_id, fallback, error, now)
                ):
                    self._note_fallback(connection, row.channel, fallback, 1, error)
        return done
