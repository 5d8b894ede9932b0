"""Wait for the first of several things, on the given clock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from sre.clock import Clock


async def wait_first(
    clock: Clock, timeout_seconds: float | None, *others: Coroutine[Any, Any, Any] | asyncio.Task[Any]
) -> None:
    """
    Return when one of ``others`` is done or ``timeout_seconds`` have passed. Tasks given are left as they are;
    coroutines given are cancelled then.
    """
    given = {other for other in others if isinstance(other, asyncio.Task)}
    made = {asyncio.create_task(other) for other in others if not isinstance(other, asyncio.Task)}
    if timeout_seconds is not None:
        made.add(asyncio.create_task(clock.sleep(max(0.0, timeout_seconds))))
    try:
        await asyncio.wait(given | made, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in made:
            task.cancel()
        await asyncio.gather(*made, return_exceptions=True)
