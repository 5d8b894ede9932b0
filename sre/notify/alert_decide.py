"""
What alerts lead to: (what is known, a notification, now) → what is to be written. Pure.

One incident per cause: alerts that agree in ``webhook.incident_by`` join, and an alert about an engine whose incident
the guard has open joins that one. What joins is written down and tells nobody, unless it is worse than what was told.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sre.actions.records import OutboxMessage
from sre.actions.types import Message
from sre.notify.alert_draft import Listeners, Moment
from sre.notify.alert_limits import INCIDENT_ACTION, NOTICE_ACTION, Limited, incident_id
from sre.notify.alert_messages import DAMAGED_REASON, alert_message, canary_message, once_message, scope_of, summary_of
from sre.notify.alert_places import guard_incident, trip_refusal
from sre.notify.alert_records import (
    HEARTBEAT_KEY,
    AlertIncident,
    Episode,
    GuardNow,
    Known,
    PendingTrip,
    TripRefusal,
    Verdict,
    Wanted,
)
from sre.notify.alert_routes import RANK, Plan, Routes, Trip
from sre.notify.alerts import NANOSECONDS, Alert, EpisodeKey, Payload
from sre.settings.webhook import WebhookSettings

CANARY_ALERT = "SreCanary"
CANARY_LABEL = "id"

TRIP_ACTION = "alert_trip"
"""Name under which the journal counts trips."""

SEEN_REFRESH_SECONDS = 60.0
"""A known alert that is heard of again is written only so often."""
REORDERED_SECONDS = 45.0
"""
A firing that comes so soon after its own end was overtaken by it; later, it fires again or has never ended.

