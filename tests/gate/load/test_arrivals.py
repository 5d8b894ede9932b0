"""When requests are due."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.errors import ConfigError
from sre.gate.arrivals import TraceEntry, constant, parse_trace, poisson
from sre.gate.schedule import arrival_rps, schedule, thinned
from sre.gate.stages import Arrivals, RequestClass, StageKind, StagePlan

SHORT = RequestClass("short", 0.75, 256, 32)
MIDDLE = RequestClass("middle", 0.25, 1024, 64)
LONG = RequestClass("long", 1 / 9, 32_768, 16)
PLAN = StagePlan("100qps", StageKind.STAIRCASE, 100.0, 5.0, (SHORT, MIDDLE), seed=7)

rates = st.floats(0.1, 2000)
durations = st.floats(0.05, 2)
plans = st.builds(
    StagePlan,
    name=st.just("s"),
    kind=st.just(StageKind.STAIRCASE),
    rate_rps=rates,
    duration_seconds=durations,
    classes=st.just((SHORT, MIDDLE)),
    seed=st.integers(0, 2**32 - 1),
    arrivals=st.sampled_from([Arrivals.POISSON, Arrivals.CONSTANT]),
    extra_classes=st.sampled_from([(), (LONG,)]),
)


@given(rates, durations)
def test_constant_arrivals_are_as_many_as_the_rate_says_and_evenly_spread(rate: float, duration: float) -> None:
    offsets = constant(rate, duration)
    assert abs(len(offsets) - rate * duration) <= 1
    assert offsets[0] == 0
    assert offsets[-1] < duration
    assert offsets == pytest.approx([number / rate for number in range(len(offsets))])


def test_poisson_gaps_are_exponential() -> None:
    offsets = poisson(1000.0, 20.0, random.Random(1))
    gaps = [b - a for a, b in itertools.pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.001, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.05)
    assert offsets == sorted(offsets)
    assert 0 < offsets[0] <= offsets[-1] < 20


@given(plans)
def test_a_schedule_is_the_same_each_time_numbered_in_order_of_time(plan: StagePlan) -> None:
    whole = schedule(plan)
    assert whole == schedule(plan)
    assert [one.number for one in whole] == list(range(len(whole)))
    offsets = [one.offset_seconds for one in whole]
    assert offsets == sorted(offsets)
    assert all(0 <= offset < plan.duration_seconds for offset in offsets)


@given(plans, st.integers(1, 8))
def test_the_shares_of_all_processes_are_the_schedule_of_one(plan: StagePlan, parts: int) -> None:
    whole = schedule(plan)
    shares = [thinned(whole, part, parts) for part in range(parts)]
    merged = sorted((one for share in shares for one in share), key=lambda one: one.number)
    assert merged == whole
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(plans)
def test_the_shorts_are_the_same_with_and_without_longs_beside_them(plan: StagePlan) -> None:
    alone = schedule(replace(plan, extra_classes=()))
    mixed = schedule(replace(plan, extra_classes=(LONG,)))
    shorts = [one for one in mixed if one.request_class is not LONG]
    assert [replace(one, number=0) for one in shorts] == [replace(one, number=0) for one in alone]


def test_longs_come_at_their_share_of_the_rate() -> None:
    plan = replace(PLAN, duration_seconds=90.0, extra_classes=(LONG,))
    longs = [one for one in schedule(plan) if one.request_class is LONG]
    assert len(longs) == pytest.approx(1000, rel=0.1)
    assert {(one.prompt_tokens, one.max_tokens) for one in longs} == {(32_768, 16)}
    assert arrival_rps(plan) == pytest.approx(100 + 100 / 9)


def test_classes_come_by_their_shares() -> None:
    whole = schedule(replace(PLAN, duration_seconds=60.0))
    shorts = sum(one.request_class is SHORT for one in whole)
    assert shorts / len(whole) == pytest.approx(0.75, abs=0.03)


def test_another_seed_is_another_schedule() -> None:
    assert schedule(PLAN) != schedule(replace(PLAN, seed=8))


def test_a_replay_sends_what_the_trace_has_until_the_stage_ends() -> None:
    trace = (TraceEntry(0.5, 100, 5), TraceEntry(0.25, 200, 6), TraceEntry(1.5, 300, 7))
    whole = schedule(replace(PLAN, arrivals=Arrivals.REPLAY, duration_seconds=1.0), trace)
    assert [(one.offset_seconds, one.prompt_tokens, one.max_tokens) for one in whole] == [(0.25, 200, 6), (0.5, 100, 5)]
    assert {one.request_class for one in whole} == {SHORT}


def test_a_trace_is_read_and_put_in_order() -> None:
    late = '{"offset_seconds": 2, "prompt_tokens": 9, "max_tokens": 3, "user": "x"}'
    lines = [late, "", '{"offset_seconds": 0.5, "prompt_tokens": 8, "max_tokens": 2}']
    assert parse_trace(lines, "t.jsonl") == (TraceEntry(0.5, 8, 2), TraceEntry(2.0, 9, 3))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nothing", "is no JSON"),
        ("[1]", "no JSON object"),
        ('{"prompt_tokens": 1, "max_tokens": 1}', "offset_seconds"),
        ('{"offset_seconds": -1, "prompt_tokens": 1, "max_tokens": 1}', "offset_seconds"),
        ('{"offset_seconds": true, "prompt_tokens": 1, "max_tokens": 1}', "offset_seconds"),
        ('{"offset_seconds": NaN, "prompt_tokens": 1, "max_tokens": 1}', "offset_seconds"),
        ('{"offset_seconds": 1e300, "prompt_tokens": 1, "max_tokens": 1}', "offset_seconds .* 0 to 86400"),
        ('{"offset_seconds": 0, "prompt_tokens": 1000000000000, "max_tokens": 1}', "prompt_tokens .* 1 to 10000000"),
        ('{"offset_seconds": 0, "prompt_tokens": 1, "max_tokens": 10000001}', "max_tokens .* 1 to 10000000"),
        ('{"offset_seconds": 0, "prompt_tokens": 0, "max_tokens": 1}', "prompt_tokens"),
        ('{"offset_seconds": 0, "prompt_tokens": 1, "max_tokens": 1.5}', "max_tokens"),
    ],
)
def test_a_wrong_line_is_named(line: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"t\.jsonl: line 2: .*{problem}"):
        parse_trace(['{"offset_seconds": 0, "prompt_tokens": 1, "max_tokens": 1}', line], "t.jsonl")


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds no arrival"):
        parse_trace(["", " "], "t.jsonl")
