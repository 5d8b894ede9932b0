"""The kernel's texts → values or a named absence: real texts, odd ones, and any text at all."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.adapters.host_counters import HostCountersReader
from sre.signals.host import (
    NETWORK_FILES,
    CpuTimes,
    DiskCounters,
    HostCounters,
    MemoryBytes,
    NetworkCounters,
    PageFaults,
    TcpCounters,
    Unseen,
    is_network_card,
    is_whole_disk,
    parse_diskstats,
    parse_meminfo,
    parse_network,
    parse_snmp,
    parse_stat,
    parse_vmstat,
    without_steps_back,
)

DISKSTATS = """\
   7       0 loop0 1 1 1 1 1 1 1 1 1 1 1 0 0 0 0 0 0
   8       0 sda 10 1 80 500 20 2 160 1500 3 900 2000 4 0 8 7 5 6
   8       1 sda1 9 1 72 400 19 2 152 1400 0 800 1800
 259       0 nvme0n1 100 0 800 50 0 0 0 0 0 40 50
 259       1 nvme0n1p1 99 0 792 49 0 0 0 0 0 39 49
 253       0 dm-0 5 0 40 7 6 0 48 9 0 8 16
   9       0 md0 1 0 8 0 0 0 0 0 0 0 0
 252       0 zram0 9 9 9 9 9 9 9 9 9 9 9
"""
SNMP = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens OutSegs RetransSegs
Tcp: 1 200 120000 -1 99 1000 25
"""
STAT = """\
cpu  100 20 300 4000 50 0 7 8 90 10
cpu0 50 10 150 2000 25 0 3 4 45 5
cpu1 50 10 150 2000 25 0 4 4 45 5
intr 1 2 3
"""
VMSTAT = "nr_free_pages 7\npgfault 1000\npgmajfault 40\npgfaults_other 3\n"
MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n"


def test_whole_disks_in_base_units() -> None:
    disks = parse_diskstats(DISKSTATS)
    assert not isinstance(disks, Unseen)
    assert [d.device for d in disks] == ["sda", "nvme0n1", "dm-0", "md0"]
    assert disks[0] == DiskCounters(
        device="sda",
        reads_completed=10,
        read_bytes=80 * 512,
        read_seconds=0.5,
        writes_completed=20,
        written_bytes=160 * 512,
        write_seconds=1.5,
        io_seconds=0.9,
        weighted_io_seconds=2.0,
    )


@pytest.mark.parametrize(
    ("name", "whole"),
    [("sda", True), ("sda1", False), ("sdaa", True), ("sdaa12", False), ("vda", True), ("vda1", False), ("xvdb", True),
     ("nvme0n1", True), ("nvme10n2p3", False), ("mmcblk0", True), ("mmcblk0p1", False), ("mmcblk0boot0", False),
     ("md127", True), ("md127p1", False), ("dm-3", True), ("loop7", False), ("ram0", False), ("zram0", False),
     ("sr0", False), ("fd0", False), ("rbd0", True), ("", False), ("a b", False)],
)  # fmt: skip
def test_which_block_devices_are_disks(name: str, whole: bool) -> None:
    assert is_whole_disk(name) is whole


@pytest.mark.parametrize(
    ("name", "card"),
    [("eth0", True), ("ens5", True), ("enp3s0f1", True), ("ib0", True), ("bond0", True), ("wlan0", True),
     ("eth0.100", True), ("lo", False), ("veth1a2b", False), ("docker0", False), ("br-0123abcd", False),
     ("virbr0", False), ("cali99", False), ("flannel.1", False), ("tun0", False), ("ifb0", False), ("", False)],
)  # fmt: skip
def test_which_network_devices_are_cards(name: str, card: bool) -> None:
    assert is_network_card(name) is card


