"""
Percentiles by nearest rank, with failures as infinitely slow, and what a sample of that size can say about them.

A quantile's exact bounds are order statistics: how many of n values lie below the true q-quantile is binomial(n, q),
whatever the distribution. So nothing is assumed about latencies but that they are independent; real ones come in
bursts, and then the true interval is wider.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Iterable, Sequence

from sre.gate.summary import Distribution

CONFIDENCE = 0.95
"""Of each bound, one-sided: the true value lies above the upper bound in at most 5 % of samples. Convention."""

THINNED_TO = 2000
"""Values kept of a sample for plots and later comparison: a plot shows no more, and a baseline stays readable."""


def rank(count: int, quantile: float) -> int:
    """
    Return the nearest rank, from 1: ``ceil(quantile * count)``, at least 1.

    Args:
        count: Values, > 0.
        quantile: 0 < quantile <= 1.

    Raises:
        ValueError: either is out of range.
    """
    if count < 1 or not 0 < quantile <= 1:
        raise ValueError(f"no rank for quantile {quantile} of {count} values")
    # The product of two floats may lie a hair above the whole number meant: .07 * 100 = 7.000000000000001.
    return max(1, math.ceil(quantile * count - 1e-9))


def nearest_rank(ordered: Sequence[float], quantile: float) -> float | None:
    """Return the nearest-rank percentile of ascending values; infinite ones are values. None: there are none."""
    return ordered[rank(len(ordered), quantile) - 1] if ordered else None


def sample_floor(quantile: float, confidence: float = CONFIDENCE) -> int:
    """
    Return how many values it takes to bound the quantile from above: the least n with quantile^n <= 1 - confidence.

    299 for P99, 59 for P95, 2,995 for P99.9. Below, not even the largest value seen bounds the quantile.
    """
    if not 0 < quantile < 1 or not 0 < confidence < 1:
        raise ValueError(f"no floor for quantile {quantile} at confidence {confidence}")
    return math.ceil(math.log(1 - confidence) / math.log(quantile) - 1e-9)


def binomial_at_most(successes: int, trials: int, probability: float) -> float:
    """Return P(X <= successes) of a binomial(trials, probability), 0 <= probability <= 1, exact but for rounding."""
    if successes < 0:
        return 0.0
    if successes >= trials or probability <= 0:
        return 1.0
    if probability >= 1:
        return 0.0
    log_yes, log_no = math.log(probability), math.log1p(-probability)
    mean, deviation = trials * probability, math.sqrt(trials * probability * (1 - probability))
    # Terms 40 deviations from the mean (and at least 800 apart) are below 1e-100: no double sees them.
    reach = 40 * deviation + 800
    if successes > mean + reach:
        return 1.0
    first = max(0, math.floor(mean - reach))
    log_trials = math.lgamma(trials + 1)
    terms = (
        math.exp(log_trials - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_yes + (trials - k) * log_no)
        for k in range(first, successes + 1)
    )
    return min(1.0, math.fsum(terms))


@functools.lru_cache(maxsize=4096)
def bound_ranks(count: int, quantile: float, confidence: float = CONFIDENCE) -> tuple[int | None, int | None]:
    """
    Return the ranks, from 1, of the values that bound the true quantile from below and from above.

    Each bound holds with ``confidence`` by itself. None: the sample is too small for that bound.
    """
    if count < 1:
        return None, None

    def below(values: int) -> float:
        """P(at most so many of the values lie below the true quantile), counted from the thin side."""
        return 1 - binomial_at_most(count - values - 1, count, 1 - quantile)

    # Upper: the least rank u with P(at most u - 1 below) >= confidence. Lower: the greatest l with P(l or more) >= it.
    upper = _first(1, count, lambda u: below(u - 1) >= confidence)
    least_without = _first(1, count, lambda low: 1 - below(low - 1) < confidence)
    lower = count if least_without is None else least_without - 1
    return (lower or None), upper


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Return the least number in low..high for which a monotone condition holds; None: for none."""
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def distribution(values: Iterable[float]) -> Distribution:
    """
    Return the percentiles of one time over the requests of a class.

    Args:
        values: Seconds in any order, infinite where the request failed. What has no value is left out by the caller.

    Raises:
        ValueError: a value is not a number.
    """
    ordered = sorted(values)
    if any(map(math.isnan, ordered)):
        raise ValueError("a time is not a number")
    finite = ordered[: count_at_most(ordered, math.nextafter(math.inf, 0))]
    low, high = bound_ranks(len(ordered), 0.99)
    return Distribution(
        count=len(ordered),
        infinite=len(ordered) - len(finite),
        p50=nearest_rank(ordered, 0.50),
        p90=nearest_rank(ordered, 0.90),
        p95=nearest_rank(ordered, 0.95),
        p99=nearest_rank(ordered, 0.99),
        p999=nearest_rank(ordered, 0.999),
        successes_p99=nearest_rank(finite, 0.99),
        p99_lower=None if low is None else ordered[low - 1],
        p99_upper=None if high is None else ordered[high - 1],
    )


def count_at_most(ordered: Sequence[float], bound: float) -> int:
    """Return how many of the ascending values are <= bound."""
    return bisect.bisect_right(ordered, bound)


def thinned_positions(count: int, limit: int = THINNED_TO) -> Sequence[int]:
    """Return which of ``count`` ascending values ``thinned`` keeps, from 0: evenly spaced, both ends among them."""
    if limit < 2:
        raise ValueError("a thinned sample keeps at least its two ends")
    if count <= limit:
        return range(count)
    return [position * (count - 1) // (limit - 1) for position in range(limit)]


def thinned(ordered: Sequence[float], limit: int = THINNED_TO) -> tuple[float, ...]:
    """Return at most ``limit`` of the ascending values, evenly by rank; least and largest stay."""
    return tuple(ordered[position] for position in thinned_positions(len(ordered), limit))
