"""GPUs as metrics. What a card does not say, or a reader does not see, has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.metrics_core import Metric as Family

from sre.metrics import own
from sre.metrics.types import Metric
from sre.servers.exposition import Row, filled
from sre.signals.types import GpuDetails, GpuSeen, Reading, Seen

READINGS: tuple[tuple[Metric, Callable[[GpuSeen], Reading]], ...] = (
    (own.GPU_MEMORY_USED, lambda g: g.memory_used_ratio),
    (own.GPU_TEMPERATURE, lambda g: g.temperature_celsius),
    (own.GPU_UTILIZATION, lambda g: g.utilization_ratio),
    (own.GPU_POWER, lambda g: g.power_watts),
)
DETAILS: tuple[tuple[Metric, Callable[[GpuDetails], float | None]], ...] = (
    (own.GPU_MEMORY_USED_BYTES, lambda d: d.memory_used_bytes),
    (own.GPU_MEMORY_TOTAL_BYTES, lambda d: d.memory_total_bytes),
    (own.GPU_MEMORY_TEMPERATURE, lambda d: d.memory_temperature_celsius),
    (own.GPU_XID_LAST, lambda d: d.xid_last),
    (own.GPU_ECC_UNCORRECTED, lambda d: d.ecc_uncorrected_errors),
    (own.GPU_ROW_REMAP_FAILED, lambda d: d.row_remap_failed),
)
LABELLED: tuple[tuple[Metric, Callable[[GpuDetails], list[tuple[str, float]]]], ...] = (
    (own.GPU_XID_ERRORS, lambda d: _xids(d)),
    (own.GPU_NVLINK_BYTES, lambda d: _nvlink(d)),
    (own.GPU_THROTTLED, lambda d: [(reason, float(now)) for reason, now in d.throttled]),
)


def gpu_families(gpus: Sequence[GpuSeen]) -> Iterator[Family]:
    """Every family of single GPUs that has a series."""
    for metric, read in READINGS:
        values = [(gpu, read(gpu).value) for gpu in gpus]
        yield from _some(metric, [(labels(gpu), value) for gpu, value in values if value is not None])
    told = [(labels(gpu), gpu.details) for gpu in gpus if gpu.details is not None]
    for metric, of in DETAILS:
        found = [(names, of(details)) for names, details in told]
        yield from _some(metric, [(names, float(value)) for names, value in found if value is not None])
    for metric, each in LABELLED:
        yield from _some(
            metric, [((*names, label), value) for names, details in told for label, value in each(details)]
        )


def answering(gpus: Iterable[GpuSeen]) -> int | None:
    """How many GPUs say anything, by the last answer of a reader that works; None before its first."""
    readings = [[read(gpu) for _, read in READINGS] for gpu in gpus]
    if not any(reading.seen is not Seen.NEVER for each in readings for reading in each):
        return None
    return sum(any(reading.value is not None for reading in each) for each in readings)


def labels(gpu: GpuSeen) -> tuple[str, ...]:
    """Values of ``own.GPU_LABELS``."""
    return (str(gpu.index), gpu.uuid, gpu.source, "true" if gpu.injected else "false")


def _some(metric: Metric, rows: list[Row]) -> Iterator[Family]:
    if rows:
        yield filled(metric, rows)


def _xids(details: GpuDetails) -> list[tuple[str, float]]:
    if details.xid_last is None:
        return []
    counts = dict.fromkeys(own.ALERTED_XIDS, 0) | dict(details.xid_events)
    return [(str(xid), float(events)) for xid, events in sorted(counts.items())]


def _nvlink(details: GpuDetails) -> list[tuple[str, float]]:
    directions = (("rx", details.nvlink_received_bytes), ("tx", details.nvlink_sent_bytes))
    return [(direction, float(count)) for direction, count in directions if count is not None]
