"""
Gates without a server, by the hundred.

Two sources of runs: lognormal latencies, whose percentiles are drawn directly (an order statistic of n uniform values
is beta distributed, so a run of 2,000 requests costs a few draws), and the simulated engine in virtual time.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median

from sre.gate.judge import judge
from sre.gate.judging import JudgePolicy
from sre.gate.percentiles import bound_ranks, rank
from sre.gate.result import RunResult, StageResult
from sre.gate.self_checks import Check
from sre.gate.stages import Calibration, RequestClass, StageKind, StagePlan
from sre.gate.summary import ClassSummary, Distribution, StageSummary, summarize
from sre.gate.verdict import GateVerdict, Reason, Verdict
from sre.settings.gate import GateSettings
from tests.support.virtual_gate import VirtualTarget, plan, serve

SHORT = RequestClass("short", 1.0, 64, 16)
DEFAULTS = JudgePolicy.of(GateSettings())
"""What a user gets who sets nothing: failed_ratio 1 %; three cells, 5 %."""

COMPARISON_ONLY = replace(DEFAULTS, objectives=())

BUSY_CLIENT = Calibration(1000, 2000, 0.031, 0.080, 0.045, 0.4, 1, True, "its send lag is 45 ms (P99)")
FIT_CLIENT = Calibration(1000, 2000, 0.001, 0.002, 0.003, 0.3, 1, False)


def lognormal_distribution(choose: random.Random, count: int, middle: float, sigma: float, failed: int) -> Distribution:
    """Percentiles of ``count`` lognormal values of which ``failed`` are infinite."""
    normal = NormalDist()
    finite = count - failed

    def of_rank(place: int) -> float:
        if place > finite:
            return math.inf
        # Drawn in rising order they would be jointly right; a percentile alone is enough here.
        return middle * math.exp(sigma * normal.inv_cdf(min(1 - 1e-12, choose.betavariate(place, finite - place + 1))))

    low, high = bound_ranks(count, 0.99)
    p50, p90, p95, p99, p999 = sorted(of_rank(rank(count, q)) for q in (0.5, 0.9, 0.95, 0.99, 0.999))
    return Distribution(
        count=count, infinite=failed, p50=p50, p90=p90, p95=p95, p99=p99, p999=p999,
        successes_p99=of_rank(rank(finite, 0.99)) if finite else None,
        p99_lower=None if low is None else min(p99, of_rank(low)),
        p99_upper=None if high is None else max(p99, of_rank(high)),
    )  # fmt: skip


@dataclass(frozen=True)
class Model:
    """
    Latencies of one side.

    Attributes:
        run_variation: Spread of a factor that a run's requests share.
        side_variation: Spread of a factor that all runs of a side share: its day, its node.
        slowness: 1.2: everything takes a fifth longer.
        sigma: Of the lognormal latencies.
    """

    run_variation: float = 0.03
    side_variation: float = 0.0
    slowness: float = 1.0
    requests: int = 2000
    sigma: float = 0.5
    failed_ratio: float = 0.0
    lag_p99_seconds: float = 0.001


def stage_result(
    choose: random.Random,
    model: Model,
    factor: float = 1.0,
    *,
    number: int = 0,
    name: str = "100qps",
    rate_rps: float = 100.0,
    checks: Sequence[Check] = (),
) -> StageResult:
    """One stage of lognormal latencies."""
    n = model.requests
    failed = sum(choose.random() < model.failed_ratio for _ in range(n)) if 0 < model.failed_ratio < 1 else 0
    failed = n if model.failed_ratio >= 1 else failed
    ttft = lognormal_distribution(choose, n, 0.05 * factor, model.sigma, failed)
    e2e = lognormal_distribution(choose, n, 0.30 * factor, model.sigma, failed)
    tpot = lognormal_distribution(choose, n, 0.015 * factor, model.sigma, failed)
    ok = n - failed
    seconds = n / rate_rps
    kinds = {
        label: ClassSummary(
            label, n, ok, failed, {"ok": ok, "server_error": failed}, ttft, e2e, tpot, tpot, 64 * ok, 16 * ok, 0
        )
        for label in ("short", "all")
    }
    completed = rate_rps * ok / n * (1 + choose.gauss(0, 0.5 / math.sqrt(n)))
    summary = StageSummary(
        planned=n, sent=n, ok=ok, failed=failed, cancelled=0, shed=0, offered_rps=rate_rps, completed_rps=completed,
        output_tokens_per_second=16 * completed, classes=kinds, in_flight=(), in_flight_mean=30.0, in_flight_max=60,
        in_flight_slope_per_second=0.0, in_flight_slope_error=0.1, saturated=False, sign="", lag_p50_seconds=0.0,
        lag_p99_seconds=model.lag_p99_seconds, lag_max_seconds=model.lag_p99_seconds, client_cpu_seconds_per_1000=0.3,
        duration_seconds=seconds, drain_seconds=0.5,
    )  # fmt: skip
    stage = StagePlan(name, StageKind.STAIRCASE, rate_rps, seconds, (SHORT,), 1, run=number)
    return StageResult(stage, summary, None, checks)


def lognormal_runs(choose: random.Random, model: Model, runs: int = 5) -> list[RunResult]:
    """Runs of one side: one stage each."""
    side = math.exp(choose.gauss(0, model.side_variation))
    found = []
    for number in range(runs):
        factor = model.slowness * side * math.exp(choose.gauss(0, model.run_variation))
        found.append(RunResult(number, "candidate", (stage_result(choose, model, factor, number=number),), 1.7e9))
    return found


def virtual_run(
    target: VirtualTarget, seed: int, *, rate_rps: float, seconds: float, number: int = 0, side: str = "candidate"
) -> RunResult:
    """One run of one stage, served by the simulated engine in virtual time. ``number`` and ``side`` make its noise."""
    served = serve(plan(rate_rps, seconds, seed=seed, run=number, side=side), target)
    return RunResult(number, side, (StageResult(served.load.plan, summarize(served.load), served.signals),), 1.7e9)


@dataclass(frozen=True)
class Tally:
    """Verdicts of many gates."""

    verdicts: Counter[Verdict]
    reasons: Counter[Reason]

    @property
    def gates(self) -> int:
        return self.verdicts.total()

    @property
    def failed_share(self) -> float:
        return self.verdicts[Verdict.FAIL] / self.gates

    def __str__(self) -> str:
        shares = "  ".join(f"{verdict.name} {self.verdicts[verdict] / self.gates:6.1%}" for verdict in Verdict)
        why = ", ".join(
            f"{reason.value} {count / self.gates:.0%}"
            for reason, count in self.reasons.most_common()
            if reason not in (Reason.NO_REGRESSION, Reason.WITHIN_OBJECTIVES)
        )
        return f"{shares}  ({why})" if why else shares


def tally(verdicts: Sequence[GateVerdict]) -> Tally:
    return Tally(
        Counter(one.verdict for one in verdicts), Counter(reason for one in verdicts for reason in one.reasons)
    )


def many_gates(
    gates: int,
    baseline: Model,
    candidate: Model,
    *,
    policy: JudgePolicy = DEFAULTS,
    runs: int = 5,
    seed: int = 1,
    calibration: Calibration = FIT_CLIENT,
) -> Tally:
    """Gates over lognormal latencies; both sides are drawn anew for each."""
    choose = random.Random(seed)
    found = []
    for _ in range(gates):
        theirs = lognormal_runs(choose, baseline, runs)
        found.append(judge(lognormal_runs(choose, candidate, runs), theirs, policy, calibration=calibration))
    return tally(found)


def p99_ratio(ours: Sequence[RunResult], theirs: Sequence[RunResult]) -> float:
    """Median over the runs of the P99 of TTFT, one side over the other."""

    def middle(runs: Sequence[RunResult]) -> float:
        found = [run.stages[0].summary for run in runs]
        return median(one.classes["short"].ttft.p99 or 0.0 for one in found if one is not None)

    return middle(ours) / middle(theirs)
