"""Host counters as metrics. What was not seen has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.metrics_core import Metric as Family

from sre.metrics import own
from sre.metrics.types import Metric
from sre.servers.exposition import Row, filled
from sre.signals.host import DiskCounters, HostCounters, NetworkCounters


@dataclass(frozen=True, slots=True)
class HostView:
    """
    What is known of the host at a scrape.

    Attributes:
        counters: The last ones, unless they are too old to be shown.
        age_seconds: Their age, shown or not; None before the first.
        up: The last look was answered in time.
    """

    counters: HostCounters | None
    age_seconds: float | None
    up: bool


class HostSource(Protocol):
    async def look(self) -> None:
        """Take new counters, in bounded time. Never raises."""
        ...

    def view(self) -> HostView:
        """What is known now; never waits."""
        ...


DISK: tuple[tuple[Metric, Callable[[DiskCounters], float]], ...] = (
    (own.HOST_DISK_READS, lambda d: d.reads_completed),
    (own.HOST_DISK_WRITES, lambda d: d.writes_completed),
    (own.HOST_DISK_READ_SECONDS, lambda d: d.read_seconds),
    (own.HOST_DISK_WRITE_SECONDS, lambda d: d.write_seconds),
    (own.HOST_DISK_READ_BYTES, lambda d: d.read_bytes),
    (own.HOST_DISK_WRITTEN_BYTES, lambda d: d.written_bytes),
    (own.HOST_DISK_IO_SECONDS, lambda d: d.io_seconds),
    (own.HOST_DISK_WEIGHTED_IO_SECONDS, lambda d: d.weighted_io_seconds),
)
NETWORK: tuple[tuple[Metric, Callable[[NetworkCounters], float | None]], ...] = (
    (own.HOST_NETWORK_RECEIVE_BYTES, lambda n: n.receive_bytes),
    (own.HOST_NETWORK_TRANSMIT_BYTES, lambda n: n.transmit_bytes),
    (own.HOST_NETWORK_RECEIVE_PACKETS, lambda n: n.receive_packets),
    (own.HOST_NETWORK_TRANSMIT_PACKETS, lambda n: n.transmit_packets),
    (own.HOST_NETWORK_RECEIVE_DISCARDS, lambda n: n.receive_discards),
    (own.HOST_NETWORK_RECEIVE_MISSED, lambda n: n.receive_missed_errors),
    (own.HOST_NETWORK_RECEIVE_ERRORS, lambda n: n.receive_errors),
    (own.HOST_NETWORK_TRANSMIT_DISCARDS, lambda n: n.transmit_discards),
)


def host_families(view: HostView) -> Iterator[Family]:
    """Every family of the host that has a series."""
    yield filled(own.HOST_READER_UP, [((), 1.0 if view.up else 0.0)])
    if view.age_seconds is not None:
        yield filled(own.HOST_SAMPLE_AGE_SECONDS, [((), view.age_seconds)])
    counters = view.counters
    if counters is None:
        return
    for metric, rows in _rows(counters):
        if rows:
            yield filled(metric, rows)


def _rows(counters: HostCounters) -> Iterator[tuple[Metric, list[Row]]]:
    for metric, of_disk in DISK:
        yield metric, [((d.device,), of_disk(d)) for d in counters.disks]
    for metric, of_network in NETWORK:
        values = [(n.device, of_network(n)) for n in counters.networks]
        yield metric, [((device,), value) for device, value in values if value is not None]
    if counters.tcp is not None:
        yield own.HOST_TCP_RETRANSMITTED, [((), counters.tcp.retransmitted_segments)]
        yield own.HOST_TCP_OUT, [((), counters.tcp.out_segments)]
    if counters.cpu is not None:
        yield own.HOST_CPU_SECONDS, [((mode,), seconds) for mode, seconds in counters.cpu.seconds.items()]
        yield own.HOST_CPUS, [((), float(counters.cpu.cpus))]
    if counters.faults is not None:
        yield own.HOST_PAGE_FAULTS, [(("major",), counters.faults.major), (("minor",), counters.faults.minor)]
    if counters.memory is not None:
        yield own.HOST_MEMORY_TOTAL, [((), counters.memory.total)]
        yield own.HOST_MEMORY_AVAILABLE, [((), counters.memory.available)]
