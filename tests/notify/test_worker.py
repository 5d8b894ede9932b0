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
from pathlib import Path

import psutil
import pytest

from sre.actions.records import OutboxState
from sre.adapters.clock import SystemClock
from sre.adapters.notifiers.process import AppriseSender
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery
from sre.notify.delivery import DeliveryResult, Verdict
from sre.notify.forms import render
from sre.servers.sinks import MailSink, SmsSink
from sre.settings.notify import ChannelSettings, NotifySettings
from tests.store.samples import message, post
from tests.support.sinks import FailingSmsSink, RefusingMailSink, silent_server

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


async def send(url: str, kind: str = "email", timeout: float = GENEROUS) -> DeliveryResult:
    one = channel("x", kind, timeout)
    return await AppriseSender(environ(x=url))(one, render(message(), one.kind))


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
@pytest.mark.parametrize(("how", "said"), [(451, "451"), (550, "550"), (535, "535")])
async def test_a_refused_mail_is_a_failure_in_the_servers_words(how: int, said: str) -> None:
    with RefusingMailSink(how) as sink:
        result = await send(sink.channel_url)
        assert sink.refused >= 1
        assert sink.mails() == ()
    assert result.verdict is Verdict.FAILED
    assert said in result.detail
    assert "S3cretPassw0rd" not in result.detail


async def test_a_refused_connection_and_a_server_error_are_failures(free_port: Callable[[], int]) -> None:
    refused = await send(f"mailto://127.0.0.1:{free_port()}?from=a@localhost&to=b@localhost&mode=insecure")
    assert refused.verdict is Verdict.FAILED
    assert "refused" in refused.detail
    with FailingSmsSink() as sink:
        failed = await send(sink.channel_url, "sms")
        assert sink.refused == 1, "the worker does not repeat: the outbox does"
    assert failed.verdict is Verdict.FAILED
    assert "500" in failed.detail


async def test_a_url_that_is_none_is_impossible() -> None:
    result = await send("nosuchservice://S3cretPassw0rd@host")
    assert result.verdict is Verdict.IMPOSSIBLE
    assert "S3cretPassw0rd" not in result.detail


async def test_a_missing_secret_is_a_failure_that_may_pass() -> None:
    result = await AppriseSender({})(channel("x", "email"), render(message(), "email"))
    assert result.verdict is Verdict.FAILED
    assert "environment variable URL_X is not set" in result.detail


async def test_a_silent_server_is_left_at_the_deadline() -> None:
    with silent_server() as port:
        began = time.monotonic()
        result = await send(f"mailto://127.0.0.1:{port}?from=a@localhost&to=b@localhost&mode=insecure", timeout=3)
        took = time.monotonic() - began
    assert result.verdict is Verdict.UNKNOWN
    assert took < 3 + 2
    assert workers() == []


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
    return lambda: store.outbox_counts()[OutboxState.SENT] == n


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
        assert store.outbox_counts()[OutboxState.PENDING] == 3
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
