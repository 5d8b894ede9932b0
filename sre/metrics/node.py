"""
Metrics of node_exporter (names of 1.x, checked against 1.5.0): those that tell of storage, network and host.

netstat and vmstat values are exposed without a type; they count all the same.
"""

from __future__ import annotations

from functools import partial

from sre.metrics.types import Exporter, Kind, Metric, Unit

DEVICE = "device"
CPU = "cpu"
MODE = "mode"
VECTOR = "vector"

VIRTUAL_NETWORK_DEVICES = "lo|veth.+|docker.+|br-.+|cni.+|cali.+|flannel.+|cilium.+|lxc.+|virbr.+|tun.+|tap.+|kube-.+"
"""Regular expression of interfaces without a wire of their own; their drops say nothing about the network."""
VIRTUAL_DISK_DEVICES = "loop.+|ram.+|sr.+|fd.+|zram.+"

_node = partial(Metric, exporter=Exporter.NODE)
_disk = partial(_node, kind=Kind.COUNTER, labels=(DEVICE,))
_net = partial(_node, kind=Kind.COUNTER, labels=(DEVICE,))
_untyped = partial(_node, kind=Kind.COUNTER, bare=True, untyped=True)
_gauge = partial(_node, kind=Kind.GAUGE)

# Disk (/proc/diskstats)
DISK_READS_COMPLETED = _disk("node_disk_reads_completed_total", help="Reads completed.", unit=Unit.OPERATIONS)
DISK_WRITES_COMPLETED = _disk("node_disk_writes_completed_total", help="Writes completed.", unit=Unit.OPERATIONS)
DISK_READ_TIME = _disk("node_disk_read_time_seconds_total", help="Time spent on all reads together.", unit=Unit.SECONDS)
DISK_WRITE_TIME = _disk(
    "node_disk_write_time_seconds_total", help="Time spent on all writes together.", unit=Unit.SECONDS
)
DISK_READ_BYTES = _disk("node_disk_read_bytes_total", help="Bytes read.", unit=Unit.BYTES)
DISK_WRITTEN_BYTES = _disk("node_disk_written_bytes_total", help="Bytes written.", unit=Unit.BYTES)
DISK_IO_TIME = _disk("node_disk_io_time_seconds_total", help="Time with a request in flight.", unit=Unit.SECONDS)
DISK_IO_TIME_WEIGHTED = _disk(
    "node_disk_io_time_weighted_seconds_total", help="The same, times the requests in flight.", unit=Unit.SECONDS
)
DISK_IO_NOW = _gauge("node_disk_io_now", help="Requests in flight.", labels=(DEVICE,), unit=Unit.OPERATIONS)

# Network (/proc/net/dev)
NETWORK_RECEIVE_BYTES = _net("node_network_receive_bytes_total", help="Bytes received.", unit=Unit.BYTES)
NETWORK_TRANSMIT_BYTES = _net("node_network_transmit_bytes_total", help="Bytes sent.", unit=Unit.BYTES)
NETWORK_RECEIVE_PACKETS = _net("node_network_receive_packets_total", help="Packets received.", unit=Unit.PACKETS)
NETWORK_TRANSMIT_PACKETS = _net("node_network_transmit_packets_total", help="Packets sent.", unit=Unit.PACKETS)
NETWORK_RECEIVE_DROP = _net(
    "node_network_receive_drop_total", help="Packets received and dropped, missed ones included.", unit=Unit.PACKETS
)
"""rx_dropped and rx_missed_errors together, as in /proc/net/dev."""
NETWORK_TRANSMIT_DROP = _net(
    "node_network_transmit_drop_total", help="Packets to send that were dropped.", unit=Unit.PACKETS
)
NETWORK_RECEIVE_ERRORS = _net("node_network_receive_errs_total", help="Packets received broken.", unit=Unit.PACKETS)
NETWORK_TRANSMIT_ERRORS = _net("node_network_transmit_errs_total", help="Packets not sent.", unit=Unit.PACKETS)
NETWORK_RECEIVE_FIFO = _net("node_network_receive_fifo_total", help="Receive ring overran.", unit=Unit.PACKETS)
NETWORK_RECEIVE_DROPPED_DETAILED = _net(
    "node_network_receive_dropped_total",
    help="rx_dropped alone.",
    unit=Unit.PACKETS,
    needs="--collector.netdev.enable-detailed-metrics",
    optional=True,
)
NETWORK_RECEIVE_MISSED_ERRORS = _net(
    "node_network_receive_missed_errors_total",
    help="Packets the NIC had no room for.",
    unit=Unit.PACKETS,
    needs="--collector.netdev.enable-detailed-metrics",
    optional=True,
)
"""These two only with ``--collector.netdev.enable-detailed-metrics``, which takes NETWORK_RECEIVE_DROP away."""
NETWORK_SPEED = _gauge(
    "node_network_speed_bytes", help="Speed of the link.", labels=(DEVICE,), unit=Unit.BYTES_PER_SECOND,
    optional=True, plausible=(-1e6, 1e12),
)  # fmt: skip
"""-125000 where the driver does not know."""

