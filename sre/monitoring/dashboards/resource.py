"""Requirement A1: GPUs, disks, network cards, CPUs."""

from __future__ import annotations

from sre.metrics import dcgm, node, own
from sre.metrics.types import Metric
from sre.monitoring.dashboards import parts
from sre.monitoring.dashboards.model import Dashboard, Kind, Limit, Panel, Query, Shown, State
from sre.monitoring.dashboards.sources import Sources, job_variable, labels, legend, matcher, node_variable
from sre.monitoring.levels import DEVICE, GPU, INSTANCE, JOB
from sre.monitoring.promql import Expr
from sre.monitoring.records_gpu import XIDS_OF_APPLICATIONS, XIDS_OF_THE_CARD

UID = "sre-resource"
NO_DEVICE = "no such device"
DISKS = "no disk requests"
NODES = ("gpu:temperature:celsius", "instance:cpu_iowait:ratio_rate5m")
"""Records that know every machine: those with GPUs, and those whose host is measured."""


def resource(from_: Sources) -> Dashboard:
    """GPUs and hosts; raw metrics of the exporters at the end."""
    from_ = from_.choosing("job", "node")
    return Dashboard(
        UID,
        "sre: resources",
        "GPUs, disks, network cards and CPUs under the engines.",
        rows=(
            parts.row("GPU", _gpu(from_)),
            parts.row("GPU health", _gpu_health(from_)),
            parts.row("Disk", _disk(from_)),
            parts.row("Network", _network(from_)),
            parts.row("CPU and memory", _cpu(from_)),
            parts.row("Exporters", (_exporters(from_),)),
            parts.row("Raw metrics of the exporters", _raw(from_), collapsed=True),
        ),
        variables=(job_variable(), node_variable(from_, *NODES)),
        annotations=parts.common_annotations(from_),
    )


def _gpu(from_: Sources) -> tuple[Panel | None, ...]:
    thresholds = from_.settings.thresholds
    return (
        parts.lines(
            from_, "gpu-utilization", "GPU utilization", Shown.RATIO, ("gpu:utilization:ratio",),
            "Share of time in which any kernel ran; high with a single request, too.",
            "near zero while requests run.",
            limits=(Limit(thresholds.gpu_idle_ratio, "GpuIdleUnderLoad", below=True),), top=1.0, empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "gpu-memory-ratio", "GPU memory used", Shown.RATIO, ("gpu:memory_used:ratio",),
            "Share of the memory that is taken. vLLM takes its share at the start and keeps it.",
            "nearly full: the next allocation can fail and end the engine.",
            limits=(Limit(thresholds.gpu_memory_used_ratio, "GpuMemoryNearlyFull"),), top=1.0, empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "gpu-memory-bytes", "GPU memory used, bytes", Shown.BYTES, ("gpu:memory_used:bytes",),
            "Memory that is taken.", "growth that does not end.", empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "gpu-temperature", "Core temperature", Shown.CELSIUS, ("gpu:temperature:celsius",),
            "Temperature of the core.", "above the threshold the card slows down, and the breaker opens.",
            limits=(Limit(thresholds.gpu_temperature_celsius, "GpuTemperatureHigh"),), empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "gpu-memory-temperature", "Memory temperature", Shown.CELSIUS, ("gpu:memory_temperature:celsius",),
            "Temperature of the memory. Many cards do not say.", "above the threshold.",
            limits=(Limit(thresholds.gpu_memory_temperature_celsius, "GpuMemoryTemperatureHigh"),), empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "gpu-power", "Power", Shown.WATTS, ("gpu:power:watts",),
            "Power drawn.", "at the card's limit for long (clocks go down), or far below its like under one load.",
            alerts=("GpuThrottled",), empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "gpu-tensor-active", "Tensor cores active", Shown.RATIO, ("gpu:tensor_active:ratio",),
            "Share of cycles in which tensor cores worked: what utilization does not tell. Only dcgm-exporter knows.",
            "low while batches are large: memory or the host binds.", top=1.0, empty=NO_DEVICE, width=12,
        ),
        parts.lines(
            from_, "gpu-nvlink", "NVLink throughput", Shown.BYTES_PER_SECOND, ("gpu:nvlink:bytes_per_second",),
            "Data over all NVLinks of the GPU.", "one GPU of a tensor-parallel group far below the others.",
            alerts=("GpuNvlinkErrors",), empty=NO_DEVICE, width=12,
        ),
    )  # fmt: skip


