"""What a condition compares: the parts of an alert that must have series for it ever to fire."""

from __future__ import annotations

from collections.abc import Iterator

import promql_parser as pp

_COMPARISONS = frozenset({">", ">=", "<", "<=", "==", "!="})
_SETS = frozenset({"and", "or", "unless"})
_ABSENCE = frozenset({"absent", "absent_over_time"})


def operands(expression: str) -> list[str]:
    """
    The vectors that the conditions of an alert compare, each once, in the order in which they stand.

    ``a > 1 and b < 2 unless c`` has a, b and c. What is asked for its absence is not among them. A comparison inside an
    operand (``x / (y > 0)``) belongs to it.
    """
    return list(dict.fromkeys(node.prettify() for node in _conditions(pp.parse(expression))))


def names(expression: str) -> frozenset[str]:
    """Names of all series that an expression reads."""
    return frozenset(_names(pp.parse(expression)))


def _conditions(node: pp.Expr) -> Iterator[pp.Expr]:
    match node:
        case pp.ParenExpr():
            yield from _conditions(node.expr)
        case pp.BinaryExpr() if str(node.op) in _SETS:
            yield from _conditions(node.lhs)
            yield from _conditions(node.rhs)
        case pp.BinaryExpr() if str(node.op) in _COMPARISONS:
            yield from (side for side in (node.lhs, node.rhs) if not isinstance(side, pp.NumberLiteral))
        case pp.AggregateExpr() if _has_condition(node.expr):
            yield from _conditions(node.expr)
        case pp.Call() if node.func.name in _ABSENCE:
            return
        case pp.Call() if any(_has_condition(arg) for arg in node.args):
            for arg in node.args:
                yield from _conditions(arg) if _has_condition(arg) else ()
        case _:
            yield node


def _has_condition(node: pp.Expr) -> bool:
    """Whether it is one, under labels and aggregations."""
    match node:
        case pp.ParenExpr() | pp.AggregateExpr():
            return _has_condition(node.expr)
        case pp.BinaryExpr():
            return str(node.op) in _COMPARISONS | _SETS
        case pp.Call():
            return node.func.name in _ABSENCE or any(_has_condition(arg) for arg in node.args)
    return False


def _names(node: pp.Expr) -> Iterator[str]:
    match node:
        case pp.VectorSelector():
            yield node.name
        case pp.MatrixSelector():
            yield node.vector_selector.name
        case pp.ParenExpr() | pp.UnaryExpr() | pp.AggregateExpr() | pp.SubqueryExpr():
            yield from _names(node.expr)
        case pp.BinaryExpr():
            yield from _names(node.lhs)
            yield from _names(node.rhs)
        case pp.Call():
            for arg in node.args:
                yield from _names(arg)
