"""What is written down: journal entries and messages to send, as values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from sre.actions.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One line of the audit journal. ``data`` holds only what JSON can."""

    kind: str
    """intent | applied | verified | undone | failed | transition | override | note"""
    target: str
    """What it is about: an engine, a pool, a channel."""
    reason: str
    """Named reason."""
    at_wall: float
    at_monotonic: float
    incident_id: str | None = None
    action: str | None = None
    """What is done: restart, refuse …; the name budgets count by. None where nothing is done."""
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A journal entry as stored."""

    seq: int
    boot_id: str
    entry: JournalEntry
    hash: str
    """Covers the entry and the row before it."""


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """A message for one channel. A second one with the same incident, event, channel and level is ignored."""

    message: Message
    channel: str
    level: int = 0
    """Escalation step."""
    hold_seconds: float = 0.0
    """Wait this long at most for ``release_held``; 0 sends at once."""


class OutboxState(enum.Enum):
    HELD = "held"  # waits for release_held, or for its hold to end
    PENDING = "pending"
    SENDING = "sending"  # leased to a sender
    SENT = "sent"  # accepted by the provider; not proof that a person read it
    DEAD = "dead"  # given up; needs a person
    SUPERSEDED = "superseded"  # its content went into the message that resolves the incident


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message as stored."""

    id: int
    message: Message
    opened: Message | None
    """The "open" message that was never sent and that this "resolve" message carries too."""
    channel: str
    level: int
    state: OutboxState
    attempts: int
    """Deliveries begun."""
    due_in_seconds: float
    """Until it may be sent, or until the lease or hold ends; <= 0 is now. Meaningless when finished."""
    last_error: str | None
    created_wall: float
    age_seconds: float
    sent_wall: float | None


@dataclass(frozen=True, slots=True)
class OutboxLoad:
    """What one channel has not got yet."""

    channel: str
    pending: int
    """Held, waiting and under way."""
    dead: int
    oldest_seconds: float | None
    """Age of the oldest pending one; None when none is."""
