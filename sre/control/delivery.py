"""The sender: takes due messages out of the outbox and delivers them, each channel at its own pace."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import uuid
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from sre.actions.records import OutboxMessage, OutboxRow, OutboxState
from sre.clock import Clock
from sre.control.blocking import CALL_SECONDS, BlockingCalls
from sre.control.delivery_records import ChannelStatistics, Key, Outcome, Unstored, key_of
from sre.control.outbox_port import NoOutbox as NoOutbox
from sre.control.outbox_port import Outbox as Outbox
from sre.errors import StateError
from sre.notify.delivery import Cause, DeliveryResult, Send, Verdict, backoff_seconds
from sre.notify.policy import Dispatch, Follow, Next, after_try, is_down, policy_of
from sre.notify.policy import too_old as why_too_old
from sre.notify.renderer import Render, Renderer
from sre.settings.notify import ChannelSettings, NotifySettings

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often the outbox is looked into when nobody wakes the sender: back-offs end, operators retry, incidents wait."""

LEASE_MARGIN_SECONDS = 30.0
"""A lease lasts the channel's deadline and this: starting and ending a worker on a busy machine."""

REMEMBERED = 10_000
"""Messages delivered from memory that are known not to be sent again."""

PATIENCE_SECONDS = 30.0
"""A provider that wants to be left alone for longer does not hold up what waits for it."""

