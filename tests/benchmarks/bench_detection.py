"""From a fault's effect to the first refused new request, with the default rules and hang settings."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sre.adapters.processes.proc import boot_id
from sre.settings.guard import DEFAULT_RULES
from tests.conftest import unused_port
from tests.e2e.live import Live, live_stack

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(900)]

SIM = {"name": "sim-0", "kind": "sim", "model": "sim-7b", "gpus": [0], "stop_timeout_seconds": 3}
TIMES = 5
# Thresholds and durations as they are; only the way back is cut short, so that a fault can follow the other.
RULES = [{**rule.model_dump(mode="json"), "recover_for_seconds": 1.0} for rule in DEFAULT_RULES]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    folder = Path(tempfile.mkdtemp(prefix="sre-", dir="/tmp"))
    try:
        with live_stack(folder, unused_port, [SIM], rules=RULES) as stack:
            stack.start_load(clients=4, max_tokens=64)
            time.sleep(25)  # the grace after a start is over: what is measured is the default, not the grace
            yield stack
            stack.stop_load()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def seconds_to_refusal(live: Live, fault: Callable[[], None], limit: float) -> float:
    """Ask anew every 20 ms from the moment the fault is in effect."""
    fault()
    began = time.monotonic()
    while time.monotonic() - began < limit:
        with contextlib.suppress(Exception):
            if live.ask(1, timeout=0.2)[0] == 503:
                return time.monotonic() - began
        time.sleep(0.02)
    raise AssertionError(f"not refused within {limit} s")


def overlay(live: Live, **values: float) -> None:
    document = {
        "boot_id": boot_id(),
        "expires_monotonic": time.monotonic() + 30,
        "run_id": "bench",
        "gpus": {"0": {**values, "hang": False}},
    }
    temporary = live.paths.gpu_overlay.with_suffix(".new")
    temporary.write_text(json.dumps(document))
    temporary.replace(live.paths.gpu_overlay)


def report(name: str, values: list[float], promised: float) -> None:
    shown = ", ".join(f"{v:.2f}" for v in values)
    print(
        f"\n{name}: median {statistics.median(values):.2f} s, worst {max(values):.2f} s of {len(values)}"
        f" ({shown}); promised <= {promised:g} s: {'kept' if max(values) <= promised else 'MISSED'}"
    )


def test_hang(live: Live) -> None:
    values = []
    for _ in range(TIMES):
        live.wait_closed(90)
        time.sleep(3)
        core = live.core()
        values.append(seconds_to_refusal(live, lambda pid=core: os.kill(pid, signal.SIGSTOP), 15))  # type: ignore[misc]
        os.kill(core, signal.SIGCONT)
    report("hang → refused", values, 5.0)


def test_gpu_temperature(live: Live) -> None:
    values = []
    for _ in range(TIMES):
        live.wait_closed(90)
        values.append(seconds_to_refusal(live, lambda: overlay(live, temperature_celsius=92.0), 15))
        live.paths.gpu_overlay.unlink()
    report("GPU temperature → refused", values, 1.5)


def test_gpu_memory(live: Live) -> None:
    values = []
    for _ in range(3):
        live.wait_closed(90)
        values.append(seconds_to_refusal(live, lambda: overlay(live, memory_used_ratio=0.98), 25))
        live.paths.gpu_overlay.unlink()
    report("GPU memory → refused", values, 11.5)
