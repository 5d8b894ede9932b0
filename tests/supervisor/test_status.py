"""What ``sre status`` shows and answers, and what the checks before a start say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sre.adapters.engines import vllm
from sre.adapters.engines.vllm import problems
from sre.cli.stack_view import duration, render
from sre.errors import ExitCode
from sre.servers.guard_api import serve_unix
from sre.settings.paths import StatePaths
from sre.settings.stack import EngineSettings
from sre.signals.types import ProcessIdentity, ProcessState
from sre.stack.status import ProcessReport, StackReport, stack_report_to_json
from sre.wiring.preflight import port_problem
from sre.wiring.status import StackStatus, ask_guard, stack_status


def process(name: str, role: str, state: ProcessState = ProcessState.READY, **changes: Any) -> ProcessReport:
    values: dict[str, Any] = {
        "name": name, "role": role, "kind": "sim", "state": state, "identity": ProcessIdentity(7, 1),
        "uptime_seconds": 65.0, "adopted": False, "restarts": 0, "last_exit": None, "next_start_in_seconds": None,
        "problem": None, "address": None, "log_path": None,
    }  # fmt: skip
    return ProcessReport(**(values | changes))


def report(*processes: ProcessReport, **changes: Any) -> StackReport:
    values: dict[str, Any] = {
        "name": "s", "phase": "ready", "supervisor": ProcessIdentity(1, 1), "gateway_url": "http://127.0.0.1:8080",
        "state_dir": "/s", "metrics_url": None, "processes": processes, "requests_active": 2,
    }  # fmt: skip
    return StackReport(**(values | changes))


GATEWAY, ENGINE, GUARD = process("gateway", "gateway"), process("sim-0", "engine"), process("guard", "guard")
CLOSED: dict[str, Any] = {"tick_age_seconds": 0.5, "engines": {"sim-0": {"state": "closed", "reason": None}}}


def engines(**states: str) -> dict[str, Any]:
    return {
        "tick_age_seconds": 0.5,
        "engines": {name: {"state": state, "reason": "hang"} for name, state in states.items()},
    }


ALL_WELL = report(GATEWAY, ENGINE, GUARD)
CRASHED = report(GATEWAY, process("sim-0", "engine", ProcessState.CRASHED))


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (StackStatus(ALL_WELL, None, CLOSED, None), ExitCode.OK),
        (StackStatus(ALL_WELL, None, engines(**{"sim-0": "disabled"}), None), ExitCode.OK),
        (StackStatus(ALL_WELL, None, engines(**{"sim-0": "open"}), None), ExitCode.NO),
        (StackStatus(ALL_WELL, None, engines(**{"sim-0": "half_open"}), None), ExitCode.NO),
        (StackStatus(ALL_WELL, None, engines(**{"sim-0": "forced_open"}), None), ExitCode.NO),
        (StackStatus(CRASHED, None, CLOSED, None), ExitCode.NO),
        (StackStatus(report(process("sim-0", "engine", ProcessState.FAILED)), None, None, "x"), ExitCode.NO),
        (StackStatus(ALL_WELL, None, None, "guard: not reachable"), ExitCode.NO_ANSWER),
        (StackStatus(ALL_WELL, None, CLOSED, "guard: old"), ExitCode.NO_ANSWER),
        (StackStatus(ALL_WELL, None, {"engines": {}}, None), ExitCode.NO_ANSWER),
        (StackStatus(ALL_WELL, None, {"engines": "odd"}, None), ExitCode.NO_ANSWER),
        (StackStatus(None, "supervisor: not running", CLOSED, None), ExitCode.NO_ANSWER),
        (StackStatus(None, "supervisor: not running", engines(**{"sim-0": "open"}), None), ExitCode.NO),
        (StackStatus(None, "x", None, "y"), ExitCode.NO_ANSWER),
    ],
)  # fmt: skip
def test_well_only_if_everything_was_seen_and_is_well(status: StackStatus, code: ExitCode) -> None:
    assert status.exit_code is code
    assert status.to_json()["verdict"] == {0: "ok", 3: "not_ok", 5: "not_seen"}[code]


def shown(status: StackStatus) -> str:
    from rich.console import Console

    console = Console(width=120, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(*render(status), sep="\n")
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def test_text_of_a_stack_in_trouble() -> None:
    crashed = process(
        "sim-0", "engine", ProcessState.CRASHED, identity=None, uptime_seconds=None, restarts=2,
        last_exit="exit code 0 after 3 s (unasked)", next_start_in_seconds=1.6,
    )  # fmt: skip
    stuck = process("sim-1", "engine", ProcessState.FAILED, problem="sim-1: pid 9 cannot be killed", adopted=True)
    stack = report(GATEWAY, crashed, stuck, phase="degraded", requests_active=None, notes=("look at pid 5",))
    assert shown(StackStatus(stack, None, engines(**{"sim-0": "open"}), None)) == "\n".join(
        [
            "stack s: degraded   gateway http://127.0.0.1:8080   requests active: not seen",
            "PROCESS  KIND  STATE                       PID  UPTIME     RESTARTS  BREAKER      LAST EXIT",
            "gateway  sim   ready                       7    1 min 5 s  0         -            -",
            "sim-0    sim   crashed, next start in 2 s  -    -          2         open (hang)  exit code 0 after 3 s"
            " (unasked)",
            "sim-1    sim   failed (taken over)         7    1 min 5 s  0         not seen     -",
            "sim-1: pid 9 cannot be killed",
            "note: look at pid 5",
        ]
    )


def test_text_without_a_supervisor_names_what_still_runs() -> None:
    status = StackStatus(None, "supervisor x: is not running", None, "guard: not reachable", (("sim-0", 42),))
    text = shown(status)
    assert "not seen: supervisor x: is not running" in text
    assert "still running: sim-0 (pid 42)" in text
    assert "sre up" in text
    assert "sre down" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3700, "1 h 1 min"), (90000, "1 d 1 h")]
)
def test_durations_are_read_by_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def test_nothing_there_is_not_seen(short_dir: Path) -> None:
    status = await stack_status(StatePaths(short_dir))
    assert status.stack is None
    assert status.guard is None
    assert status.exit_code is ExitCode.NO_ANSWER
    assert shown(status).splitlines() == [
        f"not seen: supervisor {short_dir}/run/supervisor.sock: is not running; start it with sre up",
        "guard: does not run: breakers not seen",
    ]


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (ProcessState.STARTING, "guard: is starting: breakers not seen yet"),
        (ProcessState.CRASHED, "guard: nobody answers: breakers not seen; its process is crashed, see its log"),
        (None, "no guard runs (sre up --no-guard): breakers not seen"),
    ],
)
async def test_a_guard_that_nobody_can_ask_is_told_by_its_process(
    short_dir: Path, state: ProcessState | None, problem: str
) -> None:
    processes = [GATEWAY] if state is None else [GATEWAY, process("guard", "guard", state)]
    paths = StatePaths(short_dir)
    paths.create()

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(stack_report_to_json(report(*processes)))

    app = web.Application()
    app.router.add_get("/status", answer)
    async with serve_unix(app, paths.supervisor_socket):
        assert (await stack_status(paths)).guard_problem == problem


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ('{"tick_age_seconds": 0.1}', None),
        ('{"tick_age_seconds": 60}', "decided nothing for 60 s"),
        ('{"tick_age_seconds": null}', "has not decided anything yet"),
        (
            '{"tick_age_seconds": 0.1, "webhook_problem": "webhook.token: secret file t: gone"}',
            "guard: webhook.token: secret file t: gone; alerts of Alertmanager are not taken in",
        ),
        ("[]", "not its status"),
        ("{", "no answer that can be read"),
    ],
)
async def test_guard_that_sees_nothing_is_a_problem(short_dir: Path, answer: str, problem: str | None) -> None:
    async def status(_: web.Request) -> web.Response:
        return web.Response(text=answer)

    app = web.Application()
    app.router.add_get("/status", status)
    async with serve_unix(app, short_dir / "g.sock"):
        _, said = await ask_guard(short_dir / "g.sock")
    assert said is None if problem is None else problem in (said or "")


# Checks before a start


def interpreter(folder: Path, answer: str) -> str:
    """A program that answers as an interpreter with (or without) vLLM would."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nprint({answer!r})\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("answer", "build", "sentence"),
    [
        ('{"found": true, "cpu": true}', "cpu", None),
        ('{"found": true, "cpu": false}', "gpu", None),
        ('{"found": true, "cpu": true}', "gpu", "has the CPU build of vLLM; write build: cpu"),
        ('{"found": true, "cpu": false}', "cpu", "has the GPU build of vLLM; write build: gpu"),
        ('{"found": false, "cpu": false}', "gpu", "has no vLLM; install it there"),
        ("nonsense", "gpu", "does not run (JSONDecodeError)"),
    ],
)
def test_interpreter_without_the_right_vllm_is_said(
    short_dir: Path, answer: str, build: str, sentence: str | None
) -> None:
    vllm.look.cache_clear()
    python = interpreter(short_dir, answer)
    engine = EngineSettings.model_validate(
        {"name": "e", "kind": "vllm", "build": build, "model": "org/m", "python": python}
    )
    found = problems(engine)
    assert len(found) == (0 if sentence is None else 1)
    assert sentence is None or sentence in found[0]
    assert all(one.startswith("stack.engines.e") for one in found)


