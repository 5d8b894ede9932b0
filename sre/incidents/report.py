"""What is told about an incident: one list of events, and a text for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from sre.actions.records import JournalRow, OutboxRow, OutboxState
from sre.incidents.records import Incident
from sre.incidents.standing import Standing
from sre.printable import rows

EVIDENCE_LINES_SHOWN = 15

HEADLINE_FACTS = ("scope", "reason", "severity", "summary")
NOT_FACTS = ("id", "opened_wall", "resolved_wall")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, whoever recorded it."""

    at_wall: float
    source: str
    """journal | outbox"""
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known about one incident."""

    incident: Incident
    events: Sequence[Event]
    notifications: Sequence[OutboxRow]
    evidence: Mapping[str, str] = field(default_factory=dict)
    """Text by name."""
    kernel_lines: Sequence[str] = ()
    problems: Sequence[str] = ()
    """What could not be read, as sentences."""
    standing: Standing | None = None


def events(incident: Incident, journal: Sequence[JournalRow], outbox: Sequence[OutboxRow]) -> list[Event]:
    """Return everything recorded about ``incident`` in order of wall time."""
    found = []
    for row in journal:
        entry = row.entry
        what = f"{entry.action} {entry.target}" if entry.action else entry.target
        found.append(Event(entry.at_wall, "journal", entry.kind, f"{what}: {entry.reason}"))
    for message in outbox:
        found.append(Event(message.created_wall, "outbox", "queued", f"{message.message.event} for {message.channel}"))
        if message.sent_wall is not None:
            after = max(0.0, message.sent_wall - message.created_wall)
            text = f"{message.message.event} to {message.channel}, {after:.1f} s after it was queued"
            found.append(Event(message.sent_wall, "outbox", "sent", text))
    return sorted(found, key=lambda event: event.at_wall)


def as_json(report: Report) -> dict[str, Any]:
    """Return ``report`` as a JSON-able mapping."""
    incident, stands = report.incident, report.standing
    return {
        "id": incident.id,
        "state": None if stands is None else stands.state,
        "opened_wall": incident.opened_wall,
        "resolved_wall": incident.resolved_wall if stands is None else stands.resolved_wall,
        "acknowledged_wall": None if stands is None else stands.acknowledged_wall,
        "acknowledged_by": None if stands is None else stands.acknowledged_by,
        "note": None if stands is None else stands.note,
        "escalations": 0 if stands is None else stands.level,
        "facts": dict(incident.facts),
        "in_flight": None if incident.contexts is None else len(incident.contexts),
        "contexts": incident.contexts,
        "events": [asdict(event) for event in report.events],
        "notifications": [notification_json(row) for row in report.notifications],
        "evidence": dict(report.evidence),
        "kernel_lines": list(report.kernel_lines),
        "problems": [*incident.damage, *report.problems],
    }


def next_try_in_seconds(row: OutboxRow) -> float | None:
    """Return when a waiting message is due; None where that is no matter of seconds, or it is finished or under way."""
    if row.state not in (OutboxState.HELD, OutboxState.PENDING) or row.waits_for in ("quiet_hours", "gathering"):
        return None
    return round(max(0.0, row.due_in_seconds), 1)


def notification_json(row: OutboxRow) -> dict[str, Any]:
    """Return a message of the outbox as a JSON-able mapping, without its text."""
    return {
        "id": row.id,
        "incident_id": row.message.incident_id,
        "event": row.message.event,
        "channel": row.channel,
        "level": row.level,
        "severity": row.severity,
        "state": row.state.value,
        "waits_for": row.waits_for or None,
        "digest": row.digest,
        "fallback_of": row.fallback_of,
        "fell_back": row.fell_back,
        "attempts": row.attempts,
        "unknown_outcomes": row.unknown_outcomes,
        "next_try_in_seconds": next_try_in_seconds(row),
        "last_error": row.last_error,
        "created_wall": row.created_wall,
        "sent_wall": row.sent_wall,
    }


def as_text(report: Report) -> str:
    """Return ``report`` for a person at a terminal."""
    incident = report.incident
    lines = [*_head(incident, report.standing), *_answered(report.standing), *_facts(incident)]
    lines += ["", "in flight when it opened", *_contexts(incident)]
    lines += ["", "what happened (UTC)", *timeline_lines(report.events, began=incident.opened_wall)]
    lines += ["", "notifications", *(_notification(row) for row in report.notifications)]
    if not report.notifications:
        lines.append("  none recorded")
    for name, text in report.evidence.items():
        shown = text.rstrip("\n").splitlines()[-EVIDENCE_LINES_SHOWN:]
        lines += ["", f"evidence {name} (last {len(shown)} lines)", *(f"  {line}" for line in shown)]
    if report.kernel_lines:
        lines += ["", "kernel log, NVIDIA driver", *(f"  {line}" for line in report.kernel_lines)]
    problems = [*incident.damage, *report.problems]
    if problems:
        lines += ["", "could not be read", *(f"  {problem}" for problem in problems)]
    return rows(lines)


def timeline_lines(found: Sequence[Event], *, began: float) -> list[str]:
    """Return ``found`` one a line, with the time since ``began``."""
    if not found:
        return ["  nothing recorded"]
    return [
        f"  {moment(event.at_wall)}  {event.at_wall - began:+9.2f} s  {event.kind:<14} {event.text}" for event in found
    ]


def moment(wall: float) -> str:
    """Return UTC as people write it, to the second."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _head(incident: Incident, stands: Standing | None) -> list[str]:
    facts = incident.facts
    resolved = incident.resolved_wall if stands is None else stands.resolved_wall
    lines = [f"{incident.id}  {_state(resolved, stands)}"]
    lines += [f"  {name + ':':<10} {_value(facts[name])}" for name in HEADLINE_FACTS if name in facts]
    lines.append(f"  {'opened:':<10} {moment(incident.opened_wall)} UTC")
    if resolved is not None:
        lines.append(f"  {'lasted:':<10} {max(0.0, resolved - incident.opened_wall):.1f} s")
    return lines


