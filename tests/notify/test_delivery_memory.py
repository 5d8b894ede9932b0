"""The sender where the store cannot be written, hangs, or is not there: pages go out, and once."""

from __future__ import annotations

import asyncio
import random
import threading

from sre.actions.records import OutboxState
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery, NoOutbox
from sre.settings.notify import NotifySettings, StormSettings
from sre.testing.clock import ManualClock
from tests.notify.sending import (
    CHAIN,
    FAILED,
    REJECTED,
    SETTINGS,
    UNKNOWN,
    Provider,
    Until,
    count,
    fill,
    running,
)
from tests.store.hanging import HangingDisk
from tests.store.samples import post


async def test_on_a_full_disk_pages_still_go_out_once(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [FAILED, FAILED]
    store.commit(state=None, outbox=[post(), post("sms")])
    make_room = fill(store)
    began = clock.monotonic()
    async with running(store, provider, clock) as delivery:
        await wait_until_async(lambda: sorted(provider.accepted) == ["mail", "sms"])
        assert delivery.store_problem is not None
        assert clock.monotonic() - began >= 0.8 * (5 + 10), "waits grow without the store"
        rounds = clock.monotonic() + 600
        await wait_until_async(lambda: clock.monotonic() > rounds)
        assert len(provider.accepted) == 2, "what went out is not sent again"
        make_room()
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 2)
        await wait_until_async(lambda: delivery.store_problem is None)
    assert len(provider.accepted) == 2


async def test_a_page_that_the_store_cannot_take_is_sent_from_memory_once(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["sms"] = [FAILED]
    make_room = fill(store)
    async with running(store, provider, clock) as delivery:
        delivery.send_unstored([post("sms"), post("sms"), post("unknown")])
        assert [item.channel for item in delivery.unstored] == ["sms"]
        await wait_until_async(lambda: provider.accepted == ["sms"])
        assert delivery.unstored == ()
        delivery.send_unstored([post("sms")])
        assert delivery.unstored == ()
        make_room()
        store.commit(state="later", outbox=[post("sms"), post("mail")])
        delivery.wake()
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 2)
    assert provider.accepted == ["sms", "mail"]


async def test_of_what_lives_in_memory_the_end_waits_for_its_beginning(
    provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    """A paging service would keep open what opens after its end."""
    provider.answers["sms"] = [FAILED]
    delivery = Delivery(NoOutbox(), SETTINGS, clock, provider, rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    delivery.send_unstored([post("sms"), post("sms", event="resolve"), post("sms", incident="other")])
    await wait_until_async(lambda: len(provider.accepted) == 3)
    await delivery.stop()
    await task
    acts = [rendered.act.value for _, rendered in provider.began if rendered.key != "other"]
    assert acts == ["trigger", "trigger", "resolve"]


async def test_a_guard_without_a_store_still_pages(
    provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["sms"] = [UNKNOWN]
    delivery = Delivery(NoOutbox(), SETTINGS, clock, provider, rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    delivery.send_unstored([post("sms"), post("mail")])
    await wait_until_async(lambda: sorted(provider.accepted) == ["mail", "sms"])
    await delivery.stop()
    await task


async def test_a_twin_in_the_store_of_a_page_that_waits_in_memory_is_not_sent_too(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    patient = NotifySettings(channels=SETTINGS.channels, initial_backoff_seconds=600, max_backoff_seconds=600)
    provider.answers["sms"] = [FAILED]
    async with running(store, provider, clock, patient) as delivery:
        delivery.send_unstored([post("sms")])
        await wait_until_async(lambda: delivery.statistics["sms"].outcomes["failed"] == 1, interval=0)
        store.commit(state=None, outbox=[post("sms")])
        delivery.wake()
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
        rounds = clock.monotonic() + 700
        await wait_until_async(lambda: clock.monotonic() > rounds)
        assert delivery.unstored == ()
    assert provider.accepted == ["sms"]


async def test_on_a_disk_that_hangs_pages_go_out_from_memory_and_no_threads_pile_up(
    store: GuardStore, provider: Provider, clock: ManualClock, disk: HangingDisk, wait_until_async: Until
) -> None:
    before = threading.active_count()
    async with running(store, provider, clock, store_seconds=0.05) as delivery:
        with disk.hanging():
            commit = asyncio.create_task(asyncio.to_thread(store.commit, state="stuck", outbox=[post()]))
            await wait_until_async(lambda: disk.waiting)
            for number in range(5):
                delivery.send_unstored([post("sms", incident=f"i{number}")])
                await wait_until_async(lambda sent=number + 1: len(provider.accepted) == sent)
                rounds = clock.monotonic() + 20
                await wait_until_async(lambda end=rounds: clock.monotonic() > end)
            assert "no answer" in str(delivery.store_problem)
            assert threading.active_count() <= before + 2, "the commit's thread and one of the sender"
        await commit
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
        assert delivery.store_problem is None
    assert provider.accepted == ["sms"] * 5 + ["mail"]


async def test_a_lease_that_returns_late_is_delivered_and_a_late_outcome_counts_once(
    store: GuardStore, provider: Provider, clock: ManualClock, disk: HangingDisk, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [FAILED]
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock, store_seconds=0.05) as delivery:
        with disk.hanging():
            delivery.wake()
            await wait_until_async(lambda: disk.waiting and delivery.store_problem)
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
    assert provider.accepted == ["mail"]
    assert store.outbox()[0].attempts == 2


async def test_a_sender_ends_though_the_disk_hangs(
    store: GuardStore, provider: Provider, clock: ManualClock, disk: HangingDisk, wait_until_async: Until
) -> None:
    with disk.hanging():
        commit = asyncio.create_task(asyncio.to_thread(store.commit, state="stuck"))
        await wait_until_async(lambda: disk.waiting)
        async with asyncio.timeout(5):
            async with running(store, provider, clock, store_seconds=0.05) as delivery:
                await wait_until_async(lambda: delivery.store_problem)
    await commit


async def test_messages_in_memory_have_a_fallback_too(
    provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [REJECTED]
    delivery = Delivery(NoOutbox(), CHAIN, clock, provider, rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    delivery.send_unstored([post("mail")])
    await wait_until_async(lambda: provider.accepted == ["sms"])
    await delivery.stop()
    await task


async def test_on_a_full_disk_the_fallback_is_told_from_memory_and_once(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [REJECTED]
    store.commit(state=None, outbox=[post()])
    make_room = fill(store)
    async with running(store, provider, clock, CHAIN):
        await wait_until_async(lambda: provider.accepted == ["sms"])
        make_room()
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
    assert count(store, OutboxState.DEAD) == 1
    assert [name for name, _ in provider.began] == ["mail", "sms"]


async def test_messages_in_memory_are_bounded(provider: Provider, clock: ManualClock) -> None:
    delivery = Delivery(NoOutbox(), CHAIN, clock, provider, rng=random.Random(1))
    delivery.send_unstored([post("mail", incident=f"i{n}") for n in range(3000)])
    assert len(delivery.unstored) == 1000


async def test_a_backlog_on_a_full_disk_does_not_flood(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    settings = NotifySettings(channels=CHAIN.channels, storm=StormSettings(max_messages=3, window_seconds=300))
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(50)])
    fill(store)
    async with running(store, provider, clock, settings):
        rounds = clock.monotonic() + 200
        await wait_until_async(lambda: provider.accepted == ["mail"] * 3)
        await wait_until_async(lambda: clock.monotonic() > rounds, interval=0)
        assert provider.accepted == ["mail"] * 3
        await wait_until_async(lambda: provider.accepted == ["mail"] * 6)
