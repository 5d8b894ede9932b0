"""sre analyze bottleneck on results that are on disk."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sre.adapters.gate_files import GateFiles
from sre.cli.main import cli
from sre.gate.bottleneck import Attribution, Demand, Limit
from sre.gate.stages import Resource
from tests.support import gate_samples

ANSWER = Attribution(
    Resource.STORAGE, True, 145.0,
    (
        Demand(
            Resource.STORAGE, 0.0072, 138.9, 0.03, "/proc/diskstats nvme", 0.0, 0.89, "500qps", 3115.0, "MB/s", 3500.0
        ),
        Demand(Resource.CPU, 0.003, 333.3, 0.02, "/proc/stat, all processes", 0.05, 0.4, "500qps"),
    ),
    (Limit(Resource.BATCH_SLOTS, 0.97, "500qps", "vllm:num_requests_running of max_num_seqs"),),
    1.4, True, ("compute: start it with --enable-mfu-metrics", "gpu: no GPU tells its utilization"),
    "storage binds: 89% used at 500qps",
)  # fmt: skip


def asked(folder: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        cli, ["--state-dir", str(folder), "analyze", "bottleneck", *arguments], standalone_mode=False
    )
    assert result.exception is None, result.output
    return int(result.return_value or 0), result.output


def saved(folder: Path, answer: Attribution | None) -> None:
    made = GateFiles(folder / "gate").create(1_800_000_000.0)
    made.save(dataclasses.replace(gate_samples.passed(), bottleneck=answer))


def test_axes_are_shown_whether_seen_or_not(tmp_path: Path) -> None:
    saved(tmp_path, ANSWER)
    code, out = asked(tmp_path)
    assert code == 0
    lines = out.splitlines()
    assert lines[1:3] == ["storage binds, confirmed by the knee", "storage binds: 89% used at 500qps"]
    table = [line for line in lines if line.startswith(("storage ", "network ", "compute ", "cpu "))]
    assert [line.split()[0] for line in table if "binds" not in line] == ["storage", "network", "compute", "cpu"]
    assert "3115 of 3500 MB/s" in out
    assert "not seen: start it with --enable-mfu-metrics" in out
    assert "not seen: nobody reads it" in out
    assert "limit reached: batch_slots" in out
    assert lines[-1] == "not seen: gpu: no GPU tells its utilization"


def test_json_has_the_same(tmp_path: Path) -> None:
    saved(tmp_path, ANSWER)
    code, out = asked(tmp_path, "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert (found["binding"], found["confirmed"], found["margin_ratio"]) == ("storage", True, 1.4)
    assert [one["resource"] for one in found["axes"]] == ["storage", "network", "compute", "cpu"]
    assert found["axes"][0]["ceiling_rps"] == 138.9
    assert found["axes"][1]["ceiling_rps"] is None


@pytest.mark.parametrize(
    "answer",
    [None, dataclasses.replace(ANSWER, binding=None, confirmed=False), dataclasses.replace(ANSWER, confirmed=False)],
    ids=["left out", "nothing", "not confirmed"],
)
def test_no_sure_answer_is_5(tmp_path: Path, answer: Attribution | None) -> None:
    saved(tmp_path, answer)
    assert asked(tmp_path)[0] == 5
    assert asked(tmp_path, "-o", "json")[0] == 5


def test_what_is_not_confirmed_is_not_said_to_bind(tmp_path: Path) -> None:
    saved(tmp_path, dataclasses.replace(ANSWER, confirmed=False))
    assert asked(tmp_path)[1].splitlines()[1] == "nothing is shown to bind; storage is the nearest"
