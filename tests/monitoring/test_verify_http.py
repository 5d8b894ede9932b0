"""Reading pages and Prometheus over HTTP: what works, and every way in which an address can disappoint."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sre.adapters.prometheus import Access, MetricsReader
from sre.errors import ConfigError, MalformedResponse, Rejected, SreError, Unreachable
from sre.metrics.exposition import Series
from sre.metrics.types import Kind
from sre.monitoring.seen import Down, Seen
from tests.conftest import require_binary, unused_port
from tests.monitoring.http_servers import VLLM, Handler, answers, prometheus, serving


async def look(handler: Handler, path: str = "", *, wanted: frozenset[str] = frozenset(), **access: Any) -> Seen:
    async with serving(handler) as base, MetricsReader(Access(**{"timeout_seconds": 5.0, **access})) as reader:
        return await reader.look(base + path, wanted)


# ---- What works ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/some/metrics", ""])
async def test_an_exporter_is_read_at_its_page_and_at_its_base(path: str) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(body=VLLM) if request.path.rstrip("/").endswith("/metrics") else web.Response(status=404)

    seen = await look(handle, path)
    assert "vllm:num_requests_running" in seen.pages
    assert seen.kinds["vllm:iteration_tokens_total"] is Kind.HISTOGRAM
    assert not seen.prometheus


async def test_an_exporter_that_gives_its_page_everywhere_is_an_exporter() -> None:
    assert "vllm:num_requests_running" in (await look(answers(VLLM))).pages


async def test_a_compressed_page_is_read() -> None:
    seen = await look(answers(gzip.compress(VLLM), Content_Encoding="gzip"), "/metrics")
    assert "vllm:num_requests_running" in seen.pages


@pytest.mark.parametrize("path", ["", "/", "/prometheus"])
async def test_a_prometheus_is_asked_for_what_is_wanted(path: str) -> None:
    series = {
        "a_total": [Series({"job": "x"}, 3.0), Series({"job": "y"}, float("nan"))],
        "b": [Series({}, 1.0)],
        "c": [],
    }
    seen = await look(prometheus(series), path, wanted=frozenset({"a_total", "c", "nothing"}))
    assert [one.labels for one in seen.fleet["a_total"]] == [{"job": "x"}, {"job": "y"}]
    assert set(seen.fleet) == {"a_total"}
    assert seen.names == {"a_total", "b", "c"}
    assert dict(seen.kinds) == {"a_total": Kind.COUNTER, "b": None, "c": None}
    assert seen.down == (Down("node", "h:9100", "refused"),)
    assert seen.prometheus


@pytest.mark.parametrize(
    "targets", [None, {"status": "success", "data": []}, {"status": "success", "data": {"activeTargets": [3]}}]
)
async def test_without_a_list_of_targets_up_tells_which_are_down(targets: Any) -> None:
    handler = prometheus({"up == 0": [Series({"job": "vllm", "instance": "e:1"}, 0.0)]}, targets=targets)
    assert (await look(handler)).down == (Down("vllm", "e:1"),)


async def test_a_name_with_too_many_series_is_sampled() -> None:
    many = [Series({"n": str(i)}, 1.0) for i in range(3000)]
    handler = prometheus({"a_total": many, "topk(500, a_total)": many[:500]})
    seen = await look(handler, wanted=frozenset({"a_total"}), max_body_bytes=100_000)
    assert len(seen.fleet["a_total"]) == 500


async def test_headers_are_sent() -> None:
    got: list[str | None] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        got.append(request.headers.get("Authorization"))
        return web.Response(body=VLLM)

    await look(handle, "/metrics", headers={"Authorization": "Bearer s3cret"})
    assert got == ["Bearer s3cret"]
    assert "s3cret" not in repr(Access({"Authorization": "Bearer s3cret"}))


# ---- What does not ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "kind", "words"),
    [
        (answers(b"", status=404), Rejected, "answers 404"),
        (answers(b"", status=401), Rejected, "--token"),
        (answers(b"", status=403), Rejected, "--token"),
        (answers(b"", status=503), Rejected, "answers 503"),
        (answers(b"", status=400), Rejected, "answers 400"),
        (answers(b"", status=302, Location="http://elsewhere/metrics"), Rejected, "http://elsewhere/metrics"),
        (answers(b"<!doctype html><title>Login</title>"), MalformedResponse, "web page"),
        (answers(b""), MalformedResponse, "no sample"),
        (answers(b'{"a": 1}'), MalformedResponse, "line 1"),
        (answers(VLLM + b"half a li"), MalformedResponse, "no sample: 'half a li'"),
        (answers(b"\x00\xff\xfe"), MalformedResponse, "not UTF-8"),
        (answers(VLLM[:100], Content_Encoding="gzip"), MalformedResponse, "broken answer"),
        (answers(VLLM, Content_Encoding="br"), MalformedResponse, "broken answer"),
        (answers(b"a 1\n" * 60_000), MalformedResponse, "more than 0.2 MB"),
        (answers(gzip.compress(b"a 1\n" * 60_000), Content_Encoding="gzip"), MalformedResponse, "more than 0.2 MB"),
    ],
)  # fmt: skip
async def test_a_page_that_disappoints_is_a_sentence(handler: Handler, kind: type[SreError], words: str) -> None:
    with pytest.raises(kind) as caught:
        await look(handler, "/metrics", max_body_bytes=200_000)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("handler", "kind", "words"),
    [
        (answers(b"", status=404), MalformedResponse, "neither a Prometheus nor"),
        (answers(b"<html></html>"), MalformedResponse, "neither a Prometheus nor"),
        (answers(b"", status=401), Rejected, "--token"),
        (answers(b"[]"), MalformedResponse, "neither a Prometheus nor"),
        (answers(b"[" * 100_000), MalformedResponse, "neither a Prometheus nor"),
        (prometheus({}, label___name___values={"status": "success", "data": 1}), MalformedResponse, "list of names"),
        (prometheus({}, metadata={"status": "success", "data": [1]}), MalformedResponse, "metadata"),
        (prometheus({}, metadata={"status": "error", "error": "no"}), MalformedResponse, "not that of a Prometheus"),
        (prometheus({}, metadata=None), Rejected, "404"),
    ],
)  # fmt: skip
async def test_a_base_url_that_disappoints_is_a_sentence(handler: Handler, kind: type[SreError], words: str) -> None:
    with pytest.raises(kind) as caught:
        await look(handler)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        {"result": [{"metric": {}, "value": [1, "much"]}]}, {"result": [{"value": [1, "1"]}]}, {"result": 3}, [], "x",
        {"result": [{"metric": 1, "value": [1, "1"]}]}, {"result": [{"metric": {}, "value": []}]}, {},
    ],
)  # fmt: skip
async def test_an_answer_to_a_query_that_cannot_be_read_is_a_sentence(data: Any) -> None:
    handler = prometheus({}, query={"status": "success", "data": data})
    async with serving(handler) as base, MetricsReader() as reader:
        with pytest.raises(MalformedResponse, match="cannot be read"):
            await reader._query(base, "x")


async def test_a_slow_drip_is_given_up() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"a 1\n")
            await asyncio.sleep(0.02)

    with pytest.raises(Unreachable, match=r"within 0\.3 s"):
        await look(handle, "/metrics", timeout_seconds=0.3)


async def test_nobody_there_is_unreachable() -> None:
    async with MetricsReader() as reader:
        with pytest.raises(Unreachable, match="does it run"):
            await reader.page(f"http://127.0.0.1:{unused_port()}/metrics")


@pytest.mark.parametrize(
    "raw", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\na 1\n"]
)
async def test_what_speaks_no_http_is_a_sentence(raw: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server, MetricsReader(Access(timeout_seconds=5)) as reader:
        with pytest.raises((Unreachable, MalformedResponse)) as caught:
            await reader.page(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    openssl = require_binary("openssl", "apt install openssl")
    folder = tmp_path_factory.mktemp("tls")
    crt, key = folder / "crt.pem", folder / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", crt],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return crt, key


async def test_tls_is_trusted_with_its_certificate_only(certificate: tuple[Path, Path]) -> None:
    crt, key = certificate
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(crt, key)
    async with serving(answers(VLLM), tls) as base:
        async with MetricsReader(Access(ca_file=crt)) as reader:
            assert (await reader.page(base + "/metrics")).names
        async with MetricsReader() as reader:
            with pytest.raises(Unreachable, match="--ca-file"):
                await reader.page(base + "/metrics")


async def test_https_where_http_is_spoken_is_a_sentence() -> None:
    async with serving(answers(VLLM)) as base, MetricsReader() as reader:
        with pytest.raises(Unreachable, match="http://"):
            await reader.page(base.replace("http://", "https://") + "/metrics")


def test_a_file_that_holds_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for path, words in ((tmp_path / "ca.pem", "holds no certificate"), (tmp_path / "none.pem", "No such file")):
        with pytest.raises(ConfigError, match=words):
            MetricsReader(Access(ca_file=path))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=80).map(str.encode)), st.booleans())
def test_whatever_bytes_an_address_gives_only_our_errors_are_raised(body: bytes, as_page: bool) -> None:
    async def try_it() -> None:
        async with serving(answers(body)) as base, MetricsReader(Access(timeout_seconds=5)) as reader:
            with contextlib.suppress(SreError):
                await (reader.page(base + "/metrics") if as_page else reader.look(base, frozenset({"up"})))

    asyncio.run(try_it())


async def test_reading_needs_an_open_reader() -> None:
    with pytest.raises(RuntimeError, match="context manager"):
        await MetricsReader().page("http://127.0.0.1:1/metrics")
