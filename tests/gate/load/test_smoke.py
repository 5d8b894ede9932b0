"""The first requests: what is there, or a sentence about what is not."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sre.errors import ConfigError, MalformedResponse, Rejected, Unreachable
from sre.gate.records import Cause
from sre.gate.stages import RequestClass
from tests.conftest import require_binary
from tests.gate.load.conftest import generator, plan, unwatched
from tests.support.engines import running_sim
from tests.support.sse_stub import Exchange, SseStub, good

pytestmark = pytest.mark.integration


async def test_what_the_simulated_engine_is_and_a_stage_on_it(tmp_path: Path) -> None:
    with running_sim(tmp_path / "sim.log", "--time-scale", "4") as engine:
        for api in ("completions", "chat"):
            async with generator(engine.url + "/v1/", model=None, api=api) as load:
                smoke = await load.smoke()
                assert (smoke.ok, smoke.detail) == (True, "")
                assert (smoke.model, smoke.streaming, smoke.usage_reported) == ("tiny", True, True)
                assert smoke.prompt_sizing == "tokenize"
                assert smoke.server.startswith("vllm 0.")
                assert smoke.max_model_len is not None
                result = await load.run(plan(rate=30, seconds=0.5), watch=unwatched, drain_seconds=10)
            assert {one.cause for one in result.records} == {Cause.OK}, result.records[0].detail
            for record in result.records:
                assert record.prompt_tokens == pytest.approx(40, abs=2)
                assert record.output_tokens == 4
                assert not record.cached_tokens


@pytest.mark.parametrize(
    ("tokenize", "counts", "method"), [(True, True, "tokenize"), (False, True, "usage"), (False, False, "chars")]
)
async def test_prompts_are_sized_by_what_the_server_counts(tokenize: bool, counts: bool, method: str) -> None:
    async with SseStub(tokenize=tokenize, counts=counts) as stub, generator(stub.url) as load:
        assert (await load.smoke()).prompt_sizing == method
        await load.run(plan(seconds=0.1), watch=unwatched, drain_seconds=5)
        words = {len(one.body["prompt"].split()) for one in stub.stage().values()}
    if method != "chars":
        assert words == {40}


class Silent(SseStub):
    """Takes a request to an optional path, and never answers, or hangs up."""

    hangs_up = False

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path not in ("/tokenize", "/version"):
            await super()._answer(path, body, writer)
        elif self.hangs_up:
            writer.close()
        else:
            await asyncio.Event().wait()


@pytest.mark.parametrize(("hangs_up", "why"), [(False, "no answer within 1 s"), (True, "the connection broke at ")])
async def test_what_a_run_can_do_without_may_stay_unanswered(hangs_up: bool, why: str) -> None:
    async with Silent() as stub, generator(stub.url, request_timeout_seconds=1.0) as load:
        stub.hangs_up = hangs_up
        smoke = await load.smoke()
        assert (smoke.ok, smoke.prompt_sizing, smoke.server) == (True, "usage", "unknown")
        stage = await load.run(plan(seconds=0.1), watch=unwatched, drain_seconds=5)
    assert {one.cause for one in stage.records} == {Cause.OK}
    for path, note in zip(("/tokenize", "/version"), stage.notes, strict=True):
        assert note.startswith(f"{path} was left out: {why}")


async def test_a_model_is_found_and_a_wrong_one_is_named() -> None:
    async with SseStub(models=("a", "b")) as stub:
        async with generator(stub.url, model=None) as load:
            assert (await load.smoke()).model == "a"
            assert load.model == "a"
        async with generator(stub.url, model="c") as load:
            with pytest.raises(Rejected, match=r"serves no model c; it serves a, b"):
                await load.smoke()
            with pytest.raises(Rejected):
                await load.run(plan(), watch=unwatched, drain_seconds=1)


async def test_nobody_there_names_the_address(free_port: Callable[[], int]) -> None:
    port = free_port()
    async with generator(f"http://user:secret@127.0.0.1:{port}") as load:
        with pytest.raises(
            Unreachable, match=rf"http://127\.0\.0\.1:{port}: no connection: Connection refused; start"
        ) as caught:
            await load.smoke()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["not a url", "ftp://host", "http://", "host:80"])
async def test_no_url_is_a_wrong_setting(url: str) -> None:
    async with generator(url) as load:
        with pytest.raises(ConfigError, match=r"gate\.target\.url"):
            await load.smoke()


async def answering(raw: bytes) -> asyncio.Server:
    """A server that says ``raw`` to whoever connects."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(raw)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("raw", "error", "words"),
    [
        (b"HTTP/1.1 401 x\r\nContent-Length: 0\r\n\r\n", Rejected, "API key"),
        (b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n", Rejected, "HTTP 404 for /v1/models"),
        (
            b"HTTP/1.1 301 x\r\nLocation: https://u:p@new/v1/models?t=s\r\nContent-Length: 0\r\n\r\n",
            Rejected,
            "HTTP 301 to https://new/v1/models for /v1/models; correct gate.target.url: write https://new$",
        ),
        (b"HTTP/1.1 200 x\r\nContent-Length: 6\r\n\r\n<html>", MalformedResponse, "no list of models"),
        (b'HTTP/1.1 200 x\r\nContent-Length: 11\r\n\r\n{"data":[]}', Rejected, "serves no model"),
        (b"SSH-2.0\r\n", MalformedResponse, "no HTTP server"),
        (b"", Unreachable, "connection broke"),
    ],
)
async def test_what_is_no_such_server_is_said(raw: bytes, error: type[Exception], words: str) -> None:
    server = await answering(raw)
    async with server, generator(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", model=None) as load:
        with pytest.raises(error, match=words):
            await load.smoke()


async def test_a_completion_that_is_redirected_says_where_to() -> None:
    async def moved(exchange: Exchange) -> None:
        await exchange.whole(308, {}, location="https://user:pass@new/v1/completions?token=secret")

    async with SseStub({"default": moved}) as stub, generator(stub.url) as load:
        with pytest.raises(Rejected) as caught:
            await load.smoke()
        stage = await load.run(plan(seconds=0.1), watch=unwatched, drain_seconds=5)
    told = (
        "redirects a streamed completion: HTTP 308 to https://new/v1/completions; redirects are not followed: correct "
        "gate.target.url: write https://new"
    )
    assert str(caught.value).endswith(told)
    assert {(one.cause, one.detail) for one in stage.records} == {
        (Cause.REDIRECT, "HTTP 308 to https://new/v1/completions")
    }


async def test_a_stream_that_is_broken_is_no_pass() -> None:
    async def no_done(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.words(8)
        await exchange.end()

    async with SseStub({"default": no_done}) as stub, generator(stub.url) as load:
        smoke = await load.smoke()
    assert not smoke.ok
    assert not smoke.streaming
    assert "truncated" in smoke.detail


async def test_a_server_that_knows_no_stream_options_is_asked_without() -> None:
    async def picky(exchange: Exchange) -> None:
        if "stream_options" in exchange.served.body:
            await exchange.whole(400, {"error": {"message": "Unknown field: stream_options"}})
        else:
            await good(exchange)

    async with SseStub({"default": picky}) as stub, generator(stub.url) as load:
        assert (await load.smoke()).ok
        result = await load.run(plan(seconds=0.1), watch=unwatched, drain_seconds=5)
    assert {one.cause for one in result.records} == {Cause.OK}


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """(certificate, key) for 127.0.0.1, signed by itself."""
    openssl = require_binary("openssl", "on Debian: apt-get install openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate),
         "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


async def test_tls_trusts_only_what_it_is_told_to(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    async with SseStub(tls=context) as stub:
        async with generator(stub.url) as load:
            with pytest.raises(Unreachable, match=r"not trusted.*tls_ca_file"):
                await load.smoke()
        async with generator(stub.url, ca_file=str(certificate[0])) as load:
            assert (await load.smoke()).ok
            result = await load.run(plan(seconds=0.1), watch=unwatched, drain_seconds=5)
            assert {one.cause for one in result.records} == {Cause.OK}
        async with generator(stub.url.replace("https", "http")) as load:
            with pytest.raises((Unreachable, MalformedResponse)):
                await load.smoke()
        async with generator(stub.url, ca_file="none.pem") as load:
            with pytest.raises(ConfigError, match=r"tls_ca_file.*No such file"):
                await load.smoke()


async def strict(exchange: Exchange) -> None:
    """Knows no ignore_eos, and takes 100 words at the most."""
    if "ignore_eos" in exchange.served.body:
        await exchange.whole(400, {"error": {"message": "unknown field ignore_eos"}})
    elif len(exchange.served.body["prompt"].split()) > 100:
        await exchange.whole(400, {"error": {"message": "the prompt is too long"}})
    else:
        await good(exchange)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (RequestClass("short", 1.0, 40, 4), r"class short, 40 prompt tokens and 4 .*ignore_eos; .*fixed_length: false"),
        (
            RequestClass("long", 0.1, 400, 4, fixed_length=False),
            r"class long, .*the prompt is too long; change prompt_tok",
        ),
    ],
)
async def test_a_request_that_the_server_refuses_is_told_before_it_counts_as_failed(
    kind: RequestClass, said: str
) -> None:
    taken = RequestClass("fits", 1.0, 40, 4, fixed_length=False, headers=(("x-kind", "a"),))
    async with SseStub({"default": strict}, tokenize=False) as stub:
        async with generator(stub.url, classes=(taken, kind)) as load:
            with pytest.raises(Rejected, match=said):
                await load.smoke()
        assert any(one.headers.get("x-kind") == "a" and one.body["stream"] for one in stub.served)
        async with generator(stub.url, classes=(taken,)) as load:
            assert (await load.smoke()).ok


async def test_a_server_that_fails_a_kind_of_request_is_for_the_stages_to_see() -> None:
    async def broken(exchange: Exchange) -> None:
        await exchange.whole(500, {"error": {"message": "boom"}})

    kind = RequestClass("short", 1.0, 40, 4, headers=(("x-script", "broken"),))
    async with SseStub({"broken": broken}) as stub, generator(stub.url, classes=(kind,)) as load:
        assert (await load.smoke()).ok


async def test_a_server_that_hangs_up_at_a_kind_of_request_is_for_the_stages_to_see() -> None:
    async def hangs_up(exchange: Exchange) -> None:
        exchange.cut()

    kind = RequestClass("short", 1.0, 40, 4, headers=(("x-script", "hangs-up"),))
    async with SseStub({"hangs-up": hangs_up}) as stub, generator(stub.url, classes=(kind,)) as load:
        assert (await load.smoke()).ok


async def test_no_question_is_written_to_a_connection_that_the_server_may_just_be_closing() -> None:
    async with SseStub() as stub, generator(stub.url) as load:
        assert (await load.smoke()).ok
        ports = [one.client_port for one in stub.served]
    assert len(ports) > 1
    assert len(set(ports)) == len(ports)


async def test_a_base_url_may_have_a_path() -> None:
    async with SseStub(prefix="/llm/a") as stub, generator(f"{stub.url}/llm/a/") as load:
        assert (await load.smoke()).ok
        result = await load.run(plan(seconds=0.2), watch=unwatched, drain_seconds=5)
    assert {one.cause for one in result.records} == {Cause.OK}
