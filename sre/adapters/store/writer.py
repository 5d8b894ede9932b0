"""Writing the store: the guard, and an operator's hand on the outbox."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sre.actions.records import JournalEntry, OutboxMessage, OutboxRow, OutboxState
from sre.adapters.store import journal as journal_table
from sre.adapters.store import outbox as outbox_table
from sre.adapters.store import schema
from sre.adapters.store.reader import StoreReader
from sre.clock import Clock
from sre.errors import StateError

JOURNAL_MAX_AGE_SECONDS = 90 * 86400.0

VERIFIED_AT_OPEN = 2_000
"""Newest journal rows whose chain is checked at each start: about 20 ms."""


class _Writing(StoreReader):
    """A reader that can also run transactions."""

    _inode: int

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing. Raises StateError, after which nothing of it is visible."""
        with self._turn, schema.explained(self.path):
            self._still_ours()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                # After some errors SQLite has rolled back by itself; then ROLLBACK is an error of no interest.
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                if isinstance(error, ValueError) and not isinstance(error, UnicodeError):
                    raise schema.corrupt(self.path, str(error)) from error
                raise

    def _still_ours(self) -> None:
        try:
            now = os.stat(self.path).st_ino
        except FileNotFoundError:
            now = None
        if now != self._inode:
            raise StateError(
                f"guard state {self.path}: moved, replaced or deleted while in use; put it back or restart the guard"
            )


class GuardStore(_Writing):
    """The one writer. Blocking: a loop calls it in a thread. Opened with ``open``, released by ``close`` or death."""

    _lock: int

    @classmethod
    def open(cls, path: Path, *, clock: Clock, boot_id: str, trace: schema.Trace | None = None) -> Self:
        """
        Lock the store at ``path``, make it if there is none, check it, and take back the leases of senders that are
        gone.

        Args:
            trace: Called with each SQL statement before it runs.

        Raises:
            StateError: Locked by another guard, corrupt, written by a newer version, or not writable.
        """
        lock = schema.lock(path)
        try:
            if not schema.refuse_damage(path):
                schema.create(path)
            connection = schema.connect(path, readonly=False, trace=trace)
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
            outbox_table.prune(connection)
            journal_table.prune(
                connection,
                now_wall=self._clock.wall(),
                rows_kept=journal_table.ROWS_KEPT,
                max_age_seconds=JOURNAL_MAX_AGE_SECONDS,
            )

    def commit(
        self, *, state: str | None, journal: Sequence[JournalEntry] = (), outbox: Sequence[OutboxMessage] = ()
    ) -> None:
        """
        Write ``state`` (None: leave it), journal entries and messages in one transaction, on disk when this returns.

        A message whose incident, event, channel and level are there already is ignored.

        Raises:
            StateError: Nothing of it was written; the sentence says why.
        """
        with self._transaction() as connection:
            if state is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO state (id, document, sha256, saved_wall, boot_id) VALUES (1, ?, ?, ?, ?)",
                    (state, hashlib.sha256(state.encode()).hexdigest(), self._clock.wall(), self._boot_id),
                )
            journal_table.append(connection, journal, self._boot_id)
            outbox_table.enqueue(connection, outbox, self._now())
            anchor, head = connection.execute("SELECT anchor_seq, head_seq FROM chain").fetchone()
            if head - anchor > journal_table.ROWS_KEPT + journal_table.PRUNE_SLACK:
                journal_table.prune(
                    connection, now_wall=self._clock.wall(), rows_kept=journal_table.ROWS_KEPT, max_age_seconds=None
                )

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
        self, *, owner: str, seconds: float, channels: Collection[str], exclude: Collection[int] = ()
    ) -> Sequence[OutboxRow]:
        """
        Take the oldest due message of each of ``channels`` for ``seconds``; return them as they were before.

        Writes nothing when nothing is due.
        """
        if not self.peek_due(channels=channels, exclude=exclude):
            return ()
        with self._transaction() as connection:
            now = self._now()
            outbox_table.fold(connection, now)
            rows = outbox_table.due(connection, now, channels=channels, exclude=exclude)
            outbox_table.lease(connection, rows, now, owner=owner, seconds=seconds)
        return rows

    def mark_sent(self, row_id: int, *, owner: str) -> bool:
        """Record that the provider accepted it; False if it is finished already, or leased to another now."""
        return self._finish(row_id, owner=owner, state=OutboxState.SENT)

    def mark_failed(self, row_id: int, *, owner: str, error: str, retry_after_seconds: float) -> bool:
        """Record a failed or unknown try, to be repeated after ``retry_after_seconds``."""
        return self._finish(
            row_id, owner=owner, state=OutboxState.PENDING, error=error, retry_after_seconds=retry_after_seconds
        )

    def mark_dead(self, row_id: int, *, owner: str, error: str) -> bool:
        """Record that it is given up: a person has to look."""
        return self._finish(row_id, owner=owner, state=OutboxState.DEAD, error=error)

    def release_leases(self, *, owner: str) -> int:
        """Put what ``owner`` was sending back, due now: it stops before it knows the outcome."""
        with self._transaction() as connection:
            return outbox_table.release(connection, self._now(), owner=owner)

    def strand(self, known_channels: Collection[str]) -> int:
        """Give up what waits for channels that are not configured; return how many messages."""
        with self._transaction() as connection:
            return outbox_table.strand(connection, known_channels)

    def _finish(
        self,
        row_id: int,
        *,
        owner: str,
        state: OutboxState,
        error: str | None = None,
        retry_after_seconds: float = 0.0,
    ) -> bool:
        with self._transaction() as connection:
            return outbox_table.finish(
                connection,
                row_id,
                self._now(),
                owner=owner,
                state=state,
                error=error,
                retry_after_seconds=retry_after_seconds,
            )


class OutboxDesk(_Writing):
    """
    An operator's hand on the outbox, also while the guard runs.

    It takes no lock: each call is one short transaction on rows that no sender holds, with a journal entry.
    """

    @classmethod
    def open(cls, path: Path, *, clock: Clock, boot_id: str) -> Self:
        """Open an existing store. Raises StateError."""
        if not schema.refuse_damage(path):
            raise StateError(f"guard state {path}: not there; the guard has not run yet: start it with sre up")
        desk = cls(path, schema.connect(path, readonly=False), clock, boot_id)
        desk._inode = os.stat(path).st_ino
        return desk

    def retry(self, row_id: int) -> bool:
        """Send a waiting or dead message now, with all its tries; False if it is under way, finished or not there."""
        with self._transaction() as connection:
            done = outbox_table.retry(connection, row_id, self._now())
            self._note(connection, row_id, "outbox_retry", done)
        return done

    def drop(self, row_id: int) -> bool:
        """Give a waiting or dead message up for good; False if it is under way, finished or not there."""
        with self._transaction() as connection:
            done = outbox_table.drop(connection, row_id)
            self._note(connection, row_id, "outbox_drop", done)
        return done

    def _note(self, connection: sqlite3.Connection, row_id: int, reason: str, done: bool) -> None:
        if not done:
            return
        row = outbox_table.select(connection, self._now(), row_id=row_id, limit=1)[0]
        entry = JournalEntry(
            kind="override",
            target=row.channel,
            reason=reason,
            at_wall=self._clock.wall(),
            at_monotonic=self._clock.monotonic(),
            incident_id=row.message.incident_id,
            data={"outbox_id": row_id, "uid": os.getuid()},
        )
        journal_table.append(connection, [entry], self._boot_id)
