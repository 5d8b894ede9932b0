"""A sender in a few lines, for tests of what it is given."""

from __future__ import annotations

from datetime import UTC, time

from sre.actions.records import OutboxMessage, OutboxRow
from sre.adapters.store import GuardStore
from sre.notify.policy import Dispatch, Storm
from sre.notify.quiet_hours import QuietHours
from tests.store.samples import message

QUIET = QuietHours(time(22), time(7), UTC, frozenset({"ticket", "info"}))
STORM = Dispatch(Storm(3, 100.0))
NIGHT = Dispatch(quiet_hours=QUIET)


def ticket(channel: str = "mail", incident: str = "t", event: str = "open") -> OutboxMessage:
    severity = "info" if event == "resolve" else "ticket"
    base = message(incident, event)
    return OutboxMessage(
        type(base)(**{f: getattr(base, f) for f in base.__dataclass_fields__} | {"severity": severity}), channel
    )


def take(store: GuardStore, dispatch: Dispatch = STORM, channel: str = "mail") -> OutboxRow | None:
    rows = store.lease(owner="me", seconds=30, channels=[channel], dispatch=dispatch)
    return rows[0] if rows else None


def send(store: GuardStore, dispatch: Dispatch = STORM, channel: str = "mail") -> list[OutboxRow]:
    """Deliver everything that may go now."""
    sent = []
    while (row := take(store, dispatch, channel)) is not None:
        assert store.mark_sent(row.id, owner="me")
        sent.append(row)
    return sent


def told(rows: list[OutboxRow]) -> list[str]:
    return ["digest" if r.is_digest else f"{r.message.event} {r.message.incident_id}" for r in rows]
