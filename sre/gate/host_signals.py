"""What the kernel counted on the host during a stage: the difference of two reads, as uses of resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sre.gate.stages import Resource, ResourceUse
from sre.signals.host import HostCounters

ALL_PROCESSES = "/proc/stat, all processes"
"""Source of a use of the CPU that is not the target's alone."""
IDLE_MODES = frozenset({"idle", "iowait"})
_TOTAL = re.compile(r"^some .*\btotal=(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostRead:
    """
    One read.

    Attributes:
        pressure_seconds: cpu, io, memory → time in which some task waited for it, since boot.
        link_bits_per_second: Network card → speed of its link; left out where the driver does not say.
    """

    counters: HostCounters
    pressure_seconds: Mapping[str, float] = field(default_factory=dict)
    link_bits_per_second: Mapping[str, float] = field(default_factory=dict)


def parse_pressure(text: str) -> float | None:
    """Seconds in which some task waited, of /proc/pressure/*; None: it is no such file."""
    match = _TOTAL.search(text)
    return None if match is None else int(match[1]) / 1e6


def host_signals(
    before: HostRead,
    after: HostRead,
    *,
    storage_bytes_per_second: float | None,
    network_bits_per_second: float | None,
) -> tuple[dict[str, float], list[ResourceUse], dict[str, str]]:
    """``StageSignals.host``, uses, and what was not seen with the reason."""
    host: dict[str, float] = {}
    uses: list[ResourceUse] = []
    unseen: dict[str, str] = {}
    seconds = after.counters.at - before.counters.at
    if seconds <= 0:
        return host, uses, {"host": "no time passed between the two reads"}
    _cpu(before, after, host, uses, unseen)
    _disks(before, after, seconds, storage_bytes_per_second, host, uses, unseen)
    _network(before, after, seconds, network_bits_per_second, host, uses, unseen)
    for name, waited in after.pressure_seconds.items():
        if name in before.pressure_seconds:
            host[f"{name}_pressure_ratio"] = max(0.0, (waited - before.pressure_seconds[name]) / seconds)
    tcp_before, tcp_after = before.counters.tcp, after.counters.tcp
    if tcp_before is not None and tcp_after is not None:
        sent = tcp_after.out_segments - tcp_before.out_segments
        if sent > 0:
            again = tcp_after.retransmitted_segments - tcp_before.retransmitted_segments
            host["retransmitted_ratio"] = max(0.0, again / sent)
    return host, uses, unseen


def without_client(use: ResourceUse, client_cpu_seconds: float, seconds: float) -> ResourceUse:
    """
    The CPU of this machine less what this client took of it in ``seconds``: the load is not part of what is tested.

    Which processes are the target's nobody knows here, so the source says whose the rest is.
    """
    rest = f"{ALL_PROCESSES} of this machine"
    if not use.capacity or seconds <= 0 or client_cpu_seconds <= 0:
        return replace(use, source=f"{rest}, this client among them: the target's own share is not known")
    share = min(use.utilization, client_cpu_seconds / seconds / use.capacity)
    left = use.utilization - share
    return replace(
        use,
        utilization=left,
        amount=left * use.capacity,
        source=f"{rest} but this client, whose {share:.0%} is taken out: the target's own share is not known",
    )


def _cpu(
    before: HostRead, after: HostRead, host: dict[str, float], uses: list[ResourceUse], unseen: dict[str, str]
) -> None:
    first, last = before.counters.cpu, after.counters.cpu
    if first is None or last is None:
        unseen["cpu"] = after.counters.unseen.get("stat", "/proc/stat was not read")
        return
    spent = {mode: max(0.0, value - first.seconds.get(mode, value)) for mode, value in last.seconds.items()}
    total = sum(spent.values())
    if total <= 0:
        unseen["cpu"] = "the kernel's clock of CPU time stood still"
        return
    busy = sum(value for mode, value in spent.items() if mode not in IDLE_MODES) / total
    host["cpu_ratio"] = busy
    for mode in ("iowait", "softirq", "steal"):
        if mode in spent:
            host[f"{mode}_ratio"] = spent[mode] / total
    uses.append(ResourceUse(Resource.CPU, busy, False, ALL_PROCESSES, busy * last.cpus, "cores", float(last.cpus)))


def _disks(
    before: HostRead, after: HostRead, seconds: float, capacity: float | None, host: dict[str, float],
    uses: list[ResourceUse], unseen: dict[str, str],
) -> None:  # fmt: skip
    first = {disk.device: disk for disk in before.counters.disks}
    pairs = [(first[disk.device], disk) for disk in after.counters.disks if disk.device in first]
    if not pairs:
        unseen["storage"] = after.counters.unseen.get("diskstats", "no disk in /proc/diskstats")
        return
    read = {new.device: max(0.0, new.read_bytes - old.read_bytes) / seconds for old, new in pairs}
    written = {new.device: max(0.0, new.written_bytes - old.written_bytes) / seconds for old, new in pairs}
    busy = {new.device: max(0.0, new.io_seconds - old.io_seconds) / seconds for old, new in pairs}
    # A device mapper and the disk below it count the same bytes: the busiest device stands for all.
    most = max(read, key=lambda name: (busy[name], read[name] + written[name]))
    host["disk_read_bytes_per_second"], host["disk_write_bytes_per_second"] = read[most], written[most]
    host["disk_busy_ratio"] = busy[most]
    rate = read[most] + written[most]
    if capacity is not None:
        uses.append(
            ResourceUse(
                Resource.STORAGE, rate / capacity, False, f"/proc/diskstats {most}, bytes", rate / 1e6, "MB/s",
                capacity / 1e6,
            )
        )  # fmt: skip
    else:
        source = f"/proc/diskstats {most}, time with I/O ({rate / 1e6:.4g} MB/s)"
        uses.append(ResourceUse(Resource.STORAGE, min(1.0, busy[most]), False, source))


def _network(
    before: HostRead, after: HostRead, seconds: float, capacity: float | None, host: dict[str, float],
    uses: list[ResourceUse], unseen: dict[str, str],
) -> None:  # fmt: skip
    first = {card.device: card for card in before.counters.networks}
    best: tuple[float, str, float, float | None] | None = None
    total = 0.0
    for card in after.counters.networks:
        old = first.get(card.device)
        ways = [
            max(0.0, new - earlier) / seconds * 8
            for new, earlier in (
                (card.receive_bytes, None if old is None else old.receive_bytes),
                (card.transmit_bytes, None if old is None else old.transmit_bytes),
            )
            if new is not None and earlier is not None
        ]
        if not ways:
            continue
        total += sum(ways) / 8
        speed = capacity or after.link_bits_per_second.get(card.device)
        # Both directions have the whole link: the fuller one counts.
        share = max(ways) / speed if speed else 0.0
        if best is None or (share, max(ways)) > (best[0], best[2]):
            best = share, card.device, max(ways), speed
    if best is None:
        unseen["network"] = after.counters.unseen.get("net", "no network card counts")
        return
    host["network_bytes_per_second"] = total
    share, device, bits, speed = best
    if speed is None:
        unseen["network"] = (
            f"{device} carried {bits / 1e9:.4g} Gbit/s, and its driver tells no link speed; "
            "set gate.capacity.network_bits_per_second"
        )
        return
    uses.append(
        ResourceUse(
            Resource.NETWORK, share, False, f"/sys/class/net/{device}, the fuller direction", bits / 1e9, "Gbit/s",
            speed / 1e9,
        )
    )  # fmt: skip
