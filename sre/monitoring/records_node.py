"""
Records of disks, networks and hosts: node_exporter, else the guard.

The two listen on different ports, so ``instance`` always differs; a host is the same where ``node`` is (by default the
host part of ``instance``), and node_exporter is taken. Machines behind one address (tunnels, port forwarding) need a
target label ``node``.
"""

from __future__ import annotations

from dataclasses import replace

from sre.metrics import node, own
from sre.metrics.types import Exporter, Metric, Unit
from sre.monitoring.levels import DEVICE, INSTANCE, LEVELS, NODE
from sre.monitoring.model import Record
from sre.monitoring.promql import (
    Expr,
    Selection,
    either,
    either_on,
    max_by,
    minus,
    plus,
    quoted,
    ratio,
    sum_by,
    with_node,
)

WINDOW = "5m"
LEAST_SEGMENTS_PER_SECOND = 100
"""Fewer TCP segments a second make a retransmit ratio of chance."""
REAL_DISK = f"device!~{quoted(f'{node.VIRTUAL_DISK_DEVICES}|dm-.+|md.+')}"
"""Mapped and RAID devices repeat what the disks below them do."""
REAL_NETWORK = f"device!~{quoted(node.VIRTUAL_NETWORK_DEVICES)}"


def host_records(selection: Selection) -> list[Record]:
    """Every record of disks, networks and hosts."""
    return [*_disks(selection), *_networks(selection), *_hosts(selection)]


def _on_level(expr: Expr, level: str) -> Expr:
    return max_by(with_node(expr), *LEVELS[level])


def _device_record(name: str, text: str, theirs: Expr, ours: Expr) -> Record:
    level = "instance_device"
    joined = either_on(_on_level(theirs, level), _on_level(ours, level), NODE, DEVICE)
    return Record(f"{level}:{name}", joined, text)


def _host_record(name: str, text: str, theirs: Expr, ours: Expr) -> Record:
    level = "instance"
    return Record(f"{level}:{name}", either_on(_on_level(theirs, level), _on_level(ours, level), NODE), text)


def _only(metric: Metric, matcher: str) -> tuple[str, ...]:
    """node_exporter shows every device, the guard only real ones."""
    return (matcher,) if metric.exporter is Exporter.NODE else ()


def _disks(selection: Selection) -> list[Record]:
    def rate(metric: Metric) -> Expr:
        return selection.rate(metric, WINDOW, *_only(metric, REAL_DISK))

    def await_(seconds: Metric, operations: Metric) -> Expr:
        return ratio(rate(seconds), rate(operations), Unit.SECONDS)

    def both_ways(reads: Metric, writes: Metric) -> Expr:
        return plus(rate(reads), rate(writes))

    def busy(metric: Metric) -> Expr:
        """Seconds a second: a ratio."""
        return replace(rate(metric), unit=Unit.RATIO)

    return [
        _device_record(
            "disk_read_await:seconds_rate5m",
            "Mean time of a read, queue included.",
            await_(node.DISK_READ_TIME, node.DISK_READS_COMPLETED),
            await_(own.HOST_DISK_READ_SECONDS, own.HOST_DISK_READS),
        ),
        _device_record(
            "disk_write_await:seconds_rate5m",
            "Mean time of a write, queue included.",
            await_(node.DISK_WRITE_TIME, node.DISK_WRITES_COMPLETED),
            await_(own.HOST_DISK_WRITE_SECONDS, own.HOST_DISK_WRITES),
        ),
        _device_record(
            "disk_await:seconds_rate5m",
            "Mean time of a read or write, queue included.",
            ratio(
                both_ways(node.DISK_READ_TIME, node.DISK_WRITE_TIME),
                both_ways(node.DISK_READS_COMPLETED, node.DISK_WRITES_COMPLETED),
                Unit.SECONDS,
            ),
            ratio(
                both_ways(own.HOST_DISK_READ_SECONDS, own.HOST_DISK_WRITE_SECONDS),
                both_ways(own.HOST_DISK_READS, own.HOST_DISK_WRITES),
                Unit.SECONDS,
            ),
        ),
        _device_record(
            "disk_utilization:ratio_rate5m",
            "Share of time with a request under way (%util); says little alone where a disk serves many at once.",
            busy(node.DISK_IO_TIME),
            busy(own.HOST_DISK_IO_SECONDS),
        ),
        _device_record(
            "disk_read:bytes_rate5m", "Bytes read a second.", rate(node.DISK_READ_BYTES), rate(own.HOST_DISK_READ_BYTES)
        ),
        _device_record(
            "disk_written:bytes_rate5m",
            "Bytes written a second.",
            rate(node.DISK_WRITTEN_BYTES),
            rate(own.HOST_DISK_WRITTEN_BYTES),
        ),
        _device_record(
            "disk_iops:rate5m",
            "Reads and writes a second.",
            both_ways(node.DISK_READS_COMPLETED, node.DISK_WRITES_COMPLETED),
            both_ways(own.HOST_DISK_READS, own.HOST_DISK_WRITES),
        ),
    ]