def test_other_sources_in_base_units() -> None:
    assert parse_snmp(SNMP) == TcpCounters(25, 1000)
    cpu = parse_stat(STAT, 100)
    assert cpu == CpuTimes(
        {"user": 1, "nice": 0.2, "system": 3, "idle": 40, "iowait": 0.5, "irq": 0, "softirq": 0.07, "steal": 0.08}, 2
    )
    assert parse_vmstat(VMSTAT) == PageFaults(major=40, minor=960)
    assert parse_meminfo(MEMINFO) == MemoryBytes(16000 * 1024, 9000 * 1024)
    assert parse_network("eth0", {"rx_bytes": "5\n", "rx_dropped": "x"}) == NetworkCounters("eth0", receive_bytes=5)


@pytest.mark.parametrize(
    "found",
    [
        parse_diskstats("   8       0 sda 10 1 80 500 20 2 160 1500 3 900\n"),  # a field short
        parse_diskstats("8 0 sda 10 1 80 -5 20 2 160 1500 3 900 2000\n"),
        parse_snmp("Tcp: OutSegs RetransSegs\nTcp: 1000\n"),
        parse_snmp("Tcp: OutSegs RetransSegs\n"),
        parse_snmp("Tcp: OutSegs\nTcp: 5\n"),
        parse_stat("cpu  1 2 3 4\n", 100),
        parse_stat("cpu0 1 2 3 4\n", 100),
        parse_vmstat("pgfault 7\n"),
        parse_vmstat("pgfault -7\npgmajfault 1\n"),
        parse_meminfo("MemTotal: 5 kB\n"),
        parse_network("eth0", {"rx_bytes": ""}),
        parse_network("eth0", {}),
    ],
)
def test_half_a_text_is_an_absence_with_a_reason_and_never_a_zero(found: Any) -> None:
    assert isinstance(found, Unseen)
    assert found.why


PARSERS: tuple[Callable[[str], Any], ...] = (
    parse_diskstats,
    parse_snmp,
    lambda text: parse_stat(text, 100),
    parse_vmstat,
    parse_meminfo,
    lambda text: parse_network("eth0", dict.fromkeys(NETWORK_FILES.values(), text)),
)
odd_texts = st.text(max_size=200) | st.lists(
    st.sampled_from(
        [*(DISKSTATS + SNMP + STAT + VMSTAT + MEMINFO).split(), "\n", "-1", "1e9", "nan", "٣", "9" * 30, ""]
    ),
    max_size=60,
).map(" ".join)


def numbers(value: Any) -> list[float]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [n for f in dataclasses.fields(value) for n in numbers(getattr(value, f.name))]
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, tuple):
        return [n for v in value for n in numbers(v)]
    return [float(value)] if isinstance(value, int | float) else []


@given(odd_texts)
def test_any_text_gives_values_or_an_absence(text: str) -> None:
    for parse in PARSERS:
        found = parse(text)
        if isinstance(found, Unseen):
            assert found.why
        else:
            assert numbers(found), "values, or an absence"
            assert all(math.isfinite(n) and n >= 0 for n in numbers(found))


def test_a_text_that_is_cut_off_gives_no_zero_that_was_not_there() -> None:
    for end in range(len(DISKSTATS)):
        found = parse_diskstats(DISKSTATS[:end])
        for disk in found if not isinstance(found, Unseen) else ():
            if disk.device == "sda":
                assert min(numbers(disk)) > 0


# ---- steps back ----------------------------------------------------------------------------------------------------


def host(idle: float, minor: float, cpus: int = 2) -> HostCounters:
    return HostCounters(0.0, cpu=CpuTimes({"idle": idle, "user": 5.0}, cpus), faults=PageFaults(1.0, minor))


@pytest.mark.parametrize(
    ("before", "now", "shown"),
    [
        (host(100, 500), host(101, 600), host(101, 600)),
        (host(100, 500), host(99.9, 499), host(100, 500)),  # inaccuracy of the kernel
        (host(100, 50_000), host(20, 7), host(20, 7)),  # a new beginning
        (host(100, 500), host(99.9, 500, cpus=1), host(99.9, 500, cpus=1)),  # a CPU was taken away
        (HostCounters(0.0), host(1, 1), host(1, 1)),
        (host(1, 1), HostCounters(0.0), HostCounters(0.0)),
    ],
)
def test_a_counter_does_not_go_back_for_an_inaccuracy(
    before: HostCounters, now: HostCounters, shown: HostCounters
) -> None:
    assert without_steps_back(before, now) == shown
    assert without_steps_back(None, now) == now


