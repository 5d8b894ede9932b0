"""A provider in memory, and a sender that runs on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sre.actions.records import OutboxState
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery
from sre.notify.delivery import Cause, DeliveryResult, Verdict
from sre.notify.forms import Rendered
from sre.settings.notify import ChannelSettings, NotifySettings
from sre.testing.clock import ManualClock
from tests.store.samples import outbox_counts

OK = DeliveryResult(Verdict.DELIVERED)
FAILED = DeliveryResult(Verdict.FAILED, "451 try later")
UNKNOWN = DeliveryResult(Verdict.UNKNOWN, "killed")
REJECTED = DeliveryResult(Verdict.REJECTED, "550 no such user", cause=Cause.RECIPIENT)
REFUSED_NOW = DeliveryResult(Verdict.REFUSED_NOW, "403 not yet", cause=Cause.CREDENTIALS)
IMPOSSIBLE = DeliveryResult(Verdict.IMPOSSIBLE, "no such service")

Until = Callable[..., Awaitable[object]]


def channel(name: str, kind: str = "email") -> ChannelSettings:
    return ChannelSettings(name=name, kind=kind, url=f"env:{name.upper()}", timeout_seconds=20)  # type: ignore[arg-type]


SETTINGS = NotifySettings(channels=(channel("mail"), channel("sms", "sms")), max_attempts=4)

CHAIN = NotifySettings(
    channels=(
        ChannelSettings(name="mail", kind="email", url="env:MAIL", fallback="sms"),
        ChannelSettings(name="sms", kind="sms", url="env:SMS"),
    ),
    fallback_after_attempts=3,
)


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
    return outbox_counts(store)[state]


def fill(store: GuardStore) -> Callable[[], None]:
    """Make the disk full for ``store``: nothing can be written. Returns what makes room again."""
    store._connection.execute("PRAGMA query_only=1")
    return lambda: store._connection.execute("PRAGMA query_only=0") and None
