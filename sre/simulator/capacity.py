"""
Capacity of the simulated engine, computed: requests per second at which its queue begins to grow without end.

Under saturation the queue always holds someone. Let ``a`` requests enter, and as many leave, per step. A request with a
prompt of p tokens and an answer of g takes p tokens of prefill (the step that ends it brings the first token) and g - 1
decode tokens, so with means over the mix

* slots:   it sits in the batch for g steps, c - 1 more where its prompt is cut; ``a <= N / (g + c - 1)``, N the batch
* kv:      the same with N = blocks of the cache / mean blocks that a request holds while it is in the batch
* tokens:  ``a (p + g - 1) <= T``, T the tokens of a step (chunked prefill only)

Where two of them are near each other, neither is reached: prompts wait for tokens while they hold slots. That is a
closed network of N customers with one server (prefill, ``T - a (g - 1)`` tokens per step, first come first served) and
a delay (g steps). Its throughput is found by mean value analysis with the residual of the prompt lengths, since these
are not exponential; ``a`` is the fixed point.

A step then lasts ``(max(compute, prefill) + kv_read) / (1 - scheduling share)``, as in ``sre.simulator.cost``. The
maximum of the two is convex, so the mean of the prefill is not enough: entries per step are taken as Poisson with mean
``a`` (a compound Poisson distribution over the prompts, by Panjer's recursion); what exceeds the tokens of a step is
carried on and makes other steps full, so that the mean stays. The capacity is ``a / mean step``.

What it does not know: preemptions (the work they repeat; 1 to 2 % in the tests), and that answers of one fixed length
keep the phase of their arrival: in a small batch all may enter in the same step, for ever, which moves the capacity
of batches of 8 by up to 6 %. No prefix cache.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sre.simulator.cost import CostModel, Prefill, scheduling_share
from sre.simulator.kv_cache import BLOCK_TOKENS, blocks_for
from sre.simulator.scheduler import Limits

LATTICE_POINTS = 2000
"""Resolution of the distribution of prefill per step."""


class Bound(enum.Enum):
    """The limit that is reached first."""

    SLOTS = "slots"  # max_num_seqs
    KV_CACHE = "kv_cache"  # kv_cache_tokens
    STEP_TOKENS = "step_tokens"  # max_num_batched_tokens


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one size. ``share`` of the arrivals; the shares of a mix sum to 1."""

    prompt_tokens: int
    output_tokens: int
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """
    The outcome.

    Attributes:
        bound: The limit that alone would allow the fewest.
        entries_per_step: Requests that enter, and leave, per step.
        batch: Requests in the batch, mean.
    """

    requests_per_second: float
    bound: Bound
    entries_per_step: float
    step_seconds: float
    batch: float


@dataclass(frozen=True, slots=True)
class _Mix:
    """Means over a mix; ``*_square`` means of squares."""

    prompt: float
    prompt_square: float
    output: float
    block_steps: float
    """Blocks held, summed over the steps in the batch."""
    context_steps: float
    """Tokens in the KV cache, summed over the decode steps."""


def capacity(limits: Limits, mix: Sequence[Kind], cost: CostModel | None = None) -> Capacity:
    """Capacity for a mix, in requests per simulated second."""
    cost = cost or CostModel()
    means = _means(mix)
    by_cache = limits.kv_cache_tokens // BLOCK_TOKENS * means.output / means.block_steps
    batch = min(float(limits.max_num_seqs), by_cache)
    bound = Bound.SLOTS if batch == limits.max_num_seqs else Bound.KV_CACHE
    entries = batch / means.output
    if limits.chunked_prefill:
        most = limits.max_num_batched_tokens / (means.prompt + means.output - 1)
        if most < entries:
            bound = Bound.STEP_TOKENS
        entries = _entries(batch, min(most, entries), limits.max_num_batched_tokens, means)
    step = _step_seconds(entries, limits, mix, means, cost)
    return Capacity(entries / step, bound, entries, step, entries * means.output)


