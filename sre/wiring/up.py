"""``sre up`` and ``sre down`` without their command line: one function each, with a way to tell what happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from sre.adapters.processes.files import LedgerFile, known_ports, resolve_ports
from sre.adapters.processes.lock import StackLock
from sre.adapters.processes.pidfd import PidFd
from sre.adapters.supervisor_client import SupervisorClient
from sre.control.chaos_status import recover_at_start
from sre.control.supervision import Say
from sre.control.supervisor import Supervisor
from sre.errors import ConfigError, DependencyError, SreError, StateError, Unreachable
from sre.servers.guard_api import serve_unix
from sre.servers.supervisor_api import supervisor_app
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.settings.stack import LogSettings, RestartSettings, StackSettings
from sre.stack.adoption import plan_adoption
from sre.stack.commands import with_ports
from sre.stack.ledger import Ledger
from sre.stack.status import StackReport
from sre.wiring.invocation import Invocation, Ready, gateway_url, metrics_url
from sre.wiring.preflight import lost_ports, missing_secrets, preflight
from sre.wiring.seen import moved_under, supervisor_seen
from sre.wiring.stack import (
    make_host,
    our_pids,
    prepare_gateway,
    process_specs,
    specs_of_leftovers,
    supervisor_for,
)

UNCHOSEN_PORT = 0
"""Stands in a dry run for a port that the start will choose."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CannotStart(SreError):
    """What stands in the way of a start: ``problems``, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


@contextlib.contextmanager
def stack_lock(paths: StatePaths) -> Iterator[None]:
    """
    Hold the stack's lock.

    Raises:
        Refused: Another supervisor holds it.
    """
    lock = StackLock(paths.lock)
    if not lock.acquire():
        lock.refuse(paths.root)
    try:
        yield
    finally:
        lock.release()


def _load_ledger(paths: StatePaths) -> Ledger | None:
    try:
        return LedgerFile(paths.ledger).load()
    except StateError:
        return None  # said by the supervisor when it reads it


def check(root: Root, paths: StatePaths, call: Invocation) -> None:
    """
    See whether a start can succeed; nothing is changed but the state folder, which is made. The caller holds the lock.

    Raises:
        CannotStart: With everything that stands in the way.
    """
    problems: list[str] = []
    ours: frozenset[int] = frozenset()
    try:
        paths.create()
        host = make_host(paths, os.environ, Path.cwd())
        if (other := supervisor_seen(host)) is not None:
            raise CannotStart([moved_under(other, paths.root)])
        ours = our_pids(host, _load_ledger(paths))
    except ConfigError as error:
        problems += error.problems
    problems += preflight(root, ours, os.environ, with_guard=call.with_guard, late_secrets=call.late_secrets)
    if problems:
        raise CannotStart(problems)


def dry_run_problems(root: Root, paths: StatePaths, call: Invocation) -> list[str]:
    """As ``check``, as a list, without making the state folder and without its lock."""
    host = make_host(paths, os.environ, Path.cwd())
    if not paths.run.is_dir() and (other := supervisor_seen(host)) is not None:
        return [moved_under(other, paths.root)]
    ours = our_pids(host, _load_ledger(paths)) if paths.run.is_dir() else frozenset()
    return preflight(root, ours, os.environ, with_guard=call.with_guard, late_secrets=call.late_secrets)


def plan(root: Root, paths: StatePaths, call: Invocation) -> list[dict[str, object]]:
    """
    Return what ``up`` would do, process by process; changes nothing.

    Raises:
        BinaryNotFound: There is no Envoy.
    """
    stack = known_ports(root.stack, paths.ports)
    if stack is None:
        stack = with_ports(root.stack, {engine.name: UNCHOSEN_PORT for engine in root.stack.engines})
    specs = process_specs(root, stack, paths, call)
    host = make_host(paths, os.environ, Path.cwd())
    ledger = _load_ledger(paths)
    entries = ledger.entries if ledger is not None and ledger.boot_id == host.boot_id() else ()
    alive = {entry.identity for entry in entries if entry.identity is not None and host.alive(entry.identity)}
    runnable = {spec.name: spec for spec in specs if spec.command is not None}
    adoption = plan_adoption(runnable, entries, host.marked(), alive)
    kept = {step.name: step for step in adoption.adopt}
    rows: list[dict[str, object]] = [
        {"action": "end", "name": step.name, "pid": step.leader.pid, "why": step.why} for step in adoption.end
    ]
    for spec in specs:
        if spec.command is None:
            rows.append({"action": "watch", "name": spec.name, "address": f"{spec.host}:{spec.port}"})
        elif spec.name in kept:
            rows.append({"action": "keep", "name": spec.name, "pid": kept[spec.name].identity.pid})
        else:
            rows.append({"action": "start", "name": spec.name, "argv": list(spec.command.argv)})
    return rows


async def up(root: Root, paths: StatePaths, call: Invocation, say: Say, on_ready: Callable[[Ready], None]) -> bool:
    """
    Run the stack until it is told to stop, by SIGINT, SIGTERM or ``POST /shutdown``; return whether it ever was ready.

    Raises:
        CannotStart: With everything that stands in the way; nothing was started.
        Refused: It runs already.
        LeftChanged: At the end a process could not be ended.
    """
    try:
        paths.create()
    except ConfigError:
        check(root, paths, call)  # says this and everything else
        raise
    with stack_lock(paths):
        check(root, paths, call)
        for sentence in missing_secrets(root, os.environ) if call.with_guard else ():
            say("guard", f"pages nobody by this yet: {sentence}")  # only --late-secrets comes so far
        host = make_host(paths, os.environ, Path.cwd())
        ours = our_pids(host, _load_ledger(paths))
        stack = resolve_ports(root.stack, paths.ports, lost_ports(root.stack, paths, ours))
        for sentence in prepare_gateway(paths, stack):
            say("gateway", sentence)
        for sentence in recover_at_start(paths.chaos):
            say("chaos", sentence)
        specs = process_specs(root, stack, paths, call)
        async with supervisor_for(
            specs,
            paths,
            host,
            say,
            name=stack.name,
            gateway_url=gateway_url(stack),
            metrics_url=metrics_url(root, with_guard=call.with_guard),
            pools=list(stack.pools),
            policy=stack.restart,
            logs=stack.logs,
        ) as supervisor:
            ready = Ready(gateway_url(stack), metrics_url(root, with_guard=call.with_guard), paths.root)
            return await _serve(supervisor, paths, say, lambda: on_ready(ready))


async def _serve(supervisor: Supervisor, paths: StatePaths, say: Say, on_ready: Callable[[], None]) -> bool:
    with _stop_signals(supervisor, say):
        async with serve_unix(supervisor_app(supervisor), paths.supervisor_socket):
            running = asyncio.create_task(supervisor.run())
            waiting = asyncio.create_task(supervisor.wait_ready())
            try:
                await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
                was_ready = waiting.done() and waiting.result()
                if was_ready:
                    on_ready()
                await running
            finally:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                if not running.done():
                    supervisor.request_stop()
                    await running
    return was_ready


@contextlib.contextmanager
def _stop_signals(supervisor: Supervisor, say: Say) -> Iterator[None]:
    """The first SIGINT or SIGTERM stops, the second hurries. Losing the terminal stops too."""
    loop = asyncio.get_running_loop()
    asked = 0

    def stop() -> None:
        nonlocal asked
        asked += 1
        text = "stopping; once more to hurry" if asked == 1 else "hurrying: running requests are cut"
        say("supervisor", text)
        supervisor.request_stop()

    numbers = STOP_SIGNALS if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*STOP_SIGNALS, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


# Without its supervisor, and from outside.


async def down(
    root: Root | None, paths: StatePaths, say: Say, *, now: bool, drain_timeout_seconds: float | None
) -> bool:
    """
    Stop the stack, whether its supervisor lives or not; return whether anything ran.

    Args:
        root: Settings if they could be read: only time limits are taken from them.
        now: No drain, short waits.

    Raises:
        Unreachable: A supervisor holds the stack but does not answer.
        LeftChanged: A process could not be ended.
        StateError: The folder was moved away under a supervisor that lives.
    """
    if not paths.run.is_dir():
        host = make_host(paths, os.environ, Path.cwd())
        if not host.marked():
            return False
        if (other := supervisor_seen(host)) is not None:
            raise StateError(moved_under(other, paths.root))
        paths.create()
    client = SupervisorClient(paths.supervisor_socket)
    try:
        report = await client.status()
        await client.shutdown(drain=not now, drain_timeout_seconds=drain_timeout_seconds)
    except Unreachable as error:
        return await _down_without_supervisor(root, paths, say, error, now, drain_timeout_seconds)
    await _follow(client, report, say, now=now)
    # What a supervisor that was killed meanwhile left:
    await _down_without_supervisor(root, paths, say, None, now, drain_timeout_seconds)
    return True


async def _follow(client: SupervisorClient, report: StackReport, say: Say, *, now: bool) -> None:
    """Pass on what the supervisor says until it is gone. SIGINT hurries it."""
    loop = asyncio.get_running_loop()
    hurry = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, hurry.set)
    held = PidFd.open(report.supervisor)
    last = report.message
    try:
        while held is not None and not held.ended:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(held.wait(), 0.2)
            with contextlib.suppress(DependencyError):
                if hurry.is_set():
                    hurry.clear()
                    await client.shutdown(drain=False)
                message = (await client.status()).message
                if message != last:
                    last = message
                    name, _, text = message.partition(": ")
                    say(name, text)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if held is not None:
            held.close()


async def _down_without_supervisor(
    root: Root | None,
    paths: StatePaths,
    say: Say,
    error: Unreachable | None,
    now: bool,
    drain_timeout_seconds: float | None,
) -> bool:
    lock = StackLock(paths.lock)
    if not lock.acquire():
        if error is None:
            return True
        raise Unreachable(
            error.system,
            f"pid {lock.holder()} holds this stack but does not answer; wait a moment, or end it with"
            f" kill -9 {lock.holder()} and call sre down again",
        )
    try:
        host = make_host(paths, os.environ, Path.cwd())
        if (other := supervisor_seen(host)) is not None:
            raise StateError(moved_under(other, paths.root))
        specs = specs_of_leftovers(host, _load_ledger(paths), root)
        if not specs:
            return False
        stack = StackSettings() if root is None else root.stack
        async with supervisor_for(
            specs,
            paths,
            host,
            say,
            name=stack.name,
            gateway_url=gateway_url(stack),
            metrics_url=None,
            pools=list(stack.pools),
            policy=RestartSettings(),
            logs=LogSettings(),
        ) as supervisor:
            with _stop_signals(supervisor, say):
                if now or drain_timeout_seconds is not None:
                    supervisor.request_stop(drain=not now, drain_timeout_seconds=drain_timeout_seconds)
                return await supervisor.stop_all() > 0
    finally:
        lock.release()
