"""Pushing to Grafana: what is sent, what is done again, and a sentence for everything that goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sre.adapters.grafana import Grafana, Pushed
from sre.errors import ConfigError, MalformedResponse, Rejected, Unreachable
from tests.conftest import require_binary, unused_port
from tests.monitoring.dashboards.fake_grafana import TOKEN, VIEWER, FakeGrafana, refusal

DOCUMENTS: list[dict[str, Any]] = [
    {"id": None, "uid": f"sre-{name}", "title": name, "panels": []} for name in ("one", "two", "three")
]


@pytest.fixture
async def server() -> AsyncIterator[FakeGrafana]:
    one = FakeGrafana()
    await one.start()
    yield one
    await one.stop()


async def push(server: FakeGrafana, token: str = TOKEN, **options: Any) -> list[Pushed]:
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    async with Grafana(options.pop("url", server.url), token, pause=pause, timeout_seconds=5) as grafana:
        return await grafana.push(options.pop("documents", DOCUMENTS), **options)


def outcomes(done: list[Pushed]) -> list[str]:
    return [one.outcome for one in done]


# ---- What is done ----------------------------------------------------------------------------------------------------


async def test_new_ones_are_created_and_addresses_are_told(server: FakeGrafana) -> None:
    done = await push(server)
    assert outcomes(done) == ["created"] * 3
    assert done[0].detail == f"{server.url}/d/sre-one/slug"
    body = server.saves[0]
    assert body["dashboard"] == {"id": None, "uid": "sre-one", "title": "one", "panels": []}
    assert (body["overwrite"], body["folderUid"], body["message"]) == (True, "", "sre dashboards push")


async def test_the_same_again_changes_nothing(server: FakeGrafana) -> None:
    await push(server)
    assert outcomes(await push(server)) == ["unchanged"] * 3
    assert len(server.saves) == 3


async def test_one_that_differs_is_replaced_where_it_is(server: FakeGrafana) -> None:
    """Saving without a folder would move it to the top level."""
    server.folders["team"] = "Team"
    await push(server, folder="team")
    changed = [{**DOCUMENTS[0], "title": "new"}, *DOCUMENTS[1:]]
    assert outcomes(await push(server, documents=changed)) == ["updated", "unchanged", "unchanged"]
    document, folder = server.dashboards["sre-one"]
    assert (document["title"], document["version"], folder) == ("new", 2, "team")


async def test_a_missing_folder_is_made_once(server: FakeGrafana) -> None:
    await push(server, folder="sre", folder_title="Reliability")
    await push(server, folder="sre")
    assert server.folders == {"sre": "Reliability"}
    assert {folder for _, folder in server.dashboards.values()} == {"sre"}
    assert server.requests.count("POST /api/folders") == 1


async def test_a_folder_that_appears_meanwhile_is_as_good(server: FakeGrafana) -> None:
    def appears() -> web.Response:
        server.folders["sre"] = "Theirs"
        return refusal(409, "a folder with the same uid already exists")

    server.failures, server.failing = [appears], lambda request: request.method == "POST"
    assert outcomes(await push(server, folder="sre")) == ["created"] * 3


async def test_another_folder_moves_them(server: FakeGrafana) -> None:
    await push(server)
    assert outcomes(await push(server, folder="sre")) == ["updated"] * 3


async def test_a_dry_run_reads_only(server: FakeGrafana) -> None:
    assert outcomes(await push(server, dry_run=True, folder="sre")) == ["created"] * 3
    assert all(request.startswith("GET ") for request in server.requests)
    assert server.dashboards == {}


async def test_without_overwrite_what_differs_is_left_alone(server: FakeGrafana) -> None:
    await push(server)
    changed = [{**DOCUMENTS[0], "title": "new"}, *DOCUMENTS[1:]]
    done = await push(server, documents=changed, overwrite=False)
    assert outcomes(done) == ["failed", "unchanged", "unchanged"]
    assert done[0].detail.endswith("dashboard sre-one exists and differs; push with --overwrite to replace it")
    assert server.dashboards["sre-one"][0]["title"] == "one"


async def test_without_overwrite_new_ones_are_created(server: FakeGrafana) -> None:
    assert outcomes(await push(server, overwrite=False)) == ["created"] * 3
    assert server.saves[0]["overwrite"] is False
    assert server.saves[0]["dashboard"]["version"] == 0


async def test_below_a_path_of_a_proxy(server: FakeGrafana) -> None:
    below = FakeGrafana(prefix="/grafana")
    await below.start()
    try:
        done = await push(below, url=below.url + "/")
    finally:
        await below.stop()
    assert outcomes(done) == ["created"] * 3
    assert done[0].detail == f"{below.url}/d/sre-one/slug"


# ---- What is done again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_what_passes_by_itself_is_tried_again(server: FakeGrafana, status: int) -> None:
    server.failures = [lambda: web.Response(status=status, text="<html>busy</html>") for _ in range(2)]
    assert outcomes(await push(server)) == ["created"] * 3


async def test_three_tries_are_enough(server: FakeGrafana) -> None:
    server.failures = [lambda: web.Response(status=503) for _ in range(9)]
    done = await push(server)
    assert outcomes(done) == ["failed", "not_tried", "not_tried"]
    assert done[0].detail == (
        f"grafana {server.url}: reading dashboard sre-one: answers 503, 3 times or more; try again later"
    )
    assert len(server.requests) == 3


async def test_saving_is_repeated_only_where_that_is_harmless(server: FakeGrafana) -> None:
    """Without overwrite a save that did arrive makes its repetition fail, as if somebody else had been there."""
    server.failing = lambda request: request.method == "POST"
    server.failures = [lambda: web.Response(status=502)]
    assert outcomes(await push(server)) == ["created"] * 3
    server.dashboards.clear()
    server.failures = [lambda: web.Response(status=502)]
    assert outcomes(await push(server, overwrite=False)) == ["failed", "not_tried", "not_tried"]


# ---- What goes wrong -------------------------------------------------------------------------------------------------


async def test_a_token_that_is_not_accepted_ends_it(server: FakeGrafana) -> None:
    done = await push(server, token="old")
    assert outcomes(done) == ["failed", "not_tried", "not_tried"]
    assert "Invalid API key; the token is not accepted: it may be expired, revoked" in done[0].detail
    assert "old" not in done[0].detail


async def test_a_token_that_may_not_write_says_which_right_is_missing(server: FakeGrafana) -> None:
    done = await push(server, token=VIEWER)
    assert outcomes(done) == ["failed"] * 3
    assert "needs the role Editor, or dashboards:create, dashboards:write and folders:read (403)" in done[0].detail


async def test_a_folder_that_may_not_be_made_ends_it(server: FakeGrafana) -> None:
    with pytest.raises(Rejected, match="creating folder sre: You'll need additional permissions"):
        await push(server, token=VIEWER, folder="sre")
    assert server.saves == []


async def test_one_bad_dashboard_does_not_keep_the_others_back(server: FakeGrafana) -> None:
    documents = [DOCUMENTS[0], {**DOCUMENTS[1], "title": ""}, DOCUMENTS[2]]
    done = await push(server, documents=documents)
    assert outcomes(done) == ["created", "failed", "created"]
    assert done[1].detail.endswith(
        "saving dashboard sre-two: Dashboard title cannot be empty; Grafana refused it (400)"
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: refusal(412, "changed", status="version-mismatch"), "keeps its own, though it was told to overwrite"),
        (lambda: refusal(412, "name", status="name-exists"), "the folder holds another dashboard of that name"),
        (lambda: refusal(412, "plugin", status="plugin-dashboard"), "it belongs to a plugin"),
        (lambda: refusal(412, "odd"), "something is in its way (412)"),
        (lambda: refusal(400, "Cannot save provisioned dashboard"), "it comes from a file in Grafana's provisioning"),
        (lambda: refusal(404, "folder not found"), "there is no such folder, or --url is not the base address"),
        (lambda: refusal(413, "too large"), "Grafana refused it (413)"),
        (lambda: web.Response(status=422, text="<html>"), "Grafana refused it (422)"),
    ],
)
async def test_a_refusal_is_a_sentence_with_a_remedy(server: FakeGrafana, answer: Any, words: str) -> None:
    server.failures, server.failing = [answer], lambda request: request.method == "POST"
    done = await push(server)
    assert outcomes(done) == ["failed", "created", "created"]
    assert words in done[0].detail


@pytest.mark.parametrize("kind", ["version-mismatch", "plugin-dashboard"])
@pytest.mark.parametrize("overwrite", [True, False])
async def test_what_was_in_force_is_no_remedy(server: FakeGrafana, kind: str, overwrite: bool) -> None:
    server.failures, server.failing = [lambda: refusal(412, "no", status=kind)], lambda r: r.method == "POST"
    done = await push(server, overwrite=overwrite)
    assert ("push with --overwrite" in done[0].detail) is not overwrite


async def test_a_failure_inside_is_not_repeated(server: FakeGrafana) -> None:
    server.failures, server.failing = [lambda: refusal(500, "database is locked")], lambda r: r.method == "POST"
    done = await push(server)
    assert "fails inside (500): database is locked; see Grafana's log" in done[0].detail
    assert server.requests.count("POST /api/dashboards/db") == 1


async def test_a_redirect_is_not_followed_since_the_token_would_go_along(server: FakeGrafana) -> None:
    server.failures = [lambda: web.Response(status=301, headers={"Location": "https://elsewhere.example/"})]
    done = await push(server)
    assert outcomes(done) == ["failed", "not_tried", "not_tried"]
    assert "answered with a redirect to https://elsewhere.example/; it is not followed" in done[0].detail
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(text="<html>Welcome</html>", content_type="text/html"),
        lambda: web.json_response([1, 2]),
        lambda: web.json_response({"hello": "world"}),
        lambda: web.json_response({"dashboard": "no", "meta": 1}),
        lambda: web.Response(status=404, text="404 page not found"),
    ],
)
async def test_something_else_that_answers_there_is_told_from_grafana(server: FakeGrafana, answer: Any) -> None:
    server.failures = [answer]
    done = await push(server)
    assert outcomes(done) == ["failed", "not_tried", "not_tried"]
    assert "what answers there is not Grafana's API; give its base address, sub-path included" in done[0].detail


async def test_an_answer_without_end_is_cut_off(server: FakeGrafana, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sre.adapters.grafana.MAX_ANSWER_BYTES", 1000)
    server.failures = [lambda: web.Response(text="x" * 5000)]
    async with Grafana(server.url, TOKEN) as grafana:
        with pytest.raises(MalformedResponse):
            await grafana.find("sre-one")


async def test_nobody_there() -> None:
    url = f"http://127.0.0.1:{unused_port()}"
    async with Grafana(url, TOKEN, pause=_at_once) as grafana:
        with pytest.raises(Unreachable, match="Connection refused; is it running, and is --url right"):
            await grafana.find("x")


async def _at_once(seconds: float) -> None:
    """No waiting in tests."""


@contextlib.asynccontextmanager
async def listener(reads: int) -> AsyncIterator[str]:
    """Address of somebody who reads so many bytes (-1: until the other side hangs up), says nothing and hangs up."""
    done: list[asyncio.Event] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done.append(asyncio.Event())
        event = done[-1]
        await reader.read(reads)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        event.set()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.gather(*(event.wait() for event in done))


async def test_somebody_there_who_says_nothing() -> None:
    async with listener(-1) as url, Grafana(url, TOKEN, timeout_seconds=0.1, pause=_at_once) as grafana:
        with pytest.raises(Unreachable, match=r"no answer within 0\.1 s"):
            await grafana.find("x")


async def test_somebody_there_who_hangs_up() -> None:
    async with listener(100) as url, Grafana(url, TOKEN, pause=_at_once) as grafana:
        with pytest.raises(Unreachable, match="the connection broke"):
            await grafana.find("x")


async def test_https_asked_of_plain_http(server: FakeGrafana) -> None:
    async with Grafana(server.url.replace("http:", "https:"), TOKEN, pause=_at_once) as grafana:
        with pytest.raises(Unreachable, match="no TLS there; is it http:// instead of https://"):
            await grafana.find("x")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A key and a certificate that signs itself."""
    openssl = require_binary("openssl", "apt-get install openssl brings it")
    key, signed = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", signed, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, signed


async def test_a_certificate_is_checked_and_a_named_ca_is_trusted(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, signed = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed, key)
    server = FakeGrafana()
    await server.start(context)
    try:
        done = await push(server)
        assert outcomes(done) == ["failed", "not_tried", "not_tried"]
        assert "its TLS certificate is not trusted; name the file of its CA in SSL_CERT_FILE" in done[0].detail
        monkeypatch.setenv("SSL_CERT_FILE", str(signed))
        assert outcomes(await push(server)) == ["created"] * 3
    finally:
        await server.stop()


# ---- What is refused before anything is sent -------------------------------------------------------------------------


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="write it like http://host:3000"):
        Grafana("grafana:3000", TOKEN)


@pytest.mark.parametrize("token", ["two words", "line\nend", "schlüssel"])
def test_a_token_that_cannot_be_one_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Grafana("http://grafana", token)
    assert token not in str(caught.value)


async def test_a_foreign_message_is_shown_on_one_line(server: FakeGrafana) -> None:
    server.failures = [lambda: refusal(400, "bad\n\x1b[31mthing" + "x" * 500)]
    async with Grafana(server.url, TOKEN) as grafana:
        with pytest.raises(Rejected) as caught:
            await grafana.find("x")
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400
