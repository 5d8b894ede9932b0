"""One stage reduced: rates, saturation, and the checks of our own arithmetic, on servers whose truth is known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest

from sre.gate import long_tail, saturation, self_checks
from sre.gate.cells import BY_USAGE, collect, measure
from sre.gate.long_tail import ShortsOfStage
from sre.gate.plan import seed_of
from sre.gate.records import Cause, RequestRecord
from sre.gate.result import RunResult, StageResult
from sre.gate.stages import Arrivals, LiveCounts, RequestClass, StageKind, StageLoad, StagePlan
from sre.gate.summary import summarize
from sre.gate.verdict import Cell
from sre.testing.clock import ManualClock
from sre.testing.load import Behaviour, FakeLoad

SHORT = RequestClass("short", 1.0, 256, 8)
CAPACITY = 50.0


def unwatched(counts: LiveCounts) -> str | None:
    return None


async def stage(
    does: Behaviour,
    rate: float = 40.0,
    seconds: float = 30.0,
    *,
    seed: int = 1,
    watch: Callable[[LiveCounts], str | None] = unwatched,
    drain: float = 600.0,
    arrivals: Arrivals = Arrivals.POISSON,
) -> StageLoad:
    plan = StagePlan("stage", StageKind.STAIRCASE, rate, seconds, (SHORT,), seed, arrivals)
    return await FakeLoad(ManualClock(), does).run(plan, watch=watch, drain_seconds=drain)


# ---- Saturation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9])
async def test_below_its_capacity_a_server_is_never_called_saturated(share: float) -> None:
    does = Behaviour(capacity_rps=CAPACITY, service_seconds=0.1, noise=0.2)
    for seed in range(10):
        load = await stage(does, share * CAPACITY, seed=seed_of(seed, 0, "below"))
        assert saturation.judge(load).saturated is False


@pytest.mark.parametrize("share", [1.2, 1.5, 4.0])
async def test_above_it_always(share: float) -> None:
    does = Behaviour(capacity_rps=CAPACITY, service_seconds=0.1, noise=0.2)
    for seed in range(10):
        found = saturation.judge(await stage(does, share * CAPACITY, seed=seed_of(seed, 0, "above")))
        assert found.saturated is True, found.sign
        assert "grew" in found.sign


async def test_long_answers_saturate_nothing_by_being_long() -> None:
    """10 s answers in a 60 s stage: a third of them is not there yet at its end."""
    found = saturation.judge(await stage(Behaviour(service_seconds=10), 5, 60))
    assert found == saturation.Saturation(False, "in flight level, answered as sent")


@pytest.mark.parametrize(
    ("does", "seconds", "sign"),
    [
        (Behaviour(), 0.3, "only 12 answers; 20 are needed to tell"),
        (Behaviour(service_seconds=10), 30.0, "stage_seconds: 50 would tell"),
    ],
)
async def test_too_little_is_not_judged(does: Behaviour, seconds: float, sign: str) -> None:
    found = saturation.judge(await stage(does, 40, seconds, arrivals=Arrivals.CONSTANT))
    assert found.saturated is None
    assert found.sign.endswith(sign)


async def test_who_turns_requests_away_is_full_and_who_breaks_them_is_not() -> None:
    refusing = await stage(Behaviour(failed_ratio=0.3, cause=Cause.REFUSED))
    broken = await stage(Behaviour(failed_ratio=0.3, cause=Cause.SERVER_ERROR))
    assert saturation.judge(refusing).saturated is True
    assert saturation.judge(broken).saturated is False


async def test_a_client_that_holds_requests_back_is_not_the_servers_fault() -> None:
    plan = StagePlan("stage", StageKind.STAIRCASE, 100, 30, (SHORT,), 1)
    fake = FakeLoad(ManualClock(), Behaviour(service_seconds=2), max_in_flight=100)
    found = saturation.judge(await fake.run(plan, watch=unwatched, drain_seconds=60))
    assert found.saturated is None
    assert "max_in_flight" in found.sign


async def test_the_slope_has_a_standard_error() -> None:
    slope = saturation.in_flight_slope(await stage(Behaviour(capacity_rps=CAPACITY), 2 * CAPACITY))
    assert slope.samples == saturation.SAMPLES
    assert slope.per_second == pytest.approx(CAPACITY, rel=0.15)
    assert 0 < slope.error < slope.per_second / 10


# ---- Summary --------------------------------------------------------------------------------------------------------


async def test_rates_are_counted_once_answers_flow() -> None:
    summary = summarize(await stage(Behaviour(service_seconds=3), 20, 30, arrivals=Arrivals.CONSTANT))
    assert summary.offered_rps == pytest.approx(20)
    assert summary.completed_rps == pytest.approx(20, rel=0.02)  # of all 30 s it would be 18
    assert summary.output_tokens_per_second == pytest.approx(8 * 20, rel=0.02)
    assert summary.in_flight_mean == pytest.approx(60, rel=0.03)
    assert summary.in_flight_max == pytest.approx(60, abs=1)
    assert summary.drain_seconds == pytest.approx(3, abs=0.6)


async def test_a_saturated_server_answers_its_capacity() -> None:
    summary = summarize(await stage(Behaviour(capacity_rps=CAPACITY), 2 * CAPACITY))
    assert summary.completed_rps == pytest.approx(CAPACITY, rel=0.02)
    assert summary.saturated is True


async def test_failures_are_infinitely_slow_and_successes_stand_beside_them() -> None:
    summary = summarize(await stage(Behaviour(failed_ratio=0.1)))
    short = summary.classes["short"]
    assert short == dataclasses.replace(summary.classes["all"], request_class="short")
    assert short.ttft.p95 == math.inf
    assert short.ttft.infinite == short.failed == summary.failed > 0
    assert short.ttft.successes_p99 is not None
    assert math.isfinite(short.ttft.successes_p99)
    assert short.causes == {"ok": short.ok, "server_error": short.failed}
    assert sum(short.causes.values()) == short.planned == summary.planned


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
async def test_tokens_of_a_part_of_the_answers_are_no_figure_of_all(share: float) -> None:
    """A server whose ``usage`` disappears while a stage runs."""
    load = await stage(Behaviour(failed_ratio=0.02))
    kept = round(share * len(load.records))
    for record in load.records[kept:]:
        record.output_tokens = record.prompt_tokens = None
    summary = summarize(load)
    assert summary.output_tokens_per_second is None
    assert (summary.classes["short"].tpot.count, summary.classes["short"].tpot.p99) == (0, None)
    told = next(check for check in self_checks.check_stage(load, summary) if check.name == "token_rates")
    assert told.ok is None
    assert ("answers came without usage" if share else "reports no usage") in told.detail
    measured = measure(RunResult(0, "candidate", (StageResult(load.plan, summary, None),), 0.0))
    for metric in BY_USAGE:
        found = collect([measured], Cell("stage", "short", metric))
        assert (list(found.values), "did not come with every answer" in found.missing) == ([], True)


async def test_what_we_ended_ourselves_is_neither_fast_nor_slow() -> None:
    def stop(counts: LiveCounts) -> str | None:
        return "interrupted" if counts.at - counts.started_at > 10 else None

    load = await stage(Behaviour(service_seconds=2), watch=stop)
    summary = summarize(load)
    assert summary.cancelled == pytest.approx(2 * 40, rel=0.3)
    assert summary.classes["all"].ttft.infinite == 0
    assert summary.offered_rps == pytest.approx(40, rel=0.15)  # of the 10 s that it lasted
    assert {check.name for check in self_checks.check_stage(load, summary) if check.ok is False} == set()


async def test_a_class_nobody_sent_is_there_with_nothing_in_it() -> None:
    load = await stage(Behaviour(), 1, 0.01)
    summary = summarize(dataclasses.replace(load, records=()))
    assert summary.classes["short"].planned == 0
    assert summary.classes["short"].ttft.p99 is None
    assert (summary.saturated, summary.completed_rps) == (None, 0.0)


async def test_samples_are_sorted_and_thinned_and_the_curve_has_at_most_200_points() -> None:
    summary = summarize(await stage(Behaviour(noise=0.3), 100, 30))
    sample = summary.ttft_sample_seconds["all"]
    assert len(sample) == 2000
    assert list(sample) == sorted(sample)
    assert len(summary.in_flight) == 200
    assert summary.in_flight[0][0] == 0


# ---- Self-checks ----------------------------------------------------------------------------------------------------


async def test_a_sound_stage_passes_every_check() -> None:
    load = await stage(Behaviour(service_seconds=0.5, noise=0.3))
    assert {check.name: check.ok for check in self_checks.check_stage(load, summarize(load))} == {
        "littles_law": True, "sums": True, "clock": True, "token_rates": True,
    }  # fmt: skip


async def test_a_curve_that_contradicts_the_stamps_is_noticed() -> None:
    load = await stage(Behaviour(service_seconds=0.5))
    wrong = dataclasses.replace(
        load, in_flight=[dataclasses.replace(one, in_flight=round(one.in_flight * 1.3)) for one in load.in_flight]
    )
    check = self_checks.littles_law(wrong, summarize(wrong))
    assert check.ok is False
    assert "apart" in check.detail


async def test_littles_law_is_not_asked_of_a_stage_that_is_not_steady() -> None:
    load = await stage(Behaviour(capacity_rps=CAPACITY), 2 * CAPACITY)
    assert self_checks.littles_law(load, summarize(load)).ok is None


def drop_one(records: list[RequestRecord]) -> list[RequestRecord]:
    return records[:-1]


def double_one(records: list[RequestRecord]) -> list[RequestRecord]:
    return [*records[:-1], records[0]]


@pytest.mark.parametrize("damage", [drop_one, double_one])
async def test_a_request_lost_or_counted_twice_is_noticed(
    damage: Callable[[list[RequestRecord]], list[RequestRecord]],
) -> None:
    load = await stage(Behaviour())
    wrong = dataclasses.replace(load, records=damage(list(load.records)))
    assert self_checks.sums(wrong, summarize(wrong)).ok is False


@pytest.mark.parametrize("stamp", ["sent_at", "first_content_at", "ended_at"])
async def test_a_stamp_before_its_cause_is_noticed(stamp: str) -> None:
    load = await stage(Behaviour())
    setattr(load.records[7], stamp, load.records[7].intended_at - 0.001)
    check = self_checks.clock(load)
    assert check.ok is False
    assert "request 7" in check.detail


async def test_a_request_cancelled_in_a_stage_that_ran_to_its_end_is_noticed() -> None:
    load = await stage(Behaviour())
    load.records[3].cause = Cause.CANCELLED
    check = self_checks.sums(load, summarize(load))
    assert (check.ok, check.detail) == (False, "1 cancelled in a stage that ran to its end")
    assert self_checks.sums(dataclasses.replace(load, aborted="interrupted"), summarize(load)).ok


async def test_an_answer_longer_than_allowed_is_noticed() -> None:
    load = await stage(Behaviour())
    load.records[3].output_tokens = 9
    check = self_checks.token_rates(load, summarize(load))
    assert check.ok is False


# ---- Long-tail test -------------------------------------------------------------------------------------------------


def shorts(ttft_p99: float) -> ShortsOfStage:
    return ShortsOfStage(ttft_p99, 2 * ttft_p99, 0.01, (ttft_p99,), (32_000,), 30, 1)


def test_an_arm_says_how_much_the_shorts_suffer_and_whether_that_is_chance() -> None:
    alone, mixed = [shorts(1 + run / 100) for run in range(5)], [shorts(2 + run / 100) for run in range(5)]
    arm = long_tail.arm("", alone, mixed)
    assert arm.p_value == pytest.approx(1 / 252)
    assert arm.effect_ratio == pytest.approx(2.02 / 1.02 - 1)
    assert (arm.long_requests, arm.long_failed, arm.long_prompt_tokens) == (150, 5, 32_000)
    found = long_tail.conclude(100, 0.1, [arm])
    assert found.detail == (
        "target: P99 of the shorts' TTFT 1020 ms alone, 2020 ms with longs (p 0.004), 5 of 150 longs failed"
    )
    assert found.best_policy is None


def test_a_policy_is_best_only_if_that_is_more_than_chance() -> None:
    alone = [shorts(1 + run / 100) for run in range(5)]
    worse = long_tail.arm("", alone, [shorts(2 + run / 100) for run in range(5)])
    better = long_tail.arm("chunked", alone, [shorts(1.5 + run / 100) for run in range(5)])
    alike = long_tail.arm("other", alone, [shorts(1.505 + run / 100) for run in range(5)])
    assert long_tail.conclude(100, 0.1, [worse, better]).best_policy == "chunked"
    assert long_tail.conclude(100, 0.1, [worse, better, alike]).best_policy is None


def test_arms_that_did_not_run_are_named_with_the_reason() -> None:
    found = long_tail.conclude(100, 0.1, [long_tail.arm("fcfs", (), (), "not there")])
    assert found.detail == "fcfs: not run: not there"


def test_an_arm_of_a_late_client_is_shown_and_neither_best_nor_compared() -> None:
    alone = [shorts(1 + run / 100) for run in range(5)]
    worse = long_tail.arm("", alone, [shorts(2 + run / 100) for run in range(5)])
    late = [dataclasses.replace(shorts(1.5 + run / 100), doubt="the client was 50 ms late") for run in range(5)]
    better = long_tail.arm("chunked", alone, late)
    assert better.doubt == "the client was 50 ms late"
    found = long_tail.conclude(100, 0.1, [worse, better])
    assert found.best_policy is None
    assert "in doubt: the client was 50 ms late" in found.detail
    assert found.detail.endswith("arms in doubt are not compared")


def test_a_stage_given_up_has_no_value_and_its_policy_is_not_the_best() -> None:
    """What was in flight then was cancelled: those that were left would look quick."""
    alone = [shorts(1 + run / 100) for run in range(5)]
    worse = long_tail.arm("", alone, [shorts(2 + run / 100) for run in range(5)])
    cut = dataclasses.replace(shorts(0.1), aborted="in_flight_cap")
    better = long_tail.arm("chunked", alone, [*(shorts(1.5 + run / 100) for run in range(5)), cut])
    assert 0.1 not in better.ttft_p99_mixed_seconds
    assert better.given_up == "with longs: in_flight_cap"
    assert long_tail.conclude(100, 0.1, [worse, better]).best_policy is None
    lost = long_tail.conclude(100, 0.1, [long_tail.arm("", alone, [cut])])
    assert lost.detail == "target: nothing to compare: given up: with longs: in_flight_cap"


def test_a_policy_that_turns_the_longs_away_is_not_the_best() -> None:
    alone = [shorts(1 + run / 100) for run in range(5)]
    worse = long_tail.arm("", alone, [shorts(2 + run / 100) for run in range(5)])
    refused = [dataclasses.replace(shorts(1.1 + run / 100), long_failed=25) for run in range(5)]
    assert long_tail.conclude(100, 0.1, [worse, long_tail.arm("strict", alone, refused)]).best_policy is None


# ---- Percentiles and rates ------------------------------------------------------------------------------------------


async def test_a_time_that_no_answer_has_is_not_made_of_failures_alone() -> None:
    """No usage, no TPOT: a single failure must not be its whole distribution, and its P99 infinite."""
    load = await stage(Behaviour())
    for record in load.records:
        record.output_tokens, record.max_gap_seconds = None, None
    load.records[5].cause = Cause.SERVER_ERROR
    seen = summarize(load).classes["all"]
    assert (seen.failed, seen.tpot.count, seen.max_gap.count) == (1, 0, 0)
    assert (seen.ttft.infinite, seen.tpot.p99) == (1, None)
    for record in load.records:
        record.cause = Cause.SERVER_ERROR
    assert summarize(load).classes["all"].tpot.p50 == math.inf  # all failed: that is known


async def test_in_a_steady_stage_as_many_are_answered_as_arrive_in_the_same_part_of_it() -> None:
    """Over 5 s chance moves the arrivals of the counted part by a tenth; it moves both sides of the ratio alike."""
    for seed in range(10):
        seen = summarize(await stage(Behaviour(service_seconds=0.5), 20, 5, seed=seed_of(seed, 0, "steady")))
        assert seen.steady_offered_rps is not None
        in_flight_changed_by = abs(seen.completed_rps - seen.steady_offered_rps) * 3.5
        assert in_flight_changed_by <= seen.in_flight_max + 0.5


@pytest.mark.parametrize(
    ("lag", "loop", "late"), [(0.01, 0.03, 0.03), (0.03, 0.01, 0.03), (0.01, None, 0.01), (math.nan, 0.0, math.inf)]
)
async def test_the_worse_sign_of_a_late_client_counts(lag: float, loop: float | None, late: float) -> None:
    seen = summarize(await stage(Behaviour(), 10, 1))
    seen = dataclasses.replace(seen, lag_p99_seconds=lag, loop_lag_p99_seconds=loop)
    assert seen.client_late_seconds == late
