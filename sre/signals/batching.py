"""
Batch sizes and batch formation of one engine, accumulated from one sample per tick.

vLLM has no histogram of either: the batch size is a gauge, so it is weighted by the time it was held; of the waiting
times the sum and the number are taken, so that each tick gives the mean of the requests counted in it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sre.metrics.signals import QUEUE_SECONDS_TOTAL, QUEUED_REQUESTS_TOTAL, REQUESTS_RUNNING
from sre.signals.types import NEVER, EngineSeen, ProcessIdentity, Reading, Seen


@dataclass(frozen=True, slots=True)
class Weighted:
    """
    A histogram whose observations weigh something.

    Attributes:
        bounds: Upper bounds, ascending, +Inf left out.
        weights: Weight per bucket, +Inf's last; not cumulative.
        total: Sum of value times weight.
    """

    bounds: tuple[float, ...]
    weights: tuple[float, ...]
    total: float = 0.0

    @staticmethod
    def empty(bounds: Sequence[float]) -> Weighted:
        return Weighted(tuple(bounds), (0.0,) * (len(bounds) + 1))

    def add(self, value: float, weight: float) -> Weighted:
        """One observation of ``value``; a bound belongs to its bucket."""
        weights = list(self.weights)
        weights[bisect.bisect_left(self.bounds, value)] += weight
        return replace(self, weights=tuple(weights), total=self.total + value * weight)

    @property
    def count(self) -> float:
        """All the weight."""
        return self.cumulative[-1]

    @property
    def cumulative(self) -> tuple[float, ...]:
        """Weight at or below each bound, then all of it. Never falls from one to the next."""
        sums: list[float] = []
        for weight in self.weights:
            sums.append((sums[-1] if sums else 0.0) + weight)
        return tuple(sums)


@dataclass(frozen=True, slots=True)
class Batching:
    """
    What one engine's samples came to.

    Attributes:
        sizes: Seconds spent at each number of running requests; None until that number was seen.
        waits: Requests by how long they waited; None until their sum was seen.
    """

    sizes: Weighted | None = None
    waits: Weighted | None = None
    sized_at: float | None = None
    """When the number of running requests was last seen; None: not seen at the last try."""
    waited: tuple[float, float] | None = None
    """(seconds, requests) at the last sample: totals of the engine's process."""
    steps: float | None = None
    identity: ProcessIdentity | None = None


def observe(
    before: Batching,
    engine: EngineSeen,
    *,
    size_bounds: Sequence[float],
    wait_bounds: Sequence[float],
    longest_gap_seconds: float,
) -> Batching:
    """
    Return ``before`` and the samples of ``engine``.

    A sample stands for the time since the one before it, at most ``longest_gap_seconds``. One that is not new, or not
    seen, stands for nothing; neither does the first one after that. Totals of another process than before, or that
    fell, are a new beginning: what lies between is not known and not counted.
    """
    after = _sized(before, engine.signals.get(REQUESTS_RUNNING, NEVER), size_bounds, longest_gap_seconds)
    return _waited(after, engine, wait_bounds)


def _sized(before: Batching, running: Reading, bounds: Sequence[float], longest_gap_seconds: float) -> Batching:
    if running.seen is Seen.NEVER:
        return before
    if running.value is None:
        return replace(before, sized_at=None)
    sizes = before.sizes or Weighted.empty(bounds)
    if before.sized_at is None:
        return replace(before, sizes=sizes, sized_at=running.sampled_at)
    gap = running.sampled_at - before.sized_at
    if gap <= 0:
        return before
    return replace(before, sizes=sizes.add(running.value, min(gap, longest_gap_seconds)), sized_at=running.sampled_at)


def _waited(before: Batching, engine: EngineSeen, bounds: Sequence[float]) -> Batching:
    seconds = engine.signals.get(QUEUE_SECONDS_TOTAL, NEVER).value
    requests = engine.signals.get(QUEUED_REQUESTS_TOTAL, NEVER).value
    steps = engine.steps_total.value
    if seconds is None or requests is None:
        return before
    same_process = (engine.identity is None or before.identity is None or engine.identity == before.identity) and (
        steps is None or before.steps is None or steps >= before.steps
    )
    waits = before.waits or Weighted.empty(bounds)
    if before.waited is not None and same_process:
        more_seconds, more_requests = seconds - before.waited[0], requests - before.waited[1]
        if more_requests > 0 and more_seconds >= 0:
            waits = waits.add(more_seconds / more_requests, more_requests)
    return replace(
        before,
        waits=waits,
        waited=(seconds, requests),
        steps=before.steps if steps is None and same_process else steps,
        identity=engine.identity or before.identity,
    )