def _networks(selection: Selection) -> list[Record]:
    def rate(metric: Metric) -> Expr:
        return selection.rate(metric, WINDOW, *_only(metric, REAL_NETWORK))

    def record(name: str, text: str, theirs: Metric, ours: Metric) -> Record:
        return _device_record(f"network_{name}", text, rate(theirs), rate(ours))

    dropped = either(rate(node.NETWORK_RECEIVE_DROP), rate(node.NETWORK_RECEIVE_DROPPED_DETAILED))
    return [
        record(
            "receive:bytes_rate5m", "Bytes received.", node.NETWORK_RECEIVE_BYTES, own.HOST_NETWORK_RECEIVE_BYTES
        ),
        record(
            "transmit:bytes_rate5m", "Bytes sent.", node.NETWORK_TRANSMIT_BYTES, own.HOST_NETWORK_TRANSMIT_BYTES
        ),
        _device_record(
            "network_receive_discards:rate5m",
            "Packets dropped on receipt, a second; node_exporter counts those the card missed too, unless told not to.",
            dropped,
            rate(own.HOST_NETWORK_RECEIVE_DISCARDS),
        ),
        _device_record(
            "network_receive_discards:ratio_rate5m",
            "Share of received packets that were dropped.",
            ratio(dropped, rate(node.NETWORK_RECEIVE_PACKETS)),
            ratio(rate(own.HOST_NETWORK_RECEIVE_DISCARDS), rate(own.HOST_NETWORK_RECEIVE_PACKETS)),
        ),
        record(
            "receive_missed_errors:rate5m",
            "Packets that the card dropped because the host did not fetch them in time, a second.",
            node.NETWORK_RECEIVE_MISSED_ERRORS,
            own.HOST_NETWORK_RECEIVE_MISSED,
        ),
    ]  # fmt: skip


def _hosts(selection: Selection) -> list[Record]:
    def rate(metric: Metric, **equal: str) -> Expr:
        return selection.rate(metric, WINDOW, **equal)

    def cpu(metric: Metric, mode: str) -> Expr:
        """Share of all CPUs' time, summed over CPUs where the exporter has one series for each."""
        part = sum_by(rate(metric, mode=mode), NODE, INSTANCE)
        return ratio(part, sum_by(rate(metric), NODE, INSTANCE))

    def retransmits(again: Metric, out: Metric) -> Expr:
        return ratio(rate(again), rate(out), least=LEAST_SEGMENTS_PER_SECOND)

    return [
        _host_record(
            "tcp_retransmits:ratio_rate5m",
            "TCP segments sent again, by those sent; of the whole host, none while hardly anything is sent.",
            retransmits(node.TCP_RETRANSMITTED_SEGMENTS, node.TCP_OUT_SEGMENTS),
            retransmits(own.HOST_TCP_RETRANSMITTED, own.HOST_TCP_OUT),
        ),
        *(
            _host_record(
                f"cpu_{mode}:ratio_rate5m",
                f"Share of the CPUs' time in mode {mode}.",
                cpu(node.CPU_SECONDS, mode),
                cpu(own.HOST_CPU_SECONDS, mode),
            )
            for mode in ("iowait", "softirq")
        ),
        _host_record(
            "page_faults_major:rate5m",
            "Page faults that read from disk, a second.",
            rate(node.MAJOR_PAGE_FAULTS),
            rate(own.HOST_PAGE_FAULTS, kind="major"),
        ),
        _host_record(
            "page_faults_minor:rate5m",
            "Page faults that did not read from disk, a second.",
            minus(rate(node.PAGE_FAULTS), rate(node.MAJOR_PAGE_FAULTS)),
            rate(own.HOST_PAGE_FAULTS, kind="minor"),
        ),
    ]
