"""dashboards/sre.json: up to date, and every expression is one that Prometheus understands, over metrics we export."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import yaml

from sre.metrics.own import OWN_METRICS
from tests.conftest import require_binary
from tests.rules.test_alerts import HINT, problems
from tests.support import dashboard


def targets() -> list[dict[str, str]]:
    return [target for panel in json.loads(dashboard.FILE.read_text("utf-8"))["panels"] for target in panel["targets"]]


def test_dashboard_is_up_to_date_and_alone() -> None:
    """Remedy: make docs."""
    assert dashboard.FILE.read_text("utf-8") == dashboard.render()
    assert list(dashboard.FILE.parent.iterdir()) == [dashboard.FILE]


def test_panels_use_only_metrics_and_labels_of_the_catalogue() -> None:
    for target in targets():
        expression = target["expr"].replace("_bucket[", "[")
        assert [p for p in problems({"expr": expression}) if p != "no label le"] == [], expression
        names = re.findall(r"\b(sre_[a-z_]+?)(?:_bucket)?\b", target["expr"])
        labels = {label for name in names if name in OWN_METRICS for label in OWN_METRICS[name].labels}
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert label in labels, f"{target['expr']}: legend names {label}"


def test_prometheus_parses_every_expression(tmp_path: Path) -> None:
    promtool = require_binary("promtool", HINT)
    rules = [{"record": f"panel:{number}", "expr": target["expr"]} for number, target in enumerate(targets())]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