def _gpu_health(from_: Sources) -> tuple[Panel | None, ...]:
    xids = (
        State(0, "none", "green"),
        *(State(xid, f"XID {xid}", "orange") for xid in XIDS_OF_APPLICATIONS),
        *(State(xid, f"XID {xid}", "red") for xid in XIDS_OF_THE_CARD),
    )
    return (
        Panel(
            "gpu-xid", "Last XID error", Kind.STATES, Shown.STATE,
            (Query(from_.record("gpu:xid:last"), legend("gpu:xid:last")),),
            "Number of the last XID error. It never goes back to zero: look at when it changed.",
            "a change to a red number: the card or its link failed. Orange ones come from the application.",
            empty="not measured", width=12, states=xids, alerts=("GpuXidFatal", "GpuXidApplication", "GpuXidOther"),
        ),
        Panel(
            "gpu-throttled", "Clocks held down", Kind.STATES, Shown.STATE,
            (Query(from_.record("gpu:throttled:max"), legend("gpu:throttled:max")),),
            "1 while heat, power brake or slowdown holds the clocks down.", "anything lasting: slower for no reason "
            "that a metric of the engine shows.", empty="not measured", width=12,
            states=(State(0, "no", "green"), State(1, "held down", "red")), alerts=("GpuThrottled",),
        ),
        parts.lines(
            from_, "gpu-xid-events", "XID errors in 5 minutes", Shown.COUNT,
            ("gpu_xid:events:increase5m",),
            "Events by number, where exporter or guard count them.", "any of the card.", empty="not measured",
            alerts=("GpuXidFatal", "GpuXidApplication", "GpuXidOther"),
        ),
        parts.lines(
            from_, "gpu-count", "GPUs per node", Shown.COUNT, ("node:gpus:count",),
            "GPUs that answer.", "a drop: a card fell off the bus, and may not have been able to report an XID.",
            alerts=("GpuLost", "GpuMetricsMissing"), empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "gpu-ecc", "Uncorrectable memory errors", Shown.COUNT, ("gpu:ecc_uncorrected:increase5m",),
            "New uncorrectable errors of the GPU's memory in 5 minutes.", "any.", alerts=("GpuEccUncorrected",),
            limits=(Limit(1),), empty="not measured",
        ),
        parts.lines(
            from_, "gpu-row-remap", "Failed row remapping", Shown.COUNT, ("gpu:row_remap_failed:max",),
            "1: a memory row could not be replaced.", "1: the card is to be exchanged.", alerts=("GpuRowRemapFailed",),
            limits=(Limit(1),), empty="not measured",
        ),
        parts.lines(
            from_, "gpu-pcie-replays", "PCIe replays", Shown.PER_SECOND, ("gpu:pcie_replays:rate5m",),
            "Packets on the PCIe bus that were sent again.", "anything lasting: slot, riser or card.",
            alerts=("GpuPcieReplays",), empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "gpu-nvlink-errors", "NVLink errors", Shown.PER_SECOND, ("gpu:nvlink_errors:rate5m",),
            "Errors on the GPU's NVLinks.", "anything lasting: cable, bridge or switch.", alerts=("GpuNvlinkErrors",),
            empty="not measured",
        ),
    )  # fmt: skip


