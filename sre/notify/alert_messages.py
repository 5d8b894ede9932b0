"""What alerts say to people: messages of the incidents that they open, worsen and end."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from sre.actions import facts
from sre.actions.types import Message
from sre.notify.alert_records import AlertIncident, LeftOut
from sre.notify.alerts import Alert
from sre.notify.links import is_web_address
from sre.notify.notices import without_end

LONGEST_REASON = 100
"""The reason of an incident that an alert opened is the alert's name."""
SILENT_REASON = "pipeline_silent"
LOCKED_OUT_REASON = "locked_out"
OVER_LIMIT_REASON = "over_limit"
REFUSED_REASON = "alerts-refused"
DAMAGED_REASON = "record-damaged"

FUTURE_SECONDS = 300.0
"""A start so far ahead of our clock is mentioned: one of the clocks is wrong."""

SCOPE_LABELS = ("engine", "pool", "model_name", "node", "instance", "gpu", "device", "target", "job")
"""What tells a reader where; the first three that are there."""
SCOPE_PARTS = 3
LONGEST_SCOPE = 120
LONGEST_SUMMARY = 300
NAMED = 5
PROOF = "sre notify test --end-to-end"
LOOK = "see whether Prometheus and Alertmanager run, and whether Alertmanager reaches this webhook"
"""Where no guard could send the proof."""
COMPARE = "compare the credentials that Alertmanager sends with those of section webhook in sre.yaml"
INCIDENTS_NAMED = 50
"""In a message about what was left out."""


def scope_of(labels: Mapping[str, str]) -> str:
    """Return where the alert is: ``engine sim-0, node n1``."""
    parts = [f"{name.replace('model_name', 'model')} {labels[name]}" for name in SCOPE_LABELS if labels.get(name)]
    return ", ".join(parts[:SCOPE_PARTS])[:LONGEST_SCOPE] or labels.get("alertname", "") or "an alert"


def summary_of(alert: Alert) -> str:
    """Return what the alert says of itself in one sentence."""
    return (alert.annotations.get("summary") or f"{alert.name} fires").strip()[:LONGEST_SUMMARY]


