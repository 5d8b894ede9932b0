"""Deliveries by real worker processes to real SMTP and HTTP servers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from sre.actions.records import OutboxState
from sre.actions.types import Message
from sre.adapters.clock import SystemClock
from sre.adapters.notifiers.process import AppriseSender
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery
from sre.notify.delivery import Cause, DeliveryResult, Verdict
from sre.notify.forms import PLAIN, Style, render
from sre.servers.sinks import MailSink, SmsSink
from sre.settings.notify import ChannelSettings, NotifySettings
from tests.store.samples import message, outbox_counts, post
from tests.support.providers import Certificate
from tests.support.sinks import FailingSmsSink, RefusingMailSink, WholeMailSink, hang_up_server, silent_server

pytestmark = pytest.mark.integration

Until = Callable[..., Awaitable[object]]
ROOT = Path(__file__).parents[2]
INCIDENT = message().incident_id
GENEROUS = 30.0
"""Seconds for one delivery on a machine that does much else; what is tested never takes it."""


def channel(name: str, kind: str, timeout: float = GENEROUS) -> ChannelSettings:
    return ChannelSettings(name=name, kind=kind, url=f"env:URL_{name.upper()}", timeout_seconds=timeout)  # type: ignore[arg-type]


def environ(**urls: str) -> dict[str, str]:
    return {**os.environ, **{f"URL_{name.upper()}": url for name, url in urls.items()}}


async def send(
    url: str,
    kind: str = "email",
    timeout: float = GENEROUS,
) -> DeliveryResult:
    """Deliver by a process that is started for it."""
    one = channel("x", kind, timeout)
    return await AppriseSender(environ(x=url))(one, render(message(), one.kind))


class Quick:
    """Delivers by processes that are forked: for tests of what is sent, not of how."""

    def __init__(self, **environ: str) -> None:
        self._environ = {**os.environ, **environ}
        self._sender = AppriseSender(self._environ)

    async def __aenter__(self) -> Self:
        await self._sender.__aenter__()
        return self

    async def __aexit__(self, *what: object) -> None:
        await self._sender.__aexit__(*what)

    async def __call__(
        self,
        url: str,
        kind: str = "email",
        timeout: float = GENEROUS,
        text: Message | None = None,
        style: Style = PLAIN,
    ) -> DeliveryResult:
        one = channel(f"n{len(self._environ)}", kind, timeout)
        self._environ[one.url.removeprefix("env:")] = url
        return await self._sender(one, render(text or message(), one.kind, None, style))


def workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "notifiers.worker" in " ".join(p.cmdline())]


async def test_a_mail_arrives_whole() -> None:
    with MailSink() as sink:
        assert await send(sink.channel_url) == DeliveryResult(Verdict.DELIVERED)
        (mail,) = sink.mails()
    assert mail.recipients == ("oncall@localhost",)
    assert mail.subject == "[page] OPEN engine sim-0 (pool sim-7b): hang"
    assert mail.text.rstrip("\n").replace("\r", "") == render(message(), "email").body


async def test_an_sms_arrives_as_one_line() -> None:
    with SmsSink() as sink:
        assert await send(sink.channel_url, "sms") == DeliveryResult(Verdict.DELIVERED)
        (sms,) = sink.messages()
    assert sms.text == render(message(), "sms").body
    assert sms.document["type"] == "failure"


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
async def test_each_refusal_of_a_mail_server_has_its_class() -> None:
    wanted = {
        421: (Verdict.FAILED, Cause.TRY_LATER),
        451: (Verdict.FAILED, Cause.TRY_LATER),
        535: (Verdict.REFUSED_NOW, Cause.CREDENTIALS),
        550: (Verdict.REJECTED, Cause.RECIPIENT),
        554: (Verdict.REJECTED, Cause.REFUSED),
    }
    with ExitStack() as stack:
        sinks = {how: stack.enter_context(RefusingMailSink(how)) for how in wanted}
        async with Quick() as quick:
            found = await asyncio.gather(*(quick(sink.channel_url) for sink in sinks.values()))
        results = dict(zip(sinks, found, strict=True))
        for how, sink in sinks.items():
            # With a refused password smtplib tries the server's other way to log in.
            assert sink.refused == (2 if how == 535 else 1)
            assert sink.mails() == ()
    for how, result in results.items():
        assert (result.verdict, result.cause) == wanted[how]
        assert f"SMTP {how} at " in result.detail
        assert "S3cretPassw0rd" not in result.detail


async def test_what_was_never_sent_fails_and_is_repeated(free_port: Callable[[], int]) -> None:
    mail = "mailto://{}?from=a@localhost&to=b@localhost&mode=insecure"
    with hang_up_server() as rude, FailingSmsSink() as sms:
        async with Quick() as quick:
            refused, nowhere, cut, failed = await asyncio.gather(
                quick(mail.format(f"127.0.0.1:{free_port()}")),
                quick(mail.format("nowhere.invalid")),
                quick(mail.format(f"127.0.0.1:{rude}")),
                quick(sms.channel_url, "sms"),
            )
        assert sms.refused == 1, "the worker does not repeat: the outbox does"
    assert refused.cause is Cause.UNREACHABLE
    assert "refused" in refused.detail
    assert nowhere.cause is Cause.NO_ADDRESS
    assert cut.cause is Cause.UNREACHABLE
    assert failed.cause is Cause.TRY_LATER
    assert "500" in failed.detail
    assert {one.verdict for one in (refused, nowhere, cut, failed)} == {Verdict.FAILED}


async def test_mail_by_tls_and_every_way_it_goes_wrong(
    certificate: Certificate, certificate_of_another: Certificate
) -> None:
    stranger = {"SSL_CERT_FILE": str(certificate_of_another.file)}
    with (
        WholeMailSink(certificate, "starttls") as starttls,
        WholeMailSink(certificate, "ssl") as implicit,
        WholeMailSink(certificate_of_another, "starttls") as mismatch,
        WholeMailSink() as plain,
    ):
        async with Quick(SSL_CERT_FILE=str(certificate.file)) as trusting, Quick(**stranger) as other:
            results = await asyncio.gather(
                trusting(starttls.url()),
                trusting(implicit.url()),
                other(starttls.url()),
                other(mismatch.url()),
                trusting(plain.url("starttls")),
                trusting(plain.url("ssl")),
                trusting(implicit.url("starttls"), timeout=10),
            )
        assert (len(starttls.mails()), len(implicit.mails())) == (1, 1)
        assert mismatch.mails() == plain.mails() == ()
    delivered, over_ssl, untrusted, wrong_name, no_starttls, no_ssl, other_kind = results
    assert delivered.verdict is over_ssl.verdict is Verdict.DELIVERED
    for one in (untrusted, wrong_name, no_starttls, no_ssl):
        assert (one.cause, one.verdict) == (Cause.TLS, Verdict.REFUSED_NOW), one
    assert "not valid for 'localhost'" in wrong_name.detail or "Hostname mismatch" in wrong_name.detail
    # A server that waits for a handshake says nothing: nothing was sent.
    assert other_kind.verdict is Verdict.FAILED


async def test_one_unknown_recipient_of_two_keeps_the_mail_from_both() -> None:
    with WholeMailSink(refused="gone@example.org") as sink:
        result = await send(sink.url(cc="gone@example.org"))
        assert sink.whole == []
    assert (result.verdict, result.cause) == (Verdict.REJECTED, Cause.RECIPIENT)


async def test_a_mail_has_both_parts_and_a_thread_of_its_own() -> None:
    chinese = replace(message(summary="sim-0 tripped: hang"), facts=(("备注", "温度 95 °C <b>"),))
    style = Style("zh")
    with WholeMailSink() as sink:
        async with Quick() as quick:
            first = await quick(sink.url(), text=chinese, style=style)
            again = await quick(sink.url(), text=chinese, style=style)
            end = await quick(sink.url(), text=replace(chinese, event="resolve"), style=style)
            only_text = await quick(sink.url(format="text"), text=chinese, style=style)
        one, two, three, four = sink.whole
    assert {r.verdict for r in (first, again, end, only_text)} == {Verdict.DELIVERED}
    rendered = render(chinese, "email", None, style)
    assert one["Subject"] == rendered.title == "[紧急] 触发 引擎sim-0(池sim-7b): 引擎挂起"
    assert one.get_content_type() == "multipart/alternative"
    plain, html = one.iter_parts()
    assert plain.get_content().replace("\r", "").rstrip("\n") == rendered.body
    assert html.get_content().replace("\r", "").rstrip("\n") == rendered.html.rstrip("\n")
    assert one["Message-ID"] == two["Message-ID"] != three["Message-ID"], "a repetition is shown once"
    assert one["References"] == three["References"] == f"<{INCIDENT}@incident.sre>"
    assert one["Auto-Submitted"] == "auto-generated"
    assert four.get_content_type() == "text/plain"
    assert max(len(line) for line in one.as_bytes().splitlines()) < 998


async def test_a_url_that_is_none_is_impossible() -> None:
    result = await send("nosuchservice://S3cretPassw0rd@host")
    assert (result.verdict, result.cause) == (Verdict.IMPOSSIBLE, Cause.BAD_URL)
    assert "S3cretPassw0rd" not in result.detail


async def test_a_missing_secret_is_a_failure_that_may_pass() -> None:
    result = await AppriseSender({})(channel("x", "email"), render(message(), "email"))
    assert (result.verdict, result.cause) == (Verdict.FAILED, Cause.NO_SECRET)
    assert "environment variable URL_X is not set" in result.detail


async def test_a_silent_server_is_left_before_the_deadline_unsent() -> None:
    with silent_server() as port:
        began = time.monotonic()
        result = await send(f"mailto://127.0.0.1:{port}?from=a@localhost&to=b@localhost&mode=insecure", timeout=8)
        took = time.monotonic() - began
    assert (result.verdict, result.cause) == (Verdict.FAILED, Cause.UNREACHABLE)
    assert took < GENEROUS
    assert workers() == []


async def test_a_server_silent_after_the_mail_may_have_it() -> None:
    class Swallowing(WholeMailSink):
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            await asyncio.Event().wait()
            return "250 OK"

    with Swallowing() as sink:
        async with Quick() as quick:
            result = await quick(sink.url(), timeout=8)
    assert (result.verdict, result.cause) == (Verdict.UNKNOWN, Cause.OUTCOME_UNKNOWN)


async def test_a_cancelled_delivery_leaves_no_process(wait_until_async: Until) -> None:
    with silent_server() as port:
        task = asyncio.create_task(send(f"mailto://127.0.0.1:{port}?from=a@localhost&to=b@localhost&mode=insecure"))
        (worker,) = await wait_until_async(workers)  # type: ignore[misc]
        assert f":{port}" not in " ".join(worker.cmdline()), "the URL is not for everybody to read"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert workers() == []


async def test_check_finds_what_would_fail_later() -> None:
    mail = "mailto://user:S3cretPassw0rd@127.0.0.1?from=a@localhost&to="
    urls = {
        "fine": mail + "b@localhost",
        "two": mail + "b@localhost,c@localhost",
        "again": mail + "b@localhost&retry=3",
        "none": "nosuchservice://S3cretPassw0rd",
        "phone": "twilio://AC00000000000000000000000000000000:S3cretPassw0rd00000000000000000000@15551234567/12",
    }
    sender = AppriseSender(environ(**urls))
    names = [*urls, "missing"]
    found = dict(zip(names, await asyncio.gather(*(sender.check(channel(n, "email")) for n in names)), strict=True))
    assert found["fine"].problems == []
    assert found["fine"].shown.startswith("mailto://user:****@127.0.0.1/")
    assert "2 recipients" in found["two"].problems[0]
    assert "remove retry=" in found["again"].problems[0]
    assert found["none"].problems
    assert found["phone"].problems
    assert "URL_MISSING is not set" in found["missing"].problems[0]
    assert "S3cretPassw0rd" not in str(found)


async def run_delivery(
    store: GuardStore, settings: NotifySettings, env: dict[str, str], until: Awaitable[object]
) -> None:
    delivery = Delivery(store, settings, SystemClock(), AppriseSender(env), rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    try:
        await until
    finally:
        await delivery.stop(grace_seconds=0.1)
        await task


def sent(store: GuardStore, n: int = 1) -> Callable[[], bool]:
    return lambda: outbox_counts(store)[OutboxState.SENT] == n


async def test_a_hanging_mail_server_does_not_delay_the_sms(tmp_path: Path, wait_until_async: Until) -> None:
    with (
        silent_server() as port,
        SmsSink() as sms,
        GuardStore.open(tmp_path / "guard.db", clock=SystemClock(), boot_id="b") as store,
    ):
        env = environ(
            mail=f"mailto://127.0.0.1:{port}?from=a@localhost&to=b@localhost&mode=insecure", sms=sms.channel_url
        )
        settings = NotifySettings(channels=(channel("mail", "email"), channel("sms", "sms")))
        store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(3)])
        store.commit(state=None, outbox=[post("sms", incident=f"i{n}") for n in range(3)])
        await run_delivery(store, settings, env, wait_until_async(sent(store, 3), 25, what="all SMS sent"))
        assert len(sms.messages()) == 3
        assert outbox_counts(store)[OutboxState.PENDING] == 3
    assert workers() == []


async def test_a_mail_refused_for_now_is_repeated_until_accepted(tmp_path: Path, wait_until_async: Until) -> None:
    with (
        RefusingMailSink(451, times=1) as sink,
        GuardStore.open(tmp_path / "guard.db", clock=SystemClock(), boot_id="b") as store,
    ):
        store.commit(state=None, outbox=[post("mail")])
        settings = NotifySettings(channels=(channel("mail", "email"),), initial_backoff_seconds=0.2)
        await run_delivery(store, settings, environ(mail=sink.channel_url), wait_until_async(sent(store), 30))
        assert (sink.refused, len(sink.mails())) == (1, 1)
        assert store.outbox()[0].attempts == 2


async def test_a_killed_worker_is_replaced(tmp_path: Path, wait_until_async: Until) -> None:
    with (
        SmsSink() as sink,
        GuardStore.open(tmp_path / "guard.db", clock=SystemClock(), boot_id="b") as store,
    ):
        killed: list[int] = []

        async def kill_the_first() -> None:
            (worker,) = await wait_until_async(workers, interval=0.01)  # type: ignore[misc]
            worker.kill()
            killed.append(worker.pid)
            await wait_until_async(sent(store), 30)

        store.commit(state=None, outbox=[post("sms")])
        settings = NotifySettings(channels=(channel("sms", "sms"),), initial_backoff_seconds=0.2)
        await run_delivery(store, settings, environ(sms=sink.channel_url), kill_the_first())
        assert killed
        assert 1 <= len(sink.messages()) <= 2
        assert all(INCIDENT in sms.text for sms in sink.messages())
        assert store.outbox()[0].attempts == 2


SEND_ONE = """
import asyncio, os, random, sys
from pathlib import Path
from sre.adapters.clock import SystemClock
from sre.adapters.notifiers.process import AppriseSender
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery
from tests.notify.test_worker import channel, NotifySettings
store = GuardStore.open(Path(sys.argv[1]), clock=SystemClock(), boot_id="b")
settings = NotifySettings(channels=(channel("mail", "email"),))
asyncio.run(Delivery(store, settings, SystemClock(), AppriseSender(os.environ), rng=random.Random(1)).run())
"""


async def test_a_killed_sender_leaves_no_worker_and_the_next_one_goes_on(
    tmp_path: Path, wait_until_async: Until
) -> None:
    db = tmp_path / "guard.db"
    with GuardStore.open(db, clock=SystemClock(), boot_id="b") as store:
        store.commit(state=None, outbox=[post("mail")])
    with silent_server() as port:
        env = environ(mail=f"mailto://127.0.0.1:{port}?from=a@localhost&to=b@localhost&mode=insecure")
        sender = subprocess.Popen([sys.executable, "-c", SEND_ONE, str(db)], env=env, cwd=ROOT)  # noqa: ASYNC220
        try:
            (worker,) = await wait_until_async(workers, 20)  # type: ignore[misc]
        finally:
            os.kill(sender.pid, signal.SIGKILL)
            sender.wait(timeout=10)
        await wait_until_async(lambda: not psutil.pid_exists(worker.pid), 10, what="worker gone")
    with MailSink() as sink, GuardStore.open(db, clock=SystemClock(), boot_id="b") as store:
        (row,) = store.lease(owner="next", seconds=30, channels=["mail"])
        assert row.attempts == 1
        store.mark_failed(row.id, owner="next", error="given back", retry_after_seconds=0)
        settings = NotifySettings(channels=(channel("mail", "email"),))

        await run_delivery(store, settings, environ(mail=sink.channel_url), wait_until_async(sent(store), 30))
        assert len(sink.mails()) == 1
