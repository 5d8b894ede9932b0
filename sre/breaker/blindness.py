"""What is not seen of an engine for too long: told once, and told when it is seen again, whatever restarts between."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace

from sre.actions.types import Message
from sre.breaker.evidence import Seeing
from sre.breaker.memory import EngineMemory
from sre.breaker.records import Records
from sre.breaker.state import Blindness, GuardState
from sre.signals.types import EngineSeen, Snapshot

REASON = "blind"


def tell_blindness(
    state: GuardState, memory: EngineMemory, seeing: Seeing, engine: EngineSeen, snapshot: Snapshot, records: Records
) -> tuple[GuardState, EngineMemory]:
    """
    Tell what is newly not seen, and the end of what was told and is seen again.

    An end needs to be seen: an engine that starts or is stopped shows nothing, and what it did not show before is not
    over with that. What nobody looks for any more (a rule that left the configuration) is over, and that is said.
    """
    mine = {name: one for name, one in state.blind.items() if one.engine == engine.name}
    for name, one in mine.items():
        over = [signal for signal in one.signals if signal in seeing.seen or signal not in seeing.watched]
        if len(over) == len(one.signals):
            seen = all(signal in seeing.seen for signal in one.signals)
            words = "seen again" if seen else "seen again, or not looked for any more"
            records.note("note", engine.name, "seen_again", name, data={"signals": list(one.signals)})
            records.tell(_end(name, one, f"{words}: {', '.join(one.signals)}", snapshot.wall))
            state = replace(state, blind={n: b for n, b in state.blind.items() if n != name})
    told = {signal for name, one in mine.items() if name in state.blind for signal in one.signals}
    new = [signal for signal in seeing.blind if signal not in told]
    if new:
        state = _begin(state, engine, new, snapshot, records)
    return state, replace(memory, blind_told=frozenset(seeing.blind))


def drop_blindness(state: GuardState, snapshot: Snapshot, records: Records) -> GuardState:
    """An engine that left the configuration is not looked at any more."""
    for name, one in state.blind.items():
        if one.engine not in snapshot.engines:
            summary = f"{one.engine} left the configuration; the incident is closed unproven"
            records.note("note", one.engine, "engine_removed", name)
            records.tell(_end(name, one, summary, snapshot.wall))
    return replace(state, blind={n: one for n, one in state.blind.items() if one.engine in snapshot.engines})


def _begin(
    state: GuardState, engine: EngineSeen, signals: Sequence[str], snapshot: Snapshot, records: Records
) -> GuardState:
    stamp = datetime.datetime.fromtimestamp(snapshot.wall, datetime.UTC)
    name = f"blind-{stamp:%Y%m%d-%H%M%S}-{engine.name}"
    while name in state.blind:  # two within a second
        name += "-more"
    one = Blindness(engine.name, engine.pool, tuple(signals), snapshot.wall)
    message = Message(
        incident_id=name,
        event="open",
        severity="ticket",
        scope=_scope(one),
        reason=REASON,
        summary=f"not seen: {', '.join(signals)}",
        at_wall=snapshot.wall,
        facts=(("meaning", "a fault here would go unnoticed until this is seen again"), ("next", "sre doctor")),
    )
    records.note("note", engine.name, REASON, name, data={"signals": list(signals)})
    records.tell(message)
    return replace(state, blind={**state.blind, name: one})


def _end(name: str, one: Blindness, summary: str, wall: float) -> Message:
    return Message(
        incident_id=name,
        event="resolve",
        severity="info",
        scope=_scope(one),
        reason=REASON,
        summary=summary,
        at_wall=wall,
        facts=(("since", f"{one.since_wall:.0f}"),),
    )


def _scope(one: Blindness) -> str:
    return f"engine {one.engine} (pool {one.pool})"
