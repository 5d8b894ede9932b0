"""What a gate run has so far; at any moment it gives the whole result, with what is missing named."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sre.control.gate_world import Order
from sre.gate import knee
from sre.gate.fingerprint import Fingerprint
from sre.gate.judging import JudgePolicy, doubt_of_run, doubt_of_stage
from sre.gate.knee import Knee, Probe
from sre.gate.long_tail import LongTail, named
from sre.gate.result import GateResult, RunResult, Smoke, StageResult
from sre.gate.saturation import blur_ratio
from sre.gate.self_checks import Check
from sre.gate.stages import Calibration, StagePlan
from sre.gate.verdict import GateVerdict, Reason, Verdict
from sre.redaction import redact

CLIENT_LATE = "the client itself was late"


class GateState:
    """Filled by the run, part by part."""

    def __init__(self, order: Order, wall_started_at: float) -> None:
        self.order = order
        self.wall_started_at = wall_started_at
        self.id = ""
        self.fingerprint = Fingerprint(())
        self.smoke: Smoke | None = None
        self.calibration: Calibration | None = None
        self._runs: dict[tuple[int, str], RunResult] = {}
        self.knee: Knee | None = None
        self.knee_stages: list[StageResult] = []
        self.long_tail: LongTail | None = None
        self.long_tail_stages: list[StageResult] = []
        self.missed_passes = 0
        self.interrupted = ""
        self.by_person = False
        self.broken = ""
        self.omitted: dict[str, str] = {}
        self.notes: list[str] = []
        self._noted: set[str] = set()

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """In the order in which they were begun."""
        return tuple(self._runs.values())

    def put_run(self, run: RunResult) -> None:
        """Keep a pass, or more of it than before."""
        self._runs[(run.number, run.side)] = run

    def note(self, sentence: str, plan: StagePlan) -> bool:
        """Keep what the client says of a stage, once for all stages of which it says the same; True: it is new."""
        kind = re.sub(r"\d+", "#", sentence)
        if kind in self._noted:
            return False
        self._noted.add(kind)
        self.notes.append(f"{sentence} (first at {plan.name}, run {plan.run + 1})")
        return True

    def measured(self) -> tuple[StageResult, ...]:
        """Every stage of the staircase and the search that ran."""
        stages = [stage for run in self.runs for stage in run.stages]
        return tuple(stage for stage in (*stages, *self.knee_stages) if stage.summary is not None)

    def first_stage(self) -> StageResult | None:
        """The first that was measured."""
        return next(iter(self.measured()), None)

    def staircase_probes(self) -> list[Probe]:
        """One per rate, of all passes."""
        looks: dict[float, list[Probe]] = {}
        for run in self.runs:
            for stage in run.stages:
                if stage.summary is not None:
                    probe = self.probe_of(stage)
                    looks.setdefault(probe.rate_rps, []).append(probe)
        return [
            knee.merge(rate, [(one.saturated, one.sign) for one in seen], min(one.blur_ratio for one in seen))
            for rate, seen in sorted(looks.items())
        ]

    def probe_of(self, stage: StageResult) -> Probe:
        """What one stage says of its rate. Of a stage in which the client was late, nothing: the queue may be ours."""
        rate, seen = stage.plan.rate_rps, stage.summary
        if seen is None:
            return Probe(rate, None, stage.skipped)
        if not seen.client_late_seconds <= self.order.settings.client_lag_p99_seconds:
            return Probe(rate, None, f"{CLIENT_LATE} by up to {1000 * seen.client_late_seconds:.0f} ms")
        return Probe(rate, seen.saturated, seen.sign, blur_ratio(seen.in_flight_mean, seen.planned))

    def doubt_of(self, stage: StageResult) -> str:
        """Why the numbers of a stage that ran may be the client's own; "": nothing speaks against them."""
        seen = stage.summary
        if seen is None:
            return ""
        wrong = [f"{check.name}: {check.detail}" for check in stage.checks if check.ok is False]
        doubt = doubt_of_run(self.calibration, ()) or doubt_of_stage(
            seen.client_late_seconds, seen.shed, wrong, JudgePolicy.of(self.order.settings)
        )
        return "" if doubt is None else f"{stage.plan.name}, run {stage.plan.run + 1}: {doubt.detail}"

    def unseen(self) -> str:
        """What was asked for beside the objectives and could not be seen; "": nothing."""
        if self.long_tail is None:
            return ""
        for arm in self.long_tail.arms:
            compared = arm.p_value is not None
            why = arm.skipped or arm.doubt or arm.given_up or ("" if compared else "nothing to compare")
            if why:
                return f"long-tail test of {named(arm.policy)}: {why}"
        return ""

    def checks(self) -> tuple[Check, ...]:
        """Each kind of self-check once: wrong if it was in any stage, with that stage named."""
        found: dict[str, list[tuple[str, Check]]] = {}
        stages = (*self.measured(), *(s for s in self.long_tail_stages if s.summary is not None))
        for stage in stages:
            for check in stage.checks:
                where = f"run {stage.plan.run + 1} {stage.plan.name}"
                found.setdefault(check.name, []).append((where, check))
        return tuple(_whole(name, seen) for name, seen in found.items())

    def result(
        self,
        wall_ended_at: float,
        *,
        interrupted: str,
        verdict: GateVerdict | None = None,
    ) -> GateResult:
        """The result as it stands; without a verdict it is inconclusive, for being unfinished."""
        smoke, order = self.smoke, self.order
        return GateResult(
            id=self.id,
            url=redact(order.target.url),
            model=smoke.model if smoke is not None else "",
            tool_version=order.tool_version,
            wall_started_at=self.wall_started_at,
            wall_ended_at=wall_ended_at,
            fingerprint=self.fingerprint,
            smoke=smoke,
            calibration=self.calibration,
            runs=self.runs,
            knee=self.knee,
            long_tail=self.long_tail,
            verdict=verdict or unfinished(interrupted),
            bottleneck=None,
            latency_budget=None,
            checks=self.checks(),
            interrupted=interrupted,
            knee_stages=tuple(self.knee_stages),
            omitted=dict(self.omitted),
            notes=tuple(self.notes),
        )


def unfinished(why: str) -> GateVerdict:
    """Of a run that has none yet."""
    return GateVerdict(Verdict.INCONCLUSIVE, (Reason.INTERRUPTED,), (), f"the run did not reach its end: {why}")


def _whole(name: str, seen: Sequence[tuple[str, Check]]) -> Check:
    wrong = [(where, check) for where, check in seen if check.ok is False]
    if wrong:
        where, check = wrong[0]
        return Check(name, False, f"{len(wrong)} of {len(seen)} stages; {where}: {check.detail}")
    made = [check for _, check in seen if check.ok]
    if not made:
        return Check(name, None, seen[0][1].detail)
    return Check(name, True, f"{len(made)} of {len(seen)} stages; {made[-1].detail}")
