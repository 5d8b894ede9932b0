"""Workers that are forked: quick, as killable as any, and gone with their parent."""

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
from typing import Any

import psutil
import pytest

from sre.actions.records import OutboxState
from sre.adapters.clock import SystemClock
from sre.adapters.notifiers.births import BIRTH_SECONDS
from sre.adapters.notifiers.process import AppriseSender
from sre.adapters.processes.host import ProcessHost
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery
from sre.notify.delivery import DeliveryResult, Verdict
from sre.notify.forms import render
from sre.servers.sinks import SmsSink
from sre.settings.notify import ChannelSettings, NotifySettings
from sre.stack.processes import GUARD_NAME, PROCESS_MARK, STACK_MARK
from tests.store.samples import message, outbox_counts, post
from tests.support.sinks import silent_server

pytestmark = pytest.mark.integration

Until = Callable[..., Awaitable[Any]]
ROOT = Path(__file__).parents[2]
SMS = ChannelSettings(name="sms", kind="sms", url="env:URL_SMS", timeout_seconds=20)
HANGING = ChannelSettings(name="hanging", kind="sms", url="env:URL_HANGING", timeout_seconds=20)


def environ(sms: SmsSink, silent: int = 9) -> dict[str, str]:
    return {**os.environ, "URL_SMS": sms.channel_url, "URL_HANGING": f"json://127.0.0.1:{silent}/x"}


def nurseries(of: int | None = None) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            if "notifiers.nursery" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue  # gone meanwhile, or not yet buried
    return found


async def deliver(sender: AppriseSender, channel: ChannelSettings = SMS) -> DeliveryResult:
    return await sender(channel, render(message(), "sms"))


async def test_each_delivery_has_a_process_that_is_gone_afterwards() -> None:
    with SmsSink() as sms:
        async with AppriseSender(environ(sms)) as sender:
            results = await asyncio.gather(*(deliver(sender) for _ in range(20)))
            assert len(nurseries()) == 1, "the nursery itself"
        assert len(sms.messages()) == 20
    assert results == [DeliveryResult(Verdict.DELIVERED)] * 20
    assert nurseries() == []


async def test_eight_hanging_channels_delay_a_healthy_one_by_less_than_a_second(
    tmp_path: Path, wait_until_async: Until
) -> None:
    with (
        silent_server() as port,
        SmsSink() as sms,
        GuardStore.open(tmp_path / "guard.db", clock=SystemClock(), boot_id="b") as store,
    ):
        hanging = tuple(HANGING.model_copy(update={"name": f"h{n}"}) for n in range(8))
        settings = NotifySettings(channels=(*hanging, SMS))
        async with AppriseSender(environ(sms, port)) as sender:
            await deliver(sender)  # the nursery is there, as in a guard that has run for a moment
            began = time.monotonic()
            await deliver(sender)
            alone = time.monotonic() - began
            store.commit(state=None, outbox=[post(channel.name) for channel in settings.channels])
            delivery = Delivery(store, settings, SystemClock(), sender, rng=random.Random(1))
            began = time.monotonic()
            task = asyncio.create_task(delivery.run())
            await wait_until_async(lambda: len(sms.messages()) == 3, interval=0.01)
            took = time.monotonic() - began
            await delivery.stop(grace_seconds=0.1)
            await task
        assert outbox_counts(store)[OutboxState.PENDING] == 8
    assert took - alone < 1.0
    assert nurseries() == []


async def test_a_worker_is_killed_at_the_deadline_and_when_nobody_waits_for_it(wait_until_async: Until) -> None:
    with silent_server() as port, SmsSink() as sms:
        async with AppriseSender(environ(sms, port)) as sender:
            await deliver(sender)
            late = await deliver(sender, HANGING.model_copy(update={"timeout_seconds": 1.0}))
            assert late.verdict is Verdict.UNKNOWN
            given_up = asyncio.create_task(deliver(sender, HANGING))
            await wait_until_async(lambda: len(nurseries()) == 2, what="a worker at work")
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            at_once = asyncio.create_task(deliver(sender, HANGING))
            await asyncio.sleep(0)  # its birth is ordered, and has not come
            at_once.cancel()
            with pytest.raises(asyncio.CancelledError):
                await at_once
            assert (await deliver(sender)).verdict is Verdict.DELIVERED
            await wait_until_async(lambda: len(nurseries()) == 1, what="no worker left")


