"""A mistake of ours around a try: it is logged at once, counted, and repeated like a try that failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from sre.actions.records import OutboxState
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery, NoOutbox
from sre.notify.delivery import DeliveryResult
from sre.notify.forms import Rendered
from sre.settings.notify import ChannelSettings
from sre.testing.clock import ManualClock
from tests.notify.sending import CHAIN, Provider, Until, count
from tests.store.samples import post


class Odd(Provider):
    """Answers what is no answer, the first few times; on one channel."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def __call__(self, channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
        answer = await super().__call__(channel, rendered)
        if channel.name == "mail" and self.times:
            self.times -= 1
            self.accepted.remove("mail")
            return DeliveryResult(None)  # type: ignore[arg-type]
        return answer


def counted() -> tuple[list[str], Mapping[str, object]]:
    failures: list[str] = []
    return failures, {"count_failure": lambda: failures.append("outbox")}


async def test_it_is_logged_with_its_number_counted_and_repeated_later(
    store: GuardStore, clock: ManualClock, wait_until_async: Until, caplog: pytest.LogCaptureFixture
) -> None:
    failures, count_failure = counted()
    began = clock.monotonic()
    store.commit(state=None, outbox=[post()])
    delivery = Delivery(store, CHAIN, clock, Odd(2), rng=random.Random(1), **count_failure)  # type: ignore[arg-type]
    task = asyncio.create_task(delivery.run())
    await wait_until_async(lambda: count(store, OutboxState.SENT) == 1, interval=0)
    await delivery.stop()
    await task
    assert caplog.text.count("outbox: delivering message 1 to mail failed; it is repeated") == 2
    assert "Traceback" in caplog.text
    assert failures == ["outbox"] * 2
    assert clock.monotonic() - began < 30, "its lease did not hold it for a minute"


async def test_one_that_stays_goes_to_the_fallback_and_is_no_storm(
    store: GuardStore, clock: ManualClock, wait_until_async: Until
) -> None:
    provider = Odd(1000)
    store.commit(state=None, outbox=[post()])
    delivery = Delivery(store, CHAIN, clock, provider, rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    await wait_until_async(lambda: provider.accepted == ["sms"], interval=0)
    begun = clock.monotonic()
    await wait_until_async(lambda: clock.monotonic() - begun > 150)
    await delivery.stop()
    await task
    assert [name for name, _ in provider.began] == ["mail", "mail", "mail", "sms"]


async def test_in_memory_it_is_repeated_later_too(
    clock: ManualClock, wait_until_async: Until, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Odd(3)
    delivery = Delivery(NoOutbox(), CHAIN, clock, provider, rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    delivery.send_unstored([post()])
    await wait_until_async(lambda: provider.accepted == ["sms", "mail"])
    await delivery.stop()
    await task
    assert caplog.text.count("failed; it is repeated") == 3
