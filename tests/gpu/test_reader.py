"""A reader whose child hangs, dies, is stopped, or cannot be killed; and what is left when the reader itself dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.clock import SystemClock
from sre.adapters.gpu.child_process import Killed
from sre.adapters.gpu.protocol import ChildOptions, SimOptions, decode_gpus, decode_options, encode_gpus, encode_options
from sre.adapters.gpu.reader import ChildGpuReader
from sre.adapters.processes.proc import identity_of, process_table
from sre.signals.types import NEVER, GpuSeen, Reading, Seen
from tests.conftest import WaitUntil
from tests.gpu.support import GIB, NvmlStandin, write_overlay

WaitUntilAsync = Callable[..., Awaitable[Any]]
SIM = SimOptions("/nowhere", 1, 80 * GIB, 0.6, 38.0, 68.0)


def make(options: ChildOptions, **more: Any) -> ChildGpuReader:
    defaults = {"deadline_seconds": 1.0, "patience_seconds": 20.0, "initial_backoff_seconds": 0.05}
    return ChildGpuReader(options, SystemClock(), **(defaults | more))


@pytest.fixture
async def readers() -> AsyncIterator[list[ChildGpuReader]]:
    made: list[ChildGpuReader] = []
    yield made
    for reader in made:
        await reader.close()


def seen(gpus: Any) -> set[Seen]:
    return {gpu.temperature_celsius.seen for gpu in gpus}


def child_pid(reader: ChildGpuReader) -> int:
    assert reader._child is not None
    return reader._child.process.pid


def children() -> list[int]:
    """Reader children of this process, zombies left out."""
    return [pid for pid, stat in process_table().items() if stat.parent == os.getpid() and stat.session == pid]


def test_options_and_gpus_survive_the_pipe() -> None:
    options = ChildOptions("auto", "/run/overlay.json", SIM)
    assert decode_options(encode_options(options)) == options
    bare = ChildOptions("nvml")
    assert decode_options(encode_options(bare)) == bare
    gpu = GpuSeen(
        3, "GPU-x", "nvml", Reading.of(0.5, 1.5), Reading.missing(2.5, Seen.INVALID), Reading.missing(2.5),
        Reading.of(200.0, 1.5), True, ((1, 2),),
    )  # fmt: skip
    assert decode_gpus(encode_gpus(4, [gpu]).encode(), 4) == (gpu,)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'{"read": 3, "gpus": []}', b'{"read": 4}', b'{"read": 4, "gpus": [{}]}', b"null"]
)
def test_any_other_line_is_no_answer(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode_gpus(line, 4)


@pytest.mark.integration
async def test_a_dead_child_is_replaced(readers: list[ChildGpuReader], wait_until_async: WaitUntilAsync) -> None:
    readers.append(reader := make(ChildOptions("sim", None, SIM)))
    await reader.read()
    first = child_pid(reader)
    os.kill(first, signal.SIGKILL)
    assert seen(await reader.read()) == {Seen.UNREACHABLE}

    async def back() -> bool:
        return seen(await reader.read()) == {Seen.OK}

    await wait_until_async(back)
    assert child_pid(reader) != first
    assert reader.replaced == 1


@pytest.mark.integration
async def test_a_stopped_child_is_replaced(readers: list[ChildGpuReader], wait_until_async: WaitUntilAsync) -> None:
    readers.append(reader := make(ChildOptions("sim", None, SIM)))
    await reader.read()
    stopped = identity_of(child_pid(reader))
    assert stopped is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    assert seen(await reader.read()) == {Seen.UNREACHABLE}

    async def back() -> bool:
        return seen(await reader.read()) == {Seen.OK}

    await wait_until_async(back)
    await wait_until_async(lambda: reader.stuck == 0)
    assert identity_of(stopped.pid) != stopped


@pytest.mark.integration
async def test_the_loop_is_never_held_up_by_a_hang(
    readers: list[ChildGpuReader], short_dir: Path, wait_until_async: WaitUntilAsync
) -> None:
    standin = NvmlStandin(short_dir / "lib")
    readers.append(reader := make(ChildOptions("nvml"), environ=standin.environ))
    await reader.read()
    standin.set({"nvmlDeviceGetPowerUsage.hang": 1})
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - before)

    watching = asyncio.create_task(watch())

    async def given_up_twice() -> bool:
        await reader.read()
        return reader.replaced >= 2

    await wait_until_async(given_up_twice)
    watching.cancel()
    assert longest < 0.8, "a turn of the loop took as long as a hung call"
    assert reader.problem == "a GPU call did not return within 1 s; look at dmesg for Xid errors"


@pytest.mark.integration
async def test_opening_the_library_may_hang_too(readers: list[ChildGpuReader], short_dir: Path) -> None:
    standin = NvmlStandin(short_dir / "lib")
    standin.set({"nvmlInitWithFlags.hang": 1})
    readers.append(
        reader := make(
            ChildOptions("auto", None, SIM), environ=standin.environ, start_deadline_seconds=0.5, expected_gpus=(0, 1)
        )
    )
    gpus = await reader.read()
    assert [(gpu.index, gpu.source, gpu.temperature_celsius.seen) for gpu in gpus] == [
        (0, "nvml", Seen.UNREACHABLE),
        (1, "nvml", Seen.UNREACHABLE),
    ]
    assert reader.problem is not None
    assert "opening the GPU library did not return" in reader.problem


@pytest.mark.integration
async def test_a_read_past_its_patience_shows_the_values_before_with_their_old_date(
    readers: list[ChildGpuReader], short_dir: Path
) -> None:
    standin = NvmlStandin(short_dir / "lib")
    readers.append(reader := make(ChildOptions("nvml"), environ=standin.environ, deadline_seconds=30.0))
    good = await reader.read()
    standin.set({"nvmlDeviceGetTemperature.hang": 1})
    reader._patience_seconds = 1.5
    started = time.monotonic()
    assert [await reader.read() for _ in range(5)] == [good] * 5
    assert time.monotonic() - started < 6, "the patience counts once per read of the child, not per call"


@pytest.mark.integration
async def test_before_the_first_answer_nothing_was_ever_seen(readers: list[ChildGpuReader], short_dir: Path) -> None:
    standin = NvmlStandin(short_dir / "lib")
    standin.set({"nvmlInitWithFlags.hang": 1})
    readers.append(
        reader := make(ChildOptions("nvml"), environ=standin.environ, patience_seconds=0.01, expected_gpus=(0,))
    )
    (gpu,) = await reader.read()
    assert gpu.temperature_celsius is NEVER


@pytest.mark.integration
async def test_no_child_is_tried_before_the_back_off_is_over(
    readers: list[ChildGpuReader], short_dir: Path, wait_until_async: WaitUntilAsync
) -> None:
    standin = NvmlStandin(short_dir / "lib")
    standin.set({"nvmlInitWithFlags.error": 999})
    readers.append(reader := make(ChildOptions("nvml"), environ=standin.environ, initial_backoff_seconds=60.0))
    await reader.read()
    await wait_until_async(lambda: children() == [])
    for _ in range(20):
        assert seen(await reader.read()) <= {Seen.UNREACHABLE}
    assert reader.replaced == 1
    assert children() == []


class Unkillable:
    """A killed process that the driver does not let go."""

    def __init__(self) -> None:
        self.gone = False

    def poll(self) -> int | None:
        return -9 if self.gone else None


def test_killed_processes_are_collected_when_they_go_and_never_waited_for() -> None:
    killed, held, other = Killed(), Unkillable(), Unkillable()
    killed.add(held)
    killed.add(other)
    assert killed.reap() == 2
    held.gone = True
    assert killed.reap() == 1


@pytest.mark.integration
async def test_no_further_child_is_started_while_too_many_cannot_be_killed(
    readers: list[ChildGpuReader], wait_until_async: WaitUntilAsync
) -> None:
    killed, held = Killed(), [Unkillable() for _ in range(3)]
    for process in held:
        killed.add(process)
    readers.append(reader := make(ChildOptions("sim", None, SIM), killed=killed, expected_gpus=(0,)))
    assert seen(await reader.read()) != {Seen.OK}
    assert reader.stuck == 3
    assert reader.problem is not None
    assert "state D" in reader.problem
    assert children() == []
    for process in held:
        process.gone = True

    async def back() -> bool:
        return seen(await reader.read()) == {Seen.OK}

    await wait_until_async(back)


@pytest.mark.integration
async def test_closing_leaves_no_process(short_dir: Path) -> None:
    standin = NvmlStandin(short_dir / "lib")
    reader = make(ChildOptions("nvml"), environ=standin.environ)
    await reader.read()
    assert len(children()) == 1
    standin.set({"nvmlDeviceGetTemperature.hang": 1})
    await reader.read()
    await reader.close()
    assert children() == []


@pytest.mark.integration
async def test_an_overlay_hang_ends_with_its_expiry(
    readers: list[ChildGpuReader], short_dir: Path, wait_until_async: WaitUntilAsync
) -> None:
    overlay = short_dir / "overlay.json"
    readers.append(reader := make(ChildOptions("sim", str(overlay), SIM)))
    await reader.read()
    write_overlay(overlay, {"0": {"hang": True}}, seconds=2.5)
    assert seen(await reader.read()) == {Seen.UNREACHABLE}

    async def back() -> bool:
        return seen(await reader.read()) == {Seen.OK}

    await wait_until_async(back)
    assert overlay.exists()


READ_UNTIL_KILLED = """
import asyncio, sys
from sre.adapters.clock import SystemClock
from sre.adapters.gpu.protocol import ChildOptions
from sre.adapters.gpu.reader import ChildGpuReader

async def main():
    reader = ChildGpuReader(ChildOptions("nvml"), SystemClock(), deadline_seconds=60, patience_seconds=10)
    await reader.read()
    print(reader._child.process.pid, flush=True)
    sys.stdin.readline()
    await reader.read()

asyncio.run(main())
"""


@pytest.mark.integration
def test_the_child_dies_with_a_killed_reader_even_inside_a_call_that_never_returns(
    short_dir: Path, wait_until: WaitUntil
) -> None:
    standin = NvmlStandin(short_dir / "lib")
    with subprocess.Popen(
        [sys.executable, "-c", READ_UNTIL_KILLED],
        env=dict(standin.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        try:
            child = identity_of(int(reader.stdout.readline()))
            assert child is not None
            standin.set({"nvmlDeviceGetTemperature.hang": 1})
            reader.stdin.write("go\n")
            reader.stdin.flush()
            waiting = Path(f"/proc/{child.pid}/wchan")
            wait_until(
                lambda: "pause" in waiting.read_text() or waiting.read_text() == "0", what="child inside the call"
            )
        finally:
            reader.kill()
    wait_until(lambda: identity_of(child.pid) != child, 5.0, what="the child to be gone")
