"""What the sender keeps in memory: ends of deliveries that the store cannot write, and messages it cannot take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from sre.actions.records import OutboxMessage
from sre.clock import Clock
from sre.control.blocking import BlockingCalls
from sre.control.delivery_records import Key, Outcome, Unstored, key_of
from sre.errors import StateError

log = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Messages delivered from memory that are known not to be sent again."""

MOST_UNSTORED = 1_000
"""Messages that live in memory only. More of them say nothing new, and memory is to stay bounded."""

MOST_FAILING = 3
"""Outcomes that cannot be written, after which the rest waits for the next turn: the disk is full."""


class Outcomes:
    """How deliveries of stored messages ended, until that is on disk."""

    def __init__(self, calls: BlockingCalls) -> None:
        self._calls = calls
        self._unwritten: dict[int, Outcome] = {}
        self._writing = asyncio.Lock()

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._unwritten

    def __iter__(self) -> Iterator[int]:
        return iter(self._unwritten)

    def attempts(self, row_id: int) -> int:
        """Tries of a message that are not on disk yet, with those before them."""
        known = self._unwritten.get(row_id)
        return 0 if known is None else known.attempts

    def unknown_outcomes(self, row_id: int) -> int:
        """The same, of tries that may have arrived."""
        known = self._unwritten.get(row_id)
        return 0 if known is None else known.unknown_outcomes

    def not_due(self, now: float) -> tuple[int, ...]:
        """Messages that are finished, or not to be tried at ``now`` (monotonic)."""
        return tuple(
            row_id
            for row_id, outcome in self._unwritten.items()
            if outcome.not_before is None or outcome.not_before > now
        )

    def add(self, row_id: int, outcome: Outcome) -> None:
        self._unwritten[row_id] = outcome

    async def write(self) -> None:
        """Write them down. Raises StateError; one that cannot be written is kept, and keeps no other back."""
        problem: StateError | None = None
        failed = 0
        async with self._writing:
            for row_id, outcome in list(self._unwritten.items()):
                try:
                    await self._calls(outcome.write_once)
                except StateError as error:
                    problem = problem or error
                except Exception as error:  # a mistake of ours in one outcome: the others are written
                    log.exception("outbox: the outcome of message %d cannot be written", row_id)
                    problem = problem or StateError(f"outbox: message {row_id}: {type(error).__name__}: {error}")
                else:
                    if self._unwritten.get(row_id) is outcome:
                        del self._unwritten[row_id]
                    continue
                failed += 1
                if self._unwritten.get(row_id) is outcome:
                    self._unwritten[row_id] = self._unwritten.pop(row_id)  # the next time, after the others
                if failed >= MOST_FAILING:
                    break
        if problem is not None:
            raise problem


class Unsaved:
    """Messages that the store cannot take, and which of them went out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Key, Unstored] = {}
        self._sent: dict[Key, None] = {}  # in order, so that the oldest can be forgotten

    @property
    def waiting(self) -> tuple[Unstored, ...]:
        return tuple(self._waiting.values())

    def was_sent(self, key: Key) -> bool:
        return key in self._sent

    def add(self, message: OutboxMessage) -> None:
        """Take ``message``, unless it is here or went out from here."""
        key = key_of(message)
        if key in self._sent:
            return
        if key not in self._waiting and len(self._waiting) >= MOST_UNSTORED:
            log.error("outbox: %s to %s is lost: %d wait in memory", key[0], message.channel, MOST_UNSTORED)
            return
        self._waiting.setdefault(key, Unstored(message, self._clock.monotonic()))

    def sent(self, key: Key) -> None:
        """It went out: neither it nor its twin is sent again."""
        self._sent[key] = None
        while len(self._sent) > REMEMBERED:
            del self._sent[next(iter(self._sent))]

    def forget(self, key: Key) -> None:
        """It waits no longer."""
        self._waiting.pop(key, None)
