"""alerts/: only metrics and labels that we export; promtool accepts them. Runbooks: tests/monitoring."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sre.metrics.own import OWN_METRICS
from sre.metrics.types import Kind
from tests.conftest import require_binary

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "alerts").glob("*.yml"))
HINT = "apt-get install prometheus brings it"
SELECTOR = re.compile(r"\b(sre_[a-z_]+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|without) \(([^)]*)\)")


def alerts() -> list[dict[str, Any]]:
    return [
        rule for file in FILES for group in yaml.safe_load(file.read_text("utf-8"))["groups"] for rule in group["rules"]
    ]


def problems(rule: dict[str, Any]) -> list[str]:
    """Metrics and labels in the expression that the catalogue does not have."""
    found = []
    allowed: set[str] = set()
    for name, selector in SELECTOR.findall(rule["expr"]):
        metric = OWN_METRICS.get(re.sub(r"_(bucket|sum|count)$", "", name)) or OWN_METRICS.get(name)
        if metric is None:
            found.append(f"no metric {name}")
            continue
        if metric.kind is Kind.COUNTER and not re.search(rf"(rate|increase)\({name}", rule["expr"]):
            found.append(f"counter {name} without rate or increase")
        allowed |= set(metric.labels)
        labels = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
        found += [f"{name} has no label {label}" for label in labels if label not in metric.labels]
    for group in GROUPING.findall(rule["expr"]):
        found += [f"no label {label}" for label in group.replace(",", " ").split() if label not in allowed]
    return found


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_alert_uses_only_metrics_and_labels_of_the_catalogue(rule: dict[str, Any]) -> None:
    assert problems(rule) == []


def test_the_check_of_names_can_fail() -> None:
    assert problems({"expr": 'max by (pool) (sre_breaker_state{status="open"}) + sre_nothing > 0'}) == [
        "sre_breaker_state has no label status",
        "no metric sre_nothing",
        "no label pool",
    ]
    assert problems({"expr": "sre_guard_ticks_total > 0"}) == ["counter sre_guard_ticks_total without rate or increase"]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["labels"]["dimension"] in {"resource", "batching", "request"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"runbooks/{rule['alert']}.md"


def test_promtool_accepts_the_rules() -> None:
    promtool = require_binary("promtool", HINT)
    done = subprocess.run([promtool, "check", "rules", *FILES], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_stay_silent_and_resolve_in_prometheus() -> None:
    promtool = require_binary("promtool", HINT)
    test_file = Path(__file__).with_name("sre_test.yml")
    done = subprocess.run([promtool, "test", "rules", test_file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    tested = set(re.findall(r"alertname: (\w+)", test_file.read_text("utf-8")))
    assert tested == {rule["alert"] for rule in alerts()}


def test_a_broken_rule_is_noticed(tmp_path: Path) -> None:
    promtool = require_binary("promtool", HINT)
    broken = tmp_path / "sre.yml"
    broken.write_text(FILES[0].read_text("utf-8").replace("sum by (channel) (", "sum by (channel) (("))
    done = subprocess.run([promtool, "check", "rules", broken], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
