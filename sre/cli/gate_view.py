"""How a gate run looks: the plan, what happens while it runs, the answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sre.cli.app import App
from sre.printable import one_line, printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from sre.control.gate_end import Ended
    from sre.errors import ExitCode
    from sre.gate.plan import Amount
    from sre.gate.report.layout import Table
    from sre.gate.result import GateResult, StageResult
    from sre.gate.stages import LiveCounts, StagePlan
    from sre.wiring.gate import Asked

SHOWN_SECTIONS = ("stages", "knee", "long_tail", "bottleneck", "latency_budget")
"""On the terminal, after the judgements; everything is in the page and in gate.json."""


NOT_ASKED_FOR = "not asked for"


# Before.


def dry_run_document(asked: Asked) -> dict[str, Any]:
    """What would be sent."""
    from sre.gate import plan

    plans, total = _planned(asked)
    return {
        "url": asked.servers.target.url,
        "against": None if asked.servers.against is None else asked.servers.against.url,
        "baseline": None if asked.baseline is None else asked.baseline.name,
        "stages": [
            {
                "name": one.name,
                "kind": one.kind.value,
                "run": one.run,
                "side": one.side,
                "policy": one.arm,
                "rate_rps": one.rate_rps,
                "seconds": one.duration_seconds,
                "requests": plan.planned_requests(one),
            }
            for one in plans
        ],
        "knee_stages_at_most": asked.settings.knee.max_stages if _searches(asked) else 0,
        "requests_at_most": total.requests,
        "seconds_at_least": total.seconds,
        "seconds_at_most": total.longest_seconds,
        "deadline_seconds": asked.settings.deadline_seconds,
    }


def dry_run_text(asked: Asked) -> str:
    """What would be sent."""
    from sre.gate import plan

    plans, total = _planned(asked)
    against = "" if asked.servers.against is None else f", in turn with {asked.servers.against.url}"
    compared = (
        "no baseline: judged by the objectives alone" if asked.baseline is None else f"baseline {asked.baseline.name}"
    )
    if asked.servers.against is not None:
        compared = "compared with the other side"
    lines = [f"would load {asked.servers.target.url}{against}; {compared}", ""]
    rows = [
        (
            one.name,
            one.kind.value,
            str(one.run + 1),
            one.arm or (one.side if one.side != plan.CANDIDATE else ""),
            f"{one.rate_rps:g}/s",
            f"{one.duration_seconds:g} s",
            str(plan.planned_requests(one)),
        )
        for one in plans
    ]
    lines += aligned(("stage", "kind", "run", "arm", "rate", "time", "requests"), rows, frozenset({4, 5, 6}))
    lines.append("")
    if _searches(asked):
        lines.append(f"then at most {asked.settings.knee.max_stages} stages in search of the knee")
    lines.append(
        f"about {total.requests} requests at the most; {_minutes(total.seconds)} at least, "
        f"{_minutes(total.longest_seconds)} if every stage drains to its end"
    )
    if total.seconds > asked.settings.deadline_seconds:
        lines.append(
            f"longer than gate.deadline_seconds ({_minutes(asked.settings.deadline_seconds)}): it would be cut short"
        )
    return "\n".join(lines)


def _planned(asked: Asked) -> tuple[Sequence[StagePlan], Amount]:
    from sre.gate import plan

    plans = plan.plan_all(asked.settings, interleaved=asked.servers.against is not None, trace=asked.trace)
    return plans, plan.amount(plans, asked.settings, knee=_searches(asked))


def _searches(asked: Asked) -> bool:
    return asked.settings.knee.enabled and asked.servers.against is None and asked.trace is None


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


# Meanwhile.


@contextlib.contextmanager
def display(app: App) -> Iterator[Lines]:
    """The listener for this terminal: a bar with live figures, or a line per stage."""
    if not app.interactive:
        yield Lines(app)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeRemainingColumn(compact=True),
    )
    # The bar starts it: a display without a stage in it leaves an empty line at every refresh.
    progress = Progress(*columns, console=console, transient=True)
    try:
        yield Bar(app, progress)
    finally:
        progress.stop()


class Lines:
    """A line per stage, on stderr."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._number = self._of = 0

    def begins(self, plan: StagePlan, number: int, of: int) -> None:
        self._number, self._of = number, of

    def live(self, plan: StagePlan, counts: LiveCounts) -> None:
        return None

    def ended(self, stage: StageResult) -> None:
        # A stage that is skipped was not begun, and has no number.
        number = "" if stage.summary is None else f"{self._number}/{self._of} "
        self.says(f"{number}{label(stage.plan)}: {ended_figures(stage)}")

    def says(self, sentence: str) -> None:
        self._app.note(f"sre gate: {sentence}")


class Bar(Lines):
    """One bar for the stage that runs, with its figures so far; ended stages stay above it as lines."""

    def __init__(self, app: App, progress: Progress) -> None:
        super().__init__(app)
        self._progress = progress
        self._task: TaskID | None = None

    def begins(self, plan: StagePlan, number: int, of: int) -> None:
        super().begins(plan, number, of)
        self._progress.start()
        self._task = self._progress.add_task(
            printable(f"{number}/{of} {label(plan)}"), total=plan.duration_seconds, figures=""
        )

    def live(self, plan: StagePlan, counts: LiveCounts) -> None:
        if self._task is not None:
            done = min(counts.at - counts.started_at, plan.duration_seconds)
            self._progress.update(self._task, completed=max(0.0, done), figures=printable(live_figures(counts)))

    def ended(self, stage: StageResult) -> None:
        if self._task is not None:
            self._progress.stop()
            self._progress.remove_task(self._task)
            self._task = None
        super().ended(stage)

    def says(self, sentence: str) -> None:
        self._progress.console.print(printable(f"sre gate: {sentence}"), markup=False)


