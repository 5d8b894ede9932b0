"""Host counters at a scrape: a reader that hangs holds neither loop nor answer, and what is old is not shown as new."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from sre.control.blocking import BlockingCalls
from sre.servers.exporter import Metrics, serve_metrics
from sre.signals.host import HostCounters
from sre.testing.clock import ManualClock
from sre.wiring.guard_host import AGAIN_SECONDS, FRESH_SECONDS, HostWatch
from tests.exporter.scene import HOST

Until = Callable[..., Awaitable[Any]]
SECONDS = 0.05


class Kernel:
    """A host whose files can hang."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.answers = threading.Event()
        self.answers.set()
        self.reads = 0

    def read(self) -> HostCounters:
        self.reads += 1
        at = self._clock.monotonic()
        self.answers.wait(30)
        return replace(HOST, at=at)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def kernel(clock: ManualClock) -> Iterator[Kernel]:
    made = Kernel(clock)
    yield made
    made.answers.set()


@pytest.fixture
def watch(clock: ManualClock, kernel: Kernel) -> HostWatch:
    return HostWatch(kernel.read, clock, BlockingCalls("host", seconds=SECONDS))


async def test_nothing_is_known_before_the_first_look(watch: HostWatch) -> None:
    view = watch.view()
    assert (view.counters, view.age_seconds, view.up) == (None, None, False)


async def test_a_look_is_shown_with_its_age(watch: HostWatch, clock: ManualClock) -> None:
    await watch.look()
    clock.advance(3.0)
    view = watch.view()
    assert view.counters is not None
    assert (view.counters.disks, view.age_seconds, view.up) == (HOST.disks, 3.0, True)


async def test_scrapes_that_follow_at_once_share_a_look(watch: HostWatch, clock: ManualClock, kernel: Kernel) -> None:
    for _ in range(5):
        await watch.look()
    assert kernel.reads == 1
    clock.advance(AGAIN_SECONDS)
    await asyncio.gather(*(watch.look() for _ in range(3)))
    assert kernel.reads <= 4


async def test_a_hang_costs_one_deadline_once_and_shows_the_last_values_getting_older(
    watch: HostWatch, clock: ManualClock, kernel: Kernel, wait_until_async: Until
) -> None:
    await watch.look()
    kernel.answers.clear()
    clock.advance(15.0)
    await watch.look()
    began = time.monotonic()
    for _ in range(200):
        await watch.look()
    assert time.monotonic() - began < 200 * SECONDS / 4, "no further wait while the first call hangs"
    assert kernel.reads == 2, "and no further thread"
    view = watch.view()
    assert view.counters is not None
    assert (view.age_seconds, view.up) == (15.0, False)
    clock.advance(FRESH_SECONDS)
    assert watch.view().counters is None, "a host that stands still is not a host at rest"
    assert watch.view().age_seconds == 15.0 + FRESH_SECONDS
    kernel.answers.set()

    async def read_again() -> bool:
        await watch.look()
        return watch.view().up

    await wait_until_async(read_again)
    assert watch.view().counters is not None


async def test_metrics_answer_while_the_kernel_hangs(
    watch: HostWatch, kernel: Kernel, free_port: Callable[[], int]
) -> None:
    kernel.answers.clear()
    port = free_port()
    async with serve_metrics(Metrics(host=watch), "127.0.0.1", port), aiohttp.ClientSession() as session:
        for _ in range(3):
            async with asyncio.timeout(5), session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                text = await answer.text()
            assert answer.status == 200
            assert "sre_host_reader_up 0.0" in text
            assert "sre_host_disk" not in text
    kernel.answers.set()
