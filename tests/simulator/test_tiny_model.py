"""The maker of the tiny model as a script, in an interpreter without vLLM. What it makes is tested by the contracts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sre.adapters.engines import tiny_model


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    # -S: without site-packages, as an interpreter that has nothing installed.
    return subprocess.run(
        [sys.executable, "-S", tiny_model.__file__, *argv], capture_output=True, text=True, timeout=30, cwd="/"
    )


def test_without_a_folder_it_says_how_to_call_it() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (2, "usage: python tiny_model.py OUT_DIR\n")


def test_without_vllm_it_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    done = run(str(tmp_path / "model"))
    assert done.returncode == 1
    assert "run with the Python that has vLLM" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_complete_model_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / tiny_model.COMPLETE_MARK).write_text(tiny_model._recipe())
    assert run(str(tmp_path)).returncode == 0


def test_a_half_made_folder_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert not tiny_model.is_tiny_model(tmp_path)
