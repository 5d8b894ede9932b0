"""When a process that ended unasked is started again."""

from __future__ import annotations

from dataclasses import dataclass

from sre.settings.stack import RestartSettings


@dataclass(frozen=True, slots=True)
class RunHistory:
    """What is remembered of a process' past runs."""

    crashes_in_a_row: int = 0
    """Unasked ends, each less than ``stable_after_seconds`` after its start."""
    restarts: int = 0
    """Starts after the first one, asked for or not."""


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """The next start."""

    start_at: float
    """Monotonic seconds; <= now means at once."""
    delay_seconds: float
    history: RunHistory


def after_crash(
    history: RunHistory, *, now: float, ran_seconds: float, policy: RestartSettings, first_at_once: bool = False
) -> RestartDecision:
    """
    Decide the next start after an end that nobody asked for. The exit code plays no part: a dead engine exits with 0.

    Args:
        now: Monotonic seconds.
        ran_seconds: How long the run lasted; from ``stable_after_seconds`` on the back-off starts over.
        first_at_once: No wait after the first crash of a row; for the gateway, through which all traffic goes.
    """
    crashes = 1 if ran_seconds >= policy.stable_after_seconds else history.crashes_in_a_row + 1
    steps = crashes - 1
    if first_at_once:
        steps -= 1
    delay = 0.0 if steps < 0 else _backoff(steps, policy)
    return RestartDecision(now + delay, delay, RunHistory(crashes, history.restarts + 1))


def after_request(history: RunHistory) -> RunHistory:
    """Count a restart that was asked for: it waits for nothing and starts no back-off."""
    return RunHistory(history.crashes_in_a_row, history.restarts + 1)


def _backoff(steps: int, policy: RestartSettings) -> float:
    ceiling = max(policy.max_backoff_seconds, policy.initial_backoff_seconds)
    delay = policy.initial_backoff_seconds
    for _ in range(steps):
        if delay >= ceiling or policy.multiplier == 1:
            break
        delay *= policy.multiplier
    return min(delay, ceiling)
