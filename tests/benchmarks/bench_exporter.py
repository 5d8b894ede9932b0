"""What the exporter costs the guard: a tick's batch accounting, a look at the host, a scrape."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from sre.adapters.host_counters import HostCountersReader
from sre.metrics import own
from sre.servers.exporter import Metrics
from sre.signals.batching import Batching, observe
from tests.exporter.scene import DECISION, engine, everything, snapshot

TIMES = 500


def milliseconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(TIMES):
        call()
    return (time.process_time() - began) / TIMES * 1e3


@pytest.mark.benchmark
def test_cost() -> None:
    names = [f"sim-{n}" for n in range(4)]
    at, state = 0.0, dict.fromkeys(names, Batching())

    def tick() -> None:
        nonlocal at
        at += 1.0
        for name in names:
            state[name] = observe(
                state[name],
                engine(at),
                size_bounds=own.ENGINE_BATCH_SIZE.buckets,
                wait_bounds=own.ENGINE_BATCH_FORMATION_SECONDS.buckets,
                longest_gap_seconds=2.0,
            )

    metrics: Metrics = everything()
    seen = replace(snapshot(3.0), engines={name: replace(engine(3.0), name=name) for name in names})
    metrics.ticked(0.01, seen, DECISION, [])
    print(f"\nbatch accounting of 4 engines: {milliseconds(tick):.3f} ms a tick")
    print(f"look at the host's counters: {milliseconds(HostCountersReader(time.monotonic).read):.3f} ms a scrape")
    print(f"text for 4 engines, {len(metrics.render())} bytes: {milliseconds(metrics.render):.2f} ms a scrape")
