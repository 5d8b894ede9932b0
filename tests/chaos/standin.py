"""Stand-ins for a stack: target processes that only live, and a world that knows them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sre.adapters.chaos_targets import StackWorld
from sre.adapters.clock import SystemClock
from sre.chaos.admission import Request
from sre.chaos.catalogue import Fault, load_faults
from sre.chaos.plan import Plan, PlannedStep
from sre.chaos.ports import Evidence, Target
from sre.control.chaos_start import Places
from sre.signals.types import ProcessIdentity
from sre.watchdog.processes import Identity, stat, state

FAULTS = load_faults()
SLEEPER = "import sys, time; print('up', flush=True); time.sleep(300)"


def places(root: Path) -> Places:
    """Folders of a stack under ``root``."""
    (root / "chaos").mkdir(mode=0o700, exist_ok=True)
    return Places(root / "chaos", root / "run" / "gpu-overlay.json", root / "run" / "engine-faults")


@contextmanager
def sleepers(count: int = 1) -> Iterator[tuple[ProcessIdentity, ...]]:
    """Processes that stand in for engine cores; ended afterwards, stopped or not."""
    processes = [subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield tuple(identity_of(process.pid) for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def identity_of(pid: int) -> ProcessIdentity:
    seen = stat(pid)
    assert seen is not None
    return ProcessIdentity(seen.pid, seen.start_ticks)


def state_of(identity: ProcessIdentity) -> str | None:
    """State letter; None when the process is gone."""
    return state(Identity(identity.pid, identity.start_ticks))


def stopped(identity: ProcessIdentity) -> bool:
    return state_of(identity) == "T"


def target(cores: Sequence[ProcessIdentity] = (), /, **changes: object) -> Target:
    """A simulated engine that is ready."""
    facts: dict[str, object] = {
        "engine": "sim-0",
        "kind": "sim",
        "pool": "sim-7b",
        "host": "127.0.0.1",
        "port": 1,
        "ready": True,
        "identity": cores[0] if cores else None,
        "cores": tuple(cores),
        "gpus": (0,),
        "acts_faults": True,
        "others_ready": 0,
        "others": 0,
    }
    return Target(**{**facts, **changes})  # type: ignore[arg-type]


def request(fault: str, hold_seconds: float = 30.0, **changes: object) -> Request:
    return Request(FAULTS[fault], "sim-0", hold_seconds, **changes)  # type: ignore[arg-type]


@dataclass
class StandInWorld:
    """A world whose targets are the given processes; deeds are done for real, evidence is looked up in /proc."""

    cores: tuple[ProcessIdentity, ...]
    real: StackWorld = field(
        default_factory=lambda: StackWorld(
            None,  # type: ignore[arg-type]
            {},
            guard_metrics_url="http://127.0.0.1:1/metrics",
            clock=SystemClock(),
        )
    )
    effective: bool = True
    serves_again: bool = True
    on_inject: Callable[[PlannedStep], None] = lambda step: None
    guard: bool = True
    gpus: Collection[int] = (0,)
    obstructed: str | None = None
    injected: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    """What ``target`` answers, one after the other; then always the true one."""

    async def target(self, engine: str) -> Target:
        return self.targets.pop(0) if self.targets else target(self.cores)

    async def guard_answers(self) -> bool:
        return self.guard

    async def gpus_shown(self) -> Collection[int]:
        return self.gpus

    async def obstacle(self, fault: Fault, target: Target, plan: Plan) -> str | None:
        return self.obstructed

    def inject(self, step: PlannedStep, expires_monotonic: float) -> None:
        self.on_inject(step)
        self.real.inject(step, expires_monotonic)
        self.injected.append(step.name)

    async def effect(self, fault: Fault, target: Target, plan: Plan, timeout_seconds: float) -> Evidence:
        if not self.effective:
            await asyncio.sleep(min(timeout_seconds, 0.05))
        # A signal takes effect when the target is next scheduled: on a busy machine that is not at once.
        wanted = self.cores if self.effective and fault.deed == "stop_core" else ()
        while not all(stopped(core) for core in wanted):  # noqa: ASYNC110 - /proc sends no events
            await asyncio.sleep(0.01)
        return Evidence(self.effective, time.monotonic(), "stand-in", "looked")

    async def successor(self, target: Target, timeout_seconds: float) -> Evidence:
        return Evidence(self.serves_again, time.monotonic(), "stand-in", "looked")

    async def steady(self, fault: Fault, target: Target, plan: Plan, timeout_seconds: float) -> Evidence:
        return Evidence(self.serves_again, time.monotonic(), "stand-in", "looked")

    def alive(self, identity: ProcessIdentity) -> bool:
        return self.real.alive(identity)


def end(pid: int) -> None:
    """SIGKILL, and no complaint when it is gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
