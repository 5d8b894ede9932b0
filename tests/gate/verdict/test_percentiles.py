"""Nearest rank, exact bounds of a quantile, sample floors, thinning."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.gate.percentiles import (
    binomial_at_most,
    bound_ranks,
    count_at_most,
    distribution,
    nearest_rank,
    rank,
    sample_floor,
    thinned,
    thinned_positions,
)

times = st.floats(min_value=0, max_value=1e6) | st.just(math.inf)


@pytest.mark.parametrize(
    ("count", "quantile", "expected"), [(100, 0.99, 99), (101, 0.99, 100), (1, 0.5, 1), (100, 0.07, 7), (20, 0.95, 19)]
)
def test_rank_is_the_nearest_and_no_rounding_error_moves_it(count: int, quantile: float, expected: int) -> None:
    assert rank(count, quantile) == expected


@pytest.mark.parametrize(("count", "quantile"), [(0, 0.5), (3, 0.0), (3, 1.1)])
def test_rank_of_nothing_is_refused(count: int, quantile: float) -> None:
    with pytest.raises(ValueError):
        rank(count, quantile)


def test_sample_floors() -> None:
    assert [sample_floor(q) for q in (0.95, 0.99, 0.999)] == [59, 299, 2995]
    assert sample_floor(0.99, 0.99) == 459


@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.99])
def test_the_upper_bound_exists_from_the_floor_on(quantile: float) -> None:
    floor = sample_floor(quantile)
    assert bound_ranks(floor - 1, quantile)[1] is None
    assert bound_ranks(floor, quantile)[1] == floor


def test_binomial_against_the_plain_sum() -> None:
    for trials, probability in ((20, 0.3), (50, 0.99), (7, 0.5)):
        total = 0.0
        for k in range(trials + 1):
            total += math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k)
            assert binomial_at_most(k, trials, probability) == pytest.approx(min(1, total), rel=1e-9, abs=1e-12)
    assert binomial_at_most(-1, 5, 0.5) == 0
    assert binomial_at_most(5, 5, 0.5) == 1
    assert binomial_at_most(3, 5, 1.0) == 0
    assert binomial_at_most(0, 5, 0.0) == 1
    assert binomial_at_most(100_000, 10_000_000, 0.01) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("count", "quantile"), [(60, 0.95), (400, 0.99), (30, 0.5)])
def test_each_bound_holds_in_95_of_100_samples_and_not_in_all(count: int, quantile: float) -> None:
    choose = random.Random(7)
    low, high = bound_ranks(count, quantile)
    assert low is not None
    assert high is not None
    below = above = 0
    for _ in range(2000):
        ordered = sorted(choose.random() for _ in range(count))  # uniform: the true quantile is the quantile itself
        below += ordered[low - 1] <= quantile
        above += ordered[high - 1] >= quantile
    assert below >= 0.935 * 2000
    assert above >= 0.935 * 2000
    assert below < 2000 or above < 2000


def test_the_interval_of_p99_is_as_wide_as_the_sample_makes_it() -> None:
    """Lognormal, sigma 0.5: one-sided 95 % bounds of 2,000 values lie some 6 % and 9 % from the true P99."""
    choose = random.Random(3)
    true = math.exp(0.5 * 2.3263)
    uppers, lowers = [], []
    for _ in range(200):
        seen = distribution(choose.lognormvariate(0, 0.5) for _ in range(2000))
        assert seen.p99_upper is not None
        assert seen.p99_lower is not None
        uppers.append(seen.p99_upper / true - 1)
        lowers.append(seen.p99_lower / true - 1)
    assert sum(uppers) / 200 == pytest.approx(0.09, abs=0.03)
    assert sum(lowers) / 200 == pytest.approx(-0.06, abs=0.03)


def test_failures_are_infinitely_slow_and_successes_stand_beside() -> None:
    seen = distribution([0.1] * 90 + [math.inf] * 10)
    assert (seen.count, seen.infinite) == (100, 10)
    assert (seen.p50, seen.p90, seen.p95, seen.p99) == (0.1, 0.1, math.inf, math.inf)
    assert seen.successes_p99 == 0.1
    assert seen.p99_upper is None


def test_no_values_no_percentiles() -> None:
    seen = distribution([])
    assert (seen.count, seen.p50, seen.p99, seen.successes_p99, seen.p99_lower, seen.p99_upper) == (
        0, None, None, None, None, None,
    )  # fmt: skip
    assert distribution([math.inf]).successes_p99 is None
    assert nearest_rank([], 0.5) is None


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        distribution([0.1, math.nan])


@given(st.lists(times, min_size=1, max_size=400))
def test_percentiles_are_values_in_order_between_their_bounds(values: list[float]) -> None:
    seen = distribution(values)
    ladder = [seen.p50, seen.p90, seen.p95, seen.p99, seen.p999]
    assert all(value in values for value in ladder)
    assert ladder == sorted(ladder, key=float)  # type: ignore[arg-type]
    assert seen.p99 is not None
    assert seen.p99_lower is None or seen.p99_lower <= seen.p99
    assert seen.p99_upper is None or seen.p99_upper >= seen.p99


@given(st.lists(times, min_size=1, max_size=200), st.data())
def test_slower_or_failing_requests_never_lower_a_percentile(values: list[float], data: st.DataObject) -> None:
    worse = [data.draw(st.sampled_from([value, value * 2 + 1, math.inf])) for value in values]
    before, after = distribution(values), distribution(worse)
    for name in ("p50", "p90", "p95", "p99", "p999"):
        assert getattr(after, name) >= getattr(before, name)


@given(st.integers(0, 10_000), st.integers(2, 3000))
def test_a_thinned_sample_keeps_its_ends_and_its_order(count: int, limit: int) -> None:
    ordered = [float(number) for number in range(count)]
    kept = thinned(ordered, limit)
    assert len(kept) == min(count, limit)
    assert list(kept) == sorted(set(kept))
    if kept:
        assert (kept[0], kept[-1]) == (ordered[0], ordered[-1])
    assert [ordered[position] for position in thinned_positions(count, limit)] == list(kept)


def test_thinning_moves_no_percentile_by_more_than_its_spacing() -> None:
    ordered = [float(number) for number in range(100_000)]
    kept = thinned(ordered)
    for quantile in (0.5, 0.95, 0.99):
        whole, part = nearest_rank(ordered, quantile), nearest_rank(kept, quantile)
        assert whole is not None
        assert part is not None
        assert abs(whole - part) <= 51
    with pytest.raises(ValueError):
        thinned_positions(10, 1)


def test_counting_up_to_a_bound_includes_it() -> None:
    assert count_at_most([1.0, 2.0, 2.0, math.inf], 2.0) == 3
