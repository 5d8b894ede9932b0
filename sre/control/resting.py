"""What fails by a mistake of ours fails again: it is tried ever more seldom, and keeps nothing else back."""

from __future__ import annotations

from collections.abc import Hashable

from sre.clock import Clock

FIRST_SECONDS = 2.0
LONGEST_SECONDS = 60.0


class Rests:
    """Which of several things rest after a failure."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._resting: dict[Hashable, tuple[float, float]] = {}
        """Monotonic time until which it rests, and for how long the next time."""

    def due(self, key: Hashable) -> bool:
        """Whether it may be tried now."""
        return self._clock.monotonic() >= self._resting.get(key, (0.0, 0.0))[0]

    def failed(self, key: Hashable) -> None:
        """It rests, twice as long as the last time."""
        seconds = self._resting.get(key, (0.0, FIRST_SECONDS))[1]
        self._resting[key] = self._clock.monotonic() + seconds, min(2 * seconds, LONGEST_SECONDS)

    def over(self, key: Hashable) -> None:
        """It did not fail, or is no more."""
        self._resting.pop(key, None)
