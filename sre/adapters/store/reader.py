"""Reading the store: for commands, while the guard runs or not."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sre.actions.records import IncidentRow, JournalRow, OutboxLoad, OutboxRow, OutboxState
from sre.adapters.store import dispatch as dispatching
from sre.adapters.store import incidents as incident_table
from sre.adapters.store import journal as journal_table
from sre.adapters.store import rows as rows_table
from sre.adapters.store import schema
from sre.adapters.store.moment import Now
from sre.adapters.store.turns import Turns
from sre.clock import Clock
from sre.notify.policy import Dispatch

UNLIMITED = Dispatch()
"""No quiet hours, no storms: every message goes out by itself."""


class StoreReader:
    """
    A view on the store; every call sees one consistent moment.

    Safe to call from any thread: calls take turns. Every method raises StateError when the file cannot be trusted
    or read.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Clock, boot_id: str) -> None:
        self.path = path
        self._connection = connection
        self._clock = clock
        self._boot_id = boot_id
        self._turn = Turns()

    @classmethod
    def open_readonly(cls, path: Path, *, clock: Clock, boot_id: str) -> StoreReader:
        """
        Open an existing store for reading.

        Raises:
            StateError: There is none, or it cannot be trusted.
        """
        if not schema.refuse_damage(path):
            raise schema.absent(path)
        return StoreReader(path, schema.connect(path, readonly=True), clock, boot_id)

    @staticmethod
    def is_there(path: Path) -> bool:
        """Whether a guard has written there yet. Raises StateError for what shows that a state was lost."""
        return schema.refuse_damage(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Further calls fail."""
        with self._turn:
            self._connection.close()

    def load_state(self) -> str | None:
        """Return the JSON text last committed; None only if none was ever committed."""
        with self._reading() as connection:
            row = connection.execute("SELECT document, sha256 FROM state").fetchone()
        if row is None:
            return None
        document, digest = row
        if hashlib.sha256(document.encode()).hexdigest() != digest:
            raise schema.corrupt(self.path, "the state does not match its checksum")
        return str(document)

    def journal(self, *, incident_id: str | None = None, limit: int = 1000) -> Sequence[JournalRow]:
        """The newest ``limit`` rows (of the incident), oldest first."""
        with self._reading() as connection:
            return list(journal_table.select(connection, incident_id=incident_id, limit=limit))

    def verify_chain(self, *, last_rows: int | None = None) -> int:
        """
        Check that no journal row was changed or taken away; return how many were checked.

        Raises:
            StateError: One was. The sentence names it.
        """
        with self._reading() as connection:
            return journal_table.verify(connection, self.path, last_rows=last_rows)

    def outbox(
        self,
        *,
        states: Collection[OutboxState] | None = None,
        incident_id: str | None = None,
        digest: str | None = None,
        limit: int = 1000,
    ) -> Sequence[OutboxRow]:
        """
        The newest ``limit`` messages that match, oldest first.

        Args:
            digest: Only what the digest of this id tells.
        """
        with self._reading() as connection:
            return rows_table.select(
                connection, self._now(), states=states, incident_id=incident_id, digest=digest, limit=limit
            )

    def outbox_row(self, row_id: int) -> OutboxRow | None:
        with self._reading() as connection:
            rows = rows_table.select(connection, self._now(), row_id=row_id, limit=1)
        return rows[0] if rows else None

    def outbox_load(self) -> Sequence[OutboxLoad]:
        """What waits and what is dead per channel that has any."""
        now = self._now()
        with self._reading() as connection:
            return rows_table.load(connection, now)

    def incident(self, incident_id: str) -> IncidentRow | None:
        """What was told of an incident, and who acknowledged it; None if nothing was told."""
        with self._reading() as connection:
            return incident_table.one(connection, incident_id)

    def incidents(self, *, limit: int = 1000) -> Sequence[IncidentRow]:
        """The newest ``limit`` incidents that people were to be told of, oldest first."""
        with self._reading() as connection:
            return incident_table.select(connection, limit=limit)

    def unacknowledged(self) -> dict[str, int]:
        """Incidents that are neither resolved nor acknowledged, by severity; one that has none is not there."""
        with self._reading() as connection:
            return incident_table.unacknowledged(connection)

    def peek_due(
        self, *, channels: Collection[str], exclude: Collection[int] = (), dispatch: Dispatch = UNLIMITED
    ) -> Sequence[OutboxRow]:
        """
        The next message per channel, without taking it: for a sender that cannot write. It can make no digest: what
        would go into one comes by itself.
        """
        with self._reading() as connection:
            now = self._now()
            views = (dispatching.view_of(connection, now, channel, dispatch, exclude) for channel in channels)
            return [row for view in views if (row := dispatching.peek(view, dispatch)) is not None]

    def _now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.wall(), self._boot_id)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._turn, schema.explained(self.path):
            try:
                yield self._connection
            except ValueError as error:  # a payload or state name that this code never wrote
                raise schema.corrupt(self.path, str(error)) from error
