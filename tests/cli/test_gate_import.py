"""sre gate import: what other tools recorded, as a run of ours."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sre.adapters.gate_files import GateFiles
from tests.cli.conftest import RunSre

RECORDED = Path(__file__).parents[1] / "gate" / "importers" / "recorded"


@pytest.mark.parametrize(
    ("name", "dated"), [("vllm_bench.json", False), ("guidellm.json", True), ("aiperf.jsonl", True)]
)
def test_an_imported_run_is_dated_and_as_long_as_its_records(
    run_sre: RunSre, short_dir: Path, name: str, dated: bool
) -> None:
    began = time.time()
    ran = run_sre("--state-dir", str(short_dir / "s"), "gate", "import", str(RECORDED / name))
    assert ran.code in (3, 5), ran.err
    result = GateFiles(short_dir / "s" / "gate").read("last")
    assert 0 < result.wall_ended_at - result.wall_started_at < 600
    assert (result.wall_started_at < began) is dated
    assert any("the date is that of the import" in note for note in result.notes) is not dated
    assert all(run.wall_started_at > 1_700_000_000 for run in result.runs)
