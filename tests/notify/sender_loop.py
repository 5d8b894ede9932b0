"""
Run by test_sender_kill.py: a sender per SQL statement that writes, killed before it; then one that is not killed.

The provider is a file: a line per accepted message, written and synced before the sender hears of it. Prints a line of
JSON per round: what the sender died before, and the lines in the file.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path

from sre.actions.records import OutboxState
from sre.adapters.clock import SystemClock
from sre.adapters.store import GuardStore
from sre.control.delivery import Delivery
from sre.notify.delivery import DeliveryResult, Verdict
from sre.notify.forms import Rendered
from sre.settings.notify import ChannelSettings, NotifySettings
from tests.store.samples import outbox_counts, post

SETTINGS = NotifySettings(channels=(ChannelSettings(name="sms", kind="sms", url="env:X"),))


def sender(folder: Path, kill_before: int | None) -> None:
    """Deliver what is queued; never returns."""
    count = 0

    def trace(statement: str) -> None:
        nonlocal count
        if statement.lstrip().startswith(("SELECT", "PRAGMA")):
            return  # reading changes nothing
        count += 1
        if count == kill_before:
            (folder / "died").write_text(" ".join(statement.split())[:60])
            os.kill(os.getpid(), signal.SIGKILL)

    async def accept(channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
        with (folder / "accepted").open("a") as file:
            file.write(rendered.body + "\n")
        return DeliveryResult(Verdict.DELIVERED)

    async def deliver() -> None:
        store = GuardStore.open(folder / "guard.db", clock=SystemClock(), boot_id="b", trace=trace)
        delivery = Delivery(store, SETTINGS, SystemClock(), accept, rng=random.Random(1))
        task = asyncio.create_task(delivery.run())
        while outbox_counts(store)[OutboxState.SENT] < 1:  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.002)
        await delivery.stop()
        await task
        store.close()

    asyncio.run(deliver())
    os._exit(0)


def run(folder: Path, kill_before: int | None) -> bool:
    """Return whether the sender came to its end."""
    child = os.fork()
    if child == 0:
        sender(folder, kill_before)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status)


def main() -> None:
    for kill_before in range(1, 1000):
        folder = Path(sys.argv[1]) / str(kill_before)
        folder.mkdir()
        with GuardStore.open(folder / "guard.db", clock=SystemClock(), boot_id="b") as store:
            store.commit(state=None, outbox=[post("sms")])
        finished = run(folder, kill_before)
        if not finished:
            assert run(folder, None)
        died = (folder / "died").read_text() if not finished else None
        lines = (folder / "accepted").read_text().splitlines()
        with GuardStore.open(folder / "guard.db", clock=SystemClock(), boot_id="b") as store:
            state = store.outbox()[0].state.value
        print(json.dumps({"died_before": died, "accepted": lines, "state": state}), flush=True)
        if finished:
            return


if __name__ == "__main__":
    main()
