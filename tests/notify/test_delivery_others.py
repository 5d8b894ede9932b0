"""Who else is told: fallback, escalation, digests."""

from __future__ import annotations

from sre.actions.records import OutboxState
from sre.adapters.store import GuardStore
from sre.notify.delivery import Cause, DeliveryResult, Verdict
from sre.notify.forms import Rendered
from sre.settings.notify import ChannelSettings, EscalationSettings, NotifySettings, StormSettings
from sre.testing.clock import ManualClock
from tests.notify.sending import (
    CHAIN,
    FAILED,
    REJECTED,
    UNKNOWN,
    Provider,
    Until,
    count,
    running,
)
from tests.store.samples import message, post


async def test_after_some_failed_tries_the_fallback_is_told_and_the_channel_tried_on(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [FAILED, UNKNOWN, FAILED, FAILED]
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock, CHAIN):
        await wait_until_async(lambda: provider.accepted == ["sms", "mail"])
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 2)
    assert [name for name, _ in provider.began] == ["mail", "mail", "mail", "sms", "mail", "mail"]


async def test_what_is_refused_for_good_goes_to_the_fallback_at_once(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [REJECTED]
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock, CHAIN):
        await wait_until_async(lambda: provider.accepted == ["sms"])
        assert count(store, OutboxState.DEAD) == 1, "and stays visible"
    assert [name for name, _ in provider.began] == ["mail", "sms"]
    text = dict(provider.began[-1][1].parameters)
    assert text["id"] == message().incident_id


async def test_a_second_page_does_not_wait_for_failures_of_its_own(
    store: GuardStore, clock: ManualClock, wait_until_async: Until
) -> None:
    class Dying(Provider):
        """Fails four times on mail, then never answers."""

        async def __call__(self, channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
            if sum(name == "mail" for name, _ in self.began) == 4:
                self.hanging.add("mail")
            return await super().__call__(channel, rendered)

    provider = Dying(answers={"mail": [FAILED] * 4})
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock, CHAIN) as delivery:
        await wait_until_async(lambda: provider.accepted == ["sms"])
        store.commit(state=None, outbox=[post(incident="second"), post(incident="third")])
        delivery.wake()
        await wait_until_async(lambda: provider.accepted == ["sms"] * 3)


async def test_a_throttled_channel_is_left_alone_and_holds_no_page(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [
        DeliveryResult(Verdict.FAILED, "429", retry_after_seconds=5000.0, cause=Cause.THROTTLED)
    ]
    store.commit(state=None, outbox=[post(), post(incident="behind")])
    began = clock.monotonic()
    async with running(store, provider, clock, CHAIN):
        await wait_until_async(lambda: provider.accepted == ["sms", "sms", "mail"])
        assert clock.monotonic() - began >= 295, "what waits behind it is tried after max_backoff_seconds"
    assert [name for name, _ in provider.began] == ["mail", "sms", "sms", "mail"]


async def test_a_page_that_nobody_acknowledges_is_escalated(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    settings = NotifySettings(
        channels=CHAIN.channels,
        escalation=EscalationSettings(after_seconds=100, repeat_seconds=50, max_levels=2, channels=("sms",)),
    )
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock, settings):
        await wait_until_async(lambda: provider.accepted == ["mail", "sms", "sms"])
        rounds = clock.monotonic() + 500
        await wait_until_async(lambda: clock.monotonic() > rounds)
    assert provider.accepted == ["mail", "sms", "sms"]
    bodies = [rendered.body for name, rendered in provider.began if name == "sms"]
    assert bodies[0].startswith("PAGE ESCALATED engine sim-0")
    assert "not acknowledged" in bodies[0]


async def test_a_storm_is_a_few_messages(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    settings = NotifySettings(channels=CHAIN.channels, storm=StormSettings(max_messages=3, window_seconds=100))
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(500)])
    async with running(store, provider, clock, settings):
        await wait_until_async(lambda: count(store, OutboxState.DIGESTED) == 497)
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 4)
    assert len(provider.began) == 4
    assert provider.began[-1][1].title == "[page] DIGEST 497 incidents: too many messages"
