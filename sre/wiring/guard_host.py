"""The host's counters at a scrape: looked at in a thread, so that no hung driver can freeze loop or answer."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sre.clock import Clock
from sre.control.blocking import BlockingCalls
from sre.errors import StateError
from sre.servers.exporter_host import HostView
from sre.signals.host import HostCounters

log = logging.getLogger("sre.guard")

AGAIN_SECONDS = 0.2
"""Scrapes closer together than this share one look: what it costs does not grow with who asks."""
FRESH_SECONDS = 30.0
"""Older counters are not shown: standing still, they would look like a host at rest."""


class HostWatch:
    """``HostSource`` over a blocking ``read``."""

    def __init__(self, read: Callable[[], HostCounters], clock: Clock, calls: BlockingCalls) -> None:
        self._read, self._clock, self._calls = read, clock, calls
        self._counters: HostCounters | None = None
        self._failing = False
        self._unseen: dict[str, str] = {}

    async def look(self) -> None:
        """Look once, unless that was just done. What was seen before stays when this fails, and gets older."""
        age = self._age()
        if age is not None and age < AGAIN_SECONDS and not self._failing:
            return
        try:
            self._counters = await self._calls(self._read)
        except StateError as error:
            if not self._failing:
                log.error("%s; /metrics shows the host's last counters for %g s", error, FRESH_SECONDS)
            self._failing = True
            return
        if self._failing:
            log.warning("host counters are read again")
        self._failing = False
        self._tell_unseen(dict(self._counters.unseen))

    def _tell_unseen(self, unseen: dict[str, str]) -> None:
        """Once per change: an operator who misses a series finds why."""
        if unseen != self._unseen:
            self._unseen = unseen
            log.info("host counters not seen: %s", "; ".join(f"{k}: {v}" for k, v in unseen.items()) or "none")

    def view(self) -> HostView:
        age = self._age()
        shown = self._counters if age is not None and age <= FRESH_SECONDS else None
        return HostView(shown, age, up=self._counters is not None and not self._failing)

    def _age(self) -> float | None:
        return None if self._counters is None else max(0.0, self._clock.monotonic() - self._counters.at)
