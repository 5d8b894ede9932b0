"""Every rule, in order: what is generated, tested, drawn, documented and held against a live Prometheus."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sre.metrics.types import Exporter, Version
from sre.monitoring.model import Alert, Group, Record
from sre.monitoring.promql import Selection
from sre.settings.monitoring import MonitoringSettings

MAX_RULES = 20
"""Rules per group: they run one after the other and must be done within the group's interval."""

RECORD_PARTS = ("records_resource", "records_engine", "slo")
ALERT_PARTS = ("resource", "batching", "request", "slo", "toolkit")
"""Parts of the alerts, each a module ``alerts_<part>`` and a file ``sre-<part>.yml``."""


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One generated file: its name without suffix (``sre-records``), and its groups in order."""

    stem: str
    groups: tuple[Group, ...]


def selection(settings: MonitoringSettings) -> Selection:
    """Which series are meant, from the settings. Raises ValueError for a version that is none."""
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
        buckets={},
        scrape_interval_seconds=settings.scrape_interval_seconds,
    )


def _version(text: str | None) -> Version | None:
    return None if text is None else Version.parse(text)


def rule_files(settings: MonitoringSettings) -> list[RuleFile]:
    """All files in the order in which they depend on each other: records, then alerts."""
    chosen = selection(settings)
    records = [
        group
        for part in RECORD_PARTS
        for group in _groups(f"sre-records-{part.removeprefix('records_')}", _rules(part, "records", chosen, settings))
    ]
    files = [RuleFile("sre-records", tuple(records))]
    for part in ALERT_PARTS:
        groups = _groups(f"sre-{part}", _rules(f"alerts_{part}", "alerts", chosen, settings))
        files.append(RuleFile(f"sre-{part}", tuple(groups)))
    return [file for file in files if file.groups]


def all_groups(settings: MonitoringSettings) -> list[Group]:
    """Every group, records before the alerts that use them."""
    return [group for file in rule_files(settings) for group in file.groups]


def all_records(settings: MonitoringSettings) -> list[Record]:
    return [rule for group in all_groups(settings) for rule in group.rules if isinstance(rule, Record)]


def all_alerts(settings: MonitoringSettings) -> list[Alert]:
    return [rule for group in all_groups(settings) for rule in group.rules if isinstance(rule, Alert)]


def _rules(module: str, function: str, chosen: Selection, settings: MonitoringSettings) -> Iterable[Record | Alert]:
    name = f"sre.monitoring.{module}"
    if importlib.util.find_spec(name) is None:
        return ()
    rules: Iterable[Record | Alert] = getattr(importlib.import_module(name), function)(chosen, settings)
    return rules


def _groups(name: str, rules: Iterable[Record | Alert]) -> Iterator[Group]:
    every = tuple(rules)
    starts = range(0, len(every), MAX_RULES)
    for number, start in enumerate(starts, 1):
        yield Group(name if len(starts) == 1 else f"{name}-{number}", every[start : start + MAX_RULES])
