"""Time-weighted batch sizes and batch formation: what is observed is counted, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.metrics import own
from sre.metrics.signals import QUEUE_SECONDS_TOTAL, QUEUED_REQUESTS_TOTAL, REQUESTS_RUNNING
from sre.signals.batching import Batching, Weighted, observe
from sre.signals.types import NEVER, EngineSeen, ProcessIdentity, Reading, Seen

SIZES, WAITS = own.ENGINE_BATCH_SIZE.buckets, own.ENGINE_BATCH_FORMATION_SECONDS.buckets
GAP = 2.0
FIRST, SECOND = ProcessIdentity(1, 1), ProcessIdentity(2, 2)


def engine(
    at: float,
    running: float | None = None,
    waited: tuple[float, float] | None = None,
    *,
    identity: ProcessIdentity | None = FIRST,
    steps: float | None = None,
    why: Seen = Seen.UNREACHABLE,
) -> EngineSeen:
    def reading(value: float | None) -> Reading:
        return Reading.missing(at, why) if value is None else Reading.of(value, at)

    signals = {
        REQUESTS_RUNNING: reading(running),
        QUEUE_SECONDS_TOTAL: reading(waited and waited[0]),
        QUEUED_REQUESTS_TOTAL: reading(waited and waited[1]),
    }
    return EngineSeen("e", "p", True, identity=identity, steps_total=reading(steps), signals=signals)


def run(*engines: EngineSeen) -> Batching:
    state = Batching()
    for seen in engines:
        state = observe(state, seen, size_bounds=SIZES, wait_bounds=WAITS, longest_gap_seconds=GAP)
    return state


def sizes(*engines: EngineSeen) -> Weighted:
    found = run(*engines).sizes
    assert found is not None
    return found


def waits(*engines: EngineSeen) -> Weighted:
    found = run(*engines).waits
    assert found is not None
    return found


def at_or_below(histogram: Weighted, bound: float) -> float:
    return histogram.cumulative[histogram.bounds.index(bound)]


def test_each_size_has_the_time_it_was_held() -> None:
    found = sizes(engine(10, 0), engine(11, 0), engine(12.5, 8), engine(13, 9), engine(13.5, 300))
    assert at_or_below(found, 0) == 1.0
    assert at_or_below(found, 4) == 1.0
    assert at_or_below(found, 8) == 2.5
    assert at_or_below(found, 16) == 3.0
    assert at_or_below(found, 256) == 3.0
    assert found.count == 3.5
    assert found.total == 1.5 * 8 + 0.5 * 9 + 0.5 * 300


def test_nothing_is_known_before_the_first_sample() -> None:
    assert run(EngineSeen("e", "p", True)) == Batching()
    assert run(engine(1, None)).sizes is None
    assert sizes(engine(1, 5)).count == 0.0


def test_a_stale_sample_adds_no_time_and_loses_none() -> None:
    assert sizes(engine(1, 5), engine(1, 5), engine(1, 5), engine(2, 5)).count == 1.0


@pytest.mark.parametrize("why", [Seen.UNREACHABLE, Seen.ABSENT, Seen.INVALID])
def test_time_that_was_not_seen_is_not_counted(why: Seen) -> None:
    assert sizes(engine(1, 5), engine(2, None, why=why), engine(3, 5), engine(4, 5)).count == 1.0


def test_a_sample_stands_for_a_bounded_time() -> None:
    assert sizes(engine(1, 5), engine(1000, 5)).count == GAP


samples = st.lists(
    st.tuples(st.floats(0.001, 5.0), st.none() | st.integers(0, 400).map(float), st.booleans()), max_size=30
)


@given(samples)
def test_the_weights_are_the_observed_time(steps: list[tuple[float, float | None, bool]]) -> None:
    at, state, seen_at, observed = 0.0, Batching(), None, 0.0
    for gap, running, stale in steps:
        at += gap
        seen = engine(at, running)
        for again in (seen, seen) if stale else (seen,):
            before = state
            state = observe(before, again, size_bounds=SIZES, wait_bounds=WAITS, longest_gap_seconds=GAP)
            if before.sizes is not None and state.sizes is not None:
                pairs = zip(before.sizes.weights, state.sizes.weights, strict=True)
                assert all(new >= old for old, new in pairs)
        if running is not None and seen_at is not None:
            observed += min(at - seen_at, GAP)
        seen_at = None if running is None else at
    weight = state.sizes.count if state.sizes is not None else 0.0
    assert math.isclose(weight, observed, rel_tol=1e-9, abs_tol=1e-9)
    if state.sizes is not None:
        assert list(state.sizes.cumulative) == sorted(state.sizes.cumulative)


def test_the_mean_of_a_tick_counts_for_each_of_its_requests() -> None:
    found = waits(engine(1, waited=(10.0, 100.0)), engine(2, waited=(10.0, 100.0)), engine(3, waited=(12.0, 104.0)))
    assert (found.count, found.total) == (4.0, 2.0)
    assert (at_or_below(found, 0.3), at_or_below(found, 0.5)) == (0.0, 4.0)


def test_what_was_counted_before_the_guard_came_is_not_counted() -> None:
    assert waits(engine(1, waited=(1e6, 1e6))).count == 0.0


@pytest.mark.parametrize(
    "restarted",
    [
        engine(2, waited=(900.0, 90.0), identity=SECOND),  # with more requests than before
        engine(2, waited=(0.5, 5.0)),  # an engine that is not ours: its counters fell
        engine(2, waited=(900.0, 90.0), steps=3.0),  # its steps fell
        engine(2, waited=(0.5, 90.0)),  # its seconds fell
    ],
)
def test_a_restart_gives_no_negative_and_no_giant_wait(restarted: EngineSeen) -> None:
    begun = engine(1, waited=(50.0, 50.0), steps=1000.0)
    assert waits(begun, restarted).count == 0.0
    seconds = (restarted.signals[QUEUE_SECONDS_TOTAL].value or 0.0) + 2.0
    requests = (restarted.signals[QUEUED_REQUESTS_TOTAL].value or 0.0) + 2.0
    after = replace(
        restarted,
        signals={
            QUEUE_SECONDS_TOTAL: Reading.of(seconds, 3),
            QUEUED_REQUESTS_TOTAL: Reading.of(requests, 3),
        },
    )
    assert (waits(begun, restarted, after).count, waits(begun, restarted, after).total) == (2.0, 2.0)


def test_an_outage_without_a_restart_loses_no_request() -> None:
    found = waits(engine(1, waited=(1.0, 1.0)), engine(2), engine(60, waited=(5.0, 3.0)))
    assert (found.count, found.total) == (2.0, 4.0)


process = st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50)), max_size=8)


@given(st.lists(process, max_size=5))
def test_over_restarts_every_seen_request_counts_once(lives: list[list[tuple[float, int]]]) -> None:
    state, at, requests, seconds = Batching(), 0.0, 0, 0.0
    for number, life in enumerate(lives):
        total, count = 0.0, 0
        for position, (more_seconds, more) in enumerate(life):
            at += 1
            total, count = total + more_seconds * more, count + more
            if position:  # the first sample of a process is where counting begins
                requests, seconds = requests + more, seconds + more_seconds * more
            seen = engine(at, waited=(total, float(count)), identity=ProcessIdentity(number + 1, number))
            state = observe(state, seen, size_bounds=SIZES, wait_bounds=WAITS, longest_gap_seconds=GAP)
    counted = state.waits or Weighted.empty(WAITS)
    assert counted.count == requests
    assert math.isclose(counted.total, seconds, rel_tol=1e-6, abs_tol=1e-6)


def test_never_asked_is_no_outage() -> None:
    never = EngineSeen("e", "p", True, signals={REQUESTS_RUNNING: NEVER})
    assert sizes(engine(1, 5), never, engine(2, 5)).count == 1.0
