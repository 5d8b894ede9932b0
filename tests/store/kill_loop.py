"""
Run by test_kill.py in a process of its own: a child per SQL statement, killed before that statement.

Prints one line of JSON per child: the statement it died before (or null, if it came to the end), and what a new guard
finds then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from sre.adapters.clock import SystemClock
from sre.adapters.store import GuardStore
from tests.store.samples import intent, post


def work(path: Path, kill_before: int) -> None:
    """Two commits, a delivery and a prune; never returns."""
    count = 0

    def trace(statement: str) -> None:
        nonlocal count
        count += 1
        if count == kill_before:
            os.write(1, json.dumps({"died_before": statement.split("(")[0][:60].strip()}).encode())
            os.kill(os.getpid(), signal.SIGKILL)

    store = GuardStore.open(path, clock=SystemClock(), boot_id="b", trace=trace)
    store.commit(state="1", journal=[intent("a"), intent("b")], outbox=[post(), post("sms", hold=9)])
    store.commit(state="2", journal=[intent("c")], outbox=[post(event="resolve"), post("sms", event="resolve")])
    for row in store.lease(owner="me", seconds=9, channels=["mail"]):
        store.mark_sent(row.id, owner="me")
    store.close()
    os._exit(0)


def found(path: Path) -> dict[str, object]:
    with GuardStore.open(path, clock=SystemClock(), boot_id="b") as store:
        return {
            "state": store.load_state(),
            "journal": [row.entry.target for row in store.journal()],
            "outbox": [f"{row.message.event} {row.channel} {row.state.value}" for row in store.outbox()],
            "checked": store.verify_chain(),
        }


def main() -> None:
    folder = Path(sys.argv[1])
    for kill_before in range(1, 1000):
        path = folder / str(kill_before)
        path.mkdir()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(write, 1)
            work(path / "guard.db", kill_before)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        line = {"died_before": None, **(json.loads(said) if said else {}), **found(path / "guard.db")}
        print(json.dumps(line), flush=True)
        if os.WIFEXITED(status):
            return


if __name__ == "__main__":
    main()
