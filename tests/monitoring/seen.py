"""What was seen of exporters: recorded pages, as they are or as a Prometheus has them; and rules judged by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from sre.metrics.exposition import Series, parse_exposition
from sre.metrics.types import Kind, Unit
from sre.monitoring.catalogue_rules import all_groups, selection
from sre.monitoring.evidence import Cause, Verdict
from sre.monitoring.model import Alert, Dimension, Group, Input, Record, Scenario, Severity, Steady
from sre.monitoring.promql import Expr, Selection
from sre.monitoring.seen import Down, Seen, joined
from sre.monitoring.verify import Finding, Report, verify
from sre.settings.monitoring import MonitoringSettings

DATA = Path(__file__).parent / "data"
PAGES = {path.name.removesuffix(".metrics.txt"): path.read_bytes() for path in sorted(DATA.glob("*.metrics.txt"))}
SETTINGS = MonitoringSettings()
GROUPS = all_groups(SETTINGS)
CHOSEN = selection(SETTINGS)
SCENARIO = Scenario((Input("x", Steady(1), Steady(0)),), "1m", "1m", {})


@lru_cache(maxsize=32)
def page(body: bytes) -> Seen:
    found = parse_exposition(body)
    return Seen(pages=found.samples, names=frozenset(found.samples), kinds=found.types)


def recorded(*names: str) -> Seen:
    return joined(page(PAGES[name]) for name in names)


def scraped(*pages: tuple[str, str], down: tuple[Down, ...] = (), **labels: str) -> Seen:
    """Recorded pages as a Prometheus has them: (text, job) pairs, target labels added, ``up`` there."""
    fleet: dict[str, tuple[Series, ...]] = {}
    kinds: dict[str, Kind | None] = {}
    up = []
    for name, job in pages:
        target = {"job": job, "instance": f"{name}:1", **labels}
        seen = recorded(name)
        for sample, series in seen.pages.items():
            fleet[sample] = (*fleet.get(sample, ()), *(Series({**one.labels, **target}, one.value) for one in series))
        kinds |= seen.kinds
        up.append(Series(target, 1.0))
    up += [Series({"job": one.job, "instance": one.instance}, 0.0) for one in down]
    fleet["up"] = tuple(up)
    return Seen(fleet=fleet, names=frozenset(fleet), kinds=kinds, prometheus=True, down=down)


def changed(seen: Seen, name: str, *values: float, **labels: str) -> Seen:
    """``seen`` with other values (or labels added) of one sample on its pages."""
    series = seen.pages[name]
    values = values or tuple(one.value for one in series)
    new = tuple(Series({**one.labels, **labels}, values[i % len(values)]) for i, one in enumerate(series))
    return replace(seen, pages={**seen.pages, name: new})


def without(seen: Seen, *names: str) -> Seen:
    gone = {name for name in seen.names if name.startswith(names)}
    return Seen(
        {k: v for k, v in seen.pages.items() if k not in gone}, {k: v for k, v in seen.fleet.items() if k not in gone},
        seen.names - gone, {k: v for k, v in seen.kinds.items() if k not in gone}, seen.prometheus, seen.down,
    )  # fmt: skip


def alert(text: str) -> Alert:
    expr = Expr(text, Unit.ONE, frozenset(), frozenset(), condition=True)
    return Alert("A", expr, "1m", Severity.TICKET, Dimension.REQUEST, "engine", "It is.", "It is.", "d", SCENARIO)


def judged(text: str, seen: Seen, records: Mapping[str, str] | None = None, chosen: Selection | None = None) -> Finding:
    """What becomes of an alert with this expression."""
    rules: list[Record | Alert] = [
        Record(name, Expr(expr, Unit.ONE, frozenset(), frozenset()), "", source_name=True)
        for name, expr in (records or {}).items()
    ]
    report = verify(seen, [Group("g", (*rules, alert(text)))], chosen or Selection())
    (finding,) = report.alerts
    return finding


def causes(finding: Finding) -> list[Cause]:
    return [reason.cause for reason in finding.outcome.reasons]


def by_verdict(report: Report, verdict: Verdict) -> set[str]:
    return {finding.name for finding in report.alerts if finding.outcome.verdict is verdict}
