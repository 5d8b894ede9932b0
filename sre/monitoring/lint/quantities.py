"""Unit and possible values of an expression, followed through operators as far as the catalogue reaches."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from sre.metrics.types import Kind, Metric, Unit
from sre.monitoring.lint.known import Names
from sre.monitoring.lint.labels import MAX_RECORD_DEPTH
from sre.monitoring.lint.tree import (
    Aggregate,
    Binary,
    Call,
    Negative,
    Node,
    Number,
    Selector,
    Subquery,
    constant,
    selectors_in,
    walk,
)

_RATIO_NAME = re.compile(r"ratio(_|$)")
_INFINITY = math.inf
_KEEPING = frozenset(
    {
        "abs", "avg_over_time", "max_over_time", "min_over_time", "last_over_time", "quantile_over_time", "ceil",
        "floor", "round", "sort", "sort_desc", "label_replace", "label_join", "first_over_time", "scalar",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """
    What a value is.

    Attributes:
        unit: None where it is not known.
        low, high: Bounds of what it can be.
        quantile_of: The histogram whose quantile it is, so that only its bucket edges are exact thresholds.
        family: Name of the one metric it is made of; parts of one family divide to a ratio.
    """

    unit: Unit | None = None
    low: float = -_INFINITY
    high: float = _INFINITY
    quantile_of: Metric | None = None
    family: str = ""


UNKNOWN = Quantity()
NOT_NEGATIVE = Quantity(low=0.0)
_STATE = Quantity(Unit.STATE, 0.0, 1.0)
RATIO = Quantity(Unit.RATIO, 0.0, 1.0)
_SUMMABLE = frozenset({Unit.BYTES, Unit.MEBIBYTES, Unit.REQUESTS, Unit.TOKENS, Unit.WATTS})
_TO_BYTES = {Unit.MEBIBYTES: 1024.0 * 1024.0, Unit.KIBIBYTES: 1024.0}


class QuantityInference:
    """Infers quantities; remembers records and nodes."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._records: dict[str, Quantity] = {}
        self._nodes: dict[Node, Quantity] = {}

    def of(self, node: Node, depth: int = 0) -> Quantity:
        """Unit and bounds of what ``node`` returns."""
        if node not in self._nodes:
            self._nodes[node] = self._of(node, depth)
        return self._nodes[node]

    def _of(self, node: Node, depth: int) -> Quantity:
        match node:
            case Number():
                return Quantity(None, node.value, node.value)
            case Selector():
                return self._selector(node, depth)
            case Aggregate():
                return self._aggregate(node, depth)
            case Call():
                return self._call(node, depth)
            case Binary():
                return self._binary(node, depth)
            case Subquery():
                return self.of(node.expr, depth)
            case Negative():
                inner = self.of(node.expr, depth)
                return Quantity(None, -inner.high, -inner.low)
        return UNKNOWN

    def _selector(self, node: Selector, depth: int) -> Quantity:
        if node.name in self.names.records:
            return self._record(node.name, depth)
        metric = self.names.metric(node.name)
        if metric is None:
            return RATIO if node.name.count(":") == 2 and _RATIO_NAME.match(node.name.split(":")[2]) else UNKNOWN
        if metric.kind is Kind.HISTOGRAM:
            unit = metric.unit if node.name.endswith("_sum") else Unit.ONE
            return Quantity(unit, 0.0, family=metric.name)
        low, high = metric.range or (0.0 if metric.kind is Kind.COUNTER else -_INFINITY, _INFINITY)
        return Quantity(metric.unit, low, high, family=metric.name)

    def _record(self, name: str, depth: int) -> Quantity:
        if name not in self._records:
            if depth > MAX_RECORD_DEPTH:
                return UNKNOWN
            self._records[name] = UNKNOWN
            found = self.of(self.names.records[name].root, depth + 1)
            if found.unit is None and name.count(":") == 2 and _RATIO_NAME.match(name.split(":")[2]):
                found = replace(found, unit=Unit.RATIO, low=max(found.low, 0.0), high=min(found.high, 1.0))
            self._records[name] = found
        return self._records[name]

    def _aggregate(self, node: Aggregate, depth: int) -> Quantity:
        inner = self.of(node.expr, depth)
        match node.operator:
            case "count":
                return Quantity(Unit.ONE, 1.0)
            case "group":
                return Quantity(Unit.STATE, 1.0, 1.0)
            case "sum":
                if inner.unit in (Unit.RATIO, Unit.PERCENT, Unit.CELSIUS, Unit.STATE):
                    return Quantity(None, 0.0 if inner.low >= 0 else -_INFINITY)
                return Quantity(inner.unit, 0.0 if inner.low >= 0 else -_INFINITY, family=inner.family)
            case "count_values" | "stddev" | "stdvar":
                return NOT_NEGATIVE
        return inner

    def _call(self, node: Call, depth: int) -> Quantity:
        name, args = node.function, node.args
        if name in ("absent", "absent_over_time", "present_over_time"):
            return Quantity(Unit.STATE, 1.0, 1.0)
        if name == "vector":
            return self.of(args[0], depth) if args else UNKNOWN
        if name in ("changes", "resets", "count_over_time", "time", "timestamp"):
            return Quantity(None, 1.0 if name == "count_over_time" else 0.0)
        if name in ("rate", "irate", "increase") and args:
            inner = self.of(args[0], depth)
            unit = inner.unit if name == "increase" or inner.unit is Unit.ONE else None
            return Quantity(unit, 0.0, family=inner.family)
        if name == "histogram_quantile" and len(args) == 2:
            metrics = {one.name: one for one in map(self._histogram, _names(args[1])) if one is not None}
            if len(metrics) == 1:
                metric = next(iter(metrics.values()))
                return Quantity(metric.unit, 0.0, _INFINITY, metric)
            units = {metric.unit for metric in metrics.values()}
            return Quantity(units.pop() if len(units) == 1 else None)
        if name in _KEEPING and args:
            return self.of(args[-1] if name == "quantile_over_time" else args[0], depth)
        if name in ("clamp_min", "clamp_max", "clamp") and args:
            return replace(self.of(args[0], depth), low=-_INFINITY, high=_INFINITY)
        return UNKNOWN

    def _histogram(self, name: str) -> Metric | None:
        metric = self.names.metric(name)
        return metric if metric is not None and metric.kind is Kind.HISTOGRAM else None

    def _binary(self, node: Binary, depth: int) -> Quantity:
        left, right = self.of(node.left, depth), self.of(node.right, depth)
        match node.operator:
            case "and" | "unless":
                return left
            case "or":
                same = left.unit is right.unit
                quantile_of = left.quantile_of if left.quantile_of is right.quantile_of else None
                low, high = min(left.low, right.low), max(left.high, right.high)
                if not same and constant(node.right) is not None:
                    return Quantity(left.unit, low, high, left.quantile_of)
                return Quantity(left.unit if same else None, low, high, quantile_of)
            case "*":
                return (
                    self._scaled(left, constant(node.right))
                    if constant(node.right) is not None
                    else (self._scaled(right, constant(node.left)))
                )
            case "/":
                return self._divided(node, left, right)
            case "+" | "-":
                return _sum(node.operator, left, right, constant(node.left), constant(node.right))
        if node.compares:
            return _STATE if node.as_bool else left if constant(node.left) is None else right
        return UNKNOWN

    @staticmethod
    def _scaled(inner: Quantity, factor: float | None) -> Quantity:
        if factor is None:
            return NOT_NEGATIVE if inner.low >= 0 else UNKNOWN
        bounds = sorted((_times(inner.low, factor), _times(inner.high, factor)))
        unit: Unit | None = None
        if inner.unit is Unit.RATIO and factor == 100:
            unit = Unit.PERCENT
        elif inner.unit is Unit.PERCENT and math.isclose(factor, 0.01):
            unit = Unit.RATIO
        elif inner.unit in _TO_BYTES and factor == _TO_BYTES[inner.unit]:
            unit = Unit.BYTES
        return Quantity(unit, bounds[0], bounds[1])

    def _divided(self, node: Binary, left: Quantity, right: Quantity) -> Quantity:
        divisor = constant(node.right)
        if divisor:
            return self._scaled(left, 1 / divisor)
        positive = left.low >= 0 and right.low >= 0
        if left.unit is right.unit and left.low >= 0 and is_share(node.left, node.right):
            return RATIO
        if positive and right.unit is Unit.ONE and left.family and left.family == right.family:
            return Quantity(left.unit, 0.0)
        return NOT_NEGATIVE if positive else UNKNOWN


