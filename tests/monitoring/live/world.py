"""A stack under load with everything that watches it: Prometheus with our rules, Alertmanager, a receiver."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sre.metrics.types import Exporter
from sre.monitoring.alertmanager import configuration
from sre.monitoring.catalogue_rules import rule_files
from sre.monitoring.render import rule_file
from sre.settings.monitoring import MonitoringSettings
from tests.conftest import unused_port
from tests.e2e.live import Live, live_stack
from tests.support.prometheus import (
    Alertmanager,
    Prometheus,
    Receiver,
    Target,
    running_alertmanager,
    running_prometheus,
)

TOKEN = "s3cret-token"


def live_settings(**changes: Any) -> MonitoringSettings:
    """Scrapes and evaluations every second; nothing is left out for want of retention."""
    return MonitoringSettings.model_validate({"scrape_interval_seconds": 1.0, "retention_days": 40.0, **changes})


def rule_texts(settings: MonitoringSettings) -> dict[str, str]:
    """Stem → text of every generated rule file."""
    return {file.stem: rule_file(file.groups, settings) for file in rule_files(settings)}


@dataclass
class World:
    """The stack, and those who watch it."""

    folder: Path
    live: Live
    settings: MonitoringSettings
    prometheus: Prometheus
    alertmanager: Alertmanager
    receiver: Receiver
    exporters: frozenset[Exporter]
    """Those that are scraped."""

    @property
    def instances(self) -> dict[str, str]:
        """Engine → host:port at which Prometheus scrapes it."""
        return {engine["name"]: f"127.0.0.1:{engine['port']}" for engine in self.live.engines}


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Short enough for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="sre-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def with_port(engine: dict[str, Any]) -> dict[str, Any]:
    """The engine on a port that Prometheus can be told."""
    return {"port": unused_port(), **engine}


@contextlib.contextmanager
def watched(
    folder: Path,
    engines: list[dict[str, Any]],
    *,
    monitoring: dict[str, Any] | None = None,
    group_interval: str = "1s",
    group_wait: str | None = None,
    scrape_interval: str = "1s",
    ready: float = 60.0,
    **guard: Any,
) -> Iterator[World]:
    """
    ``sre up`` with these engines, watched.

    Args:
        group_interval: Of Alertmanager; ours (1m and more) would hold a notification of recovery back.
        group_wait: None: as we generate it.
    """
    engines = [with_port(engine) for engine in engines]
    with Receiver() as receiver, contextlib.ExitStack() as opened:
        live = opened.enter_context(live_stack(folder, unused_port, engines, ready=ready, **guard))
        token = folder / "token"
        token.write_text(TOKEN)
        settings = live_settings(
            **{"webhook_url": receiver.url, "webhook_token_file": str(token), **(monitoring or {})}
        )
        document = configuration(settings)
        for route in (document["route"], *document["route"]["routes"]):
            route["group_interval"] = group_interval
            route |= {} if group_wait is None else {"group_wait": group_wait}
        alertmanager = opened.enter_context(running_alertmanager(folder / "alertmanager", document))
        jobs = {
            settings.jobs.vllm: [Target(f"127.0.0.1:{engine['port']}") for engine in engines],
            settings.jobs.sre: [Target(f"127.0.0.1:{live.metrics_port}")],
        }
        exporters = {Exporter.VLLM, Exporter.SRE, Exporter.PROMETHEUS}
        if (node := opened.enter_context(node_exporter(folder))) is not None:
            jobs[settings.jobs.node] = [node]
            exporters.add(Exporter.NODE)
        prometheus = opened.enter_context(
            running_prometheus(
                folder / "prometheus", jobs, rule_texts(settings), alertmanager=alertmanager.url,
                scrape_interval=scrape_interval,
            )
        )  # fmt: skip
        yield World(folder, live, settings, prometheus, alertmanager, receiver, frozenset(exporters))


@contextlib.contextmanager
def node_exporter(folder: Path) -> Iterator[Target | None]:
    """A real node_exporter, where one is installed."""
    program = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
    if program is None:
        yield None
        return
    address = f"127.0.0.1:{unused_port()}"
    with (folder / "node_exporter.log").open("wb") as log:
        process = subprocess.Popen(
            [program, f"--web.listen-address={address}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield Target(address)
    finally:
        process.terminate()
        process.wait(timeout=60)


def unhealthy(rules: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Name, health and error of the rules that Prometheus cannot evaluate."""
    return [
        (rule["name"], rule["health"], rule.get("lastError", ""))
        for rule in rules
        if rule["health"] != "ok" or rule.get("lastError")
    ]


def write_settings(world: World) -> Path:
    """An sre.yaml with the section ``monitoring`` that these rules were made with."""
    file = world.folder / "monitoring.yaml"
    section = world.settings.model_dump(mode="json", exclude_defaults=True)
    file.write_text(yaml.safe_dump({"monitoring": section}))
    return file
