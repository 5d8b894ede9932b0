"""What a tick writes down and whom it tells: journal entries, incidents, messages."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace

from sre.actions.records import JournalEntry, OutboxMessage
from sre.actions.types import Message
from sre.breaker.machine import EngineBreaker, Transition
from sre.breaker.policy import Policy
from sre.breaker.state import GuardState, Incident
from sre.signals.types import EngineSeen, Snapshot


class Records:
    """Collects what a tick writes down."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self.at, self.wall, self.policy = snapshot.at, snapshot.wall, policy
        self.journal: list[JournalEntry] = []
        self.outbox: list[OutboxMessage] = []
        self.told: list[Message] = []

    def note(
        self,
        kind: str,
        target: str,
        reason: str,
        incident: str | None = None,
        action: str | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        """Add a journal entry."""
        self.journal.append(
            JournalEntry(
                kind=kind,
                target=target,
                reason=reason,
                at_wall=self.wall,
                at_monotonic=self.at,
                incident_id=incident,
                action=action,
                data=data or {},
            )
        )

    def tell(self, message: Message, level: int = 0, hold_seconds: float = 0.0) -> None:
        self.told.append(message)
        for channel in self.policy.listeners(message):
            self.outbox.append(OutboxMessage(message, channel, level, hold_seconds))


def incident_id(wall: float, number: int) -> str:
    """Return ``inc-YYYYMMDD-HHMMSS-NNNN`` (UTC): sortable, and unique by the counter."""
    stamp = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    return f"inc-{stamp:%Y%m%d-%H%M%S}-{number % 10000:04d}"


def note_transition(
    records: Records,
    engine: str,
    before: EngineBreaker,
    after: EngineBreaker,
    transition: Transition,
    incident: Incident | None,
) -> None:
    """Journal one transition."""
    data: dict[str, object] = {
        "from": before.effective.value,
        "to": after.effective.value,
        "detail": after.detail,
        "generation": after.generation,
    }
    if after.reason is not None:
        data["reason"] = after.reason.value
    if after.fault_since is not None and transition is Transition.TRIPPED:
        data["fault_since_monotonic"] = after.fault_since
    if after.ramp_index is not None:
        data["ramp_index"] = after.ramp_index
    records.note("transition", engine, transition.value, incident.id if incident else None, data=data)


def open_incident(
    state: GuardState,
    engine: EngineSeen,
    breaker: EngineBreaker,
    snapshot: Snapshot,
    records: Records,
    acting: bool,
    severity: str = "page",
) -> tuple[GuardState, Incident]:
    """Open an incident and queue its page, held until the contexts are on disk (or the hold ends)."""
    number = state.incident_number + 1
    incident = Incident(
        id=incident_id(snapshot.wall, number),
        engine=engine.name,
        pool=engine.pool,
        reason=breaker.reason.value if breaker.reason else "unknown",
        opened_wall=snapshot.wall,
        process=engine.identity,
    )
    state = replace(state, incident_number=number, incidents={**state.incidents, engine.name: incident})
    message = replace(incident_message("open", engine, breaker, incident, snapshot, acting), severity=severity)
    records.tell(message, hold_seconds=records.policy.hold_for_contexts_seconds)
    return state, incident


def incident_message(
    event: str, engine: EngineSeen, breaker: EngineBreaker, incident: Incident, snapshot: Snapshot, acting: bool
) -> Message:
    reason = incident.reason if event == "resolve" or breaker.reason is None else breaker.reason.value
    in_flight = engine.in_flight.value
    did = "new requests are refused, running streams go on" if acting else "nothing: observe only"
    summary = {
        "open": f"{engine.name} tripped: {reason}",
        "escalate": f"{engine.name} needs a human: {reason}",
        "resolve": f"{engine.name} serves again after {snapshot.wall - incident.opened_wall:.0f} s",
    }[event]
    facts = [("seen", breaker.detail), ("pool", engine.pool), ("since", f"{incident.opened_wall:.0f}")]
    if event == "open":
        facts += [
            ("requests in flight", "not seen" if in_flight is None else f"{in_flight:.0f}"),
            ("done automatically", did),
            ("contexts", f"sre incident show {incident.id}"),
            ("next", f"sre breaker explain {engine.name}"),
        ]
    elif event == "escalate":
        facts.append(("next", f"find the cause, then: sre breaker reset {engine.name}"))
    else:
        facts.append(("incident opened for", incident.reason))
    return Message(
        incident_id=incident.id,
        event=event,
        severity="page" if event != "resolve" else "info",
        scope=f"engine {engine.name} (pool {engine.pool})",
        reason=reason,
        summary=summary,
        at_wall=snapshot.wall,
        facts=tuple(facts),
    )


def removed_message(incident: Incident, snapshot: Snapshot) -> Message:
    """The end of an incident whose engine is not in the configuration any more."""
    return Message(
        incident_id=incident.id,
        event="resolve",
        severity="info",
        scope=f"engine {incident.engine} (pool {incident.pool})",
        reason=incident.reason,
        summary=f"{incident.engine} left the configuration; the incident is closed unproven",
        at_wall=snapshot.wall,
    )
