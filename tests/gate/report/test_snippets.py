"""Ready CI files: valid YAML that blocks on every answer but a pass, and keeps the reports."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from sre.errors import ConfigError
from sre.gate import snippets


def loaded(name: str) -> Any:
    return yaml.safe_load(snippets.snippet(name))


@pytest.mark.parametrize("name", snippets.NAMES)
def test_snippet_is_yaml_that_says_what_the_exit_codes_mean(name: str) -> None:
    assert isinstance(loaded(name), dict)
    text = snippets.snippet(name)
    for meaning in ("0 pass", "1 could not run", "3 slower", "5 inconclusive", "GATE_INCONCLUSIVE"):
        assert meaning in text
    assert max(map(len, text.splitlines())) <= 130


def test_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="snippet 'jenkins': there is none of this name; the names are github, gitlab"
    ):
        snippets.snippet("jenkins")


def test_github_reports_whatever_the_gate_said() -> None:
    found = loaded("github")
    steps = found["jobs"]["gate"]["steps"]
    gate = next(step for step in steps if step.get("name") == "Gate")
    assert "if" not in gate
    assert "continue-on-error" not in gate
    after = steps[steps.index(gate) + 1 :]
    assert [step["if"] for step in after] == ["always()", "always()"]
    assert "GITHUB_STEP_SUMMARY" in after[0]["run"]
    assert after[1]["with"]["path"] == "gate-state/gate/"
    assert all("${{" not in step.get("run", "") for step in steps)  # values of others reach a shell as variables only
    assert found["permissions"] == {"contents": "read"}


def test_gitlab_keeps_junit_and_blocks() -> None:
    job = loaded("gitlab")["gate"]
    assert "allow_failure" not in job
    assert job["artifacts"]["when"] == "always"
    assert job["artifacts"]["reports"] == {"junit": "gate-junit.xml"}
    assert any("--format junit > gate-junit.xml" in line for line in job["after_script"])


def test_kubernetes_job_ends_with_the_gates_own_code_and_asks_an_answer_once() -> None:
    spec = loaded("kubernetes")["spec"]
    rule = spec["podFailurePolicy"]["rules"][0]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2, 3, 5, 6])
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    container = pod["containers"][0]
    assert container["name"] == rule["onExitCodes"]["containerName"]
    script = container["args"][0]
    assert script.index("code=$?") < script.index("gate report") < script.index("exit $code")
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
