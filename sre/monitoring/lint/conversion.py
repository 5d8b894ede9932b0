"""promql-parser's tree to ours, and what in it Prometheus 2.42 lacks."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from sre.monitoring.lint.tree import (
    Aggregate,
    Binary,
    Call,
    Matcher,
    Negative,
    Node,
    Number,
    Selector,
    String,
    Subquery,
)

if TYPE_CHECKING:
    import promql_parser as pp

MAX_DEPTH = 120
_LEGACY_NAME = re.compile(r"[A-Za-z_:][\w:]*", re.ASCII)
LEGACY_LABEL = re.compile(r"[A-Za-z_]\w*", re.ASCII)

NEWER_FUNCTIONS = {
    "histogram_stddev": "2.47", "histogram_stdvar": "2.47", "mad_over_time": "2.50", "sort_by_label": "2.50",
    "sort_by_label_desc": "2.50", "histogram_avg": "2.51", "info": "3.0", "ts_of_min_over_time": "3.5",
    "ts_of_max_over_time": "3.5", "ts_of_last_over_time": "3.5", "first_over_time": "3.7",
    "ts_of_first_over_time": "3.7", "histogram_quantiles": "3.9", "start": "3.10", "end": "3.10", "step": "3.6",
    "range": "3.10",
}  # fmt: skip
"""Functions that 2.42 refuses (tried with its promtool), and about since when they are known."""
EXPERIMENTAL_FUNCTIONS = frozenset(
    {
        "double_exponential_smoothing", "info", "mad_over_time", "sort_by_label", "sort_by_label_desc",
        "limitk", "limit_ratio", "ts_of_min_over_time", "ts_of_max_over_time", "ts_of_last_over_time",
        "ts_of_first_over_time", "first_over_time", "histogram_quantiles",
    }
)  # fmt: skip
"""Need ``--enable-feature=promql-experimental-functions``; may change or go in any release."""


class TooDeepError(Exception):
    """The expression is nested deeper than MAX_DEPTH."""


def _seconds(span: timedelta | None) -> float:
    return span.total_seconds() if span is not None else 0.0


def convert(node: pp.Expr, newer: list[tuple[str, str]], depth: int) -> Node:
    import promql_parser as p

    if depth > MAX_DEPTH:
        raise TooDeepError
    deeper = depth + 1
    if isinstance(node, p.ParenExpr):
        return convert(node.expr, newer, deeper)
    if isinstance(node, p.NumberLiteral):
        return Number(node.val)
    if isinstance(node, p.StringLiteral):
        return String(node.val)
    if isinstance(node, p.VectorSelector):
        return _selector(node, None, newer)
    if isinstance(node, p.MatrixSelector):
        return _selector(node.vector_selector, node.range.total_seconds(), newer)
    if isinstance(node, p.SubqueryExpr):
        return Subquery(convert(node.expr, newer, deeper), _seconds(node.range), _seconds(node.offset))
    if isinstance(node, p.UnaryExpr):
        return Negative(convert(node.expr, newer, deeper))
    if isinstance(node, p.AggregateExpr):
        operator = str(node.op)
        if operator in ("limitk", "limit_ratio"):
            newer.append((f"{operator}()", "2.54"))
        labels = tuple(node.modifier.labels) if node.modifier is not None else ()
        _note_labels(labels, newer)
        without = node.modifier is not None and node.modifier.type == p.AggModifierType.Without
        param = convert(node.param, newer, deeper) if node.param is not None else None
        return Aggregate(operator, convert(node.expr, newer, deeper), param, labels, without)
    if isinstance(node, p.Call):
        name = node.func.name
        if name in NEWER_FUNCTIONS:
            newer.append((f"{name}()", NEWER_FUNCTIONS[name]))
        args = tuple(convert(arg, newer, deeper) for arg in node.args)
        return Call(name, args, name in EXPERIMENTAL_FUNCTIONS or node.func.experimental)
    if isinstance(node, p.BinaryExpr):
        return _binary(node, newer, deeper)
    raise TypeError(f"promql-parser gave a {type(node).__name__}")


def _binary(node: pp.BinaryExpr, newer: list[tuple[str, str]], depth: int) -> Binary:
    import promql_parser as p

    on, group, as_bool = False, "", False
    matching: tuple[str, ...] | None = None
    include: tuple[str, ...] = ()
    modifier = node.modifier
    if modifier is not None:
        as_bool = modifier.return_bool
        if modifier.matching is not None:
            matching = tuple(modifier.matching.labels)
            on = modifier.matching.type == p.LabelModifierType.Include
            _note_labels(matching, newer)
        if modifier.card == p.VectorMatchCardinality.ManyToOne:
            group = "left"
        elif modifier.card == p.VectorMatchCardinality.OneToMany:
            group = "right"
        include = tuple(modifier.group_labels or ())
        fill = modifier.fill_values
        if fill is not None and (fill.lhs is not None or fill.rhs is not None):
            newer.append(("the modifier fill", "3.10"))
    left, right = convert(node.lhs, newer, depth), convert(node.rhs, newer, depth)
    return Binary(str(node.op), left, right, on, matching, group, include, as_bool)


def _selector(node: pp.VectorSelector, range_seconds: float | None, newer: list[tuple[str, str]]) -> Selector:
    import promql_parser as p

    signs = ((p.MatchOp.Equal, "="), (p.MatchOp.NotEqual, "!="), (p.MatchOp.Re, "=~"), (p.MatchOp.NotRe, "!~"))
    if node.matchers.or_matchers:
        newer.append(("'or' between matchers", "no release of Prometheus"))
    name = node.name or ""
    matchers = []
    for one in node.matchers.matchers:
        operator = next(sign for kind, sign in signs if kind == one.op)
        if one.name == "__name__" and operator == "=":
            name = name or one.value
        else:
            matchers.append(Matcher(one.name, operator, one.value))
    if name and not _LEGACY_NAME.fullmatch(name):
        newer.append((f"the UTF-8 name {name!r}", "3.0"))
    _note_labels(tuple(matcher.label for matcher in matchers), newer)
    return Selector(name, tuple(matchers), range_seconds, _seconds(node.offset))


def _note_labels(labels: tuple[str, ...], newer: list[tuple[str, str]]) -> None:
    for label in labels:
        if not LEGACY_LABEL.fullmatch(label):
            newer.append((f"the UTF-8 label {label!r}", "3.0"))
