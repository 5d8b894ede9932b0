"""``sre up --detach``: a supervisor in the background, followed until it is ready."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sre.adapters.processes.lock import StackLock
from sre.adapters.processes.logs import tail
from sre.errors import DependencyError, ExitCode
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.signals.types import ProcessState

if TYPE_CHECKING:
    from sre.adapters.supervisor_client import SupervisorClient
    from sre.control.supervision import Say
    from sre.stack.status import StackReport
from sre.wiring.invocation import SUPERVISOR_LOG, Invocation, Ready, gateway_url, metrics_url

POLL_SECONDS = 0.05
PROBLEM_PREFIX = "sre up: "
"""Before each reason why a start is hopeless, on the background process' stderr."""

GIVE_UP_CRASHES = 3
"""So many crashes of one process before it ever was ready: it is no longer waited for."""


@dataclass(frozen=True, slots=True)
class Detached:
    """What came of it: ``ready``, or ``problem`` (a sentence per line) and the exit code."""

    ready: Ready | None
    problem: str = ""
    exit_code: ExitCode = ExitCode.OK


async def start_detached(root: Root, paths: StatePaths, call: Invocation, say: Say, *, debug: bool) -> Detached:
    """
    Start the supervisor in a session of its own and follow it until every process is ready.

    What stands in the way of a start is found by the background process and passed on.

    Raises:
        Refused: It runs already.
        ConfigError: The state folder cannot be made.
    """
    if paths.run.is_dir():
        StackLock(paths.lock).refuse_if_held(paths.root)
    paths.create()
    log_path = paths.logs / SUPERVISOR_LOG
    before = log_path.stat().st_size if log_path.exists() else 0
    chosen = {"--no-guard": not call.with_guard, "--late-secrets": call.late_secrets}
    argv = call.argv("up", "--in-background", *(option for option, given in chosen.items() if given))
    child = _spawn(argv[:3] + (["--debug"] if debug else []) + argv[3:], log_path)
    say("supervisor", f"started in the background (pid {child.pid}); log: {log_path}")
    from sre.adapters.supervisor_client import SupervisorClient  # heavy: loaded while the other process starts

    try:
        outcome = await _follow(child, SupervisorClient(paths.supervisor_socket), say, log_path, before)
    except asyncio.CancelledError:
        say("supervisor", "interrupted; stopping what was started")
        child.terminate()
        await asyncio.to_thread(child.wait)
        raise
    child.returncode = child.returncode if child.returncode is not None else 0  # it stays; nothing to warn of
    if outcome is not None:
        return outcome
    return Detached(Ready(gateway_url(root.stack), metrics_url(root, with_guard=call.with_guard), paths.root))


def _spawn(argv: list[str], log_path: Path) -> subprocess.Popen[bytes]:
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    finally:
        os.close(log)


async def _follow(
    child: subprocess.Popen[bytes], client: SupervisorClient, say: Say, log_path: Path, log_offset: int
) -> Detached | None:
    """Return None when it is ready, else what went wrong."""
    said: dict[str, str] = {}
    while True:
        code = child.poll()
        if code is not None:
            return Detached(None, _last_words(log_path, log_offset, code), _exit_code(code))
        try:
            report = await client.status()
        except DependencyError:
            await asyncio.sleep(POLL_SECONDS)
            continue
        if report.supervisor.pid == child.pid:
            for process in report.processes:
                if said.get(process.name) != process.state.value:
                    said[process.name] = process.state.value
                    pid = "" if process.identity is None else f" (pid {process.identity.pid})"
                    say(process.name, f"{process.state.value}{pid}")
            if report.phase == "ready":
                return None
            stuck = _hopeless(report)
            if stuck is not None:
                return Detached(None, stuck, ExitCode.NO)
        await asyncio.sleep(POLL_SECONDS)


def _hopeless(report: StackReport) -> str | None:
    for process in report.processes:
        if process.state in {ProcessState.CRASHED, ProcessState.FAILED} and process.restarts >= GIVE_UP_CRASHES:
            why = process.problem or process.last_exit or "it does not start"
            return (
                f"{process.name}: {why}; log: {process.log_path}; sre keeps trying in the background: look with"
                " sre status, stop it with sre down"
            )
    return None


def _last_words(log_path: Path, log_offset: int, code: int) -> str:
    size = log_path.stat().st_size if log_path.exists() else 0
    lines = [line for line in tail(log_path, 20, max_bytes=max(1, size - log_offset)) if line.strip()]
    reasons = [line.removeprefix(PROBLEM_PREFIX) for line in lines if line.startswith(PROBLEM_PREFIX)]
    if reasons:
        return "\n".join(reasons)
    said = lines[-1] if lines else "it said nothing"
    return f"the supervisor ended with exit code {code}: {said}; log: {log_path}"


def _exit_code(code: int) -> ExitCode:
    try:
        return ExitCode(code)
    except ValueError:
        return ExitCode.COULD_NOT_RUN
