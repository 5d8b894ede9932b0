"""``sre up``, ``down`` and ``status`` with a real Envoy and stub engines: start, crash, take-over, stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from sre.adapters.processes.proc import identity_of

if TYPE_CHECKING:
    from tests.supervisor.conftest import Stack

pytestmark = pytest.mark.integration


def served(stack: Stack) -> bool:
    """Whether the gateway answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{stack.gateway_port}/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_up_becomes_ready_refuses_a_second_one_and_leaves_nothing_after_ctrl_c(stack: Stack) -> None:
    up = stack.up_ready()
    for arguments in (("up", "--no-guard"), ("up", "--no-guard", "--detach")):
        second = stack.run(*arguments)
        assert second.returncode == 3
        assert f"already running as pid {up.pid}" in second.stderr
        assert "sre down" in second.stderr
    status = stack.status()
    assert {p["name"]: p["state"] for p in status["stack"]["processes"]} == {"gateway": "ready", "stub-0": "ready"}
    assert status["stack"]["phase"] == "ready"
    assert f"ready: gateway http://127.0.0.1:{stack.gateway_port}" in stack.output
    assert served(stack)
    assert (stack.state / "run" / "supervisor.sock").stat().st_mode & 0o777 == 0o600
    up.send_signal(signal.SIGINT)
    assert up.wait(20) == 0
    assert stack.ours() == []
    assert stack.ledger() == {}


def test_killed_supervisor_is_succeeded_without_restarting_anything(stack: Stack) -> None:
    up = stack.up_ready()
    engine, gateway = stack.identity("stub-0"), stack.identity("gateway")
    up.kill()
    up.wait()
    assert served(stack), "traffic goes on without a supervisor"
    left = stack.run("status")
    assert left.returncode == 5
    assert "not seen" in left.stdout
    assert f"stub-0 (pid {engine.pid})" in left.stdout
    stack.up_ready()
    assert stack.identity("stub-0") == engine
    assert stack.identity("gateway") == gateway
    taken_over = stack.status()["stack"]["processes"]
    assert [process["adopted"] for process in taken_over] == [True, True]
    # What is not our child is watched as well:
    stack.kill(engine)
    stack.wait(lambda: stack.ledger()["stub-0"]["restarts"] == 1)
    assert stack.identity("stub-0") != engine


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_take_over_by_marks_when_the_ledger_is_lost(stack: Stack, damage: str) -> None:
    """The stub's own command line is a script's, so only Envoy can be recognised for sure: the stub is replaced."""
    up = stack.up_ready()
    engine, gateway = stack.identity("stub-0"), stack.identity("gateway")
    core = stack.core_of(engine)
    up.kill()
    up.wait()
    ledger = stack.state / "run" / "processes.json"
    if damage == "gone":
        ledger.unlink()
    else:
        ledger.write_text(ledger.read_text()[:-40])
    stack.up_ready()
    assert stack.identity("gateway") == gateway
    assert stack.gone(engine, core)
    assert ("ledger" in stack.talk) == (damage == "cut")


def test_next_up_restarts_what_changed_ends_what_is_not_wanted_and_keeps_the_rest(stack: Stack) -> None:
    stack.configure([stack.stub("stub-0"), stack.stub("stub-1"), stack.stub("stub-2")])
    up = stack.up_ready()
    same, changed, dropped = (stack.identity(f"stub-{number}") for number in range(3))
    core = stack.core_of(dropped)
    up.kill()
    up.wait()
    stack.configure([stack.stub("stub-0"), stack.stub("stub-1", args=["--max-num-seqs", "8"])])
    stack.up_ready()
    assert stack.identity("stub-0") == same
    assert stack.identity("stub-1") != changed
    assert stack.gone(changed, dropped, core)
    assert "its configuration changed" in stack.talk
    assert "no longer asks for it" in stack.talk


def test_killed_engine_server_is_restarted_and_its_orphaned_core_ended(stack: Stack) -> None:
    stack.up_ready()
    engine = stack.identity("stub-0")
    core = stack.core_of(engine)
    stack.kill(engine)
    stack.wait(lambda: stack.gone(core))
    stack.wait(lambda: stack.ledger()["stub-0"]["restarts"] == 1)
    assert stack.identity("stub-0") != engine
    assert stack.gone(engine, core)


