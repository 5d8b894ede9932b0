"""Text of others reaches a terminal as text: no metric, label, answer or log steers it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from sre.cli.app import App
from sre.cli.main import cli
from sre.errors import DependencyError
from sre.monitoring.evidence import Cause, Outcome, Reason, Verdict
from sre.monitoring.verify import Finding, Report
from sre.printable import one_line, printable
from tests.cli.conftest import RunSre

EVIL = "a\x1b]0;title\x07\x9b31m\r\u202e\ud800"


@given(st.text(st.characters(exclude_categories=[])))
@example(EVIL)
def test_what_cannot_be_seen_is_shown_as_a_question_mark(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert all(c in "\n\t" or c.isprintable() for c in shown)
    assert printable(shown) == shown
    assert one_line(text).isprintable()


def test_line_ends_and_tabs_are_ours() -> None:
    assert printable("a\n\tb \u00e9 \u4e2d") == "a\n\tb \u00e9 \u4e2d"
    assert one_line("a\n\tb\r\nc") == "a b c"


def test_every_answer_and_note_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    app = App(None, None, False)
    app.emit("text", None, EVIL)
    app.emit("text", None, lambda: EVIL)
    app.note(EVIL)
    seen = capsys.readouterr()
    assert all("\x1b" not in text and "\x9b" not in text and "\r" not in text for text in seen)
    assert seen.out.count("title") == 2
    app.emit("json", {"a": EVIL}, "")
    assert json.loads(capsys.readouterr().out) == {"a": EVIL}


def test_a_value_of_a_metric_steers_nothing_and_makes_no_line_of_its_own() -> None:
    from sre.cli.rules_verify import as_text

    reason = Reason(Cause.EDGE, "x", "no bucket; its edges: 0.3\x1b[2J\nVllmDown  can fire")
    report = Report((), (Finding("A", "page", Outcome(Verdict.CANNOT_FIRE, (reason,))),), ())
    assert "\nVllmDown" not in as_text(report)
    assert "\x1b" not in as_text(report)


async def test_rules_verify_prints_no_escape_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def page(request: web.Request) -> web.Response:
        text = (
            "# TYPE vllm:e2e_request_latency_seconds histogram\n"
            'vllm:e2e_request_latency_seconds_bucket{model_name="m",engine="0",le="0.1\x1b[31m"} 1\n'
            'vllm:num_requests_running{model_name="m",engine="0"} 0\n'
        )
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/metrics", page)
    server = TestServer(app)
    await server.start_server()
    monkeypatch.chdir(tmp_path)
    try:
        call = ["rules", "verify", "--url", str(server.make_url("/metrics"))]
        result = await asyncio.to_thread(CliRunner().invoke, cli, call, standalone_mode=False)
    finally:
        await server.close()
    assert "0.1?[31m" in result.output
    assert "\x1b" not in result.output


@pytest.mark.parametrize("error", [DependencyError("grafana", EVIL), ValueError])
def test_an_error_steers_nothing(
    run_sre: RunSre, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: object
) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(error, DependencyError):

        def fail(self: App) -> None:
            raise error

        monkeypatch.setattr(App, "settings", fail)
        done = run_sre("config", "show")
    else:
        done = run_sre("rules", "lint", "--explain", "x\x1b[31m")
    assert done.code in (1, 2)
    assert "\x1b" not in done.err
    assert "\x1b" not in done.out


def test_a_runbook_of_the_user_steers_nothing(run_sre: RunSre) -> None:
    done = run_sre("runbook", "show", "x\x1b[31m")
    assert done.code == 2
    assert "\x1b" not in done.err
