"""Records of the resource dimension on mixed fleets, as promtool evaluates them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sre.metrics.types import Unit
from sre.monitoring import records_resource
from sre.monitoring.catalogue_rules import selection
from sre.monitoring.levels import LEVELS
from sre.monitoring.model import Group, Record
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.promtool import SETTINGS, judge_values

OLD = 'job="dcgm",instance="10.0.0.1:9400",Hostname="a",gpu="0",UUID="GPU-a0"'
NEW = 'job="dcgm",instance="10.0.0.2:9400",hostname="b",gpu="0",UUID="GPU-b0"'
MIG = 'job="dcgm",instance="10.0.0.3:9400",hostname="c",gpu="0",UUID="GPU-c0"'
LABELLED = 'job="dcgm",instance="10.0.0.4:9400",node="rack7",Hostname="e",gpu="3",UUID="GPU-e3"'
BARE = 'job="dcgm",instance="[fd00::5]:9400",gpu="0",UUID="GPU-f0"'


def guard(instance: str, uuid: str, gpu: str = "0") -> str:
    return f'job="sre",instance="{instance}",gpu="{gpu}",uuid="{uuid}",source="nvml",injected="false"'


ON_D = guard("d:9401", "GPU-d0")


CARDS = {
    # Up to 4.8; time-slicing shows the card once per pod.
    f'DCGM_FI_DEV_GPU_UTIL{{{OLD},pod="one"}}': "50x40",
    f'DCGM_FI_DEV_GPU_UTIL{{{OLD},pod="two"}}': "50x40",
    f'DCGM_FI_DEV_FB_USED{{{OLD},pod="one"}}': "3072x40",
    f'DCGM_FI_DEV_FB_USED{{{OLD},pod="two"}}': "3072x40",
    f'DCGM_FI_DEV_FB_FREE{{{OLD},pod="one"}}': "1024x40",
    f'DCGM_FI_DEV_FB_FREE{{{OLD},pod="two"}}': "1024x40",
    f"DCGM_FI_DEV_GPU_TEMP{{{OLD}}}": "61x40",
    f"DCGM_FI_DEV_MEMORY_TEMP{{{OLD}}}": "0x40",
    f"DCGM_FI_DEV_XID_ERRORS{{{OLD}}}": "0x40",
    f"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{{OLD}}}": "250x40",
    f"DCGM_FI_DEV_THERMAL_VIOLATION{{{OLD}}}": "0+1000x40",
    f"DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL{{{OLD}}}": "0+15x40",
    f"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{{{OLD}}}": "0+30x40",
    f"DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL{{{OLD}}}": "0x40",
    f"DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{OLD}}}": "0+60x40",
    # The guard of the same machine, scraped under another name: the same card, other values.
    f"sre_gpu_utilization_ratio{{{guard('a.example:9401', 'GPU-a0')}}}": "0.99x40",
    f"sre_gpu_memory_used_ratio{{{guard('a.example:9401', 'GPU-a0')}}}": "0.99x40",
    f"sre_gpu_memory_used_bytes{{{guard('a.example:9401', 'GPU-a0')}}}": "99x40",
    f"sre_gpu_temperature_celsius{{{guard('a.example:9401', 'GPU-a0')}}}": "99x40",
    # ... which sees a card more than the exporter.
    f"sre_gpu_temperature_celsius{{{guard('a.example:9401', 'GPU-a1', '1')}}}": "44x40",
    # Since 4.9.
    f"DCGM_FI_DEV_GPU_UTIL_RATIO{{{NEW}}}": "0.25x40",
    f"DCGM_FI_DEV_FB_USED_BYTES{{{NEW}}}": "1024x40",
    f"DCGM_FI_DEV_FB_CAPACITY_BYTES{{{NEW}}}": "2048x40",
    f"DCGM_FI_DEV_FB_FREE_BYTES{{{NEW}}}": "512x40",
    f"DCGM_FI_DEV_GPU_TEMP_CELSIUS{{{NEW}}}": "52x40",
    f"DCGM_FI_DEV_MEMORY_TEMP_CELSIUS{{{NEW}}}": "70x40",
    f"DCGM_FI_DEV_XID_ERROR{{{NEW}}}": "31x40",
    f'DCGM_EXP_XID_ERRORS_COUNT{{{NEW},xid="31"}}': "2x40",
    f'DCGM_EXP_XID_ERRORS_TOTAL{{{NEW},xid="31"}}': "2x40",
    f"DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND{{{NEW}}}": "4096x40",
    f"DCGM_FI_DEV_NVLINK_RECOVERY_TOTAL{{{NEW}}}": "0x40",
    f"DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL{{{NEW}}}": "7x40",
    # MIG: no utilization, memory per instance, temperature repeated.
    f'DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{{{MIG},GPU_I_ID="1"}}': "0.5x40",
    f'DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{{{MIG},GPU_I_ID="2"}}': "0.75x40",
    f'DCGM_FI_DEV_FB_USED_BYTES{{{MIG},GPU_I_ID="1",pod="one"}}': "100x40",
    f'DCGM_FI_DEV_FB_USED_BYTES{{{MIG},GPU_I_ID="1",pod="two"}}': "100x40",
    f'DCGM_FI_DEV_FB_USED_BYTES{{{MIG},GPU_I_ID="2"}}': "300x40",
    f'DCGM_FI_DEV_FB_FREE_BYTES{{{MIG},GPU_I_ID="1",pod="one"}}': "300x40",
    f'DCGM_FI_DEV_FB_FREE_BYTES{{{MIG},GPU_I_ID="1",pod="two"}}': "300x40",
    f'DCGM_FI_DEV_FB_FREE_BYTES{{{MIG},GPU_I_ID="2"}}': "100x40",
    f"DCGM_FI_DEV_FB_CAPACITY_BYTES{{{MIG}}}": "900x40",
    f'DCGM_FI_DEV_GPU_TEMP_CELSIUS{{{MIG},GPU_I_ID="1"}}': "48x40",
    f'DCGM_FI_DEV_GPU_TEMP_CELSIUS{{{MIG},GPU_I_ID="2"}}': "48x40",
    # A target label node wins over what the exporter says; without both it is the host of the address.
    f"DCGM_FI_DEV_GPU_TEMP{{{LABELLED}}}": "33x40",
    f"DCGM_FI_DEV_GPU_TEMP{{{BARE}}}": "34x40",
    # Only the guard; two machines of simulated cards share a UUID.
    f"sre_gpu_utilization_ratio{{{guard('d:9401', 'GPU-d0')}}}": "0.125x40",
    f"sre_gpu_memory_used_ratio{{{guard('d:9401', 'GPU-d0')}}}": "0.5x40",
    f"sre_gpu_memory_used_bytes{{{guard('d:9401', 'GPU-d0')}}}": "77x40",
    f"sre_gpu_temperature_celsius{{{guard('d:9401', 'GPU-d0')}}}": "40x40",
    f"sre_gpu_temperature_celsius{{{guard('s1:9401', 'SIM-0')}}}": "41x40",
    f"sre_gpu_temperature_celsius{{{guard('s2:9401', 'SIM-0')}}}": "42x40",
    f"sre_gpu_memory_temperature_celsius{{{guard('d:9401', 'GPU-d0')}}}": "0x40",
    f'sre_gpu_nvlink_bytes_total{{{ON_D},direction="rx"}}': "0+1500x40",
    f'sre_gpu_nvlink_bytes_total{{{ON_D},direction="tx"}}': "0+3000x40",
    f'sre_gpu_xid_errors_total{{{ON_D},xid="79"}}': "1+0x40",
    f'sre_gpu_throttled{{{ON_D},reason="sw_power_cap"}}': "1x40",
    f'sre_gpu_throttled{{{ON_D},reason="hw_slowdown"}}': "0x40",
}
A, B, C, D = (f'{{node="{n}",gpu="0",UUID="GPU-{n}0"}}' for n in "abcd")


def of(name: str, samples: dict[str, float]) -> dict[str, dict[str, float]]:
    return {name: {name + labels: value for labels, value in samples.items()}}


EXPECTED_CARDS = {
    **of("gpu:utilization:ratio", {A: 0.5, B: 0.25, C: 0.75, D: 0.125}),
    **of("gpu:memory_used:ratio", {A: 0.75, B: 0.5, C: 0.75, D: 0.5}),
    **of("gpu:memory_used:bytes", {A: 3072 * 1024 * 1024, B: 1024, C: 400, D: 77}),
    **of(
        "gpu:temperature:celsius",
        {
            A: 61,
            '{node="a.example",gpu="1",UUID="GPU-a1"}': 44,
            B: 52,
            C: 48,
            D: 40,
            '{node="rack7",gpu="3",UUID="GPU-e3"}': 33,
            '{node="[fd00::5]",gpu="0",UUID="GPU-f0"}': 34,
            '{node="s1",gpu="0",UUID="SIM-0"}': 41,
            '{node="s2",gpu="0",UUID="SIM-0"}': 42,
        },
    ),
    **of("gpu:memory_temperature:celsius", {B: 70}),
    **of("gpu:xid:last", {A: 0, B: 31}),
    **of("gpu_xid:events:increase5m", {B.replace("}", ',xid="31"}'): 2, D.replace("}", ',xid="79"}'): 0}),
    **of("gpu_xid:changed:count", {}),
    **of("gpu:nvlink:bytes_per_second", {A: 250_000_000, B: 4096, D: 300}),
    **of("gpu:nvlink_errors:rate5m", {A: 3, B: 0}),
    **of("gpu:pcie_replays:rate5m", {A: 4}),
    **of("gpu:throttled:max", {A: 1, B: 0, D: 0}),
    **of(
        "instance:gpus:count",
        {
            '{node="a",instance="10.0.0.1:9400"}': 1,
            '{node="a.example",instance="a.example:9401"}': 2,
            '{node="b",instance="10.0.0.2:9400"}': 1,
            '{node="c",instance="10.0.0.3:9400"}': 1,
            '{node="rack7",instance="10.0.0.4:9400"}': 1,
            '{node="[fd00::5]",instance="[fd00::5]:9400"}': 1,
            **{f'{{node="{n}",instance="{n}:9401"}}': 1 for n in ("d", "s1", "s2")},
        },
    ),
    **of(
        "node:gpus:count",
        {f'{{node="{n}"}}': 1 for n in ("a", "a.example", "b", "c", "d", "rack7", "[fd00::5]", "s1", "s2")},
    ),
}


def hosts() -> dict[str, str]:
    """h1 has node_exporter and the guard, h2 the guard, h3 is called so by a target label on one of the two."""
    series = {}
    for where, exporter in (
        ('instance="h1:9100",job="node"', "node"),
        ('instance="10.0.0.3:9100",node="h3",job="node"', "node"),
        ('instance="h1:9401",job="sre"', "sre"),
        ('instance="h2:9401",job="sre"', "sre"),
        ('instance="h3:9401",job="sre"', "sre"),
    ):
        disk, weight = (f'{where},device="sda"', 1) if exporter == "node" else (f'{where},device="sda"', 2)
        for ours, theirs, per_step in (
            ("sre_host_disk_reads_completed_total", "node_disk_reads_completed_total", 30),
            ("sre_host_disk_read_seconds_total", "node_disk_read_time_seconds_total", 7.5),
            ("sre_host_disk_io_seconds_total", "node_disk_io_time_seconds_total", 3.75),
        ):
            name = theirs if exporter == "node" else ours
            per = per_step * (1 if ours.endswith("completed_total") else weight)
            series[f"{name}{{{disk}}}"] = f"0+{per}x40"
        cpu = f'{where},cpu="0"' if exporter == "node" else where
        name = "node_cpu_seconds_total" if exporter == "node" else "sre_host_cpu_seconds_total"
        series[f'{name}{{{cpu},mode="iowait"}}'] = f"0+{3.75 * weight}x40"
        series[f'{name}{{{cpu},mode="idle"}}'] = f"0+{15 - 3.75 * weight}x40"
    node, guard_ = 'instance="h1:9100",job="node"', 'instance="h1:9401",job="sre"'
    # What only one of them knows, or is told to leave out.
    series[f'sre_host_disk_io_seconds_total{{{guard_},device="nvme9"}}'] = "0+15x40"
    series[f'node_disk_io_time_seconds_total{{{node},device="dm-0"}}'] = "0+15x40"
    series[f'node_disk_io_time_seconds_total{{{node},device="loop3"}}'] = "0+15x40"
    series[f'sre_host_network_receive_missed_errors_total{{{guard_},device="eth0"}}'] = "0+15x40"
    series[f'node_network_receive_drop_total{{{node},device="eth0"}}'] = "0+15x40"
    series[f'node_network_receive_packets_total{{{node},device="eth0"}}'] = "0+60x40"
    series[f'node_network_receive_drop_total{{{node},device="veth1"}}'] = "0+15x40"
    series[f"node_netstat_Tcp_RetransSegs{{{node}}}"] = "0+15x40"
    series[f"node_netstat_Tcp_OutSegs{{{node}}}"] = "0+1500x40"  # 100 a second: too few
    series['sre_host_tcp_retransmitted_segments_total{instance="h2:9401",job="sre"}'] = "0+75x40"
    series['sre_host_tcp_out_segments_total{instance="h2:9401",job="sre"}'] = "0+3000x40"
    series[f"node_vmstat_pgfault{{{node}}}"] = "0+60x40"
    series[f"node_vmstat_pgmajfault{{{node}}}"] = "0+15x40"
    series['sre_host_page_faults_total{instance="h2:9401",job="sre",kind="minor"}'] = "0+30x40"
    return series


H1, H1_OURS = '{node="h1",instance="h1:9100"', '{node="h1",instance="h1:9401"'
H2, H3 = '{node="h2",instance="h2:9401"', '{node="h3",instance="10.0.0.3:9100"'
SDA, ETH0 = ',device="sda"}', ',device="eth0"}'
EXPECTED_HOSTS = {
    **of("instance_device:disk_read_await:seconds_rate5m", {H1 + SDA: 0.25, H2 + SDA: 0.5, H3 + SDA: 0.25}),
    **of(
        "instance_device:disk_utilization:ratio_rate5m",
        {H1 + SDA: 0.25, H1_OURS + ',device="nvme9"}': 1, H2 + SDA: 0.5, H3 + SDA: 0.25},
    ),
    **of("instance:cpu_iowait:ratio_rate5m", {H1 + "}": 0.25, H2 + "}": 0.5, H3 + "}": 0.25}),
    **of("instance_device:network_receive_missed_errors:rate5m", {H1_OURS + ETH0: 1}),
    **of("instance_device:network_receive_discards:rate5m", {H1 + ETH0: 1}),
    **of("instance_device:network_receive_discards:ratio_rate5m", {H1 + ETH0: 0.25}),
    **of("instance:tcp_retransmits:ratio_rate5m", {H2 + "}": 0.025}),
    **of("instance:page_faults_minor:rate5m", {H1 + "}": 3, H2 + "}": 2}),
    **of("instance:page_faults_major:rate5m", {H1 + "}": 1}),
}


def records(settings: MonitoringSettings = SETTINGS) -> list[Record]:
    return records_resource.records(selection(settings), settings)


def groups() -> list[Group]:
    every = records()
    return [Group(f"records-{start}", tuple(every[start : start + 20])) for start in range(0, len(every), 20)]


def test_a_card_counts_once_whoever_sees_it(tmp_path: Path) -> None:
    judged = judge_values(groups(), tmp_path, CARDS, EXPECTED_CARDS)
    assert judged.returncode == 0, judged.output


def test_a_host_counts_once_whoever_sees_it(tmp_path: Path) -> None:
    judged = judge_values(groups(), tmp_path, hosts(), EXPECTED_HOSTS)
    assert judged.returncode == 0, judged.output


def test_nothing_is_recorded_without_exporters(tmp_path: Path) -> None:
    nothing = {record.name: dict[str, float]() for record in records()}
    judged = judge_values(groups(), tmp_path, {'up{job="vllm"}': "1x40"}, nothing)
    assert judged.returncode == 0, judged.output


def test_the_judge_of_values_can_fail(tmp_path: Path) -> None:
    wrong = {"gpu:power:watts": {'gpu:power:watts{node="a",gpu="0",UUID="GPU-a0"}': 1.0}}
    assert judge_values(groups(), tmp_path, CARDS, wrong).returncode == 1


def test_labels_are_exactly_those_of_the_level_and_units_are_base_units() -> None:
    for record in records():
        assert record.expr.labels == frozenset(LEVELS[record.name.split(":")[0]]), record.name
        assert record.unit not in {Unit.PERCENT, Unit.MEBIBYTES, Unit.MEGABYTES_PER_SECOND, Unit.NANOSECONDS}, (
            record.name
        )


@pytest.mark.parametrize(("version", "gone"), [("4.9.0", "DCGM_FI_DEV_GPU_UTIL{"), ("4.8.3", "GPU_UTIL_RATIO")])
def test_a_chosen_release_leaves_the_other_names_out(version: str, gone: str) -> None:
    texts = [record.expr.text for record in records(MonitoringSettings(dcgm_exporter_version=version))]
    assert not [text for text in texts if gone in text]
    assert [text for text in (record.expr.text for record in records()) if gone in text]
