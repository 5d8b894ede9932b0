"""A clock that moves only when told."""

from __future__ import annotations

import asyncio


class ManualClock:
    """
    Clock for tests: ``advance`` moves both times, ``jump_wall`` only the wall clock; ``sleep`` advances and yields.
    """

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self._monotonic += seconds
        self._wall += seconds

    def jump_wall(self, seconds: float) -> None:
        """Step the wall clock, as NTP or a person would."""
        self._wall += seconds

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)