# ---- the reader ----------------------------------------------------------------------------------------------------


def tree(root: Path) -> Path:
    (root / "proc" / "net").mkdir(parents=True)
    for name, text in (("diskstats", DISKSTATS), ("net/snmp", SNMP), ("stat", STAT), ("vmstat", VMSTAT),
                       ("meminfo", MEMINFO)):  # fmt: skip
        (root / "proc" / name).write_text(text)
    for device in ("eth0", "lo", "veth0"):
        folder = root / "sys" / "class" / "net" / device / "statistics"
        folder.mkdir(parents=True)
        for number, file in enumerate(NETWORK_FILES.values()):
            (folder / file).write_text(f"{number + 1}\n")
    (root / "sys" / "class" / "net" / "bonding_masters").write_text("")
    return root


def reader(root: Path) -> HostCountersReader:
    return HostCountersReader(lambda: 7.0, root, ticks_per_second=100)


def test_a_whole_host(tmp_path: Path) -> None:
    found = reader(tree(tmp_path)).read()
    assert found.at == 7.0
    assert len(found.disks) == 4
    assert found.networks == (NetworkCounters("eth0", 1, 2, 3, 4, 5, 6, 7, 8),)
    assert None not in (found.tcp, found.cpu, found.faults, found.memory)
    assert found.unseen == {"net/bonding_masters": "it has no statistics"}


@pytest.mark.parametrize(
    ("gone", "source"),
    [("proc/diskstats", "diskstats"), ("proc/net/snmp", "net/snmp"), ("proc/stat", "stat"), ("proc/vmstat", "vmstat"),
     ("proc/meminfo", "meminfo"), ("sys/class/net", "net"), ("sys/class/net/eth0/statistics", "net/eth0")],
)  # fmt: skip
def test_what_is_missing_is_named_and_costs_nothing_else(tmp_path: Path, gone: str, source: str) -> None:
    there = tree(tmp_path) / gone
    shutil.rmtree(there) if there.is_dir() else there.unlink()
    found = reader(tmp_path).read()
    assert found.unseen[source]
    seen = (found.disks, found.networks, found.tcp, found.cpu, found.faults, found.memory)
    assert sum(not part for part in seen) == 1


def test_an_empty_machine_raises_nothing(tmp_path: Path) -> None:
    found = reader(tmp_path).read()
    assert found == HostCounters(7.0, unseen=found.unseen)
    assert len(found.unseen) == 6


def test_a_count_that_the_driver_lacks_is_missing_alone(tmp_path: Path) -> None:
    (tree(tmp_path) / "sys/class/net/eth0/statistics/rx_missed_errors").unlink()
    (card,) = reader(tmp_path).read().networks
    assert card.receive_missed_errors is None
    assert card.receive_bytes == 1


def test_a_cpu_time_that_steps_back_is_held(tmp_path: Path) -> None:
    made = reader(tree(tmp_path))
    before = made.read()
    (tmp_path / "proc" / "stat").write_text(STAT.replace("4000", "3999"))
    assert made.read().cpu == before.cpu


def test_this_machine() -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc")
    made = HostCountersReader(time.monotonic)
    first, second = made.read(), made.read()
    assert first.cpu is not None
    assert second.cpu is not None
    assert first.cpu.cpus == len([n for n in os.listdir("/sys/devices/system/cpu") if n[3:].isdigit()])
    assert all(second.cpu.seconds[mode] >= seconds for mode, seconds in first.cpu.seconds.items())
    assert first.memory is not None
    assert 0 < first.memory.available <= first.memory.total
