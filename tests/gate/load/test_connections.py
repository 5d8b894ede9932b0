"""The client's connections: the same records as with a client that is not ours, and what only ours has to do."""

from __future__ import annotations

import asyncio
import base64
import gzip
import time
from collections.abc import Mapping
from typing import Any

import pytest

from sre.adapters.load.connections import Connections, header_problem
from sre.adapters.load.exchange import Client
from sre.adapters.load.sender import Sender
from sre.adapters.load.session import IDLE_SECONDS
from sre.adapters.load.wire import News, StageOrder, Target, record_of
from sre.gate.prompts import scale_by_chars
from sre.gate.records import Cause, RequestRecord
from sre.gate.schedule import schedule
from sre.gate.stages import RequestClass, StagePlan
from tests.gate.load.conftest import plan, scripted
from tests.gate.load.endings import ENDINGS, busy
from tests.support.aiohttp_client import AiohttpClient
from tests.support.sse_stub import Exchange, SseStub, event_bytes, good

pytestmark = pytest.mark.integration


async def send(client: Client, target: Target, stage: StagePlan, *, drain_seconds: float = 10.0) -> list[RequestRecord]:
    """The sender in this process, on ``client``."""
    words = {40: scale_by_chars().words(40)}
    order = StageOrder(target, stage, (), 0, 1, words, "salt", 1000, 10.0, drain_seconds, None)
    told: list[News] = []
    await Sender(order, schedule(stage), client, 1000, told.append).run(time.monotonic() + 0.02)
    return sorted((record_of(row) for news in told for row in news.rows), key=lambda record: record.number)


def said(record: RequestRecord) -> tuple[Any, ...]:
    """What does not depend on the moment."""
    return (
        record.number, record.request_class, record.cause, record.outcome, record.status, record.chunks,
        record.finish_reason, record.prompt_tokens, record.output_tokens, record.cached_tokens,
        record.sent_at is None, record.head_at is None, record.first_chunk_at is None, record.first_content_at is None,
    )  # fmt: skip


async def trickle(exchange: Exchange) -> None:
    """Byte by byte, so that heads, chunk sizes and events are all cut."""
    body = event_bytes({"choices": [{"index": 0, "text": " wörd", "finish_reason": "stop"}]}) + b"data: [DONE]\n\n"
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    for part in (body[:20], body[20:]):
        raw += b"%x\r\n%s\r\n" % (len(part), part)
    for byte in raw + b"0\r\n\r\n":
        await exchange.raw(bytes([byte]), "content")
        await asyncio.sleep(0)


async def interim(exchange: Exchange) -> None:
    await exchange.raw(b"HTTP/1.1 100 Continue\r\n\r\n")
    await good(exchange)


async def until_close(exchange: Exchange) -> None:
    await exchange.head(chunked=False)
    await exchange.words(4)
    await exchange.usage()
    await exchange.done()


