"""TLS, links that acknowledge, and what the commands say."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from click.testing import CliRunner

from sre.adapters.clock import SystemClock
from sre.cli.app import App
from sre.cli.webhook import webhook as command
from sre.control.ack_links import AckLinks, Said
from sre.control.acknowledgements import Acknowledgements
from sre.control.alert_intake import AlertIntake
from sre.control.alert_outage import OutageWatch
from sre.errors import ConfigError
from sre.notify.ack_token import ack_token
from sre.notify.alert_records import Wanted
from sre.notify.links import AckAddress, Links
from sre.servers.alert_webhook_credentials import OVERLAP_SECONDS, Credentials, Keyring
from sre.servers.alert_webhook_tls import Certificate
from sre.servers.exporter import Metrics
from sre.servers.exporter_webhook import WebhookMetrics
from sre.servers.gate import tls_context
from sre.settings.models import Root
from sre.settings.notify import ChannelSettings, NotifySettings
from sre.settings.paths import StatePaths
from sre.settings.webhook import ActionSettings, RouteSettings, WebhookSettings
from sre.testing.clock import ManualClock
from sre.wiring.guard import Numbers
from sre.wiring.guard_webhook import (
    CertificateWatch,
    Webhook,
    ack_secret_of,
    credentials_of,
    held_by,
    keyring_of,
    message_links,
    serve_webhook,
    webhook_problems,
)
from sre.wiring.known_secrets import webhook_secrets
from tests.support.providers import make_certificate
from tests.webhook.live import BEARER, Receiver, receiver
from tests.webhook.scenes import Desk, body, one

SECRET = b"0123456789abcdef-secret"


# ---- TLS -------------------------------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_over_tls(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "webhook", "IP:127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(made.file))
    async with receiver(tmp_path, tls=tls_context(str(made.file), str(made.key))) as webhook:
        assert (await webhook.post(body(one()), ssl=trusting))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await webhook.post(body(one()))
        # Who speaks no TLS there is dropped, and takes nobody's place.
        assert b"HTTP" not in await webhook.raw(b"POST / HTTP/1.1\r\n\r\n", read_seconds=5)
        assert (await webhook.post(body(one(node="n2")), ssl=trusting))[0] == 200


def fingerprint(port: int) -> str:
    """Of the certificate that a listener shows now."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))).hexdigest()


@pytest.mark.integration
async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    first, second = (make_certificate(tmp_path, name, "IP:127.0.0.1") for name in ("first", "second"))
    shown, key = tmp_path / "shown.pem", tmp_path / "shown.key"
    shutil.copy(first.file, shown)
    shutil.copy(first.key, key)
    told: list[str] = []
    certificate = Certificate(str(shown), str(key))
    watch = CertificateWatch(certificate, told.append)
    async with receiver(tmp_path, tls=certificate.context) as webhook:
        seen = [await asyncio.to_thread(fingerprint, webhook.port)]
        old = ssl.create_default_context(cafile=str(first.file))
        async with aiohttp.ClientSession() as session:

            async def post_kept_open(node: str) -> int:
                async with session.post(webhook.url, data=body(one(node=node)), headers=BEARER, ssl=old) as answer:
                    return answer.status

            assert await post_kept_open("n1") == 200
            await watch.look()
            # Half of a renewal: the certificate is there and its key not yet.
            shutil.copy(second.file, shown)
            await watch.look()
            assert told == [], "the other half may be about to come"
            seen.append(await asyncio.to_thread(fingerprint, webhook.port))
            for _ in range(3):
                await watch.look()
            assert len(told) == 1
            assert "the old one is used on" in told[0]
            shutil.copy(second.key, key)
            await watch.look()
            seen.append(await asyncio.to_thread(fingerprint, webhook.port))
            key.unlink()
            await watch.look()
            seen.append(await asyncio.to_thread(fingerprint, webhook.port))
            assert seen[0] == seen[1] != seen[2] == seen[3]
            assert await post_kept_open("n2") == 200, "a connection keeps what it began with"
        new = ssl.create_default_context(cafile=str(second.file))
        assert (await webhook.post(body(one(node="n3")), ssl=new))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await webhook.post(body(one(node="n4")), ssl=old)


