"""What a fingerprint is made of is what ``gate.baseline.may_differ`` may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sre.adapters.gate_signals.machine import client_host
from sre.adapters.gate_signals.reader import STABLE_CONFIG
from sre.gate import environment
from sre.gate.fingerprint import Fingerprint
from sre.gate.importers import fingerprint, imported
from sre.gate.plan import Trace
from sre.gate.result import Smoke
from sre.gate.same_work import ANSWER_LENGTH, CACHED_PROMPTS
from sre.settings.gate import OF_CLASS, SUBJECT, GateSettings
from sre.settings.load import parse_settings

SMOKE = Smoke(True, "", "m", None, True, True, "usage", "vllm")
RECORDED = sorted((Path(__file__).parents[1] / "importers" / "recorded").iterdir())


def taken(names: set[str]) -> None:
    """Settings that declare all of ``names`` are read; ConfigError would tell which are not known."""
    listed = ", ".join(sorted(names))
    parse_settings(f"gate: {{baseline: {{may_differ: [{listed}]}}}}".encode())


def names_of(found: Fingerprint) -> set[str]:
    return {name for name, _ in found.fields}


@pytest.mark.parametrize("trace", [None, Trace(1, 1.0, "0" * 64)], ids=["stages", "trace"])
def test_every_condition_of_a_run_may_be_declared(trace: Trace | None) -> None:
    told = [*client_host(Path("/")), *((f"engine.{name}", "x") for name in STABLE_CONFIG)]
    found = environment.fingerprint(GateSettings(), SMOKE, told, trace)
    assert "client_host" in names_of(found)
    assert any(name.startswith(OF_CLASS) for name in names_of(found))
    taken({*names_of(found), ANSWER_LENGTH, CACHED_PROMPTS})


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_every_condition_of_an_import_may_be_declared(file: Path) -> None:
    taken(names_of(fingerprint([imported(file.read_text("utf-8"), where=file.name)])))


def test_what_is_tested_is_kept_apart() -> None:
    found = environment.fingerprint(GateSettings(), SMOKE, [(name, "x") for name in SUBJECT - {"server"}])
    assert {name for name, _ in found.subject} == SUBJECT
    assert not names_of(found) & SUBJECT
