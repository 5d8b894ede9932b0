"""Relative paths of a file begin at its folder, wherever sre is called; nothing else of it changes."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sre.adapters.engines import vllm
from sre.settings.base import FilePath, ProgramPath, SecretRef, from_folder
from sre.settings.gate import GateSettings
from sre.settings.load import load_settings
from sre.settings.models import Root
from sre.settings.paths import StatePaths, state_paths
from sre.settings.secrets import resolve_secret
from sre.wiring.gate import baselines_folder

TEXT = """
stack:
  state_dir: state
  gateway: {envoy_binary: bin/envoy}
  engines:
    - name: a
      kind: vllm
      model: ./model
      python: venv/bin/python
      api_key: file:secrets/key
      env: {HF_TOKEN: "file:hf", HF_HOME: cache, API_TOKEN: "env:TOKEN"}
    - {name: b, kind: vllm, model: here/model, python: python3, port: 8001}
    - {name: c, kind: vllm, model: org/model, python: ~/venv/bin/python}
    - {name: d, model: here/model}
notify:
  templates: {title: title.txt}
  channels:
    - {name: mail, kind: email, url: "file:mail-url", template: {html: "../mail.html"}}
    - {name: sms, kind: sms, url: env:SMS}
    - {name: pager, kind: pagerduty, url: "file:/etc/sre/pager"}
webhook:
  {token: "file:token", tls_certificate: tls/crt, tls_key: tls/key, public_url: "http://a", ack_secret: "file:ack"}
gate:
  target: {api_key: "file:gate-key", tls_ca_file: ca.pem}
  load: {trace_file: trace.jsonl}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file is; the current folder is another one, with the same names in it."""
    for name in ("etc", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mail-url").write_text(f"mailto://{name}")
        (tmp_path / name / "org" / "only-elsewhere").mkdir(parents=True)
    (tmp_path / "etc" / "here" / "model").mkdir(parents=True)
    (tmp_path / "elsewhere" / "org" / "model").mkdir(parents=True)
    (tmp_path / "etc" / "sre.yaml").write_text(TEXT)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "etc"


@pytest.fixture
def root(folder: Path) -> Root:
    return load_settings(folder / "sre.yaml")


def test_every_path_of_a_file_begins_at_its_folder(root: Root, folder: Path) -> None:
    a, b, c, d = root.stack.engines
    assert root.stack.state_dir == f"{folder}/state"
    assert root.stack.gateway.envoy_binary == f"{folder}/bin/envoy"
    assert (a.python, a.api_key) == (f"{folder}/venv/bin/python", f"file:{folder}/secrets/key")
    assert a.env == {"HF_TOKEN": f"file:{folder}/hf", "HF_HOME": "cache", "API_TOKEN": "env:TOKEN"}
    assert (b.python, c.python) == ("python3", "/home/me/venv/bin/python")
    assert d.model == "here/model", "the simulated engine's is a name"
    mail, sms, pager = root.notify.channels
    assert (mail.url, mail.template.html) == (f"file:{folder}/mail-url", f"{folder}/../mail.html")
    assert (sms.url, pager.url, root.notify.templates.title) == (
        "env:SMS", "file:/etc/sre/pager", f"{folder}/title.txt",
    )  # fmt: skip
    assert root.webhook.token == f"file:{folder}/token"
    assert root.webhook.ack_secret == f"file:{folder}/ack"
    assert (root.webhook.tls_certificate, root.webhook.tls_key) == (f"{folder}/tls/crt", f"{folder}/tls/key")
    assert (root.gate.target.api_key, root.gate.target.tls_ca_file) == (f"file:{folder}/gate-key", f"{folder}/ca.pem")
    assert root.gate.load.trace_file == f"{folder}/trace.jsonl"


def test_a_secret_is_that_of_the_file_not_of_the_current_folder(root: Root) -> None:
    assert resolve_secret(root.notify.channels[0].url, "x", {}) == "mailto://etc"


def test_a_model_beside_the_file_is_a_folder_and_keeps_the_name_clients_use(root: Root, folder: Path) -> None:
    a, b, c, _ = root.stack.engines
    assert (vllm.model_folder(a), a.served_name) == (folder / "model", "./model")
    assert (vllm.model_folder(b), b.served_name) == (folder / "here" / "model", "here/model")
    assert (vllm.model_folder(c), c.model) == (None, "org/model"), "the one in the current folder is another"


def test_vllm_runs_where_the_file_is(root: Root, folder: Path, tmp_path: Path) -> None:
    spec = vllm.process(root.stack.engines[1], StatePaths(tmp_path), {}, folder)
    assert spec.command is not None
    assert spec.command.cwd == str(folder)


def test_a_relative_name_of_the_file_and_a_link_to_it_count_as_they_are_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "sre.yaml").symlink_to(folder / "sre.yaml")
    monkeypatch.chdir(tmp_path)
    assert load_settings(Path("etc/sre.yaml")).stack.state_dir == f"{folder}/state"
    assert load_settings(Path("linked/sre.yaml")).stack.state_dir == f"{tmp_path}/linked/state"
    monkeypatch.chdir(folder)
    stack = load_settings(None).stack
    assert state_paths(stack, None, {}).root == folder / "state"
    assert state_paths(stack, Path("given"), {}).root == folder / "given", "an option begins at the current folder"


def fields(annotation: Any) -> Iterator[Any]:
    """Every field below ``annotation``, as (name, FieldInfo)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield name, field
            yield from fields(field.annotation)
    for part in typing.get_args(annotation):
        yield from fields(part)


SOUNDS_LIKE_A_PATH = re.compile(r"(_file|_dir|folder|_binary|_certificate|_key|path|python)$")
ELSEWHERE = {
    "webhook_token_file": "lies where Alertmanager runs",
    "folder": "gate.baseline.folder has a relative default; see test_the_folder_of_baselines_goes_by_the_same_rule",
}


def test_no_path_is_forgotten() -> None:
    found = {name: field for name, field in fields(Root) if SOUNDS_LIKE_A_PATH.search(name)}
    assert {"state_dir", "tls_key", "python", "trace_file"} <= set(found)
    for name, field in found.items():
        assert name in ELSEWHERE or {FilePath, ProgramPath, SecretRef} & set(typing.get_args(field.annotation)), name


@pytest.mark.parametrize("written", ["gate-baselines", "../shared", "/srv/baselines", "~/baselines", "~nobody-here/b"])
def test_the_folder_of_baselines_goes_by_the_same_rule(written: str, tmp_path: Path) -> None:
    settings = GateSettings.model_validate({"baseline": {"folder": written}})
    rule = Path(from_folder(written, str(tmp_path)))
    assert baselines_folder(settings, tmp_path / "sre.yaml") == rule
    assert baselines_folder(settings, None) == Path(from_folder(written, "."))
