"""
Which resource binds, by service demand over the stages (requirement F1).

Utilization law: a resource that every request needs for D seconds is busy ``U = X D`` of the time at X requests per
second, so ``D = sum(X U) / sum(X^2)`` over the stages, X the rate *achieved*: a saturated stage counts as it is, at the
X it reached and the U that goes with it. What a resource does without any request (``U`` at X = 0) belongs to no
request: where the stages show such an offset it is taken out of D, and out of the capacity, too. The largest demand,
that is the lowest ceiling, binds, and only if that ceiling is where the knee was found.

A share of *time* in which a batching engine steps, or a GPU runs some kernel, is near 1 long before the service is
full; it does not follow the law, which shows in the fit, and is then no evidence.

Occupancies (KV cache, batch slots) follow N = X R and bend: they are limits that are reached, never demands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sre.gate.host_signals import ALL_PROCESSES, without_client
from sre.gate.knee import Knee
from sre.gate.result import StageResult
from sre.gate.stages import Calibration, Resource, ResourceUse
from sre.gate.summary import StageSummary

CONFIRMED_WITHIN = 0.15
"""Between a ceiling and the knee."""
LARGEST_MISFIT = 0.25
"""Of the fit, relative: what deviates more does not follow the utilization law."""
LARGEST_IDLE = 0.5
"""A resource that is busier than this without any request says nothing about requests."""
REACHED = {Resource.KV_CACHE: 0.85, Resource.BATCH_SLOTS: 0.9}
"""Mean occupancy from which a limit counts as reached: a full KV cache swings, a whole request at a time."""
PEAK_REACHED = 0.98
"""The same of the highest KV usage, if requests were preempted, too: reached for moments."""
CPU_FULL = 0.9
"""Of the machine, the client among its processes: what is measured is how the two share it."""
LARGE_BATCH = 64
"""Above it storage is looked at first (F1)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """
    Of one resource.

    Attributes:
        seconds_per_request: Service demand D = sum(X U) / sum(X^2) over the stages, X achieved rate, U utilization
            without ``idle_utilization``.
        ceiling_rps: (1 - idle) / D; infinite where requests do not use it.
        fit_error_ratio: Root mean square of U - X D over the stages, relative to the mean U.
        idle_utilization: U at rate 0, as the stages show it; 0 where they do not.
        highest: Highest utilization seen; ``amount`` of ``capacity`` in ``unit`` there, where it was made of such.
        counts: Follows the law, so that it may bind; else ``why`` says what is wrong with it.
    """

    resource: Resource
    seconds_per_request: float
    ceiling_rps: float
    fit_error_ratio: float
    source: str
    idle_utilization: float = 0.0
    highest: float = 0.0
    stage: str = ""
    amount: float | None = None
    unit: str = ""
    capacity: float | None = None
    counts: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """
    An occupancy that reached its end: a limit reached, not a demand.

    Attributes:
        stage: The one with the lowest rate where it did.
        lasting: On average over that stage; else for moments.
    """

    resource: Resource
    highest: float
    stage: str
    source: str
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class Attribution:
    """
    What binds.

    Attributes:
        binding: None: nothing watched explains the knee, or the client was the limit; ``detail`` says which.
        confirmed: 1 / D of ``binding`` lies within 15 % of the knee; of a limit: reached at the knee, not below.
        margin_ratio: How far the next resource's ceiling lies above, of the binding one's.
    """

    binding: Resource | None
    confirmed: bool
    knee_rps: float | None
    demands: Sequence[Demand]
    limits: Sequence[Limit]
    margin_ratio: float | None
    client_ruled_out: bool
    unseen: Sequence[str]
    detail: str


@dataclass(frozen=True, slots=True)
class _Point:
    stage: str
    rate: float
    use: ResourceUse
    kv_peak: float
    """Highest KV usage where requests were preempted, too; else 0."""


