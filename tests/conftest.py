"""Fixtures that every room of tests shares. Keep it small: what one room needs lives in that room."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from hypothesis import HealthCheck, settings

T = TypeVar("T")

# No deadline: on a busy machine it fails examples that are right. In CI the same examples every time: what fails there
# must fail again.
settings.register_profile("sre", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("sre"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "sre")

LOG_TAIL_LINES = 40
PATIENCE_SECONDS = 90.0
"""Of a poll whose deadline is not what is tested: a machine that others use may be many times slower than alone."""

# Every process started by a test inherits this mark, also through setsid and double forks: what is left at the end
# is found by it.
os.environ["SRE_TEST_SESSION"] = str(uuid.uuid4())
SESSION_MARK = f"SRE_TEST_SESSION={os.environ['SRE_TEST_SESSION']}"


def pytest_configure() -> None:
    """SIGTERM ends a run as Ctrl-C does: `timeout` and CI send it, and what tests made and started is to go first."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A vLLM that is killed leaves its sockets behind.
    os.environ["VLLM_RPC_BASE_PATH"] = tempfile.mkdtemp(prefix="sre-vllm-", dir="/tmp")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["VLLM_RPC_BASE_PATH"], ignore_errors=True)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A fresh folder whose path is short enough for Unix sockets (107 bytes); removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="sre-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unused_port() -> int:
    """A TCP port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Call it for a free TCP port on loopback; each call gives another one."""
    return unused_port


def log_tail(*logs: Path) -> str:
    """The last lines of ``logs`` (files, or folders of ``*.log``), for failure messages."""
    files = [file for log in logs for file in (sorted(log.rglob("*.log")) if log.is_dir() else [log])]
    parts = []
    for file in files:
        try:
            lines = file.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]
        except OSError as error:
            lines = [f"(unreadable: {error.strerror})"]
        parts.append("\n".join([f"--- {file.name}", *lines]))
    return "\n".join(parts)


class WaitUntil(Protocol):
    """Poll ``predicate`` until it returns something true, and return that; fail with the log tail at the deadline."""

    def __call__(
        self,
        predicate: Callable[[], T],
        timeout: float = PATIENCE_SECONDS,
        *,
        what: str = "",
        interval: float = 0.05,
        logs: tuple[Path, ...] = (),
        ignore: tuple[type[Exception], ...] = (),
    ) -> T: ...


def _give_up(what: str, timeout: float, last: object, logs: tuple[Path, ...]) -> None:
    pytest.fail(f"not within {timeout:g} s: {what}; last: {last!r}\n{log_tail(*logs)}", pytrace=False)


def _describe(predicate: Callable[..., Any], what: str) -> str:
    return what or getattr(predicate, "__qualname__", repr(predicate))


@pytest.fixture
def wait_until() -> WaitUntil:
    """``wait_until(predicate, timeout, what=..., logs=(path,))``: a poll with a deadline, for plain functions."""

    def wait(
        predicate: Callable[[], T],
        timeout: float = PATIENCE_SECONDS,
        *,
        what: str = "",
        interval: float = 0.05,
        logs: tuple[Path, ...] = (),
        ignore: tuple[type[Exception], ...] = (),
    ) -> T:
        deadline = time.monotonic() + timeout
        while True:
            last: Any
            try:
                last = predicate()
                if last:
                    result: T = last
                    return result
            except ignore as error:
                last = error
            if time.monotonic() >= deadline:
                _give_up(_describe(predicate, what), timeout, last, logs)
            time.sleep(interval)

    return wait


@pytest.fixture
def wait_until_async() -> Callable[..., Awaitable[Any]]:
    """As ``wait_until``, for use inside a running loop; the predicate may be a coroutine function."""
    import asyncio

    async def wait(
        predicate: Callable[[], Any],
        timeout: float = PATIENCE_SECONDS,
        *,
        what: str = "",
        interval: float = 0.05,
        logs: tuple[Path, ...] = (),
        ignore: tuple[type[Exception], ...] = (),
    ) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            last: Any
            try:
                last = predicate()
                if inspect.isawaitable(last):
                    last = await last
                if last:
                    return last
            except ignore as error:
                last = error
            if time.monotonic() >= deadline:
                _give_up(_describe(predicate, what), timeout, last, logs)
            await asyncio.sleep(interval)

    return wait


def require_binary(name: str, hint: str, *alternatives: str) -> str:
    """Path of a program that judges what we make; skip with ``hint`` when it is missing, fail in CI."""
    for candidate in (name, *alternatives):
        found = shutil.which(candidate)
        if found:
            return found
    message = f"{name} is not installed; {hint}"
    if os.environ.get("SRE_REQUIRE_BINARIES") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """Interpreter with the CPU build of vLLM: SRE_VLLM_PYTHON, else .venv-vllm; skip without one, fail in CI."""
    default = Path(__file__).resolve().parents[1] / ".venv-vllm" / "bin" / "python"
    found = os.environ.get("SRE_VLLM_PYTHON") or (str(default) if default.exists() else None)
    if found is not None:
        return str(Path(found).absolute()) if "/" in found else found
    message = "no CPU build of vLLM; make setup installs it, or name an interpreter with SRE_VLLM_PYTHON"
    if os.environ.get("SRE_REQUIRE_BINARIES") == "1":
        pytest.fail(message)
    pytest.skip(message)


def _marked_processes() -> list[str]:
    mark = SESSION_MARK.encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        if state not in {"Z", "X"}:
            found.append(f"pid {folder.name}: {line[:200]}")
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """After the last test no process that a test started may still run, whatever session or parent it moved to."""
    yield
    deadline = time.monotonic() + 5.0
    while (left := _marked_processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, "processes left behind by tests:\n" + "\n".join(left)
