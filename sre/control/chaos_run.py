"""
One fault, from request to proven revert.

``refuse? → lock → recover → journal → watchdog READY → target still the same? → inject → effect seen? → hold → revert →
revert seen? → close → steady?``

Every wait beats the watchdog's lease from its own loop, and ends early when a person, a stop file or the watchdog says
so. Whatever happens after the journal was written, this coroutine does not end before the revert was tried.
"""

from __future__ import annotations

import asyncio
import enum
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sre.chaos.admission import Cancelled, Request
from sre.chaos.plan import Plan
from sre.chaos.ports import Evidence, Target, World
from sre.chaos.report import (
    STAMP_EFFECTIVE,
    STAMP_REQUESTED,
    STAMP_REVERTED,
    Ending,
    Report,
    Stamp,
    UndoneStep,
    Verdict,
    judge,
)
from sre.clock import Clock
from sre.control.chaos_start import Places, Policy, chaos_lock, prepare, recover_or_refuse
from sre.control.chaos_status import RunState, survey
from sre.errors import ConfigError, LeftChanged, StateError
from sre.watchdog.journal import LEVER_NAME, SCHEMA, STOP_NAME, Journal, JournalUnwritable
from sre.watchdog.journal import Plan as GuardedPlan
from sre.watchdog.lease import Bond, Lease
from sre.watchdog.processes import boot_id, own_identity
from sre.watchdog.revert import Outcome, revert

T = TypeVar("T")

LOOK_SECONDS = 0.2
"""Between two looks at the target during the hold."""


class Point(enum.Enum):
    """What a run has just done: for progress displays, and for tests that die there."""

    JOURNALED = "journaled"
    WATCHDOG_STARTED = "watchdog_started"
    ARMED = "armed"
    INJECTING = "injecting"  # announced in the journal, not done yet
    INJECTED = "injected"  # done, not yet in the journal
    RECORDED = "recorded"
    EFFECTIVE = "effective"
    HOLD_OVER = "hold_over"
    REVERTED = "reverted"
    RELEASED = "released"  # the watchdog is gone


def _silent(_: Any) -> None:
    return None


async def run_fault(
    request: Request,
    world: World,
    places: Places,
    *,
    clock: Clock,
    policy: Policy | None = None,
    on_stamp: Callable[[Stamp], None] = _silent,
    on_point: Callable[[Point], None] = _silent,
    abort: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
) -> Report:
    """
    Inject one fault, hold it, revert it; return the report.

    Args:
        on_stamp: Called with t0 (requested), t1 (effective, by independent evidence), t9 (revert proven; not for
            one-way faults).
        on_point: Called after each step of the run.
        abort: Set it to end the fault at once: revert, then return with ABORTED.
        hurry: Set it to skip the waits that come after the revert; the revert itself is never skipped.

    Raises:
        Cancelled: Refused, or not possible; nothing of ours is left.
        StateError: The journal cannot be written; nothing was injected.
        LeftChanged: An earlier run is not proven reverted, or a cancelled run could not be.
        ConfigError, DependencyError: Before anything was done.
    """
    policy = policy or Policy()
    requested = Stamp(STAMP_REQUESTED, clock.monotonic(), clock.wall(), "injector")
    on_stamp(requested)
    value = _value_of(request)
    with chaos_lock(places.folder):
        await asyncio.to_thread(recover_or_refuse, places.folder)
        target, plan = await prepare(request, world, places, policy, value, clock)
        obstacle = await world.obstacle(request.fault, target, plan)
        if obstacle is not None:
            raise Cancelled(obstacle)
        if abort is not None and abort.is_set():
            raise Cancelled("stopped before anything was injected")
        run = _Run(request, world, plan, target, clock, policy, abort, hurry, on_stamp, on_point, places.folder)
        return await run.execute([requested])


async def rehearse(request: Request, world: World, places: Places, policy: Policy, clock: Clock) -> Plan:
    """
    Return what ``run_fault`` would do now; changes nothing.

    Raises:
        Cancelled: It would refuse.
        ConfigError, DependencyError: As there.
    """
    value = _value_of(request)
    before = survey(places.folder)
    for run in before:
        if run.state is RunState.ACTIVE:
            raise Cancelled(
                f"chaos run {run.run_id}: in force, and one at a time is the limit; end it with sre chaos revert"
            )
    target, plan = await prepare(request, world, places, policy, value, clock)
    # What an earlier run left is reverted before the world is looked at.
    if not any(run.state.left for run in before) and (obstacle := await world.obstacle(request.fault, target, plan)):
        raise Cancelled(obstacle)
    return plan


