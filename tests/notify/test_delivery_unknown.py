"""
A provider that answers too late each time: the message arrives, and nobody here can know. A server that takes
connections and hangs looks the same, and there nothing arrives.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from sre.actions.records import OutboxMessage, OutboxState
from sre.actions.types import Message
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery, NoOutbox
from sre.notify.delivery import DeliveryResult
from sre.notify.forms import Rendered
from sre.settings.notify import ChannelSettings, NotifySettings
from sre.testing.clock import ManualClock
from tests.notify.sending import CHAIN, OK, SETTINGS, UNKNOWN, Provider, Until, count, running
from tests.store.samples import message, post

HALF_AN_HOUR = NotifySettings(channels=SETTINGS.channels, max_age_seconds=1800)
TICKET = replace(message(), severity="ticket")


async def test_a_page_of_unknown_outcome_calls_a_person_a_few_times_and_not_dozens_of_times(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    """No fallback and no acknowledgement: the worst that can be."""
    provider.answers["sms"] = [UNKNOWN] * 1000
    store.commit(state=None, outbox=[post("sms")])
    async with running(store, provider, clock, HALF_AN_HOUR):
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
    assert [name for name, _ in provider.began] == ["sms"] * 5


async def test_a_page_outlives_a_server_that_takes_connections_and_hangs(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [UNKNOWN] * 3
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock) as delivery:
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
        assert delivery.statistics["mail"].dead == 0


async def test_a_ticket_of_unknown_outcome_is_dead_soon_and_says_what_helps(
    store: GuardStore,
    provider: Provider,
    clock: ManualClock,
    wait_until_async: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider.answers["mail"] = [UNKNOWN] * 1000
    store.commit(state=None, outbox=[OutboxMessage(TICKET, "mail")])
    async with running(store, provider, clock, NotifySettings(channels=SETTINGS.channels)):
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
    (row,) = store.outbox()
    assert row.attempts == 3
    assert row.last_error is not None
    assert "so 3 times: look whether it arrived; raise the channel's timeout_seconds" in row.last_error
    assert "(outcome_unknown)" in caplog.text


@pytest.mark.parametrize("told", [message(), TICKET])
async def test_the_fallback_is_told_when_the_outcome_stays_unknown(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until, told: Message
) -> None:
    settings = NotifySettings(channels=CHAIN.channels, fallback_after_attempts=50, max_unknown_outcomes=2)
    provider.answers["mail"] = [UNKNOWN] * 1000
    store.commit(state=None, outbox=[OutboxMessage(told, "mail")])
    async with running(store, provider, clock, settings):
        await wait_until_async(lambda: provider.accepted == ["sms"], interval=0)
    assert [name for name, _ in provider.began] == ["mail", "mail", "sms"]


async def test_a_new_guard_goes_on_counting(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    """A guard that is started again and again calls nobody three times more each time."""
    settings = NotifySettings(channels=SETTINGS.channels)
    provider.answers["mail"] = [UNKNOWN] * 1000
    store.commit(state=None, outbox=[OutboxMessage(TICKET, "mail")])
    async with running(store, provider, clock, settings):
        await wait_until_async(lambda: store.outbox()[0].unknown_outcomes == 2, interval=0)
    async with running(store, provider, clock, settings):
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
    assert len(provider.began) == 3


async def test_who_acknowledged_is_not_told_again(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["sms"] = [UNKNOWN] * 1000
    posted = post("sms")
    store.commit(state=None, outbox=[posted])
    async with running(store, provider, clock):
        await wait_until_async(lambda: store.outbox()[0].unknown_outcomes == 1, interval=0)
        store.acknowledge(posted.message.incident_id, by="alice")
        await wait_until_async(lambda: count(store, OutboxState.SUPERSEDED) == 1)
    assert len(provider.began) <= 2, "one may have been under way"


async def test_a_page_in_memory_gets_rare_too(provider: Provider, clock: ManualClock, wait_until_async: Until) -> None:
    provider.answers["sms"] = [UNKNOWN] * 1000
    delivery = Delivery(NoOutbox(), HALF_AN_HOUR, clock, provider, rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    delivery.send_unstored([post("sms")])
    await wait_until_async(lambda: delivery.unstored == ())
    await delivery.stop()
    await task
    assert len(provider.began) == 5


async def test_where_repetitions_are_one_event_it_is_repeated_as_before(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    pager = ChannelSettings(name="pager", kind="pagerduty", url="env:PAGER")
    provider.answers["pager"] = [UNKNOWN] * 6
    began = clock.monotonic()
    store.commit(state=None, outbox=[post("pager")])
    async with running(store, provider, clock, NotifySettings(channels=(pager,))):
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
    assert clock.monotonic() - began < 900


# ---- a channel that works again

FLAT = NotifySettings(channels=SETTINGS.channels, storm=None, max_age_seconds=280)
"""Shorter than the first long wait: what is sent before it has been brought forward."""


class OneIsNeverAnswered(Provider):
    """Whatever of the incident ``lost`` is sent is cut off; all else arrives."""

    lost = "inc-lost"

    async def __call__(self, channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
        self.answers[channel.name] = [UNKNOWN if self.lost in rendered.key else OK]
        return await super().__call__(channel, rendered)

    def tries(self) -> int:
        return sum(self.lost in rendered.key for _, rendered in self.began)


async def test_pages_that_wait_long_are_tried_when_their_channel_delivers_something_else(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    """Three wait for five minutes; then the server that hung takes a newer one: it was down, and is not."""
    provider.answers["sms"] = [UNKNOWN] * 9
    waiting = [post("sms", incident=f"inc-{n}") for n in range(3)]
    store.commit(state=None, outbox=[*waiting, post("sms", incident="inc-newer", hold=100)])
    async with running(store, provider, clock, FLAT):
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 4)
    assert len(provider.began) == 9 + 4
    assert "inc-newer" in provider.began[9][1].key, "the others went out after it, one after another"


async def test_a_page_that_stays_unknown_while_others_arrive_has_one_early_try(
    store: GuardStore, clock: ManualClock, wait_until_async: Until
) -> None:
    provider = OneIsNeverAnswered()
    others = [post("sms", incident=f"inc-{n}", hold=100 + n) for n in range(13)]
    store.commit(state=None, outbox=[post("sms", incident=provider.lost), *others])
    async with running(store, provider, clock, FLAT):
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
    assert (provider.tries(), len(provider.accepted)) == (3 + 1, 13)


async def test_what_lives_in_memory_is_tried_early_too(clock: ManualClock, wait_until_async: Until) -> None:
    class Recovers(Provider):
        async def __call__(self, channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
            result = await super().__call__(channel, rendered)
            if len(self.began) == 3:
                delivery.send_unstored([post("sms", incident="inc-newer")])
            return result

    provider = Recovers(answers={"sms": [UNKNOWN] * 3})
    delivery = Delivery(NoOutbox(), FLAT, clock, provider, rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    delivery.send_unstored([post("sms")])
    await wait_until_async(lambda: delivery.unstored == ())
    await delivery.stop()
    await task
    assert provider.accepted == ["sms", "sms"]


async def test_what_waits_long_is_dead_as_soon_as_it_is_too_old(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    settings = NotifySettings(channels=SETTINGS.channels, max_age_seconds=20, max_unknown_outcomes=1)
    provider.answers["sms"] = [UNKNOWN] * 1000
    began = clock.monotonic()
    store.commit(state=None, outbox=[post("sms")])
    async with running(store, provider, clock, settings):
        await wait_until_async(
            lambda: store.outbox()[0].state is not OutboxState.SENDING and store.outbox()[0].attempts
        )
        row = store.outbox()[0]
        assert row.state is OutboxState.DEAD or clock.monotonic() + row.due_in_seconds <= began + 22
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
    assert len(provider.began) == 1


@pytest.mark.parametrize("event", ["resolve", "acknowledge"])
async def test_the_end_of_a_page_and_that_somebody_has_it_are_not_repeated_for_a_day(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until, event: str
) -> None:
    store.commit(state=None, outbox=[post("sms")])
    async with running(store, provider, clock) as delivery:
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 1)
        provider.answers["sms"] = [UNKNOWN] * 1000
        store.commit(state=None, outbox=[OutboxMessage(replace(message(event=event), severity="info"), "sms")])
        delivery.wake()
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
    assert len(provider.began) == 1 + 3
    assert [(load.dead, load.perhaps_told) for load in store.outbox_load()] == [(1, 1)], "and nobody is paged for it"
