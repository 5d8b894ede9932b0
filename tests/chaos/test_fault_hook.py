"""The middleware that a real vLLM loads, and the arguments that load it."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.engines.vllm import process
from sre.servers.vllm_hooks import sre_fault_hook as hook
from sre.settings.paths import StatePaths
from sre.settings.stack import EngineSettings

BOOT = "boot-1"


class Machine:
    """Time and the fault file."""

    def __init__(self, path: Path) -> None:
        self.now = 100.0
        self.path = path
        self.faults = hook.Faults(str(path), BOOT, lambda: self.now)

    def write(self, expires: float = 1000.0, boot: str = BOOT, run_id: str = "run-1", **faults: Any) -> None:
        temporary = self.path.with_suffix(".new")
        temporary.write_text(
            json.dumps({"boot_id": boot, "expires_monotonic": expires, "run_id": run_id, "faults": faults})
        )
        temporary.rename(self.path)
        self.now += 1.0

    def outcomes(self, count: int, apart_seconds: float = 1.0) -> list[bool]:
        found = []
        for _ in range(count):
            self.now += apart_seconds
            found.append(self.faults.fails())
        return found


@pytest.fixture
def machine(short_dir: Path) -> Machine:
    return Machine(short_dir / "sim-0.json")


def test_no_file_no_fault(machine: Machine) -> None:
    assert machine.outcomes(5) == [False] * 5


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5, 1.0])
def test_exactly_that_share_fails_and_the_first_request_does(machine: Machine, ratio: float) -> None:
    machine.write(error_ratio=ratio)
    outcomes = machine.outcomes(100, apart_seconds=0.1)
    assert outcomes[0]
    assert sum(outcomes) == round(100 * ratio)


def test_so_many_batches_fail_and_then_none(machine: Machine) -> None:
    machine.write(batch_failures=2)
    assert machine.outcomes(4) == [True, True, False, False]


def test_requests_that_arrive_together_are_one_batch(machine: Machine) -> None:
    machine.write(batch_failures=1)
    assert machine.outcomes(1) == [True]
    assert machine.outcomes(3, apart_seconds=0.01) == [True] * 3
    assert machine.outcomes(1) == [False]


def test_minus_one_means_all_until_expiry(machine: Machine) -> None:
    machine.write(batch_failures=-1, expires=150.0)
    assert machine.outcomes(20) == [True] * 20
    machine.now = 151.0
    assert machine.outcomes(5) == [False] * 5


def test_fault_of_another_boot_is_ignored(machine: Machine) -> None:
    machine.write(boot="boot-0", error_ratio=1.0, delay_seconds=9.0)
    assert machine.outcomes(3) == [False] * 3
    assert machine.faults.delay_seconds() == 0.0


def test_removed_file_ends_the_fault(machine: Machine) -> None:
    machine.write(error_ratio=1.0)
    assert machine.outcomes(1) == [True]
    machine.path.unlink()
    assert machine.outcomes(1) == [False]


def test_next_run_starts_afresh(machine: Machine) -> None:
    machine.write(batch_failures=1)
    assert machine.outcomes(2) == [True, False]
    machine.write(batch_failures=1, run_id="run-2")
    assert machine.outcomes(2) == [True, False]
    assert machine.faults.run_id == "run-2"


def test_same_run_written_again_does_not_fail_its_batches_twice(machine: Machine) -> None:
    machine.write(batch_failures=1)
    assert machine.outcomes(2) == [True, False]
    machine.write(batch_failures=1, expires=2000.0)
    assert machine.outcomes(2) == [False, False]


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"faults": 3}', '{"faults": {"error_ratio": "x"}}'])
def test_file_that_cannot_be_read_is_no_fault(machine: Machine, content: str) -> None:
    machine.path.write_text(content)
    assert machine.outcomes(3) == [False] * 3


def call(app: hook.Asgi, path: str = "/v1/completions", method: str = "POST") -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    asyncio.run(_run(app({"type": "http", "method": method, "path": path}, receive, send)))
    return sent


async def _run(awaitable: Any) -> None:
    await awaitable


def served() -> tuple[hook.Asgi, Callable[[], int]]:
    count = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal count
        count += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})

    return app, lambda: count


def test_failed_request_gets_an_openai_error_that_names_the_run(machine: Machine) -> None:
    app, calls = served()
    machine.write(error_ratio=1.0)
    start, body = call(hook.FaultHook(app, machine.faults))
    assert start["status"] == 500
    assert (b"x-sre-fault", b"run-1") in start["headers"]
    assert json.loads(body["body"])["error"]["code"] == 500
    assert calls() == 0


@pytest.mark.parametrize(
    ("path", "method"), [("/health", "GET"), ("/metrics", "GET"), ("/v1/models", "GET"), ("/tokenize", "POST")]
)
def test_only_generation_fails(machine: Machine, path: str, method: str) -> None:
    app, calls = served()
    machine.write(error_ratio=1.0)
    assert call(hook.FaultHook(app, machine.faults), path, method)[0]["status"] == 200
    assert calls() == 1


def test_delay_holds_the_request_and_then_passes_it_on(machine: Machine) -> None:
    app, calls = served()
    machine.write(delay_seconds=0.001)
    assert call(hook.FaultHook(app, machine.faults))[0]["status"] == 200
    assert calls() == 1


def test_module_needs_only_the_standard_library() -> None:
    tree = ast.parse(Path(hook.__file__).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert imported <= sys.stdlib_module_names


def test_hook_is_loaded_by_an_interpreter_that_knows_nothing_of_us(short_dir: Path) -> None:
    paths = StatePaths(short_dir)
    engine = EngineSettings(name="e", kind="vllm", model="/m", port=8001, build="cpu", fault_hook=True)
    command = process(engine, paths, {"PYTHONPATH": "/somewhere/else"}).command
    assert command is not None
    middleware = command.argv[command.argv.index("--middleware") + 1]
    module, _, name = middleware.partition(".")
    code = f"import {module}, sys; print({module}.{name}(None).faults._path); print('sre' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=dict(command.env), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(paths.engine_faults / "e.json"), "False"]
    assert command.env["PYTHONPATH"].endswith(os.pathsep + "/somewhere/else")


def test_folder_on_vllms_path_holds_only_hooks() -> None:
    folder = Path(hook.__file__).parent
    assert {p.name for p in folder.glob("*.py")} == {"__init__.py", "sre_fault_hook.py"}