def _value_of(request: Request) -> float | None:
    try:
        return request.checked_value()
    except ValueError as error:
        raise ConfigError([f"sre chaos: --value: {error}"]) from error


class _Run:
    """One run that holds the lock."""

    def __init__(
        self,
        request: Request,
        world: World,
        plan: Plan,
        target: Target,
        clock: Clock,
        policy: Policy,
        abort: asyncio.Event | None,
        hurry: asyncio.Event | None,
        on_stamp: Callable[[Stamp], None],
        on_point: Callable[[Point], None],
        folder: Path,
    ) -> None:
        self.request, self.world, self.plan, self.target = request, world, plan, target
        self.clock, self.policy = clock, policy
        self.abort, self.hurry = abort, hurry
        self.on_stamp, self.on_point = on_stamp, on_point
        self.stop_files = (folder / plan.run_id / STOP_NAME, folder / LEVER_NAME)
        self.folder = folder
        self.lease: Lease | None = None
        self.guarded: GuardedPlan | None = None
        """The plan as the watchdog reads it; kept, so that a removed journal does not keep us from reverting."""
        self.problem: str | None = None
        self.effect: Evidence | None = None
        self.after: Evidence | None = None
        self.stamps: list[Stamp] = []

    async def execute(self, stamps: list[Stamp]) -> Report:
        self.stamps = stamps
        journal = self._journal()
        try:
            ending = await self._until_the_end(journal)
            outcome = await self._revert(journal, ending)
        except BaseException as error:
            # Cancelled, or an error of our own: the revert is still to be done, and at once.
            outcome = self._revert_now(journal, "error")
            self._release(outcome)
            if not outcome.clean:
                raise LeftChanged(self.problem or "") from error
            if isinstance(error, JournalUnwritable):
                raise StateError(f"{error}; the fault was reverted") from error
            raise
        self._release(outcome)
        self.on_point(Point.RELEASED)
        if outcome.clean and not self.request.fault.one_way:
            self._stamp(STAMP_REVERTED, self.clock.monotonic(), outcome.by, "")
        if ending in (Ending.INJECT_FAILED, Ending.TARGET_CHANGED):
            if not outcome.clean:
                raise LeftChanged(self.problem or "")
            raise Cancelled(self.problem or ending.value)
        if outcome.clean and ending is Ending.HELD:
            await self._look_after()
        return self._report(ending, outcome, journal)

    def _revert_now(self, journal: Journal, cause: str) -> Outcome:
        return revert(journal, by="injector", cause=cause, plan=self.guarded)

    def _release(self, outcome: Outcome) -> None:
        """Let the watchdog go: nothing of ours is left, or it cannot do more than we did."""
        if self.lease is not None:
            self.lease.finish()
        if not outcome.clean:
            self.problem = _describe_dirty(self.plan.run_id, outcome)

    def _journal(self) -> Journal:
        plan = self.plan
        injector = own_identity()
        try:
            journal = Journal.create(self.folder, plan.run_id)
            journal.append(
                "planned",
                schema=SCHEMA,
                run_id=plan.run_id,
                fault=plan.fault,
                engine=plan.engine,
                value=plan.value,
                hold_seconds=plan.hold_seconds,
                boot_id=boot_id(),
                lease_seconds=plan.lease_seconds,
                ttl_seconds=plan.ttl_seconds,
                stop_files=[str(path) for path in self.stop_files],
                injector={"pid": injector.pid, "start_ticks": injector.start_ticks},
                steps=[step.record() for step in plan.steps],
            )
            self.guarded = journal.read().plan
        except JournalUnwritable as error:
            shutil.rmtree(self.folder / plan.run_id, ignore_errors=True)
            raise StateError(f"{error}; without a journal nothing is injected; make room or give permission") from error
        self.on_point(Point.JOURNALED)
        return journal

    async def _until_the_end(self, journal: Journal) -> Ending:
        """Everything from the watchdog's start to the moment at which the revert is due."""
        refused = await self._arm(journal)
        if refused is not None:
            return refused
        placed = self._inject(journal)
        if placed is not None:
            return placed
        seen = await self._see_the_effect(journal)
        if seen is not None:
            return seen
        ending = await self._hold()
        self.on_point(Point.HOLD_OVER)
        return ending

    async def _arm(self, journal: Journal) -> Ending | None:
        """Start the watchdog and look at the target again; None when all is ready."""
        self.lease = Lease.start(journal, self.plan.lease_seconds)
        self.on_point(Point.WATCHDOG_STARTED)
        give_up = self.clock.monotonic() + self.policy.ready_timeout_seconds
        while (bond := self.lease.listen()) is Bond.STARTING and self.clock.monotonic() < give_up:
            await self.clock.sleep(0.01)
        if bond is not Bond.HELD:
            log = journal.path.with_name("watchdog.log")
            self.problem = f"chaos watchdog: was not ready in time ({bond.value}); nothing was injected; log: {log}"
            return Ending.INJECT_FAILED
        watchdog = self.lease.watchdog
        journal.append("armed", watchdog={"pid": watchdog.pid, "start_ticks": watchdog.start_ticks})
        self.on_point(Point.ARMED)
        now = await self._while_beating(self.world.target(self.plan.engine), self.policy.ready_timeout_seconds)
        if isinstance(now, Ending):
            return now
        if now is None or (now.identity, now.cores) != (self.target.identity, self.target.cores):
            self.problem = (
                f"engine {self.plan.engine}: was replaced while the fault was prepared; nothing was injected; try again"
            )
            return Ending.TARGET_CHANGED
        return None

    def _inject(self, journal: Journal) -> Ending | None:
        """Do the deeds, each announced in the journal; None when all are done. No await: nothing comes between."""
        assert self.lease is not None, "armed"
        with journal.locked(0.5):
            for index, step in enumerate(self.plan.steps):
                stop = self._stop()
                if stop is not None:
                    return stop
                try:
                    journal.append("injecting", step=index, name=step.name)
                    self.on_point(Point.INJECTING)
                    self.world.inject(step, self.clock.monotonic() + self.plan.active_seconds)
                    self.on_point(Point.INJECTED)
                    journal.append("injected", step=index)
                except (OSError, JournalUnwritable) as error:
                    self.problem = f"{step.name}: could not inject: {error}"
                    return Ending.INJECT_FAILED
        self.on_point(Point.RECORDED)
        return self._stop()

    async def _see_the_effect(self, journal: Journal) -> Ending | None:
        fault, limit = self.request.fault, self.plan.effect_timeout_seconds
        if not self.request.verify_effect:
            self.effect = Evidence(False, self.clock.monotonic(), "nobody", "not looked for, as asked")
            return None
        found = await self._while_beating(self.world.effect(fault, self.target, self.plan, limit), limit + 1.0)
        if isinstance(found, Ending):
            return found
        self.effect = found or Evidence(False, self.clock.monotonic(), "nobody", "no answer in time")
        if not self.effect.seen:
            self.problem = f"fault {fault.name}: took no effect within {limit:g} s: {self.effect.detail}"
            return Ending.EFFECT_NOT_SEEN
        journal.append("effective", at=self.effect.at, source=self.effect.source, detail=self.effect.detail)
        self._stamp(STAMP_EFFECTIVE, self.effect.at, self.effect.source, self.effect.detail)
        self.on_point(Point.EFFECTIVE)
        return None

    async def _hold(self) -> Ending:
        hold = self.plan.hold_seconds
        if self.request.fault.one_way:
            found = await self._while_beating(self.world.successor(self.target, hold), hold + 1.0)
            if isinstance(found, Ending):
                return found
            self.after = found or Evidence(False, self.clock.monotonic(), "nobody", "no answer in time")
            if self.after.seen:
                return Ending.SUCCESSOR
            self.problem = f"engine {self.plan.engine}: no successor within {hold:g} s: {self.after.detail}"
            return Ending.NO_SUCCESSOR
        ending = await self._while_beating(self._target_gone(), hold)
        return ending or Ending.HELD

    async def _target_gone(self) -> Ending:
        """Return when no process of the plan lives any more; never for faults without one."""
        targets = [step.target for step in self.plan.steps if step.target is not None]
        while not targets or any(self.world.alive(t) for t in targets):
            await self.clock.sleep(LOOK_SECONDS)
        return Ending.TARGET_ABSENT

    async def _revert(self, journal: Journal, ending: Ending) -> Outcome:
        work = asyncio.to_thread(self._revert_now, journal, ending.value)
        # Still beating: the watchdog takes over if this revert hangs.
        outcome = await self._while_beating(work, self.plan.revert_seconds + 5.0, interruptible=False)
        assert not isinstance(outcome, Ending), "not interruptible"
        if outcome is None:
            # A disk or a machine that is this slow is no reason to leave without an answer: undo and look once more,
            # here and now. Verbs may be run twice, and the watchdog does the same when the beats stop.
            outcome = self._revert_now(journal, ending.value)
        self.on_point(Point.REVERTED)
        return outcome

    async def _look_after(self) -> None:
        """Whether the engine serves again; skipped when in a hurry."""
        limit = self.policy.steady_timeout_seconds
        # Without a guard nobody reads the GPUs, so there is nothing to look at.
        blind = self.request.fault.deed == "gpu_overlay" and self.request.without_guard
        if not limit or blind or (self.hurry is not None and self.hurry.is_set()):
            return
        self.after = await self.world.steady(self.request.fault, self.target, self.plan, limit)
        if not self.after.seen and self.problem is None:
            self.problem = f"engine {self.plan.engine}: did not come back after the revert: {self.after.detail}"

    async def _while_beating(
        self, work: Coroutine[Any, Any, T], limit_seconds: float, *, interruptible: bool = True
    ) -> T | Ending | None:
        """
        Await ``work`` and beat meanwhile.

        Returns:
            Its result; None when ``limit_seconds`` are over; an Ending when the run has to stop.
        """
        task = asyncio.ensure_future(work)
        give_up = self.clock.monotonic() + limit_seconds
        try:
            while not task.done():
                stop = self._stop()
                if stop is not None and interruptible:
                    return stop
                remaining = give_up - self.clock.monotonic()
                if remaining <= 0:
                    return None
                beat_seconds = self.lease.beat_seconds if self.lease is not None else remaining
                await asyncio.wait({task}, timeout=min(beat_seconds, remaining))
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=0.5)

    def _stop(self) -> Ending | None:
        """Beat once; return why the run has to end now."""
        bond = Bond.HELD if self.lease is None else self.lease.beat()
        if self.abort is not None and self.abort.is_set():
            return Ending.ABORT
        if bond in _BROKEN_BONDS:
            return _BROKEN_BONDS[bond]
        if any(path.exists() for path in self.stop_files):
            return Ending.STOP_FILE
        return None

    def _stamp(self, name: str, monotonic: float, source: str, detail: str) -> None:
        wall = self.clock.wall() - (self.clock.monotonic() - monotonic)
        stamp = Stamp(name, monotonic, wall, source, detail)
        self.stamps.append(stamp)
        self.on_stamp(stamp)

    def _report(self, ending: Ending, outcome: Outcome, journal: Journal) -> Report:
        verdict = judge(
            ending=ending,
            clean=outcome.clean,
            effect=self.effect,
            after=self.after,
            verify_effect=self.request.verify_effect,
        )
        return Report(
            run_id=self.plan.run_id,
            fault=self.plan.fault,
            engine=self.plan.engine,
            verdict=verdict,
            ending=ending,
            problem=None if verdict is Verdict.PASS else self.problem or _PROBLEMS.get(ending),
            stamps=tuple(self.stamps),
            effect=self.effect,
            after=self.after,
            steps=tuple(UndoneStep(o.step.name, o.result.value, o.detail, o.proven) for o in outcome.outcomes),
            journal=str(journal.path),
            fidelity=self.request.fault.fidelity,
        )


_BROKEN_BONDS = {
    Bond.GONE: Ending.WATCHDOG_GONE,
    Bond.SILENT: Ending.WATCHDOG_SILENT,
    Bond.REVERTED: Ending.WATCHDOG_REVERTED,
    Bond.DIRTY: Ending.WATCHDOG_DIRTY,
}
_PROBLEMS = {
    Ending.ABORT: "stopped by a person or a signal",
    Ending.STOP_FILE: "stopped by sre chaos revert or the safety lever",
    Ending.WATCHDOG_GONE: "the watchdog died, and without it no fault is held",
    Ending.WATCHDOG_SILENT: "the watchdog did not answer for one lease, and without it no fault is held",
    Ending.WATCHDOG_REVERTED: "the watchdog ended the fault: stop file, signal, or no sign of life from the injector",
    Ending.WATCHDOG_DIRTY: "the watchdog ended the fault and could not prove it; the injector did",
}


def _describe_dirty(run_id: str, outcome: Outcome) -> str:
    left = "; ".join(f"{o.step.name}: {o.detail or o.result.value}" for o in outcome.outcomes if not o.proven)
    return f"chaos run {run_id}: not proven reverted: {left}; set it right, then run sre chaos recover"
