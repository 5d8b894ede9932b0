"""The default stack (simulated engine, Envoy, guard) through the real command: whatever is killed comes back."""

from __future__ import annotations

import json
import random
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from sre.signals.types import ProcessIdentity

if TYPE_CHECKING:
    from tests.supervisor.conftest import Stack

pytestmark = pytest.mark.integration

KILL_AT = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Parts of the time that a start takes here and now, from the lock to the last engine's process."""


def states(stack: Stack) -> dict[str, str]:
    return {process["name"]: process["state"] for process in (stack.status()["stack"] or {}).get("processes", [])}


def test_everything_is_ready_closed_and_seen_and_whatever_is_killed_comes_back(stack: Stack) -> None:
    stack.configure([{"name": "sim-0", "gpus": [0], "sim": {"load_seconds": 0}}])
    started = stack.run("up", "--detach")
    assert started.returncode == 0, started.stderr
    assert f"metrics http://127.0.0.1:{stack.metrics_port}/metrics" in started.stdout
    stack.wait(lambda: stack.status()["verdict"] == "ok")
    shown = stack.run("status")
    assert shown.returncode == 0, shown.stdout
    assert "closed" in shown.stdout
    assert "not seen" not in shown.stdout

    before = {name: stack.identity(name) for name in ("gateway", "guard", "sim-0")}
    core = stack.core_of(before["sim-0"])
    for identity in before.values():
        stack.kill(identity)
    stack.wait(lambda: stack.gone(core, *before.values()))
    assert stack.run("status").returncode in {3, 5}, "never well while it is not seen to be"
    stack.wait(lambda: set(states(stack).values()) == {"ready"} and all(stack.identity(n) != before[n] for n in before))
    entries = stack.ledger()
    assert {name: entry["restarts"] for name, entry in entries.items()} == {"gateway": 1, "guard": 1, "sim-0": 1}


def test_guard_that_does_not_answer_is_not_taken_for_a_good_sign(stack: Stack) -> None:
    import signal

    stack.configure([{"name": "sim-0", "gpus": [0], "sim": {"load_seconds": 0}}])
    assert stack.run("up", "--detach").returncode == 0
    guard = stack.identity("guard")
    stack.kill(guard, signal.SIGSTOP)
    try:
        shown = stack.run("status", "--output", "json")
        assert shown.returncode == 5
        answer = json.loads(shown.stdout)
        assert answer["guard"] is None
        assert "not seen" in answer["guard_problem"]
        assert answer["verdict"] == "not_seen"
    finally:
        stack.kill(guard, signal.SIGCONT)


def test_supervisor_killed_at_any_moment_of_a_start_orphans_nothing(stack: Stack) -> None:
    stack.configure([stack.stub("stub-0"), stack.stub("stub-1")])
    lock = stack.state / "run" / "supervisor.lock"

    def started() -> subprocess.Popen[str]:
        up = stack.up()
        stack.wait(lambda: lock.exists() and lock.read_text() == f"{up.pid}\n", up=up)
        return up

    def killed(up: subprocess.Popen[str]) -> set[ProcessIdentity]:
        up.kill()
        up.wait()
        return _engines(stack)

    whole = started()
    began = time.monotonic()
    stack.wait(lambda: len(_engines(stack)) == 2, up=whole)
    span = time.monotonic() - began
    seen = killed(whole)
    stack.run("down", "--now")
    moments = list(KILL_AT)
    random.Random(7).shuffle(moments)
    for part in moments:
        up = started()
        time.sleep(part * span)  # the moment is what is tested
        seen |= killed(up)
    stack.up_ready()
    alive = {identity for identity in seen | _engines(stack) if not stack.gone(identity)}
    assert alive == {stack.identity("stub-0"), stack.identity("stub-1")}, "one server per engine, none beside them"


def _engines(stack: Stack) -> set[ProcessIdentity]:
    """All API servers of this stack that live, whatever the ledger says."""
    import os
    from pathlib import Path

    from sre.adapters.processes.files import stack_id
    from sre.adapters.processes.host import ProcessHost

    host = ProcessHost(stack_id(stack.state), os.environ, Path("/"))
    return {found.identity for found in host.marked() if found.leader and found.name.startswith("stub")}


def test_taken_over_with_its_guard(stack: Stack) -> None:
    """The guard goes on through the death of the supervisor and belongs to the next one."""
    stack.configure([{"name": "sim-0", "gpus": [0], "sim": {"load_seconds": 0}}])
    assert stack.run("up", "--detach").returncode == 0
    before: dict[str, Any] = {name: stack.identity(name) for name in ("gateway", "guard", "sim-0")}
    report = stack.status()["stack"]["supervisor"]
    stack.kill(ProcessIdentity(report["pid"], report["start_ticks"]))
    stack.wait(lambda: stack.gone(ProcessIdentity(report["pid"], report["start_ticks"])))
    assert stack.run("up", "--detach").returncode == 0
    assert {name: stack.identity(name) for name in before} == before
