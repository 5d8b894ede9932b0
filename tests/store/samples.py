"""Entries and messages for tests."""

from __future__ import annotations

from sre.actions.records import JournalEntry, OutboxMessage, OutboxState
from sre.actions.types import Message
from sre.adapters.store import StoreReader


def message(incident: str = "inc-20270115-080000-00a1", event: str = "open", summary: str = "no step") -> Message:
    return Message(
        incident_id=incident,
        event=event,
        severity="page",
        scope="engine sim-0 (pool sim-7b)",
        reason="hang",
        summary=summary,
        at_wall=1_800_000_000.0,
        facts=(("in flight", "4"),),
    )


def post(
    channel: str = "mail", *, incident: str = "inc-20270115-080000-00a1", event: str = "open", hold: float = 0.0
) -> OutboxMessage:
    return OutboxMessage(message(incident, event), channel, hold_seconds=hold)


def intent(
    target: str = "sim-0", *, at_wall: float = 1_800_000_000.0, at_monotonic: float = 1000.0, action: str = "restart"
) -> JournalEntry:
    return JournalEntry(
        kind="intent",
        action=action,
        target=target,
        reason="hang",
        incident_id="inc-20270115-080000-00a1",
        at_wall=at_wall,
        at_monotonic=at_monotonic,
        data={"pid": 4711},
    )


def outbox_counts(store: StoreReader) -> dict[OutboxState, int]:
    """Messages per state, zeros included."""
    counts = dict.fromkeys(OutboxState, 0)
    with store._reading() as connection:
        for state, count in connection.execute("SELECT state, count(*) FROM outbox GROUP BY state"):
            counts[OutboxState(state)] = int(count)
    return counts
