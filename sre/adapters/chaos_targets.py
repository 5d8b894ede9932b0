"""The running stack as fault injection sees it: target processes, fault files, and independent evidence."""

from __future__ import annotations

import difflib
import json
import math
import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from sre.actions.ports import EngineStatus, Supervisor
from sre.adapters.processes.proc import boot_id, command_line, is_alive, members_of, process_table, read_stat
from sre.chaos.catalogue import Fault
from sre.chaos.plan import Plan, PlannedStep
from sre.chaos.ports import Evidence, Target
from sre.clock import Clock
from sre.errors import ConfigError, DependencyError
from sre.metrics import own, vllm
from sre.settings.stack import EngineSettings
from sre.signals.types import ProcessIdentity, ProcessState
from sre.watchdog.processes import Handle, Identity

CORE_TITLE = "VLLM::EngineCore"
LOOK_SECONDS = 0.1
FLAT_SECONDS = 0.5
"""Between the two reads of the step counter."""
HTTP_TIMEOUT_SECONDS = 3.0
PROBE_TIMEOUT_SECONDS = 5.0
GUARD_TICK_AGE_SECONDS = 15.0
"""A guard whose last turn is older than this is not there, whatever its port says."""
OVERLAY_METRICS = {"temperature_celsius": own.GPU_TEMPERATURE.name, "memory_used_ratio": own.GPU_MEMORY_USED.name}
"""Key in the overlay file → the guard's own metric that shows it."""
SAME_RATIO = 0.001


@dataclass(frozen=True, slots=True)
class Before:
    """What was seen before the fault."""

    steps: float | None
    running: float | None


