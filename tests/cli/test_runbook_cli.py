"""sre runbook: whole output and exit code; a label's value never becomes a command."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sre.cli.runbook import plain_template
from tests.cli.conftest import Ran, RunSre

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "runbooks" / "SreRuleBlind.md").read_text("utf-8")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list_names_every_alert_once_with_what_it_says(run_sre: RunSre) -> None:
    ran = run_sre("runbook", "list")
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert sorted(line.split()[0] for line in lines) == sorted(page.stem for page in (ROOT / "runbooks").glob("*.md"))
    width = max(len(line.split()[0]) for line in lines)
    assert f"{'SreRuleBlind':<{width}}  ticket  resource  Rule $rule does not see $target." in lines
    assert f"{'SreGuardDown':<{width}}  page    resource  The guard $instance does not answer." in lines
    assert "{{" not in ran.out


def test_list_as_json(run_sre: RunSre) -> None:
    rows = {row["alert"]: row for row in json.loads(run_sre("runbook", "list", "--output", "json").out)}
    assert rows["SreRuleBlind"] == {
        "alert": "SreRuleBlind",
        "severity": "ticket",
        "dimension": "resource",
        "component": "sre",
        "summary": "Rule $rule does not see $target.",
    }


def test_show_prints_the_page_and_asks_for_labels_on_stderr(run_sre: RunSre) -> None:
    asked = "fill in the labels of the alert: --label rule=… --label target=… --label instance=…\n"
    assert run_sre("runbook", "show", "sreRULEblind") == Ran(0, PAGE, asked)
    assert run_sre("runbook", "show", "SreRuleBlind", "-o", "markdown") == Ran(0, PAGE, asked)


def test_show_fills_in_labels_as_single_words(run_sre: RunSre) -> None:
    ran = run_sre(
        "runbook",
        "show",
        "SreRuleBlind",
        "-l",
        "rule=gpu-memory",
        "-l",
        'target=a"; rm -rf ~',
        "-l",
        "instance=h:9400",
        "-l",
        "x=y",
    )
    assert (ran.code, ran.err) == (0, "no command here uses x\n")
    assert "The guard's rule `gpu-memory` has not seen" in ran.out
    assert 'sre_signal_seen{target="a\\"; rm -rf ~"} == 1' in ran.out
    assert "$target" not in ran.out


def test_show_as_json(run_sre: RunSre) -> None:
    ran = run_sre("runbook", "show", "SreRuleBlind", "--label", "target=sim-0", "--output", "json")
    data = json.loads(ran.out)
    assert list(data["sections"]) == sorted(("Meaning", "Impact", "Diagnosis", "Mitigation", "Escalation"))
    assert (data["alert"], data["severity"], data["labels"]) == (
        "SreRuleBlind", "ticket", {"rule": None, "target": "sim-0", "instance": None},
    )  # fmt: skip
    assert {"section": "Diagnosis", "language": "sh", "text": "sre guard status\nsre doctor"} in data["commands"]
    assert data["markdown"] == PAGE.replace("`$target`", "`sim-0`").replace('"$target"', '"sim-0"')


def test_unknown_alert_names_the_nearest_and_exits_2(run_sre: RunSre) -> None:
    assert run_sre("runbook", "show", "SreRuleBlin") == Ran(
        2, "", "sre: sre runbook: no runbook for 'SreRuleBlin'; did you mean SreRuleBlind?\n"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("target=-rf",), "label target: '-rf' begins with '-': a program would take it as an option"),
        (("target=a\nid",), "label target: 'a\\nid' has characters that cannot be seen"),
        (("target=\x1b[2J",), "label target: '\\x1b[2J' has characters that cannot be seen"),
        (("target",), "--label 'target': write it as NAME=VALUE, e.g. node=gpu-1"),
        (("a b=c",), "--label 'a b=c': write it as NAME=VALUE"),
        (("target=a", "target=b"), "--label target: given twice with different values; give it once"),
    ],
)
def test_a_label_that_cannot_be_used_is_refused(run_sre: RunSre, given: tuple[str, ...], message: str) -> None:
    options = [word for label in given for word in ("--label", label)]
    ran = run_sre("runbook", "show", "SreRuleBlind", *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"sre: sre runbook: {message}")


def test_runbooks_are_read_even_if_the_configuration_is_broken(run_sre: RunSre) -> None:
    Path("sre.yaml").write_text("stack: [")
    assert run_sre("runbook", "list").code == 0
    assert run_sre("runbook", "show", "SreGuardDown", "-o", "json").code == 0


def test_annotations_are_written_as_people_write_them() -> None:
    assert plain_template('{{ $labels.node }} is at {{ $value | printf "%.2f" }} °C') == "$node is at $value °C"


def read_until_hangup(terminal: int) -> bytes:
    """What the other side wrote; nothing once it has closed the terminal."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_on_a_terminal_the_page_is_laid_out_and_commands_stay_whole() -> None:
    long = "http://" + "x" * 150
    terminal, inside = pty.openpty()
    environ = {"PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "60", "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "sre", "runbook", "show", "VllmEngineDown", "-l", f"instance={long}"]
    with subprocess.Popen(argv, env=environ, stdout=inside, stderr=subprocess.DEVNULL) as shower:
        os.close(inside)
        shown = b"".join(iter(lambda: read_until_hangup(terminal), b""))
    os.close(terminal)
    assert shower.returncode == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")
    assert "## Meaning" not in text
    assert "Meaning" in text
    assert "```" not in text
    assert f'    changes(up{{instance="{long}"}}[1h])\n' in text
    prose = [line for line in text.splitlines() if "curl" not in line and long not in line and "journalctl" not in line]
    assert max(map(len, prose)) <= 60
    # Numbering goes on after a command.
    diagnosis = text.split("Diagnosis")[1].split("Mitigation")[0]
    assert re.findall(r"^ (\d) ", diagnosis, re.MULTILINE) == ["1", "2", "3", "4"]
