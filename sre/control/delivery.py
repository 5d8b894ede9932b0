"""The sender: takes due messages out of the outbox and delivers them, each channel at its own pace."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import uuid
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sre.actions.records import OutboxMessage, OutboxRow, OutboxState
from sre.clock import Clock
from sre.control.blocking import CALL_SECONDS, BlockingCalls
from sre.errors import StateError
from sre.notify.delivery import DeliveryResult, Send, Verdict, backoff_seconds
from sre.notify.renderer import Render, Renderer
from sre.settings.notify import ChannelSettings, NotifySettings

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often the outbox is looked into when nobody wakes the sender: back-offs end, operators retry."""

LEASE_MARGIN_SECONDS = 30.0
"""A lease lasts the channel's deadline and this: starting and ending a worker on a busy machine."""

REMEMBERED = 10_000
"""Messages delivered from memory that are known not to be sent again."""

OUTCOMES = ("delivered", "failed", "rejected", "unknown")
"""How a try ended, as it is counted."""

GIVEN_UP = frozenset({Verdict.IMPOSSIBLE, Verdict.REJECTED})
"""Repeating cannot help."""

Key = tuple[str, str, str, int]
"""Incident, event, channel, level: what makes two messages one."""


class Outbox(Protocol):
    """
    What the sender needs of the store. Every call blocks, perhaps for good, and raises StateError; see
    ``sre.adapters.store``.
    """

    def lease(
        self, *, owner: str, seconds: float, channels: Collection[str], exclude: Collection[int] = ()
    ) -> Sequence[OutboxRow]: ...

    def peek_due(self, *, channels: Collection[str], exclude: Collection[int] = ()) -> Sequence[OutboxRow]: ...

    def mark_sent(self, row_id: int, *, owner: str) -> bool: ...

    def mark_failed(self, row_id: int, *, owner: str, error: str, retry_after_seconds: float) -> bool: ...

    def mark_dead(self, row_id: int, *, owner: str, error: str) -> bool: ...

    def release_leases(self, *, owner: str) -> int: ...

    def strand(self, known_channels: Collection[str]) -> int: ...


class NoOutbox:
    """The outbox of a guard whose store cannot be trusted: nothing waits there, messages live in memory only."""

    def lease(
        self, *, owner: str, seconds: float, channels: Collection[str], exclude: Collection[int] = ()
    ) -> Sequence[OutboxRow]:
        return ()

    def peek_due(self, *, channels: Collection[str], exclude: Collection[int] = ()) -> Sequence[OutboxRow]:
        return ()

    def mark_sent(self, row_id: int, *, owner: str) -> bool:
        return False

    def mark_failed(self, row_id: int, *, owner: str, error: str, retry_after_seconds: float) -> bool:
        return False

    def mark_dead(self, row_id: int, *, owner: str, error: str) -> bool:
        return False

    def release_leases(self, *, owner: str) -> int:
        return 0

    def strand(self, known_channels: Collection[str]) -> int:
        return 0


@dataclass(slots=True)
class ChannelStatistics:
    """Tries of one channel since the guard began."""

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    dead: int = 0
    last_error: str | None = None


@dataclass(slots=True)
class _Unstored:
    """A message that the store could not take: kept here, lost if the guard dies."""

    message: OutboxMessage
    attempts: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class _Outcome:
    """How the delivery of a stored row ended, until the store has written it down."""

    write: Callable[[], bool]
    attempts: int
    not_before: float | None
    """Monotonic time before which the row is not tried again; None: never again."""
    written: bool = False

    def write_once(self) -> None:
        """In the store's thread. A try written twice would count twice, and a write may end after it was given up."""
        if not self.written:
            self.write()
            self.written = True


