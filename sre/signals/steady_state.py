"""
Whether a rule would fire on the healthy steady state, and what to change then.

vLLM takes nearly all memory of a GPU at its start and keeps it, so "memory above 95 %" can be how a healthy engine
looks: such a rule would refuse all traffic for ever. It is not armed, and a person is told which setting to change.
"""

from __future__ import annotations

import enum
import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sre.metrics.signals import GPU_MEMORY_USED_RATIO, GPU_TEMPERATURE_CELSIUS
from sre.signals.types import Reading, Seen

MIN_READINGS = 3
"""Fewer say nothing about a steady state."""
NEAR_SHARE = 0.25
"""The memory rule is near its steady state when the way from there to the threshold is shorter than this share of the
way from the threshold to 1. Gut feeling."""
HOPELESS_RATIO = 0.99
"""A ratio that rests above this leaves no room for a threshold."""

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class RuleLike(Protocol):
    """The part of a rule this needs; ``sre.settings.guard.RuleSettings`` has it."""

    @property
    def name(self) -> str: ...
    @property
    def signal(self) -> str: ...
    @property
    def comparison(self) -> str: ...
    @property
    def threshold(self) -> float: ...
    @property
    def recover_below(self) -> float | None: ...


class ArmingReason(enum.Enum):
    """Why a rule is armed or not."""

    CLEAR = "clear"  # the steady state is on the good side
    NEAR = "near"  # on the good side, with little room
    NEVER_OVER = "never_over"  # on the good side of the threshold, not of recover_below: once fired, it stays
    WOULD_FIRE = "would_fire"  # the steady state itself fulfils the condition
    NOT_SEEN = "not_seen"  # too few readings: nothing is known about the steady state


@dataclass(frozen=True, slots=True)
class Arming:
    """
    Verdict on one rule.

    Attributes:
        armed: False only for WOULD_FIRE. A rule whose signal is not seen is armed: what it then does is its
            ``on_missing``.
        level: Median of the readings; None for NOT_SEEN.
        sentence: What was found.
        remedy: What to change; None when nothing needs to be.
        suggested_threshold: A threshold this steady state does not fulfil; None when none is needed or possible.
        suggested_recover_below: The ``recover_below`` to go with it, so that the rule can end.
    """

    armed: bool
    reason: ArmingReason
    level: float | None
    sentence: str
    remedy: str | None = None
    suggested_threshold: float | None = None
    suggested_recover_below: float | None = None


def judge(rule: RuleLike, readings: Sequence[Reading]) -> Arming:
    """
    Return whether ``rule`` may be armed, given ``readings`` of its signal while the stack is healthy.

    The steady state is the median: a blip on either side decides nothing. The caller hands in readings of one target,
    taken while its engine is ready and settled, and none that a chaos fault has changed (``GpuSeen.injected``).
    """
    values = [r.value for r in readings if r.seen is Seen.OK and r.value is not None]
    if len(values) < MIN_READINGS:
        return Arming(
            True, ArmingReason.NOT_SEEN, None, f"rule {rule.name}: {rule.signal} was not seen; its rest is not known"
        )
    return judge_level(rule, statistics.median(values))


def judge_level(rule: RuleLike, level: float) -> Arming:
    """As ``judge``, for a steady state that is known or foreseen to be ``level``."""
    compare = _COMPARISONS[rule.comparison]
    shown = f"rule {rule.name}: {rule.signal} rests at {level:.4g}; it fires at {rule.comparison} {rule.threshold:g}"
    if compare(level, rule.threshold):
        threshold, recover = _suggested(rule, level)
        text = f"{shown}: it would fire on the healthy state, so it is not armed"
        remedy = _remedy(rule, level, threshold, recover)
        return Arming(False, ArmingReason.WOULD_FIRE, level, text, remedy, threshold, recover)
    if rule.recover_below is not None and compare(level, rule.recover_below):
        threshold, recover = _suggested(rule, level)
        text = f"{shown} and is over on the other side of {rule.recover_below:g}: once fired, it would never be over"
        remedy = _remedy(rule, level, threshold, recover)
        return Arming(True, ArmingReason.NEVER_OVER, level, text, remedy, threshold, recover)
    if _near(rule, level):
        threshold, recover = _suggested(rule, level)
        text = f"{shown}: little room, it may fire without a fault"
        remedy = _remedy(rule, level, threshold, recover)
        return Arming(True, ArmingReason.NEAR, level, text, remedy, threshold, recover)
    return Arming(True, ArmingReason.CLEAR, level, shown)


def _near(rule: RuleLike, level: float) -> bool:
    if rule.signal != GPU_MEMORY_USED_RATIO or rule.comparison not in {">", ">="}:
        return False
    return rule.threshold - level < NEAR_SHARE * (1.0 - rule.threshold)


def _suggested(rule: RuleLike, level: float) -> tuple[float | None, float | None]:
    """Threshold half-way, recover_below a quarter of the way from the steady level to the end of the scale."""
    upward = rule.comparison in {">", ">="}
    if rule.signal != GPU_MEMORY_USED_RATIO or not upward or level > HOPELESS_RATIO:
        return None, None
    room = 1.0 - level
    return round(level + room / 2, 4), round(level + room / 4, 4)


def _remedy(rule: RuleLike, level: float, threshold: float | None, recover: float | None) -> str:
    where = f"guard.rules[{rule.name}]"
    if rule.signal == GPU_MEMORY_USED_RATIO:
        lower = "give vLLM less with --gpu-memory-utilization (args: of the engine)"
        other = f"or set {where}.signal: kv_cache_usage_ratio, which moves with the load"
        if threshold is None or recover is None:
            return f"vLLM fills the GPU at its start: {lower}, {other}, or {where}.enabled: false"
        return (
            f"vLLM fills the GPU at its start: set {where}.threshold: {threshold:g} and recover_below: {recover:g},"
            f" or {lower}, {other}"
        )
    if rule.signal == GPU_TEMPERATURE_CELSIUS:
        return (
            f"look at the cooling of this GPU; if {level:.0f} °C is normal for it, set {where}.threshold and"
            " recover_below above that and below its slowdown temperature (nvidia-smi -q -d TEMPERATURE)"
        )
    return f"set {where}.threshold and recover_below on the other side of {level:.4g}, or {where}.enabled: false"