Less than the shortest group_interval of the generated routes: what Alertmanager itself ended too early (Prometheus was
silent for a while) it tells again with the same start one group_interval after that end, and then not before
repeat_interval. Longer than a post may be on its way, with the sender's own repetitions.
"""
SAME_FIRING_SECONDS = 300
"""A start that moves by no more is the same firing; a later one is another, and the end of the first was not heard."""
WHOLE_SECOND_NS = NANOSECONDS
"""Who sends alerts may write whole seconds: an end that is by less before the start of a firing is its end."""
LEVEL_WORSE = 1
"""Outbox level of "this got worse", plus its rank: the guard's own escalation is 0, those of nobody's answer are 10
and more."""
BAD_NAMED = 10
LEFT_OUT_REASON = "alerts-left-out"
LONGEST_GROUP = 100

NOTHING_DONE = "nothing: the alert has no action"


@dataclass(frozen=True, slots=True)
class Intake:
    """What decisions are made by; the same for the life of a guard."""

    settings: WebhookSettings
    routes: Routes
    listeners: Listeners
    pagers: frozenset[str] = frozenset()
    """Channels where a message opens an incident of theirs: a test must close it again."""

    def wanted(self, alerts: Iterable[Alert], guard: GuardNow) -> Wanted:
        """Return what must be known to decide about ``alerts``."""
        keys, joins, intents = set(), {HEARTBEAT_KEY}, set()
        for alert in alerts:
            keys.add(alert.key)
            joins.add(self.routes.join_key(alert.labels))
            plan = self.routes.plan(alert.labels)
            intents |= {(TRIP_ACTION, trip.target) for trip in plan.trips}
            limits = ((INCIDENT_ACTION, plan.incidents_per_hour), (NOTICE_ACTION, plan.notices_per_hour))
            intents |= {(action, plan.route) for action, limit in limits if limit is not None}
        return Wanted(frozenset(keys), frozenset(joins), frozenset(intents), frozenset(guard.incidents.values()))


class Decision(Limited):
    """Looks at alerts one by one."""

    def __init__(self, intake: Intake, known: Known, guard: GuardNow, now: Moment) -> None:
        super().__init__(intake.listeners, known, guard, now)
        self._intake = intake
        self._mend(known.damaged)
        self._heard_before = False

    @property
    def taken(self) -> int:
        """Alerts looked at so far."""
        return len(self._verdicts)

    # ---- a notification ----------------------------------------------------------------------------------------------

    def take(self, payload: Payload, canaries: frozenset[str] = frozenset()) -> None:
        """
        Look at every alert of ``payload``.

        Args:
            canaries: Ids that we sent out ourselves.
        """
        began = len(self._verdicts)
        for alert in payload.alerts:
            verdict = self._one(alert, payload.truncated, canaries)
            self._verdicts.append((alert.firing, verdict))
        if payload.bad:
            self._tell_bad(payload)
        if payload.truncated:
            self._tell_truncated(payload)
        if payload.truncated and any(v is not Verdict.DUPLICATE for _, v in self._verdicts[began:]):
            data = {"truncated": payload.truncated, "group": payload.group_key[:200]}
            self._note("note", payload.receiver or "webhook", "alerts_truncated", data=data)

    def _one(self, alert: Alert, truncated: int, canaries: frozenset[str]) -> Verdict:
        settings = self._intake.settings
        if settings.heartbeat.enabled and alert.name in settings.heartbeat.alertnames:
            self._beat(alert)
            return Verdict.HEARTBEAT
        if alert.name == CANARY_ALERT and alert.labels.get(CANARY_LABEL, "") in canaries:
            return self._canary(alert)
        old = self._known.get(alert.key)
        if not alert.firing:
            return self._end(alert, old)
        over = None if old is None else old.resolved_wall
        if over is not None and abs(self._now.wall - over) > REORDERED_SECONDS:  # a clock set back swallows nothing
            # It fires again, or still: an end that was no end (a partition, a silence) keeps the first start.
            return self._begin(alert, truncated)
        if old is not None and old.firing_wall is not None:
            self._refresh(old)
            return Verdict.DUPLICATE
        if old is not None:
            self._keep(replace(old, firing_wall=self._now.wall, seen_wall=self._now.wall))
            self._note("note", alert.name, Verdict.ENDED_BEFORE.value, data={"fingerprint": alert.fingerprint})
            return Verdict.ENDED_BEFORE
        return self._begin(alert, truncated)

    def _beat(self, alert: Alert) -> None:
        if not alert.firing:
            return
        self._heartbeat = True
        silent = self._open.get(HEARTBEAT_KEY)
        if silent is not None:
            self._close(silent, "the heartbeat is heard again")

    def _canary(self, alert: Alert) -> Verdict:
        if alert.firing:
            identifier = alert.labels[CANARY_LABEL]
            self._canaries.append(identifier)
            message = canary_message(identifier, self._now.wall)
            self._tell(message)
            ended = replace(message, event="resolve")
            self._outbox += [OutboxMessage(ended, channel) for channel in sorted(self._intake.pagers)]
        return Verdict.CANARY

    def _begin(self, alert: Alert, truncated: int) -> Verdict:
        """A firing that is new to us."""
        succeeded = unheard = False
        for key in sorted(self._by_fingerprint.get(alert.fingerprint, ())):
            other = self._known[key]
            if not other.open:
                continue
            if other.starts_ns > alert.starts_ns:
                succeeded = True
            else:
                # Alertmanager told of the next firing without telling of the end of this one.
                self._end_episode(other)
                unheard = unheard or alert.starts_ns - other.starts_ns > SAME_FIRING_SECONDS * NANOSECONDS
        if unheard:
            # Another firing, and not this one with a start that moved: whoever was told of that one hears of this one.
            self._close_empty()
        episode = self._episode(alert)
        if succeeded:
            self._keep(replace(episode, resolved_wall=self._now.wall))
            return Verdict.ENDED_BEFORE
        self._keep(episode)
        # After the new one joined: an incident whose firing only changed its start does not end in between.
        verdict = self._act(alert, episode, self._intake.routes.plan(alert.labels), truncated)
        self._close_empty()
        return verdict

    def _act(self, alert: Alert, episode: Episode, plan: Plan, truncated: int, did: str = "") -> Verdict:
        if not (plan.incident or plan.notify or plan.trips):
            return Verdict.STORED
        mine = guard_incident(alert.labels, self._guard)
        if mine is not None:
            self._join_guard(mine, alert, episode, plan)
            return Verdict.JOINED_GUARD
        for trip in plan.trips if not did else ():
            refusal = self._reserve(trip, alert)
            if refusal is None:
                return Verdict.TRIPPING
            did = f"nothing: no trip of {trip.target or trip.scope} ({refusal.value})"
        return self._open_or_join(alert, episode, plan, truncated, did or NOTHING_DONE)

    # ---- trips -------------------------------------------------------------------------------------------------------

    def _reserve(self, trip: Trip, alert: Alert) -> TripRefusal | None:
        """Write the intent down; it is carried out after the commit. Or return why not."""
        refusal = trip_refusal(trip, self._guard, self._now.wall - alert.starts_wall)
        waiting = trip.target in self._tripping
        spent = self._spent.get((TRIP_ACTION, trip.target), 0)
        if refusal is None and not waiting and spent >= trip.max_per_hour:
            refusal = TripRefusal.BUDGET_SPENT
        data = {"route": trip.route, "alert": alert.name, "fingerprint": alert.fingerprint}
        if refusal is not None:
            self._note("failed", trip.target or trip.scope, refusal.value, action=TRIP_ACTION, data=data)
            return refusal
        if not waiting:
            self._tripping.add(trip.target)
            self._spent[(TRIP_ACTION, trip.target)] = spent + 1
            self._note("intent", trip.target, "alert", action=TRIP_ACTION, data=data)
        self._trips.append(
            PendingTrip(
                trip=trip,
                fingerprint=alert.fingerprint,
                starts_ns=alert.starts_ns,
                labels=alert.labels,
                annotations=alert.annotations,
                at_wall=self._now.wall,
                at_monotonic=self._now.monotonic,
            )
        )
        return None

    def settle(self, pending: PendingTrip, refusal: TripRefusal | None, detail: str = "") -> None:
        """
        A trip was carried out, or could not be. Then its alert opens an incident of its own: what was tried is told.
        """
        self._settled.append(pending.number)
        alert = alert_of(pending)
        episode = self._known.get(alert.key)
        data = {"route": pending.trip.route, "alert": alert.name, "detail": detail} if detail else {}
        mine = guard_incident(alert.labels, self._guard) or self._incident_of(pending.trip)
        done = refusal is None or (refusal is TripRefusal.ALREADY_OPEN and mine is not None)
        kind, reason = ("applied", "tripped") if refusal is None else ("failed", refusal.value)
        over = episode is None or not episode.open
        if over and refusal is None:
            data = {**data, "meanwhile": TripRefusal.ENDED.value}
        self._note(kind, pending.trip.target, reason, mine if done else None, action=TRIP_ACTION, data=data)
        if episode is None or not episode.open:
            return
        plan = self._intake.routes.plan(alert.labels)
        if done and mine is not None:
            self._join_guard(mine, alert, episode, plan)
            return
        if refusal is None:
            did = f"the trip of {pending.trip.target} was carried out; no incident of it is open now"
        else:
            did = f"nothing: no trip of {pending.trip.target} ({refusal.value})"
        if plan.incident or plan.notify:
            self._open_or_join(alert, episode, plan, 0, did)

    def _incident_of(self, trip: Trip) -> str | None:
        for name, incident in self._guard.incidents.items():
            engine = self._guard.engines.get(name)
            if trip.target == name or (engine is not None and trip.scope == "pool" and engine.pool == trip.target):
                return incident
        return None

    # ---- incidents ---------------------------------------------------------------------------------------------------

    def _join_guard(self, incident_id: str, alert: Alert, episode: Episode, plan: Plan) -> None:
        self._keep(replace(episode, incident_id=incident_id))
        members = self._members[incident_id] = self._members.get(incident_id, 0) + 1
        if _is_power_of_two(members):
            data = {"summary": summary_of(alert), "alerts": members}
            self._note("note", alert.name, Verdict.JOINED_GUARD.value, incident_id, data=data)
        told = self._severities.get(incident_id)
        # An incident that nobody was told of (the guard's own telling failed, or is long forgotten) is told now. As
        # "worse", not as "open": should the guard still open it, its page is not taken for a repetition of this.
        if plan.notify and (told is None or RANK[plan.severity] > RANK.get(told, 0)):
            self._severities[incident_id] = plan.severity
            stands_for = self._incident(alert, plan, incident_id, 0, members)
            self._tell(self._message("escalate", stands_for, alert, "see the incident"), level=_level(plan.severity))

    def _open_or_join(self, alert: Alert, episode: Episode, plan: Plan, truncated: int, did: str) -> Verdict:
        join_key = self._intake.routes.join_key(alert.labels)
        found = self._open.get(join_key)
        if found is not None:
            self._join(found, alert, episode, plan)
            return Verdict.JOINED
        listed, told = self._within_limits(plan)
        if not (listed or told):
            self._leave_out(alert, plan, None)
            return Verdict.OVER_LIMIT
        self._number += 1
        made = self._incident(alert, plan, incident_id(self._now.wall, self._number), self._number, 1)
        made = replace(made, join_key=join_key, firing=1, listed=listed, told=told)
        self._put(made)
        self._keep(replace(episode, incident_id=made.id))
        data = {"join_key": join_key, "severity": made.severity, "summary": made.summary, "route": plan.route}
        self._note("transition", alert.name, Verdict.OPENED.value, made.id, data=data)
        if told:
            self._tell(self._message("open", made, alert, did, truncated))
        elif plan.notify:
            self._leave_out(alert, plan, made.id)
        return Verdict.OPENED

    def _join(self, incident: AlertIncident, alert: Alert, episode: Episode, plan: Plan) -> None:
        self._keep(replace(episode, incident_id=incident.id))
        worse = RANK[plan.severity] > RANK.get(incident.severity, 0)
        begins = plan.notify and not incident.told
        may_begin = begins and self._may_tell(plan)
        joined = replace(
            incident,
            members=incident.members + 1,
            firing=incident.firing + 1,
            severity=plan.severity if worse else incident.severity,
            told=incident.told or may_begin,
        )
        self._put(joined)
        if worse or _is_power_of_two(joined.members):
            data = {"alerts": joined.members, "severity": joined.severity, "summary": summary_of(alert)}
            self._note("note", alert.name, Verdict.JOINED.value, incident.id, data=data)
        if may_begin:
            self._tell(self._message("open", joined, alert, NOTHING_DONE))
        elif begins:
            self._leave_out(alert, plan, incident.id)
        elif worse and plan.notify:
            self._tell(self._message("escalate", joined, alert, NOTHING_DONE), level=_level(plan.severity))

    def _incident(self, alert: Alert, plan: Plan, identifier: str, number: int, members: int) -> AlertIncident:
        return AlertIncident(
            id=identifier,
            number=number,
            join_key=self._intake.routes.join_key(alert.labels),
            name=alert.name,
            severity=plan.severity,
            scope=scope_of(alert.labels),
            route=plan.route,
            summary=summary_of(alert),
            opened_wall=self._now.wall,
            members=members,
        )

    def _message(self, event: str, incident: AlertIncident, alert: Alert, did: str, truncated: int = 0) -> Message:
        return alert_message(
            event,
            incident,
            alert,
            wall=self._now.wall,
            max_age_seconds=math.inf if self._heard_before else self._intake.settings.max_age_seconds,
            done=did,
            truncated=truncated,
        )

    # ---- ends --------------------------------------------------------------------------------------------------------

    def _end(self, alert: Alert, old: Episode | None) -> Verdict:
        """
        End every firing of this alert that began before it ended: Alertmanager keeps one alert per fingerprint and the
        earliest start of those its Prometheus servers name, so the start in the end may not be the one we know.
        """
        ends = alert.ends_ns if alert.ends_ns is not None else alert.starts_ns
        firings = [self._known[key] for key in sorted(self._by_fingerprint.get(alert.fingerprint, ()))]
        ended = [one for one in firings if one.open and (one.key == alert.key or one.starts_ns <= ends)]
        if old is None and not ended:
            ended = [one for one in firings if one.open and one.starts_ns - ends < WHOLE_SECOND_NS]
        for one in ended:
            self._end_episode(one)
        self._close_empty()
        if old is None:
            self._keep(replace(self._episode(alert), firing_wall=None, resolved_wall=self._now.wall))
        if ended:
            return Verdict.ENDED
        return Verdict.ENDED_UNSEEN if old is None else Verdict.DUPLICATE

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _episode(self, alert: Alert) -> Episode:
        return Episode(
            fingerprint=alert.fingerprint,
            starts_ns=alert.starts_ns,
            name=alert.name,
            severity=self._intake.routes.severity(alert.labels),
            labels=alert.labels,
            summary=summary_of(alert),
            seen_wall=self._now.wall,
            firing_wall=self._now.wall,
        )

    def _refresh(self, episode: Episode) -> None:
        # Also where it was seen in a future that a wrong clock made up: it would be waited for.
        if abs(self._now.wall - episode.seen_wall) > SEEN_REFRESH_SECONDS:
            self._keep(replace(episode, seen_wall=self._now.wall))

    def _mend(self, damaged: Iterable[EpisodeKey]) -> None:
        """Write damaged rows anew, as far as they can be read, and tell a person."""
        for key in damaged:
            episode = self._known[key]
            self._keep(episode)
            self._tell_damaged(f"firing {episode.name} ({episode.fingerprint})", episode.incident_id)

    def _tell_damaged(self, what: str, incident: str | None) -> None:
        self._note("note", what[:200], DAMAGED_REASON, incident)
        self._tell(
            once_message(
                DAMAGED_REASON,
                "ticket",
                "webhook",
                f"a stored record is damaged and was set aside: {what}",
                self._now.wall,
                "look at the disk and at the guard's log; nothing else was kept back",
            )
        )

    def _tell_bad(self, payload: Payload) -> None:
        named = [f"alerts[{bad.index}] {bad.name or 'unnamed'}: {bad.why.value}" for bad in payload.bad[:BAD_NAMED]]
        self._note("note", payload.receiver or "webhook", "alerts_unreadable", data={"alerts": named})
        self._tell(
            once_message(
                "alerts-unreadable",
                "ticket",
                "webhook",
                f"{len(payload.bad)} alerts of a notification cannot be read and are lost: {named[0]}",
                self._now.wall,
                "look at the templates and versions of Alertmanager",
            )
        )

    def _tell_truncated(self, payload: Payload) -> None:
        """
        Alertmanager sends a group because something of it is new, and that may be what it leaves out: a person has to
        look there. Told once an hour per group, as urgently as the worst of what is listed.
        """
        plans = [self._intake.routes.plan(alert.labels) for alert in payload.alerts]
        worst = max((plan.severity for plan in plans), key=lambda severity: RANK.get(severity, 0), default="page")
        self._tell(
            once_message(
                f"{LEFT_OUT_REASON}-{zlib.crc32(payload.group_key.encode('utf-8', 'replace')):08x}",
                worst,
                "webhook",
                f"{payload.truncated} alerts of {_group(payload)} are left out of its notification; what is new may be"
                " among them",
                self._now.wall,
                "look at that group in Alertmanager; raise max_alerts of its receiver, or group by more labels",
                reason=LEFT_OUT_REASON,
            )
        )


def _group(payload: Payload) -> str:
    named = ", ".join(dict.fromkeys(alert.name for alert in payload.alerts))
    return f"a group ({named[:LONGEST_GROUP]})" if named else "a group"


def alert_of(stored: PendingTrip | Episode) -> Alert:
    """Return the alert as far as it is kept."""
    annotations = stored.annotations if isinstance(stored, PendingTrip) else {"summary": stored.summary}
    return Alert(stored.fingerprint, stored.starts_ns, True, stored.labels, annotations)


def _level(severity: str) -> int:
    return LEVEL_WORSE + RANK[severity]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
