"""Snapshots as JSON: what the guard records, ``sre breaker replay`` reads back."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any

from sre.signals.types import (
    CanaryResult,
    CanaryVerdict,
    EngineSeen,
    GatewaySeen,
    GpuDetails,
    GpuSeen,
    OutcomeCounts,
    ProcessIdentity,
    ProcessState,
    Reading,
    Seen,
    Snapshot,
)

TRACE_VERSION = 1
"""Version of a trace line; raised when a reader of the old one would misread it."""


class TraceError(ValueError):
    """A trace line is not a snapshot of a version we read."""


def _plain(value: Any) -> Any:
    """Dataclasses to dicts, enums to values, infinities to None; NaN cannot occur in a Reading."""
    if isinstance(value, Reading):
        at = value.sampled_at if math.isfinite(value.sampled_at) else None
        return [value.value, at] if value.seen is Seen.OK else [None, at, value.seen.value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return ``snapshot`` as JSON-able data."""
    return {"version": TRACE_VERSION, **_plain(snapshot)}


def _reading(data: Any) -> Reading:
    seen = Seen(data[2]) if len(data) > 2 else Seen.OK
    at = -math.inf if data[1] is None else float(data[1])
    if seen is not Seen.OK:
        return Reading(None, at, seen)
    return Reading.of(float(data[0]), at)


def _engine(data: Mapping[str, Any]) -> EngineSeen:
    identity, outcomes, canary = data["identity"], data["outcomes"], data["canary"]
    return EngineSeen(
        name=data["name"],
        pool=data["pool"],
        managed=data["managed"],
        process=ProcessState(data["process"]),
        identity=ProcessIdentity(**identity) if identity else None,
        ready_at=data["ready_at"],
        last_exit_asked=data.get("last_exit_asked"),
        in_flight=_reading(data["in_flight"]),
        steps_total=_reading(data["steps_total"]),
        sent_bytes_total=_reading(data["sent_bytes_total"]),
        signals={k: _reading(v) for k, v in data["signals"].items()},
        outcomes=OutcomeCounts(**outcomes) if outcomes else None,
        paused=data["paused"],
        canary=CanaryResult(**{**canary, "verdict": CanaryVerdict(canary["verdict"])}) if canary else None,
        gpus=tuple(data["gpus"]),
    )


def _gpu(data: Mapping[str, Any]) -> GpuSeen:
    readings = {
        k: _reading(data[k]) for k in ("memory_used_ratio", "temperature_celsius", "utilization_ratio", "power_watts")
    }
    return GpuSeen(
        index=data["index"],
        uuid=data["uuid"],
        source=data["source"],
        injected=data["injected"],
        processes=tuple((p[0], p[1]) for p in data["processes"]),
        details=gpu_details(data.get("details")),  # traces of older guards have none
        **readings,
    )


def gpu_details(data: Mapping[str, Any] | None) -> GpuDetails | None:
    """Return the details that ``data`` spells out. Raises KeyError, TypeError or ValueError."""
    if data is None:
        return None
    return GpuDetails(
        **{
            **data,
            "throttled": tuple((str(reason), bool(now)) for reason, now in data["throttled"]),
            "xid_events": tuple((int(xid), int(events)) for xid, events in data["xid_events"]),
        }
    )


def from_json(data: Mapping[str, Any]) -> Snapshot:
    """
    Return the snapshot that ``to_json`` made ``data`` of.

    Raises:
        TraceError: Not a snapshot, or of a version this reader does not know.
    """
    if data.get("version") != TRACE_VERSION:
        raise TraceError(f"trace version {data.get('version')!r} is not {TRACE_VERSION}; record the trace again")
    try:
        gateway = data["gateway"]
        return Snapshot(
            at=float(data["at"]),
            wall=float(data["wall"]),
            engines={k: _engine(v) for k, v in data["engines"].items()},
            gpus={int(k): _gpu(v) for k, v in data["gpus"].items()},
            gateway=GatewaySeen(**{**gateway, "requests_active": _reading(gateway["requests_active"])})
            if gateway
            else None,
            supervisor_reachable=bool(data["supervisor_reachable"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise TraceError(f"not a snapshot: {type(error).__name__}: {error}") from error
