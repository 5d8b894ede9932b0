"""A rule that would fire on the healthy steady state is not armed, and the remedy works."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.settings.guard import DEFAULT_RULES, RuleSettings
from sre.signals.steady_state import ArmingReason, judge, judge_level
from sre.signals.types import NEVER, Reading, Seen

MEMORY, TEMPERATURE = DEFAULT_RULES[:2]


def readings(*values: float | None) -> list[Reading]:
    return [Reading.of(value, float(at)) for at, value in enumerate(values)]


def test_a_gpu_that_vllm_filled_disarms_the_memory_rule_and_says_what_to_change() -> None:
    verdict = judge(MEMORY, readings(0.97, 0.971, 0.97, 0.97))
    assert not verdict.armed
    assert verdict.reason is ArmingReason.WOULD_FIRE
    assert verdict.level == pytest.approx(0.97)
    assert verdict.suggested_threshold == pytest.approx(0.985)
    assert verdict.remedy is not None
    for word in (
        "guard.rules[gpu-memory].threshold: 0.985 and recover_below: 0.9775",
        "--gpu-memory-utilization",
        "kv_cache_usage_ratio",
    ):
        assert word in verdict.remedy


def test_a_half_full_gpu_arms_it() -> None:
    verdict = judge(MEMORY, readings(0.6, 0.61, 0.6))
    assert (verdict.armed, verdict.reason, verdict.remedy) == (True, ArmingReason.CLEAR, None)


def test_little_room_is_said_and_armed() -> None:
    rule = MEMORY.model_copy(update={"recover_below": None})
    verdict = judge(rule, readings(0.945, 0.945, 0.945))
    assert (verdict.armed, verdict.reason) == (True, ArmingReason.NEAR)
    assert verdict.remedy is not None


def test_a_rule_that_could_never_end_is_said() -> None:
    verdict = judge(MEMORY, readings(0.94, 0.94, 0.94))
    assert (verdict.armed, verdict.reason) == (True, ArmingReason.NEVER_OVER)
    assert "0.93" in verdict.sentence
    assert verdict.remedy is not None


def test_a_full_gpu_leaves_no_threshold() -> None:
    verdict = judge(MEMORY, readings(0.999, 0.999, 0.999))
    assert not verdict.armed
    assert verdict.suggested_threshold is None
    assert verdict.remedy is not None
    assert "guard.rules[gpu-memory].enabled: false" in verdict.remedy


def test_a_spike_does_not_disarm_and_a_dip_does_not_arm() -> None:
    assert judge(MEMORY, readings(0.6, 0.99, 0.6, 0.6)).armed
    assert not judge(MEMORY, readings(0.98, 0.1, 0.98, 0.98)).armed


def test_the_edge_belongs_to_the_comparison() -> None:
    at_edge = readings(3.0, 3.0, 3.0)
    assert judge(RuleSettings(name="r", signal="requests_waiting", comparison=">", threshold=3), at_edge).armed
    assert not judge(RuleSettings(name="r", signal="requests_waiting", comparison=">=", threshold=3), at_edge).armed
    assert not judge(RuleSettings(name="r", signal="requests_waiting", comparison="<", threshold=4), at_edge).armed


@pytest.mark.parametrize(
    "unseen",
    [
        [],
        readings(0.99, 0.99),
        [NEVER] * 9,
        [Reading.missing(1.0, Seen.UNREACHABLE)] * 9,
        readings(None, math.nan, 0.99),
    ],
)
def test_what_was_not_seen_disarms_nothing(unseen: list[Reading]) -> None:
    verdict = judge(MEMORY, unseen)
    assert (verdict.armed, verdict.reason, verdict.level) == (True, ArmingReason.NOT_SEEN, None)


def test_a_hot_gpu_points_to_its_cooling() -> None:
    verdict = judge(TEMPERATURE, readings(90, 91, 90))
    assert not verdict.armed
    assert verdict.remedy is not None
    assert "cooling" in verdict.remedy


@given(st.floats(0, 1), st.floats(0, 1))
def test_following_the_suggestion_arms_the_rule_and_lets_it_end(level: float, threshold: float) -> None:
    rule = RuleSettings(name="m", signal="gpu_memory_used_ratio", threshold=threshold)
    verdict = judge_level(rule, level)
    if verdict.suggested_threshold is not None:
        changes = {"threshold": verdict.suggested_threshold, "recover_below": verdict.suggested_recover_below}
        better = judge_level(rule.model_copy(update=changes), level)
        assert (better.armed, better.reason) == (True, ArmingReason.CLEAR)
    assert verdict.armed is not (level > threshold)
