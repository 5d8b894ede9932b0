"""How long a message waits for its next try."""

from __future__ import annotations

import random

from sre.actions.types import Message
from sre.clock import Clock
from sre.notify.delivery import DeliveryResult, backoff_seconds
from sre.notify.policy import Follow, Policy, max_age_of, seldom_seconds
from sre.settings.notify import NotifySettings

PAST_AGE_SECONDS = 1.0
"""So long after a message became too old it is looked at, and given up, at the latest."""


class Waits:
    """
    Seconds until the next try. However long a provider asks to wait, or a message waits because it may have arrived:
    when it is too old, it shows as dead, and not as one that waits. ``age_seconds`` is its age at the moment ``since``.
    """

    def __init__(self, settings: NotifySettings, policy: Policy, clock: Clock, rng: random.Random) -> None:
        self._settings, self._policy, self._clock, self._rng = settings, policy, clock, rng

    def after(
        self, attempts: int, result: DeliveryResult, follow: Follow, message: Message, age_seconds: float, since: float
    ) -> float:
        """After a try."""
        wait = max(self._backoff(attempts), result.retry_after_seconds or 0.0, follow.wait_seconds)
        return self._in_time(wait, message, age_seconds, since)

    def mistaken(
        self, attempts: int, unknown_outcomes: int, message: Message, age_seconds: float, since: float
    ) -> float:
        """After a mistake of ours."""
        wait = max(self._backoff(attempts), seldom_seconds(unknown_outcomes, self._policy))
        return self._in_time(wait, message, age_seconds, since)

    def _in_time(self, seconds: float, message: Message, age_seconds: float, since: float) -> float:
        age = age_seconds + self._clock.monotonic() - since
        return min(seconds, max(0.0, max_age_of(message, self._policy) - age) + PAST_AGE_SECONDS)

    def _backoff(self, attempts: int) -> float:
        return backoff_seconds(
            attempts,
            initial_seconds=self._settings.initial_backoff_seconds,
            max_seconds=self._settings.max_backoff_seconds,
            rng=self._rng,
        )
