"""The supervisor over several processes, in memory: order of a stop, take-over, what it says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from sre.control.supervisor import DRAIN_POLL_SECONDS, StackFacts, Supervisor
from sre.errors import LeftChanged
from sre.settings.stack import RestartSettings
from sre.signals.types import ProcessIdentity, ProcessState
from sre.stack.ledger import Ledger, LedgerEntry
from sre.stack.processes import ForeignOrphan, ProcessSpec, Role
from sre.testing.clock import ManualClock
from tests.supervisor.fakes import FakeGatewayDrain, FakeHost, FakeLedgers, FakeProbe, NoLogs, spec

GATEWAY = spec("gateway", Role.GATEWAY, drain_timeout_seconds=0.0)
GUARD = spec("guard", Role.GUARD, drain_timeout_seconds=0.0)
STACK = (GATEWAY, spec("sim-0"), GUARD)


class Bench:
    """A supervisor with everything around it in memory."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec] = STACK,
        *,
        host: FakeHost | None = None,
        ledger: Ledger | None = None,
        active: list[int | None] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.host = host or FakeHost()
        self.ledgers = FakeLedgers(self.host, ledger)
        self.probe = FakeProbe()
        self.gateway = FakeGatewayDrain(self.host, active or [0])
        self.said: list[str] = []
        self.supervisor = Supervisor(
            StackFacts("test", ProcessIdentity(1, 1), "http://127.0.0.1:8080", "/state", None),
            specs,
            host=self.host,
            ledger=self.ledgers,
            probe=self.probe,
            gateway=self.gateway,
            clock=self.clock,
            policy=RestartSettings(),
            logs=NoLogs(),
            say=lambda name, text: self.said.append(f"{name}: {text}"),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.supervisor.run())
        try:
            assert await self.supervisor.wait_ready()
            yield
        finally:
            self.supervisor.request_stop()
            await task

    async def until(self, predicate: Callable[[], Any]) -> None:
        for _ in range(5000):
            if predicate():
                return
            await asyncio.sleep(0)
        pytest.fail(f"never happened; events: {self.host.events}; said: {self.said}")

    def done(self, *events: str) -> list[str]:
        """Those of ``events`` that happened, in their order."""
        return [event for event in self.host.events if event in events]


async def test_stop_ends_the_guard_then_drains_then_ends_engines_and_the_gateway_last() -> None:
    bench = Bench(active=[3, 2, 1, 0])
    async with bench.running():
        pass
    assert bench.done("guard: SIGTERM", "gateway: drain", "sim-0: SIGTERM", "gateway: SIGTERM") == [
        "guard: SIGTERM",
        "gateway: drain",
        "sim-0: SIGTERM",
        "gateway: SIGTERM",
    ]
    assert "gateway: draining: 3 requests run, at most 30 s more" in bench.said
    assert bench.ledgers.saved[-1].entries == ()


@pytest.mark.parametrize(("active", "word"), [([5], "5 requests still run and are cut"), ([None], "does not say")])
async def test_drain_ends_at_its_time_limit_or_when_the_gateway_says_nothing(
    active: list[int | None], word: str
) -> None:
    bench = Bench(active=active)
    async with bench.running():
        pass
    assert any(word in line for line in bench.said)
    assert bench.gateway.asked < 30 / DRAIN_POLL_SECONDS + 10
    assert bench.supervisor.status().processes[1].state is ProcessState.STOPPED


async def test_drain_that_breaks_does_not_stop_the_stop() -> None:
    bench = Bench()
    bench.gateway.broken = True
    async with bench.running():
        pass
    assert "gateway: cannot drain: a bug" in bench.said
    assert bench.host.events[-1].startswith("ledger")


async def test_second_request_to_stop_ends_the_drain() -> None:
    bench = Bench(active=[7])
    async with bench.running():
        bench.supervisor.request_stop(drain_timeout_seconds=1e9)  # nobody would see its end
        await bench.until(lambda: "gateway: drain" in bench.host.events)
        bench.supervisor.request_stop()
    assert "gateway: 7 requests still run and are cut" in bench.said


async def test_stop_without_drain_does_not_ask_the_gateway() -> None:
    bench = Bench(active=[7])
    async with bench.running():
        bench.supervisor.request_stop(drain=False)
    assert "gateway: drain" not in bench.host.events


async def test_guard_cannot_restart_engines_of_a_stack_that_stops() -> None:
    bench = Bench(active=[7])
    async with bench.running():
        engine = bench.supervisor.engines()[0].identity
        assert engine is not None
        bench.supervisor.request_stop()
        assert not bench.supervisor.restart("sim-0", engine, "hang")


def entry(name: str, role: Role, identity: ProcessIdentity | None, **changes: Any) -> LedgerEntry:
    values = {"name": name, "role": role, "launch_id": f"launch-{name}", "fingerprint": f"print-of-{name}"}
    return LedgerEntry(**(values | {"identity": identity} | changes))


