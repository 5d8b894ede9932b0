"""
Bounds that hold without any baseline.

They are about requests, so all runs are taken together: P99 <= bound says that at most 1 % of the requests took longer.
Three answers: more than that did (as measured; with fewer values than the percentile's floor: beyond chance) - FAIL;
fewer did, and by an exact test that is no luck - PASS; else there are too few to tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from sre.gate.cells import (
    FAILED_RATIO,
    TIMES,
    MeasuredRun,
    collect,
    given_up_before,
    measure,
)
from sre.gate.judging import Doubt, JudgePolicy, doubt_of_stage
from sre.gate.percentiles import (
    CONFIDENCE,
    binomial_at_most,
    bound_ranks,
    count_at_most,
    rank,
    sample_floor,
    thinned_positions,
)
from sre.gate.records import Cause
from sre.gate.result import RunResult, StageResult
from sre.gate.same_work import without_text
from sre.gate.stages import StageKind
from sre.gate.statistics import wilson
from sre.gate.summary import ALL, Distribution, StageSummary, causes_of
from sre.gate.verdict import Cell, CellVerdict, Reason, Verdict
from sre.settings.gate import ObjectiveSettings

KIND = "objective"
SEND_MORE = "send more (--seconds, gate.load.stage_seconds)"
NO_USAGE = "the server reports no usage, or not with all its answers: its tokens are not counted"

NEVER_THE_CLIENTS = frozenset(
    {Cause.SERVER_ERROR, Cause.ERROR_EVENT, Cause.CLIENT_ERROR, Cause.REDIRECT, Cause.NO_CONTENT, Cause.MALFORMED,
     Cause.TOO_MANY_TOKENS}
)  # fmt: skip
"""
Failures that no lateness of the client can cause: the server said them. Timeouts, lost connections and refusals are not
among them: a client that sends in clumps can bring those about.
"""


@dataclass(frozen=True, slots=True)
class Share:
    """Requests over a bound, of all: ``at_least`` so many, ``at_most`` so many; equal where all of them are kept."""

    at_least: int
    at_most: int
    total: int

    def __add__(self, other: Share) -> Share:
        return Share(self.at_least + other.at_least, self.at_most + other.at_most, self.total + other.total)


def judge_objectives(
    runs: Sequence[RunResult], measured: Sequence[MeasuredRun], policy: JudgePolicy, doubt: Doubt | None
) -> tuple[CellVerdict, ...]:
    """
    Return one judgement per objective, stage and metric.

    Args:
        measured: The same runs, reduced.
        doubt: In the whole run.
    """
    found = []
    for objective in policy.objectives:
        for stage in _stages(runs, objective):
            for metric, bound in _bounds(objective):
                cell = Cell(stage, objective.request_class or ALL, metric)
                found.append(_judge(cell, bound, runs, measured, policy, doubt))
    return tuple(found)


def _stages(runs: Sequence[RunResult], objective: ObjectiveSettings) -> tuple[str, ...]:
    """Names of the stages it holds at, in order, skipped ones too. One that it names is among them, there or not."""
    if objective.stage is not None:
        return (objective.stage,)
    highest = math.inf if objective.max_qps is None else objective.max_qps * (1 + 1e-9)
    return tuple(
        dict.fromkeys(
            stage.plan.name
            for run in runs
            for stage in run.stages
            if stage.plan.kind is StageKind.STAIRCASE and stage.plan.rate_rps <= highest
        )
    )


def breaks_objective(stages: Sequence[StageResult], objectives: Sequence[ObjectiveSettings]) -> bool:
    """
    Whether these stages of one pass break an objective by being given up because of the server: a bound at such a
    stage, or at one after it, cannot hold any more (``cells.given_up_before``). Beyond all bounds nothing is decided: a
    service that sheds load above its capacity does what it should.
    """
    pass_ = RunResult(0, "", stages, 0.0)
    measured = measure(pass_)
    return any(
        given_up_before(measured, name)
        for objective in objectives
        if _bounds(objective)
        for name in _stages((pass_,), objective)
        if measured.stage(name) is not None
    )


def _bounds(objective: ObjectiveSettings) -> tuple[tuple[str, float], ...]:
    bounds = (
        ("ttft_p99_seconds", objective.ttft_p99_seconds),
        ("ttft_p95_seconds", objective.ttft_p95_seconds),
        ("tpot_p99_seconds", objective.tpot_p99_seconds),
        ("e2e_p99_seconds", objective.e2e_p99_seconds),
        ("e2e_p95_seconds", objective.e2e_p95_seconds),
        (FAILED_RATIO, objective.failed_ratio),
        ("throughput_ratio", objective.throughput_ratio),
        ("output_tokens_per_second", objective.output_tokens_per_second),
    )
    return tuple((name, bound) for name, bound in bounds if bound is not None)


def _judge(
    cell: Cell,
    bound: float,
    runs: Sequence[RunResult],
    measured: Sequence[MeasuredRun],
    policy: JudgePolicy,
    doubt: Doubt | None,
) -> CellVerdict:
    summaries = [stage.summary for run in runs for stage in run.stages if stage.plan.name == cell.stage]
    seen = [summary for summary in summaries if summary is not None and cell.request_class in summary.classes]
    looked_up = Cell(cell.stage, cell.request_class, "throughput_rps") if cell.metric == "throughput_ratio" else cell
    values = collect(measured, looked_up)
    shown = _ratios(seen, cell.request_class) if cell.metric == "throughput_ratio" else tuple(values.values)

    def verdict(answer: Verdict, reason: Reason, detail: str) -> CellVerdict:
        return CellVerdict(cell, KIND, answer, reason, shown, bound=bound, detail=detail)

    doubt = doubt or doubt_of_stage(*values.late, values.failed_checks, policy)
    if doubt is not None:
        if doubt.reason is Reason.CLIENT_LIMITED and cell.metric == FAILED_RATIO:
            said = _said_by_server(seen, cell.request_class)
            if said.total and wilson(said.at_least, said.total)[0] > bound:
                return verdict(
                    Verdict.FAIL,
                    Reason.OBJECTIVE_MISSED,
                    f"{_of(said.at_least, said.total)} were answered with an error of the server's own, more than "
                    f"{bound:.2%}; no slowness of the client causes that",
                )
        return verdict(Verdict.INCONCLUSIVE, doubt.reason, doubt.detail)
    if values.given_up:
        return verdict(Verdict.FAIL, Reason.STAGE_GIVEN_UP, values.given_up)
    answer = _answer(cell, bound, seen, shown)
    # A run without a value takes nothing away from a bound that the others miss.
    if answer[0] is not Verdict.FAIL and (values.missing or not seen):
        return verdict(Verdict.INCONCLUSIVE, values.missing_reason, values.missing or "nothing was measured")
    if answer[0] is Verdict.PASS and (why := without_text(measured, cell)):
        return verdict(Verdict.INCONCLUSIVE, Reason.WITHOUT_TEXT, f"{answer[2]}; {why}")
    return verdict(*answer)


Answer = tuple[Verdict, Reason, str]


def _answer(cell: Cell, bound: float, seen: Sequence[StageSummary], shown: Sequence[float]) -> Answer:
    if cell.metric == "throughput_ratio":
        return _throughput(bound, seen, cell.request_class)
    if cell.metric == "output_tokens_per_second":
        if not shown:
            return (
                Verdict.INCONCLUSIVE,
                Reason.NOT_MEASURED,
                NO_USAGE,
            )
        mean = fmean(shown)
        return _by_value(mean >= bound, f"{mean:.0f} output tokens per second, bound {bound:g} at least")
    if cell.metric == FAILED_RATIO:
        kinds = [summary.classes[cell.request_class] for summary in seen]
        share = sum((Share(kind.failed, kind.failed, kind.ok + kind.failed) for kind in kinds), Share(0, 0, 0))
        detail = f"{_of(share.at_least, share.total)} failed{causes_of(kinds)}, bound {bound:.2%}"
        return _by_share(share, bound, detail, "allow a larger share")
    _, _, quantile = TIMES[cell.metric]
    share = sum((_over(summary, cell, bound) for summary in seen), Share(0, 0, 0))
    allowed = 1 - quantile
    return _by_share(
        share,
        allowed,
        f"{_of(share.at_least, share.total)} took longer than {bound:g} s or failed, {allowed:.0%} may",
        "judge a lower percentile",
    )


def _by_value(holds: bool, detail: str) -> Answer:
    if holds:
        return Verdict.PASS, Reason.WITHIN_OBJECTIVES, detail
    return Verdict.FAIL, Reason.OBJECTIVE_MISSED, detail


def _by_share(share: Share, allowed: float, detail: str, instead: str) -> Answer:
    """At most ``allowed`` of the requests may be over. ``instead``: what else to ask, where there are too few."""
    if share.total == 0:
        return Verdict.INCONCLUSIVE, Reason.NOT_MEASURED, "no request was answered or failed"
    if allowed <= 0 or allowed >= 1:  # no share of a population, but a plain count
        return _by_value(share.at_most <= allowed * share.total, detail)
    floor = sample_floor(1 - allowed)
    if share.total >= floor:
        missed = share.at_least > share.total - rank(share.total, 1 - allowed)
    else:
        missed = wilson(share.at_least, share.total, CONFIDENCE)[0] > allowed
    if missed:
        return Verdict.FAIL, Reason.OBJECTIVE_MISSED, detail
    if binomial_at_most(share.at_most, share.total, allowed) <= 1 - CONFIDENCE:
        return Verdict.PASS, Reason.WITHIN_OBJECTIVES, detail
    why = f"at least {floor} are needed" if share.total < floor else "too close to the bound for so few"
    return Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES, f"{detail}: {why}; {SEND_MORE}, or {instead}"


def _over(summary: StageSummary, cell: Cell, bound: float) -> Share:
    """
    How many of the class took longer than ``bound``, from what is kept of them: percentiles, and a sample by rank.

    Every value kept is one of known rank, so each of them bounds the count from one side.
    """
    time, _, _ = TIMES[cell.metric]
    seen: Distribution = getattr(summary.classes[cell.request_class], time)
    total = seen.count
    samples = {"ttft": summary.ttft_sample_seconds, "e2e": summary.e2e_sample_seconds}.get(time, {})
    sample = samples.get(cell.request_class, ())
    fewest, most = seen.infinite, total
    for place, value in _ranked(seen):
        if value <= bound:
            most = min(most, total - place)
        else:
            fewest = max(fewest, total - place + 1)
    positions = thinned_positions(total, max(2, len(sample)))
    if sample and len(sample) == len(positions):
        within = count_at_most(sample, bound)
        if within > 0:
            most = min(most, total - positions[within - 1] - 1)
        if within < len(sample):
            fewest = max(fewest, total - positions[within])
    return Share(min(fewest, most), max(fewest, most), total)


def _ranked(seen: Distribution) -> list[tuple[int, float]]:
    """(rank from 1, value) of every percentile that is kept."""
    low, high = bound_ranks(seen.count, 0.99)
    kept = [(rank(seen.count, quantile), value) for quantile, value in _percentiles(seen)] if seen.count else []
    kept += [(place, value) for place, value in ((low, seen.p99_lower), (high, seen.p99_upper)) if place is not None]
    return [(place, value) for place, value in kept if value is not None]


def _percentiles(seen: Distribution) -> tuple[tuple[float, float | None], ...]:
    return ((0.5, seen.p50), (0.9, seen.p90), (0.95, seen.p95), (0.99, seen.p99), (0.999, seen.p999))


def _ratios(seen: Sequence[StageSummary], request_class: str) -> tuple[float, ...]:
    return tuple(_ratio(summary, request_class) for summary in seen)


def _ratio(summary: StageSummary, request_class: str) -> float:
    """Answers per second over arrivals per second, of the class, both in the steady part of the stage."""
    kind = summary.classes[request_class]
    everything = summary.classes[ALL].planned if ALL in summary.classes else summary.planned
    rate = summary.offered_rps if summary.steady_offered_rps is None else summary.steady_offered_rps
    offered = rate * kind.planned / everything if everything else 0.0
    answered = summary.completed_rps * kind.ok / summary.ok if summary.ok else 0.0
    return answered / offered if offered > 0 else 0.0


def _throughput(bound: float, seen: Sequence[StageSummary], request_class: str) -> Answer:
    """
    Answers over arrivals. The answers are counted in a part of the stage, so chance moves the ratio: by 1/sqrt(n) for n
    requests. Three times that below the bound is a miss, anything below it is not known.
    """
    requests = sum(summary.classes[request_class].planned for summary in seen)
    if not requests:
        return Verdict.INCONCLUSIVE, Reason.NOT_MEASURED, "nothing was sent"
    ratio = fmean(_ratios(seen, request_class))
    chance = 3 / math.sqrt(requests)
    detail = f"answered {ratio:.1%} of the rate offered, bound {bound:.1%} at least"
    if ratio >= bound:
        return Verdict.PASS, Reason.WITHIN_OBJECTIVES, detail
    if ratio + chance < bound:
        return Verdict.FAIL, Reason.OBJECTIVE_MISSED, detail
    return (
        Verdict.INCONCLUSIVE,
        Reason.TOO_FEW_SAMPLES,
        f"{detail}; with {requests} requests chance moves it {chance:.1%}: {SEND_MORE}",
    )


def _said_by_server(seen: Sequence[StageSummary], request_class: str) -> Share:
    kinds = [summary.classes[request_class] for summary in seen]
    said = sum(kind.causes.get(cause.value, 0) for kind in kinds for cause in NEVER_THE_CLIENTS)
    return Share(said, said, sum(kind.ok + kind.failed for kind in kinds))


def _of(part: int, total: int) -> str:
    return f"{part} of {total} requests ({part / total:.2%})" if total else "none of 0 requests"
