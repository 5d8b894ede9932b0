"""Channels that hang, in every way a socket can, beside one that works: real workers, real sockets."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sre.actions.records import OutboxState
from sre.adapters.clock import SystemClock
from sre.adapters.notifiers.process import AppriseSender
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery
from sre.servers.sinks import LOOPBACK, SmsSink
from sre.settings.notify import ChannelSettings, NotifySettings
from tests.store.samples import outbox_counts, post
from tests.support.sinks import silent_server

pytestmark = pytest.mark.integration

Until = Callable[..., Awaitable[object]]
MESSAGES = 5


@contextmanager
def dripping_server() -> Iterator[int]:
    """A port that answers each request with a byte a second, without end."""
    with socket.create_server((LOOPBACK, 0), backlog=64) as server:
        done = threading.Event()

        def drip(connection: socket.socket) -> None:
            with connection:
                try:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                    while not done.wait(1.0):
                        connection.sendall(b".")
                except OSError:
                    return

        threads: list[threading.Thread] = []

        def serve() -> None:
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                threads.append(threading.Thread(target=drip, args=(connection,), daemon=True))
                threads[-1].start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        done.set()
        server.shutdown(socket.SHUT_RDWR)
        for one in (thread, *threads):
            one.join(timeout=10)


async def test_a_healthy_channel_does_not_notice_eight_that_hang(tmp_path: Path, wait_until_async: Until) -> None:
    with (
        silent_server() as silent,
        dripping_server() as dripping,
        SmsSink() as sms,
        GuardStore.open(tmp_path / "guard.db", clock=SystemClock(), boot_id="b") as store,
    ):
        mail = f"mailto://{LOOPBACK}:{silent}?from=a@localhost&to=b@localhost&mode=insecure"
        urls = {"healthy": sms.channel_url}
        urls |= {f"smtp-{n}": mail for n in range(4)} | {f"http-{n}": f"json://{LOOPBACK}:{dripping}" for n in range(4)}
        channels = tuple(
            ChannelSettings(
                name=name, kind="email" if name.startswith("smtp") else "webhook", timeout_seconds=30,
                url=f"env:URL_{name.upper().replace('-', '_')}",
            )
            for name in urls
        )  # fmt: skip
        settings = NotifySettings(channels=channels)
        environ = {**os.environ, **{f"URL_{name.upper().replace('-', '_')}": url for name, url in urls.items()}}

        async def told(incident: str) -> float:
            """Seconds from the commit of a page to its arrival."""
            began, before = time.monotonic(), len(sms.messages())
            await asyncio.to_thread(store.commit, state=None, outbox=[post("healthy", incident=incident)])
            delivery.wake()
            await wait_until_async(lambda: len(sms.messages()) > before, 20, interval=0.01)
            return time.monotonic() - began

        async with AppriseSender(environ) as sender:
            delivery = Delivery(store, settings, SystemClock(), sender, rng=random.Random(1))
            task = asyncio.create_task(delivery.run())
            try:
                alone = [await told(f"alone-{n}") for n in range(MESSAGES)]
                hanging = [name for name in urls if name != "healthy"]
                store.commit(state=None, outbox=[post(name, incident="stuck") for name in hanging])
                delivery.wake()
                at_once = await told("at-once")  # all nine begin together
                beside = [await told(f"beside-{n}") for n in range(MESSAGES)]
                await wait_until_async(lambda: outbox_counts(store)[OutboxState.SENT] == 2 * MESSAGES + 1)
                assert outbox_counts(store)[OutboxState.SENDING] == 8, "all of them hang still"
            finally:
                await delivery.stop(grace_seconds=0.1)
                await task
    usual = sorted(alone)[MESSAGES // 2]
    assert at_once - usual < 1.0, (alone, at_once, beside)
    assert max(beside) - usual < 1.0, (alone, at_once, beside)