def _state(resolved: float | None, stands: Standing | None) -> str:
    """As ``Standing.state``, with since when and by whom."""
    if resolved is not None:
        return f"resolved {moment(resolved)} UTC"
    if stands is not None and stands.acknowledged_wall is not None:
        return f"acknowledged by {stands.acknowledged_by} since {moment(stands.acknowledged_wall)} UTC, not resolved"
    return "escalated, nobody acknowledged it" if stands is not None and stands.level else "open"


def _answered(stands: Standing | None) -> list[str]:
    """Who acknowledged it, or how often nobody did."""
    if stands is None:
        return []
    lines = []
    if stands.level:
        lines.append(f"  {'escalated:':<10} {stands.level} times")
    if stands.acknowledged_wall is not None:
        note = f": {stands.note}" if stands.note else ""
        lines.append(f"  {'acked:':<10} {moment(stands.acknowledged_wall)} UTC by {stands.acknowledged_by}{note}")
    return lines


def _facts(incident: Incident) -> list[str]:
    rest = [name for name in incident.facts if name not in HEADLINE_FACTS + NOT_FACTS]
    if not rest:
        return []
    return ["", "what was seen", *(f"  {name}: {_value(incident.facts[name])}" for name in rest)]


def _contexts(incident: Incident) -> list[str]:
    if incident.contexts is None:
        return ["  not recorded"]
    shown = incident.contexts[:10]
    lines = [f"  {len(incident.contexts)} requests"]
    lines += [
        f"    {c.get('request_id')}  {c.get('path')}  {c.get('model')}  from {c.get('client')}"
        f"  {c.get('bytes_sent')} bytes sent"
        for c in shown
    ]
    if len(incident.contexts) > len(shown):
        lines.append(f"    and {len(incident.contexts) - len(shown)} more in contexts.jsonl")
    return lines


def _notification(row: OutboxRow) -> str:
    line = f"  {row.message.event:<9} {row.channel:<16} {row.state.value}"
    if row.state is OutboxState.SENT and row.sent_wall is not None:
        return f"{line} {moment(row.sent_wall)}"
    if row.state is OutboxState.DIGESTED:
        return f"{line} in {row.digest}"
    tries = f", {row.attempts} tries" if row.attempts else ""
    return f"{line}{tries}{': ' + row.last_error if row.last_error else ''}"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
