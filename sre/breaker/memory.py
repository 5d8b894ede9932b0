"""What the guard may forget: windows, continuity, canaries under way. A restarted guard builds it up anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sre.actions.types import GatewayDesired
from sre.breaker.hang import HangMemory
from sre.breaker.machine import BreakerState, EngineBreaker
from sre.breaker.rules import OutcomeWindow, RuleMemory
from sre.settings.guard import HalfOpenSettings, HangSettings
from sre.signals.types import CanaryResult, CanaryVerdict, EngineSeen

TICK_JITTER_SECONDS = 0.1
"""A canary due at a tick is not put off by a whole tick because the tick came a little early."""

LEASE_MARGIN_SECONDS = 2.0
"""A canary that has not reported this long after its own deadline is lost; its slot is free again."""


@dataclass(frozen=True, slots=True)
class CanaryMemory:
    """Canaries of one engine: at most one is under way."""

    number: int = 0
    awaiting: int | None = None
    breaker_generation: int = 0
    """Generation of the breaker when the awaited one was sent."""
    lease_until: float = 0.0
    finished_at: float | None = None
    failures_in_row: int = 0
    neutral_in_row: int = 0
    """Backpressure, 4xx: canaries that said nothing."""
    last_detail: str = ""
    last_verdict: CanaryVerdict | None = None


def take_canary(
    memory: CanaryMemory, engine: EngineSeen, breaker: EngineBreaker, at: float
) -> tuple[CanaryMemory, CanaryResult | None, CanaryResult | None]:
    """
    Return (memory, result for the breaker, result at all).

    A result counts only if it is the awaited one; for the breaker only if it was sent in its present generation. A
    lease that ran out frees the slot and says nothing.
    """
    if memory.awaiting is None:
        return memory, None, None
    result = engine.canary
    if result is None or result.generation != memory.awaiting or result.verdict is CanaryVerdict.PENDING:
        if at >= memory.lease_until:
            return replace(memory, awaiting=None, finished_at=at, last_detail="lost"), None, None
        return memory, None, None
    failures = memory.failures_in_row
    neutral = memory.neutral_in_row + 1 if result.verdict is CanaryVerdict.NEUTRAL else 0
    if result.verdict is CanaryVerdict.FAILURE:
        failures += 1
    elif result.verdict is CanaryVerdict.SUCCESS:
        failures = 0
    done = replace(
        memory,
        awaiting=None,
        finished_at=min(result.finished_at, at),
        failures_in_row=failures,
        neutral_in_row=neutral,
        last_detail=result.detail,
        last_verdict=result.verdict,
    )
    return done, result if memory.breaker_generation == breaker.generation else None, result


def canary_due(
    memory: CanaryMemory,
    breaker: EngineBreaker,
    hang_stands: bool,
    doubt: bool,
    progress_at: float | None,
    at: float,
    hang: HangSettings,
    half_open: HalfOpenSettings,
) -> bool:
    """Return whether a canary should be sent now. One under way is never joined by a second."""
    if memory.awaiting is not None:
        return False
    since_last = float("inf") if memory.finished_at is None else at - memory.finished_at + TICK_JITTER_SECONDS
    match breaker.effective:
        case BreakerState.HALF_OPEN:
            wanted = breaker.ramp_index is None or not breaker.ramp_proven
            return wanted and since_last >= half_open.probe_interval_seconds
        case BreakerState.OPEN:
            # Only a hang is watched while open: its end, and its truth before a restart, must be seen.
            return hang_stands and since_last >= half_open.probe_interval_seconds
        case BreakerState.CLOSED | BreakerState.DISABLED:
            interval = half_open.probe_interval_seconds if memory.failures_in_row else hang.canary_interval_seconds
            idle = progress_at is None or at - progress_at >= hang.canary_interval_seconds
            if doubt:
                return since_last >= half_open.probe_interval_seconds
            return idle and since_last >= interval
        case _:
            return False


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Volatile memory of one engine. Rule memories are keyed by ``rule`` or ``rule/gpuN``."""

    hang: HangMemory = field(default_factory=HangMemory)
    canary: CanaryMemory = field(default_factory=CanaryMemory)
    window: OutcomeWindow = field(default_factory=OutcomeWindow)
    rules: Mapping[str, RuleMemory] = field(default_factory=dict)
    successes: int | None = None
    """Success count of the last tick."""
    failures_at_transition: int | None = None
    blind_since: Mapping[str, float] = field(default_factory=dict)
    blind_told: frozenset[str] = frozenset()
    generation: int | None = None
    """Breaker generation the traffic memories belong to."""
    unprobed_told: bool = False
    """A person was told that half-open gets no verdict."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Volatile memory of the guard."""

    engines: Mapping[str, EngineMemory] = field(default_factory=dict)
    desired: GatewayDesired | None = None
    """What the last tick wanted of the gateway."""
