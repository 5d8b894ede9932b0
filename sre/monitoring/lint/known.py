"""What the lint knows about names: the catalogue, and the records defined in the linted files."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from sre.metrics.catalogue import CATALOGUE, VLLM_PREFIX, plain
from sre.metrics.types import Exporter, Kind, Metric, token_bounds
from sre.monitoring.lint.findings import LintOptions
from sre.monitoring.lint.tree import Node

LONGEST_MODEL_TOKENS = 1_000_000
COUNTER_ENDINGS = ("_total", "_bucket", "_count", "_sum")
_PREFIXES = (VLLM_PREFIX, "DCGM_", "node_", "envoy_", "sre_", "scrape_")


class SampleType(enum.Enum):
    """How a sample behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Definition:
    """One rule that records: its expression, and the labels it sets."""

    root: Node
    static_labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A record defined in the linted files, by one rule or several."""

    name: str
    definitions: tuple[Definition, ...]

    @property
    def root(self) -> Node:
        """Expression of the first rule; the others differ in their labels, as a rule."""
        return self.definitions[0].root


@dataclass(slots=True)
class Names:
    """Lookup of sample and record names under the options; answers are remembered."""

    options: LintOptions
    records: Mapping[str, Recorded] = field(default_factory=dict)
    _metrics: dict[str, Metric | None] = field(default_factory=dict)
    _labels: dict[str, frozenset[str] | None] = field(default_factory=dict)

    def metric(self, name: str) -> Metric | None:
        """The catalogue's metric of a sample; None for foreign names and records."""
        if name not in self._metrics:
            self._metrics[name] = CATALOGUE.by_sample(name, self.options.metric_prefix) if name else None
        return self._metrics[name]

    def owned(self, name: str) -> bool:
        """Whether the name begins as only an exporter of ours does, so that its labels are known (not ``http_…``)."""
        return plain(name, self.options.metric_prefix).startswith(_PREFIXES) or name in ("up", "ALERTS")

    def vllm_name(self, name: str) -> str:
        """The name in vLLM's own spelling."""
        return plain(name, self.options.metric_prefix)

    def type_of(self, name: str) -> SampleType:
        """By the catalogue; foreign names by their ending."""
        metric = self.metric(name)
        if metric is not None:
            if metric.rate_already or metric.kind is Kind.GAUGE:
                return SampleType.GAUGE
            if metric.kind is Kind.SUMMARY and name == metric.name:
                return SampleType.GAUGE
            return SampleType.COUNTER
        if ":" in name and not self.vllm_name(name).startswith(VLLM_PREFIX):
            return SampleType.UNKNOWN
        return SampleType.COUNTER if name.endswith(COUNTER_ENDINGS) else SampleType.UNKNOWN

    def edges(self, metric: Metric) -> tuple[float, ...]:
        """Bucket edges in force; empty where they are not known."""
        custom = self.options.custom_buckets.get(metric.name)
        if custom is not None:
            return tuple(custom)
        return token_bounds(LONGEST_MODEL_TOKENS) if metric.token_buckets else metric.buckets

    def labels(self, name: str, metric: Metric) -> frozenset[str] | None:
        """Labels a series of the metric can have, those of its target included; None where that is not known."""
        if name not in self._labels:
            self._labels[name] = self._labels_of(name, metric)
        return self._labels[name]

    def _labels_of(self, name: str, metric: Metric) -> frozenset[str] | None:
        if not self.owned(name) or metric.name.endswith("_info") or metric.exporter is Exporter.PROMETHEUS:
            return None
        le = {"le"} if metric.kind is Kind.HISTOGRAM and name.endswith("_bucket") else set()
        quantile = {"quantile"} if metric.kind is Kind.SUMMARY else set()
        return frozenset(metric.labels) | self.options.target_labels | le | quantile

    def available(self, metric: Metric) -> bool:
        """Whether the release named in the options exposes it; without one, whether the newest does."""
        version = self.options.versions.get(metric.exporter)
        return metric.removed is None if version is None else metric.exists_in(version)
