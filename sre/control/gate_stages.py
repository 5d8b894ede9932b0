"""One stage: sent, watched, given up when hopeless, reduced, on disk before the next begins."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Coroutine
from typing import Any

from sre.clock import Clock
from sre.control.gate_world import Listener, Target
from sre.errors import DependencyError, Unreachable
from sre.gate import abort, self_checks
from sre.gate.abort import AbortReason, Limits
from sre.gate.records import Cause
from sre.gate.result import StageResult
from sre.gate.stages import LiveCounts, StageLoad, StagePlan, StageSignals
from sre.gate.summary import summarize
from sre.settings.gate import GateSettings

GONE_REQUESTS = 5
"""So many requests in a row without a connection at the end of a stage: ask whether the server is still there."""
GONE_TRIES = 3
GONE_PAUSE_SECONDS = 1.0


class StageRunner:
    """
    Runs stages one after the other; nothing is in flight between two.

    ``stop`` ends the stage that runs, and every later one at once.
    """

    def __init__(
        self, settings: GateSettings, clock: Clock, listener: Listener, stop: asyncio.Event, deadline_at: float
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._listener = listener
        self._stop = stop
        self._deadline_at = deadline_at
        self.gone = ""
        """What a server said, or not, that went away during a stage; "": none did."""

    @property
    def over(self) -> AbortReason | None:
        """Why no further stage may begin."""
        if self.gone:
            return AbortReason.SERVER_GONE
        if self._stop.is_set():
            return AbortReason.INTERRUPTED
        if self._clock.monotonic() >= self._deadline_at:
            return AbortReason.DEADLINE
        return None

    async def run(self, target: Target, plan: StagePlan) -> tuple[StageLoad | None, StageResult]:
        """Run one stage; the load is None if it was cancelled before anything was kept of it."""
        limits = self._limits(plan)
        load, signals = await self._load(target, plan, limits)
        if load is None:
            return None, StageResult(plan, None, None, skipped=AbortReason.INTERRUPTED.value)
        if await self._is_gone(target, load):
            load = dataclasses.replace(load, aborted=AbortReason.SERVER_GONE.value)
        summary = await asyncio.to_thread(summarize, load)
        checks = await asyncio.to_thread(self_checks.check_stage, load, summary)
        return load, StageResult(plan, summary, signals, checks, aborted=load.aborted or "")

    def _limits(self, plan: StagePlan) -> Limits:
        found = abort.limits_of(plan, self._settings.objectives, self._deadline_at)
        return dataclasses.replace(found, max_in_flight=self._settings.load.max_in_flight)

    async def _load(
        self, target: Target, plan: StagePlan, limits: Limits
    ) -> tuple[StageLoad | None, StageSignals | None]:
        def watch(counts: LiveCounts) -> str | None:
            self._listener.live(plan, counts)
            if self._stop.is_set():
                return AbortReason.INTERRUPTED.value
            reason = abort.decide(counts, limits)
            return None if reason is None else reason.value

        async with target.signals.around() as read:
            load = await self._stoppable(
                target,
                target.generator.run(
                    plan,
                    watch=watch,
                    ttft_limit_seconds=limits.ttft_limit_seconds,
                    drain_seconds=self._settings.load.drain_seconds,
                ),
            )
        return load, read()

    async def _stoppable(self, target: Target, work: Coroutine[Any, Any, StageLoad]) -> StageLoad | None:
        """The stage, or what it had when a person stopped it."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            try:
                return await task
            except asyncio.CancelledError:
                load = target.generator.partial()
            return None if load is None else dataclasses.replace(load, aborted=AbortReason.INTERRUPTED.value)
        finally:
            for left in (task, stopped):
                left.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)

    async def _is_gone(self, target: Target, load: StageLoad) -> bool:
        """Whether the server went away: the last requests found no connection, and asked again it is not there."""
        ended = sorted(
            (r for r in load.records if r.cause is not Cause.CANCELLED), key=lambda r: r.ended_at or math.inf
        )
        last = ended[-GONE_REQUESTS:]
        if not last or any(record.cause not in (Cause.CONNECT, Cause.TRANSPORT) for record in last):
            return False
        for attempt in range(GONE_TRIES):
            if attempt:
                await self._clock.sleep(GONE_PAUSE_SECONDS)
            try:
                await target.generator.smoke()
            except Unreachable as error:
                self.gone = str(error)
            except DependencyError:
                break
            else:
                break
        else:
            return True
        self.gone = ""
        return False
