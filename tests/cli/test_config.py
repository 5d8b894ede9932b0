"""sre config: whole output and exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sre.settings.load import load_settings
from sre.settings.models import Root
from tests.cli.conftest import Ran, RunSre


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_a_valid_file_and_says_how_to_check_it(run_sre: RunSre) -> None:
    assert run_sre("config", "init") == Ran(
        0, "", "wrote sre.yaml; check it with: sre --config sre.yaml config validate\n"
    )
    assert load_settings(Path("sre.yaml")) == Root()
    assert [p.name for p in Path().iterdir()] == ["sre.yaml"]


def test_init_does_not_overwrite_without_force(run_sre: RunSre) -> None:
    Path("sre.yaml").write_text("mine")
    assert run_sre("config", "init") == Ran(
        2, "", "sre: sre.yaml: exists already; use --force to replace it, or name another file\n"
    )
    assert Path("sre.yaml").read_text() == "mine"
    assert run_sre("config", "init", "--force", "--engine", "vllm").code == 0
    assert load_settings(None).stack.engines[0].kind == "vllm"
    assert [p.name for p in Path().iterdir()] == ["sre.yaml"]


def test_init_does_not_follow_a_dangling_link(run_sre: RunSre) -> None:
    Path("sre.yaml").symlink_to("elsewhere")
    assert run_sre("config", "init").code == 2
    assert not Path("elsewhere").exists()


def test_init_into_a_missing_folder_is_one_sentence(run_sre: RunSre) -> None:
    assert run_sre("config", "init", "none/sre.yaml") == Ran(
        2, "", "sre: none/sre.yaml: cannot be written: No such file or directory; choose another folder\n"
    )


def test_init_dry_run_prints_and_writes_nothing(run_sre: RunSre) -> None:
    ran = run_sre("config", "init", "--dry-run")
    assert ran.code == 0
    assert ran.out.startswith("# sre.yaml: what `sre up` runs")
    assert list(Path().iterdir()) == []


def test_validate_without_a_file_checks_the_defaults(run_sre: RunSre) -> None:
    assert run_sre("config", "validate") == Ran(
        0,
        "built-in defaults: valid: engines sim-0 (sim, model sim-7b); gateway 127.0.0.1:8080; guard auto with 4 rules;"
        " 0 notification channels\n",
        "warning: built-in defaults: notify.channels: none: nobody will be told; add an e-mail and an sms channel\n",
    )


def test_validate_names_every_problem_one_per_line(run_sre: RunSre) -> None:
    Path("sre.yaml").write_text("stack:\n  engines:\n    - name: a\n      kind: vlm\nguards: {}\n")
    assert run_sre("config", "validate") == Ran(
        2,
        "",
        'sre: sre.yaml: stack.engines[0].kind: "vlm" is not one of sim, vllm, external; did you mean vllm? (line 4)\n'
        "sre: sre.yaml: guards: unknown key; did you mean guard? (line 5)\n",
    )


def test_validate_as_json_holds_the_same_problems(run_sre: RunSre) -> None:
    Path("my.yaml").write_text("guards: {}")
    ran = run_sre("--config", "my.yaml", "config", "validate", "-o", "json")
    assert ran.code == 2
    assert json.loads(ran.out) == {
        "source": "my.yaml",
        "valid": False,
        "problems": ["my.yaml: guards: unknown key; did you mean guard? (line 1)"],
        "warnings": [],
    }
    assert ran.err == ""


def test_a_file_that_is_named_must_exist(run_sre: RunSre) -> None:
    assert run_sre("--config", "my.yaml", "config", "validate") == Ran(
        2, "", "sre: my.yaml: no such file; write one with: sre config init my.yaml\n"
    )


def test_show_prints_defaults_and_hides_no_reference(run_sre: RunSre) -> None:
    Path("sre.yaml").write_text(
        "stack: {engines: [{name: a, api_key: 'env:KEY', env: {HF_TOKEN: 'env:T', LEVEL: INFO}}]}\n"
        "notify: {channels: [{name: m, kind: email, url: 'file:/run/mail'}]}\n"
    )
    shown = json.loads(run_sre("config", "show", "-o", "json").out)
    assert shown["stack"]["engines"][0]["api_key"] == "env:KEY"
    assert shown["stack"]["engines"][0]["env"] == {"HF_TOKEN": "env:T", "LEVEL": "INFO"}
    assert shown["notify"]["channels"][0]["url"] == "file:/run/mail"
    assert shown["guard"]["hang"]["hang_after_seconds"] == 3.0


def test_show_as_text_is_a_configuration_that_means_the_same(run_sre: RunSre) -> None:
    ran = run_sre("config", "show")
    assert ran.out.startswith("# built-in defaults, defaults included\n")
    Path("sre.yaml").write_text(ran.out)
    assert load_settings(None) == Root()


def test_schema_is_json_on_stdout(run_sre: RunSre) -> None:
    ran = run_sre("config", "schema")
    assert (ran.code, ran.err) == (0, "")
    assert set(json.loads(ran.out)["properties"]) == set(Root.model_fields)
