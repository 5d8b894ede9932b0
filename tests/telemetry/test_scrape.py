"""Scraping over real HTTP: deadlines, sizes, broken answers, and never two scrapes of one engine at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sre.actions.ports import EngineSample
from sre.adapters.clock import SystemClock
from sre.adapters.engine_telemetry import EngineEndpoint, VllmTelemetry
from sre.signals.types import Seen

WaitUntilAsync = Callable[..., Awaitable[Any]]

BODY = b'vllm:iteration_tokens_total_count{engine="0"} 5\nvllm:num_requests_waiting{engine="0"} 2\n'


def answer(body: bytes = BODY, *, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nContent-Type: text/plain\r\n\r\n".encode() + body


class Engine:
    """A server that answers every request with what ``reply`` returns, then closes the connection."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.open = 0
        self.most_open = 0
        self.reply: Callable[[], Awaitable[bytes]] = self._default
        self.url = ""

    async def _default(self) -> bytes:
        return answer()

    def says(self, data: bytes) -> None:
        async def reply() -> bytes:
            return data

        self.reply = reply

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(await self.reply())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[Engine]:
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()


@asynccontextmanager
async def scraping(
    url: str, *, api_key: str | None = None, patience: float = 5.0, deadline: float = 5.0, limit: int = 1 << 20
) -> AsyncIterator[VllmTelemetry]:
    telemetry = VllmTelemetry(
        {"e": EngineEndpoint(url, api_key)},
        SystemClock(),
        patience_seconds=patience,
        deadline_seconds=deadline,
        max_body_bytes=limit,
    )
    try:
        yield telemetry
    finally:
        await telemetry.close()


async def seen_of(data: bytes, *, limit: int = 1 << 20) -> tuple[EngineSample, str | None]:
    engine = Engine()
    engine.says(data)
    async with running(engine), scraping(engine.url, limit=limit) as telemetry:
        return await telemetry.sample("e"), telemetry.problem("e")


async def test_a_good_answer_is_read_and_dated_now() -> None:
    before = time.monotonic()
    sample, problem = await seen_of(answer())
    assert sample.steps_total.value == 5.0
    assert before <= sample.steps_total.sampled_at <= time.monotonic()
    assert problem is None


async def test_the_api_key_is_sent_and_compression_is_not_asked_for() -> None:
    engine = Engine()
    async with running(engine), scraping(engine.url + "/", api_key="s3cret") as telemetry:
        await telemetry.sample("e")
        assert "s3cret" not in repr(telemetry._engines)
    request = engine.requests[0].lower()
    assert request.startswith(b"get /metrics http/1.1\r\n")
    assert b"authorization: bearer s3cret\r\n" in request
    assert b"accept-encoding: identity\r\n" in request


@pytest.mark.parametrize("status", ["500 Internal Server Error", "404 Not Found", "401 Unauthorized", "307 Moved"])
async def test_an_answer_that_is_no_metrics_is_absent(status: str) -> None:
    sample, problem = await seen_of(answer(status=status))
    assert sample.steps_total.seen is Seen.ABSENT
    assert problem is not None
    assert status[:3] in problem


@pytest.mark.parametrize(
    "data",
    [
        answer(length=len(BODY) + 100),  # cut before its announced length
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY[:-5],  # no length: cut inside a line
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n" + BODY,  # cut inside a chunk
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",  # not HTTP
        answer(b"x" * 5000 + b"\n"),  # larger than the limit below
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"# filler\n" * 1000,  # the same without a length
    ],
    ids=["short", "cut-line", "cut-chunk", "not-http", "too-large", "endless"],
)
async def test_a_broken_answer_is_invalid_as_a_whole(data: bytes) -> None:
    sample, problem = await seen_of(data, limit=4096)
    assert {r.seen for r in (sample.steps_total, *sample.signals.values())} == {Seen.INVALID}
    assert problem is not None


async def test_a_refused_connection_is_unreachable(free_port: Callable[[], int]) -> None:
    async with scraping(f"http://127.0.0.1:{free_port()}") as telemetry:
        sample = await telemetry.sample("e")
        assert {r.seen for r in (sample.steps_total, *sample.signals.values())} == {Seen.UNREACHABLE}


async def test_an_unusable_url_is_unreachable_and_not_an_exception() -> None:
    async with scraping("http://[::1") as telemetry:
        assert (await telemetry.sample("e")).steps_total.seen is Seen.UNREACHABLE


