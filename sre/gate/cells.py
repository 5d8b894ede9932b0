"""
From stages to the values that are judged: one per run, stage, class and metric.

Both sides of a comparison, a run just made and a run of a baseline, are reduced to the same ``MeasuredRun``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sre.gate.abort import AbortReason, explain
from sre.gate.result import RunResult, StageResult
from sre.gate.stages import StageKind
from sre.gate.summary import ALL, ClassSummary, Distribution, StageSummary, causes_of
from sre.gate.verdict import Cell, Reason
from sre.settings.gate import GatedCellSettings

TIMES = {
    "ttft_p99_seconds": ("ttft", "p99", 0.99),
    "ttft_p95_seconds": ("ttft", "p95", 0.95),
    "ttft_p50_seconds": ("ttft", "p50", 0.50),
    "e2e_p99_seconds": ("e2e", "p99", 0.99),
    "e2e_p95_seconds": ("e2e", "p95", 0.95),
    "e2e_p50_seconds": ("e2e", "p50", 0.50),
    "tpot_p99_seconds": ("tpot", "p99", 0.99),
    "tpot_p50_seconds": ("tpot", "p50", 0.50),
}
"""Metric → distribution of a class, its percentile, the quantile."""

FAILED_RATIO = "failed_ratio"
LESS_IS_WORSE = frozenset({"throughput_rps", "output_tokens_per_second"})
METRICS = (*TIMES, FAILED_RATIO, *sorted(LESS_IS_WORSE))
TOKENS_PER_ANSWER = "tokens_per_answer"
PROMPT_TOKENS_PER_ANSWER = "prompt_tokens_per_answer"
EVENTS_PER_ANSWER = "events_per_answer"
CACHED_RATIO = "cached_ratio"
WORDLESS_RATIO = "wordless_ratio"
EVENTS_PER_TOKEN = "events_per_token"
"""Kept beside the metrics and judged by none: what ``same_work`` looks at."""
BY_USAGE = frozenset({"tpot_p99_seconds", "tpot_p50_seconds", "output_tokens_per_second"})
WITHOUT_USAGE = ": it rests on the server's usage, which did not come with every answer"

OF_THE_SERVER = frozenset({AbortReason.ERROR_SHARE, AbortReason.OVER_LIMIT, AbortReason.SERVER_GONE})
"""What gives a stage up because of what was tested; the other reasons say nothing about the server."""


@dataclass(frozen=True, slots=True)
class MeasuredClass:
    """
    One class over one stage of one run.

    Attributes:
        values: Metric → value; infinite where failures make it so. None: has no value (no usage, no such token).
        counts: Metric → values behind it.
        ttft_sample_seconds, e2e_sample_seconds: Ascending, thinned; for plots.
    """

    values: Mapping[str, float | None]
    counts: Mapping[str, int]
    ttft_sample_seconds: Sequence[float] = ()
    e2e_sample_seconds: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """
    One stage of one run.

    Attributes:
        saturated: None: too little to tell.
        lag_p99_seconds, shed: The client's lateness (of sending or of its loop, the worse), and requests it held back.
        aborted: Why it was given up, a value of ``AbortReason``; "" if it ran to its end.
        skipped: Why it was not run; "" if it ran.
        failed_checks: Self-checks that failed.
        classes: Empty where it was not run.
        causes: What its failures came to, `` (18 rate_limited)``; "" where none failed, or a file does not tell.
    """

    name: str
    rate_rps: float
    saturated: bool | None
    lag_p99_seconds: float
    shed: int
    aborted: str
    skipped: str
    failed_checks: Sequence[str]
    classes: Mapping[str, MeasuredClass] = field(default_factory=dict)
    causes: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """
    One pass.

    Attributes:
        run_id: Of the gate run it came from; "" for one that is just made.
        day: UTC date, ``2026-12-01``; "" if unknown. Runs of one day share its luck.
    """

    number: int
    stages: Sequence[MeasuredStage]
    run_id: str = ""
    day: str = ""

    def stage(self, name: str) -> MeasuredStage | None:
        """The stage of this name; None: there is none."""
        return next((stage for stage in self.stages if stage.name == name), None)


@dataclass(frozen=True, slots=True)
class CellValues:
    """
    Values of one cell.

    Attributes:
        values: One per run that has one.
        count: Least number of requests behind one; 0 without any.
        given_up: First sentence on a stage that the server made us give up; "" if none.
        missing: Why runs have no value; "" if all have. ``missing_reason``: by its name.
        late: Worst lag of the client (P99, seconds) and requests it held back, over the runs.
        failed_checks: Of these stages.
    """

    values: Sequence[float]
    count: int
    given_up: str
    missing: str
    late: tuple[float, int]
    failed_checks: Sequence[str]
    missing_reason: Reason = Reason.NOT_MEASURED


def measure(run: RunResult, *, run_id: str = "", day: str = "") -> MeasuredRun:
    """Reduce one run. Warm-up is no stage of it."""
    stages = tuple(_stage(stage) for stage in run.stages if stage.plan.kind is not StageKind.WARM_UP)
    return MeasuredRun(run.number, stages, run_id, day)


def _stage(stage: StageResult) -> MeasuredStage:
    seen = stage.summary
    return MeasuredStage(
        name=stage.plan.name,
        rate_rps=stage.plan.rate_rps,
        saturated=None if seen is None else seen.saturated,
        lag_p99_seconds=0.0 if seen is None else seen.client_late_seconds,
        shed=0 if seen is None else seen.shed,
        aborted=stage.aborted,
        skipped=stage.skipped or ("" if seen is not None else "not run"),
        failed_checks=tuple(f"{check.name}: {check.detail}" for check in stage.checks if check.ok is False),
        classes={} if seen is None else {name: _class(seen, kind) for name, kind in seen.classes.items()},
        causes="" if seen is None or ALL not in seen.classes else causes_of([seen.classes[ALL]]),
    )


def same_measurement(one: MeasuredRun, other: MeasuredRun) -> bool:
    """One run twice, as a copy of a file is: every percentile of every stage and class is the same, to the last bit."""
    times = _percentiles(one)
    return bool(times) and times == _percentiles(other)


def _percentiles(run: MeasuredRun) -> dict[tuple[str, str, str], float]:
    return {
        (stage.name, kind, metric): value
        for stage in run.stages
        for kind, found in stage.classes.items()
        for metric in TIMES
        if (value := found.values.get(metric)) is not None and math.isfinite(value)
    }


def _class(stage: StageSummary, kind: ClassSummary) -> MeasuredClass:
    values: dict[str, float | None] = {}
    counts: dict[str, int] = {}
    for metric, (time, percentile, _) in TIMES.items():
        times: Distribution = getattr(kind, time)
        values[metric], counts[metric] = getattr(times, percentile), times.count
    offered = kind.ok + kind.failed
    values[FAILED_RATIO] = kind.failed / offered if offered else None
    # Of a class that no request was of, nothing was served and nothing asked for: that is no throughput of 0.
    served = stage.completed_rps * kind.ok / stage.ok if stage.ok else 0.0
    values["throughput_rps"] = served if kind.planned else None
    values["output_tokens_per_second"] = _tokens_per_second(stage, kind)
    told = stage.output_tokens_per_second is not None  # else usage came with a part of the answers, or with none
    for name, tokens in ((TOKENS_PER_ANSWER, kind.output_tokens), (PROMPT_TOKENS_PER_ANSWER, kind.prompt_tokens)):
        values[name] = tokens / kind.ok if told and tokens is not None and kind.ok else None
    cached = kind.cached_tokens if kind.prompt_tokens else None
    values[CACHED_RATIO] = cached / kind.prompt_tokens if cached is not None and kind.prompt_tokens else None
    values[WORDLESS_RATIO] = kind.wordless / kind.ok if kind.ok else None
    values[EVENTS_PER_TOKEN] = kind.events_per_token
    values[EVENTS_PER_ANSWER] = kind.events_per_answer
    for metric in (FAILED_RATIO, *LESS_IS_WORSE):
        counts[metric] = offered
    name = kind.request_class
    return MeasuredClass(
        values, counts, stage.ttft_sample_seconds.get(name, ()), stage.e2e_sample_seconds.get(name, ())
    )


def _tokens_per_second(stage: StageSummary, kind: ClassSummary) -> float | None:
    """The class's part of the stage's rate. No answer, no tokens: 0; no request, or no ``usage``: None."""
    if kind.ok == 0:
        return 0.0 if kind.planned else None
    everything = stage.classes.get(ALL)
    if stage.output_tokens_per_second is None or kind.output_tokens is None or everything is None:
        return None
    return stage.output_tokens_per_second * kind.output_tokens / everything.output_tokens if (
        everything.output_tokens
    ) else 0.0  # fmt: skip


def by_server(reason: str) -> bool:
    """Whether a stage was given up because of what the server did."""
    return reason in {one.value for one in OF_THE_SERVER}


def given_up_before(run: MeasuredRun, name: str) -> str:
    """
    Why stage ``name`` fails without a look at its values: it, or one before it in the same run, was given up because of
    the server. "": it was not.
    """
    for stage in run.stages:
        if stage.aborted and by_server(stage.aborted):
            return f"stage {stage.name} of run {run.number + 1} was given up: {explain(stage.aborted)}{stage.causes}"
        if stage.name == name:
            return ""
    return ""


def collect(runs: Sequence[MeasuredRun], cell: Cell) -> CellValues:
    """Return the values of ``cell``, and what speaks against believing them."""
    values: list[float] = []
    counts: list[int] = []
    given_up = missing = ""
    reason = Reason.NOT_MEASURED
    lag, shed = 0.0, 0
    checks: list[str] = []
    for run in runs:
        given_up = given_up or given_up_before(run, cell.stage)
        stage = run.stage(cell.stage)
        if stage is None:
            known = ", ".join(one.name for one in run.stages) or "none"
            missing = missing or f"run {run.number + 1} has no stage {cell.stage}; its stages: {known}"
            continue
        # A lag that is no number is not a small one.
        lag = max(lag, math.inf if math.isnan(stage.lag_p99_seconds) else stage.lag_p99_seconds)
        shed += stage.shed
        checks += stage.failed_checks
        why, value, count = _value(stage, cell)
        if why:
            if not missing and _nothing_due(stage, cell):
                reason = Reason.TOO_FEW_SAMPLES
            missing = missing or f"run {run.number + 1}: {why}"
        elif value is not None:
            values.append(value)
            counts.append(count)
    return CellValues(values, min(counts, default=0), given_up, missing, (lag, shed), checks, reason)


def _value(stage: MeasuredStage, cell: Cell) -> tuple[str, float | None, int]:
    if stage.skipped:
        return f"stage {stage.name} was not run: {stage.skipped}", None, 0
    if stage.aborted and not by_server(stage.aborted):
        return f"stage {stage.name} did not run to its end: {explain(stage.aborted)}", None, 0
    kind = stage.classes.get(cell.request_class)
    if kind is None:
        return f"stage {stage.name} has no class {cell.request_class}: {', '.join(stage.classes)}", None, 0
    value = kind.values.get(cell.metric)
    if _nothing_due(stage, cell):
        return (
            f"no request of class {cell.request_class} became due in stage {stage.name}: longer stages (--seconds, "
            "gate.load.stage_seconds), or a higher rate (--stages, gate.load.stages_qps)"
        ), None, 0  # fmt: skip
    if value is None or math.isnan(value):
        why = WITHOUT_USAGE if cell.metric in BY_USAGE else ""
        return f"no value of {cell.metric} for class {cell.request_class} in stage {stage.name}{why}", None, 0
    return "", value, kind.counts.get(cell.metric, 0)


def _nothing_due(stage: MeasuredStage, cell: Cell) -> bool:
    """The stage ran, and by its rate and length had no request of this class."""
    kind = stage.classes.get(cell.request_class)
    return kind is not None and not stage.aborted and kind.counts.get(FAILED_RATIO) == 0


def named_cells(
    wanted: Sequence[GatedCellSettings], reference: Sequence[MeasuredRun], first_class: str
) -> tuple[Cell, ...]:
    """
    Return the gated cells, each once, with what is left open filled in from the *reference* alone: were the candidate
    asked which stage it held, a slower one would choose its own yardstick.
    """
    stage = highest_held(reference)
    cells = (Cell(one.stage or stage, one.request_class or first_class, one.metric) for one in wanted)
    return tuple(dict.fromkeys(cells))


def highest_held(runs: Sequence[MeasuredRun]) -> str:
    """The stage of the highest rate that no run saturated or gave up; where there is none, that of the lowest rate."""
    rates: dict[str, float] = {}
    bad: set[str] = set()
    for run in runs:
        for stage in run.stages:
            rates[stage.name] = stage.rate_rps
            if stage.saturated or stage.aborted or stage.skipped:
                bad.add(stage.name)
    held = [name for name in rates if name not in bad]
    if held:
        return max(held, key=rates.__getitem__)
    return min(rates, key=rates.__getitem__, default="")
