"""One suite for the Gateway port: the in-memory fake and the real Envoy must agree on every assertion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import aiohttp
import pytest

from sre.actions.ports import Gateway
from sre.actions.types import EngineDesired, FinishedRequest, Outcome, PoolDesired, RejectReason
from sre.adapters.clock import SystemClock
from sre.adapters.envoy.trust import LOG_SILENT_SECONDS
from sre.errors import Unreachable
from sre.settings.stack import StackSettings
from sre.signals.types import CanaryVerdict, Seen
from sre.stack.gateway_names import open_gateway
from sre.testing.gateway import FakeGateway
from tests.gateway.harness import Bench, engine_settings, running, until

ENGINES = engine_settings("a", "b")
Answer = tuple[int, str | None]
"""Status, and the named reason of a refusal."""


class World(Protocol):
    """What surrounds a gateway: clients that send, engines that answer."""

    gateway: Gateway
    stack: StackSettings

    async def ask(self, how: str = "ok") -> Answer:
        """A client sends a stream request and reads the answer to its end."""
        ...

    async def hold(self) -> Answer:
        """A client sends a request that stays open, some bytes of its answer sent."""
        ...

    async def release(self) -> int:
        """Let all open requests end well; return how many of them their client got as a whole."""
        ...

    async def leave(self) -> None:
        """The clients of all open requests go away."""
        ...

    async def poll_models(self) -> None:
        """A client asks an engine for its list of models."""
        ...

    async def lose_log(self) -> None:
        """The access log cannot be read any more, for longer than its pauses last while requests are open."""
        ...

    async def find_log(self) -> None:
        """It can be read again."""
        ...

    async def restart(self) -> None:
        """The gateway is killed and started again."""
        ...

    async def stop(self) -> None:
        """The gateway is killed."""
        ...


class FakeWorld:
    """The fake, moved by hand."""

    def __init__(self) -> None:
        self.stack = StackSettings(engines=ENGINES)
        self.gateway = self.fake = FakeGateway(self.stack, SystemClock())
        self._open: list[str] = []

    async def ask(self, how: str = "ok") -> Answer:
        arrival = self.fake.arrive("m")
        if arrival.request_id is None:
            return arrival.status, arrival.reason
        status = int(how) if how.isdigit() else 200
        self.fake.send(arrival.request_id, 100, status)
        detail = {"ok": "ok", "error": "error", "abort": "finish_abort", "cut": "cut"}.get(how, f"http_{how}")
        self.fake.end(arrival.request_id, detail, status)
        return status, None

    async def hold(self) -> Answer:
        arrival = self.fake.arrive("m", max_tokens=4)
        if arrival.request_id is None:
            return arrival.status, arrival.reason
        self.fake.send(arrival.request_id, 100)
        self._open.append(arrival.request_id)
        return arrival.status, None

    async def release(self) -> int:
        count = len(self._open)
        while self._open:
            self.fake.end(self._open.pop())
        return count

    async def leave(self) -> None:
        while self._open:
            self.fake.end(self._open.pop(), "client_abort")

    async def poll_models(self) -> None:
        request_id = self.fake.arrive("m", path="/v1/models").request_id
        assert request_id is not None
        self.fake.send(request_id, 100)
        self.fake.end(request_id, "engine_free")

    async def lose_log(self) -> None:
        self.fake.log_seen = False

    async def find_log(self) -> None:
        self.fake.log_seen = True

    async def restart(self) -> None:
        self.fake.restart()

    async def stop(self) -> None:
        self.fake.up = False


class EnvoyWorld:
    """A real Envoy, stub engines, aiohttp clients."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.stack = bench.envoy.stack
        self.gateway = bench.gateway
        self._open: list[aiohttp.ClientResponse] = []

    async def ask(self, how: str = "ok") -> Answer:
        async with self.bench.post(user=how, stream=True) as response:
            try:
                await response.read()
            except aiohttp.ClientError:
                assert how == "cut"
            return response.status, response.headers.get("x-sre-reason")

    async def hold(self) -> Answer:
        response = await self.bench.post(user="hold", stream=True)
        if response.status != 200:
            await response.read()
            return response.status, response.headers.get("x-sre-reason")
        await response.content.readuntil(b"\n\n")
        self._open.append(response)
        return response.status, None

    async def release(self) -> int:
        for stub in self.bench.engines.values():
            stub.release.set()
        whole = 0
        while self._open:
            whole += (await self._open.pop().text()).endswith("[DONE]\n\n")
        return whole

    async def leave(self) -> None:
        while self._open:
            self._open.pop().close()

    async def poll_models(self) -> None:
        async with self.bench.http.get(self.bench.envoy.url + "/v1/models") as response:
            await response.read()

    async def lose_log(self) -> None:
        await self.gateway.in_flight_counts()
        await self.bench.lose_log()
        self.bench.clock.advance(LOG_SILENT_SECONDS)

    async def find_log(self) -> None:
        await self.bench.find_log()

    async def restart(self) -> None:
        self.bench.envoy.kill()
        await self.bench.envoy.start()

    async def stop(self) -> None:
        self.bench.envoy.kill()