def label(plan: StagePlan) -> str:
    """``run 2 100qps``; with side, arm or kind where there are several."""
    from sre.gate.plan import CANDIDATE
    from sre.gate.stages import StageKind

    if plan.kind is StageKind.WARM_UP:
        return plan.name
    if plan.kind is StageKind.KNEE:
        return f"knee {plan.name}"
    side = f" {plan.side}" if plan.side != CANDIDATE else ""
    arm = f" {plan.arm}" if plan.arm else ""
    return f"run {plan.run + 1}{side}{arm} {plan.name}"


def live_figures(counts: LiveCounts) -> str:
    """Where a stage stands."""
    parts = [f"{counts.in_flight} in flight", f"{counts.ok} ok"]
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    if counts.ttft_p50_seconds is not None:
        parts.append(f"TTFT P50 {_time(counts.ttft_p50_seconds)} P99 {_time(counts.ttft_p99_seconds)}")
    if counts.e2e_p99_seconds is not None:
        parts.append(f"e2e P99 {_time(counts.e2e_p99_seconds)}")
    if counts.lag_p99_seconds is not None:
        parts.append(f"lag {_time(counts.lag_p99_seconds)}")
    return " · ".join(parts)


def ended_figures(stage: StageResult) -> str:
    """What a stage came to, in one line."""
    from sre.gate.abort import explain
    from sre.gate.summary import causes_of

    if stage.summary is None:
        return f"skipped: {stage.skipped}"
    seen = stage.summary
    every = seen.classes["all"]
    parts = [
        f"{seen.ok} ok",
        f"{seen.failed} failed{causes_of([every])}",
        f"{seen.completed_rps:.1f}/s of {seen.offered_rps:.1f}/s",
        f"TTFT P50 {_time(every.ttft.p50)} P99 {_time(every.ttft.p99)}",
        f"e2e P99 {_time(every.e2e.p99)}",
    ]
    if seen.saturated:
        parts.append("saturated")
    if stage.aborted:
        parts.append(f"given up: {explain(stage.aborted)}")
    return ", ".join(parts)


def _time(seconds: float | None) -> str:
    from sre.gate.report.figures import seconds as shown

    return shown(seconds)


# After.


def result_document(ended: Ended, code: ExitCode) -> dict[str, Any]:
    """The answer for a program; everything else is in gate.json."""
    from sre.gate.report import codec

    result = ended.result
    return {
        "id": result.id,
        "folder": str(ended.folder.path),
        "exit_code": int(code),
        "url": result.url,
        "model": result.model,
        **codec.encode(result.verdict),
        "interrupted": result.interrupted,
        "knee": codec.encode(result.knee),
        "notes": list(result.notes),
    }


def result_text(result: GateResult, folder: Path, code: ExitCode) -> str:
    """The answer for a person, verdict first."""
    from sre.gate.report import tables
    from sre.gate.verdict import Verdict

    lines = [tables.headline(result), *tables.opening(result), ""]
    for cell in sorted(result.verdict.cells, key=lambda one: (not one.gated, one.verdict is Verdict.PASS)):
        mark = tables.WORDS[cell.verdict] if cell.gated else f"({tables.WORDS[cell.verdict]})"
        lines.append(f"{mark:13} {cell.cell}: {one_line(cell.detail or cell.reason.value)}")
    for section in tables.sections(result):
        if section.name not in SHOWN_SECTIONS or result.omitted.get(section.name) == NOT_ASKED_FOR:
            continue
        lines += ["", section.title, *(f"  {sentence}" for sentence in section.text)]
        for table in section.tables:
            lines += [f"  {line}" for line in table_lines(table)]
    lines += ["", *(f"note: {note}" for note in (*result.notes, *result.verdict.remarks))]
    lines.append(f"report: {folder / 'report.html'}")
    if result.verdict.verdict is Verdict.INCONCLUSIVE and code == 0:
        lines.append("exit code 0 although nothing was told: gate.inconclusive is pass")
    return "\n".join(lines)


def table_lines(table: Table) -> list[str]:
    """A table in plain text."""
    return aligned(table.heading, table.rows, table.numeric)


def aligned(heading: Sequence[str], rows: Sequence[Sequence[str]], numeric: frozenset[int] = frozenset()) -> list[str]:
    """Columns, numbers to the right; columns that are empty in every row are left out."""
    shown = [[one_line(cell) for cell in row] for row in rows]
    kept = [index for index in range(len(heading)) if any(row[index] for row in shown)]
    widths = {index: max(len(heading[index]), *(len(row[index]) for row in shown)) for index in kept}

    def line(cells: Sequence[str]) -> str:
        padded = (
            cells[index].rjust(widths[index]) if index in numeric else cells[index].ljust(widths[index])
            for index in kept
        )
        return "  ".join(padded).rstrip()

    return [line(heading), *(line(row) for row in shown)] if rows else []
