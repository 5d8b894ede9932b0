"""An engine's telemetry in memory, for tests of what reads it."""

from __future__ import annotations

from sre.actions.ports import EngineSample
from sre.clock import Clock
from sre.metrics.signals import ENGINE_SOURCES, STEPS_TOTAL
from sre.signals.types import Reading, Seen


class FakeEngineTelemetry:
    """``EngineTelemetry`` whose values are set by the test: per engine by signal name, ``steps_total`` among them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[str, dict[str, float]] = {}
        self.down: set[str] = set()
        """Engines that do not answer."""
        self.asleep: set[str] = set()
        self.paused: set[str] = set()

    def set(self, engine: str, **values: float) -> None:
        """Let ``engine`` show these values from now on; signals never set are absent."""
        self._values.setdefault(engine, {}).update(values)

    async def sample(self, engine: str) -> EngineSample:
        now = self._clock.monotonic()
        values = self._values.get(engine)
        missing = Reading.missing(now, Seen.UNREACHABLE if values is None or engine in self.down else Seen.ABSENT)
        known = {} if values is None or engine in self.down else values
        readings = {
            source.signal: Reading.of(known[source.signal], now) if source.signal in known else missing
            for source in ENGINE_SOURCES
        }
        return EngineSample(readings.pop(STEPS_TOTAL), readings, engine in self.asleep)

    async def is_paused(self, engine: str, *, timeout_seconds: float) -> bool:
        return engine in self.paused and engine not in self.down
