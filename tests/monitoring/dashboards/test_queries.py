"""Every query is one that Prometheus 2.42 and the grammar of 3.x understand, and our own lint has nothing to say."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from sre.metrics.types import Exporter, Version
from sre.monitoring.catalogue_rules import all_groups
from sre.monitoring.dashboards.catalogue import all_dashboards
from sre.monitoring.dashboards.document import render
from sre.monitoring.lint.findings import LintOptions
from sre.monitoring.lint.linter import File, lint_files
from sre.monitoring.render import rule_file
from sre.settings.monitoring import MonitoringSettings
from tests.conftest import require_binary
from tests.monitoring.dashboards.conftest import EVERYTHING
from tests.monitoring.dashboards.reading import queries, substituted

Documents = dict[str, dict[str, Any]]
CHOSEN = {"node": "gpu-1|gpu-2", "instance": "10.0.0.1:8000", "model": "qwen", "job": "vllm", "slo": "ttft"}


@pytest.mark.parametrize("values", [None, CHOSEN], ids=["all", "some"])
def test_grammar_of_prometheus_3_reads_every_query(documents: Documents, values: dict[str, str] | None) -> None:
    count = 0
    for one in documents.values():
        for _, expression in queries(one):
            promql_parser.parse(substituted(expression, values))
            count += 1
    assert count > 150


def test_prometheus_reads_every_query(documents: Documents, tmp_path: Path) -> None:
    promtool = require_binary("promtool", "apt-get install prometheus brings it")
    expressions = [substituted(expression) for one in documents.values() for _, expression in queries(one)]
    rules = [{"record": f"panel:number_{number}", "expr": text} for number, text in enumerate(expressions)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(expressions)} rules found" in done.stdout


def linted(settings: MonitoringSettings, options: LintOptions) -> list[str]:
    """Findings in the dashboards; the rules are read with them, since panels read records."""
    files = [File("rules.yml", rule_file(all_groups(settings), settings))]
    files += [File(f"{one.uid}.json", render(one, settings)) for one in all_dashboards(settings)]
    results = lint_files(files, options)[1:]
    return [str(finding) for found in results for finding in (found if isinstance(found, list) else [found])]


def test_our_lint_finds_nothing() -> None:
    assert linted(MonitoringSettings(), LintOptions()) == []
    assert linted(EVERYTHING, LintOptions(retention_seconds=3650 * 86_400)) == []


@pytest.mark.parametrize(("vllm", "dcgm"), [("0.11", "4.8.3"), ("0.32", "4.9.0")])
def test_our_lint_finds_nothing_for_a_release(vllm: str, dcgm: str) -> None:
    settings = MonitoringSettings(vllm_version=vllm, dcgm_exporter_version=dcgm)
    versions = {Exporter.VLLM: Version.parse(vllm), Exporter.DCGM: Version.parse(dcgm)}
    assert linted(settings, LintOptions(versions=versions)) == []


def test_our_lint_can_find_something() -> None:
    settings = MonitoringSettings()
    document = json.loads(render(all_dashboards(settings)[0], settings))
    document["panels"][0]["targets"][0]["expr"] = "rate(sre_breaker_state[5m])"
    found = lint_files([File("one.json", json.dumps(document))], LintOptions())[0]
    assert isinstance(found, list)
    assert any("sre_breaker_state" in str(finding) for finding in found)
