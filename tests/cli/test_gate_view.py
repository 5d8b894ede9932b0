"""What a person sees of a gate run while it runs."""

from __future__ import annotations

import io

import pytest

from sre.cli.app import App
from sre.cli.gate_view import Lines, aligned, ended_figures, label, live_figures
from sre.gate.result import StageResult
from sre.gate.stages import LiveCounts, RequestClass, StageKind, StagePlan
from tests.support.gate_samples import skipped, stage

SHORT = (RequestClass("short", 1.0, 256, 8),)


def plan(kind: StageKind, name: str = "100qps", *, side: str = "candidate", arm: str = "") -> StagePlan:
    return StagePlan(name, kind, 100, 30, SHORT, 1, run=1, side=side, arm=arm)


@pytest.mark.parametrize(
    ("one", "shown"),
    [
        (plan(StageKind.WARM_UP, "warm-up"), "warm-up"),
        (plan(StageKind.STAIRCASE), "run 2 100qps"),
        (plan(StageKind.STAIRCASE, side="B"), "run 2 B 100qps"),
        (plan(StageKind.KNEE), "knee 100qps"),
        (plan(StageKind.MIXED, "100qps-mixed", arm="chunked"), "run 2 chunked 100qps-mixed"),
    ],
)
def test_a_stage_is_named_as_far_as_there_are_several(one: StagePlan, shown: str) -> None:
    assert label(one) == shown


def test_live_figures_grow_with_what_is_known() -> None:
    early = LiveCounts(at=1, started_at=0, planned=9, due=3, sent=3, in_flight=3, ok=0, failed=0, shed=0, over_limit=0)
    assert live_figures(early) == "3 in flight · 0 ok"
    late = LiveCounts(
        at=1, started_at=0, planned=9, due=9, sent=9, in_flight=1, ok=7, failed=1, shed=0, over_limit=0,
        ttft_p50_seconds=0.041, ttft_p99_seconds=1.5, e2e_p99_seconds=2.0, lag_p99_seconds=0.001,
    )  # fmt: skip
    assert live_figures(late) == "1 in flight · 7 ok · 1 failed · TTFT P50 41 ms P99 1.5 s · e2e P99 2 s · lag 1 ms"


def test_an_ended_stage_says_what_it_came_to() -> None:
    held, over = ended_figures(stage(100, 0, seconds=6)), ended_figures(stage(1000, 0))
    assert held.startswith("600 ok, 0 failed, ")
    assert "saturated" not in held
    assert "saturated" in over
    assert ended_figures(skipped(1000, 0)) == "skipped: 500qps was given up: <error_share>"


def test_lines_number_what_was_begun_and_not_what_was_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(App(None, None, False))
    ran = stage(100, 0)
    lines.begins(ran.plan, 1, 2)
    lines.ended(ran)
    lines.ended(StageResult(ran.plan, None, None, skipped="why"))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("sre gate: 1/2 run 1 100qps: ")
    assert second == "sre gate: run 1 100qps: skipped: why"


def test_the_bar_redraws_the_figures_and_leaves_a_line_per_stage() -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from sre.cli.gate_view import Bar

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Progress(*columns, console=console) as progress:
        bar = Bar(App(None, None, False), progress)
        ran = stage(100, 0, seconds=6)
        bar.begins(ran.plan, 1, 2)
        counts = LiveCounts(
            at=3, started_at=0, planned=9, due=9, sent=9, in_flight=1, ok=7, failed=0, shed=0, over_limit=0
        )
        bar.live(ran.plan, counts)
        assert progress.tasks[0].completed == 3
        assert progress.tasks[0].fields["figures"] == "1 in flight · 7 ok"
        bar.ended(ran)
        assert progress.tasks == []
        bar.says("a name of somebody's: [bold]\x1b[31m")
    assert "1/2 run 1 100qps: 600 ok" in out.getvalue()
    assert "[bold]" in out.getvalue()
    assert "\x1b[31m" not in out.getvalue()


def test_columns_without_content_are_left_out_and_numbers_stand_to_the_right() -> None:
    assert aligned(("name", "none", "count"), [("a", "", "1"), ("bb", "", "12")], frozenset({2})) == [
        "name  count", "a         1", "bb       12",
    ]  # fmt: skip
    assert aligned(("name",), []) == []


def test_between_stages_a_terminal_gets_lines_and_nothing_that_redraws(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    from sre.cli.gate_view import Bar

    out = io.StringIO()
    progress = Progress(
        TextColumn("{task.description}"), console=Console(file=out, force_terminal=True, width=120), transient=True
    )
    bar = Bar(App(None, None, False), progress)
    bar.says("asking")
    progress.refresh()
    assert out.getvalue() == "sre gate: asking\n"
    ran = stage(100, 0)
    bar.begins(ran.plan, 1, 1)
    assert progress.live.is_started
    bar.ended(ran)
    assert not progress.live.is_started
