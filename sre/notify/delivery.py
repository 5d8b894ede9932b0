"""What one try of a delivery is given, how it can end, and when it is repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from sre.notify.forms import Rendered
from sre.notify.outcomes import Cause as Cause
from sre.notify.outcomes import Verdict as Verdict
from sre.settings.notify import ChannelSettings


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """
    How one try ended. ``detail`` says why in the provider's words, without secrets; empty when delivered.

    ``retry_after_seconds``: the provider asks for this wait before the next try; None where it asks nothing.
    ``cause``: why it did not deliver, for ``sre.notify.outcomes.REMEDIES``; None when delivered.
    """

    verdict: Verdict
    detail: str = ""
    retry_after_seconds: float | None = None
    cause: Cause | None = None


class Send(Protocol):
    """Delivers one message to one channel's one recipient."""

    async def __call__(self, channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
        """
        Return within ``channel.timeout_seconds`` (plus the time to kill). Never raises but CancelledError; when
        cancelled, nothing of the delivery runs on.
        """
        ...


def backoff_seconds(attempts: int, *, initial_seconds: float, max_seconds: float, rng: random.Random) -> float:
    """
    Return the wait before the next try: doubling from ``initial_seconds``, at most ``max_seconds``, less up to a fifth
    at random, so that what failed together is not repeated together.

    Args:
        attempts: Tries made, >= 1.
    """
    doubled = initial_seconds * 2.0 ** min(max(attempts, 1) - 1, 60)
    return float(min(doubled, max_seconds) * (1.0 - 0.2 * rng.random()))
