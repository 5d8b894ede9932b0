"""An operator's hand on the store, beside the guard or without it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Self

from sre.adapters.store import journal as journal_table
from sre.adapters.store import outbox as outbox_table
from sre.adapters.store import rows as rows_table
from sre.adapters.store import schema
from sre.adapters.store.writing import Writing
from sre.clock import Clock


class OutboxDesk(Writing):
    """
    An operator's hand on the outbox, also while the guard runs.

    It takes no lock: each call is one short transaction on rows that no sender holds, with a journal entry.
    """

    @classmethod
    def open(cls, path: Path, *, clock: Clock, boot_id: str) -> Self:
        """Open an existing store. Raises StateError."""
        if not schema.refuse_damage(path):
            raise schema.absent(path)
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

    def retry_dead(self, channel: str | None = None) -> int:
        """``retry`` all that are given up (for ``channel``; None: for any); return how many."""
        with self._transaction() as connection:
            rows = outbox_table.dead(connection, channel)
            count = sum(outbox_table.retry(connection, row_id, self._now()) for row_id in rows)
            self._note_all(connection, channel, "outbox_retry", count)
        return count

    def drop_dead(self, channel: str | None = None) -> int:
        """``drop`` all that are given up (for ``channel``; None: for any); return how many."""
        with self._transaction() as connection:
            count = sum(outbox_table.drop(connection, row_id) for row_id in outbox_table.dead(connection, channel))
            self._note_all(connection, channel, "outbox_drop", count)
        return count

    def _note_all(self, connection: sqlite3.Connection, channel: str | None, reason: str, count: int) -> None:
        if count:
            data: dict[str, object] = {"dead": count, "uid": os.getuid()}
            entry = self._entry("override", channel or "outbox", reason, data)
            journal_table.append(connection, [entry], self._boot_id)

    def _note(self, connection: sqlite3.Connection, row_id: int, reason: str, done: bool) -> None:
        if not done:
            return
        row = rows_table.select(connection, self._now(), row_id=row_id, limit=1)[0]
        data: dict[str, object] = {"outbox_id": row_id, "uid": os.getuid()}
        entry = self._entry("override", row.channel, reason, data, row.message.incident_id)
        journal_table.append(connection, [entry], self._boot_id)
