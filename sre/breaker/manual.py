"""What a person may order: trip, reset, force, pause. Pure like the tick, and journaled like it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sre.actions.types import GatewayDesired
from sre.breaker.decide import Decision, decide_pools, desired_of, note_admission
from sre.breaker.effects import CloseIncident, Effect, SaveContexts
from sre.breaker.machine import (
    BreakerState,
    EngineBreaker,
    Override,
    Step,
    force_by_hand,
    reset_by_hand,
    trip_by_hand,
)
from sre.breaker.memory import Memory
from sre.breaker.policy import Policy
from sre.breaker.records import Records, incident_message, note_transition, open_incident
from sre.breaker.state import GuardState, Pause
from sre.signals.types import Snapshot

VERBS = ("trip", "reset", "force-open", "disable", "auto")


class CommandError(ValueError):
    """The order cannot be carried out; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Command:
    """An order on one engine, or on every engine of one pool."""

    verb: str
    """trip: open now, recover by itself · reset: half-open now, latch and override gone · force-open, disable: stays so
    until taken back or expired · auto: take an override back."""
    target: str
    owner: str
    reason: str
    expires_seconds: float | None = None


def obey(state: GuardState, memory: Memory, snapshot: Snapshot, policy: Policy, command: Command) -> Decision:
    """
    Return the decision that carries out ``command``.

    Raises:
        CommandError: Unknown verb or target, or no owner or reason for an override.
    """
    if command.verb not in VERBS:
        raise CommandError(f"no such order {command.verb!r}; one of {', '.join(VERBS)}")
    targets = [n for n, e in snapshot.engines.items() if command.target in (n, e.pool)]
    if not targets:
        known = sorted({*snapshot.engines, *(e.pool for e in snapshot.engines.values())})
        raise CommandError(f"no engine or pool {command.target!r}; known: {', '.join(known) or 'none yet'}")
    if command.verb in ("force-open", "disable") and not (command.owner and command.reason):
        raise CommandError("an override needs an owner and a reason; give --owner and --reason")
    observed = [n for n in targets if not policy.acts_on(snapshot.engines[n].managed)]
    if observed:
        raise CommandError(
            f"{', '.join(observed)} is only observed (guard.mode {policy.mode}), so nothing would change;"
            " write guard.mode: act to let the guard and its orders act on it"
        )
    records = Records(snapshot, policy)
    effects: list[Effect] = []
    for name in targets:
        state = _obey_one(state, name, snapshot, policy, command, records, effects)
    pools = decide_pools(state, snapshot, policy)
    desired = desired_of(pools)
    if state.pause is not None and memory.desired is not None:
        # A person's order acts even while the guard is paused, but only where it was given: what automation wanted
        # meanwhile stays undone.
        mine = {snapshot.engines[n].pool for n in targets}
        desired = _only(desired, memory.desired, mine, {n for n, e in snapshot.engines.items() if e.pool in mine})
    note_admission(desired, memory.desired, records, state)
    return Decision(
        state,
        replace(memory, desired=desired),
        desired,
        pools,
        tuple(effects),
        tuple(records.journal),
        tuple(records.outbox),
        tuple(records.told),
    )


def _only(wanted: GatewayDesired, kept: GatewayDesired, pools: set[str], engines: set[str]) -> GatewayDesired:
    """``kept``, with ``pools`` and ``engines`` as in ``wanted``."""
    old_pools = {p.pool: p for p in kept.pools}
    old_engines = {e.engine: e for e in kept.engines}
    return replace(
        wanted,
        pools=tuple(p if p.pool in pools else old_pools.get(p.pool, p) for p in wanted.pools),
        engines=tuple(e if e.engine in engines else old_engines.get(e.engine, e) for e in wanted.engines),
    )


def _obey_one(
    state: GuardState,
    name: str,
    snapshot: Snapshot,
    policy: Policy,
    command: Command,
    records: Records,
    effects: list[Effect],
) -> GuardState:
    at = snapshot.at
    engine = snapshot.engines[name]
    before = state.breakers.get(name, EngineBreaker(since=at))
    stepped = _step(name, before, snapshot, policy, command)
    after = stepped.breaker
    state = replace(state, breakers={**state.breakers, name: after})
    records.note(
        "override",
        name,
        command.verb,
        action=command.verb,
        data={"owner": command.owner, "reason": command.reason, "expires_seconds": command.expires_seconds},
    )
    if stepped.transition is None:
        return state
    incident = state.incidents.get(name)
    if command.verb == "trip" and incident is None:
        acting = policy.acts_on(engine.managed)
        state, incident = open_incident(state, engine, after, snapshot, records, acting)
        effects.append(SaveContexts(incident.id, name))
    note_transition(records, name, before, after, stepped.transition, incident)
    if after.effective is BreakerState.CLOSED and incident is not None:
        records.tell(incident_message("resolve", engine, before, incident, snapshot, acting=True))
        effects.append(CloseIncident(incident.id, name))
        state = replace(state, incidents={k: v for k, v in state.incidents.items() if k != name})
    return state


def _step(name: str, before: EngineBreaker, snapshot: Snapshot, policy: Policy, command: Command) -> Step:
    at = snapshot.at
    match command.verb:
        case "trip":
            if before.effective in (BreakerState.OPEN, BreakerState.FORCED_OPEN):
                return Step(before)
            if before.effective is BreakerState.DISABLED:
                raise CommandError(f"{name} is disabled by {_owner(before)}; first: sre breaker force {name} auto")
            return trip_by_hand(name, before, f"by {command.owner}: {command.reason}", at, policy.half_open)
        case "reset":
            return reset_by_hand(before, at)
        case "auto":
            return force_by_hand(before, None, at)
        case _:
            forced = BreakerState.FORCED_OPEN if command.verb == "force-open" else BreakerState.DISABLED
            until = None if command.expires_seconds is None else at + command.expires_seconds
            override = Override(forced, command.owner, command.reason, snapshot.wall, until)
            return force_by_hand(before, override, at)


def _owner(breaker: EngineBreaker) -> str:
    return breaker.override.owner if breaker.override else "nobody"


def pause(state: GuardState, snapshot: Snapshot, policy: Policy, order: Pause | None) -> Records | None:
    """Return the records of pausing (or, with None, resuming) the guard's hands; None when nothing changes."""
    if (order is None) == (state.pause is None):
        return None
    records = Records(snapshot, policy)
    reason = "paused" if order else "resumed"
    data = {"owner": order.owner, "reason": order.reason} if order else {}
    records.note("override", "guard", reason, action=reason, data=data)
    return records
