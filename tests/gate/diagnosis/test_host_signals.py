"""Host counters around a stage, as uses."""

from __future__ import annotations

import dataclasses

import pytest

from sre.gate.host_signals import HostRead, host_signals, parse_pressure
from sre.gate.stages import Resource
from sre.signals.host import CpuTimes, DiskCounters, HostCounters, NetworkCounters, TcpCounters

BEFORE = HostRead(
    HostCounters(
        at=10.0,
        disks=(DiskCounters("nvme0n1", 0, 0, 0, 0, 0, 0, 0, 0), DiskCounters("sdb", 0, 0, 0, 0, 0, 0, 0, 0)),
        networks=(NetworkCounters("eth0", 0, 0), NetworkCounters("eth1", 0, 0)),
        tcp=TcpCounters(0, 0),
        cpu=CpuTimes({"user": 0, "system": 0, "idle": 0, "iowait": 0}, 4),
    ),
    {"cpu": 1.0, "io": 2.0},
    {"eth0": 10e9, "eth1": 1e9},
)
AFTER = HostRead(
    HostCounters(
        at=20.0,
        disks=(
            DiskCounters("nvme0n1", 0, 20e9, 0, 0, 5e9, 0, 8, 0),
            DiskCounters("sdb", 0, 1e9, 0, 0, 0, 0, 1, 0),
        ),
        networks=(NetworkCounters("eth0", 2e9, 5e9), NetworkCounters("eth1", 0.9e9, 1e6)),
        tcp=TcpCounters(20, 1000),
        cpu=CpuTimes({"user": 20, "system": 10, "idle": 8, "iowait": 2}, 4),
    ),
    {"cpu": 6.0, "io": 2.0},
    {"eth0": 10e9, "eth1": 1e9},
)


def signals(
    before: HostRead, after: HostRead, storage: float | None = None, network: float | None = None
) -> tuple[dict[str, float], dict[Resource, float], dict[str, str]]:
    host, uses, unseen = host_signals(before, after, storage_bytes_per_second=storage, network_bits_per_second=network)
    return host, {use.resource: use.utilization for use in uses}, unseen


def test_uses_are_shares_of_cores_disk_and_link() -> None:
    host, uses, unseen = signals(BEFORE, AFTER)
    assert uses == {
        Resource.CPU: pytest.approx(0.75),
        Resource.STORAGE: pytest.approx(0.8),
        # eth1 is fuller than eth0, though it carries less
        Resource.NETWORK: pytest.approx(0.72),
    }
    assert unseen == {}
    assert host["cpu_pressure_ratio"] == 0.5
    assert host["io_pressure_ratio"] == 0
    assert host["retransmitted_ratio"] == 0.02
    assert host["iowait_ratio"] == 0.05
    assert host["disk_read_bytes_per_second"] == 2e9


def test_a_capacity_that_is_set_comes_before_what_the_kernel_shows() -> None:
    _, uses, _ = signals(BEFORE, AFTER, storage=5e9, network=8e9)
    assert uses[Resource.STORAGE] == pytest.approx(0.5)
    assert uses[Resource.NETWORK] == pytest.approx(0.5)


def test_what_was_not_read_has_a_reason_and_no_value() -> None:
    blind = HostRead(HostCounters(at=20.0, unseen={"diskstats": "Permission denied", "stat": "no cpu line"}))
    _, uses, unseen = signals(BEFORE, blind)
    assert uses == {}
    assert unseen == {"cpu": "no cpu line", "storage": "Permission denied", "network": "no network card counts"}


def test_a_link_of_unknown_speed_is_no_share() -> None:
    _, uses, unseen = signals(BEFORE, dataclasses.replace(AFTER, link_bits_per_second={}))
    assert Resource.NETWORK not in uses
    assert "gate.capacity.network_bits_per_second" in unseen["network"]


def test_two_reads_at_one_moment_say_nothing() -> None:
    assert signals(BEFORE, BEFORE)[1:] == ({}, {"host": "no time passed between the two reads"})


def test_pressure_files_are_parsed() -> None:
    text = "some avg10=0.00 avg60=1.20 avg300=0.10 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    assert parse_pressure(text) == 2.5
    assert parse_pressure("") is None
