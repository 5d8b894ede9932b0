"""The golden signals of disk, network, GPU, batching and requests on one screen, and what is wrong now."""

from __future__ import annotations

from collections.abc import Callable

from sre.metrics.prometheus import UP
from sre.monitoring.dashboards import parts
from sre.monitoring.dashboards.model import Dashboard, Kind, Limit, Panel, Query, Shown, State
from sre.monitoring.dashboards.resource import DISKS, NO_DEVICE, NODES
from sre.monitoring.dashboards.sources import (
    RUNNING,
    Sources,
    instance_variable,
    job_variable,
    matcher,
    model_variable,
    node_variable,
)
from sre.monitoring.levels import JOB
from sre.monitoring.promql import Expr, compare, count_by, either, max_by, sum_by

UID = "sre-overview"
SCREEN_HEIGHT = 24
"""Rows of Grafana's grid that a screen of 1080 lines shows without scrolling."""
GOLDEN = ("disk-await", "nic-missed-errors", "nvlink", "gpu-utilization", "kv-cache-usage", "latency-p99")
"""Keys of the panels of requirement A5."""


def overview(from_: Sources) -> Dashboard:
    """Everything on one screen; details are on the other dashboards."""
    from_ = from_.choosing("job", "node", "model", "instance")
    return Dashboard(
        UID,
        "sre: overview",
        "Golden signals of disk, network, GPU, batching and requests.",
        rows=(parts.row("", (*_tiles(from_), *_golden(from_), *_traffic(from_))),),
        variables=(
            job_variable(),
            node_variable(from_, *NODES, RUNNING),
            model_variable(),
            instance_variable(),
        ),
        annotations=parts.common_annotations(from_),
    )


def _tile(
    key: str, title: str, shown: Shown, expr: Expr | None, about: str, bad: str, *, limits: tuple[Limit, ...] = (),
    empty: str = "no traffic", alerts: tuple[str, ...] = (), bottom: float | None = 0.0, states: tuple[State, ...] = (),
) -> Panel | None:  # fmt: skip
    if expr is None:
        return None
    return Panel(
        key, title, Kind.STAT, shown, (Query(expr, ""),), about, bad, empty=empty, width=3, height=3, limits=limits,
        alerts=alerts, bottom=bottom, states=states,
    )  # fmt: skip


def _worst(from_: Sources, worst: Callable[[Expr], Expr], *names: str) -> Expr | None:
    """The worst series of the first record that has any."""
    there = [worst(from_.record(name)) for name in names if from_.has(name)]
    return either(*there) if there else None


def _tiles(from_: Sources) -> tuple[Panel | None, ...]:
    thresholds = from_.settings.thresholds
    targets = from_.raw.gauge(UP, matcher(JOB, "job"))
    return (
        _tile(
            "breaker-worst", "Breaker", Shown.STATE, max_by(parts.breaker_code(from_)),
            "The worst state of any breaker.", "open: new requests are refused.", empty="no guard",
            alerts=("SreBreakerOpen", "SreBreakerOverridden"), states=parts.BREAKER_STATES,
        ),
        _tile(
            "alerts-count", "Alerts firing", Shown.COUNT, count_by(parts.firing(from_)),
            "Number of alerts that fire, of any severity.", "anything above zero deserves a look at the table below.",
            empty="none", limits=(Limit(1, color="orange"),),
        ),
        _tile(
            "targets-down", "Targets down", Shown.COUNT, count_by(compare(targets, "==", 0)),
            "Scrape targets of the chosen jobs that do not answer.",
            "anything above zero: what they measure is unseen.", empty="none", limits=(Limit(1),),
            alerts=("VllmEngineDown", "VllmModelDown", "VllmAllEnginesDown", "SreGuardDown"),
        ),
        _tile(
            "requests-now", "Requests", Shown.REQUESTS_PER_SECOND,
            _worst(from_, sum_by, "engine:vllm_requests:rate5m"),
            "Requests that ended per second.", "a drop that clients did not ask for.",
        ),
        _tile(
            "errors-now", "Error ratio", Shown.RATIO,
            _worst(from_, max_by, "pool:requests_errors:ratio_rate5m", "engine:http_errors:ratio_rate5m"),
            "Largest share of failed requests of any pool; of any engine where no gateway is measured.",
            "above the threshold: users see errors.", limits=(Limit(thresholds.error_ratio, "VllmErrorRatioHigh"),),
        ),
        _tile(
            "ttft-now", "First token P99", Shown.SECONDS, _worst(from_, max_by, "model:vllm_ttft_seconds:p99_rate5m"),
            "Time to the first token that 99 % of requests stay below, of the slowest model.",
            "above the threshold: users wait before anything happens.",
            limits=(Limit(thresholds.ttft_seconds, "VllmTimeToFirstTokenHigh"),),
        ),
        _tile(
            "burn-now", "Fastest burn rate", Shown.FACTOR, _worst(from_, max_by, "slo:current_burn_rate:ratio"),
            "How many times faster than allowed the error budget goes that goes fastest.",
            "above 1 it does not last the period.", limits=(Limit(1, color="orange"),),
            alerts=from_.alerts_ending("Burn1h"),
        ),
        _tile(
            "gpus-seen", "GPUs", Shown.COUNT, _worst(from_, sum_by, "node:gpus:count"),
            "GPUs that are measured.", "fewer than the machines hold.", empty="no GPU", alerts=("GpuLost",),
        ),
    )  # fmt: skip


