"""What ``sre status`` knows: asked of the supervisor and the guard, each of which may not answer."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from sre.adapters.processes import proc
from sre.adapters.processes.files import LedgerFile
from sre.adapters.supervisor_client import SupervisorClient
from sre.errors import DependencyError, ExitCode, StateError
from sre.settings.paths import StatePaths
from sre.signals.types import ProcessState
from sre.stack.processes import GUARD_NAME
from sre.stack.status import StackReport, stack_report_to_json

GUARD_TIMEOUT_SECONDS = 2.0
NOBODY_ANSWERS = "guard: nobody answers: breakers not seen"
STALE_TICK_SECONDS = 10.0
"""A guard that decided nothing for this long sees nothing, though it answers."""


@dataclass(frozen=True, slots=True)
class StackStatus:
    """
    Both answers. What is None was not seen, and its problem says why.

    ``leftovers`` are processes that run without a supervisor, from the ledger.
    """

    stack: StackReport | None
    stack_problem: str | None
    guard: dict[str, Any] | None
    guard_problem: str | None
    leftovers: tuple[tuple[str, int], ...] = ()

    @property
    def breakers(self) -> dict[str, dict[str, Any]]:
        """The guard's word on each engine; empty when it was not seen."""
        engines = {} if self.guard is None else self.guard.get("engines")
        return engines if isinstance(engines, dict) else {}

    @property
    def exit_code(self) -> ExitCode:
        """OK only if all was seen and is well; NO when something is down or open; NO_ANSWER when not all was seen."""
        if self.stack is not None and any(p.state is not ProcessState.READY for p in self.stack.processes):
            return ExitCode.NO
        if any(breaker.get("state") not in {"closed", "disabled"} for breaker in self.breakers.values()):
            return ExitCode.NO
        if self.stack is None or self.guard is None or self.guard_problem is not None:
            return ExitCode.NO_ANSWER
        seen = set(self.breakers)
        engines = {process.name for process in self.stack.processes if process.role == "engine"}
        return ExitCode.OK if engines <= seen else ExitCode.NO_ANSWER

    def to_json(self) -> dict[str, Any]:
        """One document; ``null`` is what was not seen."""
        return {
            "verdict": {ExitCode.OK: "ok", ExitCode.NO: "not_ok"}.get(self.exit_code, "not_seen"),
            "stack": None if self.stack is None else stack_report_to_json(self.stack),
            "stack_problem": self.stack_problem,
            "guard": self.guard,
            "guard_problem": self.guard_problem,
            "leftovers": [{"name": name, "pid": pid} for name, pid in self.leftovers],
        }


async def stack_status(paths: StatePaths) -> StackStatus:
    """Ask both at once. Never raises because one does not answer."""
    (stack, stack_problem), (guard, guard_problem) = await asyncio.gather(
        _ask_supervisor(paths), ask_guard(paths.guard_socket)
    )
    if stack is None and not paths.supervisor_socket.exists():
        stack_problem = _moved(paths) or stack_problem
    leftovers = () if stack is not None else _leftovers(paths)
    if guard_problem == NOBODY_ANSWERS:
        guard_problem = _absent_guard(stack, leftovers)
    return StackStatus(stack, stack_problem, guard, guard_problem, leftovers)


async def _ask_supervisor(paths: StatePaths) -> tuple[StackReport | None, str | None]:
    try:
        return await SupervisorClient(paths.supervisor_socket).status(), None
    except DependencyError as error:
        return None, str(error)


def _moved(paths: StatePaths) -> str | None:
    """Where a supervisor lives all the same: its folder was moved away under it."""
    from sre.wiring.seen import moved_under, supervisor_seen  # heavy, and seldom needed
    from sre.wiring.stack import make_host

    other = supervisor_seen(make_host(paths, os.environ, Path("/")))
    return None if other is None else f"supervisor: {moved_under(other, paths.root)}"


def _absent_guard(stack: StackReport | None, leftovers: tuple[tuple[str, int], ...]) -> str:
    """Why nobody answers as the guard, by what is known of its process."""
    if stack is None:
        if GUARD_NAME in dict(leftovers):
            return f"{NOBODY_ANSWERS}, though its process is there; see its log"
        return "guard: does not run: breakers not seen"
    state = next((process.state for process in stack.processes if process.role == "guard"), None)
    if state is None:
        return "no guard runs (sre up --no-guard): breakers not seen"
    if state is ProcessState.STARTING:
        return "guard: is starting: breakers not seen yet"
    return f"{NOBODY_ANSWERS}; its process is {state.value}, see its log"


async def ask_guard(socket: Path) -> tuple[dict[str, Any] | None, str | None]:
    """Return the guard's own status and, if something is wrong with it, a sentence."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(path=str(socket), force_close=True),
                timeout=aiohttp.ClientTimeout(total=GUARD_TIMEOUT_SECONDS),
            ) as session,
            session.get("http://guard/status") as response,
        ):
            data = await response.json(content_type=None)
            if response.status != 200 or not isinstance(data, dict):
                return None, f"guard {socket}: answered {response.status}, not its status: breakers not seen"
    except TimeoutError:
        return None, f"guard: did not answer within {GUARD_TIMEOUT_SECONDS:g} s: breakers not seen; see its log"
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, PermissionError):
            return None, f"guard {socket}: may not be opened by you: breakers not seen; ask as the user who ran sre up"
        return None, NOBODY_ANSWERS
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return (
            None,
            f"guard {socket}: no answer that can be read ({type(error).__name__}): breakers not seen; see its log",
        )
    age = data.get("tick_age_seconds")
    if not isinstance(age, int | float):
        return data, "guard: has not decided anything yet: breakers not seen"
    if age > STALE_TICK_SECONDS:
        return data, f"guard: decided nothing for {age:.0f} s: what it says is old; see its log"
    if data.get("problem"):
        return data, f"guard: {data['problem']}"
    if data.get("webhook_problem"):
        return data, f"guard: {data['webhook_problem']}; alerts of Alertmanager are not taken in"
    if not data.get("gateway_reachable", True):
        return data, "guard: the gateway does not answer: what passes there is not seen"
    engines = data.get("engines")
    blind = {n: e["blind"] for n, e in engines.items() if e.get("blind")} if isinstance(engines, dict) else {}
    if blind:
        listed = "; ".join(f"{name}: {', '.join(signals)}" for name, signals in blind.items())
        return (
            data,
            f"guard: not seen for too long: {listed}; a fault there would go unnoticed; see sre breaker explain",
        )
    if data.get("paused"):
        return data, f"guard: paused by {data['paused'].get('owner')}: it sees and changes nothing; sre guard resume"
    return data, None


def _leftovers(paths: StatePaths) -> tuple[tuple[str, int], ...]:
    try:
        ledger = LedgerFile(paths.ledger).load()
    except StateError:
        return ()
    if ledger is None or ledger.boot_id != proc.boot_id():
        return ()
    return tuple(
        (entry.name, entry.identity.pid)
        for entry in ledger.entries
        if entry.identity is not None and proc.is_alive(entry.identity)
    )
