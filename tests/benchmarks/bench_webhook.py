"""Ten thousand alerts in a minute through the webhook of a real guard: time to disk, memory, what the channels get."""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import requests

from sre.notify.alerts import parse
from tests.conftest import unused_port
from tests.webhook.guard_process import TOKEN, GuardProcess, guard_process
from tests.webhook.scenes import document, one

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(400)]

ALERTS = 10_000
SECONDS = 60.0
PER_POST = 5
SENDERS = 8


@pytest.fixture(scope="module")
def guard() -> Iterator[GuardProcess]:
    folder = Path(tempfile.mkdtemp(prefix="sre-", dir="/tmp"))
    try:
        with guard_process(folder, unused_port, heartbeat={"enabled": False}) as made:
            made.start()
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def post_evenly(guard: GuardProcess, payloads: list[dict[str, Any]], seconds: float) -> list[float]:
    """Post ``payloads`` spread over ``seconds``; return how long each answer took."""
    began = time.monotonic()
    taken: list[float] = []
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    for number, payload in enumerate(payloads):
        queue.put_nowait((began + seconds * number / len(payloads), json.dumps(payload).encode()))

    async def sender(session: aiohttp.ClientSession) -> None:
        while not queue.empty():
            due, raw = queue.get_nowait()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sent = time.monotonic()
            async with session.post(guard.url, data=raw, headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
                assert answer.status == 200, await answer.text()
            taken.append(time.monotonic() - sent)

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(sender(session) for _ in range(SENDERS)))
    return taken


def test_ten_thousand_alerts_in_a_minute(guard: GuardProcess) -> None:
    """Each its own incident: the worst case for store and outbox."""
    assert guard.process is not None
    process = psutil.Process(guard.process.pid)
    before = process.memory_info().rss
    cpu = sum(process.cpu_times()[:2])
    now = time.time()
    payloads = [
        document(*(one("Storm", node=f"n{begin + n}", starts=now, gpu="0", job="vllm") for n in range(PER_POST)))
        for begin in range(0, ALERTS, PER_POST)
    ]
    taken = asyncio.run(post_evenly(guard, payloads, SECONDS))
    cpu = sum(process.cpu_times()[:2]) - cpu
    stored = guard.rows("SELECT count(*) FROM alert_episode WHERE name = 'Storm'")[0][0]
    opened = guard.rows("SELECT count(*) FROM alert_incident WHERE name = 'Storm'")[0][0]
    states = dict(guard.rows("SELECT state, count(*) FROM outbox GROUP BY state"))
    commits = buckets(guard)
    print(f"\nwebhook, {ALERTS} alerts in {SECONDS:.0f} s, {PER_POST} per post, each its own incident, 2 channels:")
    print(
        f"  post to answer: median {statistics.median(taken) * 1000:.1f} ms,"
        f" P99 {percentile(taken, 0.99) * 1000:.1f} ms,"
        f" longest {max(taken) * 1000:.1f} ms; promised P99 <= 50 ms"
    )
    print(f"  commit (the guard's histogram): {commits}")
    print(f"  stored {stored}, incidents {opened}, outbox {states}; mails {len(guard.mail.mails())}")
    print(
        f"  guard: {cpu / SECONDS:.0%} of a core,"
        f" memory {before / 2**20:.0f} -> {process.memory_info().rss / 2**20:.0f} MB,"
        f" state {guard.paths.guard_db.stat().st_size / 2**20:.0f} MB"
    )
    assert stored == opened == ALERTS


def buckets(guard: GuardProcess) -> str:
    text = requests.get(f"http://127.0.0.1:{guard.metrics_port}/metrics", timeout=10).text
    counts = {}
    for line in text.splitlines():
        if line.startswith("sre_webhook_commit_seconds_bucket"):
            bound = line.split('le="')[1].split('"')[0]
            counts[bound] = float(line.split()[-1])
    whole = counts.get("+Inf", 0.0) or 1.0
    return ", ".join(f"<= {bound} s: {count / whole:.2%}" for bound, count in counts.items() if bound in BOUNDS)


BOUNDS = ("0.01", "0.025", "0.05", "0.1", "1.0")


def test_duplicates_in_a_burst(guard: GuardProcess) -> None:
    """The same notification again and again, as fast as it goes: what HA peers do."""
    payloads = [document(*(one("Same", node=f"n{n}", starts=1.8e9) for n in range(20)))] * 2000
    began = time.monotonic()
    taken = asyncio.run(post_evenly(guard, payloads, 0.0))
    seconds = time.monotonic() - began
    print(
        f"\nduplicates: {len(payloads)} posts of 20 alerts in {seconds:.1f} s ({len(payloads) / seconds:.0f}/s),"
        f" P99 {percentile(taken, 0.99) * 1000:.1f} ms with {SENDERS} senders"
    )


def test_parsing() -> None:
    raw = json.dumps(document(*(one("Storm", node=f"n{n}", starts=1.8e9) for n in range(3000)))).encode()
    began = time.monotonic()
    parse(raw)
    print(f"\nparsing {len(raw) / 2**20:.1f} MiB, 3000 alerts: {(time.monotonic() - began) * 1000:.0f} ms")
