"""What the gate's runner relies on, of the fake and of the real load generator alike."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from sre.adapters.clock import SystemClock
from sre.adapters.load import HttpLoad
from sre.control.gate_ports import LoadGenerator
from sre.errors import Unreachable
from sre.gate import self_checks
from sre.gate.records import Cause
from sre.gate.stages import Arrivals, LiveCounts, RequestClass, StageKind, StagePlan
from sre.gate.summary import summarize
from sre.testing.clock import ManualClock
from sre.testing.load import Behaviour, FakeLoad
from tests.conftest import unused_port
from tests.support.sse_stub import Exchange, SseStub

REAL = pytest.param("real", marks=pytest.mark.integration)
SECONDS_AN_ANSWER = 0.2


async def slow(exchange: Exchange) -> None:
    """A word at once, the rest after a while."""
    await exchange.head()
    await exchange.text()
    await asyncio.sleep(SECONDS_AN_ANSWER)
    await exchange.words(exchange.max_tokens - 1)
    await exchange.usage()
    await exchange.done()
    await exchange.end()


@pytest.fixture(params=["fake", REAL])
async def load(request: pytest.FixtureRequest) -> AsyncIterator[LoadGenerator]:
    if request.param == "fake":
        yield FakeLoad(ManualClock(), Behaviour(service_seconds=SECONDS_AN_ANSWER))
        return
    async with SseStub({"default": slow}) as stub, HttpLoad(stub.url, model=None, clock=SystemClock()) as real:
        yield real


@pytest.fixture(params=["fake", REAL])
async def load_of_nobody(request: pytest.FixtureRequest) -> AsyncIterator[LoadGenerator]:
    if request.param == "fake":
        fake = FakeLoad(ManualClock())
        fake.gone = True
        yield fake
        return
    async with HttpLoad(f"http://127.0.0.1:{unused_port()}", model=None, clock=SystemClock()) as real:
        yield real


def plan(rate: float = 50, seconds: float = 1.0, arrivals: Arrivals = Arrivals.POISSON) -> StagePlan:
    return StagePlan("stage", StageKind.STAIRCASE, rate, seconds, (RequestClass("short", 1.0, 40, 4),), 3, arrivals)


@dataclass
class Watcher:
    """Remembers what it is told; gives up with ``reason`` once so many were sent."""

    give_up_after: int | None = None
    reason: str = "interrupted"
    seen: list[LiveCounts] = field(default_factory=list)

    def __call__(self, counts: LiveCounts) -> str | None:
        self.seen.append(counts)
        if self.give_up_after is not None and counts.sent >= self.give_up_after:
            return self.reason
        return None


async def test_smoke_says_what_is_there(load: LoadGenerator) -> None:
    smoke = await load.smoke()
    assert smoke.ok
    assert smoke.model
    assert smoke.streaming
    assert smoke.prompt_sizing in {"tokenize", "usage", "chars"}


async def test_smoke_of_nobody_is_unreachable_with_a_sentence(load_of_nobody: LoadGenerator) -> None:
    with pytest.raises(Unreachable, match="; "):
        await load_of_nobody.smoke()


async def test_a_stage_hands_back_every_request_of_its_schedule(load: LoadGenerator) -> None:
    await load.smoke()
    watcher = Watcher()
    result = await load.run(plan(), watch=watcher, drain_seconds=10)
    assert result.aborted is None
    assert len(result.records) == result.planned
    assert [record.number for record in result.records] == list(range(result.planned))
    assert {record.cause for record in result.records} == {Cause.OK}
    assert result.schedule_ended_at - result.started_at == pytest.approx(1.0)
    assert result.stopped_at >= max(record.ended_at or 0 for record in result.records) - 0.001
    assert {record.output_tokens for record in result.records} == {4}
    checks = self_checks.check_stage(result, summarize(result))
    assert [check for check in checks if check.ok is False] == []


async def test_the_watcher_sees_counts_that_only_grow(load: LoadGenerator) -> None:
    await load.smoke()
    watcher = Watcher()
    result = await load.run(plan(seconds=1.5), watch=watcher, drain_seconds=10)
    assert len(watcher.seen) >= 3
    assert {counts.planned for counts in watcher.seen} == {result.planned}
    for name in ("at", "due", "sent", "ok", "failed", "shed"):
        values = [getattr(counts, name) for counts in watcher.seen]
        assert values == sorted(values), name
    for counts in watcher.seen:
        assert counts.in_flight >= 0
        assert counts.sent <= counts.planned


async def test_given_up_nothing_more_is_sent_and_what_was_in_flight_is_cancelled(load: LoadGenerator) -> None:
    await load.smoke()
    result = await load.run(plan(seconds=60), watch=Watcher(give_up_after=20), drain_seconds=10)
    assert result.aborted == "interrupted"
    assert len(result.records) < result.planned / 2
    assert {record.cause for record in result.records} <= {Cause.OK, Cause.CANCELLED}
    assert any(record.cause is Cause.CANCELLED for record in result.records)
    assert not any(record.failed for record in result.records)


async def test_a_cancelled_stage_leaves_what_it_had(load: LoadGenerator) -> None:
    await load.smoke()
    begun = asyncio.Event()

    def watch(counts: LiveCounts) -> str | None:
        if counts.ok >= 3:
            begun.set()
        return None

    task = asyncio.create_task(load.run(plan(seconds=600), watch=watch, drain_seconds=10))
    await asyncio.wait_for(begun.wait(), 30)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    found = load.partial()
    assert found is not None
    assert sum(record.cause is Cause.OK for record in found.records) >= 3
    assert len(found.records) < found.planned


async def test_over_the_ttft_limit_is_counted_while_it_runs(load: LoadGenerator) -> None:
    await load.smoke()
    none_over, all_over = Watcher(), Watcher()
    await load.run(plan(), watch=none_over, ttft_limit_seconds=30, drain_seconds=10)
    await load.run(plan(), watch=all_over, ttft_limit_seconds=1e-6, drain_seconds=10)
    assert max(counts.over_limit for counts in none_over.seen) == 0
    assert max(counts.over_limit for counts in all_over.seen) > 0


async def test_calibration_says_what_this_client_can_do(load: LoadGenerator) -> None:
    found = await load.calibrate(20, 0.5, 30.0)
    assert found.client_limited is False
    assert found.requests > 0
    limited = await load.calibrate(20, 0.5, 1e-9) if isinstance(load, HttpLoad) else None
    if limited is not None:
        assert limited.client_limited
        assert limited.reason


async def test_closing_twice_is_closing_once(load: LoadGenerator) -> None:
    await load.close()
    await load.close()
