"""Running commands in this process: argv in; exit code, stdout and stderr out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest


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