@asynccontextmanager
async def fake_world(_root: Path) -> AsyncIterator[World]:
    yield FakeWorld()


@asynccontextmanager
async def envoy_world(root: Path) -> AsyncIterator[World]:
    async with running(root, engines=ENGINES) as bench:
        world = EnvoyWorld(bench)
        try:
            yield world
        finally:
            await world.leave()


WorldMaker = Callable[[Path], AbstractAsyncContextManager[World]]


@pytest.fixture(
    params=[pytest.param(fake_world, id="fake"), pytest.param(envoy_world, id="envoy", marks=pytest.mark.integration)]
)
def make_world(request: pytest.FixtureRequest) -> WorldMaker:
    maker: WorldMaker = request.param
    return maker


async def finished(world: World, count: int) -> list[FinishedRequest]:
    """Poll until ``count`` requests ended."""
    out: list[FinishedRequest] = []
    for _ in range(100):
        out.extend(world.gateway.poll_log())
        if len(out) >= count:
            return out
        await asyncio.sleep(0.05)
    raise AssertionError(f"{len(out)} of {count} ended: {out}")


def log_seen(world: World) -> Callable[[], Awaitable[bool]]:
    """Look at the gateway as the guard does; whether all engines have outcomes."""

    async def check() -> bool:
        await world.gateway.in_flight_counts()
        world.gateway.poll_log()
        return set(world.gateway.outcomes()) == {"a", "b"}

    return check


