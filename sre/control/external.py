"""An engine that someone else runs: only asked for its health."""

from __future__ import annotations

from collections.abc import Callable

from sre.actions.ports import EngineStatus
from sre.clock import Clock
from sre.control.supervision import ReadinessProbe, Say
from sre.signals.types import ProcessState
from sre.stack.processes import ProcessSpec
from sre.stack.status import ProcessReport

CHECK_SECONDS = 2.0
"""Between two health checks."""


class ExternalEngine:
    """READY while its health answers 200, else UNKNOWN: nothing else is known of it, and it is never restarted."""

    def __init__(
        self,
        spec: ProcessSpec,
        probe: ReadinessProbe,
        clock: Clock,
        say: Say,
        changed: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.state = ProcessState.UNKNOWN
        self.ready_at: float | None = None
        self._asked = False
        self._probe, self._clock, self._say, self._changed = probe, clock, say, changed

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await self._clock.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Ask once."""
        healthy = await self._probe(self.spec.readiness)
        state = ProcessState.READY if healthy else ProcessState.UNKNOWN
        if state is not self.state or not self._asked:
            where = self.spec.readiness.where
            self._say(self.spec.name, f"answers ({where})" if healthy else f"does not answer ({where}); is it running?")
            self.ready_at = self._clock.monotonic() if healthy else None
            self.state = state
            self._changed()
        self._asked = True

    def report(self) -> ProcessReport:
        """For the status."""
        return ProcessReport(
            name=self.spec.name,
            role=self.spec.role.value,
            kind=self.spec.kind,
            state=self.state,
            identity=None,
            uptime_seconds=None,
            adopted=False,
            restarts=0,
            last_exit=None,
            next_start_in_seconds=None,
            problem=None if self.state is ProcessState.READY else f"{self.spec.readiness.where} does not answer 200",
            address=f"{self.spec.host}:{self.spec.port}",
            log_path=None,
        )

    def status(self) -> EngineStatus:
        """For the guard."""
        return EngineStatus(
            name=self.spec.name,
            kind=self.spec.kind,
            pool=self.spec.pool,
            host=self.spec.host,
            port=self.spec.port,
            process=self.state,
            identity=None,
            ready_at=self.ready_at,
            restarts=0,
            last_exit=None,
            next_start_at=None,
            log_path="",
        )
