"""sre demo as a person runs it: the story is told in time, and whenever it is ended, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sre.adapters.processes import proc
from sre.wiring.demo_stack import DEMO_MARK
from tests.conftest import WaitUntil
from tests.support.vllm import python_path

pytestmark = pytest.mark.integration

EVENTS_IN_ORDER = [
    "fault requested",
    "fault in effect",
    "hang detected, breaker open",
    "first new request refused",
    "restart decided",
    "engine restarted",
    "half-open: canaries",
    "closed: all traffic back",
]


def demo_folders() -> set[Path]:
    return set(Path("/tmp").glob("sre-demo-*"))


def demo_processes() -> list[int]:
    """Processes of any demo that this test session started."""
    session = os.environ["SRE_TEST_SESSION"]
    found = []
    for stat in proc.process_table().values():
        marks = proc.environment(stat.pid, [DEMO_MARK, "SRE_TEST_SESSION"])
        if DEMO_MARK in marks and marks.get("SRE_TEST_SESSION") == session and not stat.gone:
            found.append(stat.pid)
    return found


@pytest.fixture(autouse=True)
def leaves_nothing(wait_until: WaitUntil) -> Iterator[None]:
    """No process and no folder of the demo is there afterwards."""
    before = demo_folders()
    yield
    wait_until(lambda: not demo_processes(), 5, what="processes of the demo gone")
    assert demo_folders() <= before


def start_demo(log: Path, *argv: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "sre", "demo", "-o", "json", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """After a failure: let it clean up; kill only what does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def run_whole_demo(
    log: Path, timeout: float, *argv: str, environment: Mapping[str, str] | None = None
) -> tuple[int, dict[str, object], str]:
    process = start_demo(log, *argv, environment=environment)
    try:
        out, _ = process.communicate(timeout=timeout)
    finally:
        end(process)
    talk = log.read_text("utf-8")
    assert out, talk
    return process.returncode, json.loads(out), talk


def assert_story_is_told(code: int, report: dict[str, object], talk: str) -> None:
    assert code == 0, f"{json.dumps(report['checks'], indent=1)}\n{talk}"
    assert report["passed"] is True
    timeline = report["timeline"]
    assert isinstance(timeline, list)
    events = [mark["event"] for mark in timeline]
    assert [event for event in events if event in EVENTS_IN_ORDER] == EVENTS_IN_ORDER
    for event in ("e-mail received", "SMS received", "resolved: e-mail received", "resolved: SMS received"):
        assert event in events
    assert "fault in effect" in talk


def test_the_story_is_told_in_under_90_seconds(tmp_path: Path) -> None:
    began = time.monotonic()
    assert_story_is_told(*run_whole_demo(tmp_path / "talk.log", 120))
    assert time.monotonic() - began < 90


@pytest.mark.parametrize("moment", ["starting sre up", "whole answers; now", "first new request refused"])
def test_ctrl_c_at_any_moment_leaves_nothing(tmp_path: Path, wait_until: WaitUntil, moment: str) -> None:
    log = tmp_path / "talk.log"
    process = start_demo(log)
    try:
        wait_until(lambda: moment in log.read_text("utf-8"), 120, what=moment, logs=(log,))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    finally:
        end(process)
    assert process.returncode == 6, log.read_text("utf-8")
    assert out == b""
    assert log.read_text("utf-8").endswith("sre: sre demo: stopped; nothing of it is left\n")


def test_a_second_ctrl_c_hurries_and_still_leaves_nothing(tmp_path: Path, wait_until: WaitUntil) -> None:
    log = tmp_path / "talk.log"
    process = start_demo(log)
    try:
        wait_until(lambda: "whole answers; now" in log.read_text("utf-8"), 120, logs=(log,))
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "demo: stopping" in log.read_text("utf-8"), 10, logs=(log,))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    finally:
        end(process)
    assert process.returncode == 6


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_the_real_vllm_tells_the_same_story(tmp_path: Path, vllm_python: str) -> None:
    argv = ("--engine", "vllm", "--python", vllm_python)
    environment = {"PYTHONPATH": python_path()}
    assert_story_is_told(*run_whole_demo(tmp_path / "talk.log", 560, *argv, environment=environment))
