"""What may pass is repeated, and what fails in the sender keeps nothing else back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from sre.actions.records import OutboxState
from sre.actions.types import Message
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery, NoOutbox
from sre.errors import StateError
from sre.notify.delivery import Cause, DeliveryResult, Verdict
from sre.notify.forms import Rendered
from sre.settings.notify import ChannelSettings, EscalationSettings, NotifySettings
from sre.testing.clock import ManualClock
from tests.notify.sending import CHAIN, IMPOSSIBLE, REFUSED_NOW, SETTINGS, Provider, Until, count, running
from tests.store.samples import post

ESCALATING = NotifySettings(
    channels=CHAIN.channels, escalation=EscalationSettings(after_seconds=1, channels=("sms",), max_levels=1)
)


# ---- refusals that may pass


@pytest.mark.parametrize("answer", [REFUSED_NOW, IMPOSSIBLE])
async def test_a_refusal_that_may_pass_is_told_elsewhere_at_once_and_repeated(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until, answer: DeliveryResult
) -> None:
    settings = NotifySettings(channels=CHAIN.channels, max_attempts=3, max_backoff_seconds=30)
    provider.answers["mail"] = [answer] * 8  # more than max_attempts
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock, settings) as delivery:
        await wait_until_async(lambda: provider.accepted, interval=0)
        assert [name for name, _ in provider.began] == ["mail", "sms"]
        await wait_until_async(lambda: provider.accepted == ["sms", "mail"])
        assert delivery.statistics["mail"].dead == 0
    assert store.outbox()[0].attempts == 9


async def test_without_a_fallback_it_is_repeated_until_it_is_too_old_and_then_shown(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    settings = NotifySettings(channels=SETTINGS.channels, max_age_seconds=300, max_attempts=2, max_backoff_seconds=30)
    provider.answers["sms"] = [REFUSED_NOW] * 1000
    store.commit(state=None, outbox=[post("sms")])
    async with running(store, provider, clock, settings):
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
    (row,) = store.outbox()
    assert row.attempts > 8
    assert row.age_seconds > 300
    assert row.last_error == "not sent: older than 300 s"


async def test_a_message_in_memory_is_not_repeated_for_ever(
    provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    settings = NotifySettings(channels=SETTINGS.channels, max_age_seconds=500)
    provider.answers["sms"] = [REFUSED_NOW] * 1000
    delivery = Delivery(NoOutbox(), settings, clock, provider, rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    delivery.send_unstored([post("sms")])
    await wait_until_async(lambda: delivery.unstored == ())
    assert delivery.statistics["sms"].dead == 1
    await delivery.stop()
    await task


async def test_a_mail_server_that_refuses_the_password_is_asked_seldom(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    """Five pages wait; a server that counts refused log-ins would lock the account."""
    provider.answers["mail"] = [REFUSED_NOW]
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(5)])
    began = clock.monotonic()
    async with running(store, provider, clock, CHAIN):
        await wait_until_async(lambda: provider.accepted.count("sms") == 5, interval=0)
        assert clock.monotonic() - began < 60, "nobody waits for that"
        assert [name for name, _ in provider.began].count("mail") == 1
        await wait_until_async(lambda: provider.accepted.count("mail") == 5)
        assert clock.monotonic() - began >= 300


# ---- guards


class Breaking:
    """A store of which some calls fail."""

    def __init__(self, store: GuardStore, **broken: Callable[..., Any]) -> None:
        self._store, self.broken = store, broken

    def __getattr__(self, name: str) -> Any:
        return self.broken.get(name) or getattr(self._store, name)


def fails(*_: object, **__: object) -> int:
    raise StateError("one row that no file takes")


def raises(*_: object, **__: object) -> int:
    raise ZeroDivisionError("a mistake of ours")


@pytest.mark.parametrize("failure", [fails, raises])
@pytest.mark.parametrize("duty", ["escalate", "divert", "strand"])
async def test_a_duty_that_fails_keeps_no_delivery_back_and_is_told_once(
    store: GuardStore,
    provider: Provider,
    clock: ManualClock,
    wait_until_async: Until,
    caplog: pytest.LogCaptureFixture,
    duty: str,
    failure: Callable[..., int],
) -> None:
    provider.answers["mail"] = [DeliveryResult(Verdict.FAILED, "451")] * (20 if duty == "divert" else 3)
    broken = Breaking(store, **{duty: failure})
    failures: list[str] = []
    delivery = Delivery(
        broken, ESCALATING, clock, provider, rng=random.Random(1), count_failure=lambda: failures.append(duty)
    )  # fmt: skip
    task = asyncio.create_task(delivery.run())
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(3)])
    await wait_until_async(lambda: provider.accepted.count("mail") >= 3)
    later = clock.monotonic() + 120
    await wait_until_async(lambda: clock.monotonic() > later)
    assert delivery.store_problem is None
    told = [name for name, form in provider.began if "fails again and again" in form.body]
    assert sorted(set(told)) == ["mail", "sms"]
    assert told.count("sms") == 1
    assert len(failures) > 10
    assert caplog.text.count("outbox: {}".format({"escalate": "escalation:", "divert": "fallback of mail:",
                                                  "strand": "removed channels:"}[duty])) == 1  # fmt: skip
    broken.broken.clear()
    await wait_until_async(lambda: [form.act.value for _, form in provider.began].count("resolve") == 2)
    await delivery.stop()
    await task


async def test_a_mistake_in_what_guards_the_duties_ends_no_sender(
    store: GuardStore,
    provider: Provider,
    clock: ManualClock,
    wait_until_async: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted: list[float] = []

    def count_failure() -> None:
        counted.append(clock.monotonic())
        raise ZeroDivisionError("a mistake of ours")

    broken = Breaking(store, escalate=fails)
    delivery = Delivery(broken, ESCALATING, clock, provider, rng=random.Random(1), count_failure=count_failure)
    task = asyncio.create_task(delivery.run())
    await wait_until_async(lambda: len(counted) > 3)
    store.commit(state=None, outbox=[post()])
    await wait_until_async(lambda: provider.accepted == ["mail"])
    assert caplog.text.count("outbox: a turn failed; the sender goes on") == 1
    broken.broken.clear()
    await wait_until_async(lambda: "turns are whole again" in caplog.text)
    await delivery.stop()
    await task


async def test_a_message_that_cannot_be_started_ends_no_sender(
    store: GuardStore, provider: Provider, wait_until_async: Until, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(ManualClock):
        """A clock that fails the next time it is read: where the sender looks what is due."""

        fails = False

        def monotonic(self) -> float:
            if self.fails:
                self.fails = False
                raise ZeroDivisionError("a mistake of ours")
            return super().monotonic()

    clock, failures = Failing(), []
    delivery = Delivery(
        store, SETTINGS, clock, provider, rng=random.Random(1), count_failure=lambda: failures.append("starting")
    )  # fmt: skip
    delivery.send_unstored([post("sms")])
    clock.fails = True
    task = asyncio.create_task(delivery.run())
    await wait_until_async(lambda: provider.accepted == ["sms"], interval=0)
    assert failures == ["starting"]
    assert caplog.text.count("outbox: starting failed; the sender goes on") == 1
    await delivery.stop()
    await task


async def test_a_channel_whose_next_message_cannot_be_taken_keeps_no_other_back(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    def lease(*, channels: tuple[str, ...], **how: Any) -> object:
        if "mail" in channels:
            raise StateError("a digest that no file takes")
        return store.lease(channels=channels, **how)

    delivery = Delivery(Breaking(store, lease=lease), SETTINGS, clock, provider, rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    store.commit(state=None, outbox=[post(), post("sms")])
    delivery.wake()
    await wait_until_async(lambda: count(store, OutboxState.SENT) == 2)
    assert sorted(provider.accepted) == ["mail", "sms"], "what cannot be leased is read, and goes out too"
    await delivery.stop()
    await task


async def test_an_outcome_that_cannot_be_written_keeps_no_other_back(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    def mark_sent(row_id: int, *, owner: str) -> bool:
        if row_id == 1:
            raise StateError("no")
        return store.mark_sent(row_id, owner=owner)

    delivery = Delivery(Breaking(store, mark_sent=mark_sent), SETTINGS, clock, provider, rng=random.Random(1))
    task = asyncio.create_task(delivery.run())
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(5)])
    delivery.wake()
    await wait_until_async(lambda: count(store, OutboxState.SENT) == 4)
    rounds = clock.monotonic() + 200
    await wait_until_async(lambda: clock.monotonic() > rounds)
    assert provider.accepted == ["mail"] * 5, "and it is not sent again"
    await delivery.stop()
    await task


async def test_what_a_provider_says_in_half_characters_can_be_written_down(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    provider.answers["mail"] = [DeliveryResult(Verdict.REJECTED, "no such \udce9 user", cause=Cause.RECIPIENT)]
    store.commit(state=None, outbox=[post(incident="i"), post(incident="j")])
    async with running(store, provider, clock, CHAIN):
        await wait_until_async(lambda: sorted(provider.accepted) == ["mail", "sms"])
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 2)
    assert store.outbox()[0].last_error == "no such ? user"


async def test_a_form_that_fails_at_delivery_is_replaced_by_ours(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    def render(message: Message, channel: ChannelSettings, opened: Message | None = None) -> Rendered:
        raise KeyError("a template")

    delivery = Delivery(store, SETTINGS, clock, provider, rng=random.Random(1), render=render)
    task = asyncio.create_task(delivery.run())
    store.commit(state=None, outbox=[post("sms")])
    delivery.wake()
    await wait_until_async(lambda: provider.accepted == ["sms"])
    assert provider.began[0][1].body.startswith("PAGE OPEN engine sim-0")
    await delivery.stop()
    await task


async def test_a_page_for_a_channel_that_was_renamed_goes_to_the_others(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    store.commit(
        state=None, outbox=[post("old-name", incident="i"), post("old-name", incident="j"), post(incident="j")]
    )
    async with running(store, provider, clock):
        await wait_until_async(lambda: count(store, OutboxState.SENT) == 3)
    heard = [(name, form.key) for name, form in provider.began]
    assert sorted(heard) == [("mail", "i"), ("mail", "j"), ("sms", "i")], "who has it is not told again"
    assert count(store, OutboxState.DEAD) == 2
