"""What a notification would lead to under a configuration: the decision without the store."""

from __future__ import annotations

from typing import Any

from sre.breaker.policy import policy_of
from sre.notify.alert_decide import Decision, Intake
from sre.notify.alert_draft import Moment
from sre.notify.alert_places import trip_refusal
from sre.notify.alert_records import EngineNow, GuardNow, Known
from sre.notify.alert_routes import Routes
from sre.notify.alerts import Payload
from sre.settings.models import Root


def explained(root: Root, payload: Payload) -> dict[str, Any]:
    """
    Return what each alert would lead to, as JSON-able data. Its moment is the start of the newest alert; every breaker
    is taken as closed, every engine as acting where the configuration lets the guard act.
    """
    policy = policy_of(root)
    intake = Intake(root.webhook, Routes(root.webhook), policy.listeners)
    guard = GuardNow(
        {
            engine.name: EngineNow(
                engine.served_name, f"{engine.host}:{engine.port}", "closed", policy.acts_on(engine.kind != "external")
            )
            for engine in root.stack.engines
        }
    )
    wall = max((alert.starts_wall for alert in payload.alerts), default=0.0)
    decision = Decision(intake, Known(), guard, Moment(wall, 0.0))
    decision.take(payload)
    changes = decision.changes()
    alerts = []
    for alert, (_, verdict) in zip(payload.alerts, changes.verdicts, strict=True):
        plan = intake.routes.plan(alert.labels)
        trips = []
        for trip in plan.trips:
            refusal = trip_refusal(trip, guard, wall - alert.starts_wall)
            trips.append(
                {"scope": trip.scope, "target": trip.target, "refused": None if refusal is None else refusal.value}
            )
        alerts.append(
            {
                "alertname": alert.name,
                "status": "firing" if alert.firing else "resolved",
                "severity": plan.severity,
                "verdict": verdict.value,
                "join_key": intake.routes.join_key(alert.labels),
                "routes": [{"route": t.route, "why": t.why.value, "detail": t.detail} for t in plan.tried],
                "trips": trips,
                "cut": alert.cut,
            }
        )
    told: dict[tuple[str, str, str], list[str]] = {}
    for item in changes.outbox:
        key = (item.message.incident_id, item.message.event, item.message.summary)
        told.setdefault(key, []).append(item.channel)
    return {
        "alerts": alerts,
        "unreadable": [{"index": b.index, "alertname": b.name, "why": b.why.value} for b in payload.bad],
        "truncated": payload.truncated,
        "messages": [{"event": key[1], "summary": key[2], "channels": names} for key, names in told.items()],
    }
