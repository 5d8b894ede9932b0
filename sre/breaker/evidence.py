"""From a snapshot to evidence: what each engine's signals say about it, before any decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sre.actions.types import RejectReason
from sre.breaker.hang import HangMemory, HangVerdict, observe_hang
from sre.breaker.machine import BreakerState, EngineBreaker, Trip
from sre.breaker.memory import CanaryMemory, EngineMemory
from sre.breaker.rules import (
    COMPARISONS,
    FIRING_VERDICTS,
    TRAFFIC_SIGNALS,
    OutcomeWindow,
    RuleMemory,
    Verdict,
    error_ratio,
    evaluate,
    observe_outcomes,
)
from sre.settings.guard import HangSettings, RuleSettings
from sre.signals.steady_state import Arming, judge_level
from sre.signals.types import (
    NEVER,
    EngineSeen,
    GpuSeen,
    OutcomeCounts,
    ProcessIdentity,
    ProcessState,
    Reading,
    Seen,
    Snapshot,
)

PROCESS = "engine process"
"""As messages call what the supervisor tells of an engine that it started."""

SETTLE_SECONDS = 5.0
"""After an engine became ready its memory still moves; the steady state is read from then on (our estimate)."""

LEVEL_SIGNALS = frozenset({"gpu_memory_used_ratio"})
"""Signals that a healthy engine may hold beyond the default threshold for ever: vLLM reserves nearly all of a GPU."""

REJECT_REASONS: Mapping[str, RejectReason] = {
    "gpu_memory_used_ratio": RejectReason.GPU_MEMORY,
    "gpu_temperature_celsius": RejectReason.GPU_TEMPERATURE,
    "consecutive_failed_batches": RejectReason.FAILED_BATCHES,
    "error_ratio": RejectReason.ERROR_RATIO,
}

GPU_FIELDS = ("gpu_memory_used_ratio", "gpu_temperature_celsius")


@dataclass(frozen=True, slots=True)
class Seeing:
    """One engine's evidence of this tick."""

    memory: EngineMemory
    ready: bool
    trips: tuple[Trip, ...]
    """Every reason to open, worst first."""
    armed: Mapping[str, Arming]
    """Arming decisions made or changed by this tick, by ``engine/key``."""
    blind: tuple[str, ...]
    """Signals not seen for their blind_after_seconds or more."""
    seen: frozenset[str] = frozenset()
    """Signals that are seen now, by the same names. What was missing for less than that is in neither."""
    watched: frozenset[str] = frozenset()
    """Signals that are looked for at all."""


def rule_targets(rule: RuleSettings, engine: EngineSeen) -> Iterator[tuple[str, int | None]]:
    """Yield (memory key, GPU index or None) of what ``rule`` watches for ``engine``."""
    if rule.signal in GPU_FIELDS:
        for index in engine.gpus:
            yield f"{rule.name}/gpu{index}", index
    else:
        yield rule.name, None


def arming_key(engine: str, key: str, rule: RuleSettings) -> str:
    """Name of an arming decision: one on another threshold is another one."""
    return f"{engine}/{key}/{rule.threshold:g}"


