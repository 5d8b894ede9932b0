"""What whoever writes the store shares: transactions, journal entries with messages, acknowledgements."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sre.actions.records import Acknowledgement, AckOutcome, JournalEntry, OutboxMessage
from sre.actions.types import Message
from sre.adapters.store import ends, repeats, schema
from sre.adapters.store import incidents as incident_table
from sre.adapters.store import journal as journal_table
from sre.adapters.store import outbox as outbox_table
from sre.adapters.store.reader import StoreReader
from sre.errors import StateError
from sre.notify.escalation import acknowledge_message
from sre.printable import one_line

ACKNOWLEDGED_AT_ONCE = 200
"""Incidents of a digest in one transaction."""

_ACK_ORDER = {
    outcome: order
    for order, outcome in enumerate(
        (AckOutcome.ACKNOWLEDGED, AckOutcome.ALREADY, AckOutcome.RESOLVED, AckOutcome.NOTICE, AckOutcome.UNKNOWN)
    )
}
"""Of several incidents the first of these counts."""


class Writing(StoreReader):
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

    def _write(
        self,
        connection: sqlite3.Connection,
        *,
        journal: Sequence[JournalEntry] = (),
        outbox: Sequence[OutboxMessage] = (),
        told: Sequence[Message] = (),
    ) -> None:
        """Add journal entries, incidents and messages, in this order; inside a transaction."""
        now = self._now()
        journal_table.append(connection, journal, self._boot_id)
        # The same message stands there once per channel.
        ended = [
            message.incident_id
            for message in dict.fromkeys((*told, *(item.message for item in outbox)))
            if incident_table.record(connection, message, now)
        ]
        outbox_table.enqueue(connection, outbox, now)
        outbox_table.enqueue(connection, ends.over(connection, ended, now), now)

    def acknowledge(
        self, incident_id: str, *, by: str, note: str = "", via: str = "command", tell: Collection[str] = ()
    ) -> Acknowledgement:
        """
        Note that ``by`` takes care of an incident, or of all incidents that a digest (its id) tells: nobody else is
        called. The first acknowledgement stays; a repeated one changes nothing.

        Args:
            by: As people write it; kept on one line, as lists show it beside lines of ours. So is ``note``.
            via: command | link; for the journal.
            tell: Channels that are told so, if they were told of the incident.
        """
        by, note = one_line(by)[: incident_table.LONGEST_NAME], one_line(note)[: incident_table.LONGEST_NOTE]
        with self._reading() as connection:
            names = outbox_table.incidents_of_digest(connection, incident_id) or (incident_id,)
        done: list[str] = []
        found = Acknowledgement(AckOutcome.UNKNOWN)
        for at in range(0, len(names), ACKNOWLEDGED_AT_ONCE):
            part = names[at : at + ACKNOWLEDGED_AT_ONCE]
            with self._transaction() as connection:
                now = self._now()
                one = incident_table.acknowledge(connection, part, by=by, note=note, now=now)
                for name in one.incidents:
                    repeats.hush(connection, name, now)
                if one.incidents and not done:
                    self._tell_acknowledged(connection, incident_id, len(names), by=by, note=note, via=via, tell=tell)
            done += one.incidents
            found = min(found, one, key=lambda result: _ACK_ORDER[result.outcome])
        with self._transaction() as connection:
            now = self._now()
            if found.outcome is AckOutcome.UNKNOWN:
                return self._acknowledge_notice(connection, incident_id, by=by, via=via)
            if names != (incident_id,):
                repeats.hush(connection, incident_id, now)  # who answers a digest has it, notices in it included
            repeats.hush_digests(connection, names, now)
        return replace(found, incidents=tuple(done))

    def _acknowledge_notice(self, connection: sqlite3.Connection, name: str, *, by: str, via: str) -> Acknowledgement:
        """What is no incident has nothing to acknowledge; but who answers it has it, so it is not repeated."""
        known = outbox_table.kind_of(connection, name)
        if known is not AckOutcome.NOTICE:
            return Acknowledgement(known)
        quieted = repeats.hush(connection, name, self._now())
        if quieted:
            data: dict[str, object] = {"by": by, "via": via, "messages": quieted}
            self._write(connection, journal=[self._entry("override", name, "not_repeated", data, name)])
        return Acknowledgement(known, quieted=quieted)

    def _tell_acknowledged(
        self, connection: sqlite3.Connection, name: str, count: int, *, by: str, note: str, via: str,
        tell: Collection[str],
    ) -> None:  # fmt: skip
        """Journal an acknowledgement of ``name``, an incident or a digest, and tell it; inside a transaction."""
        opening = outbox_table.opening(connection, name)
        messages = []
        if opening is not None:
            message = acknowledge_message(opening, by, note, self._clock.wall())
            messages = [OutboxMessage(message, c) for c in outbox_table.channels_told(connection, name, tell)]
        data: dict[str, object] = {"by": by, "note": note, "via": via, "incidents": count}
        self._write(connection, journal=[self._entry("override", name, "acknowledged", data, name)], outbox=messages)

    def _entry(
        self, kind: str, target: str, reason: str, data: dict[str, object], incident_id: str | None = None
    ) -> JournalEntry:
        return JournalEntry(
            kind=kind,
            target=target,
            reason=reason,
            at_wall=self._clock.wall(),
            at_monotonic=self._clock.monotonic(),
            incident_id=incident_id,
            data=data,
        )