class StackWorld:
    """
    ``sre.chaos.ports.World`` over supervisor, /proc, and HTTP.

    Args:
        engines: Settings by name.
        api_keys: Resolved bearer tokens by engine name.
        guard_metrics_url: The guard's own /metrics.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        engines: Mapping[str, EngineSettings],
        *,
        guard_metrics_url: str,
        clock: Clock,
        api_keys: Mapping[str, str] | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._engines = engines
        self._guard_metrics_url = guard_metrics_url
        self._clock = clock
        self._api_keys = api_keys or {}
        self._before = Before(None, None)

    async def target(self, engine: str) -> Target:
        statuses = {status.name: status for status in await self._supervisor.engines()}
        status = statuses.get(engine)
        if status is None:
            near = difflib.get_close_matches(engine, statuses, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(statuses) or '(none runs)'}"
            raise ConfigError([f"sre chaos: --engine: no engine {engine!r} runs; {hint}"])
        others = [s for s in statuses.values() if s.pool == status.pool and s.name != engine]
        settings = self._engines.get(engine)
        return Target(
            engine=engine,
            kind=status.kind,
            pool=status.pool,
            host=status.host,
            port=status.port,
            ready=status.process is ProcessState.READY,
            identity=status.identity,
            cores=() if status.identity is None else engine_cores(status.identity),
            gpus=() if settings is None else settings.gpus,
            acts_faults=status.kind == "sim" or (settings is not None and settings.fault_hook),
            others_ready=sum(s.process is ProcessState.READY for s in others),
            others=len(others),
        )

    async def guard_answers(self) -> bool:
        text = await self._get(self._guard_metrics_url)
        if text is None:
            return False
        ticks = samples(text, own.GUARD_LAST_TICK_TIMESTAMP.name)
        return bool(ticks) and self._clock.wall() - ticks[0][1] < GUARD_TICK_AGE_SECONDS

    async def gpus_shown(self) -> Collection[int]:
        text = await self._get(self._guard_metrics_url)
        if text is None:
            return ()
        told = (labels.get(own.GPU, "") for name in OVERLAY_METRICS.values() for labels, _ in samples(text, name))
        return {int(gpu) for gpu in told if gpu.isdecimal()}

    async def obstacle(self, fault: Fault, target: Target, plan: Plan) -> str | None:
        for step in plan.steps:
            if step.target is not None:
                stat = read_stat(step.target.pid)
                if stat is not None and stat.state in "Tt":
                    return f"{step.name}: is stopped already, and not by us; continue it first (kill -CONT {stat.pid})"
            elif (holder := self._foreign(step)) is not None:
                return holder
        if fault.deed == "engine_faults":
            status, said = await self._probe(target)
            if status is None or status >= 500:
                return f"engine {target.engine}: fails without a fault already: {said}; see sre status"
        if fault.deed == "stop_core":
            self._before = await self._look_at_engine(target)
        return None

    def inject(self, step: PlannedStep, expires_monotonic: float) -> None:
        match step.verb:
            case "signal_stop" | "signal_kill":
                assert step.target is not None, "signals have a target"
                _signal(step.target, signal.SIGSTOP if step.verb == "signal_stop" else signal.SIGKILL)
            case "write_tagged_file":
                path, temporary = Path(step.args["path"]), Path(step.revert_args["temporary"])
                content = {**step.args["content"], "boot_id": boot_id(), "expires_monotonic": expires_monotonic}
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump(content, file)
                temporary.rename(path)
            case verb:
                raise ValueError(f"no inject verb {verb!r}")

    async def effect(self, fault: Fault, target: Target, plan: Plan, timeout_seconds: float) -> Evidence:
        give_up = self._clock.monotonic() + timeout_seconds
        match fault.deed:
            case "stop_core":
                return await self._stopped(target, plan, give_up)
            case "kill_core":
                return await self._gone(plan, give_up)
            case "gpu_overlay":
                return await self._guard_shows(fault, plan, give_up, injected=True)
            case "engine_faults":
                return await self._probe_until(target, give_up, failing=True)

    async def successor(self, target: Target, timeout_seconds: float) -> Evidence:
        give_up = self._clock.monotonic() + timeout_seconds
        while True:
            status: EngineStatus | None = None
            try:
                statuses = await self._supervisor.engines()
                status = next((s for s in statuses if s.name == target.engine), None)
                said = _not_yet(status, target)
            except DependencyError as error:
                said = str(error)
            if said is None and status is not None and status.identity is not None:
                found = await self._probe_until(replace(target, port=status.port), give_up, failing=False)
                return Evidence(
                    found.seen, found.at, found.source, f"successor {_name(status.identity)}: {found.detail}"
                )
            if self._clock.monotonic() >= give_up:
                return Evidence(False, self._clock.monotonic(), "supervisor", said or "no process")
            await self._clock.sleep(LOOK_SECONDS)

    async def steady(self, fault: Fault, target: Target, plan: Plan, timeout_seconds: float) -> Evidence:
        give_up = self._clock.monotonic() + timeout_seconds
        if fault.deed == "gpu_overlay":
            return await self._guard_shows(fault, plan, give_up, injected=False)
        return await self._probe_until(target, give_up, failing=False)

    def alive(self, identity: ProcessIdentity) -> bool:
        return is_alive(identity)

    async def _stopped(self, target: Target, plan: Plan, give_up: float) -> Evidence:
        source = "/proc and the engine's /metrics"
        stopped_at: float | None = None
        first: Before | None = None
        while True:
            now = self._clock.monotonic()
            states = [_state(step.target) for step in plan.steps if step.target is not None]
            if all(state == "T" for state in states):
                stopped_at = stopped_at or now
                seen = await self._look_at_engine(target)
                if seen.steps is None:
                    return Evidence(True, stopped_at, "/proc", "state T; the engine's /metrics does not answer")
                if first is not None and seen.steps == first.steps:
                    return Evidence(True, stopped_at, source, self._describe_flat(seen.steps))
                first = seen
                said = f"state T, but the step counter still moves ({seen.steps:g})"
                wait_seconds = FLAT_SECONDS
            elif all(state is None for state in states):
                # Someone ended the hung process before we looked twice: the fault was there, and bit.
                return Evidence(stopped_at is not None, stopped_at or now, "/proc", "the stopped core is gone already")
            else:
                stopped_at, first, said, wait_seconds = None, None, f"process states {states}", LOOK_SECONDS
            if self._clock.monotonic() >= give_up:
                return Evidence(False, now, source, said)
            await self._clock.sleep(wait_seconds)

    def _describe_flat(self, steps: float) -> str:
        before = self._before
        traffic = bool(before.running) or (before.steps is not None and steps > before.steps)
        idle = "" if traffic else "; no traffic, so the flat counter alone would prove nothing"
        return f"state T, step counter flat at {steps:g}{idle}"

    async def _gone(self, plan: Plan, give_up: float) -> Evidence:
        while True:
            left = [step.name for step in plan.steps if step.target is not None and is_alive(step.target)]
            now = self._clock.monotonic()
            if not left or now >= give_up:
                return Evidence(not left, now, "/proc", f"still alive: {', '.join(left)}" if left else "old core gone")
            await self._clock.sleep(LOOK_SECONDS)

    async def _guard_shows(self, fault: Fault, plan: Plan, give_up: float, *, injected: bool) -> Evidence:
        assert fault.value is not None, "overlay faults have a value"
        assert plan.value is not None, "overlay faults have a value"
        name = OVERLAY_METRICS[fault.value.key]
        while True:
            text = await self._get(self._guard_metrics_url)
            now = self._clock.monotonic()
            said, seen = "the guard's /metrics does not answer", False
            if text is not None:
                shown = {labels.get(own.GPU): value for labels, value in samples(text, name)}
                values = [shown.get(str(gpu)) for gpu in plan.gpus]
                said = ", ".join(
                    f'{name}{{gpu="{gpu}"}} {"absent" if value is None else f"{value:g}"}'
                    for gpu, value in zip(plan.gpus, values, strict=True)
                )
                same = [v is not None and math.isclose(v, plan.value, rel_tol=SAME_RATIO) for v in values]
                seen = all(same) if injected else None not in values and not any(same)
            if seen or now >= give_up:
                return Evidence(seen, now, "guard /metrics", said)
            await self._clock.sleep(LOOK_SECONDS)

    async def _probe_until(self, target: Target, give_up: float, *, failing: bool) -> Evidence:
        """Send one-token completions to the engine's own port until one is answered 5xx (failing), or 200."""
        probes = 0
        while True:
            status, said = await self._probe(target)
            probes += 1
            now = self._clock.monotonic()
            seen = status is not None and (status >= 500 if failing else status == 200)
            if seen or now >= give_up:
                return Evidence(seen, now, "probe of the engine's port", f"{said} (probe {probes})")
            await self._clock.sleep(LOOK_SECONDS)

    async def _probe(self, target: Target) -> tuple[int | None, str]:
        url = f"http://{target.host}:{target.port}/v1/completions"
        body = {"model": target.pool, "prompt": "ping", "max_tokens": 1}
        key = self._api_keys.get(target.engine)
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_TIMEOUT_SECONDS)) as session,
                session.post(url, json=body, headers={"Authorization": f"Bearer {key}"} if key else {}) as answer,
            ):
                await answer.read()
                return answer.status, f"HTTP {answer.status}"
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return None, f"no answer ({type(error).__name__})"

    async def _look_at_engine(self, target: Target) -> Before:
        text = await self._get(f"http://{target.host}:{target.port}/metrics")
        if text is None:
            return Before(None, None)
        steps, running = samples(text, vllm.ITERATION_TOKENS.sample), samples(text, vllm.REQUESTS_RUNNING.sample)
        return Before(
            sum(value for _, value in steps) if steps else None, sum(value for _, value in running) if running else None
        )

    async def _get(self, url: str) -> str | None:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HTTP_TIMEOUT_SECONDS)) as session,
                session.get(url) as answer,
            ):
                return await answer.text() if answer.status == 200 else None
        except (TimeoutError, aiohttp.ClientError, OSError, UnicodeError):
            return None

    def _foreign(self, step: PlannedStep) -> str | None:
        """A sentence when another's fault file is in force where ours would go."""
        path = Path(step.args["path"])
        try:
            data: Any = json.loads(path.read_bytes())
            in_force = data["boot_id"] == boot_id() and data["expires_monotonic"] > self._clock.monotonic()
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{path}: {error.strerror or error}; make it readable, or remove it"
        except (ValueError, KeyError, TypeError):
            return None  # readers ignore it, so it is no fault; ours replaces it
        if not in_force:
            return None
        return f"{path}: holds a fault of run {data.get('run_id')!r}, not ours; remove the file if nobody needs it"