class Delivery:
    """
    Delivers what the outbox holds until stopped.

    One message at a time per channel, all channels at once: a hanging channel delays no other. What the store cannot
    write down (a full disk, one that hangs) is remembered here meanwhile, so that a message that went out is not sent
    again. A store that does not answer for ``store_seconds`` counts as one that fails.
    """

    def __init__(
        self,
        store: Outbox,
        settings: NotifySettings,
        clock: Clock,
        send: Send,
        *,
        rng: random.Random,
        owner: str | None = None,
        store_seconds: float = CALL_SECONDS,
        render: Render | None = None,
    ) -> None:
        self._store = store
        self._calls = BlockingCalls("outbox", seconds=store_seconds)
        self._settings = settings
        self._channels = {channel.name: channel for channel in settings.channels}
        self._clock = clock
        self._send = send
        self._render = render or Renderer(settings)
        self._rng = rng
        self._owner = owner or f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._wake = asyncio.Event()
        self._stopping = False
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._taken: deque[OutboxRow] = deque()  # leased, not yet begun; a late answer of the store lands here too
        self._unwritten: dict[int, _Outcome] = {}
        self._unstored: dict[Key, _Unstored] = {}
        self._sent_unstored: dict[Key, None] = {}  # in order, so that the oldest can be forgotten
        self._writing = asyncio.Lock()
        self._stranded = False
        self.statistics = {name: ChannelStatistics() for name in self._channels}
        self.store_problem: str | None = None
        """Why the outbox cannot be read or written now; None while it can."""

    def wake(self) -> None:
        """Look into the outbox now: something was committed. To be called in the loop's thread."""
        self._wake.set()

    def send_unstored(self, messages: Sequence[OutboxMessage]) -> None:
        """
        Deliver ``messages`` that the store cannot take. They live in memory: repeated until delivered or given up,
        lost if this process dies.

        One that is queued here or was delivered from here is ignored. Should the store hold its twin (same incident,
        event, channel and level), whichever goes out first is the only one. A message under another incident id is
        another message: the guard pages "not contained" under an id of the outage, and the incident's own page, stored
        once the disk works again, says that it is contained now.
        """
        for message in messages:
            key = _key(message)
            if message.channel in self._channels and key not in self._sent_unstored:
                self._unstored.setdefault(key, _Unstored(message))
        self.wake()

    @property
    def unstored(self) -> tuple[OutboxMessage, ...]:
        """Messages that live in memory only."""
        return tuple(item.message for item in self._unstored.values())

    async def run(self) -> None:
        """Deliver until ``stop`` or cancellation; never raises anything but CancelledError."""
        try:
            while not self._stopping:
                self._wake.clear()
                await self._turn()
                await self._rest()
        finally:
            await self._give_back()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Take no more messages; let those under way finish for ``grace_seconds``; then ``run`` returns."""
        self._stopping = True
        if self._busy:
            await asyncio.wait(self._busy.values(), timeout=grace_seconds)
        self._wake.set()

    async def _turn(self) -> None:
        """Start what memory holds, write down what is known, take what is due and start it. Never raises."""
        self._start_due()  # before the store is touched: it may not answer
        try:
            await self._write_outcomes()
            if not self._stranded:
                lost = await self._calls(lambda: self._store.strand(tuple(self._channels)))
                self._stranded = True
                if lost:
                    log.warning("outbox: %d messages wait for channels that are not in sre.yaml; now dead", lost)
            await self._take()
            self._store_works()
        except StateError as error:
            self._store_fails(error)
            for row in await self._peek():
                self._start(row.channel, self._deliver_row(row))
        except Exception:  # the sender's own cycle boundary: it must outlive any mistake of ours
            log.exception("outbox: the sender failed; it goes on")
        self._start_due()

    def _start_due(self) -> None:
        """Begin delivering what is in memory, as far as channels are free."""
        for item in list(self._unstored.values()):
            if item.message.channel not in self._busy and item.not_before <= self._clock.monotonic():
                self._start(item.message.channel, self._deliver_unstored(item))
        for _ in range(len(self._taken)):
            row = self._taken.popleft()
            if row.channel in self._busy:
                self._taken.append(row)
            else:
                self._start(row.channel, self._deliver_row(row))

    def _start(self, channel: str, work: Coroutine[Any, Any, None]) -> None:
        def done(_: asyncio.Task[None]) -> None:
            self._busy.pop(channel, None)
            self._wake.set()

        task = asyncio.create_task(work)
        self._busy[channel] = task
        task.add_done_callback(done)

    async def _rest(self) -> None:
        """Return when woken, or when it is time to look again."""
        woken = asyncio.ensure_future(self._wake.wait())
        rested = asyncio.ensure_future(self._clock.sleep(POLL_SECONDS))
        try:
            await asyncio.wait((woken, rested), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (woken, rested):
                task.cancel()
            await asyncio.gather(woken, rested, return_exceptions=True)

    def _free(self) -> tuple[str, ...]:
        taken = {row.channel for row in self._taken}
        return tuple(name for name in self._channels if name not in self._busy and name not in taken)

    async def _take(self) -> None:
        """Lease what is due on free channels. Raises StateError; a lease that comes later is not lost."""
        free, known = self._free(), tuple(self._unwritten)
        if not free:
            return
        seconds = max(self._channels[name].timeout_seconds for name in free) + LEASE_MARGIN_SECONDS
        store, owner, taken = self._store, self._owner, self._taken
        await self._calls(lambda: taken.extend(store.lease(owner=owner, seconds=seconds, channels=free, exclude=known)))

    async def _peek(self) -> Sequence[OutboxRow]:
        """The store cannot be written: what it holds can perhaps still be read, and pages must go out."""
        free = self._free()
        waiting = {
            row_id
            for row_id, outcome in self._unwritten.items()
            if outcome.not_before is None or outcome.not_before > self._clock.monotonic()
        }
        try:
            return await self._calls(lambda: self._store.peek_due(channels=free, exclude=tuple(waiting)))
        except StateError:
            return ()

    async def _write_outcomes(self) -> None:
        """Write down how deliveries ended. Raises StateError; what was not written is kept."""
        async with self._writing:
            for row_id, outcome in list(self._unwritten.items()):
                await self._calls(outcome.write_once)
                if self._unwritten.get(row_id) is outcome:
                    del self._unwritten[row_id]

    async def _deliver_row(self, row: OutboxRow) -> None:
        channel = self._channels[row.channel]
        store, owner = self._store, self._owner
        known = self._unwritten.get(row.id)
        attempts = max(row.attempts, known.attempts if known is not None else 0) + 1
        if _key(row) in self._sent_unstored:
            result = DeliveryResult(Verdict.DELIVERED)
        elif row.age_seconds > self._settings.max_age_seconds:
            result = DeliveryResult(Verdict.IMPOSSIBLE, f"not sent: older than {self._settings.max_age_seconds:g} s")
        else:
            result = await self._try(channel, row)
        if result.verdict is Verdict.DELIVERED:
            self._unstored.pop(_key(row), None)  # its twin, should it wait in memory
            outcome = _Outcome(lambda: store.mark_sent(row.id, owner=owner), attempts, None)
        elif result.verdict in GIVEN_UP or attempts >= self._settings.max_attempts:
            self.statistics[row.channel].dead += 1
            log.error("outbox: %s to %s is given up: %s", row.message.incident_id, row.channel, result.detail)
            outcome = _Outcome(lambda: store.mark_dead(row.id, owner=owner, error=result.detail), attempts, None)
        else:
            wait = max(self._backoff(attempts), result.retry_after_seconds or 0.0)
            log.warning(
                "outbox: %s to %s: try %d %s: %s; again in %.0f s",
                row.message.incident_id, row.channel, attempts, result.verdict.value, result.detail, wait,
            )  # fmt: skip
            outcome = _Outcome(
                lambda: store.mark_failed(row.id, owner=owner, error=result.detail, retry_after_seconds=wait),
                attempts,
                self._clock.monotonic() + wait,
            )
        self._unwritten[row.id] = outcome
        try:
            await self._write_outcomes()
        except StateError as error:
            self._store_fails(error)

    async def _deliver_unstored(self, item: _Unstored) -> None:
        channel = self._channels[item.message.channel]
        row = OutboxRow(
            id=0, message=item.message.message, opened=None, channel=channel.name, level=item.message.level,
            state=OutboxState.SENDING, attempts=item.attempts, due_in_seconds=0.0, last_error=None,
            created_wall=self._clock.wall(), age_seconds=0.0, sent_wall=None,
        )  # fmt: skip
        result = await self._try(channel, row)
        item.attempts += 1
        wait = max(self._backoff(item.attempts), result.retry_after_seconds or 0.0)
        item.not_before = self._clock.monotonic() + wait
        key = _key(item.message)
        if result.verdict is Verdict.DELIVERED:
            self._sent_unstored[key] = None
            while len(self._sent_unstored) > REMEMBERED:
                del self._sent_unstored[next(iter(self._sent_unstored))]
            self._unstored.pop(key, None)
        elif result.verdict in GIVEN_UP or item.attempts >= self._settings.max_attempts:
            self.statistics[channel.name].dead += 1
            self._unstored.pop(key, None)
        if result.verdict is not Verdict.DELIVERED:
            log.warning("notify: %s to %s: %s", row.message.incident_id, row.channel, result.detail)

    async def _try(self, channel: ChannelSettings, row: OutboxRow) -> DeliveryResult:
        """Render and send once; count it. Never raises but CancelledError."""
        try:
            result = await self._send(channel, self._render(row.message, channel, row.opened))
        except Exception as error:  # a mistake of ours must not lose the page: it is tried again
            log.exception("notify: sending to %s failed", channel.name)
            result = DeliveryResult(Verdict.FAILED, f"{type(error).__name__}: {error}")
        statistics = self.statistics[channel.name]
        label = "failed" if result.verdict is Verdict.IMPOSSIBLE else result.verdict.value
        statistics.outcomes[label] += 1
        statistics.last_error = None if result.verdict is Verdict.DELIVERED else result.detail
        return result

    def _backoff(self, attempts: int) -> float:
        return backoff_seconds(
            attempts,
            initial_seconds=self._settings.initial_backoff_seconds,
            max_seconds=self._settings.max_backoff_seconds,
            rng=self._rng,
        )

    async def _give_back(self) -> None:
        """End what is under way and put it back; its worker is killed, so the next sender need not wait."""
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._write_outcomes()
            await self._calls(lambda: self._store.release_leases(owner=self._owner))
        except StateError as error:
            self._store_fails(error)

    def _store_works(self) -> None:
        if self.store_problem is not None:
            log.warning("outbox: the store can be written again")
            self.store_problem = None

    def _store_fails(self, error: StateError) -> None:
        if self.store_problem is None:
            log.error("%s; messages are sent from memory meanwhile", error)
        self.store_problem = str(error)


def _key(item: OutboxMessage | OutboxRow) -> Key:
    return item.message.incident_id, item.message.event, item.channel, item.level
