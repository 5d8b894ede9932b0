"""The statistics of the verdict, against known values and against brute force."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.gate.statistics import (
    critical_u,
    effect_ratio,
    holm,
    mann_whitney_p,
    mann_whitney_tail,
    mann_whitney_u,
    power,
    runs_needed,
    turned_at,
    variation_ratio,
    wilson,
)

values = st.floats(min_value=0, max_value=1e6) | st.just(math.inf)


@pytest.mark.parametrize(
    ("m", "n", "least_u", "p"), [(5, 5, 21, 0.0476), (5, 10, 39, 0.0496), (10, 10, 73, 0.0446), (5, 5, 25, 1 / 252)]
)
def test_known_values(m: int, n: int, least_u: int, p: float) -> None:
    assert mann_whitney_tail(m, n)[least_u] == pytest.approx(p, abs=5e-5)
    if least_u != 25:
        assert critical_u(m, n, 0.05) == least_u


def test_three_against_three_can_show_nothing_below_05() -> None:
    assert min(mann_whitney_tail(3, 3)) == 0.05
    assert critical_u(3, 3, 0.05) is None


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (4, 4), (5, 3), (5, 5), (4, 6)])
def test_the_distribution_equals_that_of_all_permutations(m: int, n: int) -> None:
    counts = [0] * (m * n + 1)
    for chosen in itertools.combinations(range(m + n), m):
        counts[mann_whitney_u(chosen, sorted(set(range(m + n)) - set(chosen)))] += 1
    total = math.comb(m + n, m)
    for u, p in enumerate(mann_whitney_tail(m, n)):
        assert p == pytest.approx(sum(counts[u:]) / total, abs=1e-12)


def test_the_distribution_equals_the_recursion() -> None:
    def count(u: int, m: int, n: int) -> int:
        if u < 0:
            return 0
        if m == 0 or n == 0:
            return int(u == 0)
        return count(u - n, m - 1, n) + count(u, m, n - 1)

    for m, n in ((5, 5), (6, 7)):
        counts = [count(u, m, n) for u in range(m * n + 1)]
        for u, p in enumerate(mann_whitney_tail(m, n)):
            assert p == pytest.approx(sum(counts[u:]) / math.comb(m + n, m), abs=1e-12)


@pytest.mark.parametrize(("m", "n"), [(0, 5), (5, 0), (101, 5)])
def test_sizes_beyond_the_exact_distribution_are_refused(m: int, n: int) -> None:
    with pytest.raises(ValueError, match="1 to 100 runs"):
        mann_whitney_tail(m, n)


def test_ties_count_half_rounded_down_and_infinite_values_tie() -> None:
    assert mann_whitney_u([1.0], [1.0]) == 0
    assert mann_whitney_u([1.0, 1.0], [1.0]) == 1
    assert mann_whitney_u([math.inf] * 5, [math.inf] * 5) == 12
    assert mann_whitney_p([math.inf] * 5, [1.0] * 5) == pytest.approx(1 / 252)
    assert mann_whitney_p([math.inf] * 5, [math.inf] * 5) > 0.5


@given(st.lists(values, min_size=1, max_size=8), st.lists(values, min_size=1, max_size=8), st.data())
def test_slower_runs_never_raise_the_p_value(ours: list[float], theirs: list[float], data: st.DataObject) -> None:
    worse = [data.draw(st.sampled_from([value, value + 1, math.inf])) for value in ours]
    assert mann_whitney_p(worse, theirs) <= mann_whitney_p(ours, theirs)


def test_false_alarms_stay_at_the_level() -> None:
    choose = random.Random(11)
    alarms = sum(
        mann_whitney_p([choose.random() for _ in range(5)], [choose.random() for _ in range(5)]) <= 0.05
        for _ in range(4000)
    )
    assert 0.03 * 4000 < alarms < 0.06 * 4000


def test_holm_is_the_textbooks() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == ()
    assert holm([0.7, 0.9]) == (1.0, 1.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.data())
def test_a_smaller_p_value_never_raises_any_adjusted_one(p_values: list[float], data: st.DataObject) -> None:
    smaller = [data.draw(st.sampled_from([p, p / 2, 0.0])) for p in p_values]
    for before, after in zip(holm(p_values), holm(smaller), strict=True):
        assert after <= before


def test_wilson_bounds_a_share() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    for bound in wilson(5, 50):  # where the share seen lies 1.645 standard errors away
        assert abs(0.1 - bound) == pytest.approx(1.6449 * math.sqrt(bound * (1 - bound) / 50), rel=1e-3)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == 1
    assert 0 < wilson(1, 10)[0] < 0.1 < 0.9 < wilson(9, 10)[1] < 1, "one failure is one"
    with pytest.raises(ValueError):
        wilson(3, 2)


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilson_encloses_the_share_and_grows_with_it(successes: int, more: int) -> None:
    trials = successes + more
    lower, upper = wilson(successes, trials)
    assert 0 <= lower <= successes / trials <= upper <= 1
    assert wilson(successes + 1, trials)[0] >= lower


def test_variation_is_the_coefficient_and_no_infinite_run_hides_in_it() -> None:
    assert variation_ratio([1.0, 2.0, 3.0]) == pytest.approx(0.5)
    assert variation_ratio([2.0, 2.0]) == 0
    assert variation_ratio([0.0, 0.0]) == 0
    assert variation_ratio([7.0]) == 0
    assert variation_ratio([1.0, math.inf]) == math.inf
    assert variation_ratio([math.inf, math.inf]) == math.inf


@pytest.mark.parametrize(
    ("ours", "theirs", "higher_is_worse", "expected"),
    [
        ([1.2] * 3, [1.0] * 3, True, 0.2),
        ([0.8] * 3, [1.0] * 3, True, -0.2),
        ([50.0], [100.0], False, 1.0),
        ([100.0], [80.0], False, -0.2),
        ([0.0], [0.0], True, 0.0),
        ([0.1], [0.0], True, math.inf),
        ([0.0], [10.0], False, math.inf),
        ([10.0], [0.0], False, -1.0),
        ([math.inf], [1.0], True, math.inf),
        ([math.inf], [math.inf], True, 0.0),
        ([1.0], [math.inf], True, -1.0),
    ],
)
def test_effect_is_positive_when_worse(
    ours: list[float], theirs: list[float], higher_is_worse: bool, expected: float
) -> None:
    assert effect_ratio(ours, theirs, higher_is_worse=higher_is_worse) == pytest.approx(expected)


def chance(variation: float, regression: float = 0.1, runs: int = 5, significance: float = 0.05) -> float:
    return power(
        runs,
        runs,
        variation=variation,
        regression_ratio=regression,
        minimum_effect_ratio=0.05,
        significance=significance,
    )


def test_power_follows_the_noise() -> None:
    """The simulated table of observed noise: 5 % sees +10 % in 79 %, 9 % in 41 to 46 %, 12 % in 32 %."""
    assert chance(0.05) == pytest.approx(0.79, abs=0.04)
    assert chance(0.09) == pytest.approx(0.43, abs=0.04)
    assert chance(0.12) == pytest.approx(0.31, abs=0.04)
    assert chance(0) == 1
    assert chance(math.inf) == 0
    assert chance(0.05, regression=0.04) == 0
    assert chance(0.01, runs=3, significance=0.049) == 0


def test_power_equals_what_a_fresh_simulation_finds() -> None:
    choose = random.Random(5)
    sigma = math.sqrt(math.log1p(0.08**2))
    found = 0
    for _ in range(3000):
        ours = [1.2 * choose.lognormvariate(0, sigma) for _ in range(5)]
        theirs = [choose.lognormvariate(0, sigma) for _ in range(5)]
        found += mann_whitney_p(ours, theirs) <= 0.05 and effect_ratio(ours, theirs, higher_is_worse=True) > 0.05
    assert chance(0.08, regression=0.2) == pytest.approx(found / 3000, abs=0.03)


@given(st.floats(0.005, 0.3), st.floats(0.06, 0.5))
def test_power_grows_with_the_regression_and_falls_with_the_noise(variation: float, regression: float) -> None:
    assert chance(variation, regression) <= chance(variation, regression * 1.5)
    assert chance(variation * 1.5, regression) <= chance(variation, regression)
    assert chance(variation, regression, significance=0.01) <= chance(variation, regression)


@pytest.mark.parametrize("variation", [0.03, 0.08, 0.1])
@pytest.mark.parametrize("significance", [0.05, 0.05 / 3])
def test_runs_needed_are_about_those_that_reach_the_power(variation: float, significance: float) -> None:
    needed = runs_needed(
        variation=variation, regression_ratio=0.2, minimum_effect_ratio=0.05, significance=significance
    )
    assert needed is not None
    assert chance(variation, 0.2, runs=needed, significance=significance) >= 0.8
    if needed > 5:
        assert chance(variation, 0.2, runs=needed - 1, significance=significance) < 0.8


def test_runs_needed_grow_with_the_noise_and_end() -> None:
    needed = [
        runs_needed(variation=cv, regression_ratio=0.2, minimum_effect_ratio=0.05, significance=0.05)
        for cv in (0.0, 0.03, 0.08, 0.12, 0.3, 3.0, math.inf)
    ]
    assert needed[:2] == [4, 4], "three against three reach p .05, not less"
    assert needed[-2:] == [None, None]
    known = [runs for runs in needed if runs is not None]
    assert known == sorted(known)
    assert len(known) == 5


@pytest.mark.parametrize(
    ("found", "index"),
    [
        ([1, 1.1, 5, 5, 5], 2),
        ([5, 5, 5, 1, 1], 3),
        ([1, 1, math.inf, math.inf], 2),
        ([0, 0, 1, 1], 2),
        ([1, 5, 5, 5, 5], None),  # one run alone may be an outlier
        ([1, 1, 1.1, 1.15, 1.15], None),
        ([1, 5, 1, 5, 1, 5], None),
        ([1, 1, 1, 1], None),
        ([1, 5], None),
        ([], None),
    ],
)
def test_where_values_turn_into_others(found: list[float], index: int | None) -> None:
    assert turned_at(found, 0.2) == index