def test_a_certificate_that_cannot_be_renewed_is_told_to_a_person(desk: Desk) -> None:
    desk.later(Wanted(), lambda later: later.uncertified("webhook.tls_certificate cannot be renewed (x)"))
    assert [m.reason for m in desk.messages()] == ["tls-certificate"]


# ---- sre webhook serve -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "anybody could"),
        ({"token": "env:NOT_THERE"}, "NOT_THERE"),
        ({"token": "env:T", "tls_certificate": "/nowhere.pem", "tls_key": "/nowhere.key"}, "tls_certificate"),
        ({"token": "env:T", "ack_secret": "env:SHORT", "public_url": "https://h"}, "ack_secret"),
    ],
)
async def test_what_keeps_it_from_listening_is_said_before_anything_is_made(
    tmp_path: Path, settings: dict[str, str], named: str
) -> None:
    root = Root(webhook=WebhookSettings(**settings))  # type: ignore[arg-type]
    found = webhook_problems(root.webhook, {"T": "token", "SHORT": "short"})
    (problem,) = (*found.missing, *found.unusable)
    assert bool(found.missing) == (named in ("NOT_THERE", "tls_certificate")), "these may come"
    assert named in problem, "the doctor says it, too"
    paths = StatePaths(tmp_path / "state")
    with pytest.raises(ConfigError, match=named):
        await serve_webhook(root, paths, {"T": "token", "SHORT": "short"}, lambda _: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
@pytest.mark.parametrize("late_secrets", [False, True])
async def test_a_channel_that_would_tell_nobody_is_refused_before_it_listens(
    tmp_path: Path, late_secrets: bool
) -> None:
    channels = tuple(ChannelSettings(name=name.lower(), kind="webhook", url=f"env:{name}") for name in ("GONE", "BAD"))
    root = Root(webhook=WebhookSettings(token="env:T"), notify=NotifySettings(channels=channels))
    environ = {"T": "token", "BAD": "nosuch://x"}
    with pytest.raises(ConfigError) as refused:
        await serve_webhook(root, StatePaths(tmp_path / "s"), environ, lambda _: None, late_secrets=late_secrets)
    assert "notify.channels[1].url: there is no service nosuch://" in refused.value.problems[0]
    assert any("GONE is not set" in problem for problem in refused.value.problems) is not late_secrets
    assert any("--late-secrets" in problem for problem in refused.value.problems) is not late_secrets


async def test_why_it_does_not_listen_is_known_until_it_does(tmp_path: Path) -> None:
    class Nothing:
        async def run(self) -> None:
            await asyncio.Event().wait()

    settings = WebhookSettings(token=f"file:{tmp_path / 'token'}")
    metrics = WebhookMetrics(Metrics())
    clock = SystemClock()
    intake, outage = cast(AlertIntake, Nothing()), cast(OutageWatch, Nothing())
    running = asyncio.create_task(Webhook(settings, intake, metrics, None, clock, outage).run({}))
    try:
        for _ in range(3):
            await asyncio.sleep(0)
        assert metrics.deaf.startswith(f"webhook.token: secret file {tmp_path / 'token'}: No such file")
        assert metrics.not_taken_in() == metrics.deaf
        assert not metrics.listening
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_a_webhook_that_listens_and_cannot_store_takes_nothing_in() -> None:
    metrics = WebhookMetrics(Metrics())
    metrics.listening = True
    numbers = Numbers()
    numbers.webhook = Webhook(
        WebhookSettings(), cast(AlertIntake, None), metrics, None, SystemClock(), cast(OutageWatch, None)
    )
    assert numbers.deaf() == ""
    metrics.problem = lambda: "guard state: disk full"
    assert numbers.deaf() == "guard state: disk full", "what its /healthz answers 503 for, status says, too"
    metrics.problem = lambda: None
    assert numbers.deaf() == ""


def test_whoever_holds_the_state_is_called_what_it_is(tmp_path: Path) -> None:
    assert "a guard with pid" in held_by(os.getpid(), tmp_path)
    code = "import sys; print(flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, "sre", "webhook", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()  # it is what it was started as
        assert f"another sre webhook serve (pid {other.pid})" in held_by(other.pid, tmp_path)
    finally:
        other.communicate(timeout=60)


# ---- links that acknowledge ------------------------------------------------------------------------------------------


class Held:
    """A receiver with links, and one incident that is open."""

    def __init__(self, webhook: Receiver, links: AckLinks) -> None:
        self.webhook, self.links = webhook, links

    @property
    def incident(self) -> str:
        return str(self.webhook.store.outbox()[0].message.incident_id)

    def query(self, token: str | None = None, incident: str | None = None) -> dict[str, str]:
        good = ack_token(self.incident, SystemClock().wall() + 60, SECRET)
        return {"incident": incident or self.incident, "t": good if token is None else token}

    async def ask(self, method: str, query: dict[str, str], data: dict[str, str] | None = None) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.webhook.port}/ack"
        async with aiohttp.ClientSession() as session, session.request(method, url, params=query, data=data) as answer:
            return answer.status, await answer.text()

    def acknowledged(self) -> str | None:
        connection = self.webhook.store._connection
        row = connection.execute("SELECT acked_by FROM incident WHERE id = ?", (self.incident,)).fetchone()
        return None if row is None or row[0] is None else str(row[0])