class TestGateway:
    async def test_everything_is_admitted_at_first(self, short_dir: Path, make_world: WorldMaker) -> None:
        async with make_world(short_dir) as world:
            assert await world.gateway.apply(open_gateway(world.stack)) is False
            assert await world.ask() == (200, None)
            seen = await world.gateway.observe()
            assert (seen.reachable, seen.update_rejections) == (True, 0)
            assert seen.epoch

    async def test_refusal_takes_effect_before_apply_returns_and_is_idempotent(
        self, short_dir: Path, make_world: WorldMaker
    ) -> None:
        async with make_world(short_dir) as world:
            base = open_gateway(world.stack)
            refuse = replace(base, pools=(PoolDesired("m", 100, RejectReason.GPU_MEMORY),))
            assert [await world.gateway.apply(refuse) for _ in range(3)] == [True, False, False]
            assert await world.ask() == (503, "gpu_memory")
            assert await world.gateway.apply(base) is True
            assert await world.ask() == (200, None)
            ended = await finished(world, 2)
            assert [(r.detail, r.engine, r.model, r.outcome) for r in ended[:1]] == [
                ("gpu_memory", None, "m", Outcome.NEUTRAL)
            ]
            assert {n: c.failure for n, c in world.gateway.outcomes().items()} == {"a": 0, "b": 0}

    async def test_share_is_refused_and_the_rest_admitted(self, short_dir: Path, make_world: WorldMaker) -> None:
        async with make_world(short_dir) as world:
            await world.gateway.apply(
                replace(open_gateway(world.stack), pools=(PoolDesired("m", 50, RejectReason.RAMP),))
            )
            answers = [await world.ask() for _ in range(100)]
            assert set(answers) == {(200, None), (503, "ramp")}
            assert 25 <= answers.count((200, None)) <= 75

    async def test_running_requests_outlive_refusal_and_drain(self, short_dir: Path, make_world: WorldMaker) -> None:
        async with make_world(short_dir) as world:
            for _ in range(6):
                assert await world.hold() == (200, None)
            base = open_gateway(world.stack)
            await world.gateway.apply(
                replace(
                    base,
                    pools=(PoolDesired("m", 100, RejectReason.HANG),),
                    engines=(EngineDesired("a", draining=True), EngineDesired("b", draining=True)),
                )
            )
            assert await world.ask() == (503, "hang")
            counts = await world.gateway.in_flight_counts()
            assert sum(r.value or 0 for r in counts.values()) == 6
            assert await world.release() == 6

    async def test_draining_engine_gets_nothing_new(self, short_dir: Path, make_world: WorldMaker) -> None:
        async with make_world(short_dir) as world:
            base = open_gateway(world.stack)
            await world.gateway.apply(replace(base, engines=(EngineDesired("a", draining=True), EngineDesired("b"))))
            for _ in range(5):
                assert await world.ask() == (200, None)
            assert {r.engine for r in await finished(world, 5)} == {"b"}
            await world.gateway.apply(replace(base, engines=(EngineDesired("a", 0), EngineDesired("b", draining=True))))
            assert await world.ask() == (503, "no_healthy_upstream")

    async def test_concurrency_limit_counts_what_runs(self, short_dir: Path, make_world: WorldMaker) -> None:
        async with make_world(short_dir) as world:
            await world.gateway.apply(replace(open_gateway(world.stack), max_concurrent_requests=2))
            answers = [await world.hold() for _ in range(3)]
            assert answers == [(200, None), (200, None), (503, "concurrency_limit")]
            assert await world.release() == 2

    @pytest.mark.parametrize(
        ("how", "outcome", "detail"),
        [
            ("ok", Outcome.SUCCESS, "ok"),
            ("error", Outcome.FAILURE, "error"),
            ("abort", Outcome.FAILURE, "finish_abort"),
            ("cut", Outcome.FAILURE, "cut"),
            ("500", Outcome.FAILURE, "http_500"),
            ("400", Outcome.NEUTRAL, "http_400"),
            ("429", Outcome.NEUTRAL, "http_429"),
        ],
    )
    async def test_outcome_is_what_the_engine_did(
        self, short_dir: Path, make_world: WorldMaker, how: str, outcome: Outcome, detail: str
    ) -> None:
        async with make_world(short_dir) as world:
            await world.ask(how)
            (ended,) = await finished(world, 1)
            assert (ended.outcome, ended.detail, ended.model) == (outcome, detail, "m")
            assert ended.engine in {"a", "b"}
            counts = world.gateway.outcomes()[ended.engine or ""]
            assert (counts.success, counts.failure, counts.neutral) == (
                outcome is Outcome.SUCCESS, outcome is Outcome.FAILURE, outcome is Outcome.NEUTRAL,
            )  # fmt: skip
            assert counts.consecutive_failures == (outcome is Outcome.FAILURE)
            sent = sum(r.value or 0 for r in world.gateway.sent_bytes().values())
            assert sent == (ended.bytes_sent if ended.status == 200 else 0)

    async def test_answers_without_an_engine_step_are_no_progress(
        self, short_dir: Path, make_world: WorldMaker
    ) -> None:
        async with make_world(short_dir) as world:
            await world.poll_models()
            await world.ask("400")
            ended = await finished(world, 2)
            assert [(r.detail, r.bytes_sent > 0) for r in ended] == [("engine_free", True), ("http_400", True)]
            assert {name: r.value for name, r in world.gateway.sent_bytes().items()} == {"a": 0, "b": 0}

    async def test_log_that_is_missing_while_engines_have_requests_says_nothing(
        self, short_dir: Path, make_world: WorldMaker
    ) -> None:
        async with make_world(short_dir) as world:
            await world.ask()
            await finished(world, 1)
            await world.hold()
            assert set(world.gateway.outcomes()) == {"a", "b"}
            await world.lose_log()
            await world.gateway.in_flight_counts()
            assert list(world.gateway.poll_log()) == []
            assert world.gateway.outcomes() == {}
            assert {n: r.seen for n, r in world.gateway.sent_bytes().items()} == dict.fromkeys("ab", Seen.UNREACHABLE)
            await world.find_log()
            await until(log_seen(world), "the log seen again")
            assert sum(c.success for c in world.gateway.outcomes().values()) == 1
            assert all(r.value is not None for r in world.gateway.sent_bytes().values())

    async def test_silence_of_the_log_says_nothing_while_engines_have_no_requests(
        self, short_dir: Path, make_world: WorldMaker
    ) -> None:
        async with make_world(short_dir) as world:
            await world.hold()
            await world.lose_log()
            await world.leave()
            await until(log_seen(world), "no request, hence no line awaited")

    async def test_client_abort_is_neutral_and_counted(self, short_dir: Path, make_world: WorldMaker) -> None:
        async with make_world(short_dir) as world:
            await world.hold()
            await world.leave()
            (ended,) = await finished(world, 1)
            assert (ended.outcome, ended.detail) == (Outcome.NEUTRAL, "client_abort")
            assert sum(c.client_aborts for c in world.gateway.outcomes().values()) == 1

    async def test_open_requests_are_listed_with_their_context(self, short_dir: Path, make_world: WorldMaker) -> None:
        async with make_world(short_dir) as world:
            await world.hold()
            for _ in range(100):
                world.gateway.poll_log()
                found = [r for r in world.gateway.in_flight() if r.engine is not None]
                if found:
                    break
                await asyncio.sleep(0.05)
            (request,) = found
            assert (request.path, request.model, request.max_tokens, request.stream) == (
                "/v1/completions", "m", 4, True,
            )  # fmt: skip
            assert request.bytes_sent > 0
            assert request.age_seconds >= 0
            assert await world.release() == 1
            await finished(world, 1)
            assert list(world.gateway.in_flight()) == []

    async def test_restart_keeps_what_was_asked_and_changes_the_epoch(
        self, short_dir: Path, make_world: WorldMaker
    ) -> None:
        async with make_world(short_dir) as world:
            refuse = replace(open_gateway(world.stack), pools=(PoolDesired("m", 100, RejectReason.LATCHED),))
            await world.gateway.apply(refuse)
            before = (await world.gateway.observe()).epoch
            await world.restart()
            assert await world.ask() == (503, "latched")
            assert (await world.gateway.observe()).epoch != before
            assert await world.gateway.apply(refuse) is False

    async def test_dead_gateway_is_unreachable_and_said_so(self, short_dir: Path, make_world: WorldMaker) -> None:
        async with make_world(short_dir) as world:
            await world.stop()
            assert (await world.gateway.observe()).reachable is False
            with pytest.raises(Unreachable):
                await world.gateway.in_flight_counts()
            refuse = replace(open_gateway(world.stack), pools=(PoolDesired("m", 100, RejectReason.MANUAL),))
            with pytest.raises(Unreachable):
                await world.gateway.apply(refuse)
            result = await world.gateway.probe("a", 1, first_token_timeout_seconds=1, timeout_seconds=1)
            assert result.verdict is CanaryVerdict.FAILURE

    async def test_probe_passes_an_open_breaker_and_is_no_traffic(
        self, short_dir: Path, make_world: WorldMaker
    ) -> None:
        async with make_world(short_dir) as world:
            await world.gateway.apply(
                replace(
                    open_gateway(world.stack),
                    pools=(PoolDesired("m", 100, RejectReason.HANG),),
                    engines=(EngineDesired("a", draining=True), EngineDesired("b", draining=True)),
                )
            )
            for engine in ("a", "b"):
                result = await world.gateway.probe(engine, 3, first_token_timeout_seconds=2, timeout_seconds=2)
                assert (result.engine, result.generation, result.verdict) == (engine, 3, CanaryVerdict.SUCCESS)
                assert result.first_token_seconds is not None
            await world.ask()
            assert [r.detail for r in await finished(world, 1)] == ["hang"]
            assert {c.success for c in world.gateway.outcomes().values()} == {0}
