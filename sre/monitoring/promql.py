"""
PromQL from typed parts: no expression is written as free text.

An ``Expr`` knows its unit, the labels its series can carry and the names it reads. The functions refuse what Prometheus
accepts and nobody wants: the rate of a gauge, a sum of ratios, a division of unequal label sets, a bucket that is no
edge. Grammar: Prometheus 2.42.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from sre.metrics.types import Exporter, Kind, Metric, Unit, Version
from sre.monitoring.levels import INSTANCE, NODE, TARGET_LABELS

LE = "le"
VLLM_PREFIX = "vllm:"
RANGE_SCRAPES = 4
"""A range holds so many scrape intervals at least: one lost scrape, and 3.x's left-open ranges, leave two samples."""

LONGEST_NUMBER = 14
"""Digits of a number that may stand in an expression; more are the rubble of binary arithmetic (0.1 * 0.2)."""

_DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class ExpressionError(ValueError):
    """An expression that would be wrong: a sentence with the remedy."""


def seconds(duration: str) -> float:
    """Seconds of a Prometheus duration such as ``5m`` or ``1h30m``. Raises ExpressionError."""
    if not re.fullmatch(f"(?:{_DURATION.pattern})+", duration):
        raise ExpressionError(f"{duration!r} is no duration; write it like 5m or 1h30m")
    return sum(int(count) * _SECONDS[unit] for count, unit in _DURATION.findall(duration))


