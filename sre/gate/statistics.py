"""
The statistics of the verdict. The unit is the run, never the request: pooled requests find "significant" differences
in anything, the more of them the surer, because requests of one run share its luck.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from statistics import NormalDist, fmean, median

LARGEST_SIDE = 100
"""Most runs on a side: the exact distribution for 100 v 100 takes a second; nobody runs more."""

POWER_DRAWS = 4000
"""Simulated comparisons behind a power: standard error of 0.6 points at 80 %."""

FEW_RUNS = 15
"""A simulation of so many runs a side is quick (0.1 s)."""

POWER_SEED = 20_260_101
"""Any; fixed, so that the same runs always get the same verdict."""


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """
    Return lower and upper bound of a share, each one-sided at ``confidence``, 0..1; (0, 1) without trials.

    Source: Wilson 1927; good for small counts, where the normal interval is not.
    """
    if trials <= 0:
        return 0.0, 1.0
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials}")
    z = NormalDist().inv_cdf(confidence)
    share = successes / trials
    scale = 1 + z * z / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    lower = 0.0 if successes == 0 else max(0.0, (centre - half) / scale)
    upper = 1.0 if successes == trials else min(1.0, (centre + half) / scale)
    return lower, upper


@functools.lru_cache(maxsize=256)
def mann_whitney_tail(m: int, n: int) -> tuple[float, ...]:
    """
    Return P(U >= u) for u = 0..m*n when both samples come from one distribution without ties; exact.

    The counts c(u, m, n) of the recursion ``c(u, m, n) = c(u - n, m - 1, n) + c(u, m, n - 1)`` are the coefficients of
    the Gaussian binomial; the product form gives all of them at once, in m * (m * n) steps.

    Raises:
        ValueError: a side is empty or has more than LARGEST_SIDE values.
    """
    if not (1 <= m <= LARGEST_SIDE and 1 <= n <= LARGEST_SIDE):
        raise ValueError(f"exact Mann-Whitney takes 1 to {LARGEST_SIDE} runs a side, not {m} v {n}")
    size = m * n + 1
    counts = [1] + [0] * (size - 1)
    for i in range(1, m + 1):
        for u in range(size - 1, n + i - 1, -1):  # times (1 - x^(n + i))
            counts[u] -= counts[u - n - i]
        for u in range(i, size):  # divided by (1 - x^i)
            counts[u] += counts[u - i]
    total = math.comb(m + n, m)
    tail, beyond = [0.0] * size, 0
    for u in range(size - 1, -1, -1):
        beyond += counts[u]
        tail[u] = beyond / total
    return tuple(tail)


def mann_whitney_u(worse: Sequence[float], reference: Sequence[float]) -> int:
    """Return in how many pairs the first side's value is the higher one; ties count half, the sum is rounded down."""
    twice = sum(2 if a > b else a == b for a in worse for b in reference)
    return twice // 2


def mann_whitney_p(worse: Sequence[float], reference: Sequence[float]) -> float:
    """
    Return the exact one-sided p-value for "the first side's values are higher". Infinite values rank last, and tie.

    Raises:
        ValueError: a side is empty or has more than LARGEST_SIDE values.
    """
    return mann_whitney_tail(len(worse), len(reference))[mann_whitney_u(worse, reference)]


