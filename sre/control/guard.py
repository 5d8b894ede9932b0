"""
The guard: observe → decide → apply → record, once a tick.

Order within a tick: the decision is committed (state, journal, outbox: one transaction), then the gateway is made to
match it, then the slower effects run: contexts, restart, canaries. Killed between any two, the next guard reads the
same state and goes on: the gateway is level-triggered, every other effect is repeated until it is recorded as done.
If the state cannot be committed nothing is done at all, and traffic goes on as it is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from sre.actions.ports import Gateway, IncidentRecorder, StateStore, Supervisor
from sre.actions.records import OutboxMessage
from sre.actions.types import GatewayDesired, Message
from sre.breaker.decide import Decision, decide
from sre.breaker.effects import CloseIncident, Effect, RestartEngine, SaveContexts, StartCanary
from sre.breaker.manual import Command, obey, pause
from sre.breaker.memory import Memory
from sre.breaker.policy import Policy
from sre.breaker.records import Records
from sre.breaker.state import GuardState, Pause, StateVersionError, decode, encode
from sre.clock import Clock
from sre.control.guard_effects import Evidence, GuardEffects, Listener, Notebook, tell
from sre.control.observe import Observer
from sre.errors import DependencyError, SreError, StateError
from sre.signals.codec import to_json
from sre.signals.types import Snapshot

log = logging.getLogger("sre.guard")

E = TypeVar("E", bound=Effect)

COMMIT_SECONDS = 5.0
"""A commit slower than this is taken for a stuck disk: the guard stops acting until the disk answers."""

TRACE_SNAPSHOTS = 300
"""Snapshots kept for the incident folder: five minutes of ticks."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the guard can do its work. ``problem`` is a sentence, None when all is well."""

    store_up: bool
    problem: str | None