def number(value: float | Decimal) -> str:
    """Shortest exact decimal text of a number: 0.001, not 1e-03; 14.4, not 14.399999999999999."""
    if not math.isfinite(value):
        raise ExpressionError(f"{value} is no finite number")
    text = format(Decimal(str(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def chosen(value: float | Decimal) -> str:
    """``number`` of what a person chose. Raises ExpressionError: more digits than anybody writes."""
    if isinstance(value, float) and math.isfinite(value):
        digits = Decimal(str(value)).normalize().as_tuple().digits
        if len(digits) > LONGEST_NUMBER:
            raise ExpressionError(
                f"{value} is a product of binary floats, no number a person chose; compute it in Decimal"
            )
    return number(value)


def quoted(text: str) -> str:
    """A PromQL string literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@dataclass(frozen=True, slots=True)
class Expr:
    """
    An instant vector.

    Attributes:
        labels: Labels its series can carry.
        uses: Names of the samples and records it reads.
        atomic: Needs no parentheses as an operand.
        condition: A comparison: what it returns is "where this holds".
    """

    text: str
    unit: Unit
    labels: frozenset[str]
    uses: frozenset[str]
    atomic: bool = True
    condition: bool = False

    def __str__(self) -> str:
        return self.text

    @property
    def operand(self) -> str:
        """The text, in parentheses where an operator beside it needs them."""
        return self.text if self.atomic else f"({self.text})"


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
        edges = self.edges(metric)
        inner = edges[1:-1]
        if edge not in inner:
            near = min(inner, key=lambda bound: (abs(bound - edge), bound), default=None)
            place = "the first or last edge" if edge in edges else "no edge"
            raise ExpressionError(
                f"{number(edge)} is {place} of {metric.name}; "
                + (f"the nearest that can decide is {number(near)}" if near is not None else "it has no inner edge")
            )
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
        if function not in _OVER_TIME:
            raise ExpressionError(f"{function} is not among {', '.join(sorted(_OVER_TIME))}")
        if metric.kind is not Kind.GAUGE and function not in _OVER_TIME_OF_COUNTERS:
            raise ExpressionError(f"{function} of a {metric.kind.value} ({metric.name}) means nothing; take increase()")
        inner = self._selector(metric, metric.sample, matchers, equal)
        unit = metric.unit if function in _OVER_TIME_OF_VALUES else Unit.ONE
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


_OVER_TIME_OF_COUNTERS = frozenset({"changes", "resets", "count_over_time", "absent_over_time"})
_OVER_TIME_OF_VALUES = frozenset({"max_over_time", "min_over_time", "avg_over_time", "sum_over_time", "deriv"})
_OVER_TIME = _OVER_TIME_OF_COUNTERS | _OVER_TIME_OF_VALUES


def le_matcher(edge: float) -> str:
    """Matcher of one bucket. Before 3.0 a whole number stands as ``1`` or ``1.0``, depending on the client library."""
    text = number(edge)
    return f"le={quoted(text)}" if "." in text else f'le=~"{text}(\\\\.0)?"'


def among(label: str, *values: str) -> str:
    """Matcher of plain values: equal to the only one, else a pattern of all."""
    return (
        f"{label}={quoted(values[0])}" if len(values) == 1 else f"{label}=~{quoted('|'.join(map(re.escape, values)))}"
    )


# ---- Aggregation ----------------------------------------------------------------------------------------------------


def _aggregate(function: str, expr: Expr, by: Iterable[str]) -> Expr:
    by = tuple(by)
    missing = [label for label in by if label not in expr.labels]
    if missing:
        raise ExpressionError(f"{expr.text} has no label {', '.join(missing)} to aggregate by")
    grouping = f"{function} by ({', '.join(by)})" if by else function
    unit = Unit.ONE if function == "count" else expr.unit
    return Expr(f"{grouping} ({expr.text})", unit, frozenset(by), expr.uses, condition=expr.condition)


def sum_by(expr: Expr, *by: str) -> Expr:
    """Sum; ratios and temperatures refuse (they only average or peak)."""
    if expr.unit in (Unit.RATIO, Unit.PERCENT, Unit.CELSIUS):
        raise ExpressionError(f"a sum of {expr.unit.value} means nothing: {expr.text}; take max_by, min_by or avg_by")
    return _aggregate("sum", expr, by)


def max_by(expr: Expr, *by: str) -> Expr:
    return _aggregate("max", expr, by)


def min_by(expr: Expr, *by: str) -> Expr:
    return _aggregate("min", expr, by)


def avg_by(expr: Expr, *by: str) -> Expr:
    return _aggregate("avg", expr, by)


def count_by(expr: Expr, *by: str) -> Expr:
    return _aggregate("count", expr, by)


def present_by(expr: Expr, *by: str) -> Expr:
    """1 for each of these label sets that has a series, whatever its value."""
    return replace(_aggregate("group", expr, by), unit=Unit.STATE)


def largest_by(first: Expr, second: Expr, *by: str) -> Expr:
    """The larger of two, or the one there is, by ``by``; both must have just these labels. Units must agree."""
    if first.labels != frozenset(by) or second.labels != frozenset(by):
        raise ExpressionError(f"aggregate {first.text} and {second.text} by {', '.join(by)} first")
    # Told apart by a label, so that "or" keeps both.
    return max_by(either(first, labelled(second, "of_two", "second")), *by)


# ---- Operators ------------------------------------------------------------------------------------------------------


def _uses(*exprs: Expr) -> frozenset[str]:
    return frozenset().union(*(expr.uses for expr in exprs))


def ratio(part: Expr, whole: Expr, unit: Unit = Unit.RATIO, *, least: float = 0) -> Expr:
    """``part / (whole > least)``: no value, and no NaN, where there is nothing, or too little, to divide by."""
    if part.labels != whole.labels:
        raise ExpressionError(
            f"unequal labels in a division: {sorted(part.labels)} and {sorted(whole.labels)}; aggregate both alike"
        )
    return Expr(
        f"{part.operand} / ({whole.operand} > {chosen(least)})", unit, part.labels, _uses(part, whole), atomic=False
    )


def either(*exprs: Expr) -> Expr:
    """``a or b``: where the first has no series, the next. Units and labels must agree; of conditions, a condition."""
    first = exprs[0]
    for other in exprs[1:]:
        if other.unit is not first.unit:
            raise ExpressionError(f"{first.unit.value} or {other.unit.value} in one series; scale one of them")
    if len(exprs) == 1:
        return first
    # "or" binds weakest: operands need no parentheses.
    labels = frozenset().union(*(expr.labels for expr in exprs))
    condition = all(expr.condition for expr in exprs)
    text = " or ".join(expr.text for expr in exprs)
    return Expr(text, first.unit, labels, _uses(*exprs), atomic=False, condition=condition)


def either_on(first: Expr, second: Expr, *on: str) -> Expr:
    """``first or on (…) second``: of the second only what the first does not have by these labels."""
    if first.unit is not second.unit or first.labels != second.labels:
        raise ExpressionError(f"units or labels differ in {first.text} or {second.text}")
    if missing := [label for label in on if label not in first.labels]:
        raise ExpressionError(f"{first.text} has no label {', '.join(missing)} to match on")
    text = f"{first.text} or on ({', '.join(on)}) {second.operand}"
    return Expr(text, first.unit, first.labels, _uses(first, second), atomic=False)


def or_zero(expr: Expr, like: Expr) -> Expr:
    """``expr``, and 0 where only ``like`` has series: a counter not born yet counts nothing. Labels must agree."""
    if expr.labels != like.labels:
        raise ExpressionError(f"unequal labels: {sorted(expr.labels)} and {sorted(like.labels)}; aggregate both alike")
    text = f"{expr.text} or 0 * {like.operand}"
    return Expr(text, expr.unit, expr.labels, _uses(expr, like), atomic=False)


def minus(whole: Expr, part: Expr) -> Expr:
    """``whole - part``; units and labels must agree."""
    return _arithmetic(whole, "-", part)


def plus(first: Expr, second: Expr) -> Expr:
    """``first + second``; units and labels must agree."""
    return _arithmetic(first, "+", second)


def _arithmetic(left: Expr, operator: str, right: Expr) -> Expr:
    if left.labels != right.labels or left.unit is not right.unit:
        raise ExpressionError(f"units or labels differ in {left.text} {operator} {right.text}")
    return Expr(f"{left.operand} {operator} {right.operand}", left.unit, left.labels, _uses(left, right), atomic=False)


def on_each(over: Expr, value: Expr, *on: str) -> Expr:
    """``value`` on every series of ``over`` that has the same ``on``; ``over`` is 1 (see ``present_by``)."""
    if over.unit is not Unit.STATE or value.labels != frozenset(on) or not frozenset(on) <= over.labels:
        raise ExpressionError(f"{value.text} cannot be put on {over.text} by {', '.join(on)}")
    text = f"{over.operand} * on ({', '.join(on)}) group_left () {value.operand}"
    return Expr(text, value.unit, over.labels, _uses(over, value), atomic=False)


def at_least(expr: Expr, least: float) -> Expr:
    """``clamp_min``: what is less counts as ``least``."""
    return replace(expr, text=f"clamp_min({expr.text}, {chosen(least)})", atomic=True)


def scaled(expr: Expr, factor: float | Decimal, unit: Unit, *, divide: bool = False) -> Expr:
    """``expr * factor`` (or ``/ factor``) in another unit."""
    operator = "/" if divide else "*"
    return replace(expr, text=f"{expr.operand} {operator} {chosen(factor)}", unit=unit, atomic=False)


def one_minus(expr: Expr) -> Expr:
    """``1 - expr`` of a ratio."""
    return replace(expr, text=f"1 - {expr.operand}", atomic=False)


def quantile(q: float, buckets: Expr, *by: str, unit: Unit = Unit.SECONDS) -> Expr:
    """``histogram_quantile`` of bucket rates, by ``by``; no series where there was no traffic (NaN is dropped)."""
    if not 0 < q < 1:
        raise ExpressionError(f"quantile {q} is not between 0 and 1; the 99th percentile is 0.99")
    summed = _aggregate("sum", buckets, (LE, *by))
    text = f"histogram_quantile({number(q)}, {summed.text}) >= 0"
    return Expr(text, unit, frozenset(by), buckets.uses, atomic=False)


# ---- Conditions -----------------------------------------------------------------------------------------------------

_RANGES = {Unit.RATIO: (0.0, 1.0), Unit.PERCENT: (0.0, 100.0), Unit.STATE: (0.0, 1.0)}


def compare(expr: Expr, operator: str, threshold: float | Decimal) -> Expr:
    """
    A condition: ``expr`` held against a constant.

    Raises:
        ExpressionError: It could never, or always, hold in the unit's range.
    """
    if operator not in (">", ">=", "<", "<=", "=="):
        raise ExpressionError(f"{operator} is no comparison for an alert (NaN != x is always true)")
    low, high = _RANGES.get(expr.unit, (-math.inf, math.inf))
    value = float(threshold)
    # Burn-rate differences aside, a ratio compared outside its range is a unit mistake.
    if value < low or value > high or (operator == ">" and value >= high) or (operator == "<" and value <= low):
        raise ExpressionError(
            f"{expr.text} {operator} {number(threshold)} never holds: a {expr.unit.value} lies in {low:g}..{high:g}"
        )
    text = f"{expr.operand} {operator} {chosen(threshold)}"
    return replace(expr, text=text, atomic=False, condition=True)


def holds(expr: Expr, operator: str, threshold: float) -> Expr:
    """1 where the comparison holds, 0 where it does not."""
    compared = compare(expr, operator, threshold)
    text = f"{expr.operand} {operator} bool {chosen(threshold)}"
    return replace(compared, text=text, unit=Unit.STATE, condition=False)


def less_than(first: Expr, second: Expr) -> Expr:
    """``first < second``, series by series; units and labels must agree."""
    return replace(_arithmetic(first, "<", second), condition=True)


def equal_to(first: Expr, second: Expr) -> Expr:
    """``first == second``, series by series; units and labels must agree."""
    return replace(_arithmetic(first, "==", second), condition=True)


def over_time(function: str, recorded: Expr, window: str, *, offset: str = "") -> Expr:
    """``changes``, ``max_over_time`` … of a recorded series (a record called without further operators)."""
    if function not in _OVER_TIME:
        raise ExpressionError(f"{function} is not among {', '.join(sorted(_OVER_TIME))}")
    if not re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+(\{.*\})?", recorded.text):
        raise ExpressionError(f"{recorded.text} is no recorded series; a range of an expression needs a record")
    seconds(window)
    unit = recorded.unit if function in _OVER_TIME_OF_VALUES else Unit.ONE
    shift = f" offset {offset}" if offset and seconds(offset) else ""
    return replace(recorded, text=f"{function}({recorded.text}[{window}]{shift})", unit=unit)


def both(first: Expr, second: Expr, *on: str, group: str = "") -> Expr:
    """``first and on (…) second``: the values and labels of ``first`` where both hold."""
    for label in on:
        if label not in first.labels or label not in second.labels:
            raise ExpressionError(f"label {label} is not on both sides of 'and': {first.text} / {second.text}")
    if not on and first.labels != second.labels:
        raise ExpressionError("'and' of unequal label sets is empty; name the common labels")
    matching = f" on ({', '.join(on)})" if on else ""
    text = f"{_side(first)} and{matching} {_side(second)}"
    return Expr(text, first.unit, first.labels, _uses(first, second), atomic=False, condition=True)


def unless(first: Expr, second: Expr, *on: str) -> Expr:
    """``first unless on (…) second``."""
    matching = f" on ({', '.join(on)})" if on else ""
    text = f"{_side(first)} unless{matching} {_side(second)}"
    return Expr(text, first.unit, first.labels, _uses(first, second), atomic=False, condition=True)


def _side(expr: Expr) -> str:
    """An operand of ``and``/``unless``: comparisons bind tighter, set operators do not."""
    return f"({expr.text})" if re.search(r"\b(or|and|unless)\b", expr.text) else expr.text


def absent_up(job: str, matchers: tuple[tuple[str, str], ...] = ()) -> Expr:
    """No target of this job is known. Absence is asked of ``up`` only: a counter may be absent in peace."""
    parts = [f"job={quoted(job)}", *(f"{label}={quoted(value)}" for label, value in matchers)]
    labels = frozenset({"job", *(label for label, _ in matchers)})
    return Expr(f"absent(up{{{','.join(parts)}}})", Unit.STATE, labels, frozenset({"up"}), condition=True)


# ---- Labels ---------------------------------------------------------------------------------------------------------


def with_node(expr: Expr, *sources: str) -> Expr:
    """
    The series with a label ``node``: the one they have, else the first of ``sources`` that is set, else the host part
    of ``instance``. Aggregate afterwards: a helper label stays.
    """
    joined = ", ".join(f'"{label}"' for label in (NODE, *sources, INSTANCE))
    # Only an empty node lets the joined text begin with ";": else nothing matches and the label stays as it is.
    pattern = ";" * (len(sources) + 1) + _HOST_OF_INSTANCE + ("|;+([^;]+);.*" if sources else "")
    replacement = "$1$2" if sources else "$1"
    text = (
        f'label_replace(label_join({expr.text}, "node_and_source", ";", {joined}), '
        f'"{NODE}", "{replacement}", "node_and_source", "{pattern}")'
    )
    return replace(expr, text=text, labels=expr.labels | {NODE, "node_and_source"}, atomic=True)


_HOST_OF_INSTANCE = "(\\\\[.+\\\\]|[^:;]+)(?::[0-9]+)?"
"""IPv6 in brackets keeps them."""


def relabelled(expr: Expr, target: str, source: str, pattern: str = "(.*)", replacement: str = "$1") -> Expr:
    """``label_replace``: ``target`` made from ``source`` where the pattern matches the whole value."""
    arguments = ", ".join(quoted(text) for text in (target, replacement, source, pattern))
    text = f"label_replace({expr.text}, {arguments})"
    return replace(expr, text=text, labels=expr.labels | {target}, atomic=True)


def labelled(expr: Expr, label: str, value: str) -> Expr:
    """The series with ``label`` set to ``value``."""
    text = f'label_replace({expr.text}, {quoted(label)}, {quoted(value)}, "", "")'
    return replace(expr, text=text, labels=expr.labels | {label}, atomic=True)
