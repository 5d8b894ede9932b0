"""Alerts as Alertmanager sends them, and an intake on a real store with a clock that moves when told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sre.actions.records import JournalEntry, OutboxMessage
from sre.actions.types import Message
from sre.adapters.store import GuardStore
from sre.adapters.store.alerts import AlertBook
from sre.notify.alert_decide import Intake
from sre.notify.alert_draft import Moment
from sre.notify.alert_later import Later
from sre.notify.alert_records import Changes, EngineNow, GuardNow, Known, PendingTrip, Verdict, Wanted
from sre.notify.alert_routes import Routes
from sre.notify.alerts import Payload, parse
from sre.settings.webhook import WebhookSettings
from sre.testing.clock import ManualClock

CHANNELS = ("mail", "sms")
ZERO = "0001-01-01T00:00:00Z"


def rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat().replace("+00:00", "Z")


def one(
    name: str = "VllmQueueGrowing",
    *,
    starts: float = 1_800_000_000.0,
    status: str = "firing",
    severity: str = "page",
    fingerprint: str | None = None,
    annotations: dict[str, str] | None = None,
    **labels: str,
) -> dict[str, Any]:
    """One alert of a payload."""
    found = {"alertname": name, "severity": severity, **labels}
    return {
        "status": status,
        "labels": found,
        "annotations": {"summary": f"{name} is bad", "description": "It is."} if annotations is None else annotations,
        "startsAt": rfc3339(starts),
        "endsAt": ZERO if status == "firing" else rfc3339(starts + 60),
        "generatorURL": "http://prometheus/graph?g0.expr=up",
        "fingerprint": fingerprint or f"{abs(hash(tuple(sorted(found.items())))):016x}"[:16],
    }


def document(*alerts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A payload."""
    return {
        "version": "4",
        "groupKey": '{}:{alertname="X"}',
        "truncatedAlerts": 0,
        "status": "firing" if any(a.get("status") == "firing" for a in alerts) else "resolved",
        "receiver": "sre-page",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "alerts": list(alerts),
        **more,
    }


def body(*alerts: dict[str, Any], **more: Any) -> bytes:
    return json.dumps(document(*alerts, **more)).encode()


def payload(*alerts: dict[str, Any], **more: Any) -> Payload:
    return parse(body(*alerts, **more))


ENGINES = {
    "sim-0": EngineNow("sim-7b", "127.0.0.1:8000", "closed", True),
    "sim-1": EngineNow("sim-7b", "127.0.0.1:8001", "closed", True),
    "solo": EngineNow("solo-7b", "127.0.0.1:8002", "closed", True),
}
GUARD = GuardNow(ENGINES)


def everybody(message: Message) -> Sequence[str]:
    """As ``Policy.listeners`` of channels that want pages and tickets."""
    quiet = message.event in ("open", "escalate", "blind") and message.severity == "info"
    return () if quiet else CHANNELS


class Desk:
    """Decides on a real store."""

    def __init__(self, folder: Path, settings: WebhookSettings | None = None, guard: GuardNow = GUARD) -> None:
        self.clock = ManualClock()
        self.path = folder / "guard.db"
        self.store = GuardStore.open(self.path, clock=self.clock, boot_id="boot")
        self.book = AlertBook(self.store)
        self.guard = guard
        self.settings = settings or WebhookSettings()
        self.intake = Intake(self.settings, Routes(self.settings), everybody)

    def close(self) -> None:
        self.store.close()

    def take(self, *alerts: dict[str, Any], **more: Any) -> list[Verdict]:
        return [verdict for _, verdict in self.change(payload(*alerts, **more)).verdicts]

    def change(self, *payloads: Payload) -> Changes:
        def decide(known: Known) -> Changes:
            decision = self.decision(known)
            for each in payloads:
                decision.take(each)
            return decision.changes()

        wanted = self.intake.wanted((a for p in payloads for a in p.alerts), self.guard)
        return self.book.change(wanted, decide)

    def decision(self, known: Known) -> Later:
        return Later(self.intake, known, self.guard, Moment(self.clock.wall(), self.clock.monotonic()))

    def later(self, wanted: Wanted, what: Callable[[Later], None]) -> Changes:
        """What time brings."""

        def decide(known: Known) -> Changes:
            decision = self.decision(known)
            what(decision)
            return decision.changes()

        return self.book.change(wanted, decide)

    def pending(self) -> PendingTrip:
        (found,) = self.book.pending_trips()
        assert isinstance(found, PendingTrip)
        return found

    def tell_of_guard(self, incident: str, severity: str = "page") -> None:
        """The guard tells of an incident of its own."""
        message = Message(incident, "open", severity, "engine sim-0", "hang", "sim-0 tripped: hang", self.clock.wall())
        self.store.commit(state=None, outbox=[OutboxMessage(message, channel) for channel in CHANNELS])

    def messages(self, channel: str = "mail") -> list[Message]:
        return [row.message for row in self.store.outbox() if row.channel == channel]

    def events(self, channel: str = "mail") -> list[str]:
        return [message.event for message in self.messages(channel)]

    def journal(self) -> list[JournalEntry]:
        return [row.entry for row in self.store.journal()]

    def open_incidents(self) -> int:
        return self.book.counts()[1]


@contextmanager
def desk_of(folder: Path, chosen: WebhookSettings, guard: GuardNow = GUARD) -> Iterator[Desk]:
    made = Desk(folder, chosen, guard)
    try:
        yield made
    finally:
        made.close()
