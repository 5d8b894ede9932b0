"""
How often the verdict is wrong, over hundreds of gates. The full version, with figures, is a benchmark.

Seeds are fixed: these numbers do not waver from run to run. Bounds are the promise itself, not what was seen once.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import pytest

from sre.gate.judge import judge
from sre.gate.result import RunResult
from sre.gate.verdict import Reason, Verdict
from tests.gate.verdict.simulated import (
    BUSY_CLIENT,
    COMPARISON_ONLY,
    DEFAULTS,
    FIT_CLIENT,
    Model,
    Tally,
    many_gates,
    p99_ratio,
    tally,
    virtual_run,
)
from tests.support.virtual_gate import VirtualTarget

GATES = 200
SAME = Model(run_variation=0.04, requests=2000)
NOISY = Model(run_variation=0.10, requests=500)


@functools.cache
def equal(model: Model) -> Tally:
    return many_gates(GATES, model, model, seed=1)


@functools.cache
def slower_by_a_fifth(model: Model) -> Tally:
    return many_gates(GATES, model, replace(model, slowness=1.2), seed=3)


@pytest.mark.parametrize("model", [SAME, NOISY], ids=["usual", "noisy"])
def test_equal_builds_fail_in_at_most_5_of_100_gates(model: Model) -> None:
    seen = equal(model)
    assert seen.failed_share <= 0.05, str(seen)
    assert seen.verdicts[Verdict.FAIL] > 0, "no gate at all failed: a test this blind proves nothing"


def test_equal_builds_mostly_pass() -> None:
    seen = equal(SAME)
    assert seen.verdicts[Verdict.PASS] >= 0.7 * GATES, str(seen)


def test_a_fifth_slower_fails_in_at_least_85_of_100_gates() -> None:
    seen = slower_by_a_fifth(SAME)
    assert seen.failed_share >= 0.85, str(seen)


@pytest.mark.parametrize("model", [SAME, NOISY], ids=["usual", "noisy"])
def test_a_fifth_slower_hardly_ever_passes(model: Model) -> None:
    """Where the noise hides it, the answer is that it cannot be told."""
    seen = slower_by_a_fifth(model)
    assert seen.verdicts[Verdict.PASS] <= 0.05 * GATES, str(seen)


def test_a_client_that_was_the_limit_never_passes_and_never_fails() -> None:
    late = replace(SAME, lag_p99_seconds=0.03)
    for candidate in (late, replace(late, slowness=1.5)):
        assert many_gates(50, SAME, candidate, seed=5).verdicts == {Verdict.INCONCLUSIVE: 50}
    for candidate in (SAME, replace(SAME, slowness=1.5)):
        seen = many_gates(50, SAME, candidate, seed=6, calibration=BUSY_CLIENT)
        assert seen.verdicts == {Verdict.INCONCLUSIVE: 50}
        assert seen.reasons == {Reason.CLIENT_LIMITED: 50}


def test_days_that_the_runs_of_a_side_share_look_like_regressions() -> None:
    """A limit of any recorded baseline, and the reason for its remark: were this not so, it could go."""
    shared = Model(run_variation=0.03, side_variation=0.05, requests=2000)
    assert many_gates(GATES, shared, shared, policy=COMPARISON_ONLY, seed=7).failed_share > 0.08


RATE_RPS, SECONDS = 40.0, 15.0
ENGINE = VirtualTarget(run_variation_ratio=0.04)


def runs_of_engine(target: VirtualTarget, side: str, count: int) -> list[RunResult]:
    return [
        virtual_run(target, number, rate_rps=RATE_RPS, seconds=SECONDS, number=number, side=side)
        for number in range(count)
    ]


def test_on_the_simulated_engine() -> None:
    """
    200 gates each, of runs drawn from two pools: a run takes some 0.1 s, a gate needs ten.
    """
    choose = random.Random(8)
    same = runs_of_engine(ENGINE, "same", 40)
    slower = runs_of_engine(replace(ENGINE, slowness=1.2), "slower", 20)
    late = runs_of_engine(replace(ENGINE, client_lag_seconds=0.02), "late", 5)
    assert p99_ratio(slower, same) == pytest.approx(1.2, abs=0.05)
    alike, worse = [], []
    for _ in range(GATES):
        drawn = choose.sample(same, 10)
        alike.append(judge(drawn[:5], drawn[5:], DEFAULTS, calibration=FIT_CLIENT))
        worse.append(judge(choose.sample(slower, 5), drawn[5:], DEFAULTS, calibration=FIT_CLIENT))
    level, found = tally(alike), tally(worse)
    assert level.failed_share <= 0.05, str(level)
    assert level.verdicts[Verdict.PASS] >= 0.5 * GATES, str(level)
    assert found.failed_share >= 0.85, str(found)
    limited = judge(late, same[:5], DEFAULTS, calibration=FIT_CLIENT)
    assert (limited.verdict, set(limited.reasons)) == (Verdict.INCONCLUSIVE, {Reason.CLIENT_LIMITED})
