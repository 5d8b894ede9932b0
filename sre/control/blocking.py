"""Calls that a hanging disk may never return from, kept away from the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sre.errors import StateError

T = TypeVar("T")

CALL_SECONDS = 5.0
"""How long one call is waited for. SQLite itself waits as long for another writer."""


class BlockingCalls:
    """
    Runs blocking calls one at a time in a thread of their own, each waited for in bounded time.

    A call that does not return keeps the thread: until it does, every further call fails at once, so that threads
    never pile up. It goes on all the same, and its effect comes late.

    Args:
        what: Begins the sentence of a failure, e.g. "guard state /…/guard.db".
    """

    def __init__(self, what: str, *, seconds: float = CALL_SECONDS) -> None:
        self._what, self._seconds = what, seconds
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="blocking")
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[Any] | None = None
        self._stuck = False

    async def __call__(self, call: Callable[[], T]) -> T:
        """
        Return what ``call`` returns, raise what it raises.

        Raises:
            StateError: It, or one before it, has not returned in time.
        """
        async with self._turn:
            # One whose caller was cancelled still runs; most likely it is about to end.
            if self._running is not None and (self._stuck or not await self._ended(self._running)):
                raise self._late()
            future = asyncio.get_running_loop().run_in_executor(self._executor, call)
            self._running = future
            future.add_done_callback(self._returned)
            if not await self._ended(future):
                raise self._late()
            return future.result()

    async def _ended(self, future: asyncio.Future[T]) -> bool:
        done, _ = await asyncio.wait({future}, timeout=self._seconds)
        self._stuck = not done
        return bool(done)

    def _returned(self, future: asyncio.Future[Any]) -> None:
        self._running, self._stuck = None, False
        if not future.cancelled():
            future.exception()  # looked at, even if nobody waits for it any more

    def _late(self) -> StateError:
        return StateError(
            f"{self._what}: no answer for {self._seconds:g} s; check the disk and the kernel log, the guard then goes"
            " on by itself"
        )
