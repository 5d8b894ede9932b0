"""What a baseline says of itself: its days, and what a comparison with it can show."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sre.gate.acceptance import outlook
from sre.gate.baseline import Baseline
from sre.settings.gate import GatedCellSettings
from tests.gate.verdict.simulated import COMPARISON_ONLY, Model, lognormal_runs
from tests.gate.verdict.test_baseline import accepted, result

ONE_CELL = replace(COMPARISON_ONLY, cells=(GatedCellSettings(metric="ttft_p99_seconds"),))


def baseline(*days: int, runs: int = 5, **model: float) -> Baseline:
    found = lognormal_runs(random.Random(1), Model(**model), runs)  # type: ignore[arg-type]
    made: Baseline | None = None
    for day in days:
        made = accepted(result(day + 1, runs=found, day=day), existing=made, force=True)
    assert made is not None
    return made


def test_runs_of_one_day_are_told_with_what_that_means() -> None:
    days, quiet = outlook(baseline(0), ONE_CELL, 5)
    assert days.startswith("its runs are of one day: ")
    assert "fail in about 13 of 100" in days
    assert quiet.startswith("100qps/short/ttft_p99_seconds: its runs vary by ")
    assert quiet.endswith(" of cases")
    assert outlook(baseline(0, 1, 2), ONE_CELL, 5)[0].startswith("its runs are of 3 days: ")


@pytest.mark.parametrize(
    ("variation", "remedy"), [(0.12, " runs on each side would do (gate"), (2.0, "no number would do")]
)
def test_a_baseline_that_varies_too_much_says_how_many_runs_would_do(variation: float, remedy: str) -> None:
    (_, noisy) = outlook(baseline(0, run_variation=variation), ONE_CELL, 5)
    assert "so that most equal builds are INCONCLUSIVE" in noisy
    assert remedy in noisy


def test_too_few_requests_or_runs_are_told() -> None:
    assert (
        "none can PASS: 200 requests per run, this percentile takes 299"
        in outlook(baseline(0, requests=200, sigma=0.05), ONE_CELL, 5)[1]
    )
    assert "it takes 5 on each side" in outlook(baseline(0, runs=3), ONE_CELL, 5)[1]
