"""TLS, links that acknowledge, and what the commands say."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from sre.adapters.clock import SystemClock
from sre.cli.app import App
from sre.cli.webhook import webhook as command
from sre.control.ack_links import AckLinks
from sre.control.acknowledgements import Acknowledgements
from sre.errors import ConfigError
from sre.notify.ack_token import ack_token
from sre.notify.links import AckAddress, Links
from sre.servers.gate import tls_context
from sre.settings.models import Root
from sre.settings.notify import ChannelSettings, NotifySettings
from sre.settings.webhook import ActionSettings, RouteSettings, WebhookSettings
from sre.wiring.guard_webhook import ack_secret_of, credentials_of, message_links, webhook_secrets
from tests.support.providers import make_certificate
from tests.webhook.live import Receiver, receiver
from tests.webhook.scenes import body, one

SECRET = b"0123456789abcdef-secret"


# ---- TLS -------------------------------------------------------------------------------------------------------------


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

        async def acknowledge(self, incident_id: str, token: str, by: str) -> str:
            assert self.links is not None
            return await self.links.acknowledge(incident_id, token, by)

    late = Late()
    async with receiver(tmp_path, acknowledger=late) as webhook:
        late.links = AckLinks(SECRET, Acknowledgements(webhook.store, (), wake=lambda: None), SystemClock())
        await webhook.post(body(one(node="n1")))
        yield Held(webhook, late.links)


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


def test_explain_changes_nothing(app: App, tmp_path: Path) -> None:
    explain(app, body(one()))
    assert list(tmp_path.iterdir()) == []


async def test_a_gate_counts_what_it_holds(tmp_path: Path) -> None:
    async with receiver(tmp_path) as webhook:
        _, writer = await asyncio.open_connection("127.0.0.1", webhook.port)
        writer.write(b"POST")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await webhook.post(body(one())))[0] == 200
