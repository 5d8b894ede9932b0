"""Alerts on disks, networks and hosts. Every one carries ``node`` and ``instance``."""

from __future__ import annotations

from decimal import Decimal
from functools import partial

from sre.metrics import node, own
from sre.metrics.types import Exporter, Metric
from sre.monitoring.levels import INSTANCE, NODE
from sre.monitoring.model import Alert, Dimension, Input, Scenario, Severity, Steady
from sre.monitoring.promql import Selection, both, compare, max_by, with_node
from sre.monitoring.recorded import of_machines, up_of
from sre.monitoring.resource_scenarios import (
    DISK,
    HOST,
    NETWORK,
    host_scenario,
    humanize,
    humanize_duration,
    humanize_percentage,
    share_above,
    without_node,
)
from sre.monitoring.series import series, up
from sre.settings.monitoring import MonitoringSettings

LEAST_OPERATIONS_PER_SECOND = 1.0
"""The mean of fewer disk operations, or dropped packets, is chance."""
SATURATED_AWAIT_SHARE = Decimal("0.2")
"""A disk that is busy all the time is at its limit once its await reaches this share of the alarming one."""

_node = partial(Alert, dimension=Dimension.RESOURCE, component="node", dashboard="sre-resource")
_THE_DISK = "Disk {{ $labels.device }} of {{ $labels.node }}"
_THE_NETWORK = "{{ $labels.device }} of {{ $labels.node }}"
_TICKET = Severity.TICKET