MOST_UNSTORED = 1_000
"""Messages that live in memory only. More of them say nothing new, and memory is to stay bounded."""


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
        self._policy = policy_of(settings)
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
        self._unwritten: dict[int, Outcome] = {}
        self._unstored: dict[Key, Unstored] = {}
        self._sent_unstored: dict[Key, None] = {}  # in order, so that the oldest can be forgotten
        self._writing = asyncio.Lock()
        self._stranded = False
        self._escalated_at = -POLL_SECONDS
        self._failures: dict[str, int] = {}  # in a row, by channel
        self._paused: dict[str, float] = {}  # by channel: until when its provider wants to be left alone
        self._unmarked: dict[str, deque[float]] = {}  # by channel: when what the store could not mark was begun
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
            key = key_of(message)
            if message.channel in self._channels and key not in self._sent_unstored:
                self._remember(key, message)
        self.wake()

    def _remember(self, key: Key, message: OutboxMessage) -> None:
        if key not in self._unstored and len(self._unstored) >= MOST_UNSTORED:
            log.error("outbox: %s to %s is lost: %d wait in memory", key[0], message.channel, MOST_UNSTORED)
            return
        self._unstored.setdefault(key, Unstored(message))

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
            await self._escalate()
            await self._divert()
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
        taken, now = {row.channel for row in self._taken}, self._clock.monotonic()
        return tuple(
            name
            for name in self._channels
            if name not in self._busy and name not in taken and self._paused.get(name, now) <= now
        )

    async def _escalate(self) -> None:
        """Queue what is told because nobody acknowledged an incident. Raises StateError."""
        escalation, now = self._policy.escalation, self._clock.monotonic()
        if escalation is None or now - self._escalated_at < POLL_SECONDS:
            return
        count = await self._calls(lambda: self._store.escalate(escalation))
        self._escalated_at = now
        if count:
            log.warning("outbox: %d incidents were not acknowledged; more people are told", count)

    async def _divert(self) -> None:
        """
        What waits for a channel that is down, or that wants to be left alone for long, goes to its fallback, too, also
        what came later. Raises StateError.
        """
        soon = self._clock.monotonic() + PATIENCE_SECONDS
        for channel, fallback in self._policy.fallbacks.items():
            if is_down(self._failures.get(channel, 0), self._policy) or self._paused.get(channel, soon) > soon:
                reason = self.statistics[channel].last_error or "no answer"
                await self._calls(functools.partial(self._store.divert, channel, fallback, reason))

    async def _take(self) -> None:
        """Lease what is due on free channels. Raises StateError; a lease that comes later is not lost."""
        free, known = self._free(), tuple(self._unwritten)
        if not free:
            return
        seconds = max(self._channels[name].timeout_seconds for name in free) + LEASE_MARGIN_SECONDS
        store, owner, taken, dispatch = self._store, self._owner, self._taken, self._policy.dispatch
        await self._calls(
            lambda: taken.extend(
                store.lease(owner=owner, seconds=seconds, channels=free, exclude=known, dispatch=dispatch)
            )
        )

    async def _peek(self) -> Sequence[OutboxRow]:
        """The store cannot be written: what it holds can perhaps still be read, and pages must go out."""
        now, storm = self._clock.monotonic(), self._policy.dispatch.storm
        for begun in self._unmarked.values():
            while begun and begun[0] <= now - storm.window_seconds:
                begun.popleft()
        # No digest can be made of what cannot be marked: what is over the limit waits for the disk.
        free = tuple(c for c in self._free() if len(self._unmarked.get(c, ())) < storm.max_messages)
        hours = Dispatch(quiet_hours=self._policy.dispatch.quiet_hours)
        waiting = tuple(
            row_id for row_id, outcome in self._unwritten.items()
            if outcome.not_before is None or outcome.not_before > now
        )  # fmt: skip
        try:
            rows = await self._calls(lambda: self._store.peek_due(channels=free, exclude=waiting, dispatch=hours))
        except StateError:
            return ()
        for row in rows:
            if row.id not in self._unwritten:
                self._unmarked.setdefault(row.channel, deque()).append(now)
        return rows

    async def _write_outcomes(self) -> None:
        """Write down how deliveries ended. Raises StateError; what was not written is kept."""
        async with self._writing:
            for row_id, outcome in list(self._unwritten.items()):
                await self._calls(outcome.write_once)
                if self._unwritten.get(row_id) is outcome:
                    del self._unwritten[row_id]

    async def _deliver_row(self, row: OutboxRow) -> None:
        channel = self._channels[row.channel]
        known = self._unwritten.get(row.id)
        attempts = max(row.attempts, known.attempts if known is not None else 0) + 1
        too_old = row.age_seconds > self._settings.max_age_seconds
        if key_of(row) in self._sent_unstored:
            result, too_old = DeliveryResult(Verdict.DELIVERED), False
        elif too_old:
            result = DeliveryResult(Verdict.IMPOSSIBLE, why_too_old(self._settings.max_age_seconds))
        else:
            result = await self._try(channel, row)
        follow = self._follow(channel.name, result, attempts, too_old=too_old)
        if follow.next is Next.SENT:
            self._unstored.pop(key_of(row), None)  # its twin, should it wait in memory
        self._unwritten[row.id] = self._outcome(row, result, follow, attempts)
        try:
            await self._write_outcomes()
        except StateError as error:
            self._store_fails(error)
            # The store cannot queue it for the fallback now. Should it do so later, its row is known as delivered.
            self._fall_back(follow, OutboxMessage(row.message, row.channel, row.level))

    def _fall_back(self, follow: Follow, message: OutboxMessage) -> None:
        """Tell the fallback from memory."""
        fallback = self._policy.fallbacks.get(message.channel) if follow.fallback else None
        if fallback is not None:
            self.send_unstored([replace(message, channel=fallback)])

    def _follow(self, channel: str, result: DeliveryResult, attempts: int, *, too_old: bool = False) -> Follow:
        """What follows a try; remembers how the channel does."""
        if result.verdict is Verdict.DELIVERED:
            self._failures[channel] = 0
        elif not too_old:
            self._failures[channel] = self._failures.get(channel, 0) + 1
        wait = result.retry_after_seconds
        if result.cause is Cause.THROTTLED and wait is not None:
            # What waits behind it would be refused, too.
            self._paused[channel] = self._clock.monotonic() + min(wait, self._policy.max_backoff_seconds)
        return after_try(
            result.verdict, self._policy, attempts=attempts, failures_in_row=self._failures.get(channel, 0),
            retry_after_seconds=wait, too_old=too_old,
        )  # fmt: skip

    def _outcome(self, row: OutboxRow, result: DeliveryResult, follow: Follow, attempts: int) -> Outcome:
        """How the store is told."""
        store, owner, detail = self._store, self._owner, result.detail
        fallback = self._policy.fallbacks.get(row.channel) if follow.fallback else None
        if follow.next is Next.SENT:
            return Outcome(lambda: store.mark_sent(row.id, owner=owner), attempts, None)
        also = f"; {fallback} is told" if fallback is not None and not row.fell_back else ""
        if follow.next is Next.GIVE_UP:
            self.statistics[row.channel].dead += 1
            log.error(
                "outbox: %s to %s is given up (%s): %s%s",
                row.message.incident_id, row.channel, follow.because.value, detail, also,
            )  # fmt: skip
            return Outcome(
                lambda: store.mark_dead(row.id, owner=owner, error=detail, fallback=fallback),
                attempts,
                None,
            )
        wait = max(self._backoff(attempts), result.retry_after_seconds or 0.0)
        log.warning(
            "outbox: %s to %s: try %d %s (%s): %s; again in %.0f s%s",
            row.message.incident_id, row.channel, attempts, result.verdict.value, follow.because.value, detail, wait,
            also,
        )  # fmt: skip
        return Outcome(
            lambda: store.mark_failed(
                row.id, owner=owner, error=detail, retry_after_seconds=wait, fallback=fallback
            ),
            attempts,
            self._clock.monotonic() + wait,
        )  # fmt: skip

    async def _deliver_unstored(self, item: Unstored) -> None:
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
        key, follow = key_of(item.message), self._follow(channel.name, result, item.attempts)
        if follow.next is Next.SENT:
            self._sent_unstored[key] = None
            while len(self._sent_unstored) > REMEMBERED:
                del self._sent_unstored[next(iter(self._sent_unstored))]
        else:
            log.warning("notify: %s to %s: %s", row.message.incident_id, row.channel, result.detail)
        if follow.next is not Next.REPEAT:
            self.statistics[channel.name].dead += follow.next is Next.GIVE_UP
            self._unstored.pop(key, None)
        self._fall_back(follow, item.message)

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
