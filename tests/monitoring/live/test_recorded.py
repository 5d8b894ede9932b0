"""Exporters of several releases, recorded, in a real Prometheus: no rule fails and no panel says "No data"."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sre.metrics.catalogue import CATALOGUE
from sre.metrics.types import Exporter
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.live.panels import Drawn, drawn_panels
from tests.monitoring.live.recorded import RELEASES, RecordedExporters, Release
from tests.monitoring.live.world import live_settings, rule_texts, unhealthy
from tests.support.prometheus import Prometheus, running_prometheus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRAPE_SECONDS = 1.0
SCRAPES = 4
"""So many before anything is judged: rates need two, and a record of records is an evaluation behind."""

FLEETS = {
    "fleet-8": ("vllm-0.8", "dcgm-4.8"),
    "fleet-11": ("vllm-0.11", "node-1.5"),
    "fleet-19": ("vllm-0.19", "dcgm-4.9"),
    "fleet-32": ("vllm-0.32", "dcgm-4.9-mig"),
}
"""Installations of one release each, with rules and dashboards generated for just these."""

_NOT_DEFAULT = "not among dcgm-exporter's default counters"
_MIG = "DCGM gives no memory per card in MIG mode"
_NETLINK = "needs node_exporter's --collector.netdev.netlink without the sum of dropped and missed"
_LATER = "vLLM counts it since later releases"
MAY_BE_EMPTY: dict[tuple[str, str], str] = {
    **{
        (release, panel): _NOT_DEFAULT
        for release in ("dcgm-4.8", "dcgm-4.9", "dcgm-4.9-mig")
        for panel in (
            "sre-resource: Clocks held down", "sre-resource: XID errors in 5 minutes",
            "sre-resource: Uncorrectable memory errors", "sre-resource: NVLink errors",
        )
    },
    ("dcgm-4.9-mig", "sre-resource: GPU memory used"): _MIG,
    ("dcgm-4.9-mig", "sre-resource: GPU memory used, bytes"): _MIG,
    ("node-1.5", "sre-overview: NIC rx_missed_errors"): _NETLINK,
    ("node-1.5", "sre-resource: NIC rx_missed_errors"): _NETLINK,
    **{
        (release, panel): _LATER
        for release in ("vllm-0.8", "vllm-0.11", "vllm-0.19")
        for panel in ("sre-batching: Refused by the engine", "sre-batching: Waiting, by reason")
    },
}  # fmt: skip
"""(release, panel) → why it may show its text for no data."""


@dataclass(frozen=True)
class Installation:
    """A Prometheus, and the settings that its rules and dashboards are made with."""

    prometheus: Prometheus
    settings: MonitoringSettings
    panels: tuple[Drawn, ...]


def pinned(names: tuple[str, ...]) -> MonitoringSettings:
    """Settings for exactly these releases."""
    of = {release.exporter: str(release.version) for release in RELEASES if release.name in names}
    return live_settings(
        scrape_interval_seconds=SCRAPE_SECONDS,
        vllm_version=of.get(Exporter.VLLM),
        dcgm_exporter_version=of.get(Exporter.DCGM),
    )


@pytest.fixture(scope="module")
def installations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Installation]]:
    """ "any" sees every release, with rules for any; the others see one release with rules for it."""
    folder: Path = tmp_path_factory.mktemp("recorded")
    with RecordedExporters() as exporters, contextlib.ExitStack() as opened:
        found = {}
        for name, seen in {"any": tuple(release.name for release in RELEASES), **FLEETS}.items():
            settings = live_settings(scrape_interval_seconds=SCRAPE_SECONDS) if name == "any" else pinned(seen)
            jobs = {
                job: [target for target in targets if target.labels["release"] in seen]
                for job, targets in exporters.jobs().items()
            }
            prometheus = opened.enter_context(
                running_prometheus(folder / name, jobs, rule_texts(settings), scrape_interval=f"{SCRAPE_SECONDS:g}s")
            )
            found[name] = Installation(prometheus, settings, tuple(drawn_panels(settings)))
        for one in found.values():
            _until_scraped(one.prometheus)
        yield found


def _until_scraped(prometheus: Prometheus) -> None:
    def scraped() -> bool:
        counts = [one.value for one in prometheus.query("count_over_time(up[5m])")]
        evaluated = all(rule["health"] != "unknown" for rule in prometheus.rules())
        return bool(counts) and min(counts) >= SCRAPES and evaluated

    prometheus.until(f"{SCRAPES} scrapes of every target, every rule evaluated", scraped, 60)
    time.sleep(SCRAPE_SECONDS)


@pytest.mark.parametrize("name", ["any", *FLEETS])
def test_every_rule_is_healthy(installations: dict[str, Installation], name: str) -> None:
    rules = installations[name].prometheus.rules()
    assert len(rules) > 200
    assert unhealthy(rules) == []


def judged(installation: Installation, release: Release) -> tuple[set[str], set[str]]:
    """Panels that depend on the release's exporter: all, and those without data."""
    mine = [panel for panel in installation.panels if release.exporter in panel.exporters]
    query = installation.prometheus.query
    return {panel.where for panel in mine}, {panel.where for panel in mine if panel.empty(query, release.variables)}


@pytest.mark.parametrize(
    ("name", "release"),
    [
        *(pytest.param("any", release, id=f"any-{release.name}") for release in RELEASES),
        *(
            pytest.param(name, release, id=f"pinned-{release.name}")
            for name, seen in FLEETS.items()
            for release in RELEASES
            if release.name in seen
        ),
    ],
)
def test_no_panel_is_empty(installations: dict[str, Installation], name: str, release: Release) -> None:
    every, empty = judged(installations[name], release)
    assert len(every) >= 15
    excused = {panel for of, panel in MAY_BE_EMPTY if of == release.name}
    assert empty - excused == set()
    # Rules for one release leave out what it does not have; what is drawn nevertheless and is empty is excused above.
    assert (excused & every) - empty == set(), "an excuse that nobody needs any more"


def test_a_release_that_is_not_there_has_empty_panels(installations: dict[str, Installation]) -> None:
    """Selected alone, it shows nothing: the choices do select, so no release hides behind another."""
    ghost = Release("vllm-0.7", Exporter.VLLM, RELEASES[0].version)
    every, empty = judged(installations["any"], ghost)
    assert len(empty) > 0.8 * len(every)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_counters_of_a_release_grow(installations: dict[str, Installation], release: Release) -> None:
    """Else a panel of rates would be judged on zeros."""
    series = installations["any"].prometheus.query(f'{{release="{release.name}"}}[1m]')
    growing = {one.labels["__name__"] for one in series if one.value > one.samples[0][1]}
    metrics = [CATALOGUE.by_sample(name) for name in growing]
    assert any(metric is not None and metric.exporter is release.exporter for metric in metrics)
