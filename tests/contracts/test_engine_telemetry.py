"""One contract for reading an engine: the fake of the tests, and the simulated engine over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from sre.actions.ports import EngineTelemetry
from sre.adapters.clock import SystemClock
from sre.adapters.engine_telemetry import EngineEndpoint, VllmTelemetry
from sre.adapters.processes.proc import command_line, process_table
from sre.metrics.signals import ENGINE_SOURCES, KV_CACHE_USAGE_RATIO, STEPS_TOTAL
from sre.signals.types import Seen
from sre.testing.telemetry import FakeEngineTelemetry
from tests.conftest import WaitUntil

WaitUntilAsync = Callable[..., Awaitable[Any]]


class World(Protocol):
    """One engine, named ``e``, and something that reads it."""

    telemetry: EngineTelemetry

    def generate(self, tokens: int) -> None:
        """Let the engine answer a request of so many tokens."""
        ...

    def hang(self) -> None:
        """Let the engine take no step any more; its front end answers."""
        ...

    def end(self) -> None:
        """Let the engine be gone."""
        ...


class FakeWorld:
    def __init__(self) -> None:
        self._fake = FakeEngineTelemetry(SystemClock())
        self._steps = 0
        self._fake.set("e", **{source.signal: 0.0 for source in ENGINE_SOURCES})
        self.telemetry: EngineTelemetry = self._fake

    def generate(self, tokens: int) -> None:
        self._steps += tokens
        self._fake.set("e", **{STEPS_TOTAL: float(self._steps), "generation_tokens_total": float(self._steps)})

    def hang(self) -> None:
        pass

    def end(self) -> None:
        self._fake.down.add("e")


class SimWorld:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self._url = f"http://127.0.0.1:{port}"
        self._http = VllmTelemetry({"e": EngineEndpoint(self._url)}, SystemClock(), patience_seconds=5.0)
        self.telemetry: EngineTelemetry = self._http

    def generate(self, tokens: int) -> None:
        body = {"model": "m", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self._url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert response.status == 200
            response.read()

    def hang(self) -> None:
        for pid, stat in process_table().items():
            if stat.session == self._process.pid and "".join(command_line(pid)).startswith("VLLM::EngineCore"):
                os.kill(pid, signal.SIGSTOP)
                return
        pytest.fail("no engine core found")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def simulated(folder: Path, port: int, wait_until: WaitUntil) -> Iterator[SimWorld]:
    log = folder / "engine.log"
    argv = [sys.executable, "-m", "sre.servers.simulated_engine", "--port", str(port), "--model", "m"]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*argv, "--load-seconds", "0", "--time-scale", "100"], stdout=sink, stderr=sink, start_new_session=True
        )
    world = SimWorld(process, port)
    try:

        def ready() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as response:
                return bool(response.status == 200)

        wait_until(ready, 20.0, what="the simulated engine", logs=(log,), ignore=(OSError,))
        yield world
    finally:
        world.end()


@pytest.fixture(params=["fake", pytest.param("sim", marks=pytest.mark.integration)])
def world(
    request: pytest.FixtureRequest, short_dir: Path, free_port: Callable[[], int], wait_until: WaitUntil
) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld()
    else:
        with simulated(short_dir, free_port(), wait_until) as made:
            yield made


@pytest.fixture(autouse=True)
async def _closed(world: World) -> Any:
    yield
    if isinstance(world.telemetry, VllmTelemetry):
        await world.telemetry.close()


async def steps(world: World) -> float:
    reading = (await world.telemetry.sample("e")).steps_total
    assert reading.seen is Seen.OK
    assert reading.value is not None
    return reading.value


async def test_every_signal_is_seen_on_an_idle_engine(world: World) -> None:
    before = time.monotonic()
    sample = await world.telemetry.sample("e")
    assert set(sample.signals) == {source.signal for source in ENGINE_SOURCES} - {STEPS_TOTAL}
    for reading in (sample.steps_total, *sample.signals.values()):
        assert reading.seen is Seen.OK
        assert before <= reading.sampled_at <= time.monotonic()
    assert 0.0 <= (sample.signals[KV_CACHE_USAGE_RATIO].value or 0.0) <= 1.0
    assert not sample.asleep


async def test_steps_and_tokens_grow_with_work(world: World, wait_until_async: WaitUntilAsync) -> None:
    before = await steps(world)
    world.generate(8)

    async def grown() -> bool:
        sample = await world.telemetry.sample("e")
        tokens = sample.signals["generation_tokens_total"].value
        return (sample.steps_total.value or 0) >= before + 8 and (tokens or 0) >= 8

    await wait_until_async(grown)


async def test_a_hang_shows_as_fresh_samples_with_the_same_steps(world: World) -> None:
    world.generate(4)
    before = await steps(world)
    world.hang()
    after = await steps(world)
    assert await steps(world) == after
    assert after - before <= 4


async def test_an_engine_that_is_gone_is_unreachable(world: World) -> None:
    world.end()
    sample = await world.telemetry.sample("e")
    assert {reading.seen for reading in (sample.steps_total, *sample.signals.values())} == {Seen.UNREACHABLE}


async def test_without_dev_mode_nothing_is_paused(world: World) -> None:
    assert not await world.telemetry.is_paused("e", timeout_seconds=1.0)
