"""
One tick: (durable state, memory, snapshot, policy) → decision.

Pure: no clock, no process, no network. The same function runs live, in tests and in ``sre breaker replay``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sre.actions.records import JournalEntry, OutboxMessage
from sre.actions.types import EngineDesired, GatewayDesired, Message, PoolDesired
from sre.breaker.blindness import drop_blindness, tell_blindness
from sre.breaker.effects import CloseIncident, Effect, RestartEngine, SaveContexts, StartCanary
from sre.breaker.evidence import observe_engine
from sre.breaker.hang import HangVerdict, note_canary_success
from sre.breaker.machine import BreakerState, EngineBreaker, Evidence, Step, Transition, step
from sre.breaker.memory import LEASE_MARGIN_SECONDS, EngineMemory, Memory, canary_due, take_canary
from sre.breaker.policy import Policy
from sre.breaker.pool import Member, PoolDecision, decide_pool
from sre.breaker.records import (
    Records,
    incident_message,
    note_transition,
    open_incident,
    removed_message,
)
from sre.breaker.recovery import hang_stands, reserve_restart, restart_due, waits_for_restart
from sre.breaker.state import GuardState, Incident
from sre.signals.types import CanaryVerdict, EngineSeen, ProcessState, Snapshot

HOUR_SECONDS = 3600.0

UNPROBED_SECONDS = 120.0
"""Half-open that gets no verdict for this long is told: queue-full or 4xx answers say nothing about the engine."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a tick decided."""

    state: GuardState
    memory: Memory
    desired: GatewayDesired
    pools: Mapping[str, PoolDecision]
    effects: tuple[Effect, ...]
    journal: tuple[JournalEntry, ...]
    outbox: tuple[OutboxMessage, ...]
    told: tuple[Message, ...] = ()
    """What the outbox says, also where no channel wants it: it opens, worsens and resolves incidents."""


def decide(state: GuardState, memory: Memory, snapshot: Snapshot, policy: Policy) -> Decision:
    """Return the decision of this tick. Engines that left the configuration are dropped from the state."""
    records = Records(snapshot, policy)
    state = _end_pause(state, snapshot, records)
    state = replace(state, restarts=tuple(r for r in state.restarts if snapshot.at - r[1] < HOUR_SECONDS))
    engines: dict[str, EngineMemory] = {}
    effects: list[Effect] = []
    for name, engine in snapshot.engines.items():
        state, engines[name], more = _decide_engine(
            state, memory.engines.get(name, EngineMemory()), engine, snapshot, policy, records
        )
        effects += more
    state = _drop_removed(state, snapshot, records, effects)
    pools = decide_pools(state, snapshot, policy)
    wanted = desired_of(pools)
    if state.pause is None:
        desired: GatewayDesired | None = wanted
        note_admission(wanted, memory.desired, records, state)
    else:
        desired = memory.desired  # nothing changes; a guard that starts paused does not even know what is in force
    order = {SaveContexts: 0, RestartEngine: 1, CloseIncident: 2, StartCanary: 3}
    return Decision(
        state,
        Memory(engines=engines, desired=desired),
        desired or wanted,
        pools,
        tuple(sorted(effects, key=lambda e: order[type(e)])),
        tuple(records.journal),
        tuple(records.outbox),
        tuple(records.told),
    )


def _drop_removed(state: GuardState, snapshot: Snapshot, records: Records, effects: list[Effect]) -> GuardState:
    """An engine that left the configuration takes its state along; its open incident is closed, and says why."""
    for name, incident in state.incidents.items():
        if name not in snapshot.engines:
            effects.append(CloseIncident(incident.id, name))
            records.note("note", name, "engine_removed", incident.id)
            records.tell(removed_message(incident, snapshot))
    state = drop_blindness(state, snapshot, records)

    def kept(name: str) -> bool:
        return name.partition("/")[0] in snapshot.engines

    return replace(
        state,
        breakers={n: b for n, b in state.breakers.items() if kept(n)},
        incidents={n: i for n, i in state.incidents.items() if kept(n)},
        identities={n: i for n, i in state.identities.items() if kept(n)},
        armed={n: a for n, a in state.armed.items() if kept(n)},
        steady={n: a for n, a in state.steady.items() if kept(n)},
    )


