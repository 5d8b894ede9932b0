"""What a person sees at the end of a gate run: the verdict first, and not more than two screens."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sre.cli.gate_answer import answer_text
from sre.errors import ExitCode
from sre.gate.latency_budget import budget_table
from sre.gate.result import GateResult, RunResult
from sre.gate.stages import StageKind
from sre.gate.verdict import Cell, CellVerdict, Reason, Verdict
from sre.settings.gate import BudgetSettings
from tests.cli.conftest import RunSre
from tests.support.gate_samples import rich, stage

TWO_SCREENS = 60
RATES = (100, 300, 500, 1000)


def long_run(stages: int = 4, runs: int = 10) -> GateResult:
    """As a real one: many runs, a search for the knee, objectives at every stage."""
    passes = [
        RunResult(run, "candidate", tuple(stage(rate, run) for rate in RATES[:stages]), 0.0) for run in range(runs)
    ]
    knee = tuple(stage(rate, 20, kind=StageKind.KNEE) for rate in (600, 700, 650, 675, 690))
    cells = tuple(
        CellVerdict(
            Cell(f"{rate}qps", "all", metric), "objective", verdict, Reason.WITHIN_OBJECTIVES, (0.0,), bound=0.1,
            detail=f"{rate} {metric}",
        )
        for metric, verdict in (
            ("failed_ratio", Verdict.PASS), ("ttft_p99_seconds", Verdict.INCONCLUSIVE),
            ("e2e_p99_seconds", Verdict.PASS), ("ttft_p95_seconds", Verdict.FAIL),
        )
        for rate in RATES[:stages]
    )  # fmt: skip
    base = rich(interrupted="")
    measured = [one for each in passes for one in each.stages] + list(knee)
    return dataclasses.replace(
        base,
        runs=tuple(passes),
        knee_stages=knee,
        latency_budget=budget_table(measured, BudgetSettings()),
        verdict=dataclasses.replace(base.verdict, cells=cells),
    )


def test_the_verdict_and_what_decided_it_come_first_and_the_rest_fits_on_two_screens() -> None:
    result = long_run()
    lines = answer_text(result, Path("folder"), ExitCode.NO).splitlines()
    assert lines[0] == "Gate: FAIL"
    assert lines[1] == result.verdict.summary
    assert len(lines) <= TWO_SCREENS
    judged = [line.split()[0] for line in lines if "qps/all/" in line]
    assert judged == ["FAIL"] * 4 + ["INCONCLUSIVE"] * 4 + ["PASS"] * 2
    assert "and 6 more, none of them worse" in lines
    assert f"sre gate report {result.id}" in lines[-1]


def test_a_stage_has_one_row_of_the_budget_however_many_runs_it_had() -> None:
    lines = answer_text(long_run(), Path("folder"), ExitCode.NO).splitlines()
    table = lines[next(index for index, line in enumerate(lines) if line.startswith("Latency budget")) + 1 :]
    assert table[0].split()[:6] == ["Stage", "Client", "Network", "Load", "Compute", "Serialization"]
    assert [row.split()[0] for row in table[1:6]] == ["budget", "100qps", "300qps", "500qps", "1000qps"]
    assert "over" in table[2]


def test_a_run_without_anything_says_so(run_sre: RunSre) -> None:
    bare = dataclasses.replace(rich(), runs=(), knee=None, knee_stages=(), latency_budget=None, long_tail=None)
    assert answer_text(bare, Path("folder"), ExitCode.NO).splitlines()[0] == "Gate: FAIL (partial)"


@pytest.mark.parametrize(("url", "code"), [("nowhere", 2), ("http://127.0.0.1:{port}", 1)])
def test_json_is_json_when_the_gate_cannot_run(
    run_sre: RunSre, free_port: Callable[[], int], short_dir: Path, url: str, code: int
) -> None:
    ran = run_sre(
        "--state-dir", str(short_dir), "gate", "run", "--url", url.format(port=free_port()), "--output", "json"
    )  # fmt: skip
    said = json.loads(ran.out)
    assert (ran.code, said["exit_code"], said["verdict"]) == (code, code, None)
    assert said["error"] in ran.err
