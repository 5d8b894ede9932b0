"""How long an alert takes from the fault to the person, part by part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path

from tests.monitoring.live.world import World
from tests.support.prometheus import Told

HUNG = "VllmEngineHung"
PARTS = {
    "condition": "no step for so long, as the guard counts it",
    "scrape": "until Prometheus has a sample that says so",
    "evaluation": "until the rule is evaluated: pending",
    "for_": "until it has been pending for long enough: firing",
    "group_wait": "as configured: Alertmanager waits for others of the group",
    "delivery": "what is left until the notification came: the wire, twice, and lateness",
}


@dataclass(frozen=True, slots=True)
class Delay:
    """
    Seconds. Fault, sample, pending, firing and notification are points in time that were observed; between them lie the
    parts. Only ``group_wait`` is what was configured: how much longer Alertmanager took is in ``delivery``.
    """

    condition: float
    scrape: float
    evaluation: float
    for_: float
    group_wait: float
    delivery: float

    @property
    def total(self) -> float:
        return sum(getattr(self, one.name) for one in fields(self))

    def table(self, title: str) -> str:
        """Part, seconds, what it is; with the sum."""
        rows = [(name.rstrip("_"), getattr(self, name), text) for name, text in PARTS.items()]
        rows.append(("total", self.total, "from the fault to the notification"))
        return "\n".join([title, *(f"  {name:<12}{seconds:7.2f} s  {text}" for name, seconds, text in rows)])


def injected_at(journal: Path) -> float | None:
    """When a fault was injected (seconds since 1970), by its journal; None: not yet."""
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    return next((float(record["wall"]) for record in records if record["record"] == "injected"), None)


def timestamp(text: str) -> float:
    """RFC 3339 with nanoseconds → seconds since 1970."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def measure(world: World, engine: str, fault_at: float, told: Told, active_at: float, group_wait: float) -> Delay:
    """
    The parts of one alert's delay.

    Args:
        fault_at, active_at: When the fault began, and when Prometheus first saw the condition hold.
        group_wait: Of the route that the alert took.
    """
    stuck = world.settings.thresholds.engine_stuck_seconds
    ages = world.prometheus.query(f'sre_engine_step_age_seconds{{engine="{engine}"}}[5m]')
    first = min(at for one in ages for at, age in one.samples if age > stuck and at >= fault_at)
    age = next(age for one in ages for at, age in one.samples if at == first)
    # The age is that of the guard's last turn: the condition has held since its last step plus the threshold.
    holds_at = max(fault_at, first - (age - stuck))
    fired_at = timestamp(told.starts_at)
    return Delay(
        condition=holds_at - fault_at,
        scrape=first - holds_at,
        evaluation=active_at - first,
        for_=fired_at - active_at,
        group_wait=group_wait,
        delivery=told.at - fired_at - group_wait,
    )


def bounds(interval: float, stuck: float, wait: float) -> Mapping[str, tuple[float, float]]:
    """Least and most of each part for scrapes and evaluations every ``interval``; a busy machine may take a second."""
    late = 1.5
    return {
        # The last step ends at most one turn of the guard (a second) after or before the fault.
        "condition": (stuck - 1.5, stuck + 1.0 + late),
        "scrape": (0.0, interval + late),
        "evaluation": (0.0, interval + late),
        "for_": (15.0, 15.0 + interval + late),
        "group_wait": (wait, wait),
        "delivery": (-0.1, late),
    }
