"""Every rule, in order: what is generated, tested, drawn, documented and held against a live Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sre.metrics.types import Exporter, Version
from sre.monitoring import (
    alerts_batching,
    alerts_request,
    alerts_resource,
    alerts_slo,
    alerts_toolkit,
    records_engine,
    records_resource,
    records_source,
    slo,
)
from sre.monitoring.model import Alert, Group, Record
from sre.monitoring.promql import Selection, number
from sre.settings.monitoring import MonitoringSettings
from sre.settings.monitoring_checks import bucket_edges

MAX_RULES = 20
"""Rules per group: they run one after the other and must be done within the group's interval."""
RARE_SECONDS = 60.0
"""Records over hours and days are evaluated this often: more adds cost and no knowledge."""


@dataclass(frozen=True, slots=True)
class RuleFile:
    """
    One generated file.

    Attributes:
        stem: Its name without suffix, ``sre-records``.
        dimension: Which dimension's alerts it holds; "toolkit" for the toolkit's own; "" for records.
    """

    stem: str
    dimension: str
    groups: tuple[Group, ...]


def selection(settings: MonitoringSettings) -> Selection:
    """Which series are meant, from the settings."""
    jobs = settings.jobs
    return Selection(
        jobs={
            Exporter.VLLM: jobs.vllm,
            Exporter.SRE: jobs.sre,
            Exporter.NODE: jobs.node,
            Exporter.DCGM: jobs.dcgm,
        },
        versions={
            Exporter.VLLM: _version(settings.vllm_version),
            Exporter.DCGM: _version(settings.dcgm_exporter_version),
        },
        prefix=settings.metric_prefix,
        matchers=tuple(sorted(settings.matchers.items())),
        buckets=bucket_edges(settings),
        scrape_interval_seconds=settings.scrape_interval_seconds,
    )


def _version(text: str | None) -> Version | None:
    return None if text is None else Version.parse(text)


def rule_files(settings: MonitoringSettings) -> list[RuleFile]:
    """All files in the order in which they depend on each other: records, then alerts."""
    chosen = selection(settings)
    often = duration(settings.scrape_interval_seconds)
    records = [
        *_groups("sre-records-resource", records_resource.records(chosen, settings), often),
        *_groups("sre-records-engine", records_engine.records(chosen, settings), often),
        *_slo_groups(chosen, settings),
        *_groups("sre-source-names", records_source.records(chosen, settings), often),
    ]
    alerts = {
        "resource": alerts_resource.alerts(chosen, settings),
        "batching": alerts_batching.alerts(chosen, settings),
        "request": alerts_request.alerts(chosen, settings),
        "slo": alerts_slo.alerts(chosen, settings),
        "toolkit": alerts_toolkit.alerts(chosen, settings),
    }
    files = [RuleFile("sre-records", "", tuple(records))]
    for part, rules in alerts.items():
        files.append(RuleFile(f"sre-{part}", part, tuple(_groups(f"sre-{part}", rules, often))))
    return [file for file in files if file.groups]


def all_groups(settings: MonitoringSettings) -> list[Group]:
    """Every group, records before the alerts that use them."""
    return [group for file in rule_files(settings) for group in file.groups]


def all_records(settings: MonitoringSettings) -> list[Record]:
    """Every recording rule, in order."""
    return [rule for group in all_groups(settings) for rule in group.rules if isinstance(rule, Record)]


def all_alerts(settings: MonitoringSettings) -> list[Alert]:
    """Every alert, in order."""
    return [rule for group in all_groups(settings) for rule in group.rules if isinstance(rule, Alert)]


def notes(settings: MonitoringSettings) -> list[str]:
    """What these settings leave out, and why: one sentence each."""
    return slo.notes(selection(settings), settings)


def of_dimensions(files: Iterable[RuleFile], dimensions: Iterable[str]) -> list[RuleFile]:
    """The alerts of these dimensions, and of the records those groups of which an alert needs one."""
    files, dimensions = tuple(files), frozenset(dimensions)
    chosen = [file for file in files if file.dimension in dimensions]
    groups = [group for file in files if file.dimension == "" for group in file.groups]
    needed = {name for file in chosen for group in file.groups for rule in group.rules for name in rule.uses}
    kept: set[str] = set()
    while fresh := [
        group for group in groups if group.name not in kept and any(rule.name in needed for rule in group.rules)
    ]:
        for group in fresh:
            kept.add(group.name)
            needed |= {name for rule in group.rules for name in rule.uses}
    records = RuleFile("sre-records", "", tuple(group for group in groups if group.name in kept))
    return [*([records] if records.groups else []), *chosen]


def duration(value: float) -> str:
    """A Prometheus duration: ``15s``, ``500ms``."""
    return f"{number(value)}s" if float(value).is_integer() else f"{round(value * 1000)}ms"


def _slo_groups(chosen: Selection, settings: MonitoringSettings) -> Iterator[Group]:
    often = duration(settings.scrape_interval_seconds)
    # Four times the scrape interval where that is less: who scrapes every second wants to see something soon.
    rare = duration(max(settings.scrape_interval_seconds, min(RARE_SECONDS, 4 * settings.scrape_interval_seconds)))
    for part in slo.slo_records(chosen, settings):
        name = f"sre-records-slo-{part.slo.name}"
        yield from _groups(f"{name}-short", part.short, often)
        yield from _groups(f"{name}-long", part.long, rare)
        yield from _groups(f"{name}-budget", part.budget, rare)


def _groups(name: str, rules: Iterable[Record | Alert], interval: str) -> Iterator[Group]:
    every = tuple(rules)
    starts = range(0, len(every), MAX_RULES)
    for count, start in enumerate(starts, 1):
        yield Group(name if len(starts) == 1 else f"{name}-{count}", every[start : start + MAX_RULES], interval)