def attribute(
    stages: Iterable[StageResult],
    knee: Knee | None,
    *,
    calibration: Calibration | None = None,
    client_lag_p99_seconds: float = 0.02,
) -> Attribution:
    """
    Say what binds.

    Args:
        stages: Of one mix, all runs; skipped ones are left out. Stages of several runs at one rate all count.
        knee: As found; None or without an estimate: the rate the highest saturated stage achieved stands for it.
        client_lag_p99_seconds: A stage whose client was later than this says nothing about the server.
    """
    measured = [(stage, stage.summary) for stage in stages if stage.summary is not None and stage.signals is not None]
    knee_rps = _knee_rps(knee, [summary for _, summary in measured])
    unseen = _unseen(stage for stage, _ in measured)
    client = _client(measured, calibration, client_lag_p99_seconds, knee_rps)
    points = _points(measured)
    demands = sorted(
        (demand(resource, found) for resource, found in points.items() if not found[0].use.occupancy),
        key=lambda one: (not one.counts, one.ceiling_rps),
    )
    limits = _limits(points)
    batch = max(
        (stage.signals.engine.get("running_mean", 0.0) for stage, _ in measured if stage.signals is not None),
        default=0.0,
    )

    def answer(binding: Resource | None, confirmed: bool, margin: float | None, detail: str) -> Attribution:
        return Attribution(
            binding, confirmed, knee_rps, tuple(demands), tuple(limits), margin, not client, tuple(unseen), detail
        )

    if client:
        return answer(None, False, None, f"the client was the limit, so nothing is said of the server: {client}")
    first, margin = _first(demands, knee_rps, batch)
    hint = _storage_hint(batch, demands, unseen) + _shared_hint(measured, first)
    if knee_rps is None:
        if first is None:
            return answer(None, False, None, f"the knee was not reached, and no resource shows a demand{hint}")
        said = f"the knee was not reached; {_sentence(first, 'would bind first')}{_next(demands, first, margin)}{hint}"
        return answer(first.resource, False, margin, said)
    width = _width(knee)
    if first is not None and width > CONFIRMED_WITHIN and abs(first.ceiling_rps / knee_rps - 1) <= width:
        said = (
            f"the knee is known no better than {knee_rps:.4g} requests/s give or take {width:.0%}, which confirms "
            "nothing; longer stages, or more of them (gate.knee.max_stages), narrow it; "
            f"{_sentence(first, 'would bind first')}{_next(demands, first, margin)}{hint}"
        )
        return answer(first.resource, False, margin, said)
    if first is not None and abs(first.ceiling_rps / knee_rps - 1) <= CONFIRMED_WITHIN:
        said = f"{_sentence(first, 'binds')}, and the knee is at {knee_rps:.4g}{_next(demands, first, margin)}{hint}"
        return answer(first.resource, True, margin, said)
    nearest = "" if first is None else f"; the lowest ceiling is that of {_named(first.resource)}: {_rps(first)}"
    if limits:
        limit = limits[0]
        said = (
            f"{_named(limit.resource)}: a limit was reached ({limit.highest:.0%} at {limit.stage}), and no watched "
            f"resource has its ceiling at the knee of {knee_rps:.4g} requests/s{nearest}; rests on {limit.source}{hint}"
        )
        return answer(limit.resource, limit.lasting and not _held(limit.stage, measured, knee_rps), None, said)
    return answer(
        None,
        False,
        None,
        f"no watched resource explains the knee at {knee_rps:.4g} requests/s{nearest}; look for what is not watched: "
        f"a limit on admission, a lock, a thread that does everything{hint}",
    )


def demand(resource: Resource, points: Sequence[_Point]) -> Demand:
    """Service demand of one resource over the stages."""
    rates = [point.rate for point in points]
    uses = [point.use.utilization for point in points]
    top = max(points, key=lambda point: (point.use.utilization, point.rate))
    idle = _idle(rates, uses)
    square = math.fsum(rate * rate for rate in rates)
    slope = math.fsum(rate * (use - idle) for rate, use in zip(rates, uses, strict=True)) / square if square else 0.0
    slope = max(0.0, slope)
    mean = math.fsum(uses) / len(uses)
    error = math.sqrt(
        math.fsum((use - idle - slope * rate) ** 2 for rate, use in zip(rates, uses, strict=True)) / len(uses)
    )
    misfit = error / mean if mean > 0 else 0.0
    why = ""
    if idle > LARGEST_IDLE:
        why = f"{idle:.0%} busy at any rate"
    elif misfit > LARGEST_MISFIT:
        why = f"does not grow with the rate (misfit {misfit:.0%})"
    elif len({round(rate, 6) for rate in rates}) < 2:
        why = "one rate only"
    ceiling = (1 - idle) / slope if slope > 0 else math.inf
    return Demand(
        resource, slope, ceiling, misfit, top.use.source, idle, top.use.utilization, top.stage, top.use.amount,
        top.use.unit, top.use.capacity, not why, why,
    )  # fmt: skip