@pytest.fixture
async def held(tmp_path: Path) -> object:
    class Late:
        """Made before the store it writes into."""

        links: AckLinks | None = None

        def check(self, incident_id: str, token: str) -> str | None:
            assert self.links is not None
            return self.links.check(incident_id, token)

        async def acknowledge(self, incident_id: str, token: str, by: str) -> Said:
            assert self.links is not None
            return await self.links.acknowledge(incident_id, token, by)

    late = Late()
    async with receiver(tmp_path, acknowledger=late) as webhook:
        late.links = AckLinks(SECRET, Acknowledgements(webhook.store, (), wake=lambda: None), SystemClock())
        await webhook.post(body(one(node="n1")))
        yield Held(webhook, late.links)


@pytest.mark.integration
async def test_looking_at_a_link_changes_nothing_and_the_button_acknowledges(held: Held) -> None:
    status, page = await held.ask("GET", held.query())
    assert status == 200
    assert held.incident in page
    assert '<form method="post" action="/ack">' in page
    assert held.acknowledged() is None, "mail scanners follow links"
    fields = dict(re.findall(r'name="(incident|t)" value="([^"]*)"', page))
    status, page = await held.ask("POST", {}, {**fields, "by": "ann <b>"})
    assert status == 200
    assert "acknowledged by ann &lt;b&gt;" in page
    assert held.acknowledged() == "ann <b>"
    assert "already" in (await held.ask("POST", {}, {**fields, "by": "bob"}))[1]
    assert held.acknowledged() == "ann <b>"


@pytest.mark.integration
async def test_the_page_says_what_became_of_it_and_never_acknowledged_of_what_is_not(held: Held) -> None:
    status, page = await held.ask("POST", {}, {**held.query(), "by": "ann\r\ninc-1  open \u202e"})
    assert (status, "<h1>Acknowledged</h1>" in page) == (200, True)
    assert held.acknowledged() == "ann inc-1 open ?", "one line: lists show it beside lines of ours"
    page = (await held.ask("POST", {}, {**held.query(), "by": "bob"}))[1]
    assert "<h1>Acknowledged already</h1>" in page
    gone = "inc-20270115-080000-0009"
    token = ack_token(gone, SystemClock().wall() + 60, SECRET)
    status, page = await held.ask("POST", {}, {**held.query(token, gone), "by": "bob"})
    assert status == 404
    assert "<h1>Not acknowledged</h1>" in page
    await held.webhook.post(body(one(node="n1", status="resolved")))
    page = (await held.ask("POST", {}, {**held.query(), "by": "bob"}))[1]
    assert "<h1>Over already</h1>" in page


