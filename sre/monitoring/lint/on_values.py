"""Checks of values: units, thresholds, conditions that cannot hold, NaN."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from operator import eq, ge, gt, le, lt, ne

from sre.metrics.types import Kind, Metric, Unit
from sre.monitoring.lint.known import SampleType
from sre.monitoring.lint.labels import is_scalar
from sre.monitoring.lint.on_metrics import RATES
from sre.monitoring.lint.quantities import Quantity, family
from sre.monitoring.lint.subject import Role, Subject, comparison, number
from sre.monitoring.lint.syntax import VARIABLE
from sre.monitoring.lint.tree import Aggregate, Binary, Call, Matcher, Node, Selector, constant, selectors_in, walk

_UNSUMMABLE = frozenset({Unit.RATIO, Unit.PERCENT, Unit.CELSIUS})
_SCALES: Mapping[Unit, str] = {
    Unit.BYTES: "data", Unit.KIBIBYTES: "data", Unit.MEBIBYTES: "data",
    Unit.SECONDS: "time", Unit.MILLISECONDS: "time", Unit.MICROSECONDS: "time", Unit.NANOSECONDS: "time",
    Unit.BYTES_PER_SECOND: "throughput", Unit.MEGABYTES_PER_SECOND: "throughput",
    Unit.HERTZ: "frequency", Unit.MEGAHERTZ: "frequency", Unit.JOULES: "energy", Unit.MILLIJOULES: "energy",
    Unit.RATIO: "share", Unit.PERCENT: "share",
}  # fmt: skip
"""Units that measure one thing on different scales: a quotient or a comparison is off by the factor between them."""
_MIXABLE = frozenset({Unit.ONE, Unit.STATE})
_QUANTILE_NAME = re.compile(r":p\d{2,3}(_|$)")
_MAY_BE_ZERO = ("container_spec_memory_limit_bytes", "container_spec_cpu_quota")
_TRAFFIC_UNITS = frozenset({Unit.REQUESTS, Unit.TOKENS})


def check(subject: Subject) -> None:
    """Units, thresholds, NaN, bucket edges, aggregations of ratios."""
    for index, (node, _) in enumerate(subject.parsed.nodes):
        match node:
            case Binary() if node.compares:
                _comparison(subject, node)
                _scales(subject, node)
            case Binary(operator="/"):
                _division(subject, index, node)
                _scales(subject, node)
            case Binary(operator="and"):
                _contradiction(subject, node)
            case Binary(operator="+" | "-" | "or"):
                _mix(subject, node)
            case Aggregate():
                _aggregation(subject, node)
            case Selector():
                for matcher in node.matchers:
                    if matcher.label == "le":
                        _le(subject, node, matcher)
            case Call(function="histogram_quantile", args=(share, _)):
                value = constant(share)
                if value is not None and not 0 <= value <= 1:
                    subject.note(
                        "expression/impossible", f"quantile {number(value)} lies outside 0..1", "histogram_quantile",
                        "The 99th percentile is 0.99.",
                    )  # fmt: skip


# ---- Comparisons ----------------------------------------------------------------------------------------------------


def _comparison(subject: Subject, node: Binary) -> None:
    if node.operator == "!=":
        for side in (node.left, node.right):
            if not is_scalar(side) and _may_be_nan(subject, side):
                subject.note(
                    "expression/nan-not-equal", "holds != against a quotient, which is NaN without traffic", "!="
                )
                break
    found = comparison(node)
    if found is None:
        return
    vector, operator, threshold = found
    quantity = subject.tools.quantities.of(vector)
    text = f"{operator} {number(threshold)}"
    needle = number(threshold)
    if quantity.quantile_of is not None and operator not in ("==", "!="):
        _edge(subject, quantity.quantile_of, operator, threshold, needle)
    if _unit(subject, quantity, operator, threshold, needle):
        return
    if _never(quantity, operator, threshold):
        if _burn_product(node):
            return  # burn-factor says it better
        low, high = number(quantity.low), number(quantity.high)
        of = f"a {quantity.unit.value} " if quantity.unit not in (None, Unit.ONE) and quantity.unit is not None else ""
        subject.note("expression/impossible", f"{text} never holds: {of}values lie in {low}..{high}", needle)
    elif _always(quantity, operator, threshold):
        bounds = f"{number(quantity.low)}..{number(quantity.high)}"
        subject.note("expression/impossible", f"{text} always holds: values lie in {bounds}", needle)


def _never(quantity: Quantity, operator: str, value: float) -> bool:
    low, high = quantity.low, quantity.high
    return {
        ">": high <= value, ">=": high < value, "<": low >= value, "<=": low > value,
        "==": not low <= value <= high, "!=": low == high == value,
    }[operator]  # fmt: skip


def _always(quantity: Quantity, operator: str, value: float) -> bool:
    """``> 0`` and ``>= 0`` are left out: they guard a denominator, or drop NaN."""
    low, high = quantity.low, quantity.high
    if low == high or value == 0:
        return False  # a constant in a condition is meant: absent(x) == 1
    return {
        ">": low > value, ">=": low >= value, "<": high < value, "<=": high <= value,
        "==": False, "!=": not low <= value <= high,
    }[operator]  # fmt: skip


def _unit(subject: Subject, quantity: Quantity, operator: str, value: float, needle: str) -> bool:
    """A threshold that looks as if it had another unit."""
    unit = quantity.unit
    hint = ""
    if unit is Unit.RATIO and quantity.high <= 1 and 1 < value <= 100:
        hint = f"{number(value)} against a ratio of 0..1; write {number(value / 100)} for {number(value)} %"
    elif unit is Unit.PERCENT and quantity.high <= 100 and 0 < value < 1 and operator in (">", ">="):
        hint = f"{number(value)} against a percentage of 0..100; write {number(value * 100)}"
    elif unit is Unit.MEBIBYTES and value > 2_000_000:
        hint = f"{number(value)} MiB is more than any card has; the metric counts MiB, not bytes"
    elif unit is Unit.BYTES and quantity.family.startswith(("DCGM_", "sre_gpu_")) and 0 < value < 1_000_000:
        hint = f"{number(value)} bytes is next to nothing; the metric counts bytes, not MiB"
    elif unit is Unit.SECONDS and quantity.quantile_of is not None:
        edges = subject.tools.names.edges(quantity.quantile_of)
        if edges and value > edges[-1] and any(math.isclose(value / 1000, edge) for edge in edges):
            hint = f"{number(value)} seconds; for {number(value)} ms write {number(value / 1000)}"
    elif unit is Unit.CELSIUS and value > 150:
        hint = f"{number(value)} °C is hotter than any card survives"
    if hint:
        subject.note("expression/unit", hint, needle)
    return bool(hint)


def _contradiction(subject: Subject, node: Binary) -> None:
    """``x == 0 and x == 1``: no value of the same series is both."""
    left, right = comparison(node.left), comparison(node.right)
    if left is None or right is None or node.matching is not None or not _same_series(left[0], right[0]):
        return
    first, second = sorted((left[2], right[2]))
    # Between and beyond the two numbers nothing changes: one value of each piece stands for all.
    pieces = (first - 1, first, (first + second) / 2, second, second + 1)
    if not any(all(_HOLDS[operator](value, threshold) for _, operator, threshold in (left, right)) for value in pieces):
        both = f"{left[1]} {number(left[2])} and {right[1]} {number(right[2])}"
        subject.note("expression/impossible", f"{both} never hold together of one series", "and")


def _same_series(one: Node, other: Node) -> bool:
    return (
        isinstance(one, Selector)
        and isinstance(other, Selector)
        and (one.name, set(one.matchers), one.offset_seconds) == (other.name, set(other.matchers), other.offset_seconds)
    )


_HOLDS = {"==": eq, "!=": ne, ">": gt, ">=": ge, "<": lt, "<=": le}


# ---- Bucket edges ---------------------------------------------------------------------------------------------------


def _edge(subject: Subject, metric: Metric, operator: str, threshold: float, needle: str) -> None:
    if operator == ">=" and threshold == 0:
        return  # drops NaN
    edges = subject.tools.names.edges(metric)
    if len(edges) < 3 or any(math.isclose(threshold, edge) for edge in edges[1:-1]):
        return
    near = min(edges[1:-1], key=lambda edge: (abs(edge - threshold), edge))
    place = "the first or last edge" if any(math.isclose(threshold, edge) for edge in edges) else "no bucket edge"
    subject.note(
        "expression/bucket-edge", f"{number(threshold)} is {place} of {metric.name}", needle,
        f"The nearest edge that can decide is {number(near)}.",
    )  # fmt: skip


def _le(subject: Subject, selector: Selector, matcher: Matcher) -> None:
    value = matcher.value
    if VARIABLE.search(value):
        return
    if matcher.operator in ("=", "!="):
        if value.isdigit():
            subject.note(
                "expression/integer-le", f'le{matcher.operator}"{value}" is written "{value}.0" by Prometheus 3', "le",
                f'Write le=~"{value}(\\\\.0)?".',
            )  # fmt: skip
        texts = [value]
    elif matcher.operator == "=~":
        texts = [part.removesuffix("(\\.0)?").removesuffix("(\\.0|)") for part in value.split("|")]
    else:
        return
    metric = subject.tools.names.metric(selector.name)
    if metric is None or metric.kind is not Kind.HISTOGRAM or not subject.tools.names.owned(selector.name):
        return
    edges = subject.tools.names.edges(metric)
    for text in texts:
        try:
            edge = float(text.replace("\\.", "."))
        except ValueError:
            continue
        if not edges or math.isinf(edge):
            continue
        if edge not in edges:
            near = min(edges, key=lambda known: (abs(known - edge), known))
            subject.note(
                "expression/bucket-edge", f"{metric.name} has no bucket le={text!r}", "le",
                f"The nearest edge is {number(near)}.",
            )  # fmt: skip
        elif matcher.operator == "=" and text not in (repr(edge), f"{edge:g}", f"{edge:.0f}"):
            subject.note(
                "expression/bucket-edge", f"the bucket {number(edge)} is not written le={text!r}", "le",
                f'Write le="{edge!r}".',
            )  # fmt: skip


# ---- Arithmetic -----------------------------------------------------------------------------------------------------


def _mix(subject: Subject, node: Binary) -> None:
    if is_scalar(node.left) or is_scalar(node.right):
        return
    left, right = subject.tools.quantities.of(node.left), subject.tools.quantities.of(node.right)
    if left.unit is None or right.unit is None or left.unit is right.unit or {left.unit, right.unit} & _MIXABLE:
        return
    if node.operator == "or" and (_is_condition(node.left) or _is_condition(node.right)):
        return  # two conditions joined: each was held against its own threshold
    subject.note(
        "expression/unit-mix", f"{left.unit.value} {node.operator} {right.unit.value} in one result", node.operator
    )


def _scales(subject: Subject, node: Binary) -> None:
    """``bytes / MiB``: a quotient or comparison of one thing on two scales."""
    if is_scalar(node.left) or is_scalar(node.right):
        return
    left, right = subject.tools.quantities.of(node.left).unit, subject.tools.quantities.of(node.right).unit
    if left is right or left is None or right is None or _SCALES.get(left) is None:
        return
    if _SCALES[left] == _SCALES.get(right):
        subject.note("expression/unit-mix", f"{left.value} {node.operator} {right.value}", node.operator)


def _is_condition(node: Node) -> bool:
    return any(isinstance(one, Binary) and one.compares for one in walk(node)) or (
        isinstance(node, Call) and node.function.startswith("absent")
    )


def _aggregation(subject: Subject, node: Aggregate) -> None:
    if node.operator not in ("sum", "avg"):
        return
    quantity = subject.tools.quantities.of(node.expr)
    if quantity.quantile_of is not None or _named_quantile(subject, node.expr):
        subject.note("expression/quantile-aggregated", f"{node.operator} of quantiles", node.operator)
    elif node.operator == "sum" and quantity.unit in _UNSUMMABLE and not _is_condition(node.expr):
        subject.note("expression/ratio-summed", f"sum of a {quantity.unit.value}", "sum")


def _named_quantile(subject: Subject, node: Node) -> bool:
    """A record that no linted file defines, called a quantile: ``model:vllm_e2e_seconds:p99_rate5m``."""
    return (
        isinstance(node, Selector)
        and node.name not in subject.tools.names.records
        and _QUANTILE_NAME.search(node.name) is not None
    )


def _division(subject: Subject, index: int, node: Binary) -> None:
    if subject.role is Role.PANEL or is_scalar(node.right) or not _may_be_zero(subject, node.right):
        return
    if _guarded_above(subject, index, node) or _only_compared(subject, index, node):
        return
    subject.note("expression/unguarded-division", "divides by what is 0 without traffic", "/")


def _only_compared(subject: Subject, index: int, node: Binary) -> bool:
    """
    Whether the quotient does nothing but be compared, and can only be 0/0: ``bad / all > 0.05``.

    NaN is neither above nor below anything. Of different counters, one may stand still alone, and the quotient is
    infinite.
    """
    parts, wholes = ({family(one.name) for one in selectors_in(side)} for side in (node.left, node.right))
    if subject.role is not Role.ALERT or not parts <= wholes:
        return False
    for below, above in subject.parsed.parents(index):
        if not isinstance(above, Binary):
            return False
        if above.compares:
            return not above.as_bool and above.operator not in ("==", "!=")
        other = above.right if above.left is below else above.left
        if constant(other) is None:
            return False
    return False


def _guarded_above(subject: Subject, index: int, node: Binary) -> bool:
    """Whether an ``and`` above asks for traffic: ``a / b > 0.1 and b > 0``."""
    wanted = {selector.name for selector in selectors_in(node.right)}
    for below, above in subject.parsed.parents(index):
        if isinstance(above, Binary) and above.operator == "and":
            other = above.right if above.left is below else above.left
            for one in walk(other):
                found = comparison(one)
                if (
                    found is not None
                    and found[1] in (">", ">=", "!=")
                    and wanted & {selector.name for selector in selectors_in(found[0])}
                    and not any(isinstance(part, Binary) and part.operator == "/" for part in walk(found[0]))
                ):
                    return True
    return False


def _may_be_nan(subject: Subject, node: Node) -> bool:
    for one in walk(node):
        if (
            isinstance(one, Binary)
            and one.operator == "/"
            and not is_scalar(one.right)
            and _may_be_zero(subject, one.right)
        ):
            return True
        if isinstance(one, Call) and one.function == "histogram_quantile":
            return True
    return False


def _may_be_zero(subject: Subject, node: Node, depth: int = 0) -> bool:
    """Whether a denominator is 0 without traffic and nothing keeps that from happening."""
    names = subject.tools.names
    match node:
        case Binary() if node.compares and not node.as_bool:
            return False
        case Binary(operator="and" | "unless"):
            return _may_be_zero(subject, node.left, depth)
        case Binary(operator="or"):
            fallback = constant(node.right)
            return _may_be_zero(subject, node.left, depth) or fallback == 0
        case Binary(operator="+"):
            numbers = [constant(side) for side in (node.left, node.right)]
            if any(value is not None and value > 0 for value in numbers):
                return False
            return _may_be_zero(subject, node.left, depth) and _may_be_zero(subject, node.right, depth)
        case Binary(operator="*" | "/"):
            return any(not is_scalar(side) and _may_be_zero(subject, side, depth) for side in (node.left, node.right))
        case Binary():
            return any(_may_be_zero(subject, side, depth) for side in (node.left, node.right) if not is_scalar(side))
        case Call(function="clamp_min", args=(_, floor)):
            return (constant(floor) or 0) <= 0
        case Call(function=function) if function in RATES:
            return True
        case Call():
            return any(_may_be_zero(subject, arg, depth) for arg in node.args)
        case Aggregate(operator="count" | "group"):
            return False
        case Aggregate():
            return _may_be_zero(subject, node.expr, depth)
        case Selector():
            if node.name in names.records and depth < 5:
                return _may_be_zero(subject, names.records[node.name].root, depth + 1)
            metric = names.metric(node.name)
            if metric is not None and metric.unit in _TRAFFIC_UNITS and names.type_of(node.name) is SampleType.GAUGE:
                return True
            return node.name in _MAY_BE_ZERO or (
                node.name.count(":") == 2 and node.name.split(":")[2].startswith(("rate", "increase", "irate"))
            )
    return False


# ---- For burn rates -------------------------------------------------------------------------------------------------


def _burn_product(node: Binary) -> bool:
    return burn_threshold(node) is not None


def burn_threshold(node: Node) -> tuple[Node, float | None] | None:
    """
    ``(what is compared, threshold)`` of a burn-rate comparison; None for anything else.

    The threshold is ``factor * budget``: a product of numbers, or a number times a series of the budget (then None).
    """
    if not isinstance(node, Binary) or node.operator not in (">", ">=") or node.as_bool:
        return None
    right = node.right
    if not isinstance(right, Binary) or right.operator != "*":
        return None
    sides = (constant(right.left), constant(right.right))
    factors = [value for value in sides if value is not None]
    if len(factors) == 2:
        return (node.left, factors[0] * factors[1]) if min(factors) < 1 <= max(factors) else None
    series = right.left if sides[0] is None else right.right
    names = " ".join(selector.name for selector in selectors_in(series))
    if factors and factors[0] > 0 and ("budget" in names or "objective" in names):
        return node.left, None
    return None
