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
    where_begun: bool = False
    """Of an end: only where this channel was to be told the beginning under the same incident."""


class OutboxState(enum.Enum):
    HELD = "held"  # waits for release_held, or for its hold to end
    PENDING = "pending"
    SENDING = "sending"  # leased to a sender
    SENT = "sent"  # accepted by the provider; not proof that a person read it
    DEAD = "dead"  # given up; needs a person
    SUPERSEDED = "superseded"  # not needed any more: told with the end of the incident, acknowledged, dropped by hand
    DIGESTED = "digested"  # told as part of a digest


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
    """Since it could first have gone out: the end of quiet hours and a person's retry begin it anew."""
    sent_wall: float | None
    severity: str = "page"
    """What decides how urgent it is: for the end of an incident, the incident's own."""
    waits_for: str = ""
    """
    quiet_hours: their end. quiet_hours_over: nothing any more. gathering: what it is to tell, as a digest. by_hand:
    nothing, a person sent it.
    """
    digest: str | None = None
    """The digest that told it."""
    fallback_of: int | None = None
    """The message that another channel could not deliver."""
    fell_back: bool = False
    """Its channel's fallback was told."""
    is_digest: bool = False
    unknown_outcomes: int = 0
    """Deliveries that were cut off before the provider's answer: each may have arrived."""


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident that people were to be told of, as stored."""

    id: str
    severity: str
    """The worst it ever had."""
    opening: Message
    opened_wall: float
    resolved_wall: float | None
    acknowledged_wall: float | None
    acknowledged_by: str | None
    note: str | None
    level: int
    """Escalations told since, because nobody acknowledged it."""


class AckOutcome(enum.Enum):
    """What an acknowledgement found."""

    ACKNOWLEDGED = "acknowledged"
    ALREADY = "already_acknowledged"
    RESOLVED = "resolved"
    NOTICE = "notice"  # told, and no incident
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """
    What became of an acknowledgement of an incident, or of all incidents of a digest.

    ``incidents``: those that are acknowledged now and were not before. ``by`` and ``at_wall``: who acknowledged it
    first, and when; of a resolved one, when it ended. ``quieted``: messages of a notice that are not repeated any more.
    """

    outcome: AckOutcome
    incidents: tuple[str, ...] = ()
    by: str | None = None
    at_wall: float | None = None
    quieted: int = 0


@dataclass(frozen=True, slots=True)
class OutboxLoad:
    """What one channel has not got yet."""

    channel: str
    pending: int
    """Held, waiting and under way."""
    dead: int
    oldest_seconds: float | None
    """Age of the oldest pending one that quiet hours do not hold back; None when none is."""
    perhaps_told: int = 0
    """Of the dead: tickets and ends that may have arrived, and what another channel delivered in its place."""
