"""A stack from its first traffic over a hang to the recovery, and what was seen of all that we generate on the way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from sre.metrics.catalogue import CATALOGUE
from sre.metrics.types import Kind
from tests.monitoring.live.delay import bounds
from tests.monitoring.live.excuses import ALWAYS_EMPTY, IDLE, PANELS, excused_operand, excused_sample
from tests.monitoring.live.hang import Hang
from tests.monitoring.live.observed import empty_operands, empty_records, metadata, missing_samples
from tests.monitoring.live.operands import names
from tests.monitoring.live.panels import drawn_panels
from tests.monitoring.live.world import World, write_settings

SETTLED_SECONDS = 25.0
"""Two evaluations of the rules over days, every four seconds here, and scrapes before them."""


@dataclass
class Story:
    """The stack, and what was seen. Sets hold what was missing or empty while all was well and there was traffic."""

    world: World
    rules: list[dict[str, Any]] = field(default_factory=list)
    samples: set[str] = field(default_factory=set)
    records: set[str] = field(default_factory=set)
    operands: dict[str, set[str]] = field(default_factory=dict)
    verified: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)
    hang: Hang | None = None

    def look(self) -> None:
        """Take stock, as soon as nothing unexcused is empty or it has had the time."""
        prometheus, settings = self.world.prometheus, self.world.settings
        deadline = time.monotonic() + SETTLED_SECONDS
        while self._unsettled() and time.monotonic() < deadline:
            time.sleep(0.5)
        self.rules = prometheus.rules()
        self.samples = missing_samples(prometheus, settings)
        self.records = empty_records(prometheus, settings)
        self.operands = empty_operands(prometheus, settings)

    def _unsettled(self) -> bool:
        prometheus, settings = self.world.prometheus, self.world.settings
        if any(rule["health"] == "unknown" for rule in prometheus.rules()):
            return True
        return bool(empty_records(prometheus, settings) - ALWAYS_EMPTY.keys() - IDLE.keys())

    def verify(self) -> None:
        """Ask ``sre rules verify`` of the Prometheus, and of what one engine and the guard expose."""
        world = self.world
        exposed = [next(iter(world.instances.values())), f"127.0.0.1:{world.live.metrics_port}"]
        for name, urls in (
            ("prometheus", [world.prometheus.url]),
            ("pages", [f"http://{host}/metrics" for host in exposed]),
        ):
            argv = [sys.executable, "-m", "sre", "-c", str(write_settings(world)), "rules", "verify", "-o", "json"]
            argv += [part for url in urls for part in ("--url", url)]
            self.verified[name] = subprocess.run(
                argv, capture_output=True, text=True, timeout=60, check=False, cwd=world.folder
            )

    # ---- What is wrong: empty where all is well -----------------------------------------------------------------

    def unexcused_samples(self) -> set[str]:
        return {name for name in self.samples if not excused_sample(name, self.world.exporters)}

    def unexcused_records(self) -> set[str]:
        return self.records - ALWAYS_EMPTY.keys() - IDLE.keys()

    def unexcused_operands(self) -> dict[str, set[str]]:
        exporters = self.world.exporters
        found = {
            alert: {operand for operand in empty if not excused_operand(operand, names(operand), exporters)}
            for alert, empty in self.operands.items()
        }
        return {alert: operands for alert, operands in found.items() if operands}

    def unexcused_panels(self, seconds: float) -> dict[str, list[str]]:
        """Panels that had no data at any time in the last ``seconds``, though what they read is exposed."""
        world, end = self.world, time.time()
        exposed = world.prometheus.names()
        empty = {
            panel.where: panel
            for panel in drawn_panels(world.settings)
            if panel.empty(lambda expression: world.prometheus.query_range(expression, end - seconds, end, 5))
        }
        return {
            where: sorted(panel.sources & exposed)
            for where, panel in empty.items()
            if where not in PANELS
            and not all(
                name in ALWAYS_EMPTY or name in IDLE or excused_sample(name, world.exporters) for name in panel.names
            )
        }

    def wrong_types(self) -> dict[str, str]:
        """Families that an exporter declares with another type than the catalogue."""
        kinds = {kind.value: kind for kind in Kind}
        told = metadata(self.world.prometheus)
        declared = {family: CATALOGUE.family(family) for family in told}
        return {
            family: told[family]
            for family, metric in declared.items()
            if metric is not None and not metric.untyped and kinds.get(told[family]) is not metric.kind
        }

    def verdicts(self, of: str) -> dict[str, dict[str, set[str]]]:
        """What ``sre rules verify`` says: verdict → alert → the metrics it blames."""
        done = self.verified[of]
        assert done.returncode in (0, 3), done.stdout + done.stderr
        found: dict[str, dict[str, set[str]]] = {}
        for one in json.loads(done.stdout)["alerts"]:
            found.setdefault(one["verdict"], {})[one["name"]] = {reason["metric"] for reason in one["reasons"]}
        return found

    def parts_out_of_bounds(self, group_wait: float) -> dict[str, tuple[float, tuple[float, float]]]:
        """Parts of the alert's delay that are not what settings and intervals say: (seconds, (least, most))."""
        assert self.hang is not None
        delay = self.hang.delay
        limits = bounds(1.0, self.world.settings.thresholds.engine_stuck_seconds, group_wait)
        return {
            part: (getattr(delay, part), (least, most))
            for part, (least, most) in limits.items()
            if not least - 0.05 <= getattr(delay, part) <= most
        }