def age_text(seconds: float) -> str:
    """Return a duration as people say it: ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def alert_message(
    event: str,
    incident: AlertIncident,
    alert: Alert,
    *,
    wall: float,
    max_age_seconds: float,
    done: str,
    truncated: int = 0,
    note: str = "",
) -> Message:
    """
    Return what is told when ``alert`` opens ``incident`` ("open") or makes it worse ("escalate").

    An alert that began longer than ``max_age_seconds`` ago is told as such.
    """
    age = wall - alert.starts_wall
    late = age > max_age_seconds
    summary = summary_of(alert)
    if late:
        summary = f"{summary} (began {age_text(age)} ago, heard only now)"
    said = [
        (facts.RULE, alert.name),
        (facts.SEEN, alert.annotations.get("description", "")),
        (facts.SINCE, f"{alert.starts_wall:.0f}"),
        (facts.DONE, done),
        (facts.ALERTS, f"{incident.members} so far, joined by {incident.join_key}" if incident.members > 1 else ""),
        (facts.NOT_LISTED, f"{truncated} more in this notification (max_alerts at Alertmanager)" if truncated else ""),
        (facts.HEARD_LATE, f"{age_text(age)} after it began" if late else ""),
        (facts.CLOCK, f"begins {age_text(-age)} ahead of this machine's clock" if age < -FUTURE_SECONDS else ""),
        (facts.MEANING, note),
        (facts.RUNBOOK, _runbook(alert)),
        (facts.DASHBOARD, _address(alert.annotations.get("dashboard_url", ""))),
    ]
    return Message(
        incident_id=incident.id,
        event=event,
        severity=incident.severity,
        scope=incident.scope,
        reason=alert.name[:LONGEST_REASON],
        summary=summary,
        at_wall=wall,
        facts=tuple((name, value) for name, value in said if value),
    )


def ended_message(incident: AlertIncident, wall: float, why: str = "") -> Message:
    """Return what is told when the last alert of ``incident`` ended; ``why``: it was not proven."""
    lasted = age_text(max(0.0, wall - incident.opened_wall))
    return Message(
        incident_id=incident.id,
        event="resolve",
        severity="info",
        scope=incident.scope,
        reason=incident.name[:LONGEST_REASON],
        summary=why or f"{incident.name} ended after {lasted}",
        at_wall=wall,
        facts=((facts.RULE, incident.name), (facts.ALERTS, str(incident.members))) if incident.members else (),
    )


def silent_message(
    incident: AlertIncident,
    wall: float,
    silent_seconds: float,
    timeout_seconds: float,
    *,
    guarded: bool,
    turned_away: int = 0,
) -> Message:
    """
    Return what is told when the heartbeat stays away.

    Args:
        guarded: There is a guard beside the webhook.
        turned_away: Posts since the last good one whose credentials open nothing: perhaps it is among them.
    """
    seen = ((facts.SEEN, f"{turned_away} posts with wrong or no credentials meanwhile"),) if turned_away else ()
    return Message(
        incident_id=incident.id,
        event="open",
        severity="page",
        scope=incident.scope,
        reason=SILENT_REASON,
        summary=f"no heartbeat from Prometheus and Alertmanager for {age_text(silent_seconds)}",
        at_wall=wall,
        facts=(
            *seen,
            (facts.SINCE, f"{wall - silent_seconds:.0f}"),
            (
                facts.MEANING,
                "alerts may fire and nobody is told" + ("; the guard's own rules go on" if guarded else ""),
            ),
            (facts.VALUE, f"{age_text(silent_seconds)}, limit {age_text(timeout_seconds)}"),
            (facts.NEXT, COMPARE if turned_away else PROOF if guarded else LOOK),
        ),
    )


def locked_out_message(incident: AlertIncident, wall: float, turned_away: int, seconds: float) -> Message:
    """Return what is told when for ``seconds`` all posts were turned away, and no heartbeat is asked for."""
    return Message(
        incident_id=incident.id,
        event="open",
        severity=incident.severity,
        scope=incident.scope,
        reason=LOCKED_OUT_REASON,
        summary=f"{turned_away} posts with wrong or no credentials in {age_text(seconds)}, and none that fit",
        at_wall=wall,
        facts=(
            (facts.SINCE, f"{wall - seconds:.0f}"),
            (facts.MEANING, "if Alertmanager sent them, its alerts reach nobody through this webhook"),
            (facts.NEXT, COMPARE),
        ),
    )


def left_out_message(
    made: AlertIncident, left: Sequence[LeftOut], firing: int, known: int, wall: float, more: int
) -> Message:
    """
    Return what is told of alerts that a limit kept back.

    Args:
        firing: So many of them go on, and ``made`` is their incident.
        known: So many incidents that nobody was told of are open.
        more: So many more wait to be told.
    """
    names = list(dict.fromkeys(one.name for one in left))
    shown = ", ".join(names[:NAMED]) + (f" (+{len(names) - NAMED})" if len(names) > NAMED else "")
    goes_on = f"{firing + known} go on" if firing + known else "all are over"
    incidents = list(dict.fromkeys(one.incident_id for one in left if one.incident_id is not None))
    said = [
        (facts.RULE, shown),
        (facts.ALERTS, f"{len(left)} that the limit of the route kept back; {goes_on}"),
        (facts.MORE, f"{more} wait to be told" if more else ""),
        (facts.INCIDENTS, _named(incidents)),
        (facts.NEXT, f"sre incident list; raise max_per_hour of route {made.route} if this came too late"),
    ]
    return Message(
        incident_id=made.id,
        event="open",
        severity=made.severity,
        scope=made.scope,
        reason=OVER_LIMIT_REASON,
        summary=f"{len(left)} alerts were over the limit per hour and are told now ({goes_on}): {shown}",
        at_wall=wall,
        facts=tuple((name, value) for name, value in said if value),
    )


def once_message(
    name: str, severity: str, scope: str, summary: str, wall: float, next_: str, *, reason: str = ""
) -> Message:
    """Return a message that is told at most once an hour per ``name`` and has no end."""
    stamp = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    return without_end(
        Message(
            incident_id=f"{name}-{stamp:%Y%m%d-%H}",
            event="blind",
            severity=severity,
            scope=scope,
            reason=reason or name,
            summary=summary,
            at_wall=wall,
            facts=((facts.NEXT, next_),),
        )
    )


def canary_message(identifier: str, wall: float) -> Message:
    """Return what the channels are sent when a canary came through."""
    return Message(
        incident_id=f"canary-{identifier}",
        event="test",
        severity="page",  # it takes the way of a page: quiet hours do not hold it, nor does a digest take it in
        scope=PROOF,
        reason="test",
        summary="A test message; nothing is wrong.",
        at_wall=wall,
    )


def _named(incidents: Sequence[str]) -> str:
    beyond = len(incidents) - INCIDENTS_NAMED
    return ", ".join(incidents[:INCIDENTS_NAMED]) + (f" (+{beyond})" if beyond > 0 else "")


def _runbook(alert: Alert) -> str:
    """The alert's own link, or the command that shows our page of its name."""
    given = alert.annotations.get("runbook_url", "")
    if is_web_address(given):
        return given
    return f"sre runbook show {alert.name}" if f"/{alert.name}.md" in given and alert.name.isalnum() else ""


def _address(text: str) -> str:
    return text if is_web_address(text) else ""
