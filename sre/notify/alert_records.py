"""What is kept of alerts, what a decision is given and what it asks to be written: values only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from sre.actions.records import JournalEntry, OutboxMessage
from sre.actions.types import Message
from sre.notify.alert_routes import Trip
from sre.notify.alerts import EpisodeKey

HEARTBEAT_KEY = "heartbeat"
"""Join key of the incident "monitoring pipeline silent"; no alert's key looks so (they hold "=")."""

LOCKED_OUT_KEY = "locked_out"
"""The same of the incident "all posts are turned away"."""


class Verdict(enum.Enum):
    """What became of one alert of a notification."""

    OPENED = "opened"  # began an incident
    JOINED = "joined"  # one more of an open incident
    JOINED_GUARD = "joined_guard"  # about an engine whose incident the guard has open
    TRIPPING = "tripping"  # a breaker is to be opened; the guard's incident will be its incident
    STORED = "stored"  # no route wants anything of it
    OVER_LIMIT = "over_limit"  # the route's limit per hour is reached
    DUPLICATE = "duplicate"  # this firing, or its end, is known
    ENDED = "ended"  # the end of a firing that is known
    ENDED_UNSEEN = "ended_unseen"  # the end of a firing nobody told us of
    ENDED_BEFORE = "ended_before"  # a firing whose end, or whose successor, came before it
    HEARTBEAT = "heartbeat"
    CANARY = "canary"


class TripRefusal(enum.Enum):
    """Why a route's trip is not carried out."""

    NO_LABEL = "no_label"  # the alert lacks the label that names the target
    NO_TARGET = "no_target"  # no such engine or pool
    NO_GUARD = "no_guard"  # nothing seen yet
    PAUSED = "paused"
    ONLY_OBSERVED = "only_observed"
    HELD_BY_HAND = "held_by_hand"  # a person's override
    ALREADY_OPEN = "already_open"
    LAST_ENGINE = "last_engine"  # no other of its pool serves
    TOO_OLD = "too_old"
    BUDGET_SPENT = "budget_spent"
    FAILED = "failed"  # the guard could not do it
    ENDED = "ended"  # its alert is over
    UNREADABLE = "unreadable"  # what was written down is damaged


@dataclass(frozen=True, slots=True)
class Episode:
    """One firing of one alert, from what was heard of it."""

    fingerprint: str
    starts_ns: int
    name: str
    severity: str
    labels: Mapping[str, str]
    summary: str
    seen_wall: float
    """When it was last heard of, to a minute."""
    firing_wall: float | None = None
    """When its firing was first heard of."""
    resolved_wall: float | None = None
    """When its end was heard of, or taken for granted."""
    incident_id: str | None = None

    @property
    def key(self) -> EpisodeKey:
        return self.fingerprint, self.starts_ns

    @property
    def open(self) -> bool:
        return self.firing_wall is not None and self.resolved_wall is None


@dataclass(frozen=True, slots=True)
class AlertIncident:
    """An incident that alerts opened; the guard's own are not here."""

    id: str
    number: int
    join_key: str
    name: str
    severity: str
    scope: str
    route: str
    summary: str
    opened_wall: float
    listed: bool = True
    """Has a folder: ``sre incident list`` shows it."""
    told: bool = True
    """The channels were told of it, and will be told of its end."""
    told_in: str | None = None
    """The incident whose message told of it, with others that a limit kept back; None where it was told by itself."""
    members: int = 0
    """Firings that belong to it, ended ones included."""
    firing: int = 0
    """Those that go on; of an incident that told others (``told_in``), these count, too."""
    resolved_wall: float | None = None


@dataclass(frozen=True, slots=True)
class PendingTrip:
    """A trip that is written down and not carried out yet."""

    trip: Trip
    fingerprint: str
    starts_ns: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    at_wall: float
    at_monotonic: float
    number: int = 0
    """Given by the store."""
    age_seconds: float = 0.0
    """Since it was written down; told by the store. Infinite after a reboot, see ``AlertBook.pending_trips``."""