def _means(mix: Sequence[Kind]) -> _Mix:
    def mean(value: list[float]) -> float:
        return math.fsum(kind.share * one for kind, one in zip(mix, value, strict=True))

    return _Mix(
        mean([kind.prompt_tokens for kind in mix]),
        mean([kind.prompt_tokens**2 for kind in mix]),
        mean([kind.output_tokens for kind in mix]),
        mean([sum(blocks_for(kind.prompt_tokens + step) for step in range(kind.output_tokens)) for kind in mix]),
        mean([sum(kind.prompt_tokens + step for step in range(kind.output_tokens - 1)) for kind in mix]),
    )


def _entries(batch: float, most: float, step_tokens: int, means: _Mix) -> float:
    """Entries per step where slots (or cache) and the tokens of a step act together: the fixed point, by bisection."""
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        left = step_tokens - middle * (means.output - 1)
        if left <= 0 or _network(round(batch), means, left) < middle:
            high = middle
        else:
            low = middle
    return low


def _network(customers: int, means: _Mix, tokens_per_step: float) -> float:
    """Throughput per step of the closed network of prefill and delay."""
    service = means.prompt / tokens_per_step
    residual = means.prompt_square / (2 * means.prompt) / tokens_per_step
    queue = utilization = throughput = 0.0
    for count in range(1, max(1, customers) + 1):
        response = service + utilization * residual + max(0.0, queue - utilization) * service
        throughput = count / (response + means.output)
        queue, utilization = throughput * response, throughput * service
    return throughput


def _step_seconds(entries: float, limits: Limits, mix: Sequence[Kind], means: _Mix, cost: CostModel) -> float:
    """Mean duration of a step."""
    decoding = entries * (means.output - 1)
    prefills = [cost.prefill_seconds([Prefill(kind.prompt_tokens, 0)]) for kind in mix]
    per_request = math.fsum(kind.share * seconds for kind, seconds in zip(mix, prefills, strict=True))
    tokens_per_second = means.prompt / per_request

    def work(prefill: float) -> float:
        return max(cost.compute_seconds(decoding + prefill * tokens_per_second), prefill)

    unit, weights = _compound(entries, [kind.share for kind in mix], prefills)
    most, full = math.inf, 0.0
    if limits.chunked_prefill:
        most = (limits.max_num_batched_tokens - decoding) / tokens_per_second
        within = math.fsum(weight * min(position * unit, most) for position, weight in enumerate(weights))
        full = min(1.0, max(0.0, (entries * per_request - within) / (most - within))) if most > within else 1.0
    usual = math.fsum(weight * work(min(position * unit, most)) for position, weight in enumerate(weights))
    busy = usual if not full else (1 - full) * usual + full * work(most)
    busy += cost.kv_read_seconds(decoding, entries * means.context_steps)
    return busy / (1 - scheduling_share(decoding + entries))


def _compound(entries: float, shares: Sequence[float], sizes: Sequence[float]) -> tuple[float, list[float]]:
    """Distribution of the sum of Poisson(``entries``) many sizes: lattice unit, and a weight per multiple of it."""
    mean = entries * math.fsum(share * size for share, size in zip(shares, sizes, strict=True))
    deviation = math.sqrt(entries * math.fsum(share * size**2 for share, size in zip(shares, sizes, strict=True)))
    unit = (mean + 8 * deviation + max(sizes)) / LATTICE_POINTS
    steps = [(share, max(1, round(size / unit))) for share, size in zip(shares, sizes, strict=True)]
    weights = [1.0]  # scaled at the end: exp(-entries) may be too small a number to begin with
    for position in range(1, LATTICE_POINTS + 1):
        found = math.fsum(share * size * weights[position - size] for share, size in steps if size <= position)
        weights.append(entries / position * found)
        if weights[-1] > 1e200:
            weights = [weight * 1e-200 for weight in weights]
    total = math.fsum(weights)
    return unit, [weight / total for weight in weights]
