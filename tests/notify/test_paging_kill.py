"""kill -9 of the guard while incidents take every way at once: fallback, digests, escalation, and their ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.notify.paging_loop import INCIDENTS

pytestmark = pytest.mark.integration

EVERY = 23
"""Of some 300 statements that write each so many-th is died before; a prime, so that all kinds of them are met."""


def incidents_of(name: str, digests: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the incidents that a message of this key tells."""
    return set().union(*(incidents_of(one, digests) for one in digests[name])) if name in digests else {name}


def check(round_: Mapping[str, Any]) -> None:
    crashes = 0 if round_["died_before"] is None else 1
    told: dict[str, set[str]] = {"mail": set(), "pager": set()}
    open_alerts: set[str] = set()
    for line in round_["heard"]:
        channel, act, key = line.split()
        if act == "trigger":
            told[channel] |= incidents_of(key, round_["digests"])
        if channel == "pager":
            (open_alerts.add if act == "trigger" else open_alerts.discard)(key)
    assert told["mail"] == set(INCIDENTS), "each at least once"
    assert told["pager"] == set(INCIDENTS), "by itself, as a fallback or because nobody answered"
    assert open_alerts == set(), "whatever was opened is closed"
    assert set(round_["states"]) <= {"sent", "digested", "superseded"}
    # An incident may begin, fall back and be escalated there under its own id: three messages.
    counts = Counter(round_["heard"])
    assert all(count <= 3 + crashes for count in counts.values()), counts
    assert all(count <= 1 + crashes for line, count in counts.items() if " resolve " in line or "digest" in line)


def test_every_way_ends_though_the_guard_is_killed_at_any_step(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.notify.paging_loop", str(tmp_path), "1", str(EVERY)],
        capture_output=True, text=True, timeout=200, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    rounds = [json.loads(line) for line in run.stdout.splitlines()]
    assert rounds[-1]["died_before"] is None
    assert len(rounds) >= 8
    for one in rounds:
        check(one)
