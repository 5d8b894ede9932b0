"""What is to be written, as it is put together: firings, incidents, journal, messages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sre.actions.records import JournalEntry, OutboxMessage
from sre.actions.types import Message
from sre.notify.alert_messages import ended_message
from sre.notify.alert_records import AlertIncident, Changes, Episode, GuardNow, Known, LeftOut, PendingTrip, Verdict
from sre.notify.alerts import EpisodeKey

Listeners = Callable[[Message], Sequence[str]]
"""Channels that are told a message."""


@dataclass(frozen=True, slots=True)
class Moment:
    wall: float
    monotonic: float


class Draft:
    """Changes so far, on top of what is known."""

    def __init__(self, listeners: Listeners, known: Known, guard: GuardNow, now: Moment) -> None:
        self._listeners, self._guard, self._now = listeners, guard, now
        self._known = dict(known.episodes)
        self._open: dict[str, AlertIncident] = dict(known.incidents)
        self._join_keys = {one.id: key for key, one in self._open.items()}
        self._emptied: list[str] = []
        self._spent = dict(known.spent)
        self._tripping = set(known.tripping)
        self._members = dict(known.guard_members)
        self._severities = dict(known.guard_severities)
        self._number = known.last_number
        self._by_fingerprint: dict[str, set[EpisodeKey]] = {}
        for key in self._known:
            self._by_fingerprint.setdefault(key[0], set()).add(key)
        self._episodes: dict[EpisodeKey, Episode] = {}
        self._incidents: dict[str, AlertIncident] = {}
        self._trips: list[PendingTrip] = []
        self._settled: list[int] = []
        self._left_out: list[LeftOut] = []
        self._caught_up: list[int] = []
        self._journal: list[JournalEntry] = []
        self._outbox: list[OutboxMessage] = []
        self._told: list[Message] = []
        self._verdicts: list[tuple[bool, Verdict]] = []
        self._canaries: list[str] = []
        self._heartbeat = False

    def changes(self) -> Changes:
        """Return all of it."""
        return Changes(
            episodes=tuple(self._episodes.values()),
            incidents=tuple(self._incidents.values()),
            trips=tuple(self._trips),
            settled=tuple(self._settled),
            left_out=tuple(self._left_out),
            caught_up=tuple(self._caught_up),
            journal=tuple(self._journal),
            outbox=tuple(self._outbox),
            told=tuple(self._told),
            heartbeat=self._heartbeat,
            verdicts=tuple(self._verdicts),
            canaries=tuple(self._canaries),
        )

    def _keep(self, episode: Episode) -> None:
        self._known[episode.key] = self._episodes[episode.key] = episode
        self._by_fingerprint.setdefault(episode.fingerprint, set()).add(episode.key)

    def _put(self, incident: AlertIncident) -> None:
        self._incidents[incident.id] = self._open[incident.join_key] = incident
        self._join_keys[incident.id] = incident.join_key

    def _by_id(self, identifier: str | None) -> AlertIncident | None:
        """The open incident of this id; None also where it is the guard's."""
        key = self._join_keys.get(identifier or "")
        return None if key is None else self._open.get(key)

    def _end_episode(self, episode: Episode) -> None:
        """The incident it belongs to has one firing less; it is closed by ``_close_empty``."""
        self._keep(replace(episode, resolved_wall=self._now.wall, seen_wall=self._now.wall))
        incident = self._by_id(episode.incident_id)
        if incident is not None:
            self._put(replace(incident, firing=max(0, incident.firing - 1)))
            self._emptied.append(incident.id)

    def _close_empty(self) -> None:
        for identifier in self._emptied:
            incident = self._by_id(identifier)
            if incident is not None and incident.firing == 0:
                self._close(incident)
        self._emptied.clear()

    def _close(self, incident: AlertIncident, why: str = "") -> None:
        closed = replace(incident, resolved_wall=self._now.wall, firing=0)
        self._incidents[closed.id] = closed
        self._open.pop(closed.join_key, None)
        self._note("transition", incident.name, "resolved", incident.id, data={"alerts": incident.members})
        if closed.told:
            # What was told with others ends with them for whoever heard of it in that way only.
            self._tell(ended_message(closed, self._now.wall, why), where_begun=closed.told_in is not None)
        told_in = self._by_id(closed.told_in)
        if told_in is not None:
            left = replace(told_in, firing=max(0, told_in.firing - 1))
            self._put(left)
            if left.firing == 0:
                self._close(left)

    def _tell(self, message: Message, level: int = 0, *, where_begun: bool = False) -> None:
        self._told.append(message)
        self._outbox += [
            OutboxMessage(message, channel, level, where_begun=where_begun) for channel in self._listeners(message)
        ]

    def _note(
        self,
        kind: str,
        target: str,
        reason: str,
        incident: str | None = None,
        *,
        action: str | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        self._journal.append(
            JournalEntry(
                kind=kind,
                target=target,
                reason=reason,
                at_wall=self._now.wall,
                at_monotonic=self._now.monotonic,
                incident_id=incident,
                action=action,
                data=data or {},
            )
        )
