"""The sender's loop, on a store on disk and a provider in memory; time is the manual clock's."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sre.actions.records import OutboxState
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery, NoOutbox
from sre.notify.delivery import Cause, DeliveryResult, Verdict
from sre.notify.forms import Rendered
from sre.settings.notify import ChannelSettings, EscalationSettings, NotifySettings, StormSettings
from sre.testing.clock import ManualClock
from tests.store.hanging import HangingDisk
from tests.store.samples import message, post

OK = DeliveryResult(Verdict.DELIVERED)
FAILED = DeliveryResult(Verdict.FAILED, "451 try later")
UNKNOWN = DeliveryResult(Verdict.UNKNOWN, "killed")
REJECTED = DeliveryResult(Verdict.REJECTED, "550 no such user", cause=Cause.RECIPIENT)
IMPOSSIBLE = DeliveryResult(Verdict.IMPOSSIBLE, "no such service")

Until = Callable[..., Awaitable[object]]


def channel(name: str, kind: str = "email") -> ChannelSettings:
    return ChannelSettings(name=name, kind=kind, url=f"env:{name.upper()}", timeout_seconds=20)  # type: ignore[arg-type]


SETTINGS = NotifySettings(channels=(channel("mail"), channel("sms", "sms")), max_attempts=4)


@dataclass
class Provider:
    """Accepts everything, unless told otherwise per channel."""

    answers: dict[str, list[DeliveryResult | Exception]] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    began: list[tuple[str, Rendered]] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    async def __call__(self, channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
        self.began.append((channel.name, rendered))
        if channel.name in self.hanging:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(channel.name)
                raise
        answers = self.answers.get(channel.name, [])
        answer = answers.pop(0) if answers else OK
        if isinstance(answer, Exception):
            raise answer
        if answer is OK:
            self.accepted.append(channel.name)
        return answer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> HangingDisk:
    return HangingDisk()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, disk: HangingDisk) -> Iterator[GuardStore]:
    with GuardStore.open(tmp_path / "guard.db", clock=clock, boot_id="boot-1", trace=disk) as opened:
        yield opened


@pytest.fixture
def provider() -> Provider:
    return Provider()


@asynccontextmanager
async def running(
    store: GuardStore,
    provider: Provider,
    clock: ManualClock,
    settings: NotifySettings = SETTINGS,
    store_seconds: float = 5.0,
) -> AsyncIterator[Delivery]:
    delivery = Delivery(store, settings, clock, provider, rng=random.Random(1), store_seconds=store_seconds)
    task = asyncio.create_task(delivery.run())
    try:
        yield delivery
    finally:
        await delivery.stop(grace_seconds=0.01)
        await task


def count(store: GuardStore, state: OutboxState) -> int:
    return store.outbox_counts()[state]


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


@pytest.mark.parametrize(("answers", "tries"), [([FAILED] * 9, 4), ([REJECTED], 1), ([IMPOSSIBLE], 1)])
async def test_what_cannot_be_delivered_is_given_up_and_shown(
    store: GuardStore,
    provider: Provider,
    clock: ManualClock,
    wait_until_async: Until,
    answers: Sequence[DeliveryResult],
    tries: int,
) -> None:
    provider.answers["mail"] = list(answers)
    store.commit(state=None, outbox=[post()])
    async with running(store, provider, clock) as delivery:
        await wait_until_async(lambda: count(store, OutboxState.DEAD) == 1)
        assert delivery.statistics["mail"].dead == 1
    row = store.outbox()[0]
    assert (row.attempts, row.last_error) == (tries, answers[0].detail)


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


def fill(store: GuardStore) -> Callable[[], None]:
    """Make the disk full for ``store``: nothing can be written. Returns what makes room again."""
    store._connection.execute("PRAGMA query_only=1")
    return lambda: store._connection.execute("PRAGMA query_only=0") and None


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
        assert delivery.store_problem is None
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
        rounds = clock.monotonic() + 2000
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


# ---- fallback, escalation, storms


CHAIN = NotifySettings(
    channels=(
        ChannelSettings(name="mail", kind="email", url="env:MAIL", fallback="sms"),
        ChannelSettings(name="sms", kind="sms", url="env:SMS"),
    ),
    fallback_after_attempts=3,
)


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
    assert provider.began[-1][1].title == "[page] DIGEST 497 incidents: storm"


async def test_a_backlog_on_a_full_disk_does_not_flood(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until
) -> None:
    settings = NotifySettings(channels=CHAIN.channels, storm=StormSettings(max_messages=3, window_seconds=1000))
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(50)])
    fill(store)
    async with running(store, provider, clock, settings):
        rounds = clock.monotonic() + 900
        await wait_until_async(lambda: provider.accepted == ["mail"] * 3)
        await wait_until_async(lambda: clock.monotonic() > rounds)
        assert provider.accepted == ["mail"] * 3
        await wait_until_async(lambda: provider.accepted == ["mail"] * 6)
