"""Sources that may be slow: asked again only when they answered, waited for only so long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Poll(Generic[T]):
    """
    One source of one value.

    ``start`` asks if no question is open. ``value`` is the latest answer, None before the first. A source that hangs
    holds one task for ever, never two, and never delays the tick beyond what the caller waits.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._task: asyncio.Task[T] | None = None
        self.value: T | None = None
        self.error: Exception | None = None
        self.fresh = False
        """The last ``settle`` took an answer."""

    def start(self) -> asyncio.Task[T]:
        if self._task is None:
            self._task = asyncio.ensure_future(self._wrap())
        return self._task

    async def _wrap(self) -> T:
        return await self._ask()

    def settle(self) -> None:
        """Take the answer if there is one. A failure is kept in ``error`` and leaves ``value`` as it was."""
        self.fresh = False
        task = self._task
        if task is None or not task.done():
            return
        self._task = None
        if task.cancelled():
            return
        failure = task.exception()
        if failure is None:
            self.value, self.error, self.fresh = task.result(), None, True
        elif isinstance(failure, Exception):
            self.error = failure
        else:
            raise failure

    async def close(self) -> None:
        """Cancel an open question."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


async def settle_all(polls: list[Poll[object]], wait_seconds: float) -> None:
    """Start all, wait ``wait_seconds`` at the most for the answers, take those that came."""
    await asyncio.wait([poll.start() for poll in polls], timeout=wait_seconds)
    for poll in polls:
        poll.settle()
