"""From the breakers of a pool's engines to what the gateway should do."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from sre.actions.types import EngineDesired, PoolDesired, RejectReason
from sre.breaker.machine import BreakerState, EngineBreaker


class PoolState(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # traffic comes back in shares


@dataclass(frozen=True, slots=True)
class Member:
    """One engine of a pool. ``acting`` False: only observed, the gateway never changes for it."""

    name: str
    breaker: EngineBreaker
    acting: bool
    serving: bool = True
    """Its process is ready as far as known; a starting one is healthy but serves nothing yet."""

    @property
    def ramp_percent_index(self) -> int | None:
        return self.breaker.ramp_index if self.breaker.effective is BreakerState.HALF_OPEN else None

    @property
    def in_rotation(self) -> bool:
        """Takes its full share: closed, never tripping by order, or not ours to touch."""
        return not self.acting or self.breaker.effective in (BreakerState.CLOSED, BreakerState.DISABLED)


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """State of a pool, and what follows for gateway and engines."""

    state: PoolState
    pool: PoolDesired
    engines: tuple[EngineDesired, ...]


def decide_pool(
    pool: str, members: Sequence[Member], ramp_percents: Sequence[int], min_healthy: int, retry_after_seconds: int
) -> PoolDecision:
    """
    Return what the gateway should do for ``pool``.

    With at least ``min_healthy`` engines in rotation, bad ones are taken out (draining: running streams go on) and
    ramping ones get their share of an engine. With fewer the pool itself refuses: all of it, or all but the share of
    the engine furthest in its ramp; then no engine is marked out, since the refusal at the pool does the work.
    """
    good = [m for m in members if m.in_rotation and m.serving]
    ramping = [m for m in members if m.acting and m.ramp_percent_index is not None]
    bad = [m for m in members if not m.in_rotation and m.ramp_percent_index is None]
    needed = min(min_healthy, len(members))
    if not bad and not ramping:
        # Nothing is known to be wrong. An engine that only starts is not a fault: the gateway's own checks wait for it.
        return PoolDecision(PoolState.CLOSED, PoolDesired(pool, 0), tuple(EngineDesired(m.name) for m in members))
    if len(good) >= needed and good:
        engines = tuple(
            EngineDesired(m.name, weight_percent=ramp_percents[m.ramp_percent_index])
            if m in ramping and m.ramp_percent_index is not None
            else EngineDesired(m.name, draining=m in bad)
            for m in members
        )
        return PoolDecision(PoolState.CLOSED, PoolDesired(pool, 0), engines)
    if ramping and len(good) + len(ramping) >= needed:
        percent = max(ramp_percents[m.ramp_percent_index] for m in ramping if m.ramp_percent_index is not None)
        # The dead ones must not get the admitted share: they are out, the ramping one stays in.
        engines = tuple(EngineDesired(m.name, draining=m in bad) for m in members)
        desired = PoolDesired(pool, 100 - percent, RejectReason.RAMP if percent < 100 else None, retry_after_seconds)
        return PoolDecision(PoolState.HALF_OPEN, desired, engines)
    worst = max(bad, key=lambda m: m.breaker.since) if bad else None
    reason = (worst.breaker.reason if worst else None) or RejectReason.RAMP
    if worst is not None and worst.breaker.effective is BreakerState.FORCED_OPEN:
        reason = RejectReason.MANUAL
    return PoolDecision(
        PoolState.OPEN if bad else PoolState.HALF_OPEN,
        PoolDesired(pool, 100, reason, retry_after_seconds),
        tuple(EngineDesired(m.name) for m in members),
    )
