"""`sre demo`: a stack of its own, load, a hang, and what came of it. Nothing is left behind, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from sre.adapters.clock import SystemClock
from sre.adapters.engines import tiny_model
from sre.chaos.admission import Request
from sre.chaos.catalogue import find_fault, load_faults
from sre.chaos.report import STAMP_EFFECTIVE, STAMP_REQUESTED, Ending, Report, Stamp
from sre.control.chaos_run import run_fault
from sre.control.demo import Budgets, Check, Event, Mark, Observer, Received, Story, Stream, verdict
from sre.errors import Aborted, DependencyError, LeftChanged, ProcessError
from sre.servers.sinks import MailSink, SmsSink
from sre.signals.types import ProcessIdentity
from sre.wiring.chaos import chaos_places, chaos_policy, chaos_world
from sre.wiring.demo_load import StreamingLoad
from sre.wiring.demo_stack import READY_SECONDS, DemoEngine, DemoStack, write_configuration

HOLD_SECONDS = {"sim": 60.0, "vllm": 180.0}
"""The fault would last this long; the restart ends it earlier."""
STORY_SECONDS = {"sim": 70.0, "vllm": 240.0}
"""From the fault to the end of the story at the most."""
BUDGETS = {"sim": Budgets(), "vllm": Budgets(notified=15.0, restarted=180.0, closed=220.0)}
LOAD_INTERVAL_SECONDS = {"sim": 0.2, "vllm": 0.25}
LOAD_MAX_TOKENS = {"sim": 96, "vllm": 24}
WARM_UP_ANSWERS = 10
"""Whole answers before the fault, so that "before" is known to be good."""
WARM_UP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a person chose."""

    engine: DemoEngine
    keep: bool = False


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What was measured."""

    engine: str
    ready_seconds: float
    total_seconds: float
    marks: tuple[Mark, ...]
    checks: tuple[Check, ...]
    requests: int
    folder: str | None
    """Where everything was kept; None when it was removed."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def document(self) -> dict[str, Any]:
        """For ``--output json``; times in seconds after the fault took effect."""
        zero = next((m.at for m in self.marks if m.event is Event.EFFECTIVE), self.marks[0].at if self.marks else 0.0)
        return {
            "engine": self.engine,
            "passed": self.passed,
            "ready_seconds": round(self.ready_seconds, 3),
            "total_seconds": round(self.total_seconds, 3),
            "requests": self.requests,
            "folder": self.folder,
            "timeline": [
                {"event": m.event.value, "seconds": round(m.at - zero, 3), "source": m.source, "detail": m.detail}
                for m in self.marks
            ],
            "checks": [
                {"name": c.name, "measured": c.measured, "wanted": c.wanted, "passed": c.passed} for c in self.checks
            ],
        }


Say = Callable[[str], None]


class LiveWorld:
    """``sre.control.demo.DemoWorld`` on the running stack."""

    def __init__(self, stack: DemoStack, load: StreamingLoad, mail: MailSink, sms: SmsSink) -> None:
        self._stack, self._load, self._mail, self._sms = stack, load, mail, sms

    def streams(self) -> Sequence[Stream]:
        return self._load.streams()

    async def journal(self, after: int) -> Sequence[Mapping[str, Any]]:
        path = str(self._stack.paths.guard_socket)
        timeout = aiohttp.ClientTimeout(total=2.0)
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=path), timeout=timeout) as session,
                session.get("http://guard/journal", params={"after": str(after)}) as answer,
            ):
                entries = await answer.json()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return ()
        return entries if isinstance(entries, list) else ()

    async def engine(self, name: str) -> tuple[ProcessIdentity | None, float | None]:
        try:
            engines = await self._stack.supervisor.engines()
        except DependencyError:
            return None, None
        return next(((e.identity, e.ready_at) for e in engines if e.name == name), (None, None))

    def contexts(self, incident_id: str) -> tuple[float, tuple[str, ...]] | None:
        path = self._stack.paths.incidents / incident_id / "contexts.jsonl"
        try:
            lines = path.read_text("utf-8").splitlines()
        except OSError:
            return None
        return time.monotonic(), tuple(str(json.loads(line).get("request_id")) for line in lines if line)

    def mails(self) -> Sequence[Received]:
        return [Received(mail.received_monotonic, mail.subject) for mail in self._mail.mails()]

    def texts(self) -> Sequence[Received]:
        return [Received(sms.received_monotonic, sms.text) for sms in self._sms.messages()]


