"""The gate's load, served by the simulated engine in virtual time: thousands of gates without a socket or a wait."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sre.gate.records import Cause, Outcome, RequestRecord
from sre.gate.stages import (
    Arrivals,
    ClientCost,
    InFlightSample,
    RequestClass,
    Resource,
    ResourceUse,
    StageKind,
    StageLoad,
    StagePlan,
    StageSignals,
)
from sre.simulator.cost import CostModel
from sre.simulator.scheduler import Limits
from sre.simulator.virtual_load import Arrival, Served, VirtualRun, drive

SHORT = RequestClass("short", 1.0, 64, 4)
"""Cheap to simulate: a few steps per request."""


@dataclass(frozen=True, slots=True)
class VirtualTarget:
    """
    What is loaded.

    Attributes:
        slowness: Factor on every engine step: 1.2 is a build that serves a fifth slower.
        slow_share, slow_factor: This share of the requests gets its tokens so many times later (counted from its
            arrival): a tail that a mean does not show.
        run_variation_ratio: Standard deviation of a factor that all steps of one run share: what the noise of days and
            neighbours does to a run.
        fixed_seconds: Outside the engine, half before and half after it: network, serialization.
        failed_ratio: Share of the requests that get an HTTP 500 at once.
        timeout_seconds: What takes longer has failed.
        client_lag_seconds: The client sends this late, every time.
    """

    limits: Limits = field(default_factory=Limits)
    slowness: float = 1.0
    slow_share: float = 0.0
    slow_factor: float = 1.0
    run_variation_ratio: float = 0.0
    fixed_seconds: float = 0.002
    failed_ratio: float = 0.0
    timeout_seconds: float = 60.0
    client_lag_seconds: float = 0.0002
    cost: CostModel | None = None


@dataclass(frozen=True, slots=True)
class VirtualStage:
    """A stage served: what the generator would hand back, what the signal reader would, and what the engine did."""

    load: StageLoad
    signals: StageSignals
    engine: VirtualRun


def plan(
    rate_rps: float,
    duration_seconds: float = 30.0,
    *,
    classes: tuple[RequestClass, ...] = (SHORT,),
    extra_classes: tuple[RequestClass, ...] = (),
    seed: int = 1,
    run: int = 0,
    kind: StageKind = StageKind.STAIRCASE,
    arrivals: Arrivals = Arrivals.POISSON,
    side: str = "candidate",
) -> StagePlan:
    """A stage named after its rate."""
    return StagePlan(
        f"{rate_rps:g}qps", kind, rate_rps, duration_seconds, classes, seed, arrivals, extra_classes, run, side
    )


def serve(stage: StagePlan, target: VirtualTarget, *, started_at: float = 1000.0, gaps: bool = False) -> VirtualStage:
    """
    Send the stage to the target. The same plan and target give the same result.

    With ``gaps`` the longest gap of a record is what it was; without, the mean stands for it: that is quicker.
    Two runs of a plan (``run`` differs) have the same schedule, as the gate's have, and other noise.
    """
    schedule = _schedule(stage)
    noise = random.Random(f"{stage.seed}/{stage.run}/{stage.side}/{stage.name}")
    # One factor per run and side, not per stage: a slow day is slow in every stage.
    day = random.Random(f"day/{stage.seed}/{stage.run}/{stage.side}").gauss(0, target.run_variation_ratio)
    half = target.fixed_seconds / 2
    failing = [noise.random() < target.failed_ratio for _ in schedule]
    lags = [target.client_lag_seconds * noise.expovariate(1.0) for _ in schedule]
    entries = sorted(
        (intended + lag + half, number)
        for number, ((intended, _), lag, fails) in enumerate(zip(schedule, lags, failing, strict=True))
        if not fails
    )
    arrivals = [
        Arrival(at, schedule[number][1].prompt_tokens, schedule[number][1].max_tokens, _priority(schedule[number][1]))
        for at, number in entries
    ]
    engine = drive(
        target.limits,
        arrivals,
        seed=noise.randrange(1 << 30),
        cost=target.cost,
        slowness=target.slowness * math.exp(day),
        gaps=gaps,
    )
    served: dict[int, Served] = {number: one for (_, number), one in zip(entries, engine.served, strict=True)}
    records = []
    for number, ((intended, kind), lag) in enumerate(zip(schedule, lags, strict=True)):
        record = RequestRecord(
            number, kind.name, started_at + intended, sent_at=started_at + intended + lag,
            asked_prompt_tokens=kind.prompt_tokens, max_tokens=kind.max_tokens,
        )  # fmt: skip
        one = served.get(number)
        if one is None:
            _fail(record, started_at + intended + lag + target.fixed_seconds, Cause.SERVER_ERROR, 500)
        else:
            _answer(record, one, target, started_at, slow=noise.random() < target.slow_share)
        records.append(record)
    stopped_at = max((record.ended_at or 0.0 for record in records), default=started_at)
    schedule_ended_at = started_at + stage.duration_seconds
    lags.sort()
    p99 = lags[math.ceil(0.99 * len(lags)) - 1] if lags else 0.0
    load = StageLoad(
        stage, len(schedule), started_at, schedule_ended_at, max(stopped_at, schedule_ended_at), records,
        _in_flight(records, started_at, max(stopped_at, schedule_ended_at)),
        ClientCost(
            0.0003 * len(schedule), 1, 0.001, lags[len(lags) // 2] if lags else 0.0, p99, max(lags, default=0.0)
        ),
    )  # fmt: skip
    return VirtualStage(load, _signals(engine, stage.duration_seconds), engine)


def staircase(
    rates_rps: Sequence[float], target: VirtualTarget, *, duration_seconds: float = 30.0, seed: int = 1, run: int = 0,
    classes: tuple[RequestClass, ...] = (SHORT,), side: str = "candidate",
) -> list[VirtualStage]:  # fmt: skip
    """Stage after stage; each begins with an idle engine, as after a drain."""
    stages = []
    started_at = 1000.0
    for position, rate in enumerate(rates_rps):
        stage = plan(rate, duration_seconds, classes=classes, seed=seed + position, run=run, side=side)
        stages.append(serve(stage, target, started_at=started_at))
        started_at = stages[-1].load.stopped_at + 1.0
    return stages


def _schedule(stage: StagePlan) -> list[tuple[float, RequestClass]]:
    """(offset, class) in order; the extra classes have schedules of their own, so that the shorts' stays the same."""
    found: list[tuple[float, RequestClass]] = []
    for name, rate, classes in (
        ("mix", stage.rate_rps, stage.classes),
        *((one.name, stage.rate_rps * one.share, (replace(one, share=1.0),)) for one in stage.extra_classes),
    ):
        chance = random.Random(f"{stage.seed}/{name}")
        at = 0.0
        while True:
            at += 1 / rate if stage.arrivals is Arrivals.CONSTANT else chance.expovariate(rate)
            if at >= stage.duration_seconds:
                break
            found.append((at, chance.choices(classes, [one.share for one in classes])[0]))
    return sorted(found, key=lambda entry: entry[0])


