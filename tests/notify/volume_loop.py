"""
Run by test_sender_kill.py: a guard that takes a thousand alerts and tells them, killed again and again.

A life of it is a forked process: it queues the alerts up to a number that grows from life to life, ten in a commit, and
delivers meanwhile. All lives but the last are killed, each at another step. The provider is a file: a
line per accepted message, written before the sender hears of it. Prints one line of JSON.

    python -m tests.notify.volume_loop FOLDER plain|storm ALERTS SEED
    python -m tests.notify.volume_loop FOLDER worker ALERTS SEED URL    real workers that post to URL
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from sre.actions.records import OutboxMessage, OutboxState
from sre.adapters.clock import SystemClock
from sre.adapters.notifiers.process import AppriseSender
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery
from sre.notify.delivery import DeliveryResult, Send, Verdict
from sre.notify.forms import Rendered
from sre.settings.notify import ChannelSettings, NotifySettings, StormSettings
from tests.store.samples import message, outbox_counts

STEPS = ("committing", "committed", "leasing", "leased", "sent", "marking", "marked")
"""Where a life ends: before the alert's commit, after it, the same of the lease, after the provider accepted, …"""
CHANNELS = ("mail", "sms", "chat", "pager")
BATCH = 10


def settings_of(mode: str) -> NotifySettings:
    channels = tuple(ChannelSettings(name=name, kind="webhook", url="env:URL", timeout_seconds=20) for name in CHANNELS)
    storm = StormSettings(max_messages=5, window_seconds=2.0) if mode == "storm" else None
    return NotifySettings(channels=channels, storm=storm, initial_backoff_seconds=0.05, max_backoff_seconds=0.2)


class Killer:
    """Ends this process the ``count``-th time that ``step`` is reached."""

    def __init__(self, step: str | None, count: int) -> None:
        self.step, self.left = step, count
        self.doing = ""

    def reach(self, step: str) -> None:
        if step != self.step:
            return
        self.left -= 1
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def trace(self, statement: str) -> None:
        """Told of each SQL statement before it runs: what a transaction does is known by its first telling one."""
        if statement == "BEGIN IMMEDIATE":
            self.doing = ""
        elif statement.startswith("INSERT INTO outbox") and not self.doing:
            self.doing = "commit"
        elif "attempts = attempts + 1" in statement:
            self.doing = "leas"
        elif "sent_wall = " in statement and statement.startswith("UPDATE"):
            self.doing = "mark"
        elif statement == "COMMIT":
            self.reach({"commit": "committing", "leas": "leasing", "mark": "marking"}.get(self.doing, ""))


def stub(folder: Path, killer: Killer) -> Send:
    """A provider that accepts at once."""
    descriptor = os.open(folder / "accepted", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def send(channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
        killer.reach("leased")
        os.write(descriptor, f"{channel.name} {rendered.key}\n".encode())
        killer.reach("sent")
        return DeliveryResult(Verdict.DELIVERED)

    return send


async def live(folder: Path, mode: str, alerts: int, killer: Killer, url: str) -> None:
    """Queue and deliver everything."""
    async with AsyncExitStack() as stack:
        store = stack.enter_context(
            GuardStore.open(folder / "guard.db", clock=SystemClock(), boot_id="b", trace=killer.trace)
        )
        send = stub(folder, killer)
        if mode == "worker":
            sender = await stack.enter_async_context(AppriseSender({**os.environ, "URL": url}))

            async def post(channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
                killer.reach("leased")
                result = await sender(channel, rendered)
                killer.reach("sent")
                return result

            send = post
        delivery = Delivery(store, settings_of(mode), SystemClock(), send, rng=random.Random(1))
        task = asyncio.create_task(delivery.run())
        for begin in range(0, alerts, BATCH):
            batch = [
                OutboxMessage(message(f"a{n:04d}"), CHANNELS[n % len(CHANNELS)]) for n in range(begin, begin + BATCH)
            ]
            await asyncio.to_thread(store.commit, state=str(begin), outbox=batch)
            killer.reach("committed")
            delivery.wake()
        done = (OutboxState.SENT, OutboxState.DIGESTED)
        while sum((counts := await asyncio.to_thread(outbox_counts, store)).values()) != sum(counts[s] for s in done):
            killer.reach("marked")
            await asyncio.sleep(0.01)
        await delivery.stop()
        await task


def run(work: Callable[[], None]) -> bool:
    """Run ``work`` in a process of its own; return whether it came to its end."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def main() -> None:
    folder, mode, alerts, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    url = sys.argv[5] if len(sys.argv) > 5 else ""
    rng = random.Random(seed)
    steps = [*STEPS, *STEPS] if mode != "worker" else ["leased", "sent", "marking", "committed"]
    rng.shuffle(steps)
    died = []
    lives = [*steps, None]
    for number, step in enumerate(lives, 1):
        upto = alerts * number // len(lives) // BATCH * BATCH
        # What a life reaches once per message of its own, and what it reaches seldom.
        often = step in ("leasing", "leased", "sent", "marking") and mode == "plain"
        killer = Killer(step, rng.randrange(1, alerts // len(lives) // 2 if often else 3))
        if not run(lambda k=killer, n=upto: asyncio.run(live(folder, mode, n, k, url))):  # type: ignore[misc]
            died.append(step)
    with GuardStore.open(folder / "guard.db", clock=SystemClock(), boot_id="b") as store:
        digests = {
            row.message.incident_id: [one.message.incident_id for one in store.outbox(digest=row.message.incident_id)]
            for row in store.outbox(limit=100_000)
            if row.is_digest
        }
        states = {state.value: count for state, count in outbox_counts(store).items() if count}
        chain = store.verify_chain()
    accepted = folder / "accepted"
    lines = Counter(accepted.read_text().split("\n")[:-1]) if accepted.exists() else Counter()
    print(json.dumps({"died": died, "accepted": lines, "digests": digests, "states": states, "chain": chain}))


if __name__ == "__main__":
    main()
