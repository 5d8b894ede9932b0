"""A world around a real guard and a real store: everything else in memory, and a death at any step."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sre.actions.records import OutboxMessage
from sre.actions.types import FinishedRequest, GatewayDesired, InFlightRequest
from sre.adapters.incident_files import IncidentFiles
from sre.adapters.store import GuardStore
from sre.breaker.policy import Policy
from sre.control.guard import Guard
from sre.control.observe import EngineConfig, Observer
from sre.errors import StateError, Unreachable
from sre.servers.exporter import Metrics
from sre.settings.guard import HalfOpenSettings, HangSettings
from sre.signals.types import (
    CanaryResult,
    CanaryVerdict,
    GatewaySeen,
    OutcomeCounts,
    ProcessIdentity,
    Reading,
)
from sre.testing.clock import ManualClock
from sre.testing.gpu import FakeGpuReader
from sre.testing.supervisor import FakeSupervisor
from sre.testing.telemetry import FakeEngineTelemetry
from tests.breaker.scenes import POLICY

ENGINE, POOL = "sim-0", "sim-7b"

QUICK = replace(
    POLICY,
    hang=HangSettings(start_grace_seconds=0, restart_after_seconds=8),
    half_open=HalfOpenSettings(open_seconds=5, ramp_dwell_seconds=1, jitter_ratio=0),
)


class Death(BaseException):
    """The guard's process is gone: no handler of ours may catch this."""


