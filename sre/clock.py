"""Time as a dependency: who needs it takes a Clock, so tests never wait."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Reads time. ``monotonic`` orders and measures; ``wall`` is for people and records only."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never goes back. CLOCK_MONOTONIC on the real clock, so that it
        means the same in every process of one boot."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch; may jump either way."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` (>= 0) of this clock's time."""
        ...
