"""Reading pages and Prometheus over HTTP: what works, and every way in which an address can disappoint."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sre.adapters.prometheus import Access, MetricsReader
from sre.cli.app import App
from sre.cli.rules_verify import verify
from sre.errors import ConfigError, ExitCode, MalformedResponse, Rejected, SreError, Unreachable
from sre.metrics.exposition import Series
from sre.metrics.types import Kind
from sre.monitoring.seen import Down, Seen
from tests.conftest import require_binary, unused_port

DATA = Path(__file__).parent / "data"
VLLM = (DATA / "vllm-0.32.metrics.txt").read_bytes()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answers(body: bytes, *, status: int = 200, **headers: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=body, status=status, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )

    return handle


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """``handler`` for every path; gives the base URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(app)
    await server.start_server(ssl=tls)
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


def prometheus(series: dict[str, list[Series]], **overrides: Any) -> Handler:
    """A Prometheus as far as we ask it. ``overrides``: answers by path with _ for /, None for 404."""

    async def handle(request: web.Request) -> web.StreamResponse:
        path = request.path.partition("/api/v1/")[2]
        if path.replace("/", "_") in overrides:
            answer = overrides[path.replace("/", "_")]
            return web.Response(status=404) if answer is None else web.json_response(answer)
        if path == "query":
            name = request.query["query"]
            found = [Series({}, 1.0)] if name == "vector(1)" else series.get(name, [])
            result = [{"metric": {"__name__": name, **one.labels}, "value": [1.5, str(one.value)]} for one in found]
            data: Any = {"resultType": "vector", "result": result}
        elif path == "label/__name__/values":
            data = sorted(series)
        elif path == "metadata":
            data = {
                "a_total": [{"type": "counter"}],
                "b": [{"type": "gauge"}, {"type": "counter"}],
                "c": [{"type": "unknown"}],
            }
        elif path == "targets":
            labels = {"job": "node", "instance": "h:9100"}
            data = {"activeTargets": [{"health": "down", "labels": labels, "lastError": "refused"}, {"health": "up"}]}
        else:
            return web.Response(status=404)
        return web.json_response({"status": "success", "data": data})

    return handle


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


# ---- The command -----------------------------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    """The command as the program runs it: errors are raised, the exit code is what it returns."""
    return CliRunner().invoke(verify, arguments, obj=App(None, None, False), standalone_mode=False)


def code(result: Result) -> int:
    assert result.exception is None, result.exception
    return int(result.return_value)