@pytest.mark.integration
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_link_that_is_wrong_or_too_old_opens_nothing(held: Held, method: str) -> None:
    old = ack_token(held.incident, SystemClock().wall() - 1, SECRET)
    foreign = ack_token(held.incident, SystemClock().wall() + 60, b"another-secret-of-16")
    other = ack_token("inc-20270115-080000-0001", SystemClock().wall() + 60, SECRET)
    for token in ("", "x", old, foreign, other):
        query = held.query(token)
        status, page = await held.ask(method, query if method == "GET" else {}, query if method == "POST" else None)
        assert status == 403, token
        assert ("too old" in page) == (token == old)
    assert held.acknowledged() is None
    query = held.query("x", "<script>alert(1)</script>")
    assert "<script>" not in (await held.ask("GET", query))[1]
    assert (await held.ask("POST", {}, {"by": "x" * 10_000}))[0] == 413


def test_messages_carry_the_link_where_both_ends_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = WebhookSettings(public_url="https://sre.example:9401/", ack_secret="env:ACK")
    root = Root(webhook=settings)
    links = message_links(root, {"ACK": SECRET.decode()})
    link = links.acknowledge("inc-20270115-080000-a001", "open", 1_800_000_000.0)
    assert link.startswith("https://sre.example:9401/ack?incident=inc-20270115-080000-a001&t=18000864")
    assert links.acknowledge("inc-1", "resolve", 0.0) == ""
    assert SECRET.decode() not in repr(links)
    assert message_links(root, {}).acknowledgement is None, "a secret that is gone costs the link only"
    assert Links().acknowledge("inc-1", "open", 0.0) == ""
    assert AckAddress("http://h", SECRET, 60.0).of("a b", 0.0).startswith("http://h/ack?incident=a%20b&t=60.")


def test_no_token_is_no_open_door() -> None:
    assert not Credentials().fits("Bearer ")
    assert not Credentials(basic=("u", "p")).fits("Bearer None")


def bearer(token: str) -> str:
    return f"Bearer {token}"


@pytest.mark.integration
async def test_a_replaced_token_is_good_at_once_and_the_old_one_for_a_while(tmp_path: Path) -> None:
    """Alertmanager never repeats what is answered 401, and it may have the new token before us, or after."""
    file, clock = tmp_path / "token", ManualClock()
    file.write_text("first-token\n")
    keyring = keyring_of(WebhookSettings(token=f"file:{file}"), {}, clock)
    async with receiver(tmp_path, door=keyring) as webhook:

        async def post(token: str, node: str) -> int:
            return (await webhook.post(body(one(node=node)), {"Authorization": bearer(token)}))[0]

        assert await post("first-token", "n1") == 200
        assert await post("second-token", "n2") == 401
        file.write_text("second-token\n")
        assert await post("second-token", "n2") == 200
        assert await post("first-token", "n3") == 200
        clock.advance(OVERLAP_SECONDS)
        assert await post("first-token", "n4") == 401
        assert await post("second-token", "n4") == 200
        # Between two lives of a file nobody knows who may post: that is no reason to lose an alert.
        file.unlink()
        assert await post("third-token", "n5") == 503
        assert await post("second-token", "n6") == 200
        file.write_text("third-token\n")
        assert await post("third-token", "n5") == 200


async def test_a_token_that_was_taken_back_ends_though_nobody_shows_another() -> None:
    clock, answers = ManualClock(), [Credentials("old"), Credentials("new")]

    async def read() -> Credentials:
        return answers[-1]

    keyring = Keyring(answers[0], read, clock)
    assert await keyring.fits(bearer("old"))
    await keyring.look()
    assert await keyring.fits(bearer("old"))
    clock.advance(OVERLAP_SECONDS)
    assert not await keyring.fits(bearer("old"))
    assert await keyring.fits(bearer("new"))


async def test_many_who_guess_are_looked_up_for_together() -> None:
    looks = 0
    go = asyncio.Event()

    async def read() -> Credentials:
        nonlocal looks
        looks += 1
        await go.wait()
        return Credentials("right")

    keyring = Keyring(Credentials("wrong"), read, ManualClock())
    guesses = [asyncio.create_task(keyring.fits(bearer(f"guess-{n}"))) for n in range(100)]
    await asyncio.sleep(0)
    go.set()
    assert not any(await asyncio.gather(*guesses))
    assert looks <= 2