async def cut_in_a_chunk(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text()
    await exchange.raw(b"ff\r\ndata: {")
    exchange.cut()


async def shorter_than_said(exchange: Exchange) -> None:
    await exchange.raw(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"choices": [')
    exchange.cut()


async def long_error(exchange: Exchange) -> None:
    await exchange.whole(500, b"x" * 100_000, content_type="text/plain")


SCRIPTS = {
    script.__name__: script
    for script in (*ENDINGS, trickle, interim, until_close, cut_in_a_chunk, shorter_than_said, long_error)
}


async def test_records_are_those_of_another_client() -> None:
    stage = plan(*(scripted(name, 1 / len(SCRIPTS)) for name in SCRIPTS), rate=400, seconds=0.5)
    both = []
    async with SseStub(SCRIPTS) as stub:
        target = Target(stub.url, "completions", "stub")
        for kind in (Connections, AiohttpClient):
            client = kind(target)
            both.append(await send(client, target, stage))
            await client.close()
    ours, theirs = both
    assert {record.request_class for record in ours} == set(SCRIPTS)
    assert [said(record) for record in ours] == [said(record) for record in theirs]


async def test_a_wrong_chunk_ends_the_answer_and_what_came_before_is_kept() -> None:
    """The other client waits for its deadline, or forgets what came in the same piece."""

    async def wrong_chunk(exchange: Exchange) -> None:
        await exchange.head()
        event = event_bytes({"choices": [{"index": 0, "text": " word", "finish_reason": None}]})
        await exchange.raw(b"%x\r\n%s\r\nzz\r\n" % (len(event), event))
        await asyncio.sleep(60)

    async with SseStub({"wrong": wrong_chunk}) as stub:
        target = Target(stub.url, "completions", "stub")
        client = Connections(target)
        (record,) = await send(client, target, plan(scripted("wrong"), rate=1, seconds=0.1))
        await client.close()
    assert (record.cause, record.chunks, record.status) == (Cause.TRUNCATED, 1, 200)
    assert "chunk" in record.detail


async def test_an_answer_that_is_compressed_is_called_so_and_not_a_broken_one() -> None:
    async def compressed(exchange: Exchange) -> None:
        await exchange.head(content_encoding="gzip")
        await exchange.send(gzip.compress(event_bytes({"choices": []})))
        await exchange.end()

    async with SseStub({"compressed": compressed}) as stub:
        target = Target(stub.url, "completions", "stub")
        client = Connections(target)
        (record,) = await send(client, target, plan(scripted("compressed"), rate=1, seconds=0.1))
        await client.close()
    assert (record.cause, record.status) == (Cause.MALFORMED, 200)
    assert record.detail == "its body is compressed (gzip), which nobody asked for"


async def test_a_connection_is_used_again_unless_it_was_idle_for_long_or_the_server_wants_none() -> None:
    async def wants_none(exchange: Exchange) -> None:
        await exchange.whole(503, {"error": "busy"}, connection="close")

    async with SseStub({"busy": busy, "close": wants_none}) as stub:
        target = Target(stub.url, "completions", "stub")
        client = Connections(target)
        for name in ("busy", "busy", "close", "busy"):
            (record,) = await send(client, target, plan(scripted(name), rate=1, seconds=0.05))
            assert record.cause is Cause.SERVER_ERROR
        (kept,) = client._idle
        kept.idle_since -= IDLE_SECONDS + 1
        await send(client, target, plan(scripted("busy"), rate=1, seconds=0.05))
        await client.close()
        ports = [one.client_port for one in stub.served]
    assert ports[0] == ports[1] == ports[2]
    assert len({ports[0], ports[3], ports[4]}) == 3


async def test_a_connection_that_the_server_closed_is_not_used_and_unasked_bytes_close_it() -> None:
    async def then_close(exchange: Exchange) -> None:
        await good(exchange)
        await asyncio.sleep(0.05)
        exchange.cut()

    async def then_more(exchange: Exchange) -> None:
        await good(exchange)
        await asyncio.sleep(0.05)
        await exchange.raw(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.sleep(0.05)

    async with SseStub({"close": then_close, "more": then_more}) as stub:
        target = Target(stub.url, "completions", "stub")
        for name in ("close", "more"):
            client = Connections(target)
            for _ in range(2):
                (record,) = await send(client, target, plan(scripted(name), rate=1, seconds=0.2))
                assert record.cause is Cause.OK, record.detail
                assert record.connect_seconds > 0
            await client.close()


@pytest.mark.parametrize(
    ("fresh_too", "stale_seconds", "cause"),
    [(False, 10.0, Cause.OK), (False, 0.0, Cause.TRANSPORT), (True, 10.0, Cause.TRANSPORT)],
)
async def test_a_request_on_a_connection_that_was_stale_is_sent_again_once(
    fresh_too: bool, stale_seconds: float, cause: Cause
) -> None:
    """Closed without a byte on a kept connection; what a fresh one does, or a late end, is the server's own failure."""
    first: set[int] = set()

    async def once_only(exchange: Exchange) -> None:
        port = exchange.served.client_port
        if port in first or (fresh_too and first):
            await asyncio.sleep(1.0)
            exchange.cut()
        first.add(port)
        await good(exchange)

    async with SseStub({"once": once_only}) as stub:
        target = Target(stub.url, "completions", "stub")
        client = Connections(target, stale_seconds)
        records = await send(client, target, plan(scripted("once"), rate=5, seconds=0.4))
        await client.close()
        asked = [one.number for one in stub.served]
    before, after = records
    assert (before.cause, before.sent_again) == (Cause.OK, False)
    assert (after.cause, after.sent_again) == (cause, stale_seconds > 0)
    assert asked == [0, 1, 1][: 2 + after.sent_again]
    assert after.lag_seconds is not None
    assert after.lag_seconds < 0.5, "the server's closing is no lateness of the client"
    assert after.connect_seconds == 0
    if cause is Cause.OK:
        assert after.ttft_seconds > 0.02


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def addresses(*_: Any, **__: Any) -> list[Any]:
        nonlocal asked
        asked += 1
        # Nobody listens at the first.
        return [(2, 1, 6, "", (f"127.0.0.{last}", 0)) for last in (9, 1)]

    async with SseStub() as stub:
        target = Target(f"http://several.invalid:{stub.port}", "completions", "stub")
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
        client = Connections(target)
        records = await send(client, target, plan(rate=100, seconds=0.2))
        await client.close()
    assert {record.cause for record in records} == {Cause.OK}
    assert asked == 1


async def test_headers_of_a_request() -> None:
    heads: list[Mapping[str, str]] = []
    kind = RequestClass(
        "short", 1.0, 40, 1, headers=(("X-Priority", "batch"), ("ACCEPT", "x"), ("Content-Length", "9"))
    )
    async with SseStub() as stub:
        for target in (
            Target(stub.url.replace("//", "//us%20er:word@"), "completions", "stub"),
            Target(stub.url, "completions", "stub", api_key="key"),
        ):
            client = Connections(target)
            await send(client, target, plan(kind, rate=1, seconds=0.1))
            await client.close()
            heads += [one.headers for one in stub.served]
            stub.forget()
        host = f"127.0.0.1:{stub.port}"
    basic, bearer = heads
    assert basic["authorization"] == "Basic " + base64.b64encode(b"us er:word").decode()
    assert bearer["authorization"] == "Bearer key"
    assert basic["host"] == host
    assert (basic["accept"], basic["x-priority"], basic["x-request-id"]) == ("x", "batch", "salt-0")
    assert basic["user-agent"].startswith("sre-gate/")


@pytest.mark.parametrize("header", [("X A", "b"), ("", "b"), ("X", "a\r\nb"), ("X", "a\0"), ("X", "€"), ("É", "b")])
def test_a_header_that_cannot_be_sent(header: tuple[str, str]) -> None:
    assert header_problem(*header)
    assert header_problem("X-Priority", "batch é") is None


async def test_a_mistake_of_ours_ends_the_stage_with_it() -> None:
    """It must not look like a server that does not answer."""
    async with SseStub() as stub:
        target = Target(stub.url, "completions", "stub")
        client = Connections(target)
        kind = RequestClass("short", 1.0, 40, 1, headers=(("X", "a\nb"),))
        with pytest.raises(ValueError, match="line breaks"):
            await send(client, target, plan(kind, rate=5, seconds=0.5))
        await client.close()
