"""Ready CI files: valid YAML that blocks on every answer but a pass, and keeps the reports."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from sre.cli.gate import run
from sre.cli.main import cli
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


@pytest.mark.parametrize("name", snippets.NAMES)
def test_a_snippet_installs_from_a_repository_that_is_marked_to_be_replaced(name: str) -> None:
    text = snippets.snippet(name)
    assert "# REPLACE" in text
    assert "example.com/REPLACE/sre" in text
    assert 'install "sre[gate]"' not in text  # on no index


def test_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="snippet 'jenkins': there is none of this name; the names are github, gitlab"
    ):
        snippets.snippet("jenkins")


def command(name: str) -> list[str]:
    """The words of its gate."""
    if name == "kubernetes":
        container = loaded(name)["spec"]["template"]["spec"]["containers"][0]
        return [*container["command"], *container["args"]]
    if name == "gitlab":
        return shlex.split(loaded(name)["gate"]["script"][0])
    steps = loaded(name)["jobs"]["gate"]["steps"]
    return shlex.split(next(step for step in steps if step.get("name") == "Gate")["run"])


@pytest.mark.parametrize("name", snippets.NAMES)
def test_gate_of_a_snippet_is_a_command_of_ours(name: str) -> None:
    words = command(name)
    assert words[0] == "sre"
    at = words.index("gate")
    known = {option for parameter in cli.params for option in parameter.opts}
    assert {word for word in words[1:at] if word.startswith("--")} <= known
    known = {option for parameter in run.params for option in parameter.opts}
    assert words[at + 1] == "run"
    assert {word for word in words[at:] if word.startswith("--")} <= known


def test_github_keeps_reports_whatever_the_gate_said() -> None:
    found = loaded("github")
    steps = found["jobs"]["gate"]["steps"]
    gate, keep = steps[-2:]
    assert not {"if", "continue-on-error"} & set(gate)
    assert keep["if"] == "always()"
    assert keep["with"]["path"].split() == ["gate-junit.xml", "gate-state/gate/"]
    assert all("${{" not in step.get("run", "") for step in steps)  # values of others reach a shell as variables only
    assert found["permissions"] == {"contents": "read"}


def test_gitlab_keeps_junit_and_blocks() -> None:
    job = loaded("gitlab")["gate"]
    assert "allow_failure" not in job
    assert job["artifacts"]["when"] == "always"
    assert job["artifacts"]["reports"] == {"junit": "gate-junit.xml"}
    words = command("gitlab")
    assert words[words.index("--junit") + 1] == "gate-junit.xml"


def test_kubernetes_job_asks_an_answer_once_and_has_what_it_mounts() -> None:
    spec = loaded("kubernetes")["spec"]
    rule = spec["podFailurePolicy"]["rules"][0]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2, 3, 5, 6])
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    container = pod["containers"][0]
    assert container["name"] == rule["onExitCodes"]["containerName"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    given = {variable["name"] for variable in container["env"]}
    assert {word[2:-1] for word in command("kubernetes") if word.startswith("$(")} <= given