class Steps:
    """Counts the steps of the guard's work; at ``fatal`` the guard dies, and nothing it calls works any more."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.fatal: int | None = None
        self.dead = False

    def step(self, name: str) -> None:
        if self.dead:
            raise Death
        self.names.append(name)
        if self.fatal is not None and len(self.names) == self.fatal:
            self.dead = True
            raise Death


class MortalStore:
    """The real store, with a step before and after every write."""

    def __init__(self, store: GuardStore, world: World) -> None:
        self._store, self._steps, self._world = store, world.steps, world

    def load_state(self) -> str | None:
        return self._store.load_state()

    def commit(self, **parts: Any) -> None:
        self._steps.step("commit begins")
        if self._world.disk_full:
            raise StateError("guard state guard.db: the disk is full")
        self._world.disk_answers.wait(30)
        self._store.commit(**parts)
        self._steps.step("commit is on disk")

    def release_held(self, incident_id: str) -> int:
        self._steps.step("release begins")
        count = self._store.release_held(incident_id)
        self._steps.step("released")
        return count


class MortalIncidents:
    """The real incident folders, with a step around every write."""

    def __init__(self, files: IncidentFiles, steps: Steps) -> None:
        self._files, self._steps = files, steps

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._files, name)

        def mortal(*args: Any, **kwargs: Any) -> Any:
            self._steps.step(f"{name} begins")
            result = call(*args, **kwargs)
            self._steps.step(f"{name} is done")
            return result

        return mortal


class World:
    """One engine under load, a gateway and a supervisor that outlive every guard."""

    def __init__(self, folder: Path, policy: Policy = QUICK) -> None:
        self.folder, self.policy = folder, policy
        self.clock = ManualClock()
        self.steps = Steps()
        self.supervisor = FakeSupervisor(self.clock, (ENGINE,), POOL)
        self.telemetry = FakeEngineTelemetry(self.clock)
        self.gpu = FakeGpuReader(self.clock)
        self.gateway_up = True
        self.commit_seconds = 10.0
        """How long a guard that is born from now on waits for the disk, in real time: short only where it hangs."""
        self.disk_full = False
        self.disk_answers = threading.Event()
        self.disk_answers.set()
        self.gateway_breaks: Exception | None = None
        self.evidence_hangs = False
        self.paged_unstored: list[OutboxMessage] = []
        self.applied: GatewayDesired | None = None
        self.applies = 0
        self.in_flight_count = 3
        self.engine_steps = 0.0
        self.hung: ProcessIdentity | None = None
        self.successes = 0
        self.guard: Guard | None = None
        self.store: GuardStore | None = None
        self.metrics = Metrics()

    # ---- the gateway port -------------------------------------------------------------------------------------------

    async def apply(self, desired: GatewayDesired) -> bool:
        self.steps.step("apply begins")
        if self.gateway_breaks is not None:
            raise self.gateway_breaks
        if not self.gateway_up:
            raise Unreachable("envoy admin", "connection refused")
        changed = desired != self.applied
        self.applied = desired
        self.applies += 1
        self.steps.step("apply is confirmed")
        return changed

    async def observe(self) -> GatewaySeen:
        return GatewaySeen(self.gateway_up, self.clock.monotonic(), "epoch")

    async def in_flight_counts(self) -> Mapping[str, Reading]:
        return {ENGINE: Reading.of(float(self.in_flight_count), self.clock.monotonic())}

    def poll_log(self) -> Sequence[FinishedRequest]:
        return ()

    def in_flight(self) -> Sequence[InFlightRequest]:
        return [
            InFlightRequest(f"r{n}", "/v1/completions", POOL, ENGINE, "127.0.0.1:1", 1.0, 2.0, 64, True, 100)
            for n in range(self.in_flight_count)
        ]

    def outcomes(self) -> Mapping[str, OutcomeCounts]:
        return {ENGINE: OutcomeCounts(success=self.successes)}

    def sent_bytes(self) -> Mapping[str, Reading]:
        return {}

    async def probe(
        self, engine: str, generation: int, *, first_token_timeout_seconds: float, timeout_seconds: float
    ) -> CanaryResult:
        self.steps.step("probe")
        now = self.clock.monotonic()
        verdict = CanaryVerdict.FAILURE if self.is_hung else CanaryVerdict.SUCCESS
        return CanaryResult(engine, generation, verdict, "test", now, now, None if self.is_hung else 0.01)

    # ---- the world --------------------------------------------------------------------------------------------------

    @property
    def is_hung(self) -> bool:
        return self.hung is not None and self.supervisor.statuses[ENGINE].identity == self.hung

    def hang(self) -> None:
        self.hung = self.supervisor.statuses[ENGINE].identity

    async def restart(self, engine: str, expected: ProcessIdentity, reason: str) -> bool:
        self.steps.step("restart begins")
        done = await self.supervisor.restart(engine, expected, reason)
        self.steps.step("restart is accepted")
        return done

    async def engines(self) -> Any:
        return await self.supervisor.engines()

    async def evidence(self, engine: str) -> dict[str, str]:
        self.steps.step("evidence")
        if self.evidence_hangs:
            raise OSError("D state")
        return {"engine.log": "last words"}

    # ---- guards -----------------------------------------------------------------------------------------------------

    def start_guard(self) -> Guard:
        self.steps.dead = False
        self.store = GuardStore.open(self.folder / "guard.db", clock=self.clock, boot_id="boot")
        observer = Observer([EngineConfig(ENGINE, POOL, True, (0,))], self, self.telemetry, self, self.gpu, self.clock)
        self.guard = Guard(
            observer=observer,
            gateway=self,
            supervisor=self,
            store=MortalStore(self.store, self),
            incidents=MortalIncidents(IncidentFiles(self.folder / "incidents"), self.steps),
            policy=self.policy,
            clock=self.clock,
            boot_id="boot",
            evidence=self.evidence,
            listener=self.metrics,
            tick_seconds=1.0,
            page_unstored=self.paged_unstored.extend,
            commit_seconds=self.commit_seconds,
        )
        return self.guard

    async def bury(self) -> None:
        """What the kernel does with a dead process: its tasks and its lock are gone."""
        self.steps.dead = True
        if self.guard is not None:
            await self.guard.close()
        if self.store is not None:
            self.store.close()
        self.guard = self.store = None

    async def tick(self) -> None:
        """A second passes; the guard looks and acts; a death leaves nothing half done in memory."""
        self.clock.advance(1.0)
        if not self.is_hung:
            self.engine_steps += 50
            self.successes += 2
        self.telemetry.set(ENGINE, steps_total=self.engine_steps)
        if self.guard is None:
            self.start_guard()
        assert self.guard is not None
        try:
            await self.guard.tick()
            await self.guard.settled()
        except Death:
            pass
        if self.steps.dead:
            await self.bury()

    async def until(self, condition: Any, most: int = 120) -> None:
        for _ in range(most):
            await self.tick()
            if self.guard is not None and condition():
                return
        raise AssertionError(f"not within {most} ticks; state: {self.guard.state if self.guard else None}")
