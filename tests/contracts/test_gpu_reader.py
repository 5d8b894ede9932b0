"""One contract for every GPU reader: the fake of the tests, the simulated GPU, and NVML behind the stand-in library."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from sre.actions.ports import GpuReader
from sre.adapters.clock import SystemClock
from sre.adapters.gpu.protocol import ChildOptions, SimOptions
from sre.adapters.gpu.reader import ChildGpuReader
from sre.signals.types import GpuSeen, Seen
from sre.testing.gpu import FakeGpuReader
from tests.gpu.support import GIB, NvmlStandin, write_engine, write_overlay

DEADLINE_SECONDS = 2.0
WaitUntilAsync = Callable[..., Awaitable[Any]]


class World(Protocol):
    """A machine with two GPUs and a reader of it."""

    reader: GpuReader
    source: str

    def fill(self, index: int, used_gib: int) -> None:
        """Let so much of the 80 GiB of GPU ``index`` be taken."""
        ...

    def hang(self) -> None: ...
    def recover(self) -> None: ...


class FakeWorld:
    source = "sim"

    def __init__(self, folder: Path) -> None:
        self._fake = FakeGpuReader(SystemClock(), 2)
        self.reader: GpuReader = self._fake

    def fill(self, index: int, used_gib: int) -> None:
        self._fake.set(index, memory_used_ratio=used_gib / 80)

    def hang(self) -> None:
        self._fake.hang()

    def recover(self) -> None:
        self._fake.recover()


def child_reader(options: ChildOptions, **more: Any) -> ChildGpuReader:
    return ChildGpuReader(
        options,
        SystemClock(),
        deadline_seconds=DEADLINE_SECONDS,
        patience_seconds=20.0,
        initial_backoff_seconds=0.1,
        max_backoff_seconds=0.2,
        **more,
    )


class SimWorld:
    source = "sim"

    def __init__(self, folder: Path) -> None:
        self._engines, self._overlay = folder / "sim-gpu", folder / "overlay.json"
        self._gpus: dict[str, dict[str, float]] = {}
        sim = SimOptions(str(self._engines), 2, 80 * GIB, 0.1, 38.0, 68.0)
        self.reader: GpuReader = child_reader(ChildOptions("sim", str(self._overlay), sim))

    def fill(self, index: int, used_gib: int) -> None:
        self._gpus[str(index)] = {"memory_used_bytes": used_gib * GIB, "utilization_ratio": 0.5}
        write_engine(self._engines, gpus=self._gpus)

    def hang(self) -> None:
        write_overlay(self._overlay, {"0": {"hang": True}})

    def recover(self) -> None:
        self._overlay.unlink()


class NvmlWorld:
    source = "nvml"

    def __init__(self, folder: Path) -> None:
        self._standin = NvmlStandin(folder / "lib")
        self._standin.set(count=2)
        self.reader: GpuReader = child_reader(ChildOptions("nvml"), environ=self._standin.environ)

    def fill(self, index: int, used_gib: int) -> None:
        self._standin.set({f"{index}.free": (80 - used_gib) * 1024})

    def hang(self) -> None:
        self._standin.set({"nvmlDeviceGetTemperature.hang": 1})

    def recover(self) -> None:
        self._standin.set({"nvmlDeviceGetTemperature.hang": 0})


@pytest.fixture(
    params=[
        FakeWorld,
        pytest.param(SimWorld, marks=pytest.mark.integration),
        pytest.param(NvmlWorld, marks=pytest.mark.integration),
    ]
)
async def world(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[World]:
    made: World = request.param(short_dir)
    try:
        yield made
    finally:
        await made.reader.close()


def all_seen(gpus: Any, seen: Seen) -> bool:
    readings = [(g.memory_used_ratio, g.temperature_celsius, g.utilization_ratio, g.power_watts) for g in gpus]
    return bool(readings) and {reading.seen for gpu in readings for reading in gpu} == {seen}


async def test_every_gpu_is_read_with_all_its_values_and_their_time(world: World) -> None:
    before = time.monotonic()
    gpus = await world.reader.read()
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert all_seen(gpus, Seen.OK)
    for gpu in gpus:
        assert gpu.source == world.source
        assert gpu.uuid
        assert not gpu.injected
        assert before <= gpu.temperature_celsius.sampled_at <= time.monotonic()
        assert gpu.temperature_celsius.value is not None
        assert 20.0 <= gpu.temperature_celsius.value <= 80.0


async def test_uuids_differ_and_stay(world: World) -> None:
    first, second = await world.reader.read()
    assert first.uuid != second.uuid
    assert [gpu.uuid for gpu in await world.reader.read()] == [first.uuid, second.uuid]


async def test_a_change_shows_in_the_next_read_on_its_gpu_only(world: World) -> None:
    world.fill(0, 20)
    world.fill(1, 20)
    before = await world.reader.read()
    world.fill(1, 60)
    after = await world.reader.read()
    assert after[0].memory_used_ratio.value == pytest.approx(before[0].memory_used_ratio.value)
    assert before[1].memory_used_ratio.value == pytest.approx(0.25, abs=0.02)
    assert after[1].memory_used_ratio.value == pytest.approx(0.75, abs=0.02)


async def test_a_hang_makes_every_reading_unreachable_within_the_deadline_and_then_at_once(
    world: World, wait_until_async: WaitUntilAsync
) -> None:
    await world.reader.read()
    world.hang()
    started = time.monotonic()
    gpus = await world.reader.read()
    assert time.monotonic() - started < DEADLINE_SECONDS + 1.5
    assert all_seen(gpus, Seen.UNREACHABLE)
    assert [gpu.index for gpu in gpus] == [0, 1]
    for _ in range(10):
        started = time.monotonic()
        assert all_seen(await world.reader.read(), Seen.UNREACHABLE)
        assert time.monotonic() - started < DEADLINE_SECONDS / 2
    world.recover()

    async def seen_again() -> list[GpuSeen] | None:
        again = await world.reader.read()
        return list(again) if all_seen(again, Seen.OK) else None

    again = await wait_until_async(seen_again)
    assert [gpu.uuid for gpu in again] == [gpu.uuid for gpu in gpus]


async def test_reads_at_once_are_answered_alike(world: World) -> None:
    answers = await asyncio.gather(*(world.reader.read() for _ in range(5)))
    assert all(all_seen(gpus, Seen.OK) for gpus in answers)


async def test_closing_twice_and_reading_after_it_raise_nothing(world: World) -> None:
    await world.reader.read()
    await world.reader.close()
    await world.reader.close()
    await world.reader.read()


async def test_closing_an_unused_reader_raises_nothing(world: World) -> None:
    await world.reader.close()


async def test_closing_in_the_middle_of_a_hang_is_quick(world: World) -> None:
    await world.reader.read()
    world.hang()
    reading = asyncio.create_task(world.reader.read())
    await asyncio.sleep(0)
    started = time.monotonic()
    await world.reader.close()
    assert time.monotonic() - started < DEADLINE_SECONDS * 0.75
    await reading