async def test_an_unknown_engine_is_unreachable() -> None:
    async with scraping("http://127.0.0.1:1") as telemetry:
        assert (await telemetry.sample("nobody")).steps_total.seen is Seen.UNREACHABLE
        assert not await telemetry.is_paused("nobody", timeout_seconds=1.0)


async def test_a_server_that_never_answers_is_unreachable_at_the_deadline() -> None:
    engine = Engine()
    engine.reply = asyncio.Event().wait  # type: ignore[assignment]
    async with running(engine), scraping(engine.url, deadline=0.2) as telemetry:
        started = time.monotonic()
        sample = await telemetry.sample("e")
        assert sample.steps_total.seen is Seen.UNREACHABLE
        assert time.monotonic() - started < 2.0


async def test_a_slow_scrape_shows_the_sample_before_with_its_old_date_and_never_piles_up(
    wait_until_async: WaitUntilAsync,
) -> None:
    engine = Engine()
    async with running(engine), scraping(engine.url, patience=0.05) as telemetry:

        async def sampled(steps: float) -> EngineSample | None:
            sample = await telemetry.sample("e")
            return sample if sample.steps_total.value == steps else None

        first = await wait_until_async(lambda: sampled(5.0), interval=0.01)
        go = asyncio.Event()

        async def late() -> bytes:
            await go.wait()
            return answer(BODY.replace(b" 5", b" 6"))

        engine.reply = late
        during = [await telemetry.sample("e") for _ in range(20)]
        assert all(sample == first for sample in during)
        assert engine.most_open == 1
        go.set()
        last = await wait_until_async(lambda: sampled(6.0), interval=0.01)
        assert last.steps_total.sampled_at > first.steps_total.sampled_at
        assert engine.most_open == 1


async def test_before_the_first_answer_nothing_was_ever_seen() -> None:
    engine = Engine()
    engine.reply = asyncio.Event().wait  # type: ignore[assignment]
    async with running(engine), scraping(engine.url, patience=0.01) as telemetry:
        assert (await telemetry.sample("e")).steps_total.seen is Seen.NEVER


async def test_a_slow_engine_does_not_delay_another() -> None:
    slow, quick = Engine(), Engine()
    slow.reply = asyncio.Event().wait  # type: ignore[assignment]
    async with running(slow), running(quick):
        telemetry = VllmTelemetry(
            {"slow": EngineEndpoint(slow.url), "quick": EngineEndpoint(quick.url)}, SystemClock(), patience_seconds=1.5
        )
        try:
            both = await asyncio.gather(telemetry.sample("slow"), telemetry.sample("quick"))
            assert both[1].steps_total.value == 5.0
        finally:
            await telemetry.close()


async def test_an_engine_that_moved_is_read_at_its_new_address(wait_until_async: WaitUntilAsync) -> None:
    old, new = Engine(), Engine()
    old.reply = asyncio.Event().wait  # type: ignore[assignment]
    async with running(old), running(new), scraping(old.url, patience=0.05) as telemetry:
        await telemetry.sample("e")
        telemetry.set_engines({"e": EngineEndpoint(new.url)})

        async def moved() -> bool:
            return (await telemetry.sample("e")).steps_total.value == 5.0

        await wait_until_async(moved, interval=0.01)


@pytest.mark.parametrize(
    ("data", "paused"),
    [
        (answer(b'{"is_paused":true}'), True),
        (answer(b'{"is_paused":false}'), False),
        (answer(b'{"is_paused":"yes"}'), False),
        (answer(b'{"detail":"Not Found"}', status="404 Not Found"), False),
        (answer(b"[true]"), False),
        (answer(b"<html>"), False),
        (answer(b"\xff\xfe"), False),
        (answer(b" " * 5000), False),
    ],
)
async def test_only_the_engine_itself_can_say_that_it_is_paused(data: bytes, paused: bool) -> None:
    engine = Engine()
    engine.says(data)
    async with running(engine), scraping(engine.url) as telemetry:
        assert await telemetry.is_paused("e", timeout_seconds=2.0) is paused


async def test_no_answer_about_a_pause_in_time_is_no_pause() -> None:
    engine = Engine()
    engine.reply = asyncio.Event().wait  # type: ignore[assignment]
    async with running(engine), scraping(engine.url) as telemetry:
        assert not await telemetry.is_paused("e", timeout_seconds=0.1)