def critical_u(m: int, n: int, significance: float) -> int | None:
    """Return the least U with p < significance; None: out of reach for so few runs."""
    return next((u for u, p in enumerate(mann_whitney_tail(m, n)) if p < significance), None)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted for being many (Holm 1979), in the same order, at most 1."""
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, (len(p_values) - place) * p_values[index])
        adjusted[index] = min(1.0, highest)
    return tuple(adjusted)


def variation_ratio(values: Sequence[float]) -> float:
    """
    Return the coefficient of variation, standard deviation (n - 1) over mean, of values >= 0.

    0 where all are equal (also all 0) or there are fewer than two; infinite where one, or more, is infinite: such runs
    cannot show a difference of a few per cent.
    """
    if any(map(math.isinf, values)):
        return math.inf
    if len(values) < 2 or all(value == values[0] for value in values):
        return 0.0
    mean = fmean(values)
    if mean <= 0:
        return math.inf
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) / mean


def turned_at(values: Sequence[float], ratio: float) -> int | None:
    """
    Return where values in order of time turn into others: from that index on all of them are higher than every one
    before, or all lower, by more than ``ratio``. None: nowhere, or there are fewer than two before or after.

    The first such index. It is a hint for people: of five values that only vary, one set in five is parted so, but
    rarely by 20 %.
    """
    for index in range(2, len(values) - 1):
        before, after = values[:index], values[index:]
        if min(after) > max(before) * (1 + ratio) or max(after) * (1 + ratio) < min(before):
            return index
    return None


def effect_ratio(candidate: Sequence[float], baseline: Sequence[float], *, higher_is_worse: bool) -> float:
    """
    Return by how much the candidate's median is worse, as a share of the baseline's: 0.2 is 20 % slower, < 0 better.

    Equal medians, also both 0 or both infinite: 0. From 0 (or from finite to infinite): infinite. Where less is worse
    (throughput) the ratio is turned round: half the answers per second is 1.0, twice as slow.
    """
    ours, theirs = median(candidate), median(baseline)
    if ours == theirs:
        return 0.0
    worse, better = (ours, theirs) if higher_is_worse else (theirs, ours)
    if math.isinf(better):
        return -1.0
    if better <= 0 or math.isinf(worse):
        return math.inf
    return worse / better - 1


@functools.lru_cache(maxsize=256)
def _thresholds(m: int, n: int, critical: int) -> tuple[tuple[float, float], ...]:
    """
    Per simulated pair of sides of standard normal values: by how much the first must be moved up for U to reach
    ``critical``, and for its median to pass the other's. Every power of these sizes follows from the same draws.
    """
    draws = max(300, min(POWER_DRAWS, 400_000 // (m * n)))
    choose = random.Random(POWER_SEED)
    found = []
    for _ in range(draws):
        ours = [choose.gauss(0, 1) for _ in range(m)]
        theirs = [choose.gauss(0, 1) for _ in range(n)]
        gaps = sorted(b - a for a in ours for b in theirs)
        found.append((gaps[critical - 1], median(theirs) - median(ours)))
    return tuple(found)


def power(
    m: int, n: int, *, variation: float, regression_ratio: float, minimum_effect_ratio: float, significance: float
) -> float:
    """
    Return the chance, 0..1, to find a regression of ``regression_ratio`` by the rule "exact p < significance and
    median worse by more than ``minimum_effect_ratio``", with m v n runs of this coefficient of variation.

    By simulation of lognormal run values, seed fixed. The model is kind: real runs have heavier tails and days, so it
    is an upper bound.
    """
    critical = critical_u(m, n, significance)
    if critical is None or math.isinf(variation) or regression_ratio <= minimum_effect_ratio:
        return 0.0
    if variation <= 0:
        return 1.0
    sigma = math.sqrt(math.log1p(variation * variation))
    shift = math.log1p(regression_ratio) / sigma
    spare = shift - math.log1p(minimum_effect_ratio) / sigma
    draws = _thresholds(m, n, critical)
    return sum(reach <= shift and gap <= spare for reach, gap in draws) / len(draws)


def runs_needed(
    *, variation: float, regression_ratio: float, minimum_effect_ratio: float, significance: float, wanted: float = 0.8
) -> int | None:
    """
    Return about how many runs a side find that regression with chance ``wanted``; None: more than LARGEST_SIDE.

    A hint for people. By formula: Noether's sample size for the test (1987), and the standard error of a median for the
    least effect; the larger of the two. Up to FEW_RUNS, where the formula asks for a run or two too many, ``power``
    corrects it.
    """
    if math.isinf(variation) or regression_ratio <= minimum_effect_ratio:
        return None
    least = next((n for n in range(2, LARGEST_SIDE) if mann_whitney_tail(n, n)[n * n] < significance), None)
    if least is None or variation <= 0:
        return least
    normal = NormalDist()
    sigma = math.sqrt(math.log1p(variation * variation))
    above = normal.cdf(math.log1p(regression_ratio) / sigma / math.sqrt(2)) - 0.5
    chance = normal.inv_cdf(wanted)
    for_test = (normal.inv_cdf(1 - significance) + chance) ** 2 / (6 * above * above)
    spare = math.log1p(regression_ratio) - math.log1p(minimum_effect_ratio)
    for_effect = math.pi * (chance * sigma / spare) ** 2
    needed = max(least, math.ceil(max(for_test, for_effect)))

    def enough(runs: int) -> bool:
        return (
            power(
                runs,
                runs,
                variation=variation,
                regression_ratio=regression_ratio,
                minimum_effect_ratio=minimum_effect_ratio,
                significance=significance,
            )
            >= wanted
        )

    if needed <= FEW_RUNS:
        while needed < FEW_RUNS and not enough(needed):
            needed += 1
        while needed > least and enough(needed - 1):
            needed -= 1
    return needed if needed <= LARGEST_SIDE else None
