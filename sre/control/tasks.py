"""
Work in the background whose end by a mistake of ours must not go unheard: asyncio speaks of it only when the task is
collected, and of one that is kept or gathered at the end, never.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable

from sre.clock import Clock

log = logging.getLogger(__name__)

FIRST_REST_SECONDS = 1.0
LONGEST_REST_SECONDS = 60.0


async def kept_up(
    work: Callable[[], Awaitable[None]], what: str, clock: Clock, *, failed: Callable[[], None] = lambda: None
) -> None:
    """
    Do ``work`` until it returns. When it raises by a mistake of ours that is logged at once and counted, and it begins
    again: at first after a second, then ever later. Never raises but CancelledError.
    """
    rest = FIRST_REST_SECONDS
    while True:
        began = clock.monotonic()
        try:
            return await work()
        except Exception:  # the cycle boundary of whatever has none of its own
            if clock.monotonic() - began >= LONGEST_REST_SECONDS:
                rest = FIRST_REST_SECONDS  # it had recovered meanwhile
            log.exception("%s ended by a mistake; it begins again in %g s", what, rest)
        with contextlib.suppress(Exception):  # the mistake may be in the counting
            failed()
        await clock.sleep(rest)
        rest = min(2 * rest, LONGEST_REST_SECONDS)
