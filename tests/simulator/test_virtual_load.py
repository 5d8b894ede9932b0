"""The engine in virtual time."""

from __future__ import annotations

import math
import random

import pytest

from sre.simulator.scheduler import Limits
from sre.simulator.virtual_load import Arrival, drive


def poisson(rate: float, count: int, prompt_tokens: int = 64, output_tokens: int = 4) -> list[Arrival]:
    chance = random.Random(1)
    at, arrivals = 0.0, []
    for _ in range(count):
        at += chance.expovariate(rate)
        arrivals.append(Arrival(at, prompt_tokens, output_tokens))
    return arrivals


def test_a_lone_request_gets_its_tokens_step_by_step() -> None:
    run = drive(Limits(), [Arrival(2.0, 20, 3)], jitter=False)
    (one,) = run.served
    assert one.scheduled_at == one.arrived_at == 2.0
    assert one.first_token_at == pytest.approx(2.0 + run.steps[0].seconds)
    assert one.last_token_at == pytest.approx(2.0 + sum(step.seconds for step in run.steps)) == run.ended_at
    assert [step.tokens for step in run.steps] == [20, 1, 1]


def test_who_arrives_during_a_step_takes_part_from_the_next_one_on() -> None:
    run = drive(Limits(), [Arrival(0.0, 20, 5), Arrival(0.0001, 20, 1)], jitter=False)
    assert run.served[1].scheduled_at == pytest.approx(run.steps[0].seconds)
    assert [step.running for step in run.steps][:2] == [1, 2]


def test_times_are_in_order_and_every_request_ends() -> None:
    run = drive(Limits(max_num_seqs=8), poisson(150, 2000), seed=3)
    for one in run.served:
        assert one.arrived_at <= one.scheduled_at < one.first_token_at < one.last_token_at <= run.ended_at
    assert max(step.running for step in run.steps) == 8
    assert all(a.started_at + a.seconds <= b.started_at + 1e-9 for a, b in zip(run.steps, run.steps[1:], strict=False))


def test_littles_law_holds_for_the_engine() -> None:
    run = drive(Limits(max_num_seqs=16), poisson(120, 5000), seed=3)
    seen = run.occupancy(0.0, run.ended_at)
    inside = sum(one.last_token_at - one.arrived_at for one in run.served) / run.ended_at
    assert seen.running_mean + seen.waiting_mean == pytest.approx(inside, rel=0.05)


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    runs = [drive(Limits(), poisson(100, 300), seed=seed).served for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_slower_engine_takes_so_much_longer() -> None:
    fast, slow = (drive(Limits(), [Arrival(0, 64, 20)], slowness=factor, jitter=False) for factor in (1.0, 1.2))
    assert slow.ended_at / fast.ended_at == pytest.approx(1.2)


def test_priority_goes_first_where_the_limits_say_so() -> None:
    arrivals = [Arrival(0.0, 16, 50), Arrival(0.001, 16, 4, priority=5), Arrival(0.002, 16, 4, priority=0)]
    order = {by: drive(Limits(max_num_seqs=1, by_priority=by), arrivals).served for by in (False, True)}
    assert order[False][1].first_token_at < order[False][2].first_token_at
    assert order[True][2].first_token_at < order[True][1].first_token_at


def test_what_is_unfinished_at_the_end_has_no_last_token() -> None:
    run = drive(Limits(), poisson(100, 200), until=0.5)
    assert any(one.finished for one in run.served)
    late = [one for one in run.served if one.arrived_at > 0.6]
    assert late
    assert all(math.isnan(one.first_token_at) and not one.finished for one in late)


def test_a_request_that_never_fits_and_a_schedule_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="never fits"):
        drive(Limits(kv_cache_tokens=160), [Arrival(0, 150, 11)])
    with pytest.raises(ValueError, match="out of order"):
        drive(Limits(), [Arrival(1, 1, 1), Arrival(0, 1, 1)])
    assert drive(Limits(kv_cache_tokens=160), [Arrival(0, 150, 10)] * 3).served[2].finished
