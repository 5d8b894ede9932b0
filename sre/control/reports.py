"""What is said of one supervised process."""

from __future__ import annotations

from sre.actions.ports import EngineStatus
from sre.control.unit import Unit
from sre.signals.types import ProcessState
from sre.stack.status import ProcessReport


def process_report(unit: Unit, now: float) -> ProcessReport:
    """For ``sre status``."""
    spec = unit.spec
    return ProcessReport(
        name=spec.name,
        role=spec.role.value,
        kind=spec.kind,
        state=unit.state,
        identity=unit.identity,
        uptime_seconds=None if unit.identity is None or unit.started_at is None else now - unit.started_at,
        adopted=unit.adopted,
        restarts=unit.history.restarts,
        last_exit=unit.last_exit,
        next_start_in_seconds=None if unit.next_start_at is None else max(0.0, unit.next_start_at - now),
        problem=unit.problem,
        address=f"{spec.host}:{spec.port}" if spec.port else None,
        log_path=spec.log_path or None,
    )


def engine_status(unit: Unit) -> EngineStatus:
    """For the guard."""
    spec = unit.spec
    return EngineStatus(
        name=spec.name,
        kind=spec.kind,
        pool=spec.pool,
        host=spec.host,
        port=spec.port,
        process=unit.state,
        identity=unit.identity,
        ready_at=unit.ready_at if unit.state is ProcessState.READY else None,
        restarts=unit.history.restarts,
        last_exit=unit.last_exit,
        next_start_at=unit.next_start_at,
        log_path=spec.log_path,
        last_exit_asked=unit.last_exit_asked,
    )
