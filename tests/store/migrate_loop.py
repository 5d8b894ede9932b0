"""
Run by test_migration.py: a child per SQL statement that brings a file of version 1 up to date, killed before it.

Prints a line of JSON per child: what it died before (null: it came to the end), the version of the file then, and what
a new guard finds in it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from sre.adapters.store import GuardStore
from sre.testing.clock import ManualClock
from tests.store import version_1


def work(path: Path, kill_before: int) -> None:
    """Open the store, which brings it up to date; never returns."""
    count = 0

    def trace(statement: str) -> None:
        nonlocal count
        count += 1
        if count == kill_before:
            os.write(1, json.dumps({"died_before": " ".join(statement.split())[:60]}).encode())
            os.kill(os.getpid(), signal.SIGKILL)

    GuardStore.open(path, clock=ManualClock(), boot_id="boot-1", trace=trace).close()
    os._exit(0)


def found(path: Path) -> dict[str, object]:
    with GuardStore.open(path, clock=ManualClock(), boot_id="boot-1") as store:
        return {
            "state": store.load_state(),
            "chain": store.verify_chain(),
            "outbox": [
                f"{r.message.incident_id} {r.message.event} {r.channel} {r.state.value}" for r in store.outbox()
            ],
            "incidents": [one.id for one in store.incidents()],
        }


def main() -> None:
    folder = Path(sys.argv[1])
    for kill_before in range(1, 1000):
        path = folder / f"{kill_before}.db"
        version_1.make(path)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(write, 1)
            work(path, kill_before)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        line = {"died_before": None, **(json.loads(said) if said else {}), "version": version_1.version(path)}
        print(json.dumps({**line, **found(path)}), flush=True)
        if os.WIFEXITED(status):
            return


if __name__ == "__main__":
    main()
