"""The latency budget: parts, residual, and what their growth says."""

from __future__ import annotations

import dataclasses
import math

import pytest

from sre.gate.latency_budget import BudgetStage, budget_table, mean_latency, physical_bounds
from sre.gate.result import StageResult
from sre.gate.stages import RequestClass, StageKind, StagePlan, StageSignals
from sre.gate.summary import summarize
from sre.settings.gate import BudgetSettings
from sre.simulator.scheduler import Limits
from tests.support.virtual_gate import VirtualTarget, plan, serve

LONG = RequestClass("long", 1 / 9, 16_384, 4)


def stage(target: VirtualTarget, stage_plan: StagePlan, round_trip: float | None = 0.002) -> StageResult:
    served = serve(stage_plan, target)
    host = {} if round_trip is None else {"round_trip_seconds": round_trip}
    return StageResult(stage_plan, summarize(served.load), dataclasses.replace(served.signals, host=host))


def part(row: BudgetStage, name: str) -> float | None:
    return next(one.measured_seconds for one in row.parts if one.name == name)


def test_the_parts_explain_what_the_client_saw() -> None:
    (row,) = budget_table([stage(VirtualTarget(), plan(50, 20))], BudgetSettings()).stages
    assert [one.name for one in row.parts] == ["client", "network", "load", "compute", "serialization"]
    assert abs(row.residual_ratio) < 0.02
    parts = [one.measured_seconds for one in row.parts]
    assert None not in parts
    assert math.fsum(value for value in parts if value is not None) == pytest.approx(row.total_seconds)


def test_time_outside_the_engine_is_the_residual_and_breaks_the_budget_of_serialization() -> None:
    (row,) = budget_table([stage(VirtualTarget(fixed_seconds=0.032), plan(20, 20))], BudgetSettings()).stages
    assert row.residual_seconds == pytest.approx(0.030, abs=0.002)
    last = row.parts[-1]
    assert (last.name, last.within) == ("serialization", False)


def test_budgets_are_those_of_the_settings() -> None:
    results = [stage(VirtualTarget(), plan(20, 10))]
    (row,) = budget_table(results, BudgetSettings()).stages
    assert {one.name: one.budget_seconds for one in row.parts} == {
        "client": None, "network": 0.05, "load": 0.03, "compute": 0.1, "serialization": 0.02,
    }  # fmt: skip
    (tight,) = budget_table(results, BudgetSettings(compute_seconds=0.001)).stages
    assert [one.within for one in tight.parts if one.name == "compute"] == [False]
    assert [one.within for one in row.parts if one.name == "compute"] == [True]


def test_queue_up_alone_is_capacity() -> None:
    target = VirtualTarget(Limits(max_num_seqs=8))
    rows = budget_table([stage(target, plan(rate, 10)) for rate in (10, 100)], BudgetSettings()).stages
    assert rows[0].hint == ""
    assert "queue: capacity" in rows[1].hint


def test_a_larger_batch_shows_in_decode() -> None:
    target = VirtualTarget()
    mix = (RequestClass("chat", 1.0, 16, 64),)
    rows = budget_table([stage(target, plan(rate, 20, classes=mix)) for rate in (0.5, 20)], BudgetSettings()).stages
    assert "decode: the batch grew" in rows[1].hint


def test_longs_beside_shorts_are_head_of_line() -> None:
    target = VirtualTarget(Limits(chunked_prefill=False))
    alone = stage(target, plan(5, 30, kind=StageKind.SHORTS))
    mixed = stage(target, plan(5, 30, kind=StageKind.MIXED, extra_classes=(LONG,)))
    rows = budget_table([alone, mixed], BudgetSettings()).stages
    assert "head of line" in rows[1].hint


def test_a_stage_like_the_first_says_so() -> None:
    rows = budget_table([stage(VirtualTarget(), plan(20, 20, run=run)) for run in (0, 1)], BudgetSettings()).stages
    assert rows[1].hint == "as the first stage"


def test_what_is_not_seen_is_not_judged_and_its_reason_is_named() -> None:
    seen = stage(VirtualTarget(), plan(20, 10))
    blind = dataclasses.replace(
        seen, signals=StageSignals(10.0, unseen={"engine": "no /metrics page", "round_trip": "404"})
    )
    (row,) = budget_table([blind], BudgetSettings()).stages
    assert [(one.name, one.measured_seconds is None, one.within) for one in row.parts] == [
        ("client", False, None), ("network", True, None), ("load", True, None), ("compute", True, None),
        ("serialization", False, None),
    ]  # fmt: skip
    assert [one.source for one in row.parts][1:3] == ["404", "no /metrics page"]
    assert row.residual_ratio > 0.95
    (bare,) = budget_table([dataclasses.replace(seen, signals=None)], BudgetSettings()).stages
    assert part(bare, "compute") is None


def test_parts_that_exceed_the_whole_are_no_explanation() -> None:
    seen = stage(VirtualTarget(), plan(20, 10))
    assert seen.signals is not None
    engine = {**seen.signals.engine, "decode_seconds_mean": 5.0}
    other = dataclasses.replace(seen, signals=dataclasses.replace(seen.signals, engine=engine))
    (row,) = budget_table([other], BudgetSettings()).stages
    assert row.residual_seconds < 0
    assert "exceed the whole" in row.hint


def test_failures_are_left_out_of_the_mean_and_a_stage_without_answers_has_no_row() -> None:
    usual, failing = (stage(VirtualTarget(failed_ratio=ratio), plan(20, 10)).summary for ratio in (0.0, 0.3))
    assert usual is not None
    assert failing is not None
    assert mean_latency(failing) == pytest.approx(mean_latency(usual), rel=0.1)
    none = stage(VirtualTarget(failed_ratio=1.0), plan(20, 10))
    assert budget_table([none, StageResult(plan(20), None, None, skipped="given up")], BudgetSettings()).stages == ()


def test_figures_no_gpu_can_reach_are_found() -> None:
    known = {
        "gpus": 1, "parameters": 7e9, "weight_bytes": 14e9, "memory_bytes_per_second": 2e12, "flops_per_second": 312e12,
    }  # fmt: skip
    fine = physical_bounds(tpot_p50_seconds=0.02, output_tokens_per_second=3000, **known)  # type: ignore[arg-type]
    fast = physical_bounds(tpot_p50_seconds=0.002, output_tokens_per_second=3000, **known)  # type: ignore[arg-type]
    many = physical_bounds(tpot_p50_seconds=0.02, output_tokens_per_second=30_000, **known)  # type: ignore[arg-type]
    blind = physical_bounds(
        tpot_p50_seconds=0.02, output_tokens_per_second=3000, gpus=1, parameters=None, weight_bytes=None,
        memory_bytes_per_second=None, flops_per_second=None,
    )  # fmt: skip
    assert [check.ok for check in (fine, fast, many, blind)] == [True, False, False, None]
    assert "at least 7 ms" in fast.detail


def test_another_run_of_the_same_stage_has_no_growth_to_explain() -> None:
    quick, slow = stage(VirtualTarget(), plan(20, 20)), stage(VirtualTarget(fixed_seconds=0.2), plan(20, 20, run=1))
    assert [row.hint for row in budget_table([quick, slow], BudgetSettings()).stages] == ["", "as the first stage"]


def test_no_part_is_more_than_all_of_the_growth() -> None:
    queued = stage(VirtualTarget(slowness=2), plan(20, 20))
    later = stage(VirtualTarget(fixed_seconds=0.4), plan(40, 20))
    rows = budget_table([queued, later], BudgetSettings()).stages
    assert rows[1].hint.startswith("100% of the growth is residual")
