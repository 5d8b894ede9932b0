"""A stage against the stub, in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sre.adapters.clock import SystemClock
from sre.adapters.load import HttpLoad
from sre.gate.stages import Arrivals, LiveCounts, RequestClass, StageKind, StageLoad, StagePlan
from tests.support.sse_stub import SCRIPT_HEADER, STUB_MODEL


def scripted(name: str, share: float = 1.0, *, max_tokens: int = 4, prompt_tokens: int = 40) -> RequestClass:
    """A class that has its requests answered by the script of this name."""
    return RequestClass(name, share, prompt_tokens, max_tokens, headers=((SCRIPT_HEADER, name),))


def plan(*classes: RequestClass, rate: float = 50.0, seconds: float = 1.0, **fields: Any) -> StagePlan:
    """A stage at a constant rate, so that counts are known."""
    fields.setdefault("arrivals", Arrivals.CONSTANT)
    kinds = classes or (scripted("default"),)
    return StagePlan("stage", StageKind.STAIRCASE, rate, seconds, kinds, seed=1, **fields)


def generator(url: str, **options: Any) -> HttpLoad:
    """The real generator, with short limits."""
    options = {"model": STUB_MODEL, "request_timeout_seconds": 10.0, "processes": 1} | options
    return HttpLoad(url, clock=SystemClock(), **options)


def unwatched(counts: LiveCounts) -> str | None:
    return None


async def run(
    url: str,
    stage: StagePlan,
    *,
    watch: Callable[[LiveCounts], str | None] = unwatched,
    drain_seconds: float = 10.0,
    **options: Any,
) -> StageLoad:
    """One stage, with a generator of its own."""
    async with generator(url, **options) as load:
        return await load.run(stage, watch=watch, drain_seconds=drain_seconds)
