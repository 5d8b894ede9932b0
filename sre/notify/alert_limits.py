"""
Limits per hour of a route, and what they keep back: nothing is lost, it is told later and together. Pure.

Who is over the limit is told of at once, in one message an hour. What was kept back is told in one message, under an
incident of its own, when the window opens again, and an hour later at the latest: also where the limit is 0.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace

from sre.notify.alert_draft import Draft
from sre.notify.alert_messages import OVER_LIMIT_REASON, left_out_message, once_message
from sre.notify.alert_records import AlertIncident, LeftOut
from sre.notify.alert_routes import RANK, Plan
from sre.notify.alerts import Alert
from sre.notify.notices import without_end

INCIDENT_ACTION = "alert_incident"
NOTICE_ACTION = "alert_notice"
"""Names under which the journal counts for the limits per hour."""
WINDOW_SECONDS = 3600.0


class Limited(Draft):
    """A draft that counts what begins."""

    def _within_limits(self, plan: Plan) -> tuple[bool, bool]:
        """(may open an incident, may tell), each counted if it may."""
        return (
            plan.incident and self._may(plan, INCIDENT_ACTION, plan.incidents_per_hour),
            plan.notify and self._may(plan, NOTICE_ACTION, plan.notices_per_hour),
        )

    def _may_tell(self, plan: Plan) -> bool:
        return self._may(plan, NOTICE_ACTION, plan.notices_per_hour)

    def _may(self, plan: Plan, action: str, limit: int | None) -> bool:
        if limit is None:
            return True
        if self._spent.get((action, plan.route), 0) < limit:
            self._count(action, plan.route)
            return True
        self._tell(
            once_message(
                f"limit-{plan.route}",
                plan.severity,
                f"webhook route {plan.route}",
                f"its limit of {limit} per hour is reached; further alerts are told together, within the hour",
                self._now.wall,
                "raise max_per_hour of the route, or silence what storms",
                reason=OVER_LIMIT_REASON,
            )
        )
        return False

    def _count(self, action: str, route: str) -> None:
        self._spent[(action, route)] = self._spent.get((action, route), 0) + 1
        self._note("intent", route, "alert", action=action)

    def _leave_out(self, alert: Alert, plan: Plan, incident: str | None) -> None:
        """It is told later."""
        self._left_out.append(
            LeftOut(plan.route, alert.name, plan.severity, alert.key, incident, plan.incident, plan.notify)
        )

    # ---- later -------------------------------------------------------------------------------------------------------

    def tell_left_out(self, route: str, left: Sequence[LeftOut], more: int) -> None:
        """
        Tell what ``route`` kept back, and count it.

        Args:
            more: So many more wait.
        """
        self._caught_up += [one.number for one in left]
        fresh = [one for one in left if not one.told_meanwhile]
        if not fresh:
            return
        for action, wanted in ((INCIDENT_ACTION, any(o.listed for o in fresh)), (NOTICE_ACTION, _told(fresh))):
            if wanted:
                self._count(action, route)
        self._number += 1
        made = AlertIncident(
            id=incident_id(self._now.wall, self._number),
            number=self._number,
            join_key=f"left_out-{self._number}",  # no alert's key looks so
            name=OVER_LIMIT_REASON,
            severity=max((one.severity for one in fresh), key=lambda severity: RANK.get(severity, 0)),
            scope=f"webhook route {route}",
            route=route,
            summary="",
            opened_wall=self._now.wall,
            listed=any(one.listed for one in fresh),
            told=_told(fresh),
            members=len(fresh),
        )
        firing, known = self._adopt(fresh, made.id)
        message = left_out_message(made, fresh, firing, known, self._now.wall, more)
        made = replace(made, summary=message.summary, firing=firing + known)
        self._put(made)
        self._note("transition", route, "opened", made.id, data={"alerts": len(fresh), "firing": firing + known})
        if made.firing == 0:
            # Nothing of it goes on: the message has no end to come.
            self._incidents[made.id] = replace(made, resolved_wall=self._now.wall)
            self._open.pop(made.join_key, None)
            message = without_end(message)
        if made.told:
            self._tell(message)

    def _adopt(self, left: Sequence[LeftOut], incident: str) -> tuple[int, int]:
        """
        Who still fires and has no incident belongs to ``incident`` from now on; the incidents of the others are told in
        it, and it ends with the last of them. Return how many belong to it, and how many open incidents are told in it.
        """
        firing = known = 0
        for one in left:
            episode = self._known.get(one.key)
            own = self._by_id(one.incident_id)
            if own is not None:
                if not own.told:
                    known += 1
                    self._put(replace(own, told=True, told_in=incident))
            elif one.incident_id is None and episode is not None and episode.open and episode.incident_id is None:
                firing += 1
                self._keep(replace(episode, incident_id=incident))
        return firing, known

    def _has_room(self, route: str, plan: Plan) -> bool:
        limits = ((INCIDENT_ACTION, plan.incidents_per_hour), (NOTICE_ACTION, plan.notices_per_hour))
        return all(limit is None or self._spent.get((action, route), 0) < limit for action, limit in limits)


def incident_id(wall: float, number: int) -> str:
    """
    Return ``inc-YYYYMMDD-HHMMSS-xxxx`` (UTC). The suffix of incidents that alerts open begins with a letter, that of
    the guard's own with a digit: they never meet.
    """
    stamp = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    return f"inc-{stamp:%Y%m%d-%H%M%S}-{0xA000 + number % 0x6000:04x}"


def _told(left: Sequence[LeftOut]) -> bool:
    return any(one.told for one in left)
