"""
From settings to stages: what one gate run sends, in which order, and how long that takes.

Stages of one name have the same schedule in every run of one seed and number, so that two servers see the same load:
the seed of a stage depends on the configured seed, the number of the run and the stage's rate, and on nothing else.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sre.gate.stages import Arrivals, RequestClass, StageKind, StagePlan
from sre.settings.gate import GateSettings, LoadSettings, LongTailSettings, RequestClassSettings

CANDIDATE = "candidate"
SIDE_A, SIDE_B = "A", "B"
LONG = "long"
"""Name of the class of long prompts; a class of the mix with this name makes it ``long-2``."""
TRACE = "trace"


class Step(enum.Enum):
    """Half of a pair in the long-tail test."""

    SHORTS = "shorts"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Trace:
    """What of a trace file the plan needs: how many arrivals, over which time; and a digest that names it."""

    requests: int
    seconds: float
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much a plan sends, and for how long. ``seconds`` without drains; ``longest_seconds`` with all of them."""

    requests: int
    seconds: float
    longest_seconds: float


def stage_name(rate_rps: float) -> str:
    """``100qps``, ``0.5qps``: the stage part of a cell's name."""
    return f"{rate_rps:.6g}qps"


def classes(mix: Sequence[RequestClassSettings]) -> tuple[RequestClass, ...]:
    """The mix of the settings."""
    return tuple(
        RequestClass(
            kind.name, kind.share, kind.prompt_tokens, kind.max_tokens, kind.fixed_length, tuple(kind.headers.items())
        )
        for kind in mix
    )


def rates(load: LoadSettings) -> tuple[float, ...]:
    """Rates of the staircase, scaled, rising."""
    return tuple(rate * load.qps_scale for rate in load.stages_qps)


def seed_of(seed: int, run: int, what: str) -> int:
    """Seed of one stage, 32 bits: equal for equal arguments, on every machine."""
    return zlib.crc32(f"{seed}/{run}/{what}".encode())


def staircase(load: LoadSettings, run: int, side: str = CANDIDATE, trace: Trace | None = None) -> tuple[StagePlan, ...]:
    """The stages of pass ``run``; with a trace one stage that replays it."""
    mix = classes(load.mix)
    if trace is not None:
        seconds = max(trace.seconds, 0.001)
        plan = StagePlan(
            name=TRACE,
            kind=StageKind.STAIRCASE,
            rate_rps=trace.requests / seconds,
            duration_seconds=seconds,
            classes=mix,
            seed=seed_of(load.seed, run, TRACE),
            arrivals=Arrivals.REPLAY,
            run=run,
            side=side,
        )
        return (plan,)
    return tuple(_stage(load, rate, StageKind.STAIRCASE, run, side) for rate in rates(load))


def warm_up(load: LoadSettings, trace: Trace | None = None) -> StagePlan | None:
    """
    The stage that is not measured; None: none is wanted.

    At the first stage's rate, never above it: a burst would be a load test of its own, and leave a queue behind. No
    longer than a stage for the sake of its requests: at a low rate they would take hours.
    """
    rate = rates(load)[0] if trace is None else trace.requests / max(trace.seconds, 0.001)
    stage_seconds = load.stage_seconds if trace is None else trace.seconds
    seconds = max(load.warm_up_seconds, min(load.warm_up_requests / rate, stage_seconds))
    if seconds <= 0:
        return None
    return StagePlan(
        name="warm-up",
        kind=StageKind.WARM_UP,
        rate_rps=rate,
        duration_seconds=seconds,
        classes=classes(load.mix),
        seed=seed_of(load.seed, 0, "warm-up"),
        arrivals=Arrivals(load.arrivals),
    )


def knee_stage(load: LoadSettings, rate_rps: float, probe: int) -> StagePlan:
    """
    One probe of the search for the knee: arrivals evenly spread. What a service holds does not depend on how they
    come, and chance in their number would hide a rate that is too high, most of all in a short stage.
    """
    return replace(_stage(load, rate_rps, StageKind.KNEE, probe, CANDIDATE), arrivals=Arrivals.CONSTANT)


def sides(runs: int, interleaved: bool) -> tuple[tuple[int, str], ...]:
    """
    (run, side) of every pass, in order.

    Interleaved: A B, B A, A B, …: a drift of the machine over time falls on both sides alike.
    """
    if not interleaved:
        return tuple((run, CANDIDATE) for run in range(runs))
    pairs = [((run, SIDE_A), (run, SIDE_B)) for run in range(runs)]
    return tuple(step for run, pair in enumerate(pairs) for step in (pair if run % 2 == 0 else pair[::-1]))


def long_tail_obstacle(long_tail: LongTailSettings, max_model_len: int | None) -> str:
    """Why the long prompts cannot be sent to a server with this context; "": they can, or it does not tell."""
    needed = long_tail.long_prompt_tokens + long_tail.long_max_tokens
    if max_model_len is None or max_model_len >= needed:
        return ""
    fits = max_model_len - long_tail.long_max_tokens
    remedy = f"try --long-tokens {fits}" if fits > 0 else "its context is too short for any long prompt"
    return f"max_model_len {max_model_len} is less than the {needed} tokens of a long request and its answer; {remedy}"