def _decide_engine(
    state: GuardState,
    memory: EngineMemory,
    engine: EngineSeen,
    snapshot: Snapshot,
    policy: Policy,
    records: Records,
) -> tuple[GuardState, EngineMemory, list[Effect]]:
    name, at = engine.name, snapshot.at
    breaker = state.breakers.get(name, EngineBreaker(since=at))
    incident = state.incidents.get(name)
    acting = policy.acts_on(engine.managed) and state.pause is None
    before_successes = memory.successes
    blocked = snapshot.gateway is not None and not snapshot.gateway.reachable
    if blocked and engine.canary is not None and engine.canary.verdict is CanaryVerdict.FAILURE:
        # Canaries go through the gateway: while that does not answer, they say nothing about the engine.
        engine = replace(engine, canary=replace(engine.canary, verdict=CanaryVerdict.NEUTRAL))
    canary_memory, for_breaker, finished = take_canary(memory.canary, engine, breaker, at)
    if finished is not None and finished.verdict is CanaryVerdict.SUCCESS:
        memory = replace(memory, hang=note_canary_success(memory.hang, at))
    memory = replace(memory, canary=canary_memory)
    seeing = observe_engine(
        engine,
        snapshot,
        breaker,
        memory,
        state.identities.get(name),
        state.armed,
        state.steady,
        policy.rules,
        policy.hang,
        policy.max_evidence_age_seconds,
    )
    memory = seeing.memory
    for key, arming in seeing.armed.items():
        state = replace(state, armed={**state.armed, key: arming.armed})
        if arming.level is not None:
            state = replace(state, steady={**state.steady, key: arming.level})
        data = {"rule": key, "seen": arming.sentence} | ({"remedy": arming.remedy} if arming.remedy else {})
        records.note("note", name, "rule_armed" if arming.armed else "rule_disarmed", data=data)
    stands = hang_stands(breaker, incident, engine, memory)
    good = 0 if before_successes is None or memory.successes is None else max(0, memory.successes - before_successes)
    evidence = Evidence(
        ready=seeing.ready and not blocked,
        trip=seeing.trips[0] if seeing.trips else None,
        hold_open=stands and acting and waits_for_restart(state, breaker, engine, at, policy),
        canary=for_breaker,
        good_answers=good,
    )
    stepped = step(name, breaker, evidence, at, policy.half_open)
    effects: list[Effect] = []
    state, incident = _record_step(
        state, engine, breaker, stepped, evidence, incident, snapshot, records, acting, effects
    )
    before, breaker = breaker, stepped.breaker
    state, incident = _note_process(state, incident, engine, records)
    if incident is not None:
        if not incident.contexts_saved:
            effects.append(SaveContexts(incident.id, name))
        if acting and hang_stands(breaker, incident, engine, memory):
            restart = restart_due(state, breaker, incident, engine, memory, at, policy)
            if restart is not None:
                state = reserve_restart(state, incident, restart, at, records)
                effects.append(restart)
        state, memory = _escalate(state, memory, breaker, before, incident, engine, snapshot, records, acting)
    state, memory = tell_blindness(state, memory, seeing, engine, snapshot, records)
    memory, canary = (memory, None) if blocked else _start_canary(memory, breaker, engine, stands, at, policy)
    if canary is not None:
        effects.append(canary)
    return replace(state, breakers={**state.breakers, name: breaker}), memory, effects


def _note_process(
    state: GuardState, incident: Incident | None, engine: EngineSeen, records: Records
) -> tuple[GuardState, Incident | None]:
    """Remember which process is ready; forget what was decided about the one before."""
    name = engine.name
    if engine.process is ProcessState.READY and engine.identity is not None:
        if state.identities.get(name, engine.identity) != engine.identity:
            # Another process may rest elsewhere: whether rules may act on it is seen anew.
            mine = f"{name}/"
            state = replace(
                state,
                armed={k: v for k, v in state.armed.items() if not k.startswith(mine)},
                steady={k: v for k, v in state.steady.items() if not k.startswith(mine)},
            )
            records.note("note", name, "process_replaced", data={"pid": engine.identity.pid})
        if state.identities.get(name) != engine.identity:
            state = replace(state, identities={**state.identities, name: engine.identity})
        if incident and incident.restart_of not in (None, engine.identity):
            incident = replace(incident, restart_of=None, restart_done=False)
            state = replace(state, incidents={**state.incidents, name: incident})
    elif engine.process is ProcessState.STOPPED and name in state.identities:
        state = replace(state, identities={k: v for k, v in state.identities.items() if k != name})
    return state, incident


def _escalate(
    state: GuardState,
    memory: EngineMemory,
    breaker: EngineBreaker,
    before: EngineBreaker,
    incident: Incident,
    engine: EngineSeen,
    snapshot: Snapshot,
    records: Records,
    acting: bool,
) -> tuple[GuardState, EngineMemory]:
    """Tell a person what automation cannot end: a latch, an engine that cannot start, probes without a verdict."""
    hopeless = breaker.latched or engine.process is ProcessState.FAILED
    if hopeless and not incident.escalated:
        state = replace(state, incidents={**state.incidents, engine.name: replace(incident, escalated=True)})
        records.tell(incident_message("escalate", engine, breaker, incident, snapshot, acting), level=1)
    probing = breaker.effective is BreakerState.HALF_OPEN and breaker.ramp_index is None
    if probing and snapshot.at - breaker.since >= UNPROBED_SECONDS and not memory.unprobed_told:
        memory = replace(memory, unprobed_told=True)
        records.note("note", engine.name, "no_probe_verdict", incident.id, data={"canary": memory.canary.last_detail})
        unproven = replace(breaker, detail=f"probes get no verdict: {memory.canary.last_detail or 'none answered'}")
        records.tell(incident_message("escalate", engine, unproven, incident, snapshot, acting), level=2)
    return state, memory


