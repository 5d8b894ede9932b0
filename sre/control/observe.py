"""One snapshot of the world per tick, from all ports at once, none of which can delay it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from sre.actions.ports import EngineSample, EngineStatus, EngineTelemetry, Gateway, GpuReader, Supervisor
from sre.actions.types import FinishedRequest
from sre.breaker.batches import BatchRun, observe_finished
from sre.clock import Clock
from sre.control.polls import Poll, settle_all
from sre.metrics.signals import CONSECUTIVE_FAILED_BATCHES
from sre.signals.types import (
    NEVER,
    CanaryResult,
    EngineSeen,
    GatewaySeen,
    GpuSeen,
    ProcessState,
    Reading,
    Seen,
    Snapshot,
)

PAUSE_ASK_SECONDS = 0.5
"""/is_paused answers in milliseconds unless a step runs; no answer is "not paused"."""

STATUS_STALE_SECONDS = 5.0
"""What the supervisor said longer ago than this is not known any more."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the observer must know of an engine beforehand."""

    name: str
    pool: str
    managed: bool
    gpus: tuple[int, ...]


class Observer:
    """Builds snapshots. Holds the latest answer of each source; an old answer shows as an old sample, never as new."""

    def __init__(
        self,
        engines: Sequence[EngineConfig],
        gateway: Gateway,
        telemetry: EngineTelemetry,
        supervisor: Supervisor | None,
        gpu: GpuReader | None,
        clock: Clock,
        wait_seconds: float = 0.5,
    ) -> None:
        self._engines, self._gateway, self._clock, self._wait = tuple(engines), gateway, clock, wait_seconds
        self._telemetry = telemetry
        self._gateway_seen: Poll[GatewaySeen] = Poll(gateway.observe)
        self._counts: Poll[Mapping[str, Reading]] = Poll(gateway.in_flight_counts)
        self._samples = {e.name: self._sample_poll(e.name) for e in self._engines}
        self._paused = {e.name: self._paused_poll(e.name) for e in self._engines}
        self._status: Poll[Sequence[EngineStatus]] | None = Poll(supervisor.engines) if supervisor else None
        self._gpus: Poll[Sequence[GpuSeen]] | None = Poll(gpu.read) if gpu else None
        self._status_at = float("-inf")
        self._runs: dict[str, BatchRun] = {}
        self._steps: dict[str, tuple[float | None, int]] = {}
        self.canaries: dict[str, CanaryResult] = {}
        """Latest canary per engine; the guard writes here when one ends."""
        self.finished: Sequence[FinishedRequest] = ()
        """Requests that ended since the snapshot before."""

    def _sample_poll(self, name: str) -> Poll[EngineSample]:
        return Poll(lambda: self._telemetry.sample(name))

    def _paused_poll(self, name: str) -> Poll[bool]:
        return Poll(lambda: self._telemetry.is_paused(name, timeout_seconds=PAUSE_ASK_SECONDS))

    async def snapshot(self) -> Snapshot:
        """Return what is seen now. Takes ``wait_seconds`` at the most."""
        polls: list[Poll[object]] = [cast("Poll[object]", p) for p in (self._gateway_seen, self._counts)]
        polls += [cast("Poll[object]", p) for p in self._samples.values()]
        polls += [cast("Poll[object]", p) for p in (self._status, self._gpus) if p is not None]
        # A pause is asked for only where the steps stand still: a running engine is not paused.
        still = [name for name, (_, ticks) in self._steps.items() if ticks > 0]
        polls += [cast("Poll[object]", self._paused[name]) for name in still]
        await settle_all(polls, self._wait)
        self.finished = self._gateway.poll_log()
        at = self._clock.monotonic()
        if self._status is not None and self._status.fresh:
            self._status_at = at
        by_name = self._statuses(at)
        return Snapshot(
            at=at,
            wall=self._clock.wall(),
            engines={e.name: self._engine(e, by_name.get(e.name), e.name in still, at) for e in self._engines},
            gpus=self._gpu_readings(),
            gateway=self._gateway_reading(at),
            supervisor_reachable=bool(by_name),
        )

    def _statuses(self, at: float) -> dict[str, EngineStatus]:
        if self._status is None or self._status.error is not None or at - self._status_at > STATUS_STALE_SECONDS:
            return {}
        return {s.name: s for s in self._status.value or ()}

    def _gateway_reading(self, at: float) -> GatewaySeen:
        if self._gateway_seen.error is not None or self._gateway_seen.value is None:
            return GatewaySeen(reachable=False, sampled_at=at)
        seen = self._gateway_seen.value
        if at - seen.sampled_at > STATUS_STALE_SECONDS:
            # It did not answer since: a frozen gateway is not a reachable one.
            return replace(seen, reachable=False, requests_active=Reading.missing(at, Seen.UNREACHABLE))
        return seen

    def _gpu_readings(self) -> dict[int, GpuSeen]:
        if self._gpus is None or self._gpus.value is None:
            return {}
        return {g.index: g for g in self._gpus.value}

    def _engine(self, config: EngineConfig, status: EngineStatus | None, asked: bool, at: float) -> EngineSeen:
        name = config.name
        sample = self._samples[name].value
        counts = self._counts.value if self._counts.error is None else None
        in_flight = counts.get(name, NEVER) if counts is not None else Reading.missing(at, Seen.UNREACHABLE)
        steps = sample.steps_total if sample else NEVER
        self._note_steps(name, steps, in_flight)
        run = observe_finished(self._runs.get(name, BatchRun()), [r for r in self.finished if r.engine == name])
        self._runs[name] = run
        outcomes = self._gateway.outcomes().get(name)
        signals = dict(sample.signals) if sample else {}
        if outcomes is not None:  # None: the gateway's log is not seen, so neither is what it would say
            signals[CONSECUTIVE_FAILED_BATCHES] = Reading.of(float(run.consecutive_failed), at)
        paused = bool(asked and self._paused[name].value) or bool(sample and sample.asleep)
        return EngineSeen(
            name=name,
            pool=config.pool,
            managed=config.managed,
            process=status.process if status else ProcessState.UNKNOWN,
            identity=status.identity if status else None,
            ready_at=status.ready_at if status else None,
            last_exit_asked=status.last_exit_asked if status else None,
            in_flight=in_flight,
            steps_total=steps,
            sent_bytes_total=self._gateway.sent_bytes().get(name, NEVER),
            signals=signals,
            outcomes=outcomes,
            paused=paused,
            canary=self.canaries.get(name),
            gpus=config.gpus,
        )

    def _note_steps(self, name: str, steps: Reading, in_flight: Reading) -> None:
        before, ticks = self._steps.get(name, (None, 0))
        busy = in_flight.value is None or in_flight.value > 0
        flat = busy and steps.value is not None and steps.value == before
        if not flat:
            self._paused[name].value = None  # what it said before the engine moved holds no longer
        self._steps[name] = (steps.value, ticks + 1 if flat else 0)

    async def close(self) -> None:
        """Cancel every open question."""
        polls: list[Poll[object]] = [cast("Poll[object]", p) for p in (self._gateway_seen, self._counts)]
        polls += [cast("Poll[object]", p) for p in (*self._samples.values(), *self._paused.values())]
        polls += [cast("Poll[object]", p) for p in (self._status, self._gpus) if p is not None]
        for poll in polls:
            await poll.close()
