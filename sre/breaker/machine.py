"""
The breaker of one engine: closed → open → half_open → closed.

Half-open has two parts. *Probing*: one canary at a time under a lease; enough good ones in a row lead on. *Ramp*:
a rising share of traffic, a dwell each; canaries go on where traffic alone cannot show that the engine serves.
"""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass, replace

from sre.actions.types import RejectReason
from sre.settings.guard import HalfOpenSettings
from sre.signals.types import CanaryResult, CanaryVerdict


class BreakerState(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    FORCED_OPEN = "forced_open"  # by a person; nothing automatic undoes it
    DISABLED = "disabled"  # by a person: never trips


class Transition(enum.Enum):
    """Named reason of a change of state: log field, metric label, journal entry."""

    TRIPPED = "tripped"
    WAIT_ELAPSED = "wait_elapsed"
    PROBE_FAILED = "probe_failed"
    TRIPPED_AGAIN = "tripped_again"
    PROBES_GOOD = "probes_good"
    RAMP_STEP = "ramp_step"
    RAMP_DONE = "ramp_done"
    LATCHED = "latched"
    RESET = "reset"
    FORCED = "forced"
    OVERRIDE_ENDED = "override_ended"


@dataclass(frozen=True, slots=True)
class Override:
    """A person's decision. It wins until it ends."""

    state: BreakerState
    owner: str
    reason: str
    set_wall: float
    until: float | None = None
    """Monotonic seconds; None: until taken back."""


@dataclass(frozen=True, slots=True)
class EngineBreaker:
    """Durable state of one engine's breaker. Times are monotonic seconds of the boot it is kept for."""

    state: BreakerState = BreakerState.CLOSED
    reason: RejectReason | None = None
    detail: str = ""
    since: float = 0.0
    open_until: float = 0.0
    fault_since: float | None = None
    """When the fault began by our evidence, before the trip."""
    openings: int = 0
    """Since the last stable period: the exponent of the wait."""
    latched: bool = False
    generation: int = 0
    """Rises with every change of state: what belongs to an older one has no effect."""
    probe_successes: int = 0
    ramp_index: int | None = None
    """Position in ramp_percents; None while probing."""
    ramp_since: float = 0.0
    ramp_proven: bool = False
    """The present ramp step saw at least one good answer."""
    override: Override | None = None

    @property
    def effective(self) -> BreakerState:
        """The state that acts: a person's, if there is one."""
        return self.override.state if self.override else self.state


@dataclass(frozen=True, slots=True)
class Trip:
    """A reason to open."""

    reason: RejectReason
    detail: str
    since: float
    """When the fault began by our evidence."""
    hard: bool
    """Seen without traffic (temperature, memory, death): while it lasts nothing is probed and nothing closes."""
    severity: str = "page"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one tick says about one engine."""

    ready: bool
    """Its process is ready, as far as that is known."""
    trip: Trip | None = None
    hold_open: bool = False
    """A recovery action is due: do not probe before it."""
    canary: CanaryResult | None = None
    """Finished canary that answers the probe now awaited, of this generation."""
    good_answers: int = 0
    """Successful requests since the last tick."""


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one tick of one breaker."""

    breaker: EngineBreaker
    transition: Transition | None = None


def open_seconds(engine: str, openings: int, policy: HalfOpenSettings) -> float:
    """
    Wait of the ``openings``-th opening in a row (1 = first): open_seconds · 2^(openings-1), capped, then spread by
    ± jitter_ratio. The jitter is a hash of engine and count: engines part, replays agree.
    """
    base = min(policy.open_seconds * 2.0 ** min(openings - 1, 32), policy.max_open_seconds)
    unit = zlib.crc32(f"{engine}/{openings}".encode()) / 0xFFFFFFFF
    return base * (1 + policy.jitter_ratio * (2 * unit - 1))


def step(engine: str, breaker: EngineBreaker, evidence: Evidence, at: float, policy: HalfOpenSettings) -> Step:
    """Return the breaker of ``engine`` after a tick at ``at``, and the transition it made, if any."""
    if breaker.override is not None:
        until = breaker.override.until
        if until is None or at < until:
            return Step(breaker)
        return Step(_end_override(breaker, at), Transition.OVERRIDE_ENDED)
    match breaker.state:
        case BreakerState.CLOSED:
            return _closed(engine, breaker, evidence, at, policy)
        case BreakerState.OPEN:
            return _open(breaker, evidence, at)
        case _:
            return _half_open(engine, breaker, evidence, at, policy)


def _end_override(breaker: EngineBreaker, at: float) -> EngineBreaker:
    """Automation takes over where it was: a disabled breaker in the state it had, a forced-open one in open, to prove
    itself by probes."""
    freed = replace(breaker, override=None, generation=breaker.generation + 1, since=at)
    if breaker.override is None or breaker.override.state is not BreakerState.FORCED_OPEN:
        return freed
    if breaker.state is BreakerState.OPEN:
        return freed
    return EngineBreaker(
        state=BreakerState.OPEN,
        reason=RejectReason.MANUAL,
        detail="override ended",
        since=at,
        open_until=at,
        openings=breaker.openings,
        generation=freed.generation,
    )


def _open_it(engine: str, breaker: EngineBreaker, trip: Trip, at: float, policy: HalfOpenSettings) -> EngineBreaker:
    openings = breaker.openings + 1
    latched = openings >= policy.latch_after_openings
    return EngineBreaker(
        state=BreakerState.OPEN,
        reason=RejectReason.LATCHED if latched else trip.reason,
        detail=f"opened {openings} times without a stable period; last: {trip.detail}" if latched else trip.detail,
        since=at,
        open_until=at + open_seconds(engine, openings, policy),
        fault_since=min(trip.since, at),
        openings=openings,
        latched=latched,
        generation=breaker.generation + 1,
    )


def _closed(engine: str, breaker: EngineBreaker, evidence: Evidence, at: float, policy: HalfOpenSettings) -> Step:
    if evidence.trip is not None:
        opened = _open_it(engine, breaker, evidence.trip, at, policy)
        return Step(opened, Transition.LATCHED if opened.latched else Transition.TRIPPED)
    if breaker.openings and at - breaker.since >= policy.stable_after_seconds:
        return Step(replace(breaker, openings=0))
    return Step(breaker)


def _open(breaker: EngineBreaker, evidence: Evidence, at: float) -> Step:
    trip = evidence.trip
    tells = trip is not None and (trip.hard or trip.reason is RejectReason.ENGINE_DEAD)
    if trip is not None and tells and not breaker.latched and trip.reason is not breaker.reason:
        # The fault showed another face (a hang became a death): what is said must be true now.
        breaker = replace(breaker, reason=trip.reason, detail=trip.detail)
    vetoed = not evidence.ready or evidence.hold_open or (trip is not None and trip.hard)
    if breaker.latched or at < breaker.open_until or vetoed:
        return Step(breaker)
    half = replace(
        breaker,
        state=BreakerState.HALF_OPEN,
        since=at,
        generation=breaker.generation + 1,
        probe_successes=0,
        ramp_index=None,
        ramp_proven=False,
    )
    return Step(half, Transition.WAIT_ELAPSED)


def _half_open(engine: str, breaker: EngineBreaker, evidence: Evidence, at: float, policy: HalfOpenSettings) -> Step:
    if evidence.trip is not None:
        opened = _open_it(engine, breaker, evidence.trip, at, policy)
        return Step(opened, Transition.LATCHED if opened.latched else Transition.TRIPPED_AGAIN)
    verdict = evidence.canary.verdict if evidence.canary is not None else None
    if verdict is CanaryVerdict.FAILURE:
        detail = f"canary failed: {evidence.canary.detail}" if evidence.canary else ""
        trip = Trip(breaker.reason or RejectReason.RULE, detail, breaker.fault_since or at, hard=False)
        opened = _open_it(engine, breaker, trip, at, policy)
        return Step(opened, Transition.LATCHED if opened.latched else Transition.PROBE_FAILED)
    if breaker.ramp_index is None:
        if verdict is not CanaryVerdict.SUCCESS:
            return Step(breaker)
        good = breaker.probe_successes + 1
        if good < policy.successes_to_ramp:
            return Step(replace(breaker, probe_successes=good))
        ramping = replace(breaker, probe_successes=good, ramp_index=0, ramp_since=at, ramp_proven=False)
        return Step(ramping, Transition.PROBES_GOOD)
    proven = breaker.ramp_proven or verdict is CanaryVerdict.SUCCESS or evidence.good_answers > 0
    breaker = replace(breaker, ramp_proven=proven)
    if not proven or not evidence.ready or at - breaker.ramp_since < policy.ramp_dwell_seconds:
        return Step(breaker)
    following = 1 + (breaker.ramp_index or 0)
    if following < len(policy.ramp_percents):
        further = replace(breaker, ramp_index=following, ramp_since=at, ramp_proven=False)
        return Step(further, Transition.RAMP_STEP)
    closed = EngineBreaker(openings=breaker.openings, generation=breaker.generation + 1, since=at)
    return Step(closed, Transition.RAMP_DONE)


def trip_by_hand(engine: str, breaker: EngineBreaker, detail: str, at: float, policy: HalfOpenSettings) -> Step:
    """Open now because a person says so; traffic comes back through half-open. Leaves an override in place."""
    opened = EngineBreaker(
        state=BreakerState.OPEN,
        reason=RejectReason.MANUAL,
        detail=detail,
        since=at,
        open_until=at + open_seconds(engine, 1, policy),
        fault_since=at,
        openings=breaker.openings,
        generation=breaker.generation + 1,
        override=breaker.override,
    )
    # A person's trip says nothing about the engine's stability: it does not count towards the latch.
    return Step(opened, Transition.TRIPPED)


def reset_by_hand(breaker: EngineBreaker, at: float) -> Step:
    """End latch, override and wait: half-open at once. A closed breaker without override stays closed."""
    if breaker.effective is BreakerState.CLOSED and not breaker.openings:
        return Step(breaker)
    if breaker.state is BreakerState.CLOSED and breaker.effective is not BreakerState.FORCED_OPEN:
        return Step(EngineBreaker(since=at, generation=breaker.generation + 1), Transition.RESET)
    fresh = EngineBreaker(
        state=BreakerState.HALF_OPEN,
        reason=breaker.reason or RejectReason.MANUAL,
        detail="reset by hand",
        since=at,
        fault_since=breaker.fault_since,
        generation=breaker.generation + 1,
    )
    return Step(fresh, Transition.RESET)


def force_by_hand(breaker: EngineBreaker, override: Override | None, at: float) -> Step:
    """Set or take back (None) a person's override."""
    if override is None:
        if breaker.override is None:
            return Step(breaker)
        return Step(_end_override(breaker, at), Transition.OVERRIDE_ENDED)
    return Step(replace(breaker, override=override, generation=breaker.generation + 1, since=at), Transition.FORCED)
