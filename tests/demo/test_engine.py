"""Options of the demo: what is given is meant from the current folder, whatever folder its sre.yaml is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from sre.cli.demo import _engine


def test_paths_of_options_begin_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = _engine("vllm", "venv/bin/python", Path("model"))
    assert (made.python, made.model) == (f"{tmp_path}/venv/bin/python", tmp_path / "model")
    assert _engine("vllm", "python3", None).python == "python3", "looked for on $PATH"