def test_engine_that_exits_with_code_0_has_crashed(stack: Stack) -> None:
    stack.up_ready()
    engine = stack.identity("stub-0")
    stack.kill(stack.core_of(engine))  # the server notices and exits with 0, as vLLM does
    stack.wait(lambda: stack.ledger()["stub-0"]["restarts"] == 1)
    assert stack.identity("stub-0") != engine
    process = next(p for p in stack.status()["stack"]["processes"] if p["name"] == "stub-0")
    assert process["last_exit"].startswith("exit code 0 after")
    assert "unasked" in process["last_exit"]


def test_orphaned_core_of_an_engine_killed_with_its_supervisor_is_ended(stack: Stack) -> None:
    up = stack.up_ready()
    engine = stack.identity("stub-0")
    core = stack.core_of(engine)
    up.kill()
    up.wait()
    stack.kill(engine)
    assert not stack.gone(core)
    stack.up_ready()
    assert stack.gone(core)
    assert stack.identity("stub-0") != engine


def test_killed_gateway_comes_back_at_once(stack: Stack) -> None:
    stack.up_ready()
    gateway = stack.identity("gateway")
    stack.kill(gateway)

    stack.wait(lambda: stack.gone(gateway))
    stack.wait(lambda: served(stack))
    assert stack.identity("gateway") != gateway


def test_hung_engine_is_replaced_fast_and_repeated_requests_change_nothing(stack: Stack) -> None:
    import asyncio

    from sre.adapters.supervisor_client import SupervisorClient

    stack.configure([stack.stub(env={"STUB_IGNORE_TERM": "1"}, stop_timeout_seconds=60)])
    stack.up_ready()
    engine = stack.identity("stub-0")
    core = stack.core_of(engine)
    stack.kill(core, signal.SIGSTOP)
    client = SupervisorClient(stack.state / "run" / "supervisor.sock")
    assert asyncio.run(client.restart("stub-0", engine, "hang")) is True
    stack.wait(lambda: stack.ledger()["stub-0"]["restarts"] == 1)
    successor = stack.identity("stub-0")
    assert successor != engine
    assert stack.gone(engine, core)
    assert asyncio.run(client.restart("stub-0", engine, "hang")) is False
    assert stack.identity("stub-0") == successor
    assert stack.ledger()["stub-0"]["restarts"] == 1
    assert "hang" in stack.ledger()["stub-0"]["last_exit"]


def test_all_problems_are_said_at_once_and_nothing_is_started(stack: Stack) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", stack.gateway_port))
        taken.listen()
        stack.configure(
            [
                stack.stub("a", model="/no/such/folder"),
                stack.stub("b", python="/no/such/python"),
                stack.stub("c", python=sys.executable),
            ],
            gateway={"port": stack.gateway_port, "envoy_binary": "/no/such/envoy"},
        )
        failed, detached = stack.run("up", "--no-guard"), stack.run("up", "--no-guard", "--detach")
    assert failed.returncode == detached.returncode == 1
    assert set(failed.stderr.splitlines()) <= set(detached.stderr.splitlines())
    said = failed.stderr
    assert "stack.gateway.envoy_binary: /no/such/envoy" in said
    assert "stack.engines.a.model: /no/such/folder does not exist" in said
    assert "stack.engines.b.python: /no/such/python" in said
    assert f"stack.engines.c: {sys.executable} has no vLLM; install it" in said
    assert f"stack.gateway.port: 127.0.0.1:{stack.gateway_port} is taken by" in said
    assert f"pid {os.getpid()}" in said
    assert all(line.startswith("sre up: ") for line in said.splitlines())
    assert stack.ours() == []


def test_engine_that_cannot_start_is_retried_with_back_off_and_its_log_is_shown(stack: Stack) -> None:
    stack.configure([stack.stub(env={"STUB_FAIL": "1"})])
    up = stack.up()
    stack.wait(lambda: "starting again in 0.2 s" in stack.talk, up=up)
    assert "exit code 1 after" in stack.talk
    assert "| ValueError: no such model" in stack.talk
    assert "ready: " not in stack.output
    assert stack.run("status").returncode == 3
    up.send_signal(signal.SIGINT)
    assert up.wait(20) == 6, "stopped before it was ready"


def test_ctrl_c_during_the_start_leaves_nothing(stack: Stack) -> None:
    stack.configure([stack.stub(env={"STUB_START_SECONDS": "60"})])
    up = stack.up()
    stack.wait(lambda: "stub-0       starting (pid" in stack.talk, up=up)
    up.send_signal(signal.SIGINT)
    assert up.wait(20) == 6
    assert stack.ours() == []


