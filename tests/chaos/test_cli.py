"""``sre chaos`` on a simulated stack that really runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.chaos_targets import engine_cores
from sre.adapters.supervisor_client import SupervisorClient
from sre.settings.paths import StatePaths
from sre.signals.types import ProcessIdentity
from tests.chaos.records import overlay_step, planned, text
from tests.chaos.standin import FAULTS, stopped
from tests.conftest import WaitUntil, log_tail, unused_port

pytestmark = pytest.mark.integration

UP_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    def document(self) -> Any:
        return json.loads(self.out)


class Stack:
    """One ``sre up --detach``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "sre.yaml"
        self.paths = StatePaths(root / "s")
        self.config.write_text(
            f"stack: {{name: chaos-test, gateway: {{port: {unused_port()}}}}}\n"
            # What is tested here is the command; a busy test machine must not look like a dead injector.
            "chaos: {lease_seconds: 10}\n"
            f"guard: {{metrics_port: {unused_port()}}}\n"
        )

    def argv(self, *argv: str) -> list[str]:
        return [
            sys.executable, "-m", "sre", "--config", str(self.config), "--state-dir", str(self.paths.root), *argv,
        ]  # fmt: skip

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}

    def sre(self, *argv: str, timeout: float = 60.0) -> Ran:
        done = subprocess.run(
            self.argv(*argv), capture_output=True, text=True, timeout=timeout, env=self.environ, cwd=self.root
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def core(self) -> ProcessIdentity:
        (engine,) = asyncio.run(SupervisorClient(self.paths.supervisor_socket).engines())
        assert engine.identity is not None
        (core,) = engine_cores(engine.identity)
        return core


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    root = Path(tempfile.mkdtemp(prefix="sre-", dir="/tmp"))
    running = Stack(root)
    try:
        up = running.sre("up", "--detach", timeout=UP_SECONDS)
        assert up.code == 0, f"{up.err}\n{log_tail(running.paths.logs)}"
        yield running
    finally:
        running.sre("down", "--now")
        shutil.rmtree(root, ignore_errors=True)


def inject(stack: Stack, *argv: str) -> Ran:
    return stack.sre("chaos", "inject", *argv, "--output", "json")


def stamps(report: Any) -> list[str]:
    return [stamp["name"] for stamp in report["stamps"]]


def test_hang_takes_effect_is_held_and_reverted(stack: Stack) -> None:
    ran = inject(stack, "gpu-hang", "--for", "500ms")
    report = ran.document()
    assert (ran.code, report["verdict"]) == (0, "PASS"), ran.err
    assert stamps(report) == ["t0_requested", "t1_effective", "t9_reverted"]
    assert "state T" in report["effect"]["detail"]
    assert not stopped(stack.core())


@pytest.mark.parametrize(
    ("fault", "value"), [("gpu-temperature", "84"), ("gpu-memory", "0.9"), ("error-burst", "1"), ("batch-failure", "1")]
)
def test_faults_by_file_take_effect_and_leave_no_file(stack: Stack, fault: str, value: str) -> None:
    ran = inject(stack, fault, "--for", "100ms", "--value", value)
    assert (ran.code, ran.document()["verdict"]) == (0, "PASS"), ran.err
    assert not stack.paths.gpu_overlay.exists()
    assert list(stack.paths.engine_faults.iterdir()) == []


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["real", "dry run"])
def test_a_gpu_that_is_not_there_is_refused(stack: Stack, dry: tuple[str, ...]) -> None:
    ran = stack.sre("chaos", "inject", "gpu-temperature", "--gpu", "7", "--for", "1s", *dry)
    assert (ran.code, ran.out) == (1, "")
    assert "--gpu: the guard reads no GPU 7, so nothing would act on the fault; it reads 0" in ran.err


def test_dry_run_shows_the_steps_and_changes_nothing(stack: Stack) -> None:
    before = sorted(p.name for p in stack.paths.chaos.iterdir())
    core = stack.core()
    ran = stack.sre("chaos", "inject", "gpu-hang", "--for", "2m", "--dry-run")
    assert ran.code == 0
    assert f"1. inject: SIGSTOP to pid {core.pid} (start ticks {core.start_ticks})" in ran.out
    assert f"   revert: SIGCONT to pid {core.pid}" in ran.out
    assert sorted(p.name for p in stack.paths.chaos.iterdir()) == before


