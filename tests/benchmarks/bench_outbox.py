"""What a storm costs: ten thousand messages in a minute, queued one by one while they are told and end again."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path

import psutil
import pytest

from sre.actions.records import OutboxMessage, OutboxState
from sre.adapters.clock import SystemClock
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery
from sre.notify.delivery import DeliveryResult, Verdict
from sre.notify.forms import Rendered
from sre.settings.notify import ChannelSettings, NotifySettings
from tests.store.samples import message, outbox_counts

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300)]

CHANNELS = ("mail", "sms")
ALERTS = 2_500
"""Each begins and ends on each channel: ten thousand messages."""
SECONDS = 60.0
TRY_SECONDS = 0.3
"""What a delivery takes."""


async def provider(channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
    await asyncio.sleep(TRY_SECONDS)
    return DeliveryResult(Verdict.DELIVERED)


def percentile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[int(share * 1000) - 1]


async def storm(store: GuardStore, delivery: Delivery) -> list[float]:
    """Begin and end ALERTS incidents within SECONDS; return how long each commit took."""
    taken = []
    began = time.monotonic()
    events = [(n, "open") for n in range(ALERTS)] + [(n, "resolve") for n in range(ALERTS)]
    for number, (n, event) in enumerate(events):
        await asyncio.sleep(max(0.0, began + number * SECONDS / len(events) - time.monotonic()))
        outbox = [OutboxMessage(message(f"i{n}", event), channel) for channel in CHANNELS]
        at = time.perf_counter()
        await asyncio.to_thread(store.commit, state="s" * 2000, outbox=outbox)
        taken.append(time.perf_counter() - at)
        delivery.wake()
    return taken


async def test_ten_thousand_messages_in_a_minute(tmp_path: Path) -> None:
    process = psutil.Process()
    settings = NotifySettings(
        channels=tuple(ChannelSettings(name=name, kind="webhook", url="env:X") for name in CHANNELS)
    )
    with GuardStore.open(tmp_path / "guard.db", clock=SystemClock(), boot_id="b") as store:
        delivery = Delivery(store, settings, SystemClock(), provider, rng=random.Random(1))
        task = asyncio.create_task(delivery.run())
        before, cpu = process.memory_info().rss, sum(process.cpu_times()[:2])
        began = time.monotonic()
        taken = await storm(store, delivery)
        took = time.monotonic() - began
        grown, cpu = process.memory_info().rss - before, sum(process.cpu_times()[:2]) - cpu
        await delivery.stop()
        await task
        told = [row for row in store.outbox(limit=100_000) if row.state is OutboxState.SENT]
        counts = {state.value: count for state, count in outbox_counts(store).items() if count}
        size = sum(file.stat().st_size for file in tmp_path.iterdir())
    print(f"\noutbox, {len(taken) * len(CHANNELS)} messages in {took:.0f} s, {len(CHANNELS)} channels:")
    print(
        f"  commit: P50 {percentile(taken, 0.5) * 1e3:.1f} ms, P99 {percentile(taken, 0.99) * 1e3:.1f} ms,"
        f" longest {max(taken) * 1e3:.0f} ms; promised P99 <= 50 ms"
    )
    print(f"  memory: {grown / 2**20:+.1f} MB; CPU of one core {cpu / took:.0%}; file {size / 2**20:.1f} MB")
    print(f"  sent {len(told)} messages, {sum(row.is_digest for row in told)} of them digests; {counts}")
