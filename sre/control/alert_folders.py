"""Folders of the incidents that alerts opened: ``sre incident list`` and ``show`` read them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from sre.actions.ports import IncidentRecorder
from sre.clock import Clock
from sre.control.blocking import BlockingCalls
from sre.notify.alert_records import AlertIncident

log = logging.getLogger("sre.webhook")

MOST_FOLDERS = 60
WINDOW_SECONDS = 600.0
"""More incidents than this within the time have no folder: the outbox and the journal tell of them. A storm must not
push out the folders that hold evidence."""
LOG_AGAIN_SECONDS = 60.0


class AlertFolders:
    """Writes folders, beside the loop."""

    def __init__(self, incidents: IncidentRecorder, clock: Clock, *, seconds: float) -> None:
        self._incidents, self._clock = incidents, clock
        self._calls = BlockingCalls("alerts: incident folders", seconds=seconds)
        self._made: deque[float] = deque()
        self._ids: dict[str, None] = {}
        """Of those made lately: their end is written whatever the limit."""
        self._without = 0
        """Incidents that got no folder and are not logged yet."""
        self._logged: float | None = None

    async def write(self, incidents: Sequence[AlertIncident]) -> None:
        """
        Write what is known of ``incidents``; repeated after a crash without harm.

        Raises:
            StateError: The disk refuses.
        """
        now = self._clock.monotonic()
        while self._made and now - self._made[0] > WINDOW_SECONDS:
            self._made.popleft()
        chosen = []
        for one in incidents:
            if one.id not in self._ids:
                if len(self._made) >= MOST_FOLDERS:
                    continue
                self._made.append(now)
                self._ids[one.id] = None
            chosen.append(one)
        while len(self._ids) > 10 * MOST_FOLDERS:
            del self._ids[next(iter(self._ids))]
        if chosen:
            await self._calls(lambda: self._write(chosen))
        self._without += len(incidents) - len(chosen)
        if self._without and (self._logged is None or now - self._logged >= LOG_AGAIN_SECONDS):
            log.warning("alerts: %d incidents more than folders are made for", self._without)
            self._logged, self._without = now, 0

    def _write(self, incidents: Sequence[AlertIncident]) -> None:
        for one in incidents:
            self._incidents.open(
                one.id,
                {
                    "scope": one.scope,
                    "reason": one.name,
                    "severity": one.severity,
                    "summary": one.summary,
                    "opened_wall": one.opened_wall,
                    "opened_by": f"Alertmanager (route {one.route})",
                    "joined_by": one.join_key,
                },
            )
            if one.resolved_wall is not None:
                self._incidents.resolve(one.id, at_wall=one.resolved_wall, facts={"alerts": one.members})
