"""Metric families made of our declarations, so that name, help and labels are spelled once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from sre.metrics.types import Kind, Metric
from sre.signals.batching import Weighted

Row = tuple[tuple[str, ...], float]
"""Label values and value of one series."""


def family(metric: Metric) -> GaugeMetricFamily:
    """An empty gauge."""
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def filled(metric: Metric, rows: Iterable[Row]) -> Family:
    """A gauge or counter with ``rows``."""
    if metric.kind is Kind.COUNTER:
        made: CounterMetricFamily | GaugeMetricFamily = CounterMetricFamily(
            metric.name.removesuffix("_total"), metric.help, labels=metric.labels
        )
    else:
        made = family(metric)
    for labels, value in rows:
        made.add_metric(labels, value)
    return made


def weighted(metric: Metric, rows: Iterable[tuple[tuple[str, ...], Weighted]]) -> HistogramMetricFamily:
    """A histogram whose buckets hold weights."""
    made = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, histogram in rows:
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        made.add_metric(labels, list(zip(bounds, histogram.cumulative, strict=True)), histogram.total)
    return made


def one_of(into: GaugeMetricFamily, labels: tuple[str, ...], states: Sequence[str], state: str) -> None:
    """One series per state, 1 on the one that holds: no series ever vanishes or stays behind."""
    for name in states:
        into.add_metric((*labels, name), 1.0 if name == state else 0.0)
