"""Before a run becomes a baseline: what it takes the place of, and whether anything compared with it can pass."""

from __future__ import annotations

from sre.errors import Refused
from sre.gate.baseline import Baseline, day_of, from_result
from sre.gate.cells import TIMES
from sre.gate.compare import judge_cells
from sre.gate.judging import JudgePolicy
from sre.gate.percentiles import sample_floor
from sre.gate.result import GateResult
from sre.gate.verdict import Reason


def already_is(existing: Baseline, result: GateResult) -> bool:
    """Whether ``existing`` is the runs of ``result`` and of no other."""
    return [one.run_id for one in existing.acceptances] == [result.id]


def replaced(existing: Baseline) -> str:
    """``5 runs of 2026-12-01, 20261201T044205Z-abcd``: what is lost when another run takes its place."""
    ids = ", ".join(one.run_id for one in existing.acceptances)
    return f"{len(existing.runs)} runs of {', '.join(existing.days)}, {ids}"


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