# TCP (/proc/net/snmp)
TCP_RETRANSMITTED_SEGMENTS = _untyped(
    "node_netstat_Tcp_RetransSegs", help="TCP segments sent again, of the whole host.", unit=Unit.SEGMENTS
)
TCP_OUT_SEGMENTS = _untyped("node_netstat_Tcp_OutSegs", help="TCP segments sent.", unit=Unit.SEGMENTS)
TCP_LISTEN_DROPS = _untyped("node_netstat_TcpExt_ListenDrops", help="Connections dropped in the listen queue.")
TCP_TIMEOUTS = _untyped("node_netstat_TcpExt_TCPTimeouts", help="TCP retransmission timers that ran out.")

# CPU, memory, paging
CPU_SECONDS = _node(
    "node_cpu_seconds_total", kind=Kind.COUNTER, help="CPU time by mode.", labels=(CPU, MODE),
    unit=Unit.SECONDS, values=("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"),
)  # fmt: skip
SOFTIRQ_CALLS = _node(
    "node_softirqs_functions_total", kind=Kind.COUNTER, help="Softirq calls by CPU and type.",
    labels=(CPU, "type"), needs="--collector.softirqs", optional=True,
)  # fmt: skip
"""Collector ``softirqs``, off by default; in 1.5 and before ``--collector.stat.softirq`` gives the next one."""
SOFTIRQ_VECTOR_CALLS = _node(
    "node_softirqs_total",
    kind=Kind.COUNTER,
    help="Softirq calls by vector.",
    labels=(VECTOR,),
    needs="--collector.stat.softirq",
    optional=True,
)
SOFTNET_DROPPED = _node(
    "node_softnet_dropped_total", kind=Kind.COUNTER, help="Packets dropped: backlog full.",
    labels=(CPU,), unit=Unit.PACKETS,
)  # fmt: skip
SOFTNET_TIMES_SQUEEZED = _node(
    "node_softnet_times_squeezed_total", kind=Kind.COUNTER, help="Softirq ran out of budget with packets left.",
    labels=(CPU,),
)  # fmt: skip
PAGE_FAULTS = _untyped("node_vmstat_pgfault", help="Page faults, minor and major.", unit=Unit.OPERATIONS)
MAJOR_PAGE_FAULTS = _untyped("node_vmstat_pgmajfault", help="Page faults that read from disk.", unit=Unit.OPERATIONS)
OOM_KILLS = _untyped("node_vmstat_oom_kill", help="Processes killed for memory.", optional=True)
MEMORY_TOTAL = _gauge("node_memory_MemTotal_bytes", help="Memory.", unit=Unit.BYTES)
MEMORY_AVAILABLE = _gauge(
    "node_memory_MemAvailable_bytes", help="Memory that can be had without swap.", unit=Unit.BYTES
)
LOAD1 = _gauge("node_load1", help="Load average of one minute.")
BOOT_TIME = _gauge("node_boot_time_seconds", help="When the host booted.", unit=Unit.TIMESTAMP_SECONDS)
PRESSURE_IO_STALLED = _node(
    "node_pressure_io_stalled_seconds_total", kind=Kind.COUNTER, help="Time in which all tasks waited for I/O.",
    unit=Unit.SECONDS, optional=True,
)  # fmt: skip
PRESSURE_IO_WAITING = _node(
    "node_pressure_io_waiting_seconds_total", kind=Kind.COUNTER, help="Time in which some task waited for I/O.",
    unit=Unit.SECONDS, optional=True,
)  # fmt: skip
PRESSURE_CPU_WAITING = _node(
    "node_pressure_cpu_waiting_seconds_total", kind=Kind.COUNTER, help="Time in which some task waited for a CPU.",
    unit=Unit.SECONDS, optional=True,
)  # fmt: skip

# Filesystems
FILESYSTEM_AVAILABLE = _gauge(
    "node_filesystem_avail_bytes", help="Space for users.", labels=(DEVICE, "fstype", "mountpoint"), unit=Unit.BYTES
)
FILESYSTEM_SIZE = _gauge(
    "node_filesystem_size_bytes", help="Size.", labels=(DEVICE, "fstype", "mountpoint"), unit=Unit.BYTES
)

# About the exporter
BUILD_INFO = _gauge(
    "node_exporter_build_info", help="Always 1.",
    labels=("branch", "goarch", "goos", "goversion", "revision", "tags", "version"),
    optional_labels=("tags", "goarch", "goos"),
)  # fmt: skip
UNAME_INFO = _gauge(
    "node_uname_info", help="Always 1.",
    labels=("domainname", "machine", "nodename", "release", "sysname", "version"),
)  # fmt: skip

NODE_METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