async def command(handler: Handler, *arguments: str, path: str = "/metrics") -> Result:
    async with serving(handler) as base:
        return await asyncio.to_thread(run, "--url", base + path, *arguments)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sre.yaml of this folder is read."""
    monkeypatch.chdir(tmp_path)


async def test_a_healthy_engine_alone_can_fire_what_it_feeds() -> None:
    result = await command(answers(VLLM))
    assert code(result) == ExitCode.OK, result.output
    assert "VllmKvCacheNearlyFull" in result.stdout
    assert "node_exporter is not among the URLs" in result.stdout
    assert "cannot fire" not in result.stdout
    assert result.stdout.rstrip().splitlines()[-1].split(": ")[1].endswith("not looked at")


async def test_an_old_engine_is_answered_no_as_json_too() -> None:
    result = await command(answers((DATA / "vllm-0.8.metrics.txt").read_bytes()), "--output", "json")
    assert code(result) == ExitCode.NO
    data = json.loads(result.stdout)
    (one,) = [alert for alert in data["alerts"] if alert["name"] == "VllmAdmissionRejections"]
    assert one["verdict"] == "cannot fire"
    assert one["reasons"][0]["cause"] == "comes later"
    assert data["exporters"][0]["release"] == "before 0.12"
    assert data["good"] is False


async def test_a_page_of_somebody_else_is_no_answer() -> None:
    result = await command(answers(b"go_goroutines 5\n"))
    assert code(result) == ExitCode.NO_ANSWER
    assert "nothing at these addresses" in result.stderr


async def test_an_address_that_fails_is_told_beside_what_the_others_say() -> None:
    gone = f"http://127.0.0.1:{unused_port()}/metrics"
    result = await command(answers(VLLM), "--url", gone)
    assert code(result) == ExitCode.COULD_NOT_RUN
    assert "VllmKvCacheNearlyFull" in result.stdout
    assert gone in result.stderr


def test_when_every_address_fails_each_is_told() -> None:
    urls = [f"http://127.0.0.1:{unused_port()}/metrics" for _ in range(2)]
    result = run("--url", urls[0], "--url", urls[1])
    assert isinstance(result.exception, Unreachable)
    assert all(url in result.stderr + str(result.exception) for url in urls)
    assert result.stdout == ""


async def test_a_prometheus_without_our_exporters_says_so() -> None:
    result = await command(prometheus({"up": [Series({"job": "vllm", "instance": "e:1"}, 0.0)]}), path="")
    assert code(result) == ExitCode.NO
    assert "is it scraped?" in result.stdout


async def test_a_token_is_read_from_its_reference_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        allowed = request.headers.get("Authorization") == "Bearer s3cret" and request.headers.get("X-Scope") == "t1"
        return web.Response(body=VLLM) if allowed else web.Response(status=401)

    (tmp_path / "scope").write_text("t1\n")
    monkeypatch.setenv("TOKEN", "s3cret")
    arguments = ("--token", "env:TOKEN", "--header", f"X-Scope=file:{tmp_path / 'scope'}")
    result = await command(handle, *arguments)
    assert code(result) == ExitCode.OK
    denied = await command(handle)
    assert isinstance(denied.exception, Rejected)
    assert "s3cret" not in result.output + denied.output + str(denied.exception)


async def test_a_secret_goes_to_its_own_url_only(monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, list[str | None]] = {"/a/metrics": [], "/b/metrics": []}

    async def handle(request: web.Request) -> web.StreamResponse:
        got[request.path].append(request.headers.get("Authorization"))
        got[request.path].append(request.headers.get("X-Scope"))
        return web.Response(body=VLLM)

    monkeypatch.setenv("TOKEN", "s3cret")
    async with serving(handle) as base:
        a, b = f"{base}/a/metrics", f"{base}/b/metrics"
        arguments = ("--url", a, "--url", b, "--token", f"{a}=env:TOKEN", "--header", f"{b}=X-Scope=env:TOKEN")
        result = await asyncio.to_thread(run, *arguments)
    assert code(result) == ExitCode.OK
    assert got == {"/a/metrics": ["Bearer s3cret", None], "/b/metrics": [None, "s3cret"]}


@pytest.mark.parametrize("option", [("--token", "env:TOKEN"), ("--header", "X-Scope=env:TOKEN")])
def test_a_secret_in_the_clear_is_warned_of(option: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    result = run("--url", "http://127.0.0.1.invalid:1/metrics", "--timeout", "1", *option)
    assert "warning: http://127.0.0.1.invalid:1/metrics: the secret for it travels unencrypted" in result.stderr
    quiet = run("--url", "http://127.0.0.1.invalid:1/metrics", "--timeout", "1")
    assert "warning" not in quiet.stderr


async def test_releases_and_prefix_are_options() -> None:
    ray = VLLM.replace(b"vllm:", b"ray_vllm:")
    told = await command(answers(ray))
    assert code(told) == ExitCode.NO
    assert code(await command(answers(ray), "--metric-prefix", "ray_vllm:")) == ExitCode.OK
    old = await command(answers((DATA / "vllm-0.8.metrics.txt").read_bytes()), "--vllm-version", "0.8")
    assert code(old) == ExitCode.OK
    wrong = run("--url", "http://h", "--vllm-version", "x")
    assert "--vllm-version: " in str(wrong.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--url", "http://h", "--url", "http://i", "--token", "env:HOME"), "whose is it"),
        (("--url", "http://h", "--url", "http://i", "--header", "X=env:HOME"), "whose is it"),
        (("--url", "http://h", "--token", "env:HOME", "--token", "env:HOME"), "given twice"),
        (("--url", "nonsense"), "is no URL"),
        (("--url", "http://h", "--token", "s3cret"), "never written here"),
        (("--url", "http://h", "--token", "env:NOT_SET_HERE"), "NOT_SET_HERE is not set"),
        (("--url", "http://h", "--header", "X-Scope"), "write it NAME=env:VARIABLE"),
        (("--url", "http://h", "--header", "X Y=env:A"), "write it NAME=env:VARIABLE"),
        (("--url", "http://h", "--ca-file", "none.pem"), "--ca-file"),
    ],
)
def test_wrong_options_are_usage_errors(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError), result.output
    assert words in str(result.exception)
    assert "s3cret" not in str(result.exception)


def test_a_url_is_needed() -> None:
    assert isinstance(run().exception, click.UsageError)


def test_a_line_end_in_a_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "a\nb")
    with pytest.raises(ConfigError, match="no header can hold"):
        raise run("--url", "http://h", "--token", "env:TOKEN").exception or AssertionError


async def test_reading_needs_an_open_reader() -> None:
    with pytest.raises(RuntimeError, match="context manager"):
        await MetricsReader().page("http://127.0.0.1:1/metrics")