def node_alerts(selection: Selection, settings: MonitoringSettings) -> list[Alert]:
    recorded = of_machines(selection, settings)
    thresholds = settings.thresholds

    def disk(metric: Metric) -> str:
        return series(selection, metric, **without_node(DISK))

    def network(metric: Metric) -> str:
        return series(selection, metric, **without_node(NETWORK))

    def host(metric: Metric, **labels: str) -> str:
        return series(selection, metric, **without_node(HOST), **labels)

    iops = recorded("instance_device:disk_iops:rate5m")
    await_ = recorded("instance_device:disk_await:seconds_rate5m")
    slow, busy = thresholds.disk_await_seconds * 2, share_above(thresholds.disk_utilization_ratio)
    discards = share_above(thresholds.network_receive_discards_ratio)
    missed = thresholds.network_receive_missed_errors_per_second * 2
    retransmits = share_above(thresholds.tcp_retransmits_ratio)
    faults = thresholds.page_faults_major_per_second * 2

    def cpu(name: str, mode: str, threshold: float, what: str) -> Alert:
        high = share_above(threshold)
        return _node(
            name,
            compare(recorded(f"instance:cpu_{mode}:ratio_rate5m"), ">", threshold),
            for_="10m",
            severity=_TICKET,
            summary=f"{{{{ $labels.node }}}} spends {{{{ $value | humanizePercentage }}}} of its CPU time in {mode}.",
            description=what,
            scenario=host_scenario(
                (
                    (host(node.CPU_SECONDS, cpu="0", mode=mode), high, threshold / 10),
                    (host(node.CPU_SECONDS, cpu="0", mode="idle"), 1 - high, 1 - threshold / 10),
                ),
                HOST, humanize_percentage(high),
            ),
        )  # fmt: skip

    return [
        _node(
            "NodeDiskAwaitHigh",
            both(
                compare(await_, ">", thresholds.disk_await_seconds), compare(iops, ">", LEAST_OPERATIONS_PER_SECOND)
            ),
            for_="10m",
            severity=_TICKET,
            summary=_THE_DISK + " takes {{ $value | humanizeDuration }} per operation.",
            description="Reads and writes wait: loading models, swapping and logging are slow on {{ $labels.node }}, "
            "and so are cold starts.",
            scenario=host_scenario(
                (
                    (disk(node.DISK_READ_TIME), 16 * slow, 0.01),
                    (disk(node.DISK_READS_COMPLETED), 16, 16),
                    (disk(node.DISK_WRITE_TIME), 0, 0),
                    (disk(node.DISK_WRITES_COMPLETED), 0, 0),
                ),
                DISK, humanize_duration(slow),
            ),
        ),
        _node(
            "NodeDiskSaturated",
            both(
                compare(recorded("instance_device:disk_utilization:ratio_rate5m"), ">",
                        thresholds.disk_utilization_ratio),
                compare(await_, ">", Decimal(str(thresholds.disk_await_seconds)) * SATURATED_AWAIT_SHARE),
            ),
            for_="10m",
            severity=_TICKET,
            summary=_THE_DISK + " is busy {{ $value | humanizePercentage }} of the time.",
            description=_THE_DISK + " is at its limit: always busy, and operations wait. "
            "More load only lengthens the queue.",
            scenario=host_scenario(
                (
                    (disk(node.DISK_IO_TIME), busy, busy),
                    (disk(node.DISK_READ_TIME), 16 * slow, 0.01),
                    (disk(node.DISK_READS_COMPLETED), 16, 16),
                    (disk(node.DISK_WRITE_TIME), 0, 0),
                    (disk(node.DISK_WRITES_COMPLETED), 0, 0),
                ),
                DISK, humanize_percentage(busy),
            ),
        ),
        _node(
            "NodeNetworkReceiveDiscards",
            both(
                compare(recorded("instance_device:network_receive_discards:ratio_rate5m"), ">",
                        thresholds.network_receive_discards_ratio),
                compare(recorded("instance_device:network_receive_discards:rate5m"), ">",
                        LEAST_OPERATIONS_PER_SECOND),
            ),
            for_="10m",
            severity=_TICKET,
            summary=_THE_NETWORK + " drops {{ $value | humanizePercentage }} of what it receives.",
            description="Good packets are dropped for want of room: the host is too slow for its network, or a burst "
            "overruns {{ $labels.device }}. Clients of {{ $labels.node }} see retransmits and latency.",
            scenario=host_scenario(
                (
                    (network(node.NETWORK_RECEIVE_DROP), 4096 * discards, 0),
                    (network(node.NETWORK_RECEIVE_PACKETS), 4096, 4096),
                ),
                NETWORK, humanize_percentage(discards),
            ),
        ),
        _node(
            "NodeNetworkMissedErrors",
            compare(recorded("instance_device:network_receive_missed_errors:rate5m"), ">",
                    thresholds.network_receive_missed_errors_per_second),
            for_="10m",
            severity=_TICKET,
            summary=_THE_NETWORK + " misses {{ $value | humanize }} packets a second.",
            description="The host does not fetch packets from {{ $labels.device }} in time: one CPU has all its "
            "interrupts, or a ring that is too small (ethtool -g on {{ $labels.node }}).",
            scenario=host_scenario(
                ((network(own.HOST_NETWORK_RECEIVE_MISSED), missed, 0),), NETWORK, humanize(missed)
            ),
        ),
        _node(
            "NodeTcpRetransmitsHigh",
            compare(recorded("instance:tcp_retransmits:ratio_rate5m"), ">", thresholds.tcp_retransmits_ratio),
            for_="10m",
            severity=_TICKET,
            summary="{{ $labels.node }} sends {{ $value | humanizePercentage }} of its TCP segments again.",
            description="Loss between {{ $labels.node }} and its peers, of the whole host: streams stall for a "
            "retransmission time each. Look at drops on the way and on the peers.",
            scenario=host_scenario(
                (
                    (host(node.TCP_RETRANSMITTED_SEGMENTS), 256 * retransmits, 0),
                    (host(node.TCP_OUT_SEGMENTS), 256, 256),
                ),
                HOST, humanize_percentage(retransmits),
            ),
        ),
        cpu(
            "NodeSoftirqHigh", "softirq", thresholds.cpu_softirq_ratio,
            "Receiving packets takes the CPUs of {{ $labels.node }} from the engines; one may be full while the mean "
            "looks fair. Spread interrupts over CPUs.",
        ),
        cpu(
            "NodeIowaitHigh", "iowait", thresholds.cpu_iowait_ratio,
            "CPUs of {{ $labels.node }} idle because their programs wait for disks; see the await of its disks.",
        ),
        _node(
            "NodeMajorPageFaults",
            compare(recorded("instance:page_faults_major:rate5m"), ">", thresholds.page_faults_major_per_second),
            for_="10m",
            severity=_TICKET,
            summary="{{ $labels.node }} reads {{ $value | humanize }} pages a second from disk on page faults.",
            description="Memory of {{ $labels.node }} is short, or weights are mapped and read as they are touched. "
            "Expected for minutes after an engine starts, not later.",
            scenario=host_scenario(((host(node.MAJOR_PAGE_FAULTS), faults, 0),), HOST, humanize(faults)),
        ),
        _node(
            "ResourceExporterDown",
            compare(max_by(with_node(up_of(selection, Exporter.NODE, Exporter.DCGM)), NODE, INSTANCE), "==", 0),
            for_="5m",
            severity=_TICKET,
            summary="The exporter {{ $labels.instance }} on {{ $labels.node }} does not answer.",
            description="Alerts on the resources of {{ $labels.node }} that it feeds cannot fire.",
            scenario=Scenario(
                (Input(up(selection, Exporter.NODE, instance="n1:9100"), Steady(0), Steady(1)),),
                fires_after="7m", resolves_after="1m", labels=HOST,
            ),
        ),
    ]  # fmt: skip
