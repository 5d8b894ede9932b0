"""Bracket and bisection: which rate next, and what was found."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.gate import plan
from sre.gate.knee import Knee, Probe, conclude, merge, next_probe
from sre.gate.saturation import blur_ratio
from sre.gate.stages import Arrivals
from sre.settings.gate import LoadSettings


def probe(rate: float, saturated: bool | None) -> Probe:
    return Probe(rate, saturated, "")


def search(truth: float, steps: list[float], *, resolution: float = 0.05, most: int = 5) -> Knee:
    """What comes of a server that saturates above ``truth``."""
    history = [probe(rate, rate > truth) for rate in steps]
    left = most
    while (rate := next_probe(history, resolution_ratio=resolution, probes_left=left)) is not None:
        history.append(probe(rate, rate > truth))
        left -= 1
    return conclude(history, resolution_ratio=resolution)


def test_three_stages_and_the_middle_of_every_bracket() -> None:
    knee = search(711, [100, 500, 1000], resolution=0.1)
    assert [one.rate_rps for one in knee.probes[3:]] == [750, 625, 687.5]
    assert (knee.good_rps, knee.saturated_rps, knee.reason) == (687.5, 750, "resolved")
    assert (knee.estimate_rps, knee.resolution_rps) == (718.75, 31.25)


def test_a_knee_above_the_last_stage_is_not_looked_for_there() -> None:
    knee = search(5000, [100, 500, 1000])
    assert (knee.good_rps, knee.saturated_rps, knee.estimate_rps, knee.reason) == (1000, None, None, "not_reached")
    assert len(knee.probes) == 3


def test_below_the_first_stage_it_is_halved_down_to_a_rate_that_holds() -> None:
    knee = search(60, [100, 500], resolution=0.12)
    assert [one.rate_rps for one in knee.probes[2:]] == [50, 75, 62.5, 56.25]
    assert (knee.good_rps, knee.saturated_rps) == (56.25, 62.5)


def test_a_server_that_holds_nothing() -> None:
    knee = search(0, [100, 500])
    assert (knee.good_rps, knee.saturated_rps, knee.reason) == (None, 100 / 32, "below_first")


def test_without_stages_left_the_bracket_stays_as_wide_as_it_is() -> None:
    knee = search(711, [100, 1000], most=1)
    assert (knee.good_rps, knee.saturated_rps, knee.reason) == (550, 1000, "too_many_stages")


def test_what_could_not_be_told_is_not_asked_again() -> None:
    history = [probe(100, False), probe(200, True), probe(150, None)]
    assert next_probe(history, resolution_ratio=0.05, probes_left=5) is None
    assert conclude(history, resolution_ratio=0.05).reason == "unclear"


def test_a_rate_held_above_a_saturated_one_is_a_contradiction_and_the_bracket_spans_it() -> None:
    history = [probe(100, False), probe(200, True), probe(300, False), probe(400, True)]
    assert next_probe(history, resolution_ratio=0.05, probes_left=5) is None
    knee = conclude(history, resolution_ratio=0.05)
    assert (knee.good_rps, knee.saturated_rps, knee.reason) == (100, 400, "unclear")


def test_a_highest_stage_that_could_not_be_told_leaves_it_open() -> None:
    assert conclude([probe(100, False), probe(200, None)], resolution_ratio=0.05).reason == "unclear"


@pytest.mark.parametrize(
    ("looks", "saturated"),
    [
        ([True, True, False], True),
        ([False, None, False], False),
        ([True, False], None),
        ([None, None], None),
        ([], None),
        ([None, True], True),
    ],
)
def test_several_passes_count_as_one_by_majority(looks: list[bool | None], saturated: bool | None) -> None:
    assert merge(100, [(one, "sign") for one in looks]).saturated is saturated


@given(
    truth=st.floats(1, 2000),
    steps=st.lists(st.integers(1, 2000), min_size=1, max_size=6, unique=True),
    most=st.integers(0, 12),
)
def test_the_bracket_always_holds_the_truth_and_the_search_always_ends(
    truth: float, steps: list[int], most: int
) -> None:
    knee = search(truth, sorted(map(float, steps)), most=most)
    assert knee.good_rps is None or knee.good_rps <= truth
    assert knee.saturated_rps is None or knee.saturated_rps > truth
    assert len(knee.probes) <= len(steps) + most
    rates = [one.rate_rps for one in knee.probes]
    assert len(set(rates)) == len(rates)
    if knee.reason == "resolved":
        assert knee.estimate_rps == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("truth", [12.0, 13.1, 15.2, 18.4, 22.0])
def test_short_stages_search_no_finer_than_they_can_tell_and_say_so(truth: float) -> None:
    """A rate up to a fifth too high looks as if it were held."""
    blur = 0.2
    history = [Probe(rate, rate > truth * (1 + blur), "", blur) for rate in (8.0, 30.0)]
    while (rate := next_probe(history, resolution_ratio=0.01, probes_left=9)) is not None:
        history.append(Probe(rate, rate > truth * (1 + blur), "", blur))
    found = conclude(history, resolution_ratio=0.01)
    assert found.reason == "resolved"
    assert found.estimate_rps is not None
    assert found.resolution_rps is not None
    assert found.resolution_rps >= blur * found.estimate_rps
    assert len(history) < 6
    assert found.estimate_rps - found.resolution_rps <= truth * 1.1


def test_a_stage_tells_the_less_the_fewer_requests_it_has() -> None:
    assert blur_ratio(9, 100) == pytest.approx(9 / 70)
    assert blur_ratio(9, 10_000) == pytest.approx(0.02 / 0.7)
    assert blur_ratio(9, 0) == math.inf
    assert merge(10, [(True, "a"), (True, "b")], 0.1).blur_ratio == 0.1


def test_a_probe_of_the_search_leaves_its_arrivals_to_no_chance() -> None:
    assert plan.knee_stage(LoadSettings(arrivals="poisson"), 16.5, 0).arrivals is Arrivals.CONSTANT