def _answer(record: RequestRecord, one: Served, target: VirtualTarget, started_at: float, *, slow: bool) -> None:
    """The engine's moments, as they reach the client."""
    stretch = target.slow_factor if slow else 1.0
    half = target.fixed_seconds / 2

    def seen(moment: float) -> float:
        return started_at + one.arrived_at + (moment - one.arrived_at) * stretch + half

    ended_at = seen(one.last_token_at)
    if math.isnan(ended_at) or ended_at - record.intended_at > target.timeout_seconds:
        _fail(record, record.intended_at + target.timeout_seconds, Cause.TIMEOUT, None)
        return
    record.status, record.cause, record.outcome, record.finish_reason = 200, Cause.OK, Outcome.SUCCESS, "length"
    record.prompt_tokens, record.output_tokens, record.cached_tokens = record.asked_prompt_tokens, record.max_tokens, 0
    record.first_content_at = record.head_at = record.first_chunk_at = seen(one.first_token_at)
    record.last_content_at = record.ended_at = ended_at
    record.chunks = record.max_tokens or 1
    record.gap_seconds_sum = ended_at - record.first_content_at
    if record.chunks > 1:
        known = not math.isnan(one.longest_gap_seconds)
        mean = record.gap_seconds_sum / (record.chunks - 1)
        record.max_gap_seconds = one.longest_gap_seconds * stretch if known else mean


def _fail(record: RequestRecord, at: float, cause: Cause, status: int | None) -> None:
    record.outcome, record.cause, record.status, record.ended_at = Outcome.FAILURE, cause, status, at


def _in_flight(records: Sequence[RequestRecord], started_at: float, stopped_at: float) -> list[InFlightSample]:
    """Ten samples a second."""
    begins = sorted(record.sent_at for record in records if record.sent_at is not None)
    ends = sorted(record.ended_at for record in records if record.ended_at is not None)
    samples, begun, ended, at = [], 0, 0, started_at
    while at <= stopped_at:
        while begun < len(begins) and begins[begun] <= at:
            begun += 1
        while ended < len(ends) and ends[ended] <= at:
            ended += 1
        samples.append(InFlightSample(at, begun - ended))
        at += 0.1
    return samples


def _signals(run: VirtualRun, seconds: float) -> StageSignals:
    """What a reader of the engine's metrics would find."""
    seen = run.occupancy(0.0, seconds)
    finished = [one for one in run.served if one.finished]

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / len(values) if values else 0.0

    engine = {
        "queue_seconds_mean": mean([one.scheduled_at - one.arrived_at for one in finished]),
        "prefill_seconds_mean": mean([one.first_token_at - one.scheduled_at for one in finished]),
        "decode_seconds_mean": mean([one.last_token_at - one.first_token_at for one in finished]),
        "ttft_seconds_mean": mean([one.first_token_at - one.arrived_at for one in finished]),
        "e2e_seconds_mean": mean([one.last_token_at - one.arrived_at for one in finished]),
        "running_mean": seen.running_mean,
        "waiting_mean": seen.waiting_mean,
        "kv_usage_mean": seen.kv_usage_mean,
        "kv_usage_max": seen.kv_usage_max,
        "preemptions": float(sum(one.preemptions for one in run.served)),
        "requests_finished": float(len(finished)),
    }
    uses = (
        ResourceUse(Resource.ENGINE_BUSY, seen.busy_ratio, False, "virtual engine: share of time in steps"),
        ResourceUse(Resource.KV_CACHE, seen.kv_usage_mean, True, "virtual engine: blocks in use"),
        ResourceUse(
            Resource.BATCH_SLOTS, seen.running_mean / run.limits.max_num_seqs, True, "virtual engine: running requests",
            seen.running_mean, "requests", float(run.limits.max_num_seqs),
        ),
    )  # fmt: skip
    return StageSignals(seconds, uses, engine=engine)


def _priority(kind: RequestClass) -> int:
    return next((int(value) for name, value in kind.headers if name.lower() == "x-vllm-priority"), 0)
