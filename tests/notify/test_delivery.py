"""The sender's loop, on a store on disk and a provider in memory; time is the manual clock's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sre.actions.records import OutboxMessage, OutboxState
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery
from sre.notify.alert_messages import canary_message
from sre.notify.delivery import DeliveryResult, Verdict
from sre.settings.notify import NotifySettings
from sre.testing.clock import ManualClock
from tests.notify.sending import (
    FAILED,
    REJECTED,
    SETTINGS,
    UNKNOWN,
    Provider,
    Until,
    count,
    running,
)
from tests.store.samples import message, post


async def test_what_is_queued_is_delivered_and_marked(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    store.commit(state=None, outbox=[post(), post("sms")])
    async with running(store, provider, clock) as delivery:
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 2)
        assert delivery.statistics["mail"].outcomes == {"delivered": 1, "failed": 0, "rejected": 0, "unknown": 0}
        assert delivery.store_problem is None
    assert sorted(provider.accepted) == ["mail", "sms"]
    bodies = {name: rendered.body for name, rendered in provider.began}
    assert bodies["sms"].startswith("PAGE OPEN engine sim-0")
    assert "More: sre incident show" in bodies["mail"]


async def test_a_failed_delivery_is_repeated_with_growing_waits(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [FAILED, UNKNOWN, ValueError("a mistake of ours")]
    began = clock.monotonic()
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock) as delivery:
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
        assert delivery.statistics["mail"].outcomes == {"delivered": 1, "failed": 2, "rejected": 0, "unknown": 1}
        assert delivery.statistics["mail"].last_error is None
    assert clock.monotonic() - began >= 0.8 * (5 + 10 + 20)
    assert store.outbox()[0].attempts == 4


@pytest.mark.parametrize(("answers", "tries"), [([FAILED] * 9, 4), ([REJECTED], 1)])
async def test_what_cannot_be_delivered_is_given_up_and_shown(
    store: GuardStore,
    provider: Provider,
    clock: ManualClock,
    wait_until_async: Until,
    answers: Sequence[DeliveryResult],
    tries: int,
) -> None:
    provider.answers["mail"] = list(answers)
    store.commit(state=None, outbox=[OutboxMessage(replace(message(), severity="ticket"), "mail")])
    async with running(store, provider, clock) as delivery:
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
        assert delivery.statistics["mail"].dead == 1
    row = store.outbox()[0]
    assert (row.attempts, row.last_error) == (tries, answers[0].detail)


async def test_a_page_outlives_a_mail_server_that_is_down_for_hours(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [FAILED] * 32
    began = clock.monotonic()
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock) as delivery:
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1, timeout=60)
        assert delivery.statistics["mail"].dead == 0
    assert clock.monotonic() - began > 7200
    assert store.outbox()[0].attempts == 33, "and it was asked every few minutes"


async def test_a_test_that_nobody_waits_for_any_more_is_not_sent(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [FAILED] * 1000
    store.commit(state=None, outbox=[OutboxMessage(canary_message("c0ffee", clock.wall()), "mail")])
    async with running(store, provider, clock):
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
    assert store.outbox()[0].last_error == "not sent: older than 900 s"


async def test_a_provider_that_asks_to_wait_is_left_alone_so_long(
    store: GuardStore,
    provider: Provider,
    clock: ManualClock,
    wait_until_async: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider.answers["mail"] = [DeliveryResult(Verdict.FAILED, "429", retry_after_seconds=77.0)]
    began = clock.monotonic()
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock):
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
    assert clock.monotonic() - began >= 77.0
    assert "again in 77 s" in caplog.text


async def test_a_hanging_channel_delays_no_other(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.hanging.add("mail")
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(5)])
    async with running(store, provider, clock) as delivery:
        await wait_until_async(lambda: provider.began)
        store.commit(state=None, outbox=[post("sms", incident=f"i{n}") for n in range(5)])
        delivery.wake()
        await wait_until_async(lambda: provider.accepted == ["sms"] * 5)
        assert [name for name, _ in provider.began].count("mail") == 1, "one at a time per channel"


async def test_what_is_under_way_at_the_end_is_given_back(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.hanging.add("mail")
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock):
        await wait_until_async(lambda: count(store, OutboxState.SENDING) == 1)
    assert provider.cancelled == ["mail"]
    row = store.outbox()[0]
    assert (row.state, row.attempts) == (OutboxState.PENDING, 1)
    assert row.due_in_seconds <= 0


async def test_a_cancelled_sender_gives_back_too(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.hanging.add("mail")
    store.commit(state=None, outbox=[post()])
    task = asyncio.create_task(Delivery(store, SETTINGS, clock, provider, rng=random.Random(1)).run())
    await wait_until_async(lambda: count(store, OutboxState.SENDING) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.outbox()[0].state is OutboxState.PENDING


async def test_a_message_too_old_is_not_sent_but_shown(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    store.commit(state=None, outbox=[post()])
    clock.advance(86401)
    async with running(store, provider, clock):
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
    assert provider.began == []
    assert store.outbox()[0].last_error == "not sent: older than 86400 s"


async def test_messages_for_unknown_channels_become_dead(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    store.commit(state=None, outbox=[post("pager"), post()])
    async with running(store, provider, clock):
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
    assert count(store, OutboxState.DEAD) == 1


async def test_without_channels_the_sender_is_idle(store: GuardStore, provider: Provider, clock: ManualClock) -> None:
    async with running(store, provider, clock, NotifySettings()) as delivery:
        await asyncio.sleep(0)
        assert delivery.store_problem is None


async def test_the_end_of_an_incident_carries_an_unsent_beginning(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    patient = NotifySettings(
        channels=SETTINGS.channels, initial_backoff_seconds=1e9, max_backoff_seconds=1e9, max_age_seconds=1e12
    )
    provider.answers["mail"] = [FAILED]
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock, patient) as delivery:
        await wait_until_async(lambda: store.outbox()[0].last_error == "451 try later")
        store.commit(state=None, outbox=[post(event="resolve")])
        delivery.wake()
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
    assert count(store, OutboxState.SUPERSEDED) == 1
    assert len(provider.began) == 2
    end = provider.began[1][1]
    assert "RESOLVED" in end.title
    assert "began and ended before a first message" in end.body
    assert message().summary in end.body
