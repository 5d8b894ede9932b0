"""Panels of the dashboards, the raw metrics that each depends on, and what a Prometheus returns for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from sre.metrics.catalogue import CATALOGUE
from sre.metrics.types import Exporter
from sre.monitoring.catalogue_rules import all_records
from sre.monitoring.dashboards.catalogue import all_dashboards
from sre.monitoring.dashboards.document import document
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.dashboards.reading import panels, substituted
from tests.support.prometheus import Series


@dataclass(frozen=True, slots=True)
class Drawn:
    """One panel as Grafana gets it; ``names``: records and samples it reads; ``sources``: the samples behind them."""

    uid: str
    title: str
    no_value: str
    expressions: tuple[str, ...]
    names: frozenset[str]
    sources: frozenset[str]

    @property
    def where(self) -> str:
        return f"{self.uid}: {self.title}"

    @property
    def exporters(self) -> frozenset[Exporter]:
        known = (CATALOGUE.by_sample(name) for name in self.sources)
        return frozenset(metric.exporter for metric in known if metric is not None)

    def series(
        self, query: Callable[[str], list[Series]], variables: Mapping[str, str] | None = None
    ) -> list[list[Series]]:
        """What each query returns, with these choices; default: everything."""
        return [query(substituted(expression, variables)) for expression in self.expressions]

    def empty(self, query: Callable[[str], list[Series]], variables: Mapping[str, str] | None = None) -> bool:
        """Whether it says "no data" (or what stands there instead)."""
        return not any(self.series(query, variables))


def raw_names(settings: MonitoringSettings) -> Callable[[str], frozenset[str]]:
    """Record or sample → the samples that it is made of."""
    uses: dict[str, set[str]] = {}
    for record in all_records(settings):
        uses.setdefault(record.name, set()).update(record.expr.uses)

    @cache
    def raw(name: str) -> frozenset[str]:
        read = uses.get(name)
        # A record that reads itself, over a longer window, has another source beside.
        return frozenset({name}) if read is None else frozenset().union(*(raw(one) for one in read - {name}))

    return raw


def drawn_panels(settings: MonitoringSettings) -> Iterator[Drawn]:
    """Every panel of every dashboard, those of collapsed rows included."""
    raw = raw_names(settings)
    for dashboard in all_dashboards(settings):
        models = {panel.id: panel for panel in dashboard.panels}
        for panel in panels(document(dashboard, settings)):
            yield Drawn(
                dashboard.uid,
                panel["title"],
                panel["fieldConfig"]["defaults"]["noValue"],
                tuple(target["expr"] for target in panel["targets"]),
                frozenset(models[panel["id"]].names),
                frozenset().union(*(raw(name) for name in models[panel["id"]].names)),
            )
