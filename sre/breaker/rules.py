"""Trip rules: a signal beyond a threshold for a duration, with hysteresis and a stated meaning of not seeing."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

from sre.settings.guard import RuleSettings
from sre.signals.types import OutcomeCounts, Reading, Seen

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

TRAFFIC_SIGNALS = frozenset({"error_ratio", "consecutive_failed_batches"})
"""Signals that exist only while traffic flows: an open breaker starves them, so they never veto probing."""


class Verdict(enum.Enum):
    """What a rule says now."""

    OK = "ok"
    PENDING = "pending"  # beyond the threshold, not yet for for_seconds
    FIRING = "firing"
    RECOVERING = "recovering"  # still counts as firing; back on the good side, not yet for recover_for_seconds
    UNKNOWN = "unknown"  # not seen
    DISARMED = "disarmed"  # would fire on the healthy steady state


FIRING_VERDICTS = frozenset({Verdict.FIRING, Verdict.RECOVERING})


@dataclass(frozen=True, slots=True)
class RuleMemory:
    """What a rule remembers between ticks. Times are monotonic seconds."""

    beyond_since: float | None = None
    good_since: float | None = None
    missing_since: float | None = None
    firing: bool = False
    verdict: Verdict = Verdict.UNKNOWN
    value: float | None = None
    blind: bool = False
    """Not seen for blind_after_seconds or more."""


def evaluate(rule: RuleSettings, memory: RuleMemory, reading: Reading, at: float) -> RuleMemory:
    """
    Return what ``rule`` knows after ``reading``.

    A reading that is not OK, or older than ``max_gap_seconds``, is *not seen*: it breaks the continuity that
    ``for_seconds`` demands and then follows ``on_missing`` (hold: a firing rule keeps firing, nothing starts;
    trip: not seeing counts as beyond the threshold; clear: the rule is over).
    """
    if reading.seen is not Seen.OK or reading.value is None or at - reading.sampled_at > rule.max_gap_seconds:
        return _missing(rule, memory, at)
    value = reading.value
    compare = COMPARISONS[rule.comparison]
    beyond = compare(value, rule.threshold)
    still_bad = beyond or compare(value, rule.threshold if rule.recover_below is None else rule.recover_below)
    seen = replace(memory, missing_since=None, blind=False, value=value)
    if seen.firing:
        if still_bad:
            return replace(seen, good_since=None, verdict=Verdict.FIRING)
        good_since = reading.sampled_at if seen.good_since is None else seen.good_since
        if at - good_since >= rule.recover_for_seconds:
            return replace(seen, firing=False, beyond_since=None, good_since=None, verdict=Verdict.OK)
        return replace(seen, good_since=good_since, verdict=Verdict.RECOVERING)
    if not beyond:
        return replace(seen, beyond_since=None, verdict=Verdict.OK)
    return _beyond(rule, seen, reading.sampled_at if seen.beyond_since is None else seen.beyond_since, at)


def _beyond(rule: RuleSettings, memory: RuleMemory, since: float, at: float) -> RuleMemory:
    if at - since >= rule.for_seconds:
        return replace(memory, beyond_since=since, firing=True, good_since=None, verdict=Verdict.FIRING)
    return replace(memory, beyond_since=since, verdict=Verdict.PENDING)


def _missing(rule: RuleSettings, memory: RuleMemory, at: float) -> RuleMemory:
    since = at if memory.missing_since is None else memory.missing_since
    blind = at - since >= rule.blind_after_seconds
    lost = replace(memory, missing_since=since, blind=blind, value=None, good_since=None)
    match rule.on_missing:
        case "clear":
            return replace(lost, firing=False, beyond_since=None, verdict=Verdict.UNKNOWN)
        case "trip" if not lost.firing:
            return _beyond(rule, lost, since if lost.beyond_since is None else lost.beyond_since, at)
        case _:
            verdict = Verdict.FIRING if lost.firing else Verdict.UNKNOWN
            return replace(lost, beyond_since=lost.beyond_since if lost.firing else None, verdict=verdict)


@dataclass(frozen=True, slots=True)
class OutcomeWindow:
    """Cumulative outcome counts of the last seconds: (monotonic time, successes, failures), oldest first."""

    samples: tuple[tuple[float, int, int], ...] = ()


def observe_outcomes(window: OutcomeWindow, counts: OutcomeCounts, at: float, longest_seconds: float) -> OutcomeWindow:
    """Return ``window`` with ``counts`` added; counts that went back (a new log) start it over."""
    now = (at, counts.success, counts.failure)
    last = window.samples[-1] if window.samples else None
    if last is not None and (counts.success < last[1] or counts.failure < last[2]):
        return OutcomeWindow((now,))
    kept = [s for s in window.samples if at - s[0] <= longest_seconds]
    older = window.samples[: len(window.samples) - len(kept)]
    # One sample beyond the edge stays: the counts at the window's beginning.
    return OutcomeWindow((*older[-1:], *kept, now))


def error_ratio(window: OutcomeWindow, at: float, window_seconds: float, min_samples: int) -> Reading:
    """
    Return failures / (successes + failures) over the window, 0..1.

    ABSENT with fewer than ``max(1, min_samples)`` verdicts: a ratio over too little is not seen, not 0.
    """
    if not window.samples:
        return Reading.missing(at)
    edge = at - window_seconds
    base = window.samples[0]
    for sample in window.samples:
        if sample[0] > edge:
            break
        base = sample
    last = window.samples[-1]
    success, failure = last[1] - base[1], last[2] - base[2]
    if success + failure < max(1, min_samples):
        return Reading.missing(at)
    return Reading.of(failure / (success + failure), last[0])
