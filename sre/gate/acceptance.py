"""What a run takes the place of as a baseline, and what a comparison with a baseline can show."""

from __future__ import annotations

from sre.errors import Refused
from sre.gate.baseline import Baseline, day_of, from_result
from sre.gate.cells import TIMES
from sre.gate.compare import judge_cells
from sre.gate.judging import JudgePolicy
from sre.gate.percentiles import sample_floor
from sre.gate.report.figures import counted
from sre.gate.result import GateResult
from sre.gate.statistics import power, runs_needed
from sre.gate.verdict import Reason

ONE_DAY = (
    "its runs are of one day: how days differ looks like a regression. Where they differ by 3 % equal builds fail in "
    "about 13 of 100 comparisons, by 5 % in 20, and in 5 where they do not; more runs of that day change nothing. Add "
    "runs of other days (sre gate baseline accept --add), or compare in turns (sre gate run --against)"
)
"""By simulation: ``test_a_day_of_its_own_looks_like_a_regression`` in tests/benchmarks/bench_gate_verdict.py."""


def already_is(existing: Baseline, result: GateResult) -> bool:
    """Whether ``existing`` is the runs of ``result`` and of no other."""
    return [one.run_id for one in existing.acceptances] == [result.id]


def replaced(existing: Baseline) -> str:
    """``5 runs of 2026-12-01, 20261201T044205Z-abcd``: what is lost when another run takes its place."""
    ids = ", ".join(one.run_id for one in existing.acceptances)
    return f"{counted(len(existing.runs), 'run')} of {', '.join(existing.days)}, {ids}"


def require_newer(existing: Baseline, result: GateResult) -> None:
    """
    Let ``result`` take the place of ``existing`` only where it is newer: ``last`` is an old run after a refused one.

    Raises:
        Refused: It is older than a run of ``existing``, or one of several in it.
    """
    where, remedy = f"baseline {existing.name}", "add to it with --add, or replace it with --force"
    if any(one.run_id == result.id for one in existing.acceptances):
        raise Refused(f"{where}: holds {replaced(existing)}: {result.id} is one of them; to keep it alone, use --force")
    newest = max((one.wall_started_at for one in existing.acceptances), default=0.0)
    # Files of older versions know the day alone.
    older = result.wall_started_at < newest if newest else day_of(result.wall_started_at) < max(existing.days)
    if older:
        raise Refused(
            f"{where}: gate run {result.id} is older than what it would replace ({replaced(existing)}); name the run "
            f"that is meant, {remedy}"
        )


def never_passes(result: GateResult, policy: JudgePolicy) -> tuple[str, ...]:
    """
    Sentences, one per gated cell: with so few requests per run no candidate of this plan can PASS.

    Found by comparing the run with itself: what is missing then is missing in every comparison.
    """
    runs = from_result(result, name="").runs
    found = []
    for cell in judge_cells(runs, runs, policy):
        if cell.reason is not Reason.TOO_FEW_SAMPLES:
            continue
        name, metric = cell.cell.request_class, cell.cell.metric
        floor = sample_floor(TIMES[metric][2])
        stages = [stage for run in runs for stage in run.stages if stage.name == cell.cell.stage]
        fewest = min(kind.counts.get(metric, 0) for stage in stages if (kind := stage.classes.get(name)) is not None)
        percentile = TIMES[metric][1]
        lower = metric.replace("p99", "p95")
        other = f", or gate {lower} instead (gate.baseline.cells)" if percentile == "p99" else ""
        found.append(
            f"{cell.cell}: {fewest} requests per run, {percentile.upper()} takes {floor}: nothing compared with this "
            f"baseline can PASS; make its stages longer (--seconds, gate.load.stage_seconds){other}"
        )
    return tuple(found)


def outlook(baseline: Baseline, policy: JudgePolicy, runs: int) -> tuple[str, ...]:
    """
    Sentences: of how many days it is, and how surely ``runs`` new runs would show a regression of each gated cell.

    Like ``power`` for new runs that vary as those of the baseline do; found by comparing it with itself.
    """
    days = len(baseline.days)
    found = [ONE_DAY if days == 1 else f"its runs are of {days} days: how days differ is part of how they vary"]
    cells = judge_cells(baseline.runs, baseline.runs, policy)
    asked = {
        "regression_ratio": policy.regression_ratio,
        "minimum_effect_ratio": policy.minimum_effect_ratio,
        "significance": policy.significance / max(1, len(cells)),
    }
    for cell in cells:
        if cell.variation_ratio is None or len(cell.baseline) < policy.minimum_runs:
            found.append(f"{cell.cell}: {cell.detail}")
            continue
        chance = power(runs, len(cell.baseline), variation=cell.variation_ratio, **asked)
        told = (
            f"{cell.cell}: its runs vary by {cell.variation_ratio:.1%}; {runs} new ones would show a regression of "
            f"{policy.regression_ratio:.0%} in {chance:.0%} of cases"
        )
        if chance < policy.power_ratio:
            needed = runs_needed(variation=cell.variation_ratio, wanted=policy.power_ratio, **asked)
            remedy = (
                f"about {needed} runs on each side would do (gate.baseline.runs)" if needed else "no number would do"
            )
            told += f", {policy.power_ratio:.0%} are asked for, so that most equal builds are INCONCLUSIVE: {remedy}"
        elif cell.reason is Reason.TOO_FEW_SAMPLES:
            told += f", but none can PASS: {cell.detail.rpartition('; ')[2]}"
        found.append(told)
    return tuple(found)
