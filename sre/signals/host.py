"""
What the kernel counts on a host, and how its texts are read.

Every parser takes any text and gives values or an ``Unseen`` that says why not: never an exception, and never a zero
that the kernel did not say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

SECTOR_BYTES = 512
"""Unit of /proc/diskstats, whatever the device's own sectors are."""

CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Columns of a cpu line of /proc/stat. Guest time stands in user already."""

JUMP_SECONDS = 3.0
"""Idle and iowait may go back by a tick or so (the kernel says so); a larger step is a CPU that left or came."""
JUMP_FAULTS = 1000.0
"""Minor faults are a difference of two counters that are not read at one instant."""

_PARTITION_OR_VIRTUAL = re.compile(
    r"(z?ram|loop|fd|sr)\d+|(h|s|v|xv)d[a-z]+\d+|(nvme\d+n|mmcblk|md)\d+p\d+|mmcblk\d+boot\d+"
)
_VIRTUAL_NETWORK = re.compile(
    r"lo|(veth|docker|podman|br-|virbr|lxc|lxdbr|cni|cali|cilium|flannel|kube-|nodelocaldns|antrea|ovs-|weave|vxlan|"
    r"geneve|tunl|tun|tap|wg|ifb|dummy|sit|gre|erspan|ip6|ip_vti|teql|nlmon|vnet|fwbr|fwpr|fwln).*"
)
_NAME = re.compile(r"[!-~]{1,64}")


@dataclass(frozen=True, slots=True)
class Unseen:
    """A text that did not hold what was looked for. ``why`` completes "not seen: …"."""

    why: str


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """One whole disk since boot. Times are seconds; of reads and writes summed over requests."""

    device: str
    reads_completed: float
    read_bytes: float
    read_seconds: float
    writes_completed: float
    written_bytes: float
    write_seconds: float
    io_seconds: float
    weighted_io_seconds: float


@dataclass(frozen=True, slots=True)
class NetworkCounters:
    """One network device since it came up; None: its driver does not say."""

    device: str
    receive_bytes: float | None = None
    transmit_bytes: float | None = None
    receive_packets: float | None = None
    transmit_packets: float | None = None
    receive_discards: float | None = None
    receive_missed_errors: float | None = None
    receive_errors: float | None = None
    transmit_discards: float | None = None


@dataclass(frozen=True, slots=True)
class TcpCounters:
    """Of this network namespace, since it was made."""

    retransmitted_segments: float
    out_segments: float


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds per mode since boot, summed over ``cpus`` CPUs. A mode that the kernel does not know is left out."""

    seconds: Mapping[str, float]
    cpus: int


@dataclass(frozen=True, slots=True)
class PageFaults:
    """Since boot. ``minor`` are those whose page did not come from a disk."""

    major: float
    minor: float


@dataclass(frozen=True, slots=True)
class MemoryBytes:
    total: float
    available: float


@dataclass(frozen=True, slots=True)
class HostCounters:
    """
    All of a host at one time.

    Attributes:
        at: Monotonic seconds.
        unseen: Source → why it was not seen. Its field is then empty or None.
    """

    at: float
    disks: tuple[DiskCounters, ...] = ()
    networks: tuple[NetworkCounters, ...] = ()
    tcp: TcpCounters | None = None
    cpu: CpuTimes | None = None
    faults: PageFaults | None = None
    memory: MemoryBytes | None = None
    unseen: Mapping[str, str] = field(default_factory=dict)


def is_whole_disk(name: str) -> bool:
    """Whether a block device is a disk of its own (sda, nvme0n1, dm-0, md0): no partition, loop or memory disk."""
    return _NAME.fullmatch(name) is not None and _PARTITION_OR_VIRTUAL.fullmatch(name) is None


def is_network_card(name: str) -> bool:
    """Whether traffic of a network device is the host's own. A container's eth0 is; bridges, tunnels and veth are not:
    they would count the same bytes again."""
    return _NAME.fullmatch(name) is not None and _VIRTUAL_NETWORK.fullmatch(name) is None