def _idle(rates: Sequence[float], uses: Sequence[float]) -> float:
    """
    U at rate 0, if three rates or more show that it is not 0; else 0.

    A line with an intercept always fits better; it is believed if it halves what the line through the origin leaves,
    and the intercept stands out from what it leaves itself.
    """
    count = len(rates)
    middle_x, middle_y = math.fsum(rates) / count, math.fsum(uses) / count
    spread = math.fsum((rate - middle_x) ** 2 for rate in rates)
    square = math.fsum(rate * rate for rate in rates)
    if count < 3 or len({round(rate, 6) for rate in rates}) < 3 or spread <= 0:
        return 0.0
    slope = math.fsum((rate - middle_x) * (use - middle_y) for rate, use in zip(rates, uses, strict=True)) / spread
    intercept = middle_y - slope * middle_x
    through = math.fsum(rate * use for rate, use in zip(rates, uses, strict=True)) / square
    left_origin = math.fsum((use - through * rate) ** 2 for rate, use in zip(rates, uses, strict=True))
    left = math.fsum((use - intercept - slope * rate) ** 2 for rate, use in zip(rates, uses, strict=True))
    error = math.sqrt(left / (count - 2) * (1 / count + middle_x**2 / spread))
    if intercept > 2 * error and left < 0.5 * left_origin:
        return min(1.0, intercept)
    return 0.0


def _points(measured: Sequence[tuple[StageResult, StageSummary]]) -> Mapping[Resource, list[_Point]]:
    """Per resource what each stage showed. Two sources of one resource in a stage: the busier one counts."""
    found: dict[Resource, list[_Point]] = {}
    for stage, summary in measured:
        assert stage.signals is not None
        engine = stage.signals.engine
        peak = engine.get("kv_usage_max", 0.0) if engine.get("preemptions", 0.0) > 0 else 0.0
        uses: dict[Resource, ResourceUse] = {}
        for use in stage.signals.uses:
            if math.isfinite(use.utilization) and (
                use.resource not in uses or use.utilization > uses[use.resource].utilization
            ):
                uses[use.resource] = use
        for resource, use in uses.items():
            if use.source == ALL_PROCESSES:
                spent = summary.client_cpu_seconds_per_1000 * summary.sent / 1000
                use = without_client(use, spent, stage.signals.seconds)
            point = _Point(stage.plan.name, summary.completed_rps, use, peak)
            found.setdefault(resource, []).append(point)
    return found


def _limits(points: Mapping[Resource, Sequence[_Point]]) -> list[Limit]:
    """Occupancies that reached their end, lasting ones first, then the KV cache: it holds slots empty, too."""
    found = []
    for resource, seen in points.items():
        ordered = sorted((point for point in seen if point.use.occupancy), key=lambda point: point.rate)
        full = [point for point in ordered if point.use.utilization >= REACHED.get(resource, 0.95)]
        peaks = [point for point in ordered if resource is Resource.KV_CACHE and point.kv_peak >= PEAK_REACHED]
        if full:
            found.append(Limit(resource, full[0].use.utilization, full[0].stage, full[0].use.source))
        elif peaks:
            found.append(Limit(resource, peaks[0].kv_peak, peaks[0].stage, peaks[0].use.source, lasting=False))
    return sorted(found, key=lambda limit: (not limit.lasting, limit.resource is not Resource.KV_CACHE))


def _first(demands: Sequence[Demand], knee_rps: float | None, batch: float) -> tuple[Demand | None, float | None]:
    """
    The demand that binds, and how far above the next ceiling is, of its own.

    With a large batch storage comes first (F1) where its ceiling is as near the knee as the lowest one's.
    """
    usable = [one for one in demands if one.counts and math.isfinite(one.ceiling_rps)]
    if not usable:
        return None, None
    first = usable[0]
    if batch > LARGE_BATCH and knee_rps is not None:
        near = [one for one in usable if abs(one.ceiling_rps / knee_rps - 1) <= CONFIRMED_WITHIN]
        first = next((one for one in near if one.resource is Resource.STORAGE), first)
    others = [one.ceiling_rps for one in usable if one is not first]
    return first, min(others) / first.ceiling_rps - 1 if others else None


