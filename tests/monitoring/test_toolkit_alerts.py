"""Alerts on the toolkit itself, judged by promtool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sre.monitoring import alerts_toolkit
from sre.monitoring.cases import alerts_of, expand
from sre.monitoring.catalogue_rules import MAX_RULES, selection
from sre.monitoring.model import Group
from sre.monitoring.promql import seconds
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.promtool import SETTINGS, judge_cases, judge_values


def groups(settings: MonitoringSettings = SETTINGS) -> tuple[Group, ...]:
    every = tuple(alerts_toolkit.alerts(selection(settings), settings))
    return tuple(Group(f"toolkit-{at}", every[at : at + MAX_RULES]) for at in range(0, len(every), MAX_RULES))


def test_other_intervals_and_matchers_change_nothing(tmp_path: Path) -> None:
    settings = MonitoringSettings(scrape_interval_seconds=60, matchers={"cluster": "c1"})
    judged = judge_cases(groups(settings), tmp_path, settings)
    assert judged.returncode == 0, judged.output


@pytest.mark.parametrize("scrape", [15.3, 0.5, 61.7, 75])
def test_any_interval_of_scrapes_leaves_four_in_each_range(scrape: float) -> None:
    for alert in alerts_of(groups(MonitoringSettings(scrape_interval_seconds=scrape))):
        for window in re.findall(r"\[(\w+)\]", alert.expr.text):
            assert seconds(window) >= 4 * scrape, alert.name


def test_nobody_is_told_of_half_an_event() -> None:
    """increase() extrapolates: 7.5 restarts."""
    for alert in alerts_of(groups()):
        if "increase(" in alert.expr.text:
            assert "$value | humanize" not in alert.summary + alert.description, alert.name


def test_a_guard_that_no_target_is_known_of_is_down_too(tmp_path: Path) -> None:
    expected = {'ALERTS{alertname="SreGuardDown",alertstate="firing"}': {
        'ALERTS{alertname="SreGuardDown",alertstate="firing",job="sre",severity="page",dimension="resource",'
        'component="sre"}': 1.0
    }}  # fmt: skip
    judged = judge_values(groups(), tmp_path, {'up{job="node"}': "1x40"}, expected)
    assert judged.returncode == 0, judged.output


def test_a_guard_that_is_down_is_named_where_one_is_known() -> None:
    (down,) = (alert for alert in alerts_of(groups()) if alert.name == "SreGuardDown")
    assert expand(down.summary, {"instance": "n1:9401"}, "0") == "The guard n1:9401 does not answer."
    assert expand(down.summary, {"job": "sre"}, "1") == "The guard does not answer."


def test_what_the_guard_says_of_itself_is_inhibited_with_it() -> None:
    """Its values carry ``instance``, as SreGuardDown does."""
    assert [alert.name for alert in alerts_of(groups()) if "instance" not in alert.expr.labels] == []
