"""Every alert has its cases; promtool runs them on all rules, and sees a rule that is broken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sre.metrics.types import Unit
from sre.monitoring.cases import Gap, alert_cases, alerts_of, cases, expand, needed, samples_of
from sre.monitoring.catalogue_rules import all_groups
from sre.monitoring.levels import LEVELS
from sre.monitoring.model import (
    Alert,
    Dimension,
    Group,
    Input,
    Missing,
    Raw,
    Record,
    Rising,
    Scenario,
    Severity,
    Shape,
    Steady,
)
from sre.monitoring.promql import Expr, ExpressionError, compare
from tests.monitoring.promtool import SETTINGS, judge_cases

GROUPS = tuple(all_groups(SETTINGS))
ALERTS = alerts_of(GROUPS)
KINDS = ("fires", "quiet", "no traffic", "resolves")


def kinds(alert: Alert) -> tuple[str, ...]:
    """Alerts on machines have one case more."""
    return (*KINDS, "exporter gone") if alert.component in ("gpu", "node") else KINDS


def test_every_alert_has_its_cases() -> None:
    documents = [yaml.safe_load(text) for text in cases(GROUPS, SETTINGS, ["rules.yml"]).values()]
    names = sorted(test["name"] for document in documents for test in document["tests"])
    assert names == sorted(f"{alert.name}: {kind}" for alert in ALERTS for kind in kinds(alert))


NO_PART = "a card's or host's own state or errors: requests have no part in them"
QUIET_IS_IDLE = {
    "GpuLost": NO_PART, "GpuThrottled": NO_PART, "GpuRowRemapFailed": NO_PART, "GpuNvlinkErrors": NO_PART,
    "GpuPcieReplays": NO_PART, "GpuMetricsMissing": NO_PART, "NodeNetworkMissedErrors": NO_PART,
    "NodeMajorPageFaults": NO_PART, "ResourceExporterDown": NO_PART,
    "SreGuardDown": "without its target it fires, as it must",
}  # fmt: skip
"""Alerts whose case "no traffic" has the samples of "quiet", and why that is right."""


def test_no_traffic_is_not_quiet_once_more() -> None:
    def samples(alert: Alert, kind: str) -> object:
        return next(
            case["input_series"] for case in alert_cases(alert, SETTINGS) if case["name"] == f"{alert.name}: {kind}"
        )

    same = {alert.name for alert in ALERTS if samples(alert, "quiet") == samples(alert, "no traffic")}
    assert same == QUIET_IS_IDLE.keys()


def test_every_alert_fires_stays_quiet_survives_no_traffic_and_resolves(tmp_path: Path) -> None:
    judged = judge_cases(GROUPS, tmp_path)
    assert judged.returncode == 0, judged.output


def test_an_alert_that_is_gone_is_missed(tmp_path: Path) -> None:
    def without_alerts(groups: tuple[Group, ...]) -> Iterable[Group]:
        for group in groups:
            yield replace(group, rules=tuple(rule for rule in group.rules if isinstance(rule, Record)))

    judged = judge_cases(needed(GROUPS, [named("GpuLost")]), tmp_path, change=without_alerts)
    assert "name: GpuLost: fires," in judged.output
    assert "name: GpuLost: resolves," in judged.output


def test_an_alert_that_always_fires_is_noticed_in_quiet_and_without_traffic(tmp_path: Path) -> None:
    always = Expr("vector(1) > 0", Unit.ONE, frozenset(), frozenset(), condition=True)

    def firing(groups: tuple[Group, ...]) -> Iterable[Group]:
        for group in groups:
            rules = (
                replace(rule, expr=always, summary="", description="", for_="0s") if isinstance(rule, Alert) else rule
                for rule in group.rules
            )
            yield replace(group, rules=tuple(rules))

    judged = judge_cases(SOME, tmp_path, change=firing)
    for alert in alerts_of(SOME):
        for kind in kinds(alert):
            assert f"name: {alert.name}: {kind}," in judged.output


def test_a_record_that_is_gone_is_missed(tmp_path: Path) -> None:
    def without_records(groups: tuple[Group, ...]) -> Iterable[Group]:
        for group in groups:
            yield replace(group, rules=tuple(rule for rule in group.rules if isinstance(rule, Alert)))

    judged = judge_cases(needed(GROUPS, [named("GpuTemperatureHigh")]), tmp_path, change=without_records)
    assert "name: GpuTemperatureHigh: fires," in judged.output


@pytest.mark.parametrize(
    "changed",
    [{"severity": Severity.INFO}, {"for_": "1h"}, {"summary": "Other."}, {"labels": {"slo": "x"}}],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_differs_from_the_alert_is_noticed(changed: dict[str, object], tmp_path: Path) -> None:
    def other(groups: tuple[Group, ...]) -> Iterable[Group]:
        for group in groups:
            rules = (replace(r, **changed) if isinstance(r, Alert) else r for r in group.rules)  # type: ignore[arg-type]
            yield replace(group, rules=tuple(rules))

    judged = judge_cases(needed(GROUPS, [named("GpuTemperatureHigh")]), tmp_path, change=other)
    assert "name: GpuTemperatureHigh: fires," in judged.output


def test_a_threshold_that_moved_is_noticed(tmp_path: Path) -> None:
    def hotter(groups: tuple[Group, ...]) -> Iterable[Group]:
        for group in groups:
            yield replace(
                group,
                rules=tuple(
                    replace(rule, expr=replace(rule.expr, text=rule.expr.text.replace("85", "95")))
                    if isinstance(rule, Alert)
                    else rule
                    for rule in group.rules
                ),
            )

    judged = judge_cases(needed(GROUPS, [named("GpuTemperatureHigh")]), tmp_path, change=hotter)
    assert "name: GpuTemperatureHigh: fires," in judged.output


def named(name: str) -> Alert:
    (found,) = (alert for alert in ALERTS if alert.name == name)
    return found


SOME = needed(GROUPS, list({(a.dimension, a.component, a.severity): a for a in ALERTS if a.labels == {}}.values()))
"""One of each kind; those on objectives, whose cases take most of the time, left out."""


# ---- The pieces -----------------------------------------------------------------------------------------------------


def one_alert(*inputs: Input, fires_after: str = "1m", resolves_after: str = "1m") -> Group:
    node = Expr("max by (node) (x)", Unit.CELSIUS, frozenset(LEVELS["node"]), frozenset({"x"}))
    return Group(
        "g",
        (
            Alert(
                "Hot",
                compare(node, ">", 85),
                "0s",
                Severity.TICKET,
                Dimension.RESOURCE,
                "gpu",
                "{{ $labels.node }} is hot.",
                "It is at {{ $value | humanize }} °C.",
                "sre-resource",
                Scenario(inputs, fires_after, resolves_after, {"node": "n"}, "90", interval="15s"),
            ),
        ),
    )


def values(firing: Shape, quiet: Shape, idle: Shape | None = None) -> dict[str, str]:
    (text,) = cases([one_alert(Input("x", firing, quiet, idle))], SETTINGS, ["r.yml"]).values()
    return {
        test["name"].removeprefix("Hot: "): " ".join(one["values"] for one in test["input_series"])
        for test in yaml.safe_load(text)["tests"]
    }


def test_phases_become_series() -> None:
    assert values(Steady(90), Steady(40)) == {
        "fires": "90x4",
        "quiet": "40x8",
        "no traffic": "40x8",
        "resolves": "90x4 40x3",
        "exporter gone": "40x4 stale _x3",
    }
    # A counter goes on from where it stood; without traffic it stands still.
    assert values(Rising(2), Rising(0.5)) == {
        "fires": "0+2x4",
        "quiet": "0+0.5x8",
        "no traffic": "0x8",
        "resolves": "0+2x4 8.5+0.5x3",
        "exporter gone": "0+0.5x4 stale _x3",
    }
    # No sample is no series; one that ends says so.
    assert values(Missing(), Steady(1), Missing()) == {
        "fires": "",
        "quiet": "1x8",
        "no traffic": "",
        "resolves": "_x5 1x3",
        "exporter gone": "1x4 stale _x3",
    }
    assert values(Steady(1), Missing())["resolves"] == "1x4 stale _x3"
    assert values(Raw("5x2 stale _"), Steady(7))["resolves"] == "5x2 stale _ 7x3"


def test_a_raw_phase_must_fill_its_time() -> None:
    with pytest.raises(ExpressionError, match="alert Hot: '1x9' has 10 samples, its phase 5; fill it exactly"):
        values(Raw("1x9"), Steady(0))


def test_samples_are_read_as_promtool_reads_them() -> None:
    assert samples_of("3 1x2 0+2x2 9-1x1 _ _x2 stale -1") == [
        3, 1, 1, 1, 0, 2, 4, 9, 8, Gap.NOTHING, Gap.NOTHING, Gap.NOTHING, Gap.STALE, -1,
    ]  # fmt: skip
    with pytest.raises(ExpressionError, match="'1:2' in '0 1:2' is no notation"):
        samples_of("0 1:2")


def test_annotations_are_expanded() -> None:
    assert expand("{{ $labels.node }}: {{ $value | humanize1024 }}{{$value}}", {"node": "n"}, "5") == "n: 55"
    assert expand('{{ $value | printf "%.2f" }}{{ $labels.gone }}', {}, "0.20") == "0.20"
    with pytest.raises(ExpressionError, match="is none of"):
        expand("{{ range query }}", {}, "")


def test_needed_keeps_records_of_records_and_nothing_else() -> None:
    kept = needed(GROUPS, [named("GpuLost")])
    assert [rule.name for group in kept for rule in group.rules] == [
        "gpu:temperature:celsius",
        "node:gpus:count",
        "instance:gpus:count",
        "GpuLost",
    ]


def test_the_text_is_the_same_each_time() -> None:
    assert cases(GROUPS, SETTINGS, ["a.yml"]) == cases(tuple(all_groups(SETTINGS)), SETTINGS, ["a.yml"])
