"""The guard's eye on fault injection: what is in force, and what was left behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from sre.actions.types import Message
from sre.clock import Clock
from sre.control.chaos_status import RunStatus, active_faults, survey
from sre.control.guard import Guard
from sre.errors import StateError

log = logging.getLogger("sre.guard")

LOOK_SECONDS = 5.0
LEFT_LOOKS = 3
"""A run whose injector died is the watchdog's for a few seconds; left behind after so many looks, it is a person's."""


class ChaosWatch:
    """Looks at the journals of fault runs; pages once for each that nobody works on and that is not proven reverted."""

    def __init__(self, folder: Path, guard: Guard, clock: Clock) -> None:
        self._folder, self._guard, self._clock = folder, guard, clock
        self._looks: dict[str, int] = {}
        self.active: Mapping[str, int] = {}
        """Faults in force, by name."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except StateError as error:
                log.error("%s", error)
            await self._clock.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once. Raises StateError when the journals cannot be read or the page cannot be stored."""
        self.active = await asyncio.to_thread(active_faults, self._folder)
        left = {run.run_id: run for run in await asyncio.to_thread(survey, self._folder) if run.state.left}
        self._looks = {run_id: self._looks.get(run_id, 0) + 1 for run_id in left}
        for run_id, looks in self._looks.items():
            if looks == LEFT_LOOKS:
                await self._guard.tell(self._message(left[run_id]))

    def _message(self, run: RunStatus) -> Message:
        return Message(
            incident_id=f"chaos-{run.run_id}",
            event="open",
            severity="page",
            scope=f"engine {run.engine}",
            reason="fault_left",
            summary=f"fault {run.fault} is not proven reverted ({run.state.value})",
            at_wall=self._clock.wall(),
            facts=(("seen", run.detail), ("next", "sre chaos recover")),
        )
