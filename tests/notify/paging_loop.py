"""
Run by test_paging_kill.py: a guard whose incidents go every way there is, killed before one of its SQL statements.

Mail refuses twice (for now), so that its fallback, a paging service, is told too; a storm becomes digests on both;
nobody answers, so that the paging service is called once more; then all is over. Prints a line of JSON per round: what
the guard died before, and what each channel heard, in order.

    python -m tests.notify.paging_loop FOLDER FIRST STEP       kill before statement FIRST, FIRST + STEP, …
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
from sre.notify.delivery import Cause, DeliveryResult, Verdict
from sre.notify.forms import Rendered
from sre.settings.notify import ChannelSettings, EscalationSettings, NotifySettings, StormSettings
from tests.store.samples import post

INCIDENTS = tuple(f"i{n}" for n in range(5))
SETTINGS = NotifySettings(
    channels=(
        ChannelSettings(name="mail", kind="email", url="env:X", fallback="pager"),
        ChannelSettings(name="pager", kind="pagerduty", url="env:X"),
    ),
    storm=StormSettings(max_messages=2, window_seconds=0.5),
    escalation=EscalationSettings(after_seconds=0.05, repeat_seconds=1, max_levels=1, channels=("pager",)),
    initial_backoff_seconds=0.02,
    max_backoff_seconds=0.05,
)
UNFINISHED = (OutboxState.HELD, OutboxState.PENDING, OutboxState.SENDING)


class Life:
    """One guard."""

    def __init__(self, folder: Path, kill_before: int | None) -> None:
        self.folder, self.kill_before = folder, kill_before
        self.count = 0
        self.refusals = 2

    def trace(self, statement: str) -> None:
        if statement.lstrip().startswith(("SELECT", "PRAGMA")):
            return  # reading changes nothing
        self.count += 1
        if self.count == self.kill_before:
            (self.folder / "died").write_text(" ".join(statement.split())[:80])
            os.kill(os.getpid(), signal.SIGKILL)

    async def send(self, channel: ChannelSettings, rendered: Rendered) -> DeliveryResult:
        if channel.name == "mail" and self.refusals:
            self.refusals -= 1
            return DeliveryResult(Verdict.REFUSED_NOW, "404 rolled out", cause=Cause.NOT_FOUND)
        with (self.folder / "accepted").open("a") as file:
            file.write(f"{channel.name} {rendered.act.value} {rendered.key}\n")
        return DeliveryResult(Verdict.DELIVERED)

    async def live(self) -> None:
        with GuardStore.open(self.folder / "guard.db", clock=SystemClock(), boot_id="b", trace=self.trace) as store:
            delivery = Delivery(store, SETTINGS, SystemClock(), self.send, rng=random.Random(1))
            task = asyncio.create_task(delivery.run())
            for event, level in (("open", 1), ("resolve", 0)):
                batch = [post(c, incident=i, event=event) for i in INCIDENTS for c in ("mail", "pager")]
                if event == "open":
                    batch = [item for item in batch if item.channel == "mail" or item.message.incident_id != "i4"]
                store.commit(state=event, outbox=batch)
                while store.outbox(states=UNFINISHED) or any(
                    one.resolved_wall is None and one.level < level for one in store.incidents()
                ):
                    delivery.wake()
                    await asyncio.sleep(0.01)
            await delivery.stop()
            await task


def run(folder: Path, kill_before: int | None) -> bool:
    """Return whether the guard came to its end."""
    child = os.fork()
    if child == 0:
        asyncio.run(Life(folder, kill_before).live())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def main() -> None:
    root, first, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for kill_before in range(first, 10_000, step):
        folder = root / str(kill_before)
        folder.mkdir()
        finished = run(folder, kill_before)
        if not finished:
            assert run(folder, None)
        with GuardStore.open(folder / "guard.db", clock=SystemClock(), boot_id="b") as store:
            digests = {
                row.message.incident_id: sorted(
                    {o.message.incident_id for o in store.outbox(digest=row.message.incident_id)}
                )
                for row in store.outbox()
                if row.is_digest
            }
            states = sorted({row.state.value for row in store.outbox()})
        died = (folder / "died").read_text() if not finished else None
        heard = (folder / "accepted").read_text().splitlines()
        print(json.dumps({"died_before": died, "heard": heard, "digests": digests, "states": states}), flush=True)
        if finished:
            return


if __name__ == "__main__":
    main()