def engine_cores(server: ProcessIdentity) -> tuple[ProcessIdentity, ...]:
    """The engine-core processes under an API server, by pid; data-parallel engines have several."""
    table = process_table()
    if server.pid not in table or table[server.pid].identity != server:
        return ()
    family = members_of(server, table)
    return tuple(s.identity for s in family if (command_line(s.pid) or ("",))[0].startswith(CORE_TITLE))


def samples(text: str, name: str) -> list[tuple[Mapping[str, str], float]]:
    """Labels and values of one metric in an exposition; lines that cannot be read are left out."""
    found: list[tuple[Mapping[str, str], float]] = []
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")):
            try:
                families = list(text_string_to_metric_families(line + "\n"))
            except ValueError:
                continue  # cut off in the middle
            found += [(s.labels, float(s.value)) for family in families for s in family.samples]
    return found


def _state(identity: ProcessIdentity | None) -> str | None:
    stat = None if identity is None else read_stat(identity.pid)
    return None if stat is None or stat.gone or stat.identity != identity else stat.state


def _signal(target: ProcessIdentity, number: signal.Signals) -> None:
    handle = Handle.open(Identity(target.pid, target.start_ticks))
    if handle is None:
        raise ProcessLookupError(f"process {target.pid} is gone")
    try:
        if not handle.send(number):
            raise ProcessLookupError(f"process {target.pid} is gone")
    finally:
        handle.close()


def _not_yet(status: EngineStatus | None, target: Target) -> str | None:
    """Why the successor does not serve yet; None when it does."""
    if status is None:
        return "the supervisor does not know the engine any more"
    if status.identity is None or status.identity == target.identity:
        return f"no new process yet ({status.process.value})"
    return None if status.process is ProcessState.READY else f"{_name(status.identity)}: {status.process.value}"


def _name(identity: ProcessIdentity) -> str:
    return f"pid {identity.pid} (start ticks {identity.start_ticks})"