def observe_engine(
    engine: EngineSeen,
    snapshot: Snapshot,
    breaker: EngineBreaker,
    memory: EngineMemory,
    known: ProcessIdentity | None,
    armed: Mapping[str, bool],
    steady: Mapping[str, float],
    rules: tuple[RuleSettings, ...],
    hang_policy: HangSettings,
    max_evidence_age_seconds: float,
) -> Seeing:
    """
    Return the evidence on ``engine``.

    Args:
        known: The process last seen ready.
        armed: Earlier arming decisions by ``engine/key``.
        steady: The levels they were made on.
    """
    at = snapshot.at
    if memory.generation != breaker.generation:
        # Traffic evidence from before a transition says nothing about the engine after it.
        memory = replace(
            memory,
            window=OutcomeWindow(),
            rules={k: m for k, m in memory.rules.items() if not _is_traffic(k, rules)},
            failures_at_transition=engine.outcomes.failure if engine.outcomes else None,
            generation=breaker.generation,
            unprobed_told=False,
            canary=replace(memory.canary, failures_in_row=0, neutral_in_row=0),
        )
    hang = observe_hang(memory.hang, engine, at, hang_policy)
    if engine.outcomes is not None:
        longest = max((r.window_seconds for r in rules), default=10.0)
        memory = replace(memory, window=observe_outcomes(memory.window, engine.outcomes, at, longest))
    traffic_open = breaker.effective in (BreakerState.CLOSED, BreakerState.DISABLED) or breaker.ramp_index is not None
    trips: list[Trip] = []
    states: dict[str, RuleMemory] = {}
    arming: dict[str, Arming] = {}
    for rule in rules:
        if not rule.enabled:
            continue
        for key, gpu in rule_targets(rule, engine):
            before = memory.rules.get(key, RuleMemory())
            if rule.signal in TRAFFIC_SIGNALS and not traffic_open:
                continue
            reading = _reading(rule, engine, snapshot, memory, gpu)
            if rule.signal == "error_ratio" and engine.outcomes is not None and reading.seen is Seen.ABSENT:
                # Too few verdicts is seen, and says nothing: no trip, no recovery, no blindness.
                states[key] = replace(before, beyond_since=None, missing_since=None, blind=False)
                continue
            effective = rule
            if rule.signal in LEVEL_SIGNALS:
                name = arming_key(engine.name, key, rule)
                decision = _arm(rule, armed.get(name), snapshot.gpus.get(gpu if gpu is not None else -1), engine, at)
                if decision is not None:
                    arming[name] = decision
                decided = armed.get(name) if decision is None else decision.armed
                effective = _recoverable(rule, steady.get(name) if decision is None else decision.level)
                if not decided and reading.seen is Seen.OK:
                    verdict = Verdict.UNKNOWN if decided is None else Verdict.DISARMED
                    states[key] = RuleMemory(verdict=verdict, value=reading.value)
                    continue
            after = evaluate(effective, before, reading, at)
            states[key] = after
            if after.verdict in FIRING_VERDICTS:
                trips.append(_rule_trip(rule, key, after, at))
    canary, unready = memory.canary, engine.process in (ProcessState.CRASHED, ProcessState.FAILED)
    trips = [
        *_process_trips(engine, known, at, max_evidence_age_seconds),
        *_hang_trips(hang, canary, breaker, hang_policy),
        *trips,
    ]
    memory = replace(
        memory,
        hang=hang,
        rules=states,
        successes=engine.outcomes.success if engine.outcomes else memory.successes,
    )
    memory, blind = _blindness(memory, engine, at, rules)
    ready = not unready and engine.process in (ProcessState.READY, ProcessState.UNKNOWN)
    seen, watched = _seen(memory, engine, at, rules)
    return Seeing(memory, ready, tuple(sorted(trips, key=_severity)), arming, blind, seen, watched)


def _is_traffic(key: str, rules: tuple[RuleSettings, ...]) -> bool:
    return any(r.name == key and r.signal in TRAFFIC_SIGNALS for r in rules)


def _reading(
    rule: RuleSettings, engine: EngineSeen, snapshot: Snapshot, memory: EngineMemory, gpu: int | None
) -> Reading:
    if gpu is not None:
        seen = snapshot.gpus.get(gpu)
        if seen is None:
            return Reading.missing(snapshot.at)
        return seen.memory_used_ratio if rule.signal == "gpu_memory_used_ratio" else seen.temperature_celsius
    if rule.signal == "error_ratio":
        if engine.outcomes is None:
            return Reading.missing(snapshot.at, Seen.UNREACHABLE)
        return error_ratio(memory.window, snapshot.at, rule.window_seconds, rule.min_samples)
    reading = engine.signals.get(rule.signal, NEVER)
    if rule.signal == "consecutive_failed_batches" and reading.value is not None:
        return replace(reading, value=min(reading.value, _failures_since_transition(engine.outcomes, memory)))
    return reading


