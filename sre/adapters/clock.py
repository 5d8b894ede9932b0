"""The machine's clock."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Clock of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