def _disk(from_: Sources) -> tuple[Panel | None, ...]:
    thresholds = from_.settings.thresholds
    return (
        parts.lines(
            from_, "disk-await", "Disk await", Shown.SECONDS,
            ("instance_device:disk_read_await:seconds_rate5m", "instance_device:disk_write_await:seconds_rate5m"),
            "Mean time of a request, waiting included.", "above the threshold.", legends=("read", "write"),
            limits=(Limit(thresholds.disk_await_seconds, "NodeDiskAwaitHigh"),), empty=DISKS,
        ),
        parts.lines(
            from_, "disk-utilization", "Disk %util", Shown.RATIO, ("instance_device:disk_utilization:ratio_rate5m",),
            "Share of time with at least one request under way. Says little on NVMe, which serves many at once.",
            "above the threshold together with a long await.", top=1.0,
            limits=(Limit(thresholds.disk_utilization_ratio, "NodeDiskSaturated"),), empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "disk-iops", "Disk operations", Shown.OPERATIONS_PER_SECOND, ("instance_device:disk_iops:rate5m",),
            "Reads and writes that ended per second.", "the device's limit.", empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "disk-throughput", "Disk throughput", Shown.BYTES_PER_SECOND,
            ("instance_device:disk_read:bytes_rate5m", "instance_device:disk_written:bytes_rate5m"),
            "Data read and written per second.", "reads at the device's limit while a model loads or KV blocks return.",
            legends=("read", "written"), empty=NO_DEVICE, width=16,
        ),
        parts.lines(
            from_, "page-faults", "Page faults", Shown.PER_SECOND,
            ("instance:page_faults_major:rate5m", "instance:page_faults_minor:rate5m"),
            "Major: the page came from disk. Minor: it did not.",
            "major ones: weights or code were dropped from memory.",
            legends=("major", "minor"), empty="not measured",
            limits=(Limit(thresholds.page_faults_major_per_second, "NodeMajorPageFaults"),),
        ),
    )  # fmt: skip


def _network(from_: Sources) -> tuple[Panel | None, ...]:
    thresholds = from_.settings.thresholds
    return (
        parts.lines(
            from_, "nic-throughput", "NIC throughput", Shown.BYTES_PER_SECOND,
            (
                "instance_device:network_receive:bytes_rate5m",
                "instance_device:network_transmit:bytes_rate5m",
            ),
            "Data received and sent.", "the card's limit.", legends=("in", "out"), empty=NO_DEVICE, width=12,
        ),
        parts.lines(
            from_, "nic-missed-errors", "NIC rx_missed_errors", Shown.PACKETS_PER_SECOND,
            ("instance_device:network_receive_missed_errors:rate5m",),
            "Packets the card dropped because the host did not fetch them in time.", "anything lasting.",
            limits=(Limit(thresholds.network_receive_missed_errors_per_second, "NodeNetworkMissedErrors"),),
            empty="not measured", width=12,
        ),
        parts.lines(
            from_, "nic-discards", "NIC rx_discards", Shown.PACKETS_PER_SECOND,
            ("instance_device:network_receive_discards:rate5m",),
            "Good packets dropped on receipt for want of room or listener.", "a rise together with retransmits.",
            alerts=("NodeNetworkReceiveDiscards",), empty=NO_DEVICE,
        ),
        parts.lines(
            from_, "nic-discards-ratio", "Share of packets dropped", Shown.RATIO,
            ("instance_device:network_receive_discards:ratio_rate5m",),
            "Dropped among received packets.", "above the threshold.",
            limits=(Limit(thresholds.network_receive_discards_ratio, "NodeNetworkReceiveDiscards"),),
            empty="no packets",
        ),
        parts.lines(
            from_, "tcp-retransmits", "TCP retransmits", Shown.RATIO, ("instance:tcp_retransmits:ratio_rate5m",),
            "Segments sent again among all that were sent, of the whole host.", "above the threshold: loss on the way.",
            limits=(Limit(thresholds.tcp_retransmits_ratio, "NodeTcpRetransmitsHigh"),), empty="too few segments",
        ),
    )  # fmt: skip