def _failures_since_transition(outcomes: OutcomeCounts | None, memory: EngineMemory) -> float:
    if outcomes is None or memory.failures_at_transition is None:
        return float("inf")
    return max(0, outcomes.failure - memory.failures_at_transition)


def _arm(rule: RuleSettings, decided: bool | None, gpu: GpuSeen | None, engine: EngineSeen, at: float) -> Arming | None:
    """
    Return the arming decision that this tick makes, if it makes one.

    A rule is armed by seeing the settled engine on the good side of its threshold. One that finds it beyond from the
    start would fire on the healthy steady state and stays disarmed until that changes. A value that a chaos fault put
    there says nothing about the steady state.
    """
    if decided or gpu is None or gpu.injected:
        return None
    value = gpu.memory_used_ratio.value
    settled = engine.ready_at is None or at - engine.ready_at >= SETTLE_SECONDS
    if value is None or engine.process not in (ProcessState.READY, ProcessState.UNKNOWN) or not settled:
        return None
    arming = judge_level(rule, value)
    return arming if arming.armed is not decided else None


def _recoverable(rule: RuleSettings, level: float | None) -> RuleSettings:
    """
    ``rule`` with hysteresis that its steady state can satisfy.

    An engine that rests between recover_below and threshold would never be "over" once fired, and the breaker would
    never close: then a quarter of the way from the steady level to the threshold is over.
    """
    compare = COMPARISONS[rule.comparison]
    if level is None or rule.recover_below is None or not compare(level, rule.recover_below):
        return rule
    return rule.model_copy(update={"recover_below": level + 0.25 * (rule.threshold - level)})


def _rule_trip(rule: RuleSettings, key: str, memory: RuleMemory, at: float) -> Trip:
    target = f" on {key.partition('/')[2]}" if "/" in key else ""
    value = "not seen" if memory.value is None else f"{memory.value:.4g}"
    detail = (
        f"rule {rule.name}: {rule.signal}{target} is {value} ({rule.comparison} {rule.threshold:g}"
        f" for {rule.for_seconds:g} s)"
    )
    since = memory.beyond_since if memory.beyond_since is not None else at
    return Trip(
        REJECT_REASONS.get(rule.signal, RejectReason.RULE),
        detail,
        since,
        hard=rule.signal not in TRAFFIC_SIGNALS,
        severity=rule.severity,
    )


def _process_trips(engine: EngineSeen, known: ProcessIdentity | None, at: float, max_age_seconds: float) -> list[Trip]:
    if not engine.managed:
        return []
    if engine.process is ProcessState.FAILED:
        return [Trip(RejectReason.ENGINE_DEAD, "the engine cannot be started; see its log", at, hard=True)]
    if engine.process is ProcessState.CRASHED:
        return [Trip(RejectReason.ENGINE_DEAD, "the engine process ended unasked", at, hard=True)]
    replaced = known is not None and engine.identity not in (None, known) and engine.last_exit_asked is False
    if engine.ready_at is not None and at - engine.ready_at > max_age_seconds:
        # It died and came back while no guard looked; by now that is history.
        replaced = False
    if replaced and engine.process in (ProcessState.READY, ProcessState.STARTING):
        detail = f"the engine process was replaced (pid {known.pid if known else '?'} is gone)"
        return [Trip(RejectReason.ENGINE_DEAD, detail, at, hard=False)]
    return []


