"""The alert on a hang that the guard ends: at the default scrape interval, too, it outlives what Alertmanager waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from sre.metrics import own
from sre.monitoring.cases import needed
from sre.monitoring.catalogue_rules import all_groups, selection
from sre.monitoring.engine_hang import hang_alert
from sre.monitoring.series import series
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.promtool import judge_values

SETTINGS = MonitoringSettings()
CHOSEN = selection(SETTINGS)
ENGINE = {"instance": "n1:9400", "engine": "e0", "pool": "m"}
ALERT = hang_alert(CHOSEN, SETTINGS)
FIRING = 'count(ALERTS{alertname="VllmEngineHung", alertstate="firing", engine="e0", node="n1"}) or vector(0)'


@pytest.mark.parametrize(
    "ages",
    [
        pytest.param("0 17 32 0x20", id="two scrapes see it"),
        pytest.param("0 14 29 0x20", id="one scrape sees it"),
        pytest.param("0 18 _ 0x20", id="one sees it, the next fails"),
    ],
)
@pytest.mark.parametrize(("at", "fires"), [("15s", 0), ("45s", 1), ("60s", 1), ("3m", 0)])
def test_a_hang_that_ends_by_a_restart_after_33_seconds_is_told(ages: str, at: str, fires: int, tmp_path: Path) -> None:
    judged = judge_values(
        needed(all_groups(SETTINGS), [ALERT]),
        tmp_path,
        {
            series(CHOSEN, own.ENGINE_STEP_AGE_SECONDS, **ENGINE): ages,
            series(CHOSEN, own.ENGINE_HUNG, **ENGINE): "0 1 1 0x20",
            series(CHOSEN, own.ENGINE_IN_FLIGHT, **ENGINE): "4 4 4 0x20",
        },
        {FIRING: {"{}": fires}},
        at=at,
    )
    assert judged.returncode == 0, judged.output


@pytest.mark.parametrize(
    ("age", "limit", "hung"),
    [
        pytest.param(16, 40, 0, id="steps of ten seconds are usual here"),
        pytest.param(16, 3, 1, id="the guard calls it a hang"),
        pytest.param(10, 3, 1, id="a hang of less than the threshold"),
    ],
)
def test_one_pause_pages_only_if_it_is_a_hang_for_this_engine(age: int, limit: int, hung: int, tmp_path: Path) -> None:
    judged = judge_values(
        needed(all_groups(SETTINGS), [ALERT]),
        tmp_path,
        {
            series(CHOSEN, own.ENGINE_STEP_AGE_SECONDS, **ENGINE): f"0x4 {age} 0x20",
            series(CHOSEN, own.ENGINE_HANG_LIMIT_SECONDS, **ENGINE): f"{limit}x30",
            series(CHOSEN, own.ENGINE_HUNG, **ENGINE): f"0x4 {hung} 0x20",
            series(CHOSEN, own.ENGINE_IN_FLIGHT, **ENGINE): "4x30",
        },
        {FIRING: {"{}": int(hung and age > 15)}},
        at="105s",
    )
    assert judged.returncode == 0, judged.output
