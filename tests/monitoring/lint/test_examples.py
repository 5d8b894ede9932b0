"""Every check has two examples: one that it finds, and only it; one in which no check finds anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sre.monitoring.lint import CHECKS, LintOptions, lint
from tests.monitoring import promtool

EXAMPLES = Path(__file__).with_name("examples")
CHECK_IDS = sorted(CHECKS)
REFUSED = (
    "file/syntax", "file/structure", "file/unknown-key", "file/duplicate-key", "expression/syntax",
    "expression/grammar", "expression/experimental-function", "group/newer-key", "group/duplicate", "alert/template",
)  # fmt: skip
"""Checks of what Prometheus 2.42 does not load."""


def example(check: str, kind: str) -> Path:
    found = sorted((EXAMPLES / check).glob(f"{kind}.*"))
    assert len(found) == 1, f"{check} has {len(found)} examples called {kind}"
    return found[0]


def options(check: str) -> LintOptions:
    """Runbooks beside an example are those of the alerts in it."""
    folder = EXAMPLES / check / "runbooks"
    pages = {page.name: page.read_text("utf-8") for page in folder.glob("*.md")} if folder.is_dir() else None
    return LintOptions(runbooks=pages)


@pytest.mark.parametrize("check", CHECK_IDS)
def test_the_failing_example_is_found_by_this_check(check: str) -> None:
    path = example(check, "fail")
    findings = lint(path.read_text("utf-8"), path.name, replace(options(check), only=frozenset({check})))
    assert findings
    assert {finding.check for finding in findings} == {check}
    assert all(finding.severity is CHECKS[check].severity and finding.remedy for finding in findings)


@pytest.mark.parametrize("check", CHECK_IDS)
def test_the_passing_example_is_found_by_no_check(check: str) -> None:
    path = example(check, "pass")
    assert lint(path.read_text("utf-8"), path.name, options(check)) == []


def test_prometheus_reads_every_passing_rule_file() -> None:
    verdict = promtool.run("check", "rules", *sorted(EXAMPLES.glob("*/*/pass.yml")))
    assert verdict.returncode == 0, verdict.output


@pytest.mark.parametrize("check", REFUSED)
def test_prometheus_refuses_what_we_say_it_refuses(check: str) -> None:
    assert promtool.run("check", "rules", example(check, "fail")).returncode != 0


def test_every_folder_of_examples_is_a_check() -> None:
    folders = {f"{path.parent.name}/{path.name}" for path in EXAMPLES.glob("*/*") if path.is_dir()}
    assert folders == set(CHECKS)


def test_every_check_states_why_and_remedy_as_sentences() -> None:
    for check in CHECKS.values():
        assert check.why.endswith("."), check.id
        assert check.why[0].isupper() or check.why.startswith(
            ("topk", "pod", "vLLM", "rate", "absent", "external", "histogram", "0/0")
        ), check.id
        assert check.remedy, check.id