def test_model_folder_without_a_model_is_said_and_a_hub_name_is_not_looked_for(short_dir: Path) -> None:
    vllm.look.cache_clear()
    python = interpreter(short_dir, '{"found": true, "cpu": false}')

    def said(model: str) -> list[str]:
        return problems(EngineSettings.model_validate({"name": "e", "kind": "vllm", "model": model, "python": python}))

    assert "has no config.json" in said(str(short_dir))[0]
    assert "does not exist" in said("./nowhere")[0]
    assert said("org/model") == []
    (short_dir / "config.json").write_text("{}")
    assert said(str(short_dir)) == []


def test_port_of_our_own_is_not_in_the_way(free_port: Callable[[], int]) -> None:
    import os
    import socket

    port = free_port()
    assert port_problem("127.0.0.1", port, "x.port", frozenset()) == []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        (sentence,) = port_problem("127.0.0.1", port, "x.port", frozenset())
        assert sentence.startswith(f"x.port: 127.0.0.1:{port} is taken by ")
        assert sentence.endswith(f"(pid {os.getpid()}); stop it, or write another port")
        assert port_problem("127.0.0.1", port, "x.port", frozenset({os.getpid()})) == []
    (foreign,) = port_problem("203.0.113.1", port, "x.port", frozenset())
    assert "write an address of this machine" in foreign
