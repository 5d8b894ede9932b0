"""The stages of a run as a table: a row per stage and class, over all runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sre.gate.abort import explain
from sre.gate.report import figures
from sre.gate.report.layout import Section, Table
from sre.gate.result import GateResult, StageResult
from sre.gate.stages import StageKind
from sre.gate.summary import ALL, ClassSummary, StageSummary


def measured(result: GateResult) -> dict[tuple[str, str, str], list[StageResult]]:
    """(side, stage, arm) → its results over the runs, in order of first sight, then the search for the knee."""
    found: dict[tuple[str, str, str], list[StageResult]] = {}
    for side, stage in (*((run.side, each) for run in result.runs for each in run.stages), *_search(result)):
        if stage.plan.kind is not StageKind.WARM_UP:
            found.setdefault((side, stage.plan.name, stage.plan.arm), []).append(stage)
    return found


def _search(result: GateResult) -> list[tuple[str, StageResult]]:
    return [(stage.plan.side, stage) for stage in result.knee_stages]


def over_runs(results: Sequence[StageResult], read: Callable[[StageSummary], float | None]) -> float | None:
    """Median over the runs that have the figure."""
    values = [read(stage.summary) for stage in results if stage.summary is not None]
    return figures.median([value for value in values if value is not None])


def stages(result: GateResult) -> Section:
    found = measured(result)
    sides = len({side for side, _, _ in found}) > 1
    rows: list[tuple[str, ...]] = []
    marks: list[str] = []
    for (side, name, arm), results in found.items():
        label = " · ".join(filter(None, (name, arm, side if sides else "")))
        ran = [stage for stage in results if stage.summary is not None]
        rows += _stage_rows(label, results, ran)
        bad = any(stage.aborted or (stage.summary and stage.summary.saturated) for stage in ran)
        marks += ["inconclusive" if bad else ""] * (len(rows) - len(marks))
    if not rows:
        return Section("stages", "Stages", ("No stage was run.",))
    heading = (
        "Stage", "Class", "Runs", "Offered/s", "Answered/s", "TTFT P50", "TTFT P95", "TTFT P99", "End to end P99",
        "TPOT P99", "Events per token", "Failed", "Most in flight", "Send lag P99", "Saturated",
    )  # fmt: skip
    text = (
        "Medians over the runs; of requests in flight and of send lag the worst run. Times count from the moment a"
        " request was due; a failure counts as infinitely slow. Answers are counted once the stage is steady: over a"
        " short one chance makes their rate differ from that of all arrivals. Events per token: those with content over"
        " the tokens that the server's usage counts; a server that packs tokens together has fewer than one."
    )
    return Section(
        "stages", "Stages", (text,), (Table(heading, tuple(rows), frozenset(range(2, 14)), tuple(marks)),)
    )  # fmt: skip


def _stage_rows(label: str, results: Sequence[StageResult], ran: Sequence[StageResult]) -> list[tuple[str, ...]]:
    if not ran:
        why = next((stage.skipped for stage in results if stage.skipped), "not run")
        return [(label, ALL, "0", *[figures.NOTHING] * 11, f"skipped: {why}")]
    names = list(dict.fromkeys(name for stage in ran if stage.summary for name in stage.summary.classes))
    if len(names) == 2 and ALL in names:
        names.remove(ALL)  # one class: it is all there is
    return [_stage_row(label, name, results, ran) for name in names or [ALL]]


def _stage_row(
    label: str, name: str, results: Sequence[StageResult], ran: Sequence[StageResult]
) -> tuple[str, ...]:  # fmt: skip
    def time(read: Callable[[ClassSummary], float | None]) -> str:
        return figures.seconds(_of_class(ran, name, read))

    counts = [stage.summary.classes[name] for stage in ran if stage.summary and name in stage.summary.classes]
    offered, failed = sum(count.ok + count.failed for count in counts), sum(count.failed for count in counts)
    states = [stage.summary.saturated for stage in ran if stage.summary]
    saturated = figures.yes_no(True if any(states) else None if None in states else False)
    aborted = list(dict.fromkeys(stage.aborted for stage in ran if stage.aborted))
    skipped = len(results) - len(ran)
    notes = [
        saturated,
        *(f"given up: {explain(why)}" for why in aborted),
        *([f"skipped in {skipped}"] if skipped else []),
    ]
    return (
        label,
        name,
        str(len(ran)),
        figures.number(over_runs(ran, lambda summary: _part(summary, name, summary.offered_rps, _planned))),
        figures.number(over_runs(ran, lambda summary: _part(summary, name, summary.completed_rps, _ok))),
        time(lambda kind: kind.ttft.p50),
        time(lambda kind: kind.ttft.p95),
        time(lambda kind: kind.ttft.p99),
        time(lambda kind: kind.e2e.p99),
        time(lambda kind: kind.tpot.p99),
        figures.number(_of_class(ran, name, lambda kind: kind.events_per_token)),
        figures.percent(failed / offered) if offered else figures.NOTHING,
        figures.number(max((stage.summary.in_flight_max for stage in ran if stage.summary), default=0)),
        figures.seconds(max((stage.summary.lag_p99_seconds for stage in ran if stage.summary), default=0)),
        "; ".join(notes),
    )


def _of_class(
    ran: Sequence[StageResult], name: str, read: Callable[[ClassSummary], float | None]
) -> float | None:  # fmt: skip
    return over_runs(ran, lambda summary: read(summary.classes[name]) if name in summary.classes else None)


def _planned(kind: ClassSummary) -> int:
    return kind.planned


def _ok(kind: ClassSummary) -> int:
    return kind.ok


def _part(
    summary: StageSummary, name: str, rate_rps: float, count: Callable[[ClassSummary], int]
) -> float | None:  # fmt: skip
    """The class's part of a rate of the whole stage; None where the stage has no such class."""
    if name not in summary.classes:
        return None
    everything = sum(count(kind) for each, kind in summary.classes.items() if each != ALL)
    if name == ALL or not everything:
        return rate_rps
    return rate_rps * count(summary.classes[name]) / everything