def long_tail_stages(load: LoadSettings, long_tail: LongTailSettings, run: int, policy: str) -> dict[Step, StagePlan]:
    """
    Shorts alone, and the same shorts with longs beside them.

    The shorts' schedule is the same in both: same rate, same seed. Longs come besides, at r · s / (1 - s) for a share s
    of all arrivals (r/9 for 10 %): taking them out of the shorts' rate would relieve the server while it is loaded.
    """
    rate = long_tail.qps * load.qps_scale if long_tail.qps is not None else rates(load)[0]
    shorts = classes(load.mix)
    name = LONG
    while name in {kind.name for kind in shorts}:
        name += "-2"
    longs = RequestClass(
        name,
        long_tail.long_share / (1 - long_tail.long_share),
        long_tail.long_prompt_tokens,
        long_tail.long_max_tokens,
        all(kind.fixed_length for kind in shorts),
    )
    alone = StagePlan(
        name=f"{rate:.6g}qps-shorts",
        kind=StageKind.SHORTS,
        rate_rps=rate,
        duration_seconds=long_tail.seconds,
        classes=shorts,
        seed=seed_of(load.seed, run, f"long-tail {rate:.6g}"),
        arrivals=Arrivals(load.arrivals),
        run=run,
        arm=policy,
    )
    mixed = replace(alone, name=f"{rate:.6g}qps-mixed", kind=StageKind.MIXED, extra_classes=(longs,))
    return {Step.SHORTS: alone, Step.MIXED: mixed}


def long_tail_order(runs: int, policies: Sequence[str]) -> tuple[tuple[int, str, Step], ...]:
    """
    (run, policy, step) of the whole long-tail test: every second run backwards, so that drift falls on all alike.
    """
    order: list[tuple[int, str, Step]] = []
    for run in range(runs):
        steps = [(run, policy, step) for policy in policies for step in (Step.SHORTS, Step.MIXED)]
        order += steps if run % 2 == 0 else steps[::-1]
    return tuple(order)


def top_rate(settings: GateSettings, trace: Trace | None = None) -> float:
    """The highest rate this gate may send: what the client is calibrated at."""
    found = [trace.requests / max(trace.seconds, 0.001)] if trace is not None else list(rates(settings.load))
    if settings.long_tail.enabled:
        step = long_tail_stages(settings.load, settings.long_tail, 0, "")[Step.MIXED]
        found.append(total_rate(step))
    return max(found)


def total_rate(plan: StagePlan) -> float:
    """Arrivals per second, those beside the mix included."""
    return plan.rate_rps * (1 + sum(kind.share for kind in plan.extra_classes))


def planned_requests(plan: StagePlan) -> int:
    """About how many requests a stage sends."""
    return round(total_rate(plan) * plan.duration_seconds)


def plan_all(settings: GateSettings, *, interleaved: bool = False, trace: Trace | None = None) -> tuple[StagePlan, ...]:
    """
    Every stage that is known beforehand, in order, for the dry run. The search for the knee depends on what is seen.
    """
    load, plans = settings.load, []
    if (first := warm_up(load, trace)) is not None:
        plans += [first] * (2 if interleaved else 1)
    for run, side in sides(settings.baseline.runs, interleaved):
        plans += staircase(load, run, side, trace)
    if settings.long_tail.enabled:
        policies = policy_names(settings.long_tail, interleaved=interleaved)
        for run, policy, step in long_tail_order(settings.long_tail.runs, policies):
            plans.append(long_tail_stages(load, settings.long_tail, run, policy)[step])
    return tuple(plans)


def policy_names(long_tail: LongTailSettings, *, interleaved: bool = False) -> tuple[str, ...]:
    """Arms of the long-tail test: "" is the target itself, SIDE_B the other side of an interleaved comparison."""
    return ("", *((SIDE_B,) if interleaved else ()), *(policy.name for policy in long_tail.policies))


def amount(plans: Sequence[StagePlan], settings: GateSettings, *, knee: bool) -> Amount:
    """How much ``plans`` and the search for the knee send, at the most."""
    load = settings.load
    requests = sum(planned_requests(plan) for plan in plans)
    seconds = sum(plan.duration_seconds for plan in plans)
    drains = len(plans) * load.drain_seconds
    if knee:
        probes = settings.knee.max_stages
        requests += round(probes * rates(load)[-1] * load.stage_seconds)
        drains += probes * (load.stage_seconds + load.drain_seconds)
    return Amount(requests, seconds, seconds + drains)


def _stage(load: LoadSettings, rate: float, kind: StageKind, run: int, side: str) -> StagePlan:
    name = stage_name(rate)
    return StagePlan(
        name=name,
        kind=kind,
        rate_rps=rate,
        duration_seconds=load.stage_seconds,
        classes=classes(load.mix),
        seed=seed_of(load.seed, run, f"{kind.value} {name}"),
        arrivals=Arrivals(load.arrivals),
        run=run,
        side=side,
    )
