"""kill -9 at any step leaves all of a commit or nothing of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sre.adapters.store import GuardStore
from sre.testing.clock import ManualClock

pytestmark = pytest.mark.integration

NOTHING = (None, [], [])
FIRST = ("1", ["a", "b"], ["open mail pending", "open sms held"])
SUPERSEDED = ["open mail superseded", "open sms superseded"]
SECOND = ("2", ["a", "b", "c"], [*SUPERSEDED, "resolve mail pending", "resolve sms pending"])
SENT = ("2", ["a", "b", "c"], [*SUPERSEDED, "resolve mail sent", "resolve sms pending"])


def test_a_guard_killed_before_any_statement_leaves_all_or_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.store.kill_loop", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.stderr == ""
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    order = [NOTHING, FIRST, SECOND, SENT]
    seen = [(line["state"], line["journal"], line["outbox"]) for line in lines]
    assert [order.index(one) for one in seen] == sorted(order.index(one) for one in seen), "never back"
    assert {order.index(one) for one in seen} == {0, 1, 2, 3}, "deaths fell on both sides of each commit"
    assert all(line["checked"] == len(line["journal"]) for line in lines)
    died_before = [line["died_before"] for line in lines]
    assert died_before[-1] is None
    assert len(lines) > 25
    assert {"BEGIN IMMEDIATE", "COMMIT"} <= set(died_before)


COMMIT_FOR_EVER = """
import sys
from pathlib import Path
from sre.adapters.clock import SystemClock
from sre.adapters.store import GuardStore
from tests.store.samples import intent, post
store = GuardStore.open(Path(sys.argv[1]), clock=SystemClock(), boot_id="b")
n = int(store.load_state() or 0)
while True:
    n += 1
    store.commit(state=str(n), journal=[intent(str(n))] * 3, outbox=[post(incident=str(n))])
    print(n, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill_at_any_moment(tmp_path: Path, wait_until: Callable[..., object]) -> None:
    rng = random.Random(7)
    db = tmp_path / "guard.db"
    for _ in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", COMMIT_FOR_EVER, str(db)],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert child.stdout is not None
        acknowledged = 0
        with child.stdout as lines:
            for _ in range(rng.randrange(1, 60)):
                acknowledged = int(lines.readline())
            os.kill(child.pid, signal.SIGKILL)
            for line in lines:
                acknowledged = int(line) if line.endswith("\n") else acknowledged
        child.wait(timeout=60)
        with GuardStore.open(db, clock=ManualClock(), boot_id="b") as store:
            n = int(store.load_state() or 0)
            assert acknowledged <= n <= acknowledged + 1
            assert store.verify_chain() == 3 * n
            assert [row.message.incident_id for row in store.outbox()] == [str(i + 1) for i in range(n)]
