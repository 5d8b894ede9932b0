"""The answer of ``sre gate run`` for a person: what decided first, and no more than two screens of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sre.cli.gate_view import NOT_ASKED_FOR, aligned, table_lines
from sre.errors import ExitCode
from sre.gate.latency_budget import BudgetStage
from sre.gate.report import tables
from sre.gate.report.budget_table import short_latency_budget
from sre.gate.report.stage_table import stages
from sre.gate.result import GateResult
from sre.gate.stages import StageKind
from sre.gate.verdict import Verdict
from sre.printable import one_line

MOST_CELLS = 10
"""Judgements that are shown one by one."""
STAGE_COLUMNS = (
    "Stage", "Class", "Offered/s", "Answered/s", "TTFT P50", "TTFT P99", "End to end P99", "Failed", "Saturated",
)  # fmt: skip


def answer_text(result: GateResult, folder: Path, code: ExitCode) -> str:
    """Verdict, what decided, the stages of the staircase, and a sentence or a row about everything else."""
    lines = [tables.headline(result), *tables.opening(result), "", *_cells(result)]
    lines += _stages(result)
    for section in (tables.knee(result), tables.long_tail(result), tables.bottleneck(result)):
        if section.text and result.omitted.get(section.name) != NOT_ASKED_FOR:
            lines += ["", f"{section.title}: {section.text[0]}"]
            if section.name == "long_tail":
                lines += [f"  {line}" for table in section.tables for line in table_lines(table)]
    lines += _budget(result)
    lines += ["", *(f"note: {note}" for note in (*result.notes, *result.verdict.remarks))]
    lines.append(f"report: {folder / 'report.html'}; all figures here: sre gate report {result.id}")
    if result.verdict.verdict is Verdict.INCONCLUSIVE and code == 0:
        lines.append("exit code 0 although nothing was told: gate.inconclusive is pass")
    return "\n".join(lines)


def _cells(result: GateResult) -> list[str]:
    order = {Verdict.FAIL: 0, Verdict.INCONCLUSIVE: 1, Verdict.PASS: 2}
    gated = sorted((cell for cell in result.verdict.cells if cell.gated), key=lambda cell: order[cell.verdict])
    lines = [
        f"{tables.WORDS[cell.verdict]:13} {cell.cell}: {one_line(cell.detail or cell.reason.value)}"
        for cell in gated[:MOST_CELLS]
    ]
    if len(gated) > MOST_CELLS:
        lines.append(f"and {len(gated) - MOST_CELLS} more, none of them worse")
    return lines


def _stages(result: GateResult) -> list[str]:
    """Those of the staircase: what the search tried is in the report."""
    searched = {stage.plan.name for stage in result.knee_stages}
    planned = {stage.plan.name for run in result.runs for stage in run.stages}
    section = stages(result)
    lines: list[str] = []
    for table in section.tables:
        kept = [table.heading.index(name) for name in STAGE_COLUMNS]
        rows = [
            tuple(row[index] for index in kept) for row in table.rows if row[0] not in searched or row[0] in planned
        ]
        numeric = frozenset(range(2, len(kept) - 1))
        lines += [f"  {line}" for line in aligned(STAGE_COLUMNS, rows, numeric)]
    return ["", "Stages, medians over the runs; a failure counts as infinitely slow", *lines] if lines else []


def _budget(result: GateResult) -> list[str]:
    found = result.latency_budget
    staircase = {s.plan.name for run in result.runs for s in run.stages if s.plan.kind is StageKind.STAIRCASE}
    table = short_latency_budget(_of(found.stages, staircase)) if found is not None else None
    return ["", "Latency budget, means", *(f"  {line}" for line in table_lines(table))] if table is not None else []


def _of(found: Sequence[BudgetStage], names: set[str]) -> list[BudgetStage]:
    return [stage for stage in found if stage.stage in names]