def test_detached_stack_runs_on_and_down_ends_it(stack: Stack) -> None:
    started = stack.run("up", "--no-guard", "--detach")
    assert started.returncode == 0, started.stderr
    assert started.stdout.startswith("ready: gateway ")
    assert stack.status()["stack"]["phase"] == "ready"
    stopped = stack.run("down")
    assert stopped.returncode == 0
    assert "nothing is left running" in stopped.stderr
    assert stack.ours() == []
    again = stack.run("down")
    assert again.returncode == 0
    assert "nothing is running" in again.stderr


def test_detach_says_why_it_does_not_become_ready(stack: Stack) -> None:
    stack.configure([stack.stub(env={"STUB_FAIL": "1"})], restart={"initial_backoff_seconds": 0.05})
    started = stack.run("up", "--no-guard", "--detach")
    assert started.returncode == 3
    assert "stub-0: exit code 1" in started.stderr
    assert "sre down" in started.stderr


def test_down_works_without_a_supervisor(stack: Stack) -> None:
    up = stack.up_ready()
    engine = stack.identity("stub-0")
    core = stack.core_of(engine)
    up.kill()
    up.wait()
    stopped = stack.run("down")
    assert stopped.returncode == 0, stopped.stderr
    assert stack.gone(engine, core)
    assert stack.ours() == []


def test_down_needs_no_valid_configuration(stack: Stack) -> None:
    stack.up_ready()
    stack.config.write_text("stack: [")
    stopped = stack.run("down", "--now")
    assert stopped.returncode == 0, stopped.stderr
    assert stack.ours() == []


def test_drain_refuses_new_requests_and_lets_the_open_one_finish(stack: Stack) -> None:
    stack.configure([stack.stub(env={"STUB_ANSWER_SECONDS": "2"}, drain_timeout_seconds=20)])
    up = stack.up_ready()
    url = f"http://127.0.0.1:{stack.gateway_port}/v1/completions"
    body = b'{"model": "stub-model", "prompt": "x", "max_tokens": 1}'
    code = (
        "import sys, urllib.request as u;"
        "r = u.Request(sys.argv[1], sys.argv[2].encode(), {'content-type': 'application/json'});"
        "print(u.urlopen(r, timeout=30).status)"
    )
    slow = subprocess.Popen([sys.executable, "-c", code, url, body.decode()], stdout=subprocess.PIPE, text=True)
    stack.wait(lambda: stack.status()["stack"]["requests_active"] == 1)
    up.send_signal(signal.SIGTERM)
    stack.wait(lambda: "draining: 1 requests run" in stack.talk, up=up)
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    with refused.value:
        assert refused.value.code == 503
        assert refused.value.headers["x-sre-reason"] == "manual"
    answer, _ = slow.communicate(timeout=20)
    assert answer.strip() == "200"
    assert up.wait(20) == 0


def test_log_files_stay_bounded_while_their_writer_goes_on(stack: Stack) -> None:
    stack.configure([stack.stub(env={"STUB_LOG_LINES": "400"})], logs={"max_bytes": 4096, "backups": 2})
    stack.up_ready()
    log = stack.state / "logs" / "stub-0.log"
    stack.wait(lambda: log.with_name("stub-0.log.1").exists())
    stack.kill(stack.core_of(stack.identity("stub-0")))
    stack.wait(lambda: "EngineDeadError" in log.read_text())
    assert log.stat().st_mode & 0o777 == 0o600


def test_dry_run_changes_nothing(stack: Stack) -> None:
    shown = stack.run("up", "--no-guard", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "start  gateway" in shown.stdout
    assert "start  stub-0" in shown.stdout
    assert not stack.state.exists()


def test_foreign_orphan_is_reported_and_left_alone(stack: Stack) -> None:
    """Started by nobody of ours: a parent in one session whose child ends up with another parent."""
    code = (
        "import subprocess, sys, time;"
        "c = subprocess.Popen(['VLLM::EngineCore', '-c', 'import time; time.sleep(120)'], executable=sys.executable,"
        " stdout=subprocess.DEVNULL);"
        "print(c.pid, flush=True)"
    )
    parent = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True, check=True, timeout=20
    )
    orphan = identity_of(int(parent.stdout))
    assert orphan is not None
    try:
        stack.up_ready()
        notes = stack.status()["stack"]["notes"]
        assert any(f"pid {orphan.pid}" in note and "kill" in note for note in notes), notes
        stack.run("down")
        assert not stack.gone(orphan)
    finally:
        stack.kill(orphan)
