"""What may have no series on a plain machine, each with its reason. What is empty and not listed here is a defect."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sre.metrics.catalogue import CATALOGUE
from sre.metrics.types import Exporter, Version

RELEASE = Version(0, 32)
"""Release of vLLM that runs here, or is simulated."""

STANDS_IN = {
    Exporter.DCGM: "no dcgm-exporter: the guard's sre_gpu_* stand in",
    Exporter.NODE: "no node_exporter: the guard's sre_host_* stand in",
}
"""Exporters that a plain machine does without."""
CARD = "only a real card knows it"
EVENT = "appears with its first event"
NO_WEBHOOK = "the stack has no webhook"

SAMPLES: dict[str, str] = {
    "sre_gpu_memory_temperature_celsius": CARD,
    "sre_gpu_nvlink_bytes_total": CARD,
    "sre_gpu_ecc_uncorrected_errors_total": CARD,
    "sre_gpu_row_remap_failed": CARD,
    "sre_gpu_throttled": CARD,
    "sre_chaos_faults_active": EVENT,
    "sre_canary_alert": "only while sre notify test --end-to-end runs",
    "sre_webhook_up": NO_WEBHOOK,
    "sre_webhook_requests_total": NO_WEBHOOK,
}
"""Raw samples that rules read, of exporters that are here."""

ALWAYS_EMPTY: dict[str, str] = {
    "gpu:memory_temperature:celsius": CARD,
    "gpu:nvlink:bytes_per_second": CARD,
    "gpu:nvlink_errors:rate5m": f"{CARD}, and only DCGM tells it",
    "gpu:tensor_active:ratio": f"{CARD}, and only DCGM tells it",
    "gpu:ecc_uncorrected:increase5m": CARD,
    "gpu:row_remap_failed:max": CARD,
    "gpu:pcie_replays:rate5m": f"{CARD}, and only DCGM tells it",
    "gpu:throttled:max": CARD,
    "gpu:xid_of_dcgm:last": "only DCGM tells it",
    "gpu_xid:changed:count": "no card had an XID",
}
"""Records that have no series without a card."""

IDLE: dict[str, str] = {
    "instance_device:disk_read_await:seconds_rate5m": "nothing is read from a disk: there is nothing to divide by",
    "instance_device:disk_write_await:seconds_rate5m": "nothing is written to a disk",
    "instance_device:disk_await:seconds_rate5m": "no disk is used",
    "instance_device:network_receive_discards:ratio_rate5m": "no packet comes over a network card: all is loopback",
    "instance:tcp_retransmits:ratio_rate5m": "too few segments are sent for a ratio to mean something",
}
"""Records that are a ratio of something this machine may do none of while the test runs."""

PANELS: dict[str, str] = {
    "sre-overview: Targets down": "none is down",
    "sre-resource: Exporters answer": "no target: neither dcgm-exporter nor node_exporter",
    "sre-breaker: Refused requests": "none refused: the other engine of the pool took them",
}
"""Panels whose text for no data is the truth."""

YOUNG = "offset 5m"
"""An operand that looks so far back is empty in a Prometheus that is younger."""
JOBS_NOT_HERE = ('job="dcgm"', 'job=~"node|dcgm"')


def excused_sample(sample: str, exporters: Collection[Exporter]) -> str:
    """Why a raw sample may be missing where these exporters are; "" if it may not."""
    metric = CATALOGUE.by_sample(sample)
    if metric is None:
        return ""
    if metric.exporter in STANDS_IN and metric.exporter not in exporters:
        return STANDS_IN[metric.exporter]
    if metric.exporter is Exporter.VLLM and metric.removed is not None and metric.removed <= RELEASE:
        return "the name that older releases of vLLM use"
    if metric.exporter in STANDS_IN and metric.optional:
        return metric.needs
    return SAMPLES.get(sample, "")


def excused_operand(expression: str, names: Iterable[str], exporters: Collection[Exporter]) -> bool:
    """Whether an operand of an alert reads something that may be missing."""
    return (
        YOUNG in expression
        or any(job in expression for job in JOBS_NOT_HERE)
        or any(excused_sample(name, exporters) or name in ALWAYS_EMPTY or name in IDLE for name in names)
    )
