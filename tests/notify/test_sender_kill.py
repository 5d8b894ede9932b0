"""kill -9 of the sending process at any step: delivered at least once, at most once more per crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.samples import message

pytestmark = pytest.mark.integration


def test_a_message_is_delivered_at_least_once_and_at_most_once_more_per_crash(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.notify.sender_loop", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.stderr == ""
    rounds = [json.loads(line) for line in run.stdout.splitlines()]
    assert rounds[-1]["died_before"] is None
    assert len(rounds) > 20
    for one in rounds:
        assert one["state"] == "sent"
        assert 1 <= len(one["accepted"]) <= (1 if one["died_before"] is None else 2), one
        assert all(message().incident_id in line for line in one["accepted"]), "a repetition is recognized by its id"
    counts = {len(one["accepted"]) for one in rounds}
    assert counts == {1, 2}, "deaths fell before and after the provider accepted"
