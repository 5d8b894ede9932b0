"""Alerts on cards and hosts, judged by promtool: each fires, stays quiet, survives no traffic, resolves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sre.metrics.types import Exporter
from sre.monitoring import alerts_resource, records_engine, records_resource
from sre.monitoring.cases import alerts_of, needed
from sre.monitoring.catalogue_rules import selection
from sre.monitoring.model import Alert, Group, Record, Severity
from sre.monitoring.promql import Selection
from sre.monitoring.recorded import up_of
from sre.monitoring.render import alert_labels
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.promtool import SETTINGS, judge_cases, judge_values


def groups(settings: MonitoringSettings = SETTINGS) -> tuple[Group, ...]:
    chosen = selection(settings)
    named: dict[str, Sequence[Record | Alert]] = {
        "engine": records_engine.records(chosen, settings),
        "resource": records_resource.records(chosen, settings),
        "alerts": alerts_resource.alerts(chosen, settings),
    }
    return tuple(
        Group(f"{name}-{start}", tuple(rules[start : start + 20]))
        for name, rules in named.items()
        for start in range(0, len(rules), 20)
    )


@pytest.mark.parametrize(
    "settings",
    [
        MonitoringSettings(dcgm_exporter_version="4.9.0", vllm_version="0.32", matchers={"cluster": "c1"}),
        MonitoringSettings(dcgm_exporter_version="4.8.3", metric_prefix="ray_vllm_", scrape_interval_seconds=60),
    ],
    ids=["new", "old"],
)
def test_releases_prefix_and_matchers_change_nothing(settings: MonitoringSettings, tmp_path: Path) -> None:
    """test_cases.py judges all of them as they are committed."""
    chosen = groups(settings)
    cards = [alert for alert in alerts_of(chosen) if alert.component == "gpu"]
    judged = judge_cases(needed(chosen, cards), tmp_path, settings)
    assert judged.returncode == 0, judged.output


# ---- What four cases do not show ------------------------------------------------------------------------------------

GROUPS = groups()
DCGM = 'gpu="0",UUID="GPU-1",Hostname="n1",instance="10.0.0.7:9400",job="dcgm"'
GUARD = 'gpu="0",uuid="GPU-1",source="nvml",injected="false",instance="n1:9401",job="sre"'
XID, OUR_XID = f"DCGM_FI_DEV_XID_ERRORS{{{DCGM}}}", f"sre_gpu_xid_last{{{GUARD}}}"
OUR_COUNT = f'sre_gpu_xid_errors_total{{{GUARD},xid="79"}}'
COUNT = f'DCGM_EXP_XID_ERRORS_COUNT{{{DCGM},xid="31"}}'
OUR_OTHER_COUNT = OUR_COUNT.replace("79", "45")
FATAL_COUNT = COUNT.replace("31", "79")
UP, OUR_UP = 'up{job="dcgm",instance="10.0.0.7:9400"}', 'up{job="sre",instance="n1:9401"}'
GPUS = 'sre_gpus{job="sre",instance="n1:9401"}'
THROTTLED = f'sre_gpu_throttled{{{GUARD},reason="hw_power_brake"}}'
VIOLATION = f"DCGM_FI_DEV_THERMAL_VIOLATION{{{DCGM}}}"
TEMPERATURE = f"DCGM_FI_DEV_GPU_TEMP{{{DCGM}}}"
SECOND = TEMPERATURE.replace('gpu="0",UUID="GPU-1"', 'gpu="1",UUID="GPU-2"')
OUR_TEMPERATURE = f"sre_gpu_temperature_celsius{{{GUARD}}}"
OTHER_GUARD = OUR_TEMPERATURE.replace('instance="n1:9401"', 'instance="n1.example:9401"')
CARD = {"node": "n1", "gpu": "0", "UUID": "GPU-1"}
XID_79, XID_31 = ({**CARD, "xid": xid} for xid in ("79", "31"))
NODE_DISK = 'device="sda",instance="n1:9100",job="node"'
OUR_DISK = 'device="sda",instance="n1:9401",job="sre"'
SLOW_TWICE = {
    f"node_disk_read_time_seconds_total{{{NODE_DISK}}}": "0+8x100",
    f"node_disk_reads_completed_total{{{NODE_DISK}}}": "0+32x100",
    f"node_disk_write_time_seconds_total{{{NODE_DISK}}}": "0x100",
    f"node_disk_writes_completed_total{{{NODE_DISK}}}": "0x100",
    f"sre_host_disk_read_seconds_total{{{OUR_DISK}}}": "0+8x100",
    f"sre_host_disk_reads_completed_total{{{OUR_DISK}}}": "0+32x100",
    f"sre_host_disk_write_seconds_total{{{OUR_DISK}}}": "0x100",
    f"sre_host_disk_writes_completed_total{{{OUR_DISK}}}": "0x100",
}

# Name → alert, series in steps of 15 s, time, alerts that then fire.
SCENES: dict[str, tuple[str, dict[str, str], str, list[dict[str, str]]]] = {
    "an XID fires at once": ("GpuXidFatal", {XID: "0x10 79x200"}, "3m", [XID_79]),
    "and for 15 minutes after its window": ("GpuXidFatal", {XID: "0x10 79x200"}, "22m", [XID_79]),
    "but not for ever, although the value stays": ("GpuXidFatal", {XID: "0x10 79x200"}, "26m", []),
    "an XID from before we looked does not": ("GpuXidFatal", {XID: "79x200"}, "10m", []),
    "an XID of applications is no page": ("GpuXidFatal", {XID: "0x10 31x200"}, "5m", []),
    "nor is an unlisted one a ticket": ("GpuXidApplication", {XID: "0x10 45x200"}, "5m", []),
    "an XID of no list is a ticket": ("GpuXidOther", {XID: "0x10 140x200"}, "5m", [{**CARD, "xid": "140"}]),
    "one that was counted is, whatever comes after it": (
        "GpuXidOther",
        {OUR_XID: "0x20 45x60", OUR_COUNT.replace("79", "140"): "0x20 1x60", OUR_OTHER_COUNT: "0x20 2x60"},
        "7m",
        [{**CARD, "xid": "140"}],
    ),
    "listed ones have alerts of their own": ("GpuXidOther", {XID: "0x10 31x10 79x200"}, "5m", []),
    "an ended program is nothing": ("GpuXidOther", {XID: "0x10 45x200"}, "5m", []),
    "none is no XID": ("GpuXidOther", {XID: "79x10 0x200", OUR_COUNT.replace("79", "0"): "0x10 1x200"}, "5m", []),
    "one XID after another is new": ("GpuXidFatal", {XID: "31x10 79x200"}, "5m", [XID_79]),
    "also where the label of the message moves": (
        "GpuXidFatal",
        {
            XID.replace("}", ',err_msg="none"}'): "0x10 stale",
            XID.replace("}", ',err_msg="off the bus"}'): "_x11 79x200",
        },
        "5m",
        [XID_79],
    ),
    "the same XID again is seen by who counts": (
        "GpuXidFatal",
        {OUR_XID: "79x300", OUR_COUNT: "1x200 2x100"},
        "52m",
        [XID_79],
    ),
    "and not before it came again": ("GpuXidFatal", {OUR_XID: "79x300", OUR_COUNT: "1x200 2x100"}, "49m", []),
    "the exporter's own count is one": ("GpuXidApplication", {XID: "31x99", COUNT: "_x20 1x79"}, "6m", [XID_31]),
    "exporter and guard see one XID": ("GpuXidFatal", {XID: "0x10 79x99", OUR_XID: "0x9 79x99"}, "5m", [XID_79]),
    "the guard sees it where the exporter hangs": (
        "GpuXidFatal",
        {XID: "0x10 stale", OUR_XID: "0x20 79x99"},
        "6m",
        [XID_79],
    ),
    "an exporter that comes back with an old XID is no fault": (
        "GpuXidFatal",
        {XID: "94x100 stale _x40 94x100", OUR_XID: "0x300"},
        "36m",
        [],
    ),
    "time-slicing makes no second alert": (
        "GpuXidFatal",
        {XID.replace("}", ',pod="a"}'): "0x10 79x99", XID.replace("}", ',pod="b"}'): "0x10 79x99"},
        "5m",
        [XID_79],
    ),
    "a counted XID fires whatever XID comes after it": (
        "GpuXidFatal",
        {OUR_XID: "0x20 45x60", OUR_COUNT: "0x20 1x60", OUR_OTHER_COUNT: "0x20 2x60"},
        "7m",
        [XID_79],
    ),
    "so does one in the exporter's own count": (
        "GpuXidFatal",
        {XID: "0x20 45x60", FATAL_COUNT: "_x20 1x60"},
        "7m",
        [XID_79],
    ),
    "an exporter that counts none hides none of the guard's": (
        "GpuXidFatal",
        {FATAL_COUNT: "0x80", OUR_XID: "0x20 79x60", OUR_COUNT: "0x20 1x60"},
        "7m",
        [XID_79],
    ),
    "two fatal ones at once are two": (
        "GpuXidFatal",
        {OUR_XID: "0x20 74x60", OUR_COUNT: "0x20 1x60", OUR_COUNT.replace("79", "74"): "0x20 1x60"},
        "7m",
        [XID_79, {**CARD, "xid": "74"}],
    ),
    "an XID that was cleared and comes again is new": (
        "GpuXidFatal",
        {XID: "0x20 79x40 0x60 79x60"},
        "32m",
        [XID_79],
    ),
    "though within the hour it was quiet between": ("GpuXidFatal", {XID: "0x10 79x20 0x80 79x60"}, "27m", []),
    "a pod that moves makes an old XID no new one": (
        "GpuXidFatal",
        {XID.replace("}", ',pod="a"}'): "79x40 stale", XID.replace("}", ',pod="b"}'): "_x41 79x60"},
        "12m",
        [],
    ),
    "the guard in the exporter's place has no news of an old XID": (
        "GpuXidFatal",
        {XID: "79x40 stale", OUR_XID: "79x200", OUR_COUNT: "1x200"},
        "12m",
        [],
    ),
    "a node's only card is lost though its exporter answers": (
        "GpuLost",
        {TEMPERATURE: "40x20 stale", UP: "1x99"},
        "12m",
        [{"node": "n1"}],
    ),
    "and though only the guard answers, which says so": (
        "GpuLost",
        {OUR_TEMPERATURE: "40x20 stale", OUR_UP: "1x99", GPUS: "1x20 0x79"},
        "12m",
        [{"node": "n1"}],
    ),
    "a guard whose reader hangs does not know": (
        "GpuLost",
        {OUR_TEMPERATURE: "40x20 stale", OUR_UP: "1x99", GPUS: "1x20 stale"},
        "12m",
        [],
    ),
    "a guard that is gone after it said so does not either": (
        "GpuLost",
        {OUR_TEMPERATURE: "40x20 stale", OUR_UP: "1x22 0x99", GPUS: "1x20 0x1 stale"},
        "12m",
        [],
    ),
    "an exporter that is down does not know": ("GpuLost", {TEMPERATURE: "40x20 stale", UP: "1x20 0x99"}, "12m", []),
    "a mute exporter beside a guard that sees the card is no loss": (
        "GpuLost",
        {TEMPERATURE: "40x20 stale", UP: "1x99", OTHER_GUARD: "40x99"},
        "12m",
        [],
    ),
    "what was taken away on purpose is forgotten within the hour": (
        "GpuLost",
        {TEMPERATURE: "40x300", SECOND: "40x20 stale"},
        "70m",
        [],
    ),
    "a card that is gone and another in its place is no loss": (
        "GpuLost",
        {TEMPERATURE: "40x20 stale", SECOND: "_x21 40x60"},
        "12m",
        [],
    ),
    "a node that is gone has lost no card": ("GpuLost", {TEMPERATURE: "40x20 stale", SECOND: "40x20 stale"}, "12m", []),
    "a lost card stays lost while the node restarts": (
        "GpuLost",
        {TEMPERATURE: "40x20 stale _x10 40x99", SECOND: "40x20 stale"},
        "15m",
        [{"node": "n1"}],
    ),
    "the guard in the exporter's place is no loss": (
        "GpuLost",
        {TEMPERATURE: "40x20 stale", OUR_TEMPERATURE: "40x99"},
        "15m",
        [],
    ),
    "nor is a guard that calls the node by another name": (
        "GpuLost",
        {TEMPERATURE: "40x99", OTHER_GUARD: "40x99"},
        "15m",
        [],
    ),
    "a disk that two exporters see is one alert": (
        "NodeDiskAwaitHigh",
        SLOW_TWICE,
        "20m",
        [{"node": "n1", "instance": "n1:9100", "device": "sda"}],
    ),
    "an idle disk's one slow operation is none": (
        "NodeDiskAwaitHigh",
        {name: values.replace("+32x", "+2x") for name, values in SLOW_TWICE.items()},
        "20m",
        [],
    ),
    "a card at its power cap is not throttled": (
        "GpuThrottled",
        {f'sre_gpu_throttled{{{GUARD},reason="sw_power_cap"}}': "1x99"},
        "20m",
        [],
    ),
    "the exporter's 0 hides no reason that only the guard knows": (
        "GpuThrottled",
        {VIOLATION: "5x120", THROTTLED: "1x120"},
        "20m",
        [CARD],
    ),
    "nor the guard's 0 what the exporter saw": (
        "GpuThrottled",
        {VIOLATION: "0+100x120", THROTTLED: "0x120"},
        "20m",
        [CARD],
    ),
    "clocks that go up and down are held down": ("GpuThrottled", {THROTTLED: " ".join(["1 0"] * 60)}, "20m", [CARD]),
    "once in five minutes is a burst": (
        "GpuThrottled",
        {THROTTLED: " ".join(["1 0x18"] * 5)},
        "22m",
        [],
    ),
    "requests make the exporter's idle cards idle under load": (
        "GpuIdleUnderLoad",
        {
            f"DCGM_FI_DEV_GPU_UTIL{{{DCGM}}}": "0x99",
            'vllm:num_requests_running{job="vllm",instance="n1:8000",model_name="m"}': "3x99",
        },
        "20m",
        [{"node": "n1"}],
    ),
    "also where engines are scraped by address and say their node": (
        "GpuIdleUnderLoad",
        {
            f"DCGM_FI_DEV_GPU_UTIL{{{DCGM}}}": "0x99",
            'vllm:num_requests_running{job="vllm",instance="10.0.0.7:8000",node="n1",model_name="m"}': "3x99",
        },
        "20m",
        [{"node": "n1"}],
    ),
    "nobody can know that an address is the exporter's node": (
        "GpuIdleUnderLoad",
        {
            f"DCGM_FI_DEV_GPU_UTIL{{{DCGM}}}": "0x99",
            'vllm:num_requests_running{job="vllm",instance="10.0.0.7:8000",model_name="m"}': "3x99",
        },
        "20m",
        [],
    ),
    "one idle card beside a busy one is no idle node": (
        "GpuIdleUnderLoad",
        {
            f"DCGM_FI_DEV_GPU_UTIL{{{DCGM}}}": "0x99",
            f"DCGM_FI_DEV_GPU_UTIL{{{DCGM.replace('GPU-1', 'GPU-2')}}}": "90x99",
            'vllm:num_requests_running{job="vllm",instance="n1:8000",model_name="m"}': "3x99",
        },
        "20m",
        [],
    ),
    "requests elsewhere do not make this node's cards idle under load": (
        "GpuIdleUnderLoad",
        {
            f"DCGM_FI_DEV_GPU_UTIL{{{DCGM}}}": "0x99",
            'vllm:num_requests_running{job="vllm",instance="n2:8000",model_name="m"}': "3x99",
        },
        "20m",
        [],
    ),
    "an exporter that is down is not one without metrics": (
        "GpuMetricsMissing",
        {'up{job="dcgm",instance="n1:9400"}': "0x99"},
        "20m",
        [],
    ),
    "one mute exporter among others is named": (
        "GpuMetricsMissing",
        {
            'up{job="dcgm",instance="n2:9400"}': "1x99",
            'up{job="dcgm",instance="10.0.0.7:9400"}': "1x99",
            TEMPERATURE: "40x99",
        },
        "20m",
        [{"node": "n2", "instance": "n2:9400"}],
    ),
}


@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, tmp_path: Path) -> None:
    alertname, series, at, expected = SCENES[scene]
    rule = next(alert for alert in alerts_of(GROUPS) if alert.name == alertname)
    fixed = {"alertname": alertname, "alertstate": "firing", **alert_labels(rule)}
    fire = {"ALERTS{" + ",".join(f'{k}="{v}"' for k, v in (fixed | one).items()) + "}": 1.0 for one in expected}
    query = f'ALERTS{{alertname="{alertname}",alertstate="firing"}}'
    judged = judge_values(needed(GROUPS, [rule]), tmp_path, series, {query: fire}, at=at)
    assert judged.returncode == 0, judged.output


def test_a_jobs_name_is_no_pattern() -> None:
    selection = Selection(jobs={Exporter.NODE: "node|.*", Exporter.DCGM: 'gpu "x"'})
    assert up_of(selection, Exporter.NODE, Exporter.DCGM).text == r'up{job=~"node\\|\\.\\*|gpu\\ \"x\""}'
    assert up_of(selection, Exporter.DCGM).text == r'up{job="gpu \"x\""}'


def test_every_alert_says_on_which_node() -> None:
    for alert in alerts_of(GROUPS):
        assert "node" in alert.expr.labels, alert.name
        assert "$labels.node" in alert.summary + alert.description, alert.name


def test_only_faults_of_a_card_page() -> None:
    assert [a.name for a in alerts_of(GROUPS) if a.severity is Severity.PAGE] == ["GpuXidFatal", "GpuLost"]
