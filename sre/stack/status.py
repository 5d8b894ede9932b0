"""The supervisor's answers as values and as JSON: one shape for its API, its client and ``sre status``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sre.actions.ports import EngineStatus
from sre.signals.types import ProcessIdentity, ProcessState
from sre.stack.ledger import identity_from_json, identity_to_json


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """One process as ``sre status`` shows it."""

    name: str
    role: str
    kind: str
    state: ProcessState
    identity: ProcessIdentity | None
    uptime_seconds: float | None
    """Since its start; None while it does not run."""
    adopted: bool
    """Whether an earlier ``sre up`` started it."""
    restarts: int
    last_exit: str | None
    next_start_in_seconds: float | None
    problem: str | None
    """Why it cannot be started, and what to do."""
    address: str | None
    log_path: str | None


@dataclass(frozen=True, slots=True)
class StackReport:
    """All of the stack."""

    name: str
    phase: str
    """starting, ready, degraded (was ready, something is down), draining, stopping."""
    supervisor: ProcessIdentity
    gateway_url: str
    state_dir: str
    metrics_url: str | None
    processes: tuple[ProcessReport, ...]
    requests_active: int | None
    """Requests open at the gateway; None: not seen."""
    notes: tuple[str, ...] = ()
    """What a person should know: foreign orphans, a ledger that could not be read."""
    message: str = ""
    """The latest progress line."""


def process_report_to_json(report: ProcessReport) -> dict[str, Any]:
    """JSON of one process."""
    return {
        "name": report.name,
        "role": report.role,
        "kind": report.kind,
        "state": report.state.value,
        "identity": identity_to_json(report.identity),
        "uptime_seconds": report.uptime_seconds,
        "adopted": report.adopted,
        "restarts": report.restarts,
        "last_exit": report.last_exit,
        "next_start_in_seconds": report.next_start_in_seconds,
        "problem": report.problem,
        "address": report.address,
        "log_path": report.log_path,
    }


def process_report_from_json(data: Mapping[str, Any]) -> ProcessReport:
    """Read one process. Raises KeyError, TypeError, ValueError on anything else."""
    return ProcessReport(
        name=str(data["name"]),
        role=str(data["role"]),
        kind=str(data["kind"]),
        state=ProcessState(data["state"]),
        identity=identity_from_json(data["identity"]),
        uptime_seconds=_number(data["uptime_seconds"]),
        adopted=bool(data["adopted"]),
        restarts=int(data["restarts"]),
        last_exit=_text(data["last_exit"]),
        next_start_in_seconds=_number(data["next_start_in_seconds"]),
        problem=_text(data["problem"]),
        address=_text(data["address"]),
        log_path=_text(data["log_path"]),
    )


def stack_report_to_json(report: StackReport) -> dict[str, Any]:
    """JSON of the stack: the answer of GET /status."""
    return {
        "name": report.name,
        "phase": report.phase,
        "supervisor": identity_to_json(report.supervisor),
        "gateway_url": report.gateway_url,
        "state_dir": report.state_dir,
        "metrics_url": report.metrics_url,
        "processes": [process_report_to_json(process) for process in report.processes],
        "requests_active": report.requests_active,
        "notes": list(report.notes),
        "message": report.message,
    }


def stack_report_from_json(data: Mapping[str, Any]) -> StackReport:
    """Read the answer of GET /status. Raises KeyError, TypeError, ValueError on anything else."""
    supervisor = identity_from_json(data["supervisor"])
    if supervisor is None:
        raise ValueError("no supervisor identity")
    active = data["requests_active"]
    return StackReport(
        name=str(data["name"]),
        phase=str(data["phase"]),
        supervisor=supervisor,
        gateway_url=str(data["gateway_url"]),
        state_dir=str(data["state_dir"]),
        metrics_url=_text(data["metrics_url"]),
        processes=tuple(process_report_from_json(process) for process in data["processes"]),
        requests_active=None if active is None else int(active),
        notes=tuple(str(note) for note in data["notes"]),
        message=str(data["message"]),
    )


def engine_status_to_json(status: EngineStatus) -> dict[str, Any]:
    """JSON of one engine: an element of the answer of GET /engines."""
    return {
        "name": status.name,
        "kind": status.kind,
        "pool": status.pool,
        "host": status.host,
        "port": status.port,
        "process": status.process.value,
        "identity": identity_to_json(status.identity),
        "ready_at": status.ready_at,
        "restarts": status.restarts,
        "last_exit": status.last_exit,
        "next_start_at": status.next_start_at,
        "log_path": status.log_path,
        "last_exit_asked": status.last_exit_asked,
    }


def engine_status_from_json(data: Mapping[str, Any]) -> EngineStatus:
    """Read one engine. Raises KeyError, TypeError, ValueError on anything else."""
    return EngineStatus(
        name=str(data["name"]),
        kind=str(data["kind"]),
        pool=str(data["pool"]),
        host=str(data["host"]),
        port=int(data["port"]),
        process=ProcessState(data["process"]),
        identity=identity_from_json(data["identity"]),
        ready_at=_number(data["ready_at"]),
        restarts=int(data["restarts"]),
        last_exit=_text(data["last_exit"]),
        next_start_at=_number(data["next_start_at"]),
        log_path=str(data["log_path"]),
        last_exit_asked=_yes_no(data["last_exit_asked"]),
    )


def _yes_no(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true, false nor null")
    return value


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