@dataclass(frozen=True, slots=True)
class DamagedTrip:
    """A trip that was written down and cannot be read."""

    number: int
    key: EpisodeKey | None
    """Of its alert, where that can be read."""
    text: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a route's limit per hour kept from being told: it is told later, with others."""

    route: str
    name: str
    severity: str
    key: EpisodeKey
    incident_id: str | None
    """Its incident that is listed and was not told; None where the alert has none."""
    listed: bool
    """The route wants an incident."""
    told: bool
    """The route wants it told."""
    number: int = 0
    """Given by the store."""
    age_seconds: float = 0.0
    told_meanwhile: bool = False
    """Its incident was told after all."""


@dataclass(frozen=True, slots=True)
class EngineNow:
    """What trips and joining need to know of an engine."""

    pool: str
    address: str
    """``host:port`` of its own interface, as Prometheus names it in ``instance``."""
    state: str
    """Of its breaker: closed, open, half_open, forced_open, disabled."""
    acting: bool
    """Whether the guard acts on it at all."""


@dataclass(frozen=True, slots=True)
class GuardNow:
    """The guard as an alert finds it. Without a guard: the default."""

    engines: Mapping[str, EngineNow] = field(default_factory=dict)
    incidents: Mapping[str, str] = field(default_factory=dict)
    """Engine → id of its open incident."""
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a decision needs to know of what is stored."""

    keys: frozenset[EpisodeKey] = frozenset()
    join_keys: frozenset[str] = frozenset()
    intents: frozenset[tuple[str, str]] = frozenset()
    """(action, target) whose entries of the last hour are counted."""
    guard_incidents: frozenset[str] = frozenset()
    incidents: frozenset[str] = frozenset()
    """Incidents of alerts, by id."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is stored, as far as it was asked for."""

    episodes: Mapping[EpisodeKey, Episode] = field(default_factory=dict)
    """Those asked for, and every open one of their fingerprints."""
    incidents: Mapping[str, AlertIncident] = field(default_factory=dict)
    """Open ones by join key; also those that the episodes belong to."""
    spent: Mapping[tuple[str, str], int] = field(default_factory=dict)
    tripping: frozenset[str] = frozenset()
    """Targets of trips that are written down and not carried out."""
    guard_members: Mapping[str, int] = field(default_factory=dict)
    """Firings per incident of the guard."""
    guard_severities: Mapping[str, str] = field(default_factory=dict)
    """Severity in which the opening of a guard's incident was told; missing where nobody was."""
    last_number: int = 0
    damaged: tuple[EpisodeKey, ...] = ()
    """Episodes whose row is damaged, mended as far as possible; to be written again."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a decision asks to be written, all of it or nothing."""

    episodes: tuple[Episode, ...] = ()
    incidents: tuple[AlertIncident, ...] = ()
    trips: tuple[PendingTrip, ...] = ()
    settled: tuple[int, ...] = ()
    """Numbers of trips that are over."""
    left_out: tuple[LeftOut, ...] = ()
    caught_up: tuple[int, ...] = ()
    """Numbers of what was left out and is told now."""
    journal: tuple[JournalEntry, ...] = ()
    outbox: tuple[OutboxMessage, ...] = ()
    told: tuple[Message, ...] = ()
    """What incidents are told by, in order: also what no channel wants."""
    heartbeat: bool = False
    verdicts: tuple[tuple[bool, Verdict], ...] = ()
    """Per alert in order: whether it fires, and what became of it."""
    canaries: tuple[str, ...] = ()
    """Ids of canaries that came through."""

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to write."""
        return not (
            self.episodes
            or self.incidents
            or self.trips
            or self.settled
            or self.left_out
            or self.caught_up
            or self.journal
            or self.outbox
            or self.told
            or self.heartbeat
        )
