"""Rules as text: YAML that means what was put in, the same bytes every time."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sre.monitoring.catalogue_rules import rule_files
from sre.monitoring.model import Alert
from sre.monitoring.render import (
    HEADER,
    OPERATOR_HEADER,
    alert_annotations,
    alert_labels,
    prometheus_rule,
    rule_file,
    scalar,
)
from sre.settings.monitoring import MonitoringSettings

SETTINGS = MonitoringSettings()
FILES = rule_files(SETTINGS)
printable = st.text(st.characters(exclude_categories=["Cs"]))


@given(printable)
def test_any_text_comes_back_as_itself_and_as_text(text: str) -> None:
    written = scalar(text)
    assert "\n" not in written
    loaded = yaml.safe_load(f"key: {written}\n")["key"]
    assert loaded == text
    assert isinstance(loaded, str)


MISTAKABLE = (
    "no", "Off", "y", "null", "~", "1e3", "0x1f", "1_000", "12:30", "", "- a", "a: b", "a #b", "2026-01-01", ".5",
    "NaN",
    "{{ $value }}", "*a", "&a", "!a", "%a", "@a",
)  # fmt: skip


@pytest.mark.parametrize("word", MISTAKABLE)
def test_what_yaml_could_mistake_is_quoted(word: str) -> None:
    assert scalar(word).startswith('"')


def test_plain_words_stay_plain() -> None:
    assert scalar("page") == "page"
    assert scalar("slo:errors:ratio_rate5m") == "slo:errors:ratio_rate5m"


def test_the_file_says_what_the_rules_say() -> None:
    for file in FILES:
        text = rule_file(file.groups, SETTINGS)
        assert text.startswith(f"{HEADER}\ngroups:\n")
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert max(map(len, text.splitlines())) < 420
        loaded = yaml.safe_load(text)["groups"]
        assert [group["name"] for group in loaded] == [group.name for group in file.groups]
        for group, written in zip(file.groups, loaded, strict=True):
            assert written["interval"] == group.interval
            for rule, entry in zip(group.rules, written["rules"], strict=True):
                assert "".join(entry["expr"].split()) == "".join(rule.expr.text.split())
                if isinstance(rule, Alert):
                    assert entry["alert"] == rule.name
                    assert entry["labels"] == alert_labels(rule)
                    assert entry["annotations"] == alert_annotations(rule, SETTINGS)
                    assert entry.get("for", "0s") == rule.for_
                    assert entry.get("keep_firing_for", "") == rule.keep_firing_for
                else:
                    assert entry["record"] == rule.name
                    assert entry.get("labels", {}) == dict(rule.labels)


def test_every_alert_carries_what_a_woken_person_needs() -> None:
    for file in FILES:
        for rule in (rule for group in file.groups for rule in group.rules if isinstance(rule, Alert)):
            annotations = alert_annotations(rule, SETTINGS)
            assert set(annotations) == {"summary", "description", "runbook_url", "dashboard_url"}
            assert all(annotations.values())
            assert set(alert_labels(rule)) >= {"severity", "dimension", "component"}
            assert annotations["runbook_url"] == f"runbooks/{rule.name}.md#{rule.name.lower()}"
            assert annotations["dashboard_url"] == f"/d/{rule.dashboard}"
            assert "{{" not in "".join(alert_labels(rule).values())


def test_links_begin_where_the_settings_say() -> None:
    chosen = MonitoringSettings(runbook_base_url="https://docs/runbooks/", grafana_url="https://grafana/")
    (alert, *_) = (rule for file in FILES for group in file.groups for rule in group.rules if isinstance(rule, Alert))
    annotations = alert_annotations(alert, chosen)
    assert annotations["runbook_url"] == f"https://docs/runbooks/{alert.name}.md#{alert.name.lower()}"
    assert annotations["dashboard_url"] == f"https://grafana/d/{alert.dashboard}"


def test_an_object_of_the_operator_holds_the_same_groups() -> None:
    (records, *_) = FILES
    text = prometheus_rule("sre-records", records.groups, SETTINGS, namespace="no", labels={"b": "1", "a": "x y"})
    assert text.startswith(OPERATOR_HEADER + "\n")
    loaded = yaml.safe_load(text)
    assert loaded["apiVersion"] == "monitoring.coreos.com/v1"
    assert loaded["kind"] == "PrometheusRule"
    assert loaded["metadata"] == {"name": "sre-records", "namespace": "no", "labels": {"a": "x y", "b": "1"}}
    assert loaded["spec"] == yaml.safe_load(rule_file(records.groups, SETTINGS))
    assert yaml.safe_load(prometheus_rule("a", (), SETTINGS))["metadata"] == {"name": "a"}


PRINT = """
from sre.monitoring.catalogue_rules import rule_files
from sre.monitoring.render import rule_file
from sre.settings.monitoring import MonitoringSettings
settings = MonitoringSettings(matchers={"z": "1", "a": "2"}, retention_days=40)
print("".join(rule_file(file.groups, settings) for file in rule_files(settings)))
"""


def test_bytes_do_not_depend_on_the_order_of_hashes() -> None:
    made = {
        subprocess.run(
            [sys.executable, "-c", PRINT], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(made) == 1
    assert len(made.pop()) > 50_000


def test_generating_takes_far_less_than_a_second() -> None:
    """Processor time: a busy machine must not fail it."""
    began = time.process_time()
    for file in rule_files(SETTINGS):
        rule_file(file.groups, SETTINGS)
    assert time.process_time() - began < 0.6
