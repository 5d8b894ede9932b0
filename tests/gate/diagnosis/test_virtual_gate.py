"""The virtual gate that other tests stand on: its records are of the kind a load generator hands back."""

from __future__ import annotations

import math

import pytest

from sre.gate.records import Cause, RequestRecord
from sre.gate.stages import RequestClass, StageLoad
from sre.simulator.scheduler import Limits
from tests.support.virtual_gate import SHORT, VirtualTarget, plan, serve, staircase


def p99(load: StageLoad) -> float:
    values = sorted(record.e2e_seconds for record in load.records)
    return values[math.ceil(0.99 * len(values)) - 1]


def test_records_are_in_order_and_consistent() -> None:
    load = serve(plan(100, 10), VirtualTarget()).load
    assert [record.number for record in load.records] == list(range(load.planned))
    assert load.planned == pytest.approx(1000, abs=150)
    for record in load.records:
        assert record.sent_at is not None
        assert record.first_content_at is not None
        assert record.ended_at is not None
        assert record.intended_at <= record.sent_at < record.first_content_at < record.ended_at <= load.stopped_at


def test_runs_share_the_schedule_and_differ_in_noise() -> None:
    loads = [serve(plan(100, 5, run=run), VirtualTarget(run_variation_ratio=0.03)).load for run in (0, 1)]
    assert [r.intended_at for r in loads[0].records] == [r.intended_at for r in loads[1].records]
    assert p99(loads[0]) != p99(loads[1])


def test_longs_beside_leave_the_shorts_schedule_alone() -> None:
    long = RequestClass("long", 1 / 9, 4096, 4)
    alone, mixed = (serve(plan(20, 20, extra_classes=extra), VirtualTarget()).load for extra in ((), (long,)))

    def shorts(load: StageLoad) -> list[RequestRecord]:
        return [record for record in load.records if record.request_class == "short"]

    assert [r.intended_at for r in shorts(alone)] == [r.intended_at for r in shorts(mixed)]
    assert len(mixed.records) - len(shorts(mixed)) == pytest.approx(len(shorts(mixed)) / 9, rel=0.5)
    assert p99(alone) < p99(mixed)


def test_a_slower_build_has_a_slower_tail() -> None:
    p99s = [p99(serve(plan(50, 20), VirtualTarget(slowness=factor, fixed_seconds=0)).load) for factor in (1.0, 1.2)]
    assert p99s[1] / p99s[0] >= 1.15


def test_a_slow_tail_shows_in_p99_only() -> None:
    usual = serve(plan(50, 20), VirtualTarget()).load
    tail = serve(plan(50, 20), VirtualTarget(slow_share=0.03, slow_factor=3)).load
    assert p99(tail) > 1.2 * p99(usual)
    medians = [sorted(r.e2e_seconds for r in load.records)[load.planned // 2] for load in (usual, tail)]
    assert medians[1] == pytest.approx(medians[0], rel=0.05)


def test_failures_and_timeouts_are_marked() -> None:
    load = serve(plan(100, 10), VirtualTarget(failed_ratio=0.1)).load
    failed = [record for record in load.records if record.failed]
    assert len(failed) / load.planned == pytest.approx(0.1, abs=0.03)
    assert {record.cause for record in failed} == {Cause.SERVER_ERROR}
    flooded = serve(plan(500, 10), VirtualTarget(Limits(max_num_seqs=4), timeout_seconds=1)).load
    assert {record.cause for record in flooded.records} == {Cause.OK, Cause.TIMEOUT}


def test_a_staircase_saturates_when_slots_run_out() -> None:
    low, high = staircase([20, 400], VirtualTarget(Limits(max_num_seqs=8)), duration_seconds=10, classes=(SHORT,))
    assert low.load.in_flight[95].in_flight < 8
    assert high.load.in_flight[95].in_flight > 500
    assert high.signals.engine["queue_seconds_mean"] > 10 * low.signals.engine["queue_seconds_mean"]
    assert high.load.started_at > low.load.stopped_at
