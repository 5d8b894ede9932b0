"""Truthful outcomes on a real Envoy: what the engine did, not what the status says."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sre.actions.types import Outcome
from sre.signals.types import CanaryVerdict
from tests.gateway.harness import Bench, engine_settings, running, until

pytestmark = pytest.mark.integration

OK, BAD, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL
ANSWERS: list[tuple[str, bool, Outcome, str]] = [
    ("ok", False, OK, "ok"),
    ("ok", True, OK, "ok"),
    ("abort", False, BAD, "finish_abort"),
    ("abort", True, BAD, "finish_abort"),
    ("no_finish", False, BAD, "no_finish"),
    ("no_finish", True, BAD, "no_finish"),
    ("partial", False, BAD, "partial"),
    ("partial", True, BAD, "partial"),
    ("error", True, BAD, "error"),
    ("cut", True, BAD, "cut"),
    ("cut", False, BAD, "cut"),
    ("cut_chunked", False, BAD, "cut"),
    ("reset", False, BAD, "cut"),
    ("empty", False, BAD, "no_finish"),
    ("html", False, BAD, "no_finish"),
    ("opaque", False, NEUTRAL, "opaque"),
    ("500", False, BAD, "http_500"),
    ("503", False, BAD, "http_503"),
    ("400", False, NEUTRAL, "http_400"),
    ("404", False, NEUTRAL, "http_404"),
    ("429", False, NEUTRAL, "http_429"),
    ("queue_full", False, NEUTRAL, "queue_full"),
]


async def ask_quietly(bench: Bench, **body: Any) -> None:
    """Ask and read whatever comes: some answers end in a broken connection or an unknown encoding."""
    with contextlib.suppress(aiohttp.ClientError):
        async with bench.post(**body) as response:
            await response.content.read()


async def test_each_answer_is_judged_by_what_the_engine_did(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        for mode, stream, _, _ in ANSWERS:
            await ask_quietly(bench, user=mode, stream=stream)
        ended = await bench.finished(len(ANSWERS))
        found = [(r.outcome, r.detail, r.engine) for r in ended]
        assert found == [(outcome, detail, "a") for _, _, outcome, detail in ANSWERS]
        counts = bench.gateway.outcomes()["a"]
        assert (counts.success, counts.failure, counts.neutral) == (2, 15, 5)
        assert bench.gateway.registry.odd_lines == 0


async def test_choice_split_at_every_byte_is_read_right(short_dir: Path) -> None:
    """The filter sees buffers, not events: the stub here sends one byte at a time."""
    text = 'data: {"choices":[{"index":0,"text":"\\"error\\": 1","finish_reason" : "stop"}]}\n\ndata: [DONE]\n\n'

    async def one_byte_at_a_time(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for byte in text.encode():
            writer.write(b"1\r\n" + bytes([byte]) + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        await reader.read(1)
        writer.close()

    async with running(short_dir) as bench:
        await bench.engines["a"].stop()
        async with await asyncio.start_server(one_byte_at_a_time, "127.0.0.1", bench.engines["a"].port):
            status, _, answer = await bench.ask(stream=True)
            (ended,) = await bench.finished(1)
        assert (status, answer) == (200, text)
        assert (ended.outcome, ended.detail) == (OK, "ok")


async def test_client_that_leaves_is_neutral_and_counted(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        async with bench.post(user="hold", stream=True) as response:
            await response.content.readuntil(b"\n\n")
            response.close()
        (ended,) = await bench.finished(1)
        assert (ended.outcome, ended.detail, ended.engine) == (NEUTRAL, "client_abort", "a")
        assert bench.gateway.outcomes()["a"].client_aborts == 1
        await until(_is_zero(bench, "a"), "the engine still has the request of a client that left")


async def test_engine_that_does_not_listen_is_a_failure_of_its_own(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.engines["a"].stop()
        status, headers, text = await bench.ask()
        assert status == 503
        assert headers["x-sre-reason"] == "connect_failure"
        assert headers["retry-after"] == "5"
        assert "x-sre-rejected" not in headers
        assert '"code":"connect_failure"' in text
        (ended,) = await bench.finished(1)
        assert (ended.outcome, ended.detail, ended.engine) == (BAD, "connect_failure", "a")


async def test_engine_without_an_answer_is_given_up_after_the_first_byte_timeout(short_dir: Path) -> None:
    async with running(short_dir, first_byte_timeout_seconds=0.3) as bench:
        status, headers, _ = await bench.ask(user="hang")
        assert (status, headers["x-sre-reason"]) == (504, "timeout")
        (ended,) = await bench.finished(1)
        assert (ended.outcome, ended.detail) == (BAD, "timeout")


async def test_engine_that_stalls_in_mid_stream_is_a_failure(short_dir: Path) -> None:
    async with running(short_dir, first_byte_timeout_seconds=0.3) as bench:
        await ask_quietly(bench, user="hold", stream=True)
        (ended,) = await bench.finished(1)
        assert (ended.outcome, ended.engine) == (BAD, "a")
        assert ended.bytes_sent > 0


async def test_retry_on_another_engine_is_seen_as_a_failure_of_the_first(short_dir: Path) -> None:
    async with running(short_dir, engines=engine_settings("a", "b")) as bench:
        await bench.engines["a"].stop()
        for _ in range(6):
            status, _, _ = await bench.ask()
            assert status == 200
        ended = await bench.finished(6)
        assert {r.engine for r in ended} == {"b"}
        counts = bench.gateway.outcomes()
        assert counts["b"].success == 6
        assert counts["a"].failure == sum(r.attempts - 1 for r in ended) > 0


async def test_request_is_never_run_twice_once_an_engine_has_it(short_dir: Path) -> None:
    async with running(short_dir, engines=engine_settings("a", "b")) as bench:
        await ask_quietly(bench, user="reset")
        await ask_quietly(bench, user="500")
        assert sum(len(stub.seen) for stub in bench.engines.values()) == 2


async def test_open_request_is_known_with_its_context(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        async with bench.post("/v1/chat/completions", user="hold", stream=True, max_tokens=77) as response:
            await response.content.readuntil(b"\n\n")

            async def known() -> bool:
                bench.gateway.poll_log()
                return any(r.engine is not None for r in bench.gateway.in_flight())

            await until(known, "the open request in the registry")
            (seen,) = bench.gateway.in_flight()
            assert seen.request_id == response.headers["x-request-id"]
            assert (seen.path, seen.model, seen.engine) == ("/v1/chat/completions", "m", "a")
            assert (seen.max_tokens, seen.stream) == (77, True)
            assert seen.client.startswith("127.0.0.1:")
            assert seen.bytes_sent > 100
            assert 0 < seen.age_seconds < 5
            assert (await bench.gateway.in_flight_counts())["a"].value == 1
            bench.engines["a"].release.set()
            await response.read()
        await bench.finished(1)
        assert bench.gateway.in_flight() == []
        assert (await bench.gateway.in_flight_counts())["a"].value == 0


async def test_tokens_of_the_newer_chat_field_are_seen(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        body = {"model": "m", "max_completion_tokens": 9, "user": "hold", "stream": True}
        async with bench.http.post(bench.envoy.url + "/v1/chat/completions", json=body) as response:
            await response.content.readuntil(b"\n\n")

            async def known() -> bool:
                bench.gateway.poll_log()
                return [r.max_tokens for r in bench.gateway.in_flight()] == [9]

            await until(known, "max_completion_tokens in the registry")


class TestProbe:
    async def probe(self, bench: Bench, mode: str, engine: str = "a") -> tuple[CanaryVerdict, str]:
        bench.engines["a"].mode = mode
        result = await bench.gateway.probe(engine, 7, first_token_timeout_seconds=0.4, timeout_seconds=0.8)
        assert (result.engine, result.generation) == (engine, 7)
        assert (result.first_token_seconds is not None) == (mode in {"ok", "abort", "hold", "error", "no_finish"})
        return result.verdict, result.detail

    async def test_verdicts(self, short_dir: Path) -> None:
        async with running(short_dir) as bench:
            assert await self.probe(bench, "ok") == (CanaryVerdict.SUCCESS, "ok")
            assert await self.probe(bench, "abort") == (CanaryVerdict.FAILURE, "finish_abort")
            assert await self.probe(bench, "no_finish") == (CanaryVerdict.FAILURE, "no_finish")
            assert await self.probe(bench, "error") == (CanaryVerdict.FAILURE, "error")
            assert await self.probe(bench, "hang") == (CanaryVerdict.FAILURE, "first_token_timeout")
            assert await self.probe(bench, "hold") == (CanaryVerdict.FAILURE, "timeout")
            assert await self.probe(bench, "500") == (CanaryVerdict.FAILURE, "http_500")
            assert await self.probe(bench, "503") == (CanaryVerdict.FAILURE, "http_503")
            assert await self.probe(bench, "queue_full") == (CanaryVerdict.NEUTRAL, "queue_full")
            assert await self.probe(bench, "429") == (CanaryVerdict.NEUTRAL, "http_429")
            assert await self.probe(bench, "400") == (CanaryVerdict.NEUTRAL, "http_400")
            _, _, body = bench.engines["a"].seen[0]
            assert (body["max_tokens"], body["temperature"], body["model"]) == (1, 0, "m")
            prompts = [body["prompt"] for _, _, body in bench.engines["a"].seen]
            assert len(set(prompts)) == len(prompts)

    async def test_dead_engine_and_dead_gateway_are_failures_and_no_exceptions(self, short_dir: Path) -> None:
        async with running(short_dir) as bench:
            await bench.engines["a"].stop()
            assert await self.probe(bench, "stopped") == (CanaryVerdict.FAILURE, "http_503")
            bench.envoy.stop()
            verdict, detail = await self.probe(bench, "stopped")
            assert (verdict, detail.partition(":")[0]) == (CanaryVerdict.FAILURE, "transport")

    async def test_probe_is_no_traffic(self, short_dir: Path) -> None:
        async with running(short_dir) as bench:
            bench.engines["a"].mode = "hang"
            probing = asyncio.create_task(bench.gateway.probe("a", 1, first_token_timeout_seconds=5, timeout_seconds=5))
            await until(_has_one(bench), "the probe at the engine")
            assert (await bench.gateway.in_flight_counts())["a"].value == 0
            bench.engines["a"].release.set()
            assert (await probing).verdict is CanaryVerdict.SUCCESS
            await bench.ask(user="ok")
            assert len(await bench.finished(1)) == 1
            assert bench.gateway.outcomes()["a"].success == 1

    async def test_probe_socket_is_for_the_owner_only(self, short_dir: Path) -> None:
        async with running(short_dir) as bench:
            assert bench.envoy.paths.probe_socket.stat().st_mode & 0o777 == 0o600
            assert bench.envoy.paths.admin_socket.stat().st_mode & 0o777 == 0o600


def _is_zero(bench: Bench, engine: str) -> Any:
    async def check() -> bool:
        return (await bench.gateway.in_flight_counts())[engine].value == 0

    return check


def _has_one(bench: Bench) -> Any:
    async def check() -> bool:
        return bench.engines["a"].open == 1

    return check