# ---- secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_are_needed_hidden_and_long_enough() -> None:
    settings = WebhookSettings(token="env:T", public_url="https://h", ack_secret="env:S")
    assert credentials_of(settings, {"T": "tok"}).token == "tok"
    assert credentials_of(settings, {"T": " tok\n"}).token == "tok", "Alertmanager sends no white space around it"
    assert webhook_secrets(settings, {"T": "tok\n"}) == ("tok",)
    with pytest.raises(ConfigError, match="nothing but white space"):
        credentials_of(settings, {"T": " \n"})
    with pytest.raises(ConfigError, match="environment variable T"):
        credentials_of(settings, {})
    with pytest.raises(ConfigError, match="anybody could"):
        credentials_of(WebhookSettings(), {})
    with pytest.raises(ConfigError, match="at least 16"):
        ack_secret_of(settings, {"S": "short"})
    assert webhook_secrets(settings, {"T": "tok"}) == ("tok",)


# ---- sre webhook explain ---------------------------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path) -> App:
    made = App(None, tmp_path, False)
    trip = RouteSettings(
        name="hung", match={"alertname": "VllmEngineHung"}, severities=("page",), keep_matching=True,
        actions=(ActionSettings(do="trip", label="engine"),),
    )  # fmt: skip
    made._settings = Root(
        webhook=WebhookSettings(routes=(trip, *WebhookSettings().routes)),
        notify=NotifySettings(channels=(ChannelSettings(name="mail", kind="email", url="env:M"),)),
    )
    return made


def explain(app: App, raw: bytes, *more: str) -> tuple[int, str]:
    found = CliRunner().invoke(command, ["explain", "-", *more], obj=app, input=raw, standalone_mode=False)
    assert found.exception is None, found.output
    return int(found.return_value), found.output


def test_explain_says_what_each_route_does_with_an_alert(app: App) -> None:
    hung = one("VllmEngineHung", engine="sim-0", starts=1_800_000_000.0)
    code, text = explain(app, body(hung, one("Quiet", severity="info"), one(node="n1", severity="ticket")))
    assert code == 0
    assert text.splitlines() == [
        "VllmEngineHung firing (page): opened",
        "  joined by: alertname=VllmEngineHung",
        "  route hung: matched",
        "  route page-and-ticket: matched",
        "  trip engine sim-0: refused: last_engine",
        "Quiet firing (info): stored",
        "  joined by: alertname=Quiet",
        "  route hung: other_severity (info)",
        "  route page-and-ticket: other_severity (info)",
        "VllmQueueGrowing firing (ticket): opened",
        "  joined by: alertname=VllmQueueGrowing,node=n1",
        "  route hung: other_severity (ticket)",
        "  route page-and-ticket: matched",
        "tells mail: open VllmEngineHung is bad",
        "tells mail: open VllmQueueGrowing is bad",
    ]


def test_explain_says_what_would_be_refused(app: App) -> None:
    code, text = explain(app, b"[1]")
    assert (code, text) == (
        3,
        "refused (not_an_object): the body must be a JSON object, Alertmanager's webhook payload\n",
    )
    code, text = explain(app, body(one(), {"labels": {"alertname": "Bad"}}), "-o", "json")
    found = json.loads(text)
    assert code == 3
    assert found["unreadable"] == [{"index": 1, "alertname": "Bad", "why": "bad_starts_at"}]


def test_no_alert_puts_a_line_of_its_own_into_what_is_explained(app: App) -> None:
    plain = explain(app, body(one("Hung", node="n1")))[1]
    forged = explain(app, body(one("Hung\nHung resolved", node="n1\n  route all", annotations={"summary": "a\nb"})))[1]
    assert len(forged.splitlines()) == len(plain.splitlines())


def test_explain_changes_nothing(app: App, tmp_path: Path) -> None:
    explain(app, body(one()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
async def test_a_gate_counts_what_it_holds(tmp_path: Path) -> None:
    async with receiver(tmp_path) as webhook:
        _, writer = await asyncio.open_connection("127.0.0.1", webhook.port)
        writer.write(b"POST")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await webhook.post(body(one())))[0] == 200
