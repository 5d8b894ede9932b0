"""The latency budget as tables: a stage once, however many runs it had."""

from __future__ import annotations

from collections.abc import Sequence

from sre.gate.latency_budget import BudgetPart, BudgetStage
from sre.gate.report import figures
from sre.gate.report.layout import Section, Table

TITLE = "Latency budget"
MIDDLE = "Of several runs of a stage, the one whose total is the middle one: its parts add up."


def middle_runs(stages: Sequence[BudgetStage]) -> tuple[BudgetStage, ...]:
    """Of each stage, in order of first sight, the run with the median total; medians of parts would not add up."""
    found: dict[str, list[BudgetStage]] = {}
    for stage in stages:
        found.setdefault(stage.stage, []).append(stage)
    return tuple(sorted(runs, key=lambda one: one.total_seconds)[(len(runs) - 1) // 2] for runs in found.values())


def latency_budget(stages: Sequence[BudgetStage]) -> Section:
    """A block per stage: each part with what it rests on."""
    rows: list[tuple[str, ...]] = []
    marks: list[str] = []
    for stage in middle_runs(stages):
        for part in stage.parts:
            within = figures.NOTHING if part.within is None else "within" if part.within else "over"
            times = [figures.seconds(part.budget_seconds), figures.seconds(part.measured_seconds)]
            rows.append((stage.stage, part.name, *times, within, part.source))
            marks.append("fail" if part.within is False else "")
        share = f"unexplained {figures.seconds(stage.residual_seconds)} ({figures.percent(stage.residual_ratio)})"
        hint = f"; {stage.hint}" if stage.hint else ""
        rows.append(
            (stage.stage, "total", figures.NOTHING, figures.seconds(stage.total_seconds), figures.NOTHING, share + hint)
        )
        marks.append("")
    heading = ("Stage", "Part", "Budget", "Measured", "Budget kept", "Rests on")
    return Section(
        "latency_budget", TITLE, (MIDDLE,), (Table(heading, tuple(rows), frozenset({2, 3}), tuple(marks)),)
    )  # fmt: skip


def short_latency_budget(stages: Sequence[BudgetStage]) -> Table | None:
    """A row per stage under a row of the budget; None: there are none."""
    shown = middle_runs(stages)
    if not shown:
        return None
    names = [part.name for part in shown[0].parts]
    budget = ("budget", *(figures.seconds(part.budget_seconds) for part in shown[0].parts), "", "")
    rows = [
        (stage.stage, *(_short(part) for part in stage.parts), figures.seconds(stage.total_seconds), stage.hint)
        for stage in shown
    ]
    heading = ("Stage", *(name.capitalize() for name in names), "Total", "")
    return Table(heading, (budget, *rows), frozenset(range(1, len(names) + 2)))


def _short(part: BudgetPart) -> str:
    return figures.seconds(part.measured_seconds) + (" over" if part.within is False else "")
