"""
What was seen of the user's exporters.

Two kinds: pages (an exporter's own /metrics: its series and nothing else) and a fleet (all that a Prometheus scrapes,
with the labels that rules see there).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sre.metrics.exposition import Series
from sre.metrics.types import Kind, Metric
from sre.monitoring.lint.tree import Matcher


@dataclass(frozen=True, slots=True)
class Down:
    """A target that Prometheus cannot scrape."""

    job: str
    instance: str
    error: str = ""


@dataclass(frozen=True)
class Seen:
    """
    Everything that was seen.

    Attributes:
        pages: Series by sample name, of /metrics pages.
        fleet: The same, of Prometheus; only the names that were asked for.
        names: Every sample name, also those whose series were not asked for.
        kinds: Stated type by family name; a family named here may have no series.
        prometheus: A Prometheus is among the sources.
        down: Targets it cannot scrape.
        sampled: Names of which only some series were looked at.
    """

    pages: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)
    fleet: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    kinds: Mapping[str, Kind | None] = field(default_factory=dict)
    prometheus: bool = False
    down: tuple[Down, ...] = ()
    sampled: frozenset[str] = frozenset()

    def series(self, name: str) -> tuple[Series, ...]:
        return (*self.pages.get(name, ()), *self.fleet.get(name, ()))

    def kind(self, metric: Metric) -> Kind | None:
        """The stated type of a metric of the catalogue; None: not stated, or contradictory."""
        return self.kinds.get(metric.name) or self.kinds.get(metric.sample)

    def declares(self, metric: Metric) -> bool:
        """Whether its family is declared, be it without series."""
        return metric.name in self.kinds or metric.sample in self.kinds


def joined(parts: Iterable[Seen]) -> Seen:
    """All of it as one. Types that contradict one another are no longer stated."""
    pages: dict[str, tuple[Series, ...]] = {}
    fleet: dict[str, tuple[Series, ...]] = {}
    kinds: dict[str, Kind | None] = {}
    names: set[str] = set()
    down: list[Down] = []
    sampled: set[str] = set()
    prometheus = False
    for part in parts:
        for into, found in ((pages, part.pages), (fleet, part.fleet)):
            for name, series in found.items():
                into[name] = (*into.get(name, ()), *series)
        for name, kind in part.kinds.items():
            kinds[name] = kind if kinds.get(name, kind) is kind else None
        names |= part.names
        prometheus |= part.prometheus
        down += part.down
        sampled |= part.sampled
    return Seen(pages, fleet, frozenset(names), kinds, prometheus, tuple(down), frozenset(sampled))


def fits(labels: Mapping[str, str], matcher: Matcher) -> bool:
    """Whether a series fits one matcher; an absent label is ""."""
    value = labels.get(matcher.label, "")
    if matcher.operator in ("=", "!="):
        return (value == matcher.value) is (matcher.operator == "=")
    try:
        found = re.fullmatch(matcher.value, value) is not None
    except re.error:  # RE2 knows what Python does not; then it is not ours to judge
        return True
    return found is (matcher.operator == "=~")
