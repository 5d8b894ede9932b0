"""What the guard costs and how fast an order acts: four simulated engines behind a real Envoy."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from sre.wiring.guard_client import ask
from tests.conftest import unused_port
from tests.e2e.live import Live, live_stack

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(400)]

ENGINES = [{"name": f"sim-{n}", "kind": "sim", "model": "sim-7b", "gpus": [n]} for n in range(4)]
MEASURED_SECONDS = 60.0
ORDERS = 100


@pytest.fixture(scope="module")
def four_engines() -> Iterator[Live]:
    folder = Path(tempfile.mkdtemp(prefix="sre-", dir="/tmp"))
    try:
        with live_stack(folder, unused_port, ENGINES) as live:
            yield live
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_cost_of_the_guard(four_engines: Live) -> None:
    guard = psutil.Process(four_engines.identity("guard").pid)
    four_engines.start_load(clients=4, max_tokens=32, pause=0.3)
    time.sleep(10)
    family = [guard, *guard.children(recursive=True)]
    before = sum(sum(p.cpu_times()[:2]) for p in family)
    own = sum(guard.cpu_times()[:2])
    time.sleep(MEASURED_SECONDS)
    total = sum(sum(p.cpu_times()[:2]) for p in family) - before
    own = sum(guard.cpu_times()[:2]) - own
    four_engines.stop_load()
    rss = [p.memory_info().rss / 2**20 for p in family]
    print(f"\nguard, 4 engines, {MEASURED_SECONDS:.0f} s under light load:")
    share, alone = total / MEASURED_SECONDS, own / MEASURED_SECONDS
    print(f"  CPU of one core: {share:.1%} (guard itself {alone:.1%}); promised <= 5 %")
    print(f"  memory: {sum(rss):.0f} MB in {len(rss)} processes ({rss[0]:.0f} MB the guard); promised <= 150 MB")


def test_manual_trip_to_effect(four_engines: Live) -> None:
    """From the order at the guard's socket to its confirmation, and to the first refused request."""
    url = f"http://127.0.0.1:{four_engines.port}/v1/completions"
    body = {"model": "sim-7b", "prompt": "x", "max_tokens": 1}
    confirmed, refused, lost = [], [], 0
    session = requests.Session()
    for _ in range(ORDERS):
        order = {"target": "sim-7b", "owner": "bench", "reason": "bench"}
        began = time.monotonic()
        ask(four_engines.paths.guard_socket, "POST", "/order", {"verb": "force-open", **order})
        confirmed.append(time.monotonic() - began)
        answer = session.post(url, json=body, timeout=10)
        refused.append(time.monotonic() - began)
        lost += answer.status_code != 503
        ask(four_engines.paths.guard_socket, "POST", "/order", {"verb": "auto", **order})
        time.sleep(0.05)
    for name, values in (("confirmed by the gateway", confirmed), ("first new request refused", refused)):
        ordered = sorted(v * 1000 for v in values)
        p99 = ordered[int(len(ordered) * 0.99) - 1]
        print(
            f"\nmanual trip → {name}: median {statistics.median(ordered):.1f} ms, P99 of {ORDERS}: {p99:.1f} ms", end=""
        )
    print(f"; promised P99 <= 50 ms; {lost} of {ORDERS} requests after the confirmation still passed")
    assert lost == 0
