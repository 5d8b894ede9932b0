"""What fault injection needs of the world."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from sre.chaos.catalogue import Fault
from sre.chaos.plan import Plan, PlannedStep
from sre.signals.types import ProcessIdentity


@dataclass(frozen=True, slots=True)
class Target:
    """One engine, as it is before the fault."""

    engine: str
    kind: str
    pool: str
    host: str
    port: int
    ready: bool
    identity: ProcessIdentity | None
    """Its API server; None when it does not run, or is not ours."""
    cores: tuple[ProcessIdentity, ...]
    """Its ``VLLM::EngineCore`` processes."""
    gpus: tuple[int, ...]
    acts_faults: bool
    """Whether it reads a fault file: simulated engines, and vLLM with ``fault_hook: true``."""
    others_ready: int
    """Further engines of its pool that serve."""
    others: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was looked for, whether it was seen, and where."""

    seen: bool
    at: float
    """Monotonic seconds at which it was first seen (of the last look when it was not)."""
    source: str
    detail: str


class World(Protocol):
    """The running stack. Waiting methods return by their deadline; none of them blocks the loop."""

    async def target(self, engine: str) -> Target:
        """Facts about ``engine`` now. Raises DependencyError when its supervisor does not answer, ConfigError when it
        has no such engine."""
        ...

    async def guard_answers(self) -> bool:
        """Whether the guard, which should contain the fault, is there."""
        ...

    async def gpus_shown(self) -> Collection[int]:
        """Indexes of the GPUs that the guard reads; empty where it does not answer or tells of none."""
        ...

    async def obstacle(self, fault: Fault, target: Target, plan: Plan) -> str | None:
        """A sentence when the state before the fault forbids it: it is already faulty, or another's fault is in force.
        Also None when all is well."""
        ...

    def inject(self, step: PlannedStep, expires_monotonic: float) -> None:
        """Do the deed. Raises OSError; ProcessLookupError when the target is gone. Quick."""
        ...

    async def effect(self, fault: Fault, target: Target, plan: Plan, timeout_seconds: float) -> Evidence:
        """Look for the effect by other means than those of ``inject``, until it is seen or the time is up."""
        ...

    async def successor(self, target: Target, timeout_seconds: float) -> Evidence:
        """Wait for another process that serves under the engine's name."""
        ...

    async def steady(self, fault: Fault, target: Target, plan: Plan, timeout_seconds: float) -> Evidence:
        """Wait until the engine serves (GPU faults: the guard reads true values) after the revert."""
        ...

    def alive(self, identity: ProcessIdentity) -> bool:
        """Whether exactly this process lives."""
        ...