class Guard:
    """
    The control loop of one stack.

    Args:
        store: None when the state file cannot be trusted; then ``store_problem`` says why, and the guard only watches.
    """

    def __init__(
        self,
        *,
        observer: Observer,
        gateway: Gateway,
        supervisor: Supervisor | None,
        store: StateStore | None,
        incidents: IncidentRecorder,
        policy: Policy,
        clock: Clock,
        boot_id: str,
        evidence: Evidence,
        listener: Listener,
        tick_seconds: float,
        store_problem: str | None = None,
        record: Callable[[str], None] | None = None,
        page_unstored: Callable[[Sequence[OutboxMessage]], None] | None = None,
        wake_delivery: Callable[[], None] | None = None,
        commit_seconds: float = COMMIT_SECONDS,
    ) -> None:
        self._observer, self._gateway = observer, gateway
        self._store, self._policy, self._clock = store, policy, clock
        self._boot_id, self._listener = boot_id, listener
        self._tick_seconds, self._record = tick_seconds, record
        self._page_unstored, self._wake_delivery = page_unstored, wake_delivery
        self._outage_wall: float | None = None
        self._told_unstored: dict[tuple[str, str], OutboxMessage] = {}
        self._commit_seconds = commit_seconds
        self._problem = store_problem
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="guard-store")
        self._commit: asyncio.Future[None] | None = None
        self._turn = asyncio.Lock()
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._notebook = Notebook(clock, listener)
        self._effects = GuardEffects(
            guard=self,
            gateway=gateway,
            supervisor=supervisor,
            incidents=incidents,
            observer=observer,
            evidence=evidence,
            listener=listener,
            notebook=self._notebook,
            clock=clock,
            release=self._release,
        )
        self._apply_failure: DependencyError | StateError | None = None
        self.state = self._load()
        self._stored = self.state
        self._late: tuple[GuardState, int] = (self.state, 0)
        self.memory = Memory()
        self.snapshot: Snapshot | None = None
        self.decision: Decision | None = None
        self.ticked_at: float | None = None
        self.trace: deque[Snapshot] = deque(maxlen=TRACE_SNAPSHOTS)

    # ---- state ------------------------------------------------------------------------------------------------------

    def _load(self) -> GuardState:
        if self._store is None:
            return GuardState()
        try:
            text = self._store.load_state()
            if text is None:
                return GuardState()
            at, wall = self._clock.monotonic(), self._clock.wall()
            state = decode(json.loads(text), boot_id=self._boot_id, at=at, wall=wall)
            return _fitted(state, len(self._policy.half_open.ramp_percents))
        except (StateError, StateVersionError, ValueError) as error:
            # An unreadable state is never taken for an empty one: that would forget an open breaker and spent budgets.
            self._problem, self._store = f"guard state: {error}; the guard watches and does not act", None
            return GuardState()

    @property
    def health(self) -> Health:
        store_up = self._store is not None and self._problem is None
        unapplied = None if self._apply_failure is None else f"not in force at the gateway: {self._apply_failure}"
        return Health(store_up, self._problem or unapplied)

    async def _persist(self, decision: Decision) -> bool:
        """Commit; return whether it is on disk. On failure nothing of the decision counts."""
        store = self._store
        if store is None:
            return False
        if self._commit is not None:
            if self._commit.done():
                self._take_late_commit()
            return False  # the disk holds the last one, or it came through late: decide anew on what is stored now
        text: str | None = None
        if decision.state != self._stored or self._problem is not None:
            # While there is a problem, every tick tries to write: that is how its end is seen.
            at, wall = self._clock.monotonic(), self._clock.wall()
            text = json.dumps(encode(decision.state, boot_id=self._boot_id, at=at, wall=wall))
        notes = tuple(self._notebook.entries)
        journal = (*notes, *decision.journal)
        if text is None and not journal and not decision.outbox and not decision.told:
            return True
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(
            self._executor,
            lambda: store.commit(state=text, journal=journal, outbox=decision.outbox, told=decision.told),
        )
        try:
            await asyncio.wait_for(asyncio.shield(future), self._commit_seconds)
        except TimeoutError:
            self._commit, self._late = future, (decision.state, len(notes))
            future.add_done_callback(lambda f: f.exception())
            self._store_failed(f"no answer from the disk for {self._commit_seconds:g} s")
            return False
        except StateError as error:
            self._store_failed(str(error))
            return False
        self._notebook.entries = self._notebook.entries[len(notes) :]
        self._stored = decision.state
        if self._problem is not None:
            log.warning("state can be written again; the guard acts again")
            self._problem = self._outage_wall = None
            self._end_unstored()
        return True

    def _take_late_commit(self) -> None:
        """A commit that was given up came to an end after all. If it is on disk, it is true: journal and outbox of that
        decision are there, and so its state is ours; else the next guard would see another one than this."""
        commit, self._commit = self._commit, None
        if commit is None or commit.exception() is not None:
            return
        self.state, written = self._late
        self._stored = self.state
        self._notebook.entries = self._notebook.entries[written:]
        log.warning("a write that was given up is on disk after all; the guard goes on from there")

    def _store_failed(self, problem: str) -> None:
        if self._problem is None:
            log.error("%s; the guard stops acting, traffic goes on as it is", problem)
        self._problem = f"{problem}; the guard does not act until this is repaired"
        self._listener.failed("store")

    # ---- loop -------------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until ``stop`` is set. One bad tick is logged and counted; the loop goes on."""
        due = self._clock.monotonic()
        while not stop.is_set():
            try:
                await self.tick()
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("tick failed")
                self._listener.failed("tick")
            due = max(due + self._tick_seconds, self._clock.monotonic())
            await self._wait_until(due, stop)
        await self.close()

    async def _wait_until(self, due: float, stop: asyncio.Event) -> None:
        remaining = due - self._clock.monotonic()
        if remaining > 0:
            try:
                await asyncio.wait_for(stop.wait(), remaining)
            except TimeoutError:
                return

    async def tick(self) -> None:
        """One turn of the loop."""
        started = self._clock.monotonic()
        snapshot = await self._observer.snapshot()
        async with self._turn:
            for update in self._notebook.updates:
                self.state = update(self.state)
            self._notebook.updates.clear()
            self.snapshot = snapshot
            self.trace.append(snapshot)
            decision = decide(self.state, self.memory, snapshot, self._policy)
            adopted = await self._adopt(decision)
        if adopted:
            self._start(decision.effects)
        self.ticked_at = self._clock.monotonic()
        self._listener.ticked(self.ticked_at - started, snapshot, decision, self._observer.finished)
        if self._record is not None:
            self._record(json.dumps(to_json(snapshot)))

    async def _adopt(self, decision: Decision, *, ordered: bool = False) -> bool:
        """Commit, then make the gateway match. False: nothing was stored, so nothing may be done."""
        if not await self._persist(decision):
            # What was seen may be remembered; the state stays, so that the same decision is taken again.
            self._tell_without_store(decision.outbox)
            self.memory = replace(decision.memory, desired=self.memory.desired)
            return False
        self.state, self.memory, self.decision = decision.state, decision.memory, decision
        for entry in decision.journal:
            tell(entry, self._listener)
        for effect in decision.effects:
            if isinstance(effect, SaveContexts) and effect.incident_id not in self._effects.contexts:
                # Taken at the trip itself: a moment later the first of them may have ended.
                self._effects.contexts[effect.incident_id] = list(self._gateway.in_flight())
        if ordered or self.state.pause is None:
            await self._apply(decision.desired)
        if decision.outbox and self._wake_delivery is not None:
            self._wake_delivery()
        return True

    def _tell_without_store(self, messages: Sequence[OutboxMessage]) -> None:
        """
        A person must know even when nothing can be written: once per outage and scope, from memory.

        An end is not told: what is not written down is not done. It is decided again once it can be.
        """
        begins = [m for m in messages if m.message.event != "resolve"]
        if not begins or self._page_unstored is None:
            return
        if self._outage_wall is None:
            self._outage_wall = self._clock.wall()
        problem = self._problem or "guard state cannot be written"
        told = [
            replace(
                m,
                hold_seconds=0.0,
                message=replace(
                    m.message,
                    # The id of an incident that is not stored changes with every tick; this one does not.
                    incident_id=self._unstored_id(m.message),
                    summary=f"{m.message.summary}; NOT contained: {problem}",
                ),
            )
            for m in begins
        ]
        self._told_unstored |= {(m.message.incident_id, m.channel): m for m in told}
        self._page_unstored(told)

    def _end_unstored(self) -> None:
        """What was told from memory ends with the outage: what goes on is told under an incident of its own."""
        ended, self._told_unstored = list(self._told_unstored.values()), {}
        if ended and self._page_unstored is not None:
            self._page_unstored(
                [replace(m, level=0, message=_outage_over(m.message, self._clock.wall())) for m in ended]
            )

    def _unstored_id(self, message: Message) -> str:
        """Once per outage, scope, reason and hour: not once a tick, and not once for ever."""
        what = f"{message.scope}/{message.reason}/{self._clock.wall() // 3600:.0f}"
        return f"unstored-{self._outage_wall or 0:.0f}-{zlib.crc32(what.encode()):08x}"

    async def order(self, command: Command) -> Decision:
        """
        Carry out a person's order now, between ticks; return when the gateway confirmed it.

        Raises:
            CommandError: The order makes no sense.
            StateError: It cannot be written down, so it is not done.
            DependencyError: It is written down, but the gateway did not confirm; the next tick tries again.
        """
        async with self._turn:
            decision = obey(self.state, self.memory, self._now(), self._policy, command)
            if not await self._adopt(decision, ordered=True):
                raise StateError(self._problem or "guard state: the last write has not returned; try again")
            failure = self._apply_failure
        self._start(decision.effects)
        if failure is not None:
            raise failure
        return decision

    async def set_pause(self, order: Pause | None) -> bool:
        """Stop (or, with None, free) the guard's hands. Returns whether anything changed. Raises StateError."""
        async with self._turn:
            snapshot = self._now()
            records = pause(self.state, snapshot, self._policy, order)
            if records is None:
                return False
            decision = self._unchanged(replace(self.state, pause=order), records)
            if not await self._persist(decision):
                raise StateError(self._problem or "guard state: the last write has not returned; try again")
            self.state = decision.state
            return True

    async def tell(self, message: Message) -> None:
        """Page ``message`` on every channel; its twin (same incident and event) is ignored. Raises StateError."""
        async with self._turn:
            records = Records(self._now(), self._policy)
            records.tell(message)
            if not await self._persist(self._unchanged(self.state, records)):
                self._tell_without_store(records.outbox)
                raise StateError(self._problem or "guard state: the last write has not returned; try again")
        if self._wake_delivery is not None:
            self._wake_delivery()

    def _now(self) -> Snapshot:
        """The last snapshot with the present time. Raises StateError before the first tick."""
        if self.snapshot is None:
            raise StateError("guard: just starting, nothing seen yet; try again in a second")
        return replace(self.snapshot, at=self._clock.monotonic(), wall=self._clock.wall())

    def _unchanged(self, state: GuardState, records: Records) -> Decision:
        desired = self.memory.desired or GatewayDesired((), ())
        return Decision(
            state, self.memory, desired, {}, (), tuple(records.journal), tuple(records.outbox), tuple(records.told)
        )

    # ---- effects ----------------------------------------------------------------------------------------------------

    async def _apply(self, desired: GatewayDesired) -> None:
        """Make the gateway match. A failure is journaled once and tried again with the next tick."""
        self._apply_failure = None
        engines = self.snapshot.engines.values() if self.snapshot else ()
        if not any(self._policy.acts_on(e.managed) for e in engines):
            return
        began = self._clock.monotonic()
        try:
            changed = await self._gateway.apply(desired)
        except (DependencyError, StateError) as error:
            self._apply_failure = error
            self._notebook.fail("gateway", "apply", str(error))
            return
        except Exception as error:
            log.exception("gateway: apply failed")
            self._apply_failure = StateError(f"gateway: {type(error).__name__}: {error}")
            self._notebook.fail("gateway", "apply", f"{type(error).__name__}: {error}")
            return
        self._notebook.recovered("gateway", "apply")
        if changed:
            milliseconds = round((self._clock.monotonic() - began) * 1000, 1)
            for pool in desired.pools:
                self._listener.acted("refuse" if pool.reject_percent else "admit", "applied")
            reject = {p.pool: p.reject_percent for p in desired.pools}
            self._notebook.note(
                "applied", "gateway", "confirmed", "gateway", {"milliseconds": milliseconds, "reject": reject}
            )

    def _start(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case StartCanary():
                    self._spawn(("canary", effect.engine), self._effects.canary, effect)
                case SaveContexts():
                    self._spawn(("contexts", effect.incident_id), self._effects.save_contexts, effect)
                case RestartEngine():
                    self._spawn(("restart", effect.engine), self._effects.restart, effect)
                case CloseIncident():
                    self._spawn(("close", effect.incident_id), self._effects.close_incident, effect)

    def _spawn(self, key: object, work: Callable[[E], Awaitable[None]], effect: E) -> None:
        """Run ``work`` on ``effect`` unless the same is under way."""
        if key in self._tasks:
            return
        task = asyncio.ensure_future(self._guarded(work, effect))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _guarded(self, work: Callable[[E], Awaitable[None]], effect: E) -> None:
        try:
            await work(effect)
        except SreError as error:
            log.error("%s", error)
            self._listener.failed("effect")
        except Exception:
            log.exception("effect failed")
            self._listener.failed("effect")

    async def _release(self, identifier: str) -> None:
        store = self._store
        if store is None:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, lambda: store.release_held(identifier))
        except StateError as error:
            # Held messages release themselves when their hold ends.
            log.error("%s", error)
        if self._wake_delivery is not None:
            self._wake_delivery()

    async def settled(self) -> None:
        """Return when no effect is under way. Canaries and restarts end by their own deadlines."""
        while self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def written(self) -> None:
        """Return when no write is outstanding, however long the disk takes."""
        if self._commit is not None:
            await asyncio.wait([self._commit])

    async def close(self) -> None:
        """End what is under way. The store is its opener's to close."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._observer.close()
        self._executor.shutdown(wait=self._commit is None, cancel_futures=True)


def _outage_over(begun: Message, wall: float) -> Message:
    summary = "the guard's state can be written again; what goes on is told anew"
    return replace(begun, event="resolve", severity="info", summary=summary, at_wall=wall, facts=())


def _fitted(state: GuardState, ramp_steps: int) -> GuardState:
    """``state`` under a configuration with fewer ramp steps than the one it was written under."""
    fitted = {
        name: b if b.ramp_index is None else replace(b, ramp_index=min(b.ramp_index, ramp_steps - 1))
        for name, b in state.breakers.items()
    }
    return replace(state, breakers=fitted)