def _names(node: Node) -> list[str]:
    return [selector.name for selector in selectors_in(node)]


_WHOLE = re.compile(r"(?i)(capacity|total_bytes$|memtotal|fb_total|size_bytes$)")


def is_share(part: Node, whole: Node) -> bool:
    """Whether ``part / whole`` surely lies in 0..1: the part's series are among the whole's, over the same time."""
    if isinstance(whole, Binary) and whole.compares and constant(whole.right) is not None:
        whole = whole.left  # (whole > 0)
    parts, wholes = selectors_in(part), selectors_in(whole)
    if len(parts) != 1 or not wholes:
        return False
    inner = parts[0]
    if len(wholes) == 2 and isinstance(whole, Binary) and whole.operator == "+":
        return inner.name in (one.name for one in wholes)  # used / (used + free)
    if len(wholes) != 1:
        return False
    outer = wholes[0]
    if (inner.range_seconds, inner.offset_seconds) != (outer.range_seconds, outer.offset_seconds):
        return False
    if _aggregations(part) != _aggregations(whole):
        return False
    if inner.name == outer.name or _family(inner.name) == _family(outer.name):
        return {one for one in outer.matchers if one.label != "le"} <= set(inner.matchers)
    return inner.range_seconds is None and bool(_WHOLE.search(outer.name)) and not _WHOLE.search(inner.name)


def _aggregations(node: Node) -> list[str]:
    return [one.operator for one in walk(node) if isinstance(one, Aggregate)]


def _family(name: str) -> str:
    """Of a histogram's buckets and count: its name; of anything else its own."""
    return name.removesuffix("_bucket").removesuffix("_count")


def family(name: str) -> str:
    """Of all parts of a histogram or summary: its name; of anything else its own."""
    return _family(name).removesuffix("_sum")


def _times(bound: float, factor: float) -> float:
    return 0.0 if factor == 0 or bound == 0 else bound * factor


def _sum(operator: str, left: Quantity, right: Quantity, first: float | None, second: float | None) -> Quantity:
    if operator == "-" and first == 1 and left.low == 1 and right.unit in (Unit.RATIO, Unit.STATE):
        return RATIO  # 1 - share
    if first is not None or second is not None:
        sign = 1 if operator == "+" else -1
        low, high = (
            left.low + sign * (right.low if sign > 0 else right.high),
            left.high + sign * (right.high if sign > 0 else right.low),
        )
        return Quantity(None, low, high)
    unit = left.unit if left.unit is right.unit and left.unit in _SUMMABLE else None
    if operator == "+":
        return Quantity(unit, left.low + right.low if left.low >= 0 and right.low >= 0 else -_INFINITY)
    return Quantity(unit, family=left.family if left.family == right.family else "")
