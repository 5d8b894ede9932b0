"""Alerts on cards and hosts, judged by promtool: each fires, stays quiet, survives no traffic, resolves."""

from __future__ import annotations

from pathlib import Path

import pytest

from sre.monitoring import alerts_resource, records_engine, records_resource
from sre.monitoring.catalogue_rules import selection
from sre.monitoring.model import Group
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.promtool import SETTINGS, judge_cases


def groups(settings: MonitoringSettings = SETTINGS) -> tuple[Group, ...]:
    chosen = selection(settings)
    named = {
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
def test_every_alert_fires_stays_quiet_survives_no_traffic_and_resolves(
    settings: MonitoringSettings, tmp_path: Path
) -> None:
    judged = judge_cases(groups(settings), tmp_path, settings)
    assert judged.returncode == 0, judged.output