async def test_a_dead_or_stopped_nursery_costs_a_moment_and_no_message() -> None:
    with SmsSink() as sms:
        async with AppriseSender(environ(sms)) as sender:
            await deliver(sender)
            (nursery,) = nurseries()
            nursery.kill()
            assert (await deliver(sender)).verdict is Verdict.DELIVERED
            await deliver(sender)
            (another,) = nurseries()
            assert another.pid != nursery.pid
            another.suspend()
            began = time.monotonic()
            assert (await deliver(sender)).verdict is Verdict.DELIVERED
            assert time.monotonic() - began < BIRTH_SECONDS + 5
        assert len(sms.messages()) == 4
    assert nurseries() == []


KEEP_SENDING = """
import asyncio, os, sys
from sre.adapters.notifiers.process import AppriseSender
from tests.notify.test_nursery import HANGING, deliver
async def main():
    async with AppriseSender(os.environ) as sender:
        await asyncio.gather(*(deliver(sender, HANGING) for _ in range(3)))
asyncio.run(main())
"""


async def test_a_killed_sender_leaves_neither_nursery_nor_worker(wait_until_async: Until) -> None:
    with silent_server() as port, SmsSink() as sms:
        sender = subprocess.Popen([sys.executable, "-c", KEEP_SENDING], env=environ(sms, port), cwd=ROOT)  # noqa: ASYNC220
        try:
            await wait_until_async(lambda: len(nurseries(sender.pid)) == 4, 20, what="a nursery and three workers")
            left = [process.pid for process in nurseries(sender.pid)]
        finally:
            os.kill(sender.pid, signal.SIGKILL)
            sender.wait(timeout=10)
        await wait_until_async(lambda: not any(psutil.pid_exists(pid) for pid in left), 10, what="all gone")


async def test_a_stopped_worker_that_outlives_its_killed_guard_is_ended_before_the_next_one(
    wait_until_async: Until,
) -> None:
    """No end of a line reaches what is stopped; the stack's mark does, which a worker has from its guard."""
    host = ProcessHost("a stack", os.environ, ROOT)
    with silent_server() as port, SmsSink() as sms:
        marks = {STACK_MARK: "a stack", PROCESS_MARK: GUARD_NAME}
        sender = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", KEEP_SENDING], env={**environ(sms, port), **marks}, cwd=ROOT
        )
        try:
            await wait_until_async(lambda: len(nurseries(sender.pid)) == 4, 20, what="a nursery and three workers")
            worker = nurseries(sender.pid)[-1]
            worker.suspend()
        finally:
            os.kill(sender.pid, signal.SIGKILL)
            sender.wait(timeout=10)
        try:
            await wait_until_async(
                lambda: [one.identity.pid for one in host.marked()] == [worker.pid], 10, what="alone"
            )
            (found,) = host.marked()
            assert found.name == GUARD_NAME, "so the supervisor takes it for a remain of the guard"
            assert await host.end_family(found.identity, term_seconds=0.1) == ()
            assert host.marked() == []
        finally:
            if worker.is_running():
                worker.kill()


WAIT = """
import asyncio, os
from sre.adapters.notifiers.births import Nursery
async def main():
    nursery = Nursery(os.environ)
    await nursery.start()
    print(flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_stopped_nursery_goes_with_its_killed_parent(wait_until_async: Until) -> None:
    sender = subprocess.Popen([sys.executable, "-c", WAIT], cwd=ROOT, stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        assert sender.stdout is not None
        sender.stdout.readline()
        (nursery,) = nurseries(sender.pid)
        nursery.suspend()
    finally:
        sender.kill()
        sender.communicate(timeout=10)
    try:
        await wait_until_async(lambda: not nursery.is_running(), 5, what="the kernel ended what reads no end of file")
    finally:
        if nursery.is_running():
            nursery.kill()