def _knee_rps(knee: Knee | None, summaries: Sequence[StageSummary]) -> float | None:
    if knee is not None and knee.estimate_rps is not None:
        return knee.estimate_rps
    return max((one.completed_rps for one in summaries if one.saturated), default=None)


def _width(knee: Knee | None) -> float:
    """By what share of its estimate the knee may lie elsewhere; 0: it was not searched for."""
    if knee is None or not knee.estimate_rps or knee.resolution_rps is None:
        return 0.0
    return knee.resolution_rps / knee.estimate_rps


def _client(
    measured: Sequence[tuple[StageResult, StageSummary]],
    calibration: Calibration | None,
    lag_limit: float,
    knee_rps: float | None,
) -> str:
    """Why the client may have been the limit; "": it was not."""
    if calibration is not None and calibration.client_limited:
        return calibration.reason or "calibration says so"
    for stage, summary in measured:
        if summary.shed:
            return f"it did not send {summary.shed} requests of {stage.plan.name}"
        if summary.lag_p99_seconds > lag_limit and (knee_rps is None or stage.plan.rate_rps <= 1.1 * knee_rps):
            return f"it sent {summary.lag_p99_seconds * 1000:.0f} ms late at {stage.plan.name} (P99)"
    return ""


def _held(stage: str, measured: Sequence[tuple[StageResult, StageSummary]], knee_rps: float) -> bool:
    """Whether the service held the stage, and well below the knee: a limit reached there did not end it."""
    return any(
        one.plan.name == stage and summary.saturated is False and one.plan.rate_rps < (1 - CONFIRMED_WITHIN) * knee_rps
        for one, summary in measured
    )


def _unseen(stages: Iterable[StageResult]) -> list[str]:
    """What no stage showed."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    for stage in stages:
        if stage.signals is not None:
            found.update(stage.signals.unseen)
            seen |= {use.resource.value for use in stage.signals.uses}
    return [f"{name}: {why}" for name, why in sorted(found.items()) if name not in seen]


def _storage_hint(batch: float, demands: Sequence[Demand], unseen: Sequence[str]) -> str:
    if batch <= LARGE_BATCH:
        return ""
    if any(one.resource is Resource.STORAGE for one in demands):
        return f"; the batch of {batch:.0f} is above {LARGE_BATCH}: storage was looked at first"
    why = next((entry for entry in unseen if entry.startswith(Resource.STORAGE.value)), "nobody reads it")
    return f"; the batch of {batch:.0f} is above {LARGE_BATCH}: look at storage first, which was not seen ({why})"


def _shared_hint(measured: Sequence[tuple[StageResult, StageSummary]], first: Demand | None) -> str:
    """Where target and client fill the machine's CPU together, no ceiling of the target alone is at the knee."""
    full = [
        (use.utilization, stage.plan.name)
        for stage, _ in measured
        if stage.signals is not None
        for use in stage.signals.uses
        if use.source == ALL_PROCESSES and use.utilization >= CPU_FULL
    ]
    if not full or (first is not None and first.resource is Resource.CPU and first.highest >= CPU_FULL):
        return ""
    share, stage = max(full)
    return f"; with this client the CPU of this machine was {share:.0%} used at {stage}: put the client on another one"


def _next(demands: Sequence[Demand], first: Demand, margin: float | None) -> str:
    if margin is None:
        return "; no other resource could be compared"
    other = min(
        (one for one in demands if one.counts and one is not first), key=lambda one: one.ceiling_rps, default=None
    )
    return "" if other is None else f"; next is {_named(other.resource)}, {margin:+.0%}"


def _sentence(one: Demand, verb: str) -> str:
    amount = ""
    if one.amount is not None and one.capacity is not None:
        amount = f", {one.amount:.4g} of {one.capacity:.4g} {one.unit}"
    idle = f", {one.idle_utilization:.0%} of it without requests" if one.idle_utilization >= 0.005 else ""
    return (
        f"{_named(one.resource)} {verb}: {one.highest:.0%} used at {one.stage}{amount}{idle}; "
        f"{one.seconds_per_request * 1000:.3g} ms of it per request, so {_rps(one)}; rests on {one.source}"
    )


def _rps(one: Demand) -> str:
    return f"at most {one.ceiling_rps:.4g} requests/s"


def _named(resource: Resource) -> str:
    return resource.value.replace("_", " ")
