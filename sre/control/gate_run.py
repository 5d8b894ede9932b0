"""
One gate run, from the first request to the reports.

``smoke → comparable? → folder → calibrate → warm up → passes → knee → long tail → verdict → diagnosis → reports``

After every stage ``gate.json`` is on disk, marked as killed: a run that dies leaves what it measured, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sre.clock import Clock
from sre.control.gate_end import Ended, finish
from sre.control.gate_stages import StageRunner
from sre.control.gate_state import CLIENT_LATE, GateState
from sre.control.gate_world import Folder, Listener, MakeFolder, Order, Target
from sre.errors import Aborted, ConfigError, DependencyError, ProcessError, Rejected, StateError
from sre.gate import environment, fingerprint, knee, long_tail, plan
from sre.gate.abort import AbortReason, explain
from sre.gate.objectives import breaks_objective
from sre.gate.plan import SIDE_B, Step
from sre.gate.result import RunResult, Smoke, StageResult
from sre.gate.stages import SILENT, StageLoad, StagePlan
from sre.redaction import redact

T = TypeVar("T")

CALIBRATION_SECONDS = 2.0
HOPELESS = frozenset({AbortReason.ERROR_SHARE.value, AbortReason.OVER_LIMIT.value})
"""Where a stage given up for one of these breaks an objective, no further pass can change the verdict."""
CUTTING = frozenset({AbortReason.INTERRUPTED.value, AbortReason.DEADLINE.value, AbortReason.SERVER_GONE.value})
"""Given up for one of these, no other stage follows."""
KILLED = "killed, or still running"
"""Of a result that no end has replaced yet: which of both, the file cannot know."""


async def run_gate(
    order: Order, make_folder: MakeFolder, clock: Clock, listener: Listener, stop: asyncio.Event
) -> Ended:
    """
    Run the gate; return what it came to.

    Args:
        make_folder: Called once the server has answered: a run that could not begin leaves nothing.
        stop: Set it to end the run: what was measured is kept, judged as interrupted, and reported.

    Raises:
        DependencyError: The server cannot be reached, or does not serve what is asked for; nothing was measured.
        ConfigError: The baseline is of another environment; nothing was measured.
        StateError: The result folder cannot be made.
        Aborted: Stopped before anything was measured.
    """
    run = _Run(order, clock, listener, stop)
    if not await run.unless_stopped(run.meet()):
        raise Aborted("gate: stopped before anything was measured")
    folder = await asyncio.to_thread(make_folder)
    return await run.execute(folder)


class _Run:
    def __init__(self, order: Order, clock: Clock, listener: Listener, stop: asyncio.Event) -> None:
        self.order, self.settings = order, order.settings
        self.clock, self.listener, self.stop = clock, listener, stop
        self.state = GateState(order, clock.wall())
        self.stages = StageRunner(
            order.settings, clock, listener, stop, clock.monotonic() + order.settings.deadline_seconds
        )
        self.number = 0
        self.of = len(plan.plan_all(order.settings, interleaved=order.against is not None, trace=order.trace))
        self.folder: Folder | None = None
        self.cut: AbortReason | None = None
        """What ended the run before its end."""

    # Before anything is measured.

    async def meet(self) -> bool:
        """Ask every server for an answer, and whether the baseline is one of this environment; True: it is so."""
        order, state = self.order, self.state
        self.listener.says(f"asking {order.target.url}")
        state.smoke = await _smoke(order.target)
        if order.against is not None:
            other = await _smoke(order.against)
            if other.model != state.smoke.model:
                raise ConfigError(
                    [f"gate: {order.target.url} serves {state.smoke.model}, {order.against.url} {other.model};"
                     " compare servers of one model, or name it with --model"]
                )  # fmt: skip
        await self._meet_policies()
        state.fingerprint = await self._conditions(order.target, state.smoke)
        if order.against is not None:
            state.notes.append(
                f"side A is {redact(order.target.url)}, side B what it is compared with, {redact(order.against.url)}"
            )
            # Not refused: another flag, another GPU may be what is compared. But never silently.
            state.notes += [
                f"the two servers differ in {one.name}: {order.target.url} {one.candidate}, {order.against.url} "
                f"{one.reference}"
                for one in fingerprint.differences(await self._conditions(order.against, other), state.fingerprint)
            ]
        if order.baseline is not None:
            allowed, theirs = self.settings.baseline.may_differ, order.baseline.fingerprint
            where = f"baseline {order.baseline.name}"
            fingerprint.require_equal(theirs, state.fingerprint, where, allowed)
            state.notes += [
                f"{where}: {one.name} was {one.reference}, this run has {one.candidate}: declared to make no difference"
                for one in fingerprint.differences_allowed(theirs, state.fingerprint, allowed)
            ]
        return True

    async def _meet_policies(self) -> None:
        """The other arms of the long-tail test answer, or nothing is begun: it comes last, and would be left out."""
        if not self.settings.long_tail.enabled:
            return
        for name, target in self.order.policies.items():
            try:
                await _smoke(target)
            except DependencyError as error:
                where, problem = f"gate.long_tail.policies {name}", str(error).partition("; ")[0]
                remedy = "start it, correct its url, or leave the test out with --no-long-tail"
                raise type(error)(where, f"{problem}; {remedy}", retryable=error.retryable) from error

    async def _conditions(self, target: Target, smoke: Smoke) -> fingerprint.Fingerprint:
        described = await target.signals.describe()
        return environment.fingerprint(self.settings, smoke, described, self.order.trace)

    # The run.

    async def execute(self, folder: Folder) -> Ended:
        self.folder, state = folder, self.state
        state.id = folder.id
        try:
            await self._save()
            await self._calibrate()
            await self._warm_up()
            await self._passes()
            await self._knee()
            await self._long_tail()
        except (StateError, ProcessError, DependencyError) as error:
            # A full disk, above all: what is on it stays, what is in memory is still judged and shown. The others: a
            # load process that died.
            state.interrupted = state.broken = str(error)
            if self.stop.is_set() and self.cut is None and not isinstance(error, StateError):
                # Stopped by a person first: a load process that reports nothing then does not change who ended it.
                self.cut = AbortReason.INTERRUPTED
                state.interrupted = f"{explain(self.cut.value)}; {error}"
            self.listener.says(f"the run ends here: {error}")
        # Stopped when all was measured: nothing is missing, and the verdict is what it is.
        state.by_person = self.cut is AbortReason.INTERRUPTED
        if self.cut is not None and not state.interrupted:
            state.interrupted = self._why(self.cut)
        return await asyncio.to_thread(finish, state, folder, self.clock.wall(), self.listener.says)

    async def _calibrate(self) -> None:
        if self._over() is not None:
            return
        rate = plan.top_rate(self.settings, self.order.trace)
        self.listener.says(f"calibrating this client at {rate:g} requests/s")
        limit = self.settings.client_lag_p99_seconds
        found = await self.unless_stopped(self.order.target.generator.calibrate(rate, CALIBRATION_SECONDS, limit))
        self.state.calibration = found
        if found is not None and found.client_limited:
            self.listener.says(
                f"this client is the limit at {rate:g} requests/s: {found.reason}; no PASS will come of it"
            )

    async def _warm_up(self) -> None:
        first = plan.warm_up(self.settings.load, self.order.trace)
        if first is None:
            return
        for target in filter(None, (self.order.target, self.order.against)):
            if self.stages.over is None:
                await self._stage(target, first, keep=False)

    async def _passes(self) -> None:
        hopeless = ""
        for run, side in plan.sides(self.settings.baseline.runs, self.order.against is not None):
            if hopeless or self._over() is not None:
                self.state.missed_passes += 1
                continue
            target = self.order.against if side == SIDE_B and self.order.against is not None else self.order.target
            given_up = await self._pass(target, run, side)
            if given_up in HOPELESS and side != SIDE_B and self._decided(run, side):
                hopeless = given_up
        if hopeless and self.state.missed_passes:
            self.state.notes.append(
                f"passes left out, as the verdict stands: {self.state.missed_passes} ({explain(hopeless)})"
            )

    def _decided(self, run: int, side: str) -> bool:
        """Whether a stage of this pass, given up, breaks an objective: its own or that of a later stage, not run."""
        done = next(one.stages for one in self.state.runs if (one.number, one.side) == (run, side))
        return breaks_objective(done, self.settings.objectives)

    async def _pass(self, target: Target, run: int, side: str) -> str:
        """One pass; returns why its stages were given up, "" if they were not."""
        plans = plan.staircase(self.settings.load, run, side, self.order.trace)
        results: list[StageResult] = []
        started, given_up = self.clock.wall(), ""
        for index, one in enumerate(plans):
            over = self._over()
            if over is not None and not given_up:
                given_up = over.value
            if given_up:
                self.number += 1
                results.append(StageResult(one, None, None, skipped=_skipped(index, given_up)))
                self.listener.ended(results[-1])
                continue
            result = await self._stage(target, one)
            results.append(result)
            given_up = result.aborted or result.skipped
            self.state.put_run(RunResult(run, side, tuple(results), started))
            await self._save()
        self.state.put_run(RunResult(run, side, tuple(results), started))
        return given_up

    async def _knee(self) -> None:
        state, settings = self.state, self.settings.knee
        why = self._no_knee()
        if why:
            state.omitted["knee"] = why
            return
        history = state.staircase_probes()
        if not history:
            state.omitted["knee"] = "no stage was measured"
            return
        stopped = ""
        while not stopped:
            left = settings.max_stages - len(state.knee_stages)
            rate = knee.next_probe(history, resolution_ratio=settings.resolution_ratio, probes_left=left)
            if rate is None:
                break
            if self._over() is not None:
                stopped = "given_up"
                break
            result = await self._stage(
                self.order.target, plan.knee_stage(self.settings.load, rate, len(state.knee_stages))
            )
            state.knee_stages.append(result)
            history.append(state.probe_of(result))
            state.knee = knee.conclude(history, resolution_ratio=settings.resolution_ratio, stopped="given_up")
            await self._save()
        found = knee.conclude(history, resolution_ratio=settings.resolution_ratio)
        late = any(probe.saturated is None and probe.sign.startswith(CLIENT_LATE) for probe in history)
        limited = state.calibration is not None and state.calibration.client_limited
        # A probe of a late client bounds nothing, so a bracket that closed without it stands. A client that cannot keep
        # the top rate piles requests up on its own side, late or not: then no bracket stands.
        if limited or (late and found.reason != "resolved"):
            stopped = stopped or "client_limited"
        state.knee = knee.conclude(history, resolution_ratio=settings.resolution_ratio, stopped=stopped)

    def _no_knee(self) -> str:
        if not self.settings.knee.enabled:
            return "not asked for"
        if self.order.trace is not None:
            return "a trace has one rate"
        if self.order.against is not None:
            return "an interleaved comparison looks at its stages alone"
        first = self.state.first_stage()
        if first is not None and first.aborted in HOPELESS and first.summary is not None and not first.summary.ok:
            return f"the first stage was given up: {explain(first.aborted)}"
        return ""

    async def _long_tail(self) -> None:
        state, settings = self.state, self.settings.long_tail
        if not settings.enabled:
            state.omitted["long_tail"] = "not asked for"
            return
        if (over := self._over()) is not None:
            state.omitted["long_tail"] = f"not reached: {self._why(over)}"
            return
        other = {} if self.order.against is None else {SIDE_B: self.order.against}
        targets = {"": self.order.target, **other, **self.order.policies}
        obstacles = {name: await self._obstacle(name, target) for name, target in targets.items()}
        for name, why in obstacles.items():
            if why:
                self.listener.says(f"long-tail test of {long_tail.named(name)} is left out: {why}")
        seen: dict[tuple[str, Step], list[long_tail.ShortsOfStage]] = {}
        open_arms = [name for name in targets if not obstacles[name]]
        for run, policy, step in plan.long_tail_order(settings.runs, open_arms):
            if self._over() is not None:
                break
            one = plan.long_tail_stages(self.settings.load, settings, run, policy)[step]
            load, result = await self._measure(targets[policy], one)
            state.long_tail_stages.append(result)
            if load is not None:
                shorts = await asyncio.to_thread(long_tail.shorts_of, load, state.doubt_of(result))
                seen.setdefault((policy, step), []).append(shorts)
            state.long_tail = self._arms(seen, obstacles)
            await self._save()
        state.long_tail = self._arms(seen, obstacles)

    def _arms(
        self, seen: dict[tuple[str, Step], list[long_tail.ShortsOfStage]], obstacles: dict[str, str]
    ) -> long_tail.LongTail:
        settings = self.settings.long_tail
        arms = [
            long_tail.arm(name, seen.get((name, Step.SHORTS), ()), seen.get((name, Step.MIXED), ()), why)
            for name, why in obstacles.items()
        ]
        rate = plan.long_tail_stages(self.settings.load, settings, 0, "")[Step.SHORTS].rate_rps
        return long_tail.conclude(rate, settings.long_share, arms)

    async def _obstacle(self, name: str, target: Target) -> str:
        """Why this arm cannot run; "": it can."""
        if not name:
            smoke = self.state.smoke
        else:
            try:
                smoke = await _smoke(target)
            except DependencyError as error:
                return str(error)
        return plan.long_tail_obstacle(self.settings.long_tail, None if smoke is None else smoke.max_model_len)

    # Parts.

    async def _stage(self, target: Target, one: StagePlan, *, keep: bool = True) -> StageResult:
        return (await self._measure(target, one, keep=keep))[1]

    async def _measure(
        self, target: Target, one: StagePlan, *, keep: bool = True
    ) -> tuple[StageLoad | None, StageResult]:
        self.number += 1
        self.of = max(self.of, self.number)
        self.listener.begins(one, self.number, self.of)
        load, result = await self.stages.run(target, one)
        self.listener.ended(result)
        for note in (*(() if load is None else load.notes), *_silent(result)):
            if self.state.note(note, one):
                self.listener.says(note)
        # Stopped before anything was kept of it, a stage counts as skipped.
        why = result.aborted or result.skipped
        if why in CUTTING:
            self.cut = AbortReason(why)
        if keep and load is not None and self.folder is not None:
            await asyncio.to_thread(self.folder.save_records, load)
        return load, result

    async def _save(self) -> None:
        if self.folder is not None:
            await asyncio.to_thread(self.folder.save, self.state.result(self.clock.wall(), interrupted=KILLED))

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What ``work`` returns; None if a person stopped the run meanwhile."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for left in (task, stopped):
                left.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)

    def _over(self) -> AbortReason | None:
        """Why no further stage may begin; remembered, since something is left out for it."""
        over = self.stages.over
        self.cut = self.cut or over
        return over

    def _why(self, over: AbortReason) -> str:
        if over is AbortReason.SERVER_GONE:
            return f"{explain(over.value)}: {self.stages.gone}"
        return explain(over.value)


async def _smoke(target: Target) -> Smoke:
    """The first answer. Raises DependencyError, also when it is no usable one."""
    smoke = await target.generator.smoke()
    if not smoke.ok:
        raise Rejected(
            f"target {target.url}", f"{smoke.detail}; a single request must be answered before load is put on it"
        )
    return smoke


def _silent(result: StageResult) -> list[str]:
    """Pages that said nothing before a stage. One that did, and not after it, was there: the stage kept it busy."""
    seen = {} if result.signals is None else result.signals.unseen
    return [
        f"{name} could not be read: {why}; its figures are missing, and stages wait for it: busy, or a wrong URL "
        "(gate.target.metrics_urls)"
        for name, why in seen.items()
        if name.startswith("engine ") and why == SILENT
    ]


def _skipped(index: int, given_up: str) -> str:
    why = explain(given_up)
    return f"an earlier stage was given up: {why}" if index else f"not begun: {why}"
