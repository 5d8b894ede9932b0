"""kill -9 of the sending process at any step: delivered at least once, at most once more per crash."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sre.servers.sinks import SmsSink
from tests.notify.volume_loop import CHANNELS, STEPS
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
    assert len(rounds) > 15
    for one in rounds:
        assert one["state"] == "sent"
        assert 1 <= len(one["accepted"]) <= (1 if one["died_before"] is None else 2), one
        assert all(message().incident_id in line for line in one["accepted"]), "a repetition is recognized by its id"
    counts = {len(one["accepted"]) for one in rounds}
    assert counts == {1, 2}, "deaths fell before and after the provider accepted"


def volume(folder: Path, mode: str, alerts: int, *more: str) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.notify.volume_loop", str(folder), mode, str(alerts), "7", *more],
        capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout.splitlines()[-1]))


def test_a_thousand_alerts_are_all_delivered_though_the_guard_is_killed_at_every_step(tmp_path: Path) -> None:
    found = volume(tmp_path, "plain", 1000)
    crashes = len(found["died"])
    assert set(found["died"]) == set(STEPS), "every step was died at"
    counts = {line.split()[1]: count for line, count in found["accepted"].items()}
    assert set(counts) == {f"a{n:04d}" for n in range(1000)}, "each at least once, none that never was"
    assert max(counts.values()) <= 1 + crashes
    # A crash repeats at most what was under way: one message a channel.
    assert 1000 < sum(counts.values()) <= 1000 + crashes * len(CHANNELS)
    assert found["states"] == {"sent": 1000}


def test_a_storm_of_a_thousand_is_told_in_few_messages_though_the_guard_is_killed_at_every_step(tmp_path: Path) -> None:
    found = volume(tmp_path, "storm", 1000)
    crashes = len(found["died"])
    assert crashes >= 7
    told: Counter[str] = Counter()
    for line, count in found["accepted"].items():
        name = line.split()[1]
        for incident in found["digests"].get(name, [name]):
            told[incident] += count
    assert set(told) == {f"a{n:04d}" for n in range(1000)}
    assert max(told.values()) <= 1 + crashes
    assert sum(found["accepted"].values()) < 500
    assert set(found["states"]) == {"sent", "digested"}


def test_real_workers_are_killed_with_their_guard_and_every_alert_arrives(tmp_path: Path) -> None:
    with SmsSink() as sms:
        found = volume(tmp_path, "worker", 50, sms.channel_url)
        texts = [str(one.document) for one in sms.messages()]
    crashes = len(found["died"])
    assert crashes >= 3
    for n in range(50):
        assert 1 <= sum(f"a{n:04d}" in text for text in texts) <= 1 + crashes
    assert len(texts) <= 50 + crashes * len(CHANNELS)


def test_a_worker_whose_answer_nobody_read_ends_with_its_parent() -> None:
    ours, theirs = socket.socketpair()
    task = {"mode": "send", "url": "none://x", "deadline_monotonic": time.monotonic() + 20}
    with ours, theirs:
        worker = subprocess.Popen(
            [sys.executable, "-m", "sre.adapters.notifiers.worker"], stdin=theirs, stdout=theirs, start_new_session=True
        )
        theirs.close()
        ours.sendall(json.dumps(task).encode() + b"\n")
        ours.recv(1, socket.MSG_PEEK)  # the answer is there, and is not read
    try:
        assert worker.wait(timeout=60) == -signal.SIGKILL
    finally:
        worker.kill()
        worker.wait()