async def test_what_runs_as_configured_is_taken_over_and_keeps_its_history() -> None:
    host = FakeHost()
    engine = host.create("sim-0")
    ledger = Ledger("boot", (entry("sim-0", Role.ENGINE, engine, ready_at=5.0, restarts=3),))
    bench = Bench(host=host, ledger=ledger)
    async with bench.running():
        status = bench.supervisor.engines()[0]
        assert (status.identity, status.ready_at, status.restarts) == (engine, 5.0, 3)
        assert "sim-0: start" not in bench.host.events
        assert {process.name for process in bench.supervisor.status().processes if process.adopted} == {"sim-0"}


async def test_what_runs_with_another_configuration_is_replaced_with_a_word() -> None:
    host = FakeHost()
    engine = host.create("sim-0")
    bench = Bench(host=host, ledger=Ledger("boot", (entry("sim-0", Role.ENGINE, engine, fingerprint="older"),)))
    async with bench.running():
        assert bench.done("sim-0: ended", "sim-0: start") == ["sim-0: ended", "sim-0: start"]
        assert bench.supervisor.engines()[0].last_exit_asked is True
        assert any("its configuration changed" in line for line in bench.said)


async def test_members_of_a_dead_leader_are_ended_before_its_successor_starts() -> None:
    host = FakeHost()
    leader, core = host.create("sim-0"), host.create("core")
    host.die(leader, -9)
    bench = Bench(host=host, ledger=Ledger("boot", (entry("sim-0", Role.ENGINE, leader, members=(core,)),)))
    async with bench.running():
        assert bench.done("core: ended", "sim-0: start") == ["core: ended", "sim-0: start"]
        status = bench.supervisor.engines()[0]
        assert (status.last_exit_asked, status.restarts) == (False, 1)
        assert status.last_exit == "ended while no supervisor ran (unasked)"


async def test_ledger_of_another_boot_names_no_process_of_this_one() -> None:
    host = FakeHost()
    stranger = host.create("stranger")
    bench = Bench(host=host, ledger=Ledger("another boot", (entry("sim-0", Role.ENGINE, stranger),)))
    async with bench.running():
        assert host.alive(stranger)
        assert "sim-0: start" in host.events


async def test_unreadable_ledger_and_foreign_orphans_are_notes() -> None:
    bench = Bench()
    bench.ledgers.broken = True
    orphan = bench.host.create("VLLM::EngineCore")
    bench.host.orphans.append(ForeignOrphan(orphan, "VLLM::EngineCore"))
    async with bench.running():
        notes = bench.supervisor.status().notes
        assert any("it was cut" in note for note in notes)
        assert any(f"pid {orphan.pid}" in note for note in notes)
    assert bench.host.alive(orphan)


async def test_full_disk_does_not_stop_the_care() -> None:
    bench = Bench()
    bench.ledgers.full = True
    async with bench.running():
        first = bench.supervisor.engines()[0].identity
        assert first is not None
        bench.host.die(first, 0)
        await bench.until(lambda: bench.supervisor.engines()[0].identity not in {None, first})
        assert any("no space left" in note for note in bench.supervisor.status().notes)


async def test_what_cannot_be_ended_is_said_at_the_end() -> None:
    bench = Bench()
    task = asyncio.create_task(bench.supervisor.run())
    assert await bench.supervisor.wait_ready()
    engine = bench.supervisor.engines()[0].identity
    assert engine is not None
    bench.host.deaf.add(engine)
    bench.host.unkillable.add(engine)
    bench.supervisor.request_stop()
    with pytest.raises(LeftChanged, match=f"pid {engine.pid} .* cannot be killed"):
        await task
    assert bench.ledgers.saved[-1].entry("sim-0") is not None, "the next supervisor must know of it"


async def test_external_engine_is_only_asked_for_its_health() -> None:
    outside = spec("far", command=None, kind="external")
    bench = Bench((GATEWAY, outside))
    async with bench.running():
        status = bench.supervisor.engines()[0]
        assert (status.process, status.identity) == (ProcessState.READY, None)
        bench.probe.unready.add("/health")
        await bench.until(lambda: bench.supervisor.engines()[0].process is ProcessState.UNKNOWN)
        assert bench.supervisor.status().phase == "degraded"
        with pytest.raises(KeyError):
            bench.supervisor.restart("far", ProcessIdentity(1, 1), "hang")
    assert not any(event.startswith("far") for event in bench.host.events)


async def test_stop_without_a_supervisor_starts_nothing() -> None:
    host = FakeHost()
    engine, gateway = host.create("sim-0"), host.create("gateway")
    ledger = Ledger(
        "boot",
        (
            entry("gateway", Role.GATEWAY, gateway, ready_at=1.0),
            entry("sim-0", Role.ENGINE, engine, ready_at=1.0),
        ),
    )
    bench = Bench(host=host, ledger=ledger, active=[1, 0])
    assert await bench.supervisor.stop_all() == 2
    assert bench.done("gateway: drain", "sim-0: SIGTERM", "gateway: SIGTERM") == [
        "gateway: drain",
        "sim-0: SIGTERM",
        "gateway: SIGTERM",
    ]
    assert not bench.host.launches
    assert not host.alive(engine)
    assert not host.alive(gateway)