def _start_canary(
    memory: EngineMemory, breaker: EngineBreaker, engine: EngineSeen, hang_stands: bool, at: float, policy: Policy
) -> tuple[EngineMemory, StartCanary | None]:
    if engine.paused or engine.process not in (ProcessState.READY, ProcessState.UNKNOWN):
        return memory, None
    hang = policy.hang
    if not canary_due(
        memory.canary,
        breaker,
        hang_stands,
        memory.hang.verdict is HangVerdict.DOUBT,
        memory.hang.progress_at,
        at,
        hang,
        policy.half_open,
    ):
        return memory, None
    number = memory.canary.number + 1
    first = hang.canary_first_token_timeout_seconds
    total = hang.canary_timeout_seconds
    canary = replace(
        memory.canary,
        number=number,
        awaiting=number,
        breaker_generation=breaker.generation,
        lease_until=at + total + LEASE_MARGIN_SECONDS,
    )
    return replace(memory, canary=canary), StartCanary(engine.name, number, first, total)


# ---- what is written down and told ----------------------------------------------------------------------------------


def _record_step(
    state: GuardState,
    engine: EngineSeen,
    before: EngineBreaker,
    stepped: Step,
    evidence: Evidence,
    incident: Incident | None,
    snapshot: Snapshot,
    records: Records,
    acting: bool,
    effects: list[Effect],
) -> tuple[GuardState, Incident | None]:
    after, transition = stepped.breaker, stepped.transition
    if transition is None:
        return state, incident
    if after.state is BreakerState.OPEN and incident is None and transition is not Transition.OVERRIDE_ENDED:
        severity = evidence.trip.severity if evidence.trip else "page"
        state, incident = open_incident(state, engine, after, snapshot, records, acting, severity)
    if after.state is BreakerState.OPEN and incident is not None and incident.process != engine.identity:
        incident = replace(incident, process=engine.identity)
        state = replace(state, incidents={**state.incidents, engine.name: incident})
    note_transition(records, engine.name, before, after, transition, incident)
    if after.state is BreakerState.CLOSED and incident is not None:
        records.tell(incident_message("resolve", engine, before, incident, snapshot, acting))
        records.note("note", engine.name, "incident_resolved", incident.id)
        effects.append(CloseIncident(incident.id, engine.name))
        state = replace(state, incidents={k: v for k, v in state.incidents.items() if k != engine.name})
        incident = None
    return state, incident


# ---- gateway --------------------------------------------------------------------------------------------------------


def decide_pools(state: GuardState, snapshot: Snapshot, policy: Policy) -> dict[str, PoolDecision]:
    """Return each pool's decision from the breakers as they are in ``state``."""
    members: dict[str, list[Member]] = {}
    for name, engine in snapshot.engines.items():
        serving = engine.process in (ProcessState.READY, ProcessState.UNKNOWN)
        breaker = state.breakers.get(name, EngineBreaker())
        members.setdefault(engine.pool, []).append(Member(name, breaker, policy.acts_on(engine.managed), serving))
    return {
        pool: decide_pool(
            pool, group, policy.half_open.ramp_percents, policy.min_healthy_engines, policy.retry_after_seconds
        )
        for pool, group in members.items()
    }


def desired_of(pools: Mapping[str, PoolDecision]) -> GatewayDesired:
    """Return what ``pools`` together want of the gateway."""
    refusals: tuple[PoolDesired, ...] = tuple(p.pool for p in pools.values())
    rotation: tuple[EngineDesired, ...] = tuple(e for p in pools.values() for e in p.engines)
    return GatewayDesired(refusals, rotation)


def note_admission(desired: GatewayDesired, before: GatewayDesired | None, records: Records, state: GuardState) -> None:
    """Journal the intent of every change of admission or rotation: the gateway is changed only after this is stored."""
    old_pools = {p.pool: p for p in before.pools} if before else {}
    for pool in desired.pools:
        old = old_pools.get(pool.pool, PoolDesired(pool.pool, 0))
        if (old.reject_percent, old.reason) == (pool.reject_percent, pool.reason):
            continue
        refuses = pool.reject_percent > 0 and pool.reject_percent >= old.reject_percent
        action = "refuse" if refuses else "admit"
        incident = next((i.id for i in state.incidents.values() if i.pool == pool.pool), None)
        records.note(
            "intent",
            pool.pool,
            pool.reason.value if pool.reason else "recovered",
            incident,
            action=action,
            data={"from_percent": old.reject_percent, "to_percent": pool.reject_percent},
        )
    old_engines = {e.engine: e for e in before.engines} if before else {}
    for engine in desired.engines:
        was = old_engines.get(engine.engine, EngineDesired(engine.engine))
        if was != engine:
            owner = state.incidents.get(engine.engine)
            records.note(
                "intent",
                engine.engine,
                "rotation",
                owner.id if owner else None,
                action="rotate",
                data={"draining": engine.draining, "weight_percent": engine.weight_percent},
            )


def _end_pause(state: GuardState, snapshot: Snapshot, records: Records) -> GuardState:
    pause = state.pause
    if pause is None or pause.until is None or snapshot.at < pause.until:
        return state
    records.note("override", "guard", "pause_ended", data={"owner": pause.owner})
    return replace(state, pause=None)
