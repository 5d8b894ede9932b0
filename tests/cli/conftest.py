"""Running commands in this process: argv in; exit code, stdout and stderr out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sre.adapters.gate_files import GateFiles


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str


RunSre = Callable[..., Ran]


@pytest.fixture
def run_sre(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunSre:
    """``run_sre("config", "validate")``; plain output, 80 columns wide."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("SRE_CONFIG", "SRE_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*argv: str) -> Ran:
        from sre.cli.main import run

        capsys.readouterr()
        code = run(list(argv))
        captured = capsys.readouterr()
        return Ran(int(code), captured.out, captured.err)

    return invoke


@pytest.fixture
def own_folder(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in a folder of its own, with its state there, and in no CI."""
    monkeypatch.chdir(short_dir)
    monkeypatch.setenv("XDG_STATE_HOME", str(short_dir / "state"))
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def runs(own_folder: None) -> GateFiles:
    """The folder in which the commands of the gate look."""
    from sre.adapters.gate_files import GateFiles

    return GateFiles(Path("state/sre/default/gate"))