def _golden(from_: Sources) -> tuple[Panel | None, ...]:
    thresholds = from_.settings.thresholds
    return (
        parts.lines(
            from_, "disk-await", "Disk await", Shown.SECONDS, ("instance_device:disk_await:seconds_rate5m",),
            "Mean time of a disk request, waiting included.", "above the threshold: weights and KV blocks load slowly.",
            limits=(Limit(thresholds.disk_await_seconds, "NodeDiskAwaitHigh"),), alerts=("NodeDiskSaturated",),
            empty=DISKS, height=7,
        ),
        parts.lines(
            from_, "nic-missed-errors", "NIC rx_missed_errors", Shown.PACKETS_PER_SECOND,
            ("instance_device:network_receive_missed_errors:rate5m",),
            "Packets the card dropped because the host did not fetch them in time.",
            "anything lasting: packets are sent again, tokens arrive late.",
            limits=(Limit(thresholds.network_receive_missed_errors_per_second, "NodeNetworkMissedErrors"),),
            empty="not measured", height=7,
        ),
        parts.lines(
            from_, "nvlink", "NVLink throughput", Shown.BYTES_PER_SECOND, ("gpu:nvlink:bytes_per_second",),
            "Data over all NVLinks of a GPU.", "one GPU of a tensor-parallel group far below the others.",
            alerts=("GpuNvlinkErrors",), empty=NO_DEVICE, height=7,
        ),
        parts.lines(
            from_, "gpu-utilization", "GPU utilization", Shown.RATIO, ("gpu:utilization:ratio",),
            "Share of time in which any kernel ran; high with a single request, too.",
            "near zero while requests run: the engine hangs or waits for something else.",
            limits=(Limit(thresholds.gpu_idle_ratio, "GpuIdleUnderLoad", below=True),), top=1.0, empty=NO_DEVICE,
            height=7,
        ),
        parts.lines(
            from_, "kv-cache-usage", "KV-cache usage", Shown.RATIO, ("engine:vllm_kv_cache_usage:ratio_max",),
            "Share of the KV cache in use.", "near 1 requests are put back into the queue (preemption).",
            limits=(Limit(thresholds.kv_cache_usage_ratio, "VllmKvCacheNearlyFull"),), top=1.0, empty="no engine",
            height=7,
        ),
        parts.lines(
            from_, "latency-p99", "Latency P99", Shown.SECONDS, ("engine:vllm_e2e_seconds:p99_rate5m",),
            "Time from arrival to the last token that 99 % of requests stay below.", "above the threshold.",
            limits=(Limit(thresholds.e2e_seconds, "VllmLatencyHigh"),), height=7,
        ),
    )  # fmt: skip


def _traffic(from_: Sources) -> tuple[Panel | None, ...]:
    return (
        parts.lines(
            from_, "requests", "Requests running and waiting", Shown.COUNT,
            (RUNNING, "engine:vllm_requests_waiting:sum"),
            "Requests in the running batch, and those that wait for a place in it.",
            "a queue that grows: more arrives than is served.", legends=("running", "waiting"),
            alerts=("VllmQueueGrowing",), empty="no engine", height=7,
        ),
        parts.lines(
            from_, "errors", "Error ratio", Shown.RATIO,
            ("pool:requests_errors:ratio_rate5m", "engine:http_errors:ratio_rate5m"),
            "Share of failed requests, as the gateway saw it per pool, and as the engine's HTTP server says.",
            "above the threshold.", legends=("gateway", "engine"),
            limits=(Limit(from_.settings.thresholds.error_ratio, "VllmErrorRatioHigh"),), height=7,
        ),
        parts.firing_table(from_),
    )  # fmt: skip
