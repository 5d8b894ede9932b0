"""
The simulated engine under a schedule of arrivals, in virtual time: hours of load in seconds, the same on every machine.

No process, no HTTP, no clock: what a request costs outside the engine's steps is not in here. A request that arrives
during a step takes part from the next step on, as in the real core.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sre.simulator.cost import CostModel
from sre.simulator.engine import Engine
from sre.simulator.kv_cache import BLOCK_TOKENS, blocks_for
from sre.simulator.scheduler import Limits, Request


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    One request of the schedule.

    Attributes:
        at: Seconds since the schedule began.
        priority: Lower goes first, if the engine's limits say so.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    priority: int = 0


@dataclass(slots=True)
class Served:
    """What became of an arrival; a moment that did not come before the end is NaN. Seconds since the schedule began."""

    arrived_at: float
    scheduled_at: float = math.nan
    first_token_at: float = math.nan
    last_token_at: float = math.nan
    preemptions: int = 0
    longest_gap_seconds: float = math.nan
    """Between two tokens; NaN where it was not asked for, or there were fewer than two."""

    @property
    def finished(self) -> bool:
        return not math.isnan(self.last_token_at)


@dataclass(frozen=True, slots=True)
class VirtualStep:
    """
    One step of the engine.

    Attributes:
        running: Requests in the batch while it lasted, those that ended with it included.
        waiting: Requests in the queue while it lasted, mean: who arrives in the middle counts half.
        tokens: Computed in it, of prompts and answers.
        kv_usage_ratio: While it lasted.
    """

    started_at: float
    seconds: float
    running: int
    waiting: float
    tokens: int
    kv_usage_ratio: float


@dataclass(frozen=True, slots=True)
class Occupancy:
    """
    Means over time, from one moment to another.

    Attributes:
        busy_ratio: Share of the time in which a step ran.
        running_mean: Requests in the batch; an idle engine holds none.
        waiting_mean: Requests in the queue.
        kv_usage_mean, kv_usage_max: Share of the KV cache.
        steps: That began in it.
    """

    busy_ratio: float
    running_mean: float
    waiting_mean: float
    kv_usage_mean: float
    kv_usage_max: float
    steps: int


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """
    The outcome.

    Attributes:
        served: One per arrival, in the order of the schedule.
        steps: In order of time.
        ended_at: End of the last step.
    """

    served: Sequence[Served]
    steps: Sequence[VirtualStep]
    ended_at: float
    limits: Limits

    def occupancy(self, begin: float, end: float) -> Occupancy:
        """Means between two moments; a step counts with the part that lies between them."""
        busy = running = waiting = kv = highest = 0.0
        count = 0
        for step in self.steps:
            if step.started_at >= end:
                break
            overlap = min(end, step.started_at + step.seconds) - max(begin, step.started_at)
            if overlap <= 0:
                continue
            count += step.started_at >= begin
            busy += overlap
            running += overlap * step.running
            waiting += overlap * step.waiting
            kv += overlap * step.kv_usage_ratio
            highest = max(highest, step.kv_usage_ratio)
        seconds = end - begin
        return Occupancy(busy / seconds, running / seconds, waiting / seconds, kv / seconds, highest, count)


def drive(
    limits: Limits,
    arrivals: Sequence[Arrival],
    *,
    seed: int = 0,
    cost: CostModel | None = None,
    slowness: float = 1.0,
    jitter: bool = True,
    until: float = math.inf,
    gaps: bool = False,
) -> VirtualRun:
    """
    Serve ``arrivals``.

    Args:
        arrivals: In order of ``at``. None may need more KV cache than there is: it would wait for ever.
        slowness: Factor on every step: 1.2 is an engine that takes a fifth longer for everything.
        gaps: Note the longest gap between tokens, too, which costs time per token.
        until: Take no step that would begin later; what is unfinished then stays so.

    Raises:
        ValueError: The arrivals are out of order, or one never fits.
    """
    served = [Served(arrival.at) for arrival in arrivals]
    for before, after in itertools.pairwise(arrivals):
        if after.at < before.at:
            raise ValueError(f"arrivals are out of order: {after.at} comes after {before.at}")
    for arrival in arrivals:
        if blocks_for(arrival.prompt_tokens + arrival.output_tokens) * BLOCK_TOKENS > limits.kv_cache_tokens:
            raise ValueError(f"a request of {arrival.prompt_tokens} + {arrival.output_tokens} tokens never fits")
    engine = Engine(limits, cost=cost, seed=seed, time_scale=1 / slowness, jitter=jitter)
    steps: list[VirtualStep] = []
    last_token: dict[int, float] = {}
    now, position, count = 0.0, 0, len(arrivals)

    def admit(moment: float) -> float:
        """Hand over who has arrived; how long they have waited together."""
        nonlocal position
        waited = 0.0
        while position < count and arrivals[position].at <= moment:
            one = arrivals[position]
            request = Request(position, one.prompt_tokens, one.output_tokens, priority=one.priority, arrived_at=one.at)
            engine.add(request, moment)
            position += 1
            waited += moment - one.at
        return waited

    while now < until:
        admit(now)
        begun = engine.begin_step(now)
        if begun is None:
            if position == count:
                break
            now = arrivals[position].at
            continue
        step, seconds = begun
        # Requests of the step, the ones that end with it included: what the engine holds while the step lasts.
        running, kv_usage = engine.batch, engine.kv_usage_ratio
        now, started_at = now + seconds, now
        report = engine.finish_step(step, now)
        waiting = report.waiting + admit(now) / seconds
        steps.append(
            VirtualStep(started_at, seconds, running, waiting, sum(tokens for _, tokens in step.scheduled), kv_usage)
        )
        for number, scheduled_at, _ in report.first:
            served[number].scheduled_at, served[number].first_token_at = scheduled_at, now
        if gaps:
            ended_now = [one.id for one in report.ended if one.token]
            for number in (*report.tokens, *ended_now):
                if number in last_token:
                    gap, longest = now - last_token[number], served[number].longest_gap_seconds
                    served[number].longest_gap_seconds = gap if math.isnan(longest) else max(longest, gap)
                last_token[number] = now
        for ended in report.ended:
            served[ended.id].last_token_at, served[ended.id].preemptions = now, ended.preemptions
    return VirtualRun(served, steps, steps[-1].started_at + steps[-1].seconds if steps else 0.0, limits)