def _hang_trips(hang: HangMemory, canary: CanaryMemory, breaker: EngineBreaker, policy: HangSettings) -> list[Trip]:
    probing = breaker.effective is BreakerState.HALF_OPEN and breaker.ramp_index is None
    # While probing, the canary is the judge: a hang that nothing has disproved yet must not end the very test of it.
    if hang.verdict is HangVerdict.HUNG and hang.flat_since is not None and not probing:
        detail = f"requests in flight and no engine step for {hang.hang_after_seconds:g} s or more"
        return [Trip(RejectReason.HANG, detail, hang.flat_since, hard=False)]
    closed = breaker.effective in (BreakerState.CLOSED, BreakerState.DISABLED)
    # Stuck requests and a failed canary are two witnesses; without the requests it takes more canaries.
    needed = 1 if hang.verdict is HangVerdict.DOUBT else policy.canary_failures
    if closed and canary.failures_in_row >= needed and hang.verdict is not HangVerdict.EXCLUDED:
        since = canary.finished_at or 0.0
        stuck = ", and requests in flight get no answer" if hang.verdict is HangVerdict.DOUBT else ""
        detail = f"{canary.failures_in_row} canary completions failed in a row: {canary.last_detail}{stuck}"
        return [Trip(RejectReason.HANG, detail, since, hard=False)]
    return []


SEVERITY = (
    RejectReason.ENGINE_DEAD,
    RejectReason.HANG,
    RejectReason.GPU_TEMPERATURE,
    RejectReason.GPU_MEMORY,
    RejectReason.FAILED_BATCHES,
    RejectReason.ERROR_RATIO,
)


def _severity(trip: Trip) -> tuple[int, int]:
    """Hard faults first, then by what explains most."""
    return (0 if trip.hard else 1, SEVERITY.index(trip.reason) if trip.reason in SEVERITY else len(SEVERITY))


def _watched(engine: EngineSeen) -> dict[str, Reading]:
    return {"engine steps": engine.steps_total, "requests in flight": engine.in_flight}


def _is_seen(reading: Reading, at: float, limit: float) -> bool:
    return reading.seen is Seen.OK and at - reading.sampled_at <= limit


def _limit(rules: tuple[RuleSettings, ...]) -> float:
    return min((r.blind_after_seconds for r in rules), default=30.0)


def _seen(
    memory: EngineMemory, engine: EngineSeen, at: float, rules: tuple[RuleSettings, ...]
) -> tuple[frozenset[str], frozenset[str]]:
    """What is seen now, and what is looked for. Of an engine that does not run nothing is seen."""
    readings, limit = _watched(engine), _limit(rules)
    watched = {*readings, *(f"rule {key}" for rule in rules if rule.enabled for key, _ in rule_targets(rule, engine))}
    seen = {f"rule {key}" for key, state in memory.rules.items() if state.missing_since is None}
    if engine.process in (ProcessState.READY, ProcessState.UNKNOWN):
        seen |= {name for name, reading in readings.items() if _is_seen(reading, at, limit)}
    if engine.managed:
        watched.add(PROCESS)
        if engine.process is not ProcessState.UNKNOWN:
            seen.add(PROCESS)
    return frozenset(seen), frozenset(watched)


def _blindness(
    memory: EngineMemory, engine: EngineSeen, at: float, rules: tuple[RuleSettings, ...]
) -> tuple[EngineMemory, tuple[str, ...]]:
    """What was not seen for too long. A starting or stopped engine has nothing to see."""
    since: dict[str, float] = {}
    limit = _limit(rules)
    if engine.process in (ProcessState.READY, ProcessState.UNKNOWN):
        for name, reading in _watched(engine).items():
            if not _is_seen(reading, at, limit):
                since[name] = memory.blind_since.get(name, at)
        if engine.managed and engine.process is ProcessState.UNKNOWN:
            since[PROCESS] = memory.blind_since.get(PROCESS, at)
    blind = [name for name, begun in since.items() if at - begun >= limit]
    blind += [f"rule {key}" for key, state in memory.rules.items() if state.blind]
    told = frozenset(n for n in memory.blind_told if n in blind)
    return replace(memory, blind_since=since, blind_told=told), tuple(blind)
