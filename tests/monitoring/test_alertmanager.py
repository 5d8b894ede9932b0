"""Alertmanager's configuration: accepted by amtool, routed by severity, inhibition by labels that both sides have."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sre.monitoring.alertmanager import GROUP_BY, INHIBITIONS, Inhibition, Matcher, configuration, render
from sre.monitoring.alerts_toolkit import CANARY
from sre.monitoring.catalogue_rules import all_alerts
from sre.monitoring.model import Alert, Severity
from sre.monitoring.render import alert_labels
from sre.notify.alert_decide import REORDERED_SECONDS
from sre.settings.monitoring import MonitoringSettings
from tests.conftest import require_binary

SETTINGS = MonitoringSettings()
ALERTS = all_alerts(SETTINGS)
HINT = "apt-get install prometheus-alertmanager brings it"


def labels(alert: Alert) -> set[str]:
    return {"alertname", *alert.expr.labels, *alert_labels(alert)}


def amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = require_binary("amtool", HINT)
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "alertmanager.yml"
    file.write_text(render(SETTINGS))
    return file


@pytest.mark.parametrize("rule", INHIBITIONS, ids=lambda rule: rule.why)
def test_labels_that_must_be_equal_exist_on_every_source_and_target(rule: Inhibition) -> None:
    sources = [alert for alert in ALERTS if rule.sources(alert)]
    targets = [alert for alert in ALERTS if rule.targets(alert)]
    assert sources
    assert targets
    for alert in (*sources, *targets):
        assert set(rule.equal) <= labels(alert), alert.name


@pytest.mark.parametrize("rule", INHIBITIONS, ids=lambda rule: rule.why)
def test_a_source_without_its_labels_silences_nothing(rule: Inhibition) -> None:
    """Two missing labels are equal: the source must be asked for each."""
    asked = {matcher.label for matcher in rule.source if matcher.operator == "=~" and matcher.value == ".+"}
    assert asked == set(rule.equal)


@pytest.mark.parametrize("rule", INHIBITIONS, ids=lambda rule: rule.why)
def test_no_alert_is_source_and_target_of_one_rule(rule: Inhibition) -> None:
    assert [alert.name for alert in ALERTS if rule.sources(alert) and rule.targets(alert)] == []


def test_a_broken_card_silences_symptoms_of_its_node_only() -> None:
    targets = {alert.name for alert in ALERTS if INHIBITIONS[0].targets(alert)}
    assert {"VllmErrorRatioHigh", "VllmQueueGrowing", "VllmKvCacheNearlyFull", "VllmLatencyHigh"} <= targets
    # Of the model or job as a whole: other nodes may be the reason. Of hosts and the toolkit: not explained by a card.
    assert not {name for name in targets if not name.startswith("Vllm")}
    assert not targets & {"VllmAllEnginesDown", "VllmTargetAbsent"}


def test_a_broken_card_silences_no_page() -> None:
    """A card that was lost is missed for an hour; an engine on another card of that node may hang meanwhile."""
    cards = [rule for rule in INHIBITIONS if any(a.component == "gpu" and rule.sources(a) for a in ALERTS)]
    silenced = {alert.name for alert in ALERTS for rule in cards if rule.targets(alert)}
    assert "VllmQueueGrowing" in silenced
    assert not {alert.name for alert in ALERTS if alert.severity is Severity.PAGE} & silenced


def test_only_pages_and_targets_that_are_down_silence_anything() -> None:
    sources = {alert.name for alert in ALERTS for rule in INHIBITIONS if rule.sources(alert)}
    tickets = {alert.name for alert in ALERTS if alert.severity is not Severity.PAGE}
    assert sources & tickets == {"VllmEngineDown", "ResourceExporterDown", "NodeDiskSaturated"}


def test_tickets_never_silence_pages() -> None:
    for rule in INHIBITIONS:
        sources = [alert for alert in ALERTS if rule.sources(alert)]
        if any(alert.severity is not Severity.PAGE for alert in sources):
            assert [a.name for a in ALERTS if rule.targets(a) and a.severity is Severity.PAGE] == []


def test_matchers_read_labels_as_alertmanager_does() -> None:
    assert Matcher("node", "=~", ".+").holds({"node": "n1"})
    assert not Matcher("node", "=~", ".+").holds({})
    assert not Matcher("severity", "=~", "ticket").holds({"severity": "tickets"})
    assert Matcher("alertname", "!~", "A|B").holds({"alertname": "C"})
    assert Matcher("slo", "!=", "x").holds({})


def test_amtool_accepts_the_configuration(config_file: Path) -> None:
    done = amtool("check-config", config_file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(INHIBITIONS)} inhibit rules" in done.stdout


def test_amtool_refuses_a_broken_configuration(config_file: Path) -> None:
    config_file.write_text(config_file.read_text().replace("receiver: sre-page", "receiver: nobody"))
    assert amtool("check-config", config_file).returncode != 0


@pytest.mark.parametrize(
    ("given", "receiver"),
    [
        (["severity=page"], "sre-page"),
        (["severity=ticket"], "sre-ticket"),
        (["severity=page", "dimension=slo", "slo=ttft"], "sre-page"),
        (["severity=ticket", "dimension=slo", "slo=ttft"], "sre-ticket"),
        (["severity=info"], "sre-quiet"),
        (["alertname=Theirs"], "sre-ticket"),
        (["alertname=SreWatchdog", "severity=info"], "sre-pipeline"),
        (["alertname=SreCanary", "severity=info", "id=c1"], "sre-pipeline"),
    ],
)
def test_severity_chooses_the_receiver(config_file: Path, given: list[str], receiver: str) -> None:
    done = amtool("config", "routes", "test", f"--config.file={config_file}", f"--verify.receivers={receiver}", *given)
    assert done.returncode == 0, done.stdout + done.stderr


def test_fast_and_slow_burn_of_one_objective_are_one_notification() -> None:
    """By what Alertmanager groups by: the values of these labels."""

    def group(alert: Alert) -> tuple[str, ...]:
        given = {**dict.fromkeys(alert.expr.labels, "any"), "alertname": alert.name, **alert_labels(alert)}
        route: dict[str, Any] | None = configuration(SETTINGS)["route"]
        timing: dict[str, Any] = {}
        while route is not None:
            timing |= {key: route[key] for key in ("receiver", "group_by", "group_wait") if key in route}
            matching = (child for child in route.get("routes", ()) if fits(child["matchers"], given))
            route = next(matching, None)
        return (timing["receiver"], timing["group_wait"], *(given.get(label, "") for label in timing["group_by"]))

    def fits(matchers: list[str], given: dict[str, str]) -> bool:
        found = (re.fullmatch(r'(\w+)(=~|=)"(.*)"', matcher) for matcher in matchers)
        return all(one is not None and Matcher(one[1], one[2], one[3]).holds(given) for one in found)

    burns = {alert.name: group(alert) for alert in ALERTS if "Burn" in alert.name}
    assert burns["SloTtftBurn1h"] == burns["SloTtftBurn6h"] == ("sre-page", "10s", "slo", "ttft", "any")
    assert burns["SloTtftBurn1d"] == burns["SloTtftBurn3d"] == ("sre-ticket", "30s", "slo", "ttft", "any")
    assert len({burns["SloTtftBurn1h"], burns["SloE2eBurn1h"], burns["SloAvailabilityBurn1h"]}) == 3
    others = [group(alert) for alert in ALERTS if "Burn" not in alert.name]
    assert len(set(others)) == len(others)


def test_receivers_are_our_webhook_with_its_token_and_no_limit() -> None:
    settings = MonitoringSettings(webhook_url="https://sre.example/api/v1/alerts", webhook_token_file="/run/token")
    document = yaml.safe_load(render(settings))
    assert document == configuration(settings)
    for receiver in document["receivers"][:2]:
        (webhook,) = receiver["webhook_configs"]
        assert webhook["url"] == "https://sre.example/api/v1/alerts"
        assert webhook["http_config"]["authorization"] == {"type": "Bearer", "credentials_file": "/run/token"}
        assert webhook["send_resolved"] is True
        assert webhook["max_alerts"] == 1000, "all that fits into the webhook's max_body_bytes"
    assert document["route"]["group_by"] == list(GROUP_BY)


def test_a_firing_told_again_after_a_false_end_is_not_taken_for_one_that_was_overtaken() -> None:
    """A group is told again one group_interval after an end; the canary, which ends once, apart."""

    def intervals(route: dict[str, Any], inherited: str) -> Iterator[str]:
        own = route.get("group_interval", inherited)
        if str(Matcher("alertname", "=", CANARY)) not in route.get("matchers", []):
            yield own
        for inner in route.get("routes", []):
            yield from intervals(inner, own)

    found = set(intervals(configuration(SETTINGS)["route"], ""))
    assert found == {"1m", "5m"}
    assert all(re.fullmatch(r"\d+m", text) and int(text[:-1]) * 60 > REORDERED_SECONDS for text in found)


def test_the_file_is_the_same_each_time_and_says_why() -> None:
    text = render(SETTINGS)
    assert text == render(MonitoringSettings())
    assert text.startswith('# Generated by "sre rules generate --format alertmanager" from sre.yaml. DO NOT EDIT.\n')
    assert [line.removeprefix("# ") for line in text.splitlines()[1:] if line.startswith("# ")] == [
        rule.why for rule in INHIBITIONS
    ]
