"""What is generated and committed passes the lint, together with its runbooks; so do correct rules of others."""

from __future__ import annotations

from pathlib import Path

from sre.monitoring.lint import File, LintOptions, NotRules, lint, lint_files
from tests.monitoring import promtool

ROOT = Path(__file__).parents[3]


def test_our_rules_and_dashboards_pass() -> None:
    paths = sorted([*(ROOT / "alerts").glob("*.yml"), *(ROOT / "dashboards").glob("*.json")])
    assert len({path.suffix for path in paths}) == 2
    runbooks = {page.name: page.read_text("utf-8") for page in (ROOT / "runbooks").glob("*.md")}
    files = [File(f"{path.parent.name}/{path.name}", path.read_text("utf-8")) for path in paths]
    results = lint_files(files, LintOptions(runbooks=runbooks))
    assert not any(isinstance(result, NotRules) for result in results)
    found = [one for result in results if not isinstance(result, NotRules) for one in result]
    assert found == []


def test_correct_rules_of_others_are_left_alone() -> None:
    path = Path(__file__).with_name("idiomatic.yml")
    assert promtool.run("check", "rules", path).returncode == 0
    text = path.read_text("utf-8")
    assert text.count("- alert:") + text.count("- record:") >= 20
    assert lint(text, path.name) == []


def test_the_lint_would_find_a_renamed_metric_in_them() -> None:
    path = ROOT / "alerts" / "sre-records.yml"
    text = path.read_text("utf-8")
    assert "vllm:kv_cache_usage_perc" in text
    (result,) = lint_files(
        [File("rules", text.replace("vllm:kv_cache_usage_perc", "vllm:kv_cache_use"))], LintOptions()
    )
    assert not isinstance(result, NotRules)
    assert "expression/unknown-metric" in {one.check for one in result}
