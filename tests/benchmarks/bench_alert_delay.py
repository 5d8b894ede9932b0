"""From a hang to the page, by every default: threshold, ``for``, group_wait, and a guard that restarts the engine."""

from __future__ import annotations

import statistics
import time

import pytest

from tests.monitoring.live.delay import HUNG, PARTS, Delay
from tests.monitoring.live.hang import hang
from tests.monitoring.live.world import short_folder, watched

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

TIMES = 3
ENGINES = [
    {"name": f"sim-{n}", "kind": "sim", "model": "sim-7b", "gpus": [0], "stop_timeout_seconds": 3} for n in range(2)
]
# Several hangs of one engine within minutes: the limits that slow restarts down in real life are off.
BUDGETS = {"restarts_per_engine_per_hour": 50, "restarts_per_hour": 50, "restart_cooldown_seconds": 0}
GROUP_WAIT_SECONDS = 10.0


def table(title: str, delays: list[Delay]) -> str:
    """Median and worst of each part."""
    rows = []
    for part, text in [*PARTS.items(), ("total", "from the fault to the notification")]:
        values = [float(getattr(delay, part)) for delay in delays]
        rows.append(f"  {part.rstrip('_'):<12}{statistics.median(values):8.2f}{max(values):8.2f}  {text}")
    return "\n".join([f"{title}; {len(delays)} hangs, seconds", f"  {'part':<12}{'median':>8}{'worst':>8}", *rows])


@pytest.mark.parametrize("interval", [1.0, 15.0], ids=["every second", "every 15 s"])
def test_alert_delay(interval: float) -> None:
    with (
        short_folder() as folder,
        watched(
            folder,
            ENGINES,
            monitoring={"scrape_interval_seconds": interval},
            scrape_interval=f"{interval:g}s",
            budgets=BUDGETS,
        ) as world,
    ):
        world.live.start_load(clients=4, max_tokens=64)
        time.sleep(25 + interval)  # the grace after a start is over, and a scrape has passed
        delays = []
        for number in range(TIMES):
            # At another point between two scrapes each time.
            time.sleep(interval * number / TIMES)
            seen = hang(world, "sim-0", hold="60s", group_wait=GROUP_WAIT_SECONDS, timeout=120, until_resolved=False)
            delays.append(seen.delay)
            assert seen.restarted
            world.live.wait_closed(90)
            world.prometheus.until("the alert is over", lambda: not world.prometheus.alerts(HUNG), 150)
            world.live.stop_load()
            world.live.start_load(clients=4, max_tokens=64)
        world.live.stop_load()
    print("\n" + table(f"{HUNG}, scrapes and evaluations every {interval:g} s", delays))
