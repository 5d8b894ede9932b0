"""The sender: takes due messages out of the outbox and delivers them, each channel at its own pace."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from sre.actions.records import OutboxMessage, OutboxRow, OutboxState
from sre.clock import Clock
from sre.control.blocking import CALL_SECONDS, BlockingCalls
from sre.control.delivery_channels import Channels
from sre.control.delivery_duties import Duties
from sre.control.delivery_early import EarlyTries
from sre.control.delivery_marks import Marks
from sre.control.delivery_memory import Outcomes, Unsaved
from sre.control.delivery_records import Unstored, key_of
from sre.control.delivery_waits import Waits
from sre.control.outbox_port import NoOutbox as NoOutbox
from sre.control.outbox_port import Outbox as Outbox
from sre.errors import StateError
from sre.notify.delivery import DeliveryResult, Send, Verdict
from sre.notify.policy import (
    RANKS,
    Because,
    Dispatch,
    Follow,
    Next,
    is_page,
    is_urgent,
    max_age_of,
    policy_of,
)
from sre.notify.policy import too_old as why_too_old
from sre.notify.renderer import Render, Renderer
from sre.settings.notify import NotifySettings

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often the outbox is looked into when nobody wakes the sender: back-offs end, operators retry, incidents wait."""

LEASE_MARGIN_SECONDS = 30.0
"""A lease lasts the channel's deadline and this: starting and ending a worker on a busy machine."""


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
        count_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._calls = BlockingCalls("outbox", seconds=store_seconds)
        self._settings = settings
        self._policy = policy_of(settings)
        self._channels = Channels(settings.channels, self._policy, clock, send, render or Renderer(settings))
        self._clock = clock
        self._waits = Waits(settings, self._policy, clock, rng)
        self._owner = owner or f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._wake = asyncio.Event()
        self._stopping = False
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._taken: deque[OutboxRow] = deque()  # leased, not yet begun; a late answer of the store lands here too
        self._outcomes = Outcomes(self._calls)
        self._unsaved = Unsaved(clock)
        self._early = EarlyTries(store, self._calls, self._channels, self._unsaved, self._policy, clock)
        self._duties = Duties(settings.channels, clock, tell=self.send_unstored, count=count_failure)
        self._stranded = False
        self._escalated_at = -POLL_SECONDS
        self._unmarked: dict[str, deque[float]] = {}  # by channel: when what the store could not mark was begun
        self.statistics = self._channels.statistics
        self._marks = Marks(store, self._owner, self._policy, clock, self.statistics)
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
            if message.channel in self._channels:
                self._unsaved.add(message)
        self.wake()

    @property
    def unstored(self) -> tuple[OutboxMessage, ...]:
        """Messages that live in memory only."""
        return tuple(item.message for item in self._unsaved.waiting)

    async def run(self) -> None:
        """Deliver until ``stop`` or cancellation; never raises anything but CancelledError."""
        try:
            while not self._stopping:
                self._wake.clear()
                await self._guarded_turn()
                await self._rest()
        finally:
            await self._give_back()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Take no more messages; let those under way finish for ``grace_seconds``; then ``run`` returns."""
        self._stopping = True
        if self._busy:
            await asyncio.wait(self._busy.values(), timeout=grace_seconds)
        self._wake.set()

    async def _guarded_turn(self) -> None:
        """Never raises but CancelledError: a sender that ends would be missed by nobody until its pages are."""
        try:
            await self._turn()
        except Exception:  # around the guards of the duties: a mistake in those themselves
            if self._duties.broke():
                log.exception("outbox: a turn failed; the sender goes on")
        else:
            self._duties.held()

    async def _turn(self) -> None:
        """
        Start what memory holds, write down what is known, take what is due and start it.

        Whatever else fails, messages are taken. Where they cannot be, or where it cannot be written how they ended,
        they are read, and sent without a lease.
        """
        do = self._duties.do
        await do("starting", self._start_due)  # before the store is touched: it may not answer
        unwritten = await do("outcomes", self._outcomes.write)
        if not self._stranded and unwritten is None:
            await do("removed channels", self._strand)
        await do("escalation", self._escalate)
        for channel, fallback in self._policy.fallbacks.items():
            await do(f"fallback of {channel}", functools.partial(self._divert, channel, fallback))
        untaken = await do("lease", functools.partial(self._take, one_by_one=unwritten is None))
        problem = untaken or unwritten
        if problem is None:
            self._store_works()
        else:
            self._store_fails(problem)
            await do("reading", self._peek)
        await do("starting what was taken", self._start_due)
        self._duties.settle(store_works=problem is None)

    async def _strand(self) -> None:
        """What waits for channels that are not configured any more. Raises StateError."""
        heirs = {severity: [c.name for c in self._settings.channels if severity in c.severities] for severity in RANKS}
        lost = await self._calls(lambda: self._store.strand(tuple(self._channels), heirs))
        self._stranded = True
        if lost:
            log.warning(
                "outbox: %d messages for channels not in sre.yaml are dead; what nobody was told others hear", lost
            )

    async def _start_due(self) -> None:
        """Begin delivering what is in memory, as far as channels are free."""
        begun: set[tuple[str, str]] = set()  # of one incident on one channel the end waits for its beginning
        for item in self._unsaved.waiting:
            name = item.message.message.incident_id, item.message.channel
            due = name not in begun and item.not_before <= self._clock.monotonic()
            begun.add(name)
            if due and item.message.channel not in self._busy:
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
        return tuple(
            name
            for name in self._channels
            if name not in self._busy and name not in taken and not self._channels.paused(name)
        )

    async def _escalate(self) -> None:
        """Queue what is told because nobody acknowledged an incident. Raises StateError."""
        escalation, now = self._policy.escalation, self._clock.monotonic()
        if escalation is None or now - self._escalated_at < POLL_SECONDS:
            return
        self._escalated_at = now
        count = await self._calls(lambda: self._store.escalate(escalation))
        if count:
            log.warning("outbox: %d incidents were not acknowledged; more people are told", count)

    async def _divert(self, channel: str, fallback: str) -> None:
        """
        What waits for a channel that is down, or that wants to be left alone for long, goes to its fallback, too, also
        what came later. Raises StateError.
        """
        reason = self._channels.unavailable(channel)
        if reason is not None:
            await self._calls(functools.partial(self._store.divert, channel, fallback, reason))

    async def _take(self, *, one_by_one: bool) -> None:
        """
        Lease what is due on free channels. Raises StateError; a lease that comes later is not lost.

        Args:
            one_by_one: Where it fails for all of them together, try each by itself: one of them may be the reason.
        """
        free = self._free()
        try:
            await self._lease(free)
        except StateError as error:
            problem = error
            for name in free if one_by_one and len(free) > 1 else ():
                try:
                    await self._lease([name])
                except StateError as again:
                    problem = again
            raise problem from None

    async def _lease(self, free: Sequence[str]) -> None:
        known = tuple(self._outcomes)
        if not free:
            return
        seconds = max(self._channels[name].timeout_seconds for name in free) + LEASE_MARGIN_SECONDS
        store, owner, taken, dispatch = self._store, self._owner, self._taken, self._policy.dispatch
        await self._calls(
            lambda: taken.extend(
                store.lease(owner=owner, seconds=seconds, channels=free, exclude=known, dispatch=dispatch)
            )
        )

    async def _peek(self) -> None:
        """
        The store cannot be written: what it holds can perhaps still be read, and pages must go out. Raises StateError.
        """
        now, storm = self._clock.monotonic(), self._policy.dispatch.storm
        for begun in self._unmarked.values():
            while begun and begun[0] <= now - storm.window_seconds:
                begun.popleft()
        # No digest can be made of what cannot be marked: what is over the limit waits for the disk.
        free = tuple(c for c in self._free() if len(self._unmarked.get(c, ())) < storm.max_messages)
        hours = Dispatch(quiet_hours=self._policy.dispatch.quiet_hours)
        waiting = self._outcomes.not_due(now)
        rows = await self._calls(lambda: self._store.peek_due(channels=free, exclude=waiting, dispatch=hours))
        for row in rows:
            if row.id not in self._outcomes:
                self._unmarked.setdefault(row.channel, deque()).append(now)
            self._start(row.channel, self._deliver_row(row))

    async def _deliver_row(self, row: OutboxRow) -> None:
        attempts = max(row.attempts, self._outcomes.attempts(row.id)) + 1
        unknown = max(row.unknown_outcomes, self._outcomes.unknown_outcomes(row.id))
        follow, began = None, self._clock.monotonic()
        try:
            result, too_old = await self._try(row)
            unknown += self._channels.may_have_arrived(row.channel, result)
            follow = self._channels.follow(
                row.channel, result, attempts, page=is_page(row), urgent=is_urgent(row), unknown_outcomes=unknown,
                too_old=too_old,
            )  # fmt: skip
            wait = self._waits.after(attempts, result, follow, row.message, row.age_seconds, began)
            outcome = self._marks.after(row, result, follow, attempts=attempts, unknown=unknown, wait=wait)
        except Exception as error:  # a mistake of ours: without an outcome its lease would hold it, then it were due
            log.exception("outbox: delivering message %d to %s failed; it is repeated", row.id, row.channel)
            self._duties.count_mistake()
            unknown += 1
            wait = self._waits.mistaken(attempts, unknown, row.message, row.age_seconds, began)
            outcome = self._marks.mistaken(row, error, attempts=attempts, unknown=unknown, wait=wait)
        if follow is not None and follow.next is Next.SENT:
            self._unsaved.forget(key_of(row))  # its twin, should it wait in memory
        self._outcomes.add(row.id, outcome)
        try:
            await self._outcomes.write()
            if follow is not None:
                await self._early.after(row.channel, row.id, follow)
        except StateError as error:
            self._store_fails(error)
            # The store cannot queue it for the fallback now. Should it do so later, its row is known as delivered.
            if follow is not None:
                self._fall_back(follow, OutboxMessage(row.message, row.channel, row.level))

    async def _try(self, row: OutboxRow) -> tuple[DeliveryResult, bool]:
        """Return how a try ended, and whether there was none because it is too old."""
        if row.id and self._unsaved.was_sent(key_of(row)):
            return DeliveryResult(Verdict.DELIVERED), False
        max_age = max_age_of(row.message, self._policy)
        if row.age_seconds > max_age:
            return _too_old(max_age), True
        return await self._channels.attempt(row), False

    def _fall_back(self, follow: Follow, message: OutboxMessage) -> None:
        """Tell the fallback from memory."""
        fallback = self._policy.fallbacks.get(message.channel) if follow.fallback else None
        if fallback is not None:
            self.send_unstored([replace(message, channel=fallback)])

    async def _deliver_unstored(self, item: Unstored) -> None:
        item.attempts += 1
        try:
            await self._try_unstored(item)
        except Exception:  # a mistake of ours: it is repeated, and in no hot loop
            told = item.message
            log.exception("outbox: delivering %s to %s failed; it is repeated", told.message.incident_id, told.channel)
            self._duties.count_mistake()
            item.unknown_outcomes += 1
            wait = self._waits.mistaken(item.attempts, item.unknown_outcomes, told.message, 0.0, item.since)
            item.not_before = self._clock.monotonic() + wait
            if item.attempts >= self._policy.fallback_after_attempts:
                self._fall_back(Follow(Next.REPEAT, Because.FAILS_AGAIN, fallback=True), told)

    async def _try_unstored(self, item: Unstored) -> None:
        channel = self._channels[item.message.channel]
        row = OutboxRow(
            id=0, message=item.message.message, opened=None, channel=channel.name, level=item.message.level,
            state=OutboxState.SENDING, attempts=item.attempts, due_in_seconds=0.0, last_error=None,
            created_wall=self._clock.wall(), age_seconds=self._clock.monotonic() - item.since, sent_wall=None,
            severity=item.message.message.severity,
        )  # fmt: skip
        result, too_old = await self._try(row)
        item.unknown_outcomes += self._channels.may_have_arrived(row.channel, result)
        key = key_of(item.message)
        follow = self._channels.follow(
            row.channel, result, item.attempts, page=is_page(row), urgent=is_urgent(row),
            unknown_outcomes=item.unknown_outcomes, too_old=too_old,
        )  # fmt: skip
        wait = self._waits.after(item.attempts, result, follow, row.message, 0.0, item.since)
        item.not_before = self._clock.monotonic() + wait
        if follow.next is Next.SENT:
            self._unsaved.sent(key)
        else:
            log.warning("notify: %s to %s: %s", row.message.incident_id, row.channel, result.detail)
        if follow.next is not Next.REPEAT:
            self.statistics[channel.name].dead += follow.next is Next.GIVE_UP
            self._unsaved.forget(key)
        self._fall_back(follow, item.message)
        try:
            await self._early.after(channel.name, key, follow)
        except StateError as error:
            self._store_fails(error)

    async def _give_back(self) -> None:
        """End what is under way and put it back; its worker is killed, so the next sender need not wait."""
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._outcomes.write()
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


def _too_old(max_age_seconds: float) -> DeliveryResult:
    return DeliveryResult(Verdict.IMPOSSIBLE, why_too_old(max_age_seconds))
