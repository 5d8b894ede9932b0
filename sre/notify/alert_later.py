"""What time brings, decided: silence, firings that outlive or are forgotten, what was left out or damaged. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sre.notify.alert_decide import NOTHING_DONE, TRIP_ACTION, Decision, alert_of
from sre.notify.alert_limits import WINDOW_SECONDS, incident_id
from sre.notify.alert_messages import (
    LOCKED_OUT_REASON,
    REFUSED_REASON,
    SILENT_REASON,
    locked_out_message,
    once_message,
    silent_message,
)
from sre.notify.alert_records import (
    HEARTBEAT_KEY,
    LOCKED_OUT_KEY,
    AlertIncident,
    DamagedTrip,
    Episode,
    LeftOut,
    TripRefusal,
    Verdict,
)

LONGEST_DAMAGED = 1_000


class Later(Decision):
    """A decision about what nobody sent."""

    def present(self, episode: Episode) -> Episode | None:
        """Return a firing that was read before as it stands now; None if it is over, or belongs elsewhere by now."""
        found = self._known.get(episode.key)
        return found if found is not None and found.open and found.incident_id == episode.incident_id else None

    def silence(self, silent_seconds: float, turned_away: int = 0) -> None:
        """The heartbeat has not been heard for so long; so many posts were turned away since anybody was let in."""
        incident = self._open_own(
            HEARTBEAT_KEY, SILENT_REASON, "page", "monitoring pipeline", "heartbeat",
            "no heartbeat from Prometheus and Alertmanager",
        )  # fmt: skip
        if incident is None:
            return
        timeout = self._intake.settings.heartbeat.timeout_seconds
        guarded = bool(self._guard.engines)
        self._tell(
            silent_message(incident, self._now.wall, silent_seconds, timeout, guarded=guarded, turned_away=turned_away)
        )

    def lock_out(self, turned_away: int, seconds: float) -> None:
        """All posts were turned away for so long."""
        incident = self._open_own(
            LOCKED_OUT_KEY, LOCKED_OUT_REASON, "ticket", "webhook", "credentials", "all posts are turned away"
        )
        if incident is not None:
            self._tell(locked_out_message(incident, self._now.wall, turned_away, seconds))

    def _open_own(
        self, join_key: str, name: str, severity: str, scope: str, route: str, summary: str
    ) -> AlertIncident | None:
        """Open an incident that no alert brought; None where it is open already."""
        if join_key in self._open:
            return None
        self._number += 1
        incident = AlertIncident(
            id=incident_id(self._now.wall, self._number),
            number=self._number,
            join_key=join_key,
            name=name,
            severity=severity,
            scope=scope,
            route=route,
            summary=summary,
            opened_wall=self._now.wall,
        )
        self._put(incident)
        self._note("transition", name, Verdict.OPENED.value, incident.id)
        return incident

    def let_in(self) -> None:
        """Somebody's credentials fit."""
        locked_out = self._open.get(LOCKED_OUT_KEY)
        if locked_out is not None:
            self._close(locked_out, "a post with good credentials came again")

    def unwatch(self) -> None:
        """The heartbeat is not asked for any more."""
        silent = self._open.get(HEARTBEAT_KEY)
        if silent is not None:
            self._close(silent, "the heartbeat is not watched any more")

    def forget(self, episode: Episode) -> None:
        """Nobody spoke of this firing any more: it is taken for over, and that is said."""
        wall, seconds = self._now.wall, self._intake.settings.forget_after_seconds
        self._keep(replace(episode, resolved_wall=wall))
        self._note("note", episode.name, "forgotten", episode.incident_id, data={"fingerprint": episode.fingerprint})
        incident = self._by_id(episode.incident_id)
        if incident is None:
            return
        left = replace(incident, firing=max(0, incident.firing - 1))
        self._put(left)
        if left.firing == 0:
            self._close(left, f"not heard of for {seconds / 3600:.0f} h; taken for over, unproven")

    def outlives(self, episode: Episode) -> None:
        """The guard closed the incident this alert had joined, and the alert still fires: it gets one of its own."""
        summary = f"still fires though {episode.incident_id} is over: {episode.summary}"
        alert = replace(alert_of(episode), annotations={"summary": summary})
        alone = replace(episode, incident_id=None)
        self._keep(alone)  # whatever becomes of it: it is not looked at again and again
        self._heard_before = True
        self._act(alert, alone, self._intake.routes.plan(alert.labels), 0, NOTHING_DONE)
        self._heard_before = False

    def may_tell(self, route: str, oldest: Sequence[LeftOut]) -> bool:
        """Whether what ``route`` kept back is told now: its limit allows it, or it has waited for an hour."""
        for one in oldest:
            episode = self._known.get(one.key)
            plan = None if episode is None else self._intake.routes.plan(episode.labels)
            if one.told_meanwhile or one.age_seconds >= WINDOW_SECONDS or plan is None or plan.route != route:
                return True
            if self._has_room(route, plan):
                return True
        return False

    def set_aside(self, trip: DamagedTrip) -> None:
        """A trip that cannot be read is not carried out: its alert is told by itself."""
        self._settled.append(trip.number)
        data = {"number": trip.number, "text": trip.text[:LONGEST_DAMAGED]}
        self._note("failed", "unknown", TripRefusal.UNREADABLE.value, action=TRIP_ACTION, data=data)
        episode = None if trip.key is None else self._known.get(trip.key)
        self._tell_damaged(f"trip number {trip.number}", None)
        if episode is not None and episode.open and episode.incident_id is None:
            did = f"nothing: the trip that was to be done cannot be read ({TripRefusal.UNREADABLE.value})"
            self._act(alert_of(episode), episode, self._intake.routes.plan(episode.labels), 0, did)

    def lost(self, cause: str, sentence: str) -> None:
        """Who may post was refused for good: Alertmanager sends that notification never again."""
        self._note("note", "webhook", REFUSED_REASON, data={"cause": cause})
        self._tell(
            once_message(
                f"{REFUSED_REASON}-{cause}",
                "page",
                "webhook",
                f"notifications are refused and lost: {sentence}",
                self._now.wall,
                "mend it at Alertmanager; until then its alerts reach nobody through this webhook",
                reason=REFUSED_REASON,
            )
        )

    def uncertified(self, sentence: str) -> None:
        """A certificate that was renewed cannot be used."""
        self._tell(
            once_message(
                "tls-certificate",
                "ticket",
                "webhook",
                sentence,
                self._now.wall,
                "put a certificate and its key there; they are taken without a restart",
            )
        )