@pytest.fixture
def held(stack: Stack, wait_until: WaitUntil) -> Iterator[subprocess.Popen[str]]:
    """``sre chaos inject gpu-hang --for 60s``, in force."""
    process = subprocess.Popen(
        stack.argv("chaos", "inject", "gpu-hang", "--for", "60s", "-o", "json"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=stack.environ, cwd=stack.root,
        start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        assert any("t1_effective" in line for line in process.stderr)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_reverts_and_exits_6(stack: Stack, held: subprocess.Popen[str]) -> None:
    assert stopped(stack.core())
    held.send_signal(signal.SIGINT)
    out, _ = held.communicate(timeout=20)
    assert held.returncode == 6
    assert json.loads(out)["verdict"] == "ABORTED"
    assert not stopped(stack.core())


def test_killed_command_leaves_no_fault(stack: Stack, held: subprocess.Popen[str], wait_until: WaitUntil) -> None:
    os.killpg(held.pid, signal.SIGKILL)
    wait_until(lambda: not stopped(stack.core()), 3.0, what="engine core runs again")
    wait_until(lambda: stack.sre("chaos", "status").code == 0, 5.0, what="no run left open")


def test_second_injection_is_refused_and_revert_ends_the_first(stack: Stack, held: subprocess.Popen[str]) -> None:
    second = inject(stack, "gpu-temperature", "--value", "84")
    assert second.code == 1
    assert "one at a time" in second.err
    status = stack.sre("chaos", "status", "-o", "json")
    assert [(s["fault"], s["state"]) for s in status.document() if s["state"] == "active"] == [("gpu-hang", "active")]
    reverted = stack.sre("chaos", "revert")
    assert reverted.code == 0, reverted.err
    assert held.wait(60) == 6
    assert not stopped(stack.core())


def test_recover_sets_right_what_a_crash_left(stack: Stack) -> None:
    overlay = stack.paths.gpu_overlay
    folder = stack.paths.chaos / "crashed"
    folder.mkdir()
    step = overlay_step(overlay.parent, tag="crashed")
    step["revert_args"]["path"] = step["args"]["path"] = str(overlay)
    overlay.write_text(json.dumps({"run_id": "crashed"}))
    (folder / "journal.jsonl").write_bytes(
        text(
            planned(overlay.parent, [step], run_id="crashed", injector={"pid": 1, "start_ticks": 0}),
            {"record": "injecting", "step": 0},
        )
    )
    assert stack.sre("chaos", "status").code == 4
    assert "crashed" in stack.sre("chaos", "recover", "--dry-run").out
    assert overlay.exists()
    recovered = stack.sre("chaos", "recover", "-o", "json")
    assert (recovered.code, [r["run_id"] for r in recovered.document()]) == (0, ["crashed"])
    assert not overlay.exists()
    assert stack.sre("chaos", "recover").out == "nothing was left open\n"


def test_unreadable_journal_blocks_until_it_is_discarded(stack: Stack) -> None:
    folder = stack.paths.chaos / "broken"
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(b"garbage\nmore\n")
    refused = inject(stack, "gpu-temperature", "--value", "84")
    assert refused.code == 4
    assert "--discard broken" in refused.err
    assert stack.sre("chaos", "recover").code == 4
    assert stack.sre("chaos", "recover", "--discard", "broken").code == 0
    assert stack.sre("chaos", "status").code == 0
    assert stack.sre("chaos", "recover", "--discard", "broken").code == 2


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("gpu-hnag",), 2, "did you mean 'gpu-hang'"),
        (("gpu-hang", "--for", "30"), 2, "is not a duration; write 500ms, 30s or 2m"),
        (("gpu-hang", "--engine", "sim-1"), 2, "did you mean 'sim-0'"),
        (("gpu-hang", "--value", "3"), 2, "takes no value"),
        (("gpu-memory", "--value", "97"), 2, "is not in 0…1"),
        (("gpu-hang", "--for", "1h"), 1, "chaos.max_hold_seconds"),
    ],
)
def test_wrong_use_is_said_in_one_sentence_and_changes_nothing(
    stack: Stack, argv: tuple[str, ...], code: int, said: str
) -> None:
    ran = inject(stack, *argv)
    assert ran.code == code
    assert said in ran.err
    assert ran.out == ""


def test_without_a_guard_nothing_is_injected(stack: Stack, tmp_path: Path) -> None:
    deaf = tmp_path / "sre.yaml"
    deaf.write_text(f"{stack.config.read_text().splitlines()[0]}\nguard: {{metrics_port: {unused_port()}}}\n")
    argv = [*stack.argv("chaos", "inject", "gpu-hang", "--for", "100ms", "-o", "json")]
    argv[argv.index(str(stack.config))] = str(deaf)
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=30, env=stack.environ)
    assert refused.returncode == 1
    assert "--without-guard" in refused.stderr
    allowed = subprocess.run([*argv, "--without-guard"], capture_output=True, text=True, timeout=60, env=stack.environ)
    assert (allowed.returncode, json.loads(allowed.stdout)["verdict"]) == (0, "PASS"), allowed.stderr


def test_stack_that_does_not_run_is_said(short_dir: Path) -> None:
    ran = Stack(short_dir).sre("chaos", "inject", "gpu-hang")
    assert ran.code == 1
    assert "sre up" in ran.err


def test_list_says_what_a_fault_is_not() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "sre", "chaos", "list", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    listed = {fault["name"]: fault for fault in json.loads(ran.stdout)}
    assert listed.keys() == FAULTS.keys()
    assert all(fault["fidelity"]["does_not_reproduce"] for fault in listed.values())


def test_zz_killed_engine_gets_a_successor(stack: Stack) -> None:
    """Last in this file: the breaker opens on it, and stays open for a while."""
    old = stack.core()
    ran = inject(stack, "engine-kill", "--for", "30s")
    report = ran.document()
    assert (ran.code, report["verdict"], report["ending"]) == (0, "PASS", "successor_serves"), ran.err
    assert stamps(report) == ["t0_requested", "t1_effective"]
    assert stack.core() != old
