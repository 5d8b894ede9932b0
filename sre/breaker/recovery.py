"""When a hang is answered by a restart, and how long the breaker waits for that."""

from __future__ import annotations

from dataclasses import replace

from sre.actions.types import RejectReason
from sre.breaker.effects import RestartEngine
from sre.breaker.machine import BreakerState, EngineBreaker
from sre.breaker.memory import EngineMemory
from sre.breaker.policy import Policy
from sre.breaker.records import Records
from sre.breaker.state import GuardState, Incident
from sre.signals.types import EngineSeen

NEUTRAL_CONFIRMS = 3
"""Canaries that a flat engine answers with "queue full": its front lives, its core does not take them."""

HOLD_MARGIN_SECONDS = 60.0
"""Beyond the time a restart should take to become due, probing is no longer held back."""


def hang_stands(breaker: EngineBreaker, incident: Incident | None, engine: EngineSeen, memory: EngineMemory) -> bool:
    """
    Return whether the hang that opened the breaker is still that of the process we see.

    Rests on durable state, so that a restarted guard goes on where the last one was; only *proof* of a step (a moved
    count, bytes, an answered canary) since the fault began, or another process, ends it.
    """
    if breaker.state is not BreakerState.OPEN or breaker.reason is not RejectReason.HANG or incident is None:
        return False
    if engine.identity is not None and engine.identity != incident.process:
        return False
    proven = memory.hang.proven_at
    return proven is None or proven <= (breaker.fault_since if breaker.fault_since is not None else breaker.since)


def restarts_left(state: GuardState, engine: str, policy: Policy) -> int:
    """Restarts of ``engine`` within the hour's limits; ``state.restarts`` holds those of the last hour."""
    budgets = policy.budgets
    mine = [t for e, t in state.restarts if e == engine]
    left = min(budgets.restarts_per_engine_per_hour - len(mine), budgets.restarts_per_hour - len(state.restarts))
    return max(0, left)


def budget_left(state: GuardState, engine: str, policy: Policy) -> bool:
    """Whether one more restart is within the hour's limits."""
    return restarts_left(state, engine, policy) > 0


def waits_for_restart(state: GuardState, breaker: EngineBreaker, engine: EngineSeen, at: float, policy: Policy) -> bool:
    """Whether probing is held back because a restart will come first. Never for ever: what cannot be confirmed as a
    hang must be probed in the end."""
    hang = policy.hang
    longest = hang.restart_after_seconds + policy.budgets.restart_cooldown_seconds + 3 * hang.canary_timeout_seconds
    waited = at - breaker.since
    return engine.managed and budget_left(state, engine.name, policy) and waited < longest + HOLD_MARGIN_SECONDS


def restart_due(
    state: GuardState,
    breaker: EngineBreaker,
    incident: Incident,
    engine: EngineSeen,
    memory: EngineMemory,
    at: float,
    policy: Policy,
) -> RestartEngine | None:
    """
    Return the restart that is due: decided and not yet done; or the hang has lasted, canaries confirmed it, and budget
    and cool-down allow.
    """
    if not engine.managed or engine.identity is None:
        return None
    effect = RestartEngine(engine.name, engine.identity, RejectReason.HANG.value, incident.id)
    if incident.restart_of == engine.identity:
        return None if incident.restart_done else effect
    since = breaker.fault_since if breaker.fault_since is not None else breaker.since
    canary = memory.canary
    confirmed = canary.failures_in_row > 0 or (memory.hang.hung and canary.neutral_in_row >= NEUTRAL_CONFIRMS)
    last = max((t for e, t in state.restarts if e == engine.name), default=None)
    cooled = last is None or at - last >= policy.budgets.restart_cooldown_seconds
    due = at - since >= policy.hang.restart_after_seconds and confirmed and cooled
    return effect if due and budget_left(state, engine.name, policy) else None


def reserve_restart(
    state: GuardState, incident: Incident, effect: RestartEngine, at: float, records: Records
) -> GuardState:
    """Charge the budget and write the intent, once per process; a repeated effect changes nothing."""
    if incident.restart_of == effect.expected:
        return state
    records.note(
        "intent",
        effect.engine,
        effect.reason,
        incident.id,
        action="restart",
        data={"pid": effect.expected.pid, "start_ticks": effect.expected.start_ticks},
    )
    asked = replace(incident, restart_of=effect.expected, restart_done=False)
    return replace(
        state, incidents={**state.incidents, effect.engine: asked}, restarts=(*state.restarts, (effect.engine, at))
    )
