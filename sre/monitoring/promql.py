"""
PromQL from typed parts: no expression is written as free text.

An ``Expr`` knows its unit, the labels its series can carry and the names it reads. The functions refuse what Prometheus
accepts and nobody wants: the rate of a gauge, a sum of ratios, a division of unequal label sets, a bucket that is no
edge. Grammar: Prometheus 2.42.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal

from sre.metrics.types import Unit
from sre.monitoring.expression import Expr, ExpressionError, chosen, number, quoted, seconds
from sre.monitoring.levels import INSTANCE, NODE
from sre.monitoring.selection import (
    LE,
    OVER_TIME,
    OVER_TIME_OF_VALUES,
    RANGE_SCRAPES,
    VLLM_PREFIX,
    Selection,
    among,
    le_matcher,
)

# What the other modules need of all three, in one place.
__all__ = [
    "LE", "RANGE_SCRAPES", "VLLM_PREFIX", "Expr", "ExpressionError", "Selection", "absent_up", "among", "at_least",
    "avg_by", "both", "chosen", "compare", "count_by", "counted_by_value", "either", "either_on", "equal_to",
    "equal_to_each", "evaluated_at", "holds", "labelled", "largest_by", "le_matcher", "less_than", "max_by", "min_by",
    "minus", "number", "on_each", "one_minus", "or_zero", "over_time", "plus", "present_by", "quantile", "quoted",
    "ratio", "relabelled", "scaled", "seconds", "sum_by", "unless", "with_node",
]  # fmt: skip


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


def counted_by_value(expr: Expr, label: str, *by: str) -> Expr:
    """``count_values``: how many series have each value, which becomes ``label``: for whole numbers that are names."""
    counted = _aggregate("count", expr, by)
    text = f"count_values by ({', '.join(by)}) ({quoted(label)}, {expr.text})"
    return replace(counted, text=text, labels=counted.labels | {label}, condition=False)


def present_by(expr: Expr, *by: str) -> Expr:
    """1 for each of these label sets that has a series, whatever its value."""
    return replace(_aggregate("group", expr, by), unit=Unit.STATE)


def evaluated_at(present: Expr) -> Expr:
    """Time of the evaluation for each series of ``present``, seconds since 1970: recorded, when it was there last."""
    if present.unit is not Unit.STATE:
        raise ExpressionError(f"{present.text} is a {present.unit.value}; take present_by of it")
    return replace(present, text=f"timestamp({present.text})", unit=Unit.TIMESTAMP_SECONDS, atomic=True)


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
    condition = first.condition and second.condition
    return Expr(text, first.unit, first.labels, _uses(first, second), atomic=False, condition=condition)


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


def equal_to_each(each: Expr, of_several: Expr, *on: str) -> Expr:
    """Of ``each`` the series that equal the one of ``of_several`` with the same ``on``, which is all its labels."""
    if each.unit is not of_several.unit or of_several.labels != frozenset(on) or not frozenset(on) <= each.labels:
        raise ExpressionError(f"{each.text} cannot be held against {of_several.text} by {', '.join(on)}")
    text = f"{each.operand} == on ({', '.join(on)}) group_left () {of_several.operand}"
    return Expr(text, each.unit, each.labels, _uses(each, of_several), atomic=False, condition=True)


def over_time(function: str, recorded: Expr, window: str, *, offset: str = "") -> Expr:
    """``changes``, ``max_over_time`` … of a recorded series (a record called without further operators)."""
    if function not in OVER_TIME:
        raise ExpressionError(f"{function} is not among {', '.join(sorted(OVER_TIME))}")
    if not re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+(\{.*\})?", recorded.text):
        raise ExpressionError(f"{recorded.text} is no recorded series; a range of an expression needs a record")
    seconds(window)
    unit = recorded.unit if function in OVER_TIME_OF_VALUES else Unit.ONE
    shift = f" offset {offset}" if offset and seconds(offset) else ""
    return replace(recorded, text=f"{function}({recorded.text}[{window}]{shift})", unit=unit)


def both(first: Expr, second: Expr, *on: str) -> Expr:
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
