"""
Rows of the alert tables as values. A row that is damaged costs what is damaged of it and nothing else: it is read as
far as it can be, and says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sre.notify.alert_records import AlertIncident, DamagedTrip, Episode, PendingTrip
from sre.notify.alert_routes import Trip

EPISODE = "fingerprint, starts_ns, name, severity, labels, summary, seen_wall, firing_wall, resolved_wall, incident_id"
INCIDENT = (
    "id, number, join_key, name, severity, scope, route, summary, opened_wall, listed, told, members, firing,"
    " resolved_wall, told_in"
)
TRIP = "number, trip, fingerprint, starts_ns, labels, annotations, at_wall, at_monotonic, boot_id"


def episode_of(row: Sequence[Any], now_wall: float) -> tuple[Episode, bool]:
    """Return a firing, and whether its row is whole; of one that is not, what can be read."""
    fingerprint, starts_ns, name, severity, labels, summary, seen, firing, resolved, incident = row
    try:
        read, whole = texts(labels), True
    except ValueError:
        # What an alert is known by is beside the labels.
        read, whole = {"alertname": str(name), "severity": str(severity)}, False
    if not (_is_number(seen) and all(value is None or _is_number(value) for value in (firing, resolved))):
        whole = False
    episode = Episode(
        fingerprint=str(fingerprint),
        starts_ns=starts_ns,
        name=str(name),
        severity=str(severity),
        labels=read,
        summary=str(summary),
        seen_wall=_number(seen, now_wall),
        # A moment that cannot be read is one all the same: it fires, it is over.
        firing_wall=None if firing is None else _number(firing, now_wall),
        resolved_wall=None if resolved is None else _number(resolved, now_wall),
        incident_id=None if incident is None else str(incident),
    )
    return episode, whole


def incident_of(row: Sequence[Any]) -> AlertIncident:
    identifier, number, join_key, name, severity, scope, route, summary = row[:8]
    opened, listed, told, members, firing, ended, told_in = row[8:]
    return AlertIncident(
        id=identifier,
        number=number,
        join_key=join_key,
        name=name,
        severity=severity,
        scope=scope,
        route=route,
        summary=summary,
        opened_wall=_number(opened, 0.0),
        listed=bool(listed),
        told=bool(told),
        members=int(_number(members, 1)),
        firing=int(_number(firing, 1)),
        resolved_wall=None if ended is None else _number(ended, 0.0),
        told_in=None if told_in is None else str(told_in),
    )


def trip_of(row: Sequence[Any], now_monotonic: float, boot_id: str) -> PendingTrip | DamagedTrip:
    """
    Return a trip that is written down, or that it cannot be read.

    One of another boot is as old as can be: whatever the clocks say, the processes that its evidence was about are
    gone with that boot.
    """
    number, trip, fingerprint, starts_ns, labels, notes, at_wall, at_monotonic, boot = row
    try:
        if not (_is_number(at_wall) and _is_number(at_monotonic) and isinstance(starts_ns, int)):
            raise ValueError("a moment is no number")
        return PendingTrip(
            trip=trip_from_text(trip),
            fingerprint=str(fingerprint),
            starts_ns=starts_ns,
            labels=texts(labels),
            annotations=texts(notes),
            at_wall=at_wall,
            at_monotonic=at_monotonic,
            number=number,
            age_seconds=max(0.0, now_monotonic - at_monotonic) if boot == boot_id else math.inf,
        )
    except ValueError:
        key = (str(fingerprint), starts_ns) if isinstance(starts_ns, int) else None
        return DamagedTrip(number, key, str(trip))


def trip_text(trip: Trip) -> str:
    """Return ``trip`` as ``trip_from_text`` reads it."""
    return json.dumps({name: getattr(trip, name) for name in Trip.__slots__})


def trip_from_text(text: object) -> Trip:
    """Raises ValueError."""
    found = _object(text)
    for name in ("route", "scope", "target", "label"):
        if not isinstance(found.get(name), str):
            raise ValueError(f"{name} is no text")
    for name in ("max_per_hour", "max_evidence_age_seconds"):
        if not _is_number(found.get(name)):
            raise ValueError(f"{name} is no number")
    try:
        return Trip(**found)
    except TypeError as error:
        raise ValueError(str(error)) from error


def texts(text: object) -> Mapping[str, str]:
    """Return labels or annotations. Raises ValueError."""
    found = _object(text)
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError("a value is no text")
    return found


def _object(text: object) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str | bytes) else None
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any, otherwise: float) -> float:
    return value if _is_number(value) else otherwise