def number(text: str) -> float | None:
    """A count as the kernel writes it; None when ``text`` is none. Counts are not negative."""
    digits = text.strip()
    # Longer than any 64-bit count: not the kernel's.
    return float(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None


def parse_diskstats(text: str) -> tuple[DiskCounters, ...] | Unseen:
    """Whole disks of /proc/diskstats. A line that cannot be read leaves its disk out."""
    disks: dict[str, DiskCounters] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 14 or not is_whole_disk(fields[2]):
            continue
        numbers = [n for n in map(number, fields[3:14]) if n is not None]
        if len(numbers) != 11:
            continue
        reads, _, read_sectors, read_ms, writes, _, write_sectors, write_ms, _, io_ms, weighted_ms = numbers
        disk = DiskCounters(
            device=fields[2],
            reads_completed=reads,
            read_bytes=read_sectors * SECTOR_BYTES,
            read_seconds=read_ms / 1000,
            writes_completed=writes,
            written_bytes=write_sectors * SECTOR_BYTES,
            write_seconds=write_ms / 1000,
            io_seconds=io_ms / 1000,
            weighted_io_seconds=weighted_ms / 1000,
        )
        disks.setdefault(disk.device, disk)
    return tuple(disks.values()) if disks else Unseen("it lists no disk")


def parse_network(device: str, statistics: Mapping[str, str]) -> NetworkCounters | Unseen:
    """One device from the files of its ``statistics`` folder (name → text)."""
    found = NetworkCounters(
        device,
        **{
            name: number(statistics[file])
            for name, file in NETWORK_FILES.items()
            if file in statistics
        },
    )  # fmt: skip
    if all(getattr(found, name) is None for name in NETWORK_FILES):
        return Unseen("it has no statistics")
    return found


NETWORK_FILES: Mapping[str, str] = {
    "receive_bytes": "rx_bytes",
    "transmit_bytes": "tx_bytes",
    "receive_packets": "rx_packets",
    "transmit_packets": "tx_packets",
    "receive_discards": "rx_dropped",
    "receive_missed_errors": "rx_missed_errors",
    "receive_errors": "rx_errors",
    "transmit_discards": "tx_dropped",
}
"""Field of ``NetworkCounters`` → file in /sys/class/net/DEVICE/statistics."""


def parse_snmp(text: str) -> TcpCounters | Unseen:
    """TCP of /proc/net/snmp: a line of names, then one of values."""
    names: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("Tcp:"):
            continue
        words = line.split()[1:]
        if names is None:
            names = words
            continue
        values = dict(zip(names, map(number, words), strict=False))
        again, out = values.get("RetransSegs"), values.get("OutSegs")
        if again is None or out is None:
            break
        return TcpCounters(again, out)
    return Unseen("it has no RetransSegs and OutSegs")


def parse_stat(text: str, ticks_per_second: int) -> CpuTimes | Unseen:
    """CPU times of /proc/stat."""
    seconds: dict[str, float] | None = None
    cpus = 0
    for line in text.splitlines():
        fields = line.split()
        if not fields or re.fullmatch(r"cpu\d*", fields[0]) is None:
            continue
        if fields[0] != "cpu":
            cpus += 1
            continue
        values = {mode: number(f) for mode, f in zip(CPU_MODES, fields[1:], strict=False)}
        seconds = {mode: value / ticks_per_second for mode, value in values.items() if value is not None}
    if not seconds or not cpus:
        return Unseen("it has no cpu lines")
    return CpuTimes(seconds, cpus)


def parse_vmstat(text: str) -> PageFaults | Unseen:
    """Page faults of /proc/vmstat."""
    found = _pairs(text, ("pgfault", "pgmajfault"))
    if len(found) != 2:
        return Unseen("it has no pgfault and pgmajfault")
    return PageFaults(found["pgmajfault"], max(0.0, found["pgfault"] - found["pgmajfault"]))


def parse_meminfo(text: str) -> MemoryBytes | Unseen:
    """Total and available memory of /proc/meminfo."""
    found = _pairs(text, ("MemTotal:", "MemAvailable:"))
    if len(found) != 2:
        return Unseen("it has no MemTotal and MemAvailable")
    return MemoryBytes(found["MemTotal:"] * 1024, found["MemAvailable:"] * 1024)


def _pairs(text: str, wanted: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name in wanted and rest.split():
            value = number(rest.split()[0])
            if value is not None:
                found[name] = value
    return found


def without_steps_back(before: HostCounters | None, now: HostCounters) -> HostCounters:
    """
    ``now``, with the values of ``before`` where a counter went back by less than the kernel's own inaccuracy.

    A counter that goes back is a restart to whoever reads it, and all it ever counted would count anew.
    """
    if before is None:
        return now
    cpu, faults = now.cpu, now.faults
    if cpu is not None and before.cpu is not None and cpu.cpus == before.cpu.cpus:
        old = before.cpu.seconds
        cpu = replace(cpu, seconds={m: _held(old.get(m, s), s, JUMP_SECONDS) for m, s in cpu.seconds.items()})
    if faults is not None and before.faults is not None:
        faults = replace(faults, minor=_held(before.faults.minor, faults.minor, JUMP_FAULTS))
    return replace(now, cpu=cpu, faults=faults)


def _held(before: float, now: float, tolerance: float) -> float:
    return before if now < before < now + tolerance else now