def _cpu(from_: Sources) -> tuple[Panel | None, ...]:
    thresholds = from_.settings.thresholds
    return (
        parts.lines(
            from_, "cpu-iowait", "CPU iowait", Shown.RATIO, ("instance:cpu_iowait:ratio_rate5m",),
            "Share of CPU time spent idle while a disk request was open.", "above the threshold: the disk binds.",
            limits=(Limit(thresholds.cpu_iowait_ratio, "NodeIowaitHigh"),), empty="not measured", width=12, top=1.0,
        ),
        parts.lines(
            from_, "cpu-softirq", "CPU softirq", Shown.RATIO, ("instance:cpu_softirq:ratio_rate5m",),
            "Share of CPU time spent on soft interrupts, mostly the network's.", "above the threshold: cores are short "
            "for the network; streams stutter.",
            limits=(Limit(thresholds.cpu_softirq_ratio, "NodeSoftirqHigh"),), empty="not measured", width=12, top=1.0,
        ),
    )  # fmt: skip


def _exporters(from_: Sources) -> Panel:
    jobs = from_.settings.jobs
    return parts.targets(
        from_, "exporters", "Exporters answer", (jobs.node, jobs.dcgm),
        "Whether node exporter and dcgm-exporter answer.", ("ResourceExporterDown",), matcher(JOB, "job"),
    )  # fmt: skip


def _raw(from_: Sources) -> tuple[Panel | None, ...]:
    own_gpu = labels(INSTANCE, own.GPU, own.SOURCE)
    return (
        _gauges(from_, "raw-gpu-utilization", "Utilization (guard)", Shown.RATIO, own_gpu, own.GPU_UTILIZATION),
        _gauges(from_, "raw-gpu-memory", "Memory used (guard)", Shown.BYTES, own_gpu, own.GPU_MEMORY_USED_BYTES),
        _gauges(from_, "raw-gpu-temperature", "Temperature (guard)", Shown.CELSIUS, own_gpu, own.GPU_TEMPERATURE),
        _gauges(from_, "raw-dcgm-temperature", "Temperature (DCGM)", Shown.CELSIUS, labels(INSTANCE, GPU),
                dcgm.GPU_TEMP),
        _gauges(from_, "raw-dcgm-power", "Power (DCGM)", Shown.WATTS, labels(INSTANCE, GPU), dcgm.POWER_USAGE),
        _rates(from_, "raw-nvlink", "NVLink (guard)", Shown.BYTES_PER_SECOND,
               labels(INSTANCE, own.GPU, own.DIRECTION), own.GPU_NVLINK_BYTES),
        _rates(from_, "raw-reads", "Reads (guard)", Shown.OPERATIONS_PER_SECOND, labels(INSTANCE, DEVICE),
               own.HOST_DISK_READS),
        _rates(from_, "raw-node-reads", "Reads (node exporter)", Shown.OPERATIONS_PER_SECOND, labels(INSTANCE, DEVICE),
               node.DISK_READS_COMPLETED),
        _rates(from_, "raw-cpu", "CPU time by mode (guard)", Shown.SECONDS, labels(INSTANCE, own.MODE),
               own.HOST_CPU_SECONDS),
        _gauges(from_, "raw-memory", "Memory available (guard)", Shown.BYTES, labels(INSTANCE),
                own.HOST_MEMORY_AVAILABLE),
    )  # fmt: skip


def _gauges(from_: Sources, key: str, title: str, shown: Shown, legends: str, metric: Metric) -> Panel | None:
    return _drill(
        key, title, shown, from_.joined(metric, lambda one: from_.raw.gauge(one, matcher(JOB, "job"))), legends
    )


def _rates(from_: Sources, key: str, title: str, shown: Shown, legends: str, metric: Metric) -> Panel | None:
    return _drill(key, title, shown, from_.joined(metric, lambda one: from_.rate(one, matcher(JOB, "job"))), legends)


def _drill(key: str, title: str, shown: Shown, expr: Expr | None, legends: str) -> Panel | None:
    if expr is None:
        return None
    return Panel(
        key, title, Kind.LINES, shown, (Query(expr, legends),),
        "What one exporter says, before records join the exporters.",
        "a difference to the panels above: then the exporters disagree.", empty="not exported",
    )  # fmt: skip
