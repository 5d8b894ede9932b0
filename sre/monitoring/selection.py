"""Selectors: which series of a metric are meant, and the functions that Prometheus takes of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sre.metrics.edges import undecidable
from sre.metrics.types import Exporter, Kind, Metric, Unit, Version
from sre.monitoring.expression import Expr, ExpressionError, number, quoted, seconds
from sre.monitoring.levels import TARGET_LABELS

LE = "le"
VLLM_PREFIX = "vllm:"
RANGE_SCRAPES = 4
"""A range holds so many scrape intervals at least: one lost scrape, and 3.x's left-open ranges, leave two samples."""

OVER_TIME_OF_COUNTERS = frozenset({"changes", "resets", "count_over_time", "absent_over_time"})
OVER_TIME_OF_VALUES = frozenset({"max_over_time", "min_over_time", "avg_over_time", "sum_over_time", "deriv"})
OVER_TIME = OVER_TIME_OF_COUNTERS | OVER_TIME_OF_VALUES


@dataclass(frozen=True, slots=True)
class Selection:
    """
    Which series are meant: jobs, releases, prefix, further matchers.

    Attributes:
        jobs: Value of the label ``job`` per exporter; an exporter that is not listed is matched whatever its job.
        versions: Release per exporter; not listed or None: any release (old and new names joined with ``or``).
        prefix: What vLLM's names begin with; Ray exports them with another one.
        matchers: Further matchers ``label="value"`` on every series.
        buckets: Upper edges by histogram family, where the user changed vLLM's.
        scrape_interval_seconds: Of the slowest job.
    """

    jobs: Mapping[Exporter, str] = field(default_factory=dict)
    versions: Mapping[Exporter, Version | None] = field(default_factory=dict)
    prefix: str = VLLM_PREFIX
    matchers: tuple[tuple[str, str], ...] = ()
    buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    scrape_interval_seconds: float = 15.0

    def name(self, sample: str) -> str:
        """The sample's name as this installation exposes it."""
        return self.prefix + sample.removeprefix(VLLM_PREFIX) if sample.startswith(VLLM_PREFIX) else sample

    def edges(self, metric: Metric) -> tuple[float, ...]:
        """Bucket edges in force."""
        return tuple(self.buckets.get(metric.name, metric.buckets))

    def decidable(self, metric: Metric, edge: float) -> float:
        """
        ``edge``, if a threshold there can be judged by the buckets.

        Raises:
            ExpressionError: It is no bucket edge, or the first or the last one: then the answer is a guess.
        """
        if found := undecidable(edge, self.edges(metric)):
            instead = (
                "it has no inner edge"
                if found.nearest is None
                else f"the nearest that can decide is {number(found.nearest)}"
            )
            raise ExpressionError(f"{number(edge)} is {found.place} of {metric.name}; {instead}")
        return edge

    def supports(self, metric: Metric) -> bool:
        """Whether the chosen release exposes it."""
        return metric.exists_in(self.versions.get(metric.exporter))

    # ---- Selectors ------------------------------------------------------------------------------------------------

    def _selector(self, metric: Metric, sample: str, matchers: Iterable[str], equal: Mapping[str, str]) -> str:
        parts = []
        if metric.exporter in self.jobs:
            parts.append(f"job={quoted(self.jobs[metric.exporter])}")
        parts += [f"{label}={quoted(value)}" for label, value in self.matchers]
        known = set(metric.labels) | TARGET_LABELS | {LE}
        for label, value in equal.items():
            if label not in known:
                raise ExpressionError(
                    f"{metric.name} has no label {label}; it has {', '.join(metric.labels) or 'none'}"
                )
            parts.append(f"{label}={quoted(value)}")
        parts += matchers
        return self.name(sample) + ("{" + ",".join(parts) + "}" if parts else "")

    def _labels(self, metric: Metric) -> frozenset[str]:
        return frozenset(metric.labels) | TARGET_LABELS | {label for label, _ in self.matchers}

    def _window(self, window: str) -> str:
        least = RANGE_SCRAPES * self.scrape_interval_seconds
        if seconds(window) < least:
            raise ExpressionError(
                f"range [{window}] is shorter than {RANGE_SCRAPES} scrape intervals ({number(least)}s); "
                "take a longer range or scrape more often"
            )
        return window

    def gauge(self, metric: Metric, *matchers: str, **equal: str) -> Expr:
        """A gauge's value, or what is exposed as a counter but is a rate already."""
        if metric.kind is not Kind.GAUGE and not metric.rate_already:
            raise ExpressionError(f"{metric.name} is a {metric.kind.value}; take rate() or increase() of it")
        text = self._selector(metric, metric.sample, matchers, equal)
        return Expr(text, metric.unit, self._labels(metric), frozenset({self.name(metric.sample)}))

    def raw(self, metric: Metric, *matchers: str, **equal: str) -> Expr:
        """A counter's value itself, for ``changes``, ``resets`` and absence only."""
        text = self._selector(metric, metric.sample, matchers, equal)
        return Expr(text, metric.unit, self._labels(metric), frozenset({self.name(metric.sample)}))

    def over_time(self, function: str, metric: Metric, window: str, *matchers: str, **equal: str) -> Expr:
        """``max_over_time``, ``changes``, ``resets``, ``count_over_time`` … of a metric's samples in the window."""
        if function not in OVER_TIME:
            raise ExpressionError(f"{function} is not among {', '.join(sorted(OVER_TIME))}")
        if metric.kind is not Kind.GAUGE and function not in OVER_TIME_OF_COUNTERS:
            raise ExpressionError(f"{function} of a {metric.kind.value} ({metric.name}) means nothing; take increase()")
        inner = self._selector(metric, metric.sample, matchers, equal)
        unit = metric.unit if function in OVER_TIME_OF_VALUES else Unit.ONE
        labels = self._labels(metric)
        uses = frozenset({self.name(metric.sample)})
        return Expr(f"{function}({inner}[{self._window(window)}])", unit, labels, uses)

    def rate(self, metric: Metric, window: str, *matchers: str, part: str = "", **equal: str) -> Expr:
        """
        Per-second increase of a counter, or of a histogram's ``part``: ``count``, ``sum`` or ``bucket``.

        The unit stays the counted one ("per second" is understood).
        """
        return self._increasing("rate", metric, window, matchers, part, equal)

    def increase(self, metric: Metric, window: str, *matchers: str, part: str = "", **equal: str) -> Expr:
        """Increase of a counter, or of a histogram's ``part``, over the window."""
        return self._increasing("increase", metric, window, matchers, part, equal)

    def _increasing(
        self, function: str, metric: Metric, window: str, matchers: Iterable[str], part: str, equal: Mapping[str, str]
    ) -> Expr:
        if metric.rate_already:
            raise ExpressionError(f"{metric.name} is typed as a counter but is a rate already; use its value")
        if metric.kind is Kind.GAUGE:
            raise ExpressionError(f"{metric.name} is a gauge; {function}() is for counters")
        if (metric.kind is Kind.COUNTER) != (part == "") or part not in ("", "count", "sum", "bucket"):
            raise ExpressionError(f"{metric.name} is a {metric.kind.value}; part {part!r} does not fit it")
        sample = f"{metric.name}_{part}" if part else metric.sample
        unit = {"": metric.unit, "sum": metric.unit}.get(part, Unit.ONE)
        labels = self._labels(metric) | ({LE} if part == "bucket" else frozenset())
        inner = self._selector(metric, sample, matchers, equal)
        return Expr(f"{function}({inner}[{self._window(window)}])", unit, labels, frozenset({self.name(sample)}))

    def below_edge(
        self, metric: Metric, edge: float, window: str, *matchers: str, function: str = "rate", **equal: str
    ) -> Expr:
        """
        Rate (or increase) of observations <= ``edge``.

        Raises:
            ExpressionError: ``edge`` is no bucket edge, or the first or the last one: then the answer is a guess.
        """
        matcher = le_matcher(self.decidable(metric, edge))
        return self._increasing(function, metric, window, (*matchers, matcher), "bucket", equal)


def le_matcher(edge: float) -> str:
    """Matcher of one bucket. Before 3.0 a whole number stands as ``1`` or ``1.0``, depending on the client library."""
    text = number(edge)
    return f"le={quoted(text)}" if "." in text else f'le=~"{text}(\\\\.0)?"'


def among(label: str, *values: str) -> str:
    """Matcher of plain values: equal to the only one, else a pattern of all."""
    return (
        f"{label}={quoted(values[0])}" if len(values) == 1 else f"{label}=~{quoted('|'.join(map(re.escape, values)))}"
    )
