"""The latency budget in reports: a stage once."""

from __future__ import annotations

from sre.gate.latency_budget import BudgetPart, BudgetStage
from sre.gate.report.budget_table import latency_budget, middle_runs, short_latency_budget


def run_of(name: str, total: float) -> BudgetStage:
    parts = (
        BudgetPart("network", 0.05, 0.01, True, "a trivial request"),
        BudgetPart("compute", 0.1, total - 0.01, total - 0.01 <= 0.1, "the engine"),
    )
    return BudgetStage(name, parts, total, 0.0, 0.0, "")


RUNS = [run_of(name, total) for total in (0.3, 0.05, 0.2, 0.4, 0.1) for name in ("10qps", "20qps")]


def test_of_several_runs_the_middle_one_is_shown_whole() -> None:
    assert [(one.stage, one.total_seconds) for one in middle_runs(RUNS)] == [("10qps", 0.2), ("20qps", 0.2)]
    assert [one.total_seconds for one in middle_runs([run_of("a", 2), run_of("a", 1)])] == [1]
    (table,) = latency_budget(RUNS).tables
    assert [row[:2] for row in table.rows] == [
        (stage, part) for stage in ("10qps", "20qps") for part in ("network", "compute", "total")
    ]
    assert table.marks == ("", "fail", "") * 2


def test_in_short_a_stage_is_a_row_under_the_budget() -> None:
    table = short_latency_budget(RUNS)
    assert table is not None
    assert table.heading == ("Stage", "Network", "Compute", "Total", "")
    assert table.rows == (
        ("budget", "50 ms", "100 ms", "", ""),
        ("10qps", "10 ms", "190 ms over", "200 ms", ""),
        ("20qps", "10 ms", "190 ms over", "200 ms", ""),
    )
    assert short_latency_budget([]) is None
