"""An exporter that has seen everything it can show."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from sre.actions.records import OutboxLoad
from sre.actions.types import FinishedRequest, GatewayDesired, Outcome
from sre.breaker.decide import Decision
from sre.breaker.memory import Memory
from sre.breaker.state import GuardState
from sre.metrics.signals import QUEUE_SECONDS_TOTAL, QUEUED_REQUESTS_TOTAL, REQUESTS_RUNNING
from sre.servers.exporter import Metrics
from sre.servers.exporter_host import HostSource, HostView
from sre.servers.exporter_webhook import WebhookMetrics
from sre.signals.host import (
    CpuTimes,
    DiskCounters,
    HostCounters,
    MemoryBytes,
    NetworkCounters,
    PageFaults,
    TcpCounters,
)
from sre.signals.types import (
    CanaryResult,
    CanaryVerdict,
    EngineSeen,
    GatewaySeen,
    GpuDetails,
    GpuSeen,
    ProcessIdentity,
    ProcessState,
    Reading,
    Snapshot,
)
from sre.wiring.guard import Numbers

ENGINE, POOL = "sim-0", "sim-7b"
HOST = HostCounters(
    at=1.0,
    disks=(DiskCounters("sda", 1, 2, 3, 4, 5, 6, 7, 8),),
    networks=(NetworkCounters("eth0", 1, 2, 3, 4, 5, 6, 7, 8),),
    tcp=TcpCounters(1, 2),
    cpu=CpuTimes({"user": 1.0, "iowait": 2.0}, 4),
    faults=PageFaults(1, 2),
    memory=MemoryBytes(2, 1),
)
DETAILS = GpuDetails(
    sampled_at=1.0,
    memory_used_bytes=40,
    memory_total_bytes=80,
    memory_temperature_celsius=70.0,
    nvlink_received_bytes=5,
    nvlink_sent_bytes=6,
    ecc_uncorrected_errors=1,
    row_remap_failed=False,
    throttled=(("sw_power_cap", True), ("hw_slowdown", False)),
    xid_last=79,
    xid_events=((79, 2), (999, 1)),
)


def gpu(index: int = 0, details: GpuDetails | None = DETAILS, **changes: Any) -> GpuSeen:
    readings = {name: Reading.of(value, 1.0) for name, value in
                (("memory_used_ratio", 0.5), ("temperature_celsius", 60.0), ("utilization_ratio", 0.4),
                 ("power_watts", 200.0))}  # fmt: skip
    return GpuSeen(index, f"GPU-{index}", "nvml", **{**readings, "details": details, **changes})


def engine(at: float, pid: int = 1) -> EngineSeen:
    signals = {REQUESTS_RUNNING: 3.0, QUEUE_SECONDS_TOTAL: at, QUEUED_REQUESTS_TOTAL: 10 * at}
    return EngineSeen(
        ENGINE,
        POOL,
        True,
        process=ProcessState.READY,
        identity=ProcessIdentity(pid, pid),
        in_flight=Reading.of(3.0, at),
        steps_total=Reading.of(at, at),
        signals={name: Reading.of(value, at) for name, value in signals.items()},
    )


def snapshot(at: float, gpus: tuple[GpuSeen, ...] = (gpu(),), pid: int = 1) -> Snapshot:
    return Snapshot(at, 1e9 + at, {ENGINE: engine(at, pid)}, {g.index: g for g in gpus}, GatewaySeen(True, at))


def finished(outcome: Outcome, **changes: Any) -> FinishedRequest:
    base = {
        "request_id": "r",
        "path": "/v1/completions",
        "model": POOL,
        "engine": ENGINE,
        "client": "c",
        "started_wall": 1.0,
        "duration_seconds": 1.0,
        "status": 200,
        "outcome": outcome,
        "detail": "ok",
    }
    return FinishedRequest(**{**base, **changes})


DECISION = Decision(GuardState(), Memory(), GatewayDesired((), ()), {POOL: cast("Any", None)}, (), (), ())


class Desk:
    """What the guard's desk says, in the form the exporter reads."""

    no_step_for_seconds: float | None = None
    hang_after_seconds = 3.0

    def status(self) -> dict[str, Any]:
        return {
            "tick_age_seconds": 0.1,
            "mode": "auto",
            "store_up": True,
            "paused": None,
            "gateway_reachable": True,
            "incidents": [],
            "pools": {POOL: {"state": "closed", "reject_percent": 0}},
            "engines": {ENGINE: {"state": "closed", "pool": POOL, "weight_percent": 50, "restarts_left": 3}},
        }

    def explain(self, name: str) -> dict[str, Any]:
        rule = {"rule": "gpu-memory/gpu0", "verdict": "ok", "blind": False}
        return {
            "rules": [rule],
            "no_step_for_seconds": self.no_step_for_seconds,
            "hang_after_seconds": self.hang_after_seconds,
        }


class Host(HostSource):
    def __init__(self, view: HostView) -> None:
        self._view = view

    async def look(self) -> None:
        pass

    def view(self) -> HostView:
        return self._view


def numbers(gpus: Mapping[int, GpuSeen], problem: str | None = None) -> Numbers:
    made = Numbers()
    made.outbox = cast(
        "Any", SimpleNamespace(loads=lambda: [OutboxLoad("mail", 1, 0, 7.0)], unacknowledged=lambda: {"page": 2})
    )
    made.delivery = cast("Any", SimpleNamespace(statistics={"mail": SimpleNamespace(outcomes={"delivered": 1})}))
    made.gpu = cast("Any", SimpleNamespace(problem=problem, replaced=0, stuck=0))
    made.gateway = cast("Any", SimpleNamespace(registry=SimpleNamespace(odd_lines=0)))
    seen = SimpleNamespace(gpus=gpus, gateway=GatewaySeen(True, 1.0))
    made.guard = cast("Any", SimpleNamespace(snapshot=seen))
    made.chaos = cast("Any", SimpleNamespace(active={"gpu-hang": 1}))
    return made


def everything(host: HostView | None = None, gpus: tuple[GpuSeen, ...] = (gpu(),)) -> Metrics:
    """Metrics with a value in every series."""
    view = HostView(HOST, 0.1, up=True) if host is None else host
    counted = numbers({g.index: g for g in gpus})
    metrics = Metrics(counted, Host(view))
    webhook = WebhookMetrics(metrics)
    webhook.heartbeat(1e9)
    webhook.committed(0.01)
    counted.webhook = cast("Any", SimpleNamespace(metrics=webhook))
    counted.canaries = cast("Any", SimpleNamespace(active=lambda: {"c1"}))
    metrics.source = Desk()
    requests = [
        finished(Outcome.SUCCESS),
        finished(Outcome.NEUTRAL, detail="client_abort"),
        finished(Outcome.NEUTRAL, engine=None, status=503, detail="hang"),
    ]
    metrics.ticked(0.01, snapshot(1.0, gpus), DECISION, requests)
    metrics.ticked(0.01, snapshot(2.0, gpus), DECISION, [])
    metrics.canary(CanaryResult(ENGINE, 1, CanaryVerdict.SUCCESS, "ok", 1.0, 2.0, 0.5), POOL)
    metrics.acted("restart", "applied")
    metrics.failed("tick")
    metrics.opened("engine", ENGINE, "hang", True)
    return metrics
