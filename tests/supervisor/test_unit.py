"""One process kept running, on a machine in memory and a clock that moves only when waited on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sre.control.unit import HANG_TERM_SECONDS, Services, Unit
from sre.settings.stack import RestartSettings
from sre.signals.types import ProcessState
from sre.stack.processes import Found, Role
from sre.testing.clock import ManualClock
from tests.supervisor.fakes import FakeHost, FakeProbe, NoLogs, spec


class Bench:
    """A unit with everything around it in memory."""

    def __init__(self, **changes: Any) -> None:
        self.clock = ManualClock()
        self.host = FakeHost()
        self.probe = FakeProbe()
        self.said: list[str] = []
        self.records: list[Any] = []
        policy = RestartSettings(initial_backoff_seconds=1, max_backoff_seconds=8, stable_after_seconds=100)
        services = Services(
            self.host,
            self.probe,
            self.clock,
            policy,
            NoLogs(),
            lambda name, text: self.said.append(f"{name}: {text}"),
            self._record,
            lambda: None,
        )
        self.unit = Unit(spec(**changes), services)

    def _record(self) -> None:
        self.records.append(self.unit.entry())
        self.host.events.append("record")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.unit.run())
        try:
            yield
        finally:
            self.unit.request_stop()
            await task

    async def until(self, predicate: Callable[[], Any]) -> None:
        for _ in range(2000):
            if predicate():
                return
            await asyncio.sleep(0)
        pytest.fail(f"never happened; events: {self.host.events}; said: {self.said}")

    async def ready(self) -> None:
        await self.until(lambda: self.unit.state is ProcessState.READY)

    def starts(self) -> int:
        return len(self.host.launches)


async def test_intent_is_recorded_before_the_start_and_the_identity_after_it() -> None:
    bench = Bench()
    async with bench.running():
        await bench.ready()
        assert bench.host.events[:3] == ["record", "sim-0: start", "record"]
        intent, started = bench.records[0], bench.records[1]
        assert intent.identity is None
        assert intent.launch_id
        assert started.launch_id == intent.launch_id
        assert started.identity == bench.unit.identity
    assert bench.unit.state is ProcessState.STOPPED
    assert bench.unit.entry() is None


@pytest.mark.parametrize("code", [0, 1, -9])
async def test_any_end_that_nobody_asked_for_is_a_crash(code: int) -> None:
    bench = Bench()
    async with bench.running():
        await bench.ready()
        first = bench.unit.identity
        assert first is not None
        bench.host.die(first, code)
        await bench.until(lambda: bench.starts() == 2)
        await bench.ready()
        assert bench.unit.identity != first
        assert bench.unit.history.restarts == 1
        assert bench.unit.last_exit is not None
        assert "(unasked)" in bench.unit.last_exit


async def test_back_off_doubles_up_to_its_ceiling_and_starts_over_after_a_stable_run() -> None:
    bench = Bench()
    waits = []
    async with bench.running():
        for _ in range(5):
            await bench.ready()
            at = bench.clock.monotonic()
            identity, starts = bench.unit.identity, bench.starts()
            assert identity is not None
            bench.host.die(identity, 0)
            await bench.until(lambda n=starts: bench.starts() > n)  # type: ignore[misc]
            waits.append(round(bench.clock.monotonic() - at))
        await bench.ready()
        bench.clock.advance(100)
        at = bench.clock.monotonic()
        identity, starts = bench.unit.identity, bench.starts()
        assert identity is not None
        bench.host.die(identity, 0)
        await bench.until(lambda: bench.starts() > starts)
        waits.append(round(bench.clock.monotonic() - at))
    assert waits == [1, 2, 4, 8, 8, 1]


async def test_gateway_comes_back_at_once() -> None:
    bench = Bench(name="gateway", role=Role.GATEWAY)
    async with bench.running():
        await bench.ready()
        at = bench.clock.monotonic()
        assert bench.unit.identity is not None
        bench.host.die(bench.unit.identity, -9)
        await bench.until(lambda: bench.starts() == 2)
        assert bench.clock.monotonic() == at


async def test_requested_restart_happens_once_and_only_for_the_expected_process() -> None:
    bench = Bench()
    async with bench.running():
        await bench.ready()
        first = bench.unit.identity
        assert first is not None
        assert bench.unit.request_restart(first, "hang")
        assert bench.unit.request_restart(first, "hang"), "accepted already"
        await bench.until(lambda: bench.unit.identity not in {first, None})
        await bench.ready()
        second = bench.unit.identity
        assert not bench.unit.request_restart(first, "hang"), "another process runs by now"
        await asyncio.sleep(0)
        assert bench.unit.identity == second
        assert bench.starts() == 2
        assert bench.unit.history.crashes_in_a_row == 0
        assert bench.unit.last_exit is not None
        assert bench.unit.last_exit.endswith("hang")


async def test_hung_process_gets_a_short_time_and_its_whole_family_ends() -> None:
    bench = Bench(stop_timeout_seconds=500.0)
    async with bench.running():
        await bench.ready()
        first = bench.unit.identity
        assert first is not None
        core = bench.host.create("core")
        bench.unit.members = (core,)
        bench.host.deaf.add(first)
        at = bench.clock.monotonic()
        bench.unit.request_restart(first, "hang")
        await bench.until(lambda: bench.starts() == 2)
        assert bench.clock.monotonic() - at == pytest.approx(HANG_TERM_SECONDS, abs=0.5)
        assert not bench.host.alive(first)
        assert not bench.host.alive(core)


async def test_nothing_is_started_beside_a_process_that_cannot_be_killed() -> None:
    bench = Bench(gpus=(0,))
    async with bench.running():
        await bench.ready()
        first = bench.unit.identity
        assert first is not None
        stuck = bench.host.create("core")
        bench.unit.members = (stuck,)
        bench.host.unkillable.add(stuck)
        bench.unit.request_restart(first, "hang")
        await bench.until(lambda: bench.unit.state is ProcessState.FAILED)
        for _ in range(50):
            await asyncio.sleep(0)
        assert bench.starts() == 1
        assert bench.unit.problem is not None
        assert f"pid {stuck.pid} (core, state D) cannot be killed and holds GPU 0" in bench.unit.problem
        assert sum("cannot be killed" in line for line in bench.said) == 1, "said once, not every second"
        bench.host.die(stuck, -9)  # the kernel lets go
        await bench.ready()
        assert bench.starts() == 2
        assert bench.unit.problem is None


async def test_what_earlier_runs_left_is_ended_before_a_start() -> None:
    bench = Bench()
    left = bench.host.create("remains")
    bench.host.left_behind.append(Found(left, "sim-0", "older", "", False))
    other = bench.host.create("neighbour")
    bench.host.left_behind.append(Found(other, "sim-1", "older", "", True))
    async with bench.running():
        await bench.ready()
        assert bench.host.events.index("remains: ended") < bench.host.events.index("sim-0: start")
        assert bench.host.alive(other)


async def test_missing_program_is_failed_with_its_sentence_and_tried_again() -> None:
    bench = Bench()
    bench.host.missing.add("sim-0")
    async with bench.running():
        await bench.until(lambda: bench.unit.state is ProcessState.FAILED)
        assert bench.unit.problem == "sim-0: it is missing; install it"
        assert bench.unit.entry() is None, "nothing runs, nothing to re-adopt"
        bench.host.missing.clear()
        await bench.ready()
        assert bench.unit.problem is None


async def test_process_that_is_not_ready_in_time_is_ended_and_counts_as_a_crash() -> None:
    bench = Bench(ready_timeout_seconds=5.0)
    bench.probe.unready.add("/health")
    async with bench.running():
        await bench.until(lambda: bench.starts() == 2)
        assert bench.unit.last_exit is not None
        assert bench.unit.last_exit.startswith("not ready within 5 s")
        assert bench.unit.history.crashes_in_a_row == 1


async def test_stop_during_the_back_off_starts_nothing() -> None:
    bench = Bench()
    bench.host.missing.add("sim-0")
    async with bench.running():
        await bench.until(lambda: bench.unit.state is ProcessState.FAILED)
        bench.unit.request_stop()
    assert bench.starts() == 0
    assert bench.unit.state is ProcessState.STOPPED


async def test_cancelled_unit_leaves_its_process_alone() -> None:
    """A supervisor that breaks must not take the service with it."""
    bench = Bench()
    task = asyncio.create_task(bench.unit.run())
    await bench.ready()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bench.unit.identity is not None
    assert bench.host.alive(bench.unit.identity)