async def run_demo(
    options: Options, *, say: Say, on_mark: Callable[[Mark], None], stop: asyncio.Event, hurry: asyncio.Event
) -> DemoReport:
    """
    Run the demo; return what was measured. Afterwards no process and (unless kept) no folder of it is left.

    Args:
        stop: Set it to end the demo early.
        hurry: Set it to skip the polite part of ending.

    Raises:
        Aborted: ``stop`` was set.
        ProcessError, DependencyError: The stack could not be brought up.
    """
    scenario = asyncio.create_task(_scenario(options, say=say, on_mark=on_mark, stop=stop, hurry=hurry))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({scenario, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not scenario.done():
            say("stopping")
            scenario.cancel()
            await asyncio.wait({scenario})
        if scenario.cancelled():
            raise Aborted("sre demo: stopped; nothing of it is left")
        return scenario.result()
    finally:
        stopping.cancel()


async def _scenario(
    options: Options, *, say: Say, on_mark: Callable[[Mark], None], stop: asyncio.Event, hurry: asyncio.Event
) -> DemoReport:
    began = time.monotonic()
    async with _folder(options.keep, say) as folder, contextlib.AsyncExitStack() as onion:
        engine = options.engine
        if engine.kind == "vllm" and engine.model is None:
            say("making a tiny random model (nothing is downloaded)")
            engine = DemoEngine(engine.kind, engine.python, await _make_model(engine, folder / "model"))
        mail, sms = onion.enter_context(MailSink()), onion.enter_context(SmsSink())
        stack = DemoStack(write_configuration(folder, engine, mail.channel_url, sms.channel_url))
        onion.push_async_callback(stack.stop, hurry)
        say(f"starting sre up: gateway {stack.gateway_url}, engine {engine.name} ({engine.kind}), guard")
        stack.start()
        ready_seconds = await stack.wait_ready(READY_SECONDS[engine.kind] + 10.0)
        say(f"ready after {ready_seconds:.1f} s; mail goes to a real SMTP server, SMS to a real HTTP endpoint")
        load = StreamingLoad(
            stack.gateway_url,
            engine.served_name,
            interval_seconds=LOAD_INTERVAL_SECONDS[engine.kind],
            max_tokens=LOAD_MAX_TOKENS[engine.kind],
        )
        await onion.enter_async_context(load.running())
        world = LiveWorld(stack, load, mail, sms)
        await _warm_up(stack, world, engine, say)
        story = Story(on_mark)
        observer = Observer(world, story, engine.name, stack.settings.guard.half_open.ramp_percents)
        await observer.baseline()
        async with _fault(stack, engine, story, stop, hurry) as fault:
            told = asyncio.create_task(observer.follow(SystemClock(), time.monotonic() + STORY_SECONDS[engine.kind]))
            try:
                await asyncio.wait({told, fault}, return_when=asyncio.FIRST_COMPLETED)
                if not told.done() and fault.exception() is not None:
                    await fault  # could not be injected: say why instead of waiting for a story
                await told
            finally:
                told.cancel()
            if fault.done() and (early := _ended_early(fault.result())) is not None:
                say(early)
        say("done; taking everything down")
    return DemoReport(
        engine=engine.kind,
        ready_seconds=ready_seconds,
        total_seconds=time.monotonic() - began,
        marks=tuple(story.marks),
        checks=verdict(story, load.streams(), BUDGETS[engine.kind]),
        requests=len(load.streams()),
        folder=str(folder) if options.keep else None,
    )


@contextlib.asynccontextmanager
async def _folder(keep: bool, say: Say) -> AsyncIterator[Path]:
    """A folder with a short path (Unix sockets live in it)."""
    parent = Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix="sre-demo-", dir=parent if os.access(parent, os.W_OK) else None))
    try:
        yield folder
    finally:
        if keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def _make_model(engine: DemoEngine, folder: Path) -> Path:
    """Make the tiny model with the interpreter that has vLLM. Raises ProcessError."""
    assert engine.python is not None, "checked by the command"
    process = await asyncio.create_subprocess_exec(
        engine.python,
        tiny_model.__file__,
        str(folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = (output.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
        raise ProcessError(f"sre demo: {engine.python} cannot make a model: {last}; does it have vLLM?")
    return folder


async def _warm_up(stack: DemoStack, world: LiveWorld, engine: DemoEngine, say: Say) -> None:
    """Until enough whole answers came and the grace after a start is over. Raises ProcessError when none comes."""
    hang = stack.settings.guard.hang
    deadline = time.monotonic() + WARM_UP_SECONDS
    say("load: streamed completions through the gateway")
    while time.monotonic() < deadline:
        whole = sum(stream.complete for stream in world.streams())
        _, ready_at = await world.engine(engine.name)
        seasoned = ready_at is not None and time.monotonic() - ready_at > hang.start_grace_seconds + 1.0
        if whole >= WARM_UP_ANSWERS and seasoned:
            say(f"{whole} whole answers; now the GPU of {engine.name} hangs")
            return
        await asyncio.sleep(0.1)
    statuses = sorted({str(stream.status) for stream in world.streams()})
    raise ProcessError(f"sre demo: no {WARM_UP_ANSWERS} whole answers in {WARM_UP_SECONDS:g} s; seen: {statuses}")


@contextlib.asynccontextmanager
async def _fault(
    stack: DemoStack, engine: DemoEngine, story: Story, stop: asyncio.Event, hurry: asyncio.Event
) -> AsyncIterator[asyncio.Task[Report]]:
    """The fault, injected by the chaos runner as long as the block lasts; reverted when this ends."""
    abort = asyncio.Event()

    def on_stamp(stamp: Stamp) -> None:
        event = {STAMP_REQUESTED: Event.REQUESTED, STAMP_EFFECTIVE: Event.EFFECTIVE}.get(stamp.name)
        if event is not None:
            story.add(Mark(event, stamp.monotonic, f"chaos runner ({stamp.source})", stamp.detail))

    request = Request(
        fault=find_fault(load_faults(), "gpu-hang"),
        engine=engine.name,
        hold_seconds=HOLD_SECONDS[engine.kind],
        i_own=engine.name,
        last_engine=True,
    )
    task = asyncio.create_task(
        run_fault(
            request,
            chaos_world(stack.settings, stack.paths, os.environ),
            chaos_places(stack.paths),
            clock=SystemClock(),
            policy=chaos_policy(stack.settings),
            on_stamp=on_stamp,
            abort=abort,
            hurry=hurry,
        )
    )
    try:
        yield task
    finally:
        abort.set()
        await _ended(task)
        left = task.exception()
    if isinstance(left, LeftChanged):
        raise left


def _ended_early(report: Report) -> str | None:
    """A sentence when the fault ended by anything but the restart of the engine or its full time."""
    if report.ending in (Ending.TARGET_ABSENT, Ending.HELD):
        return None
    return f"the fault ended early ({report.problem or report.ending.value}): this run proves less than it should"


async def _ended(task: asyncio.Task[Report]) -> None:
    """Wait until ``task`` has ended by itself, which it does after the revert; a cancellation of ours waits as well."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
