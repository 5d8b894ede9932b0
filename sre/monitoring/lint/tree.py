"""The tree of an expression: its nodes, and walks over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class String:
    value: str


@dataclass(frozen=True, slots=True)
class Matcher:
    """``operator`` is one of ``=``, ``!=``, ``=~``, ``!~``."""

    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Selector:
    """Series by name and matchers; ``range_seconds`` is None for an instant vector. Without a name: ""."""

    name: str
    matchers: tuple[Matcher, ...]
    range_seconds: float | None
    offset_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Subquery:
    expr: Node
    range_seconds: float
    offset_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """``labels`` of ``by``, or of ``without``; no modifier is ``by ()``."""

    operator: str
    expr: Node
    param: Node | None
    labels: tuple[str, ...]
    without: bool


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    function: str
    args: tuple[Node, ...]
    experimental: bool


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    """
    ``left operator right``.

    Attributes:
        matching: Labels of ``on`` (``on`` true) or ``ignoring``; None without either.
        group: "left" or "right" for group_left and group_right, else "".
        include: Labels that group_left/group_right brings over.
        as_bool: ``bool`` modifier.
    """

    operator: str
    left: Node
    right: Node
    on: bool
    matching: tuple[str, ...] | None
    group: str
    include: tuple[str, ...]
    as_bool: bool

    @property
    def compares(self) -> bool:
        return self.operator in COMPARISONS

    @property
    def is_set(self) -> bool:
        return self.operator in ("and", "or", "unless")


@dataclass(frozen=True, slots=True, eq=False)
class Negative:
    expr: Node


Node = Number | String | Selector | Subquery | Aggregate | Call | Binary | Negative
COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})


def children(node: Node) -> tuple[Node, ...]:
    """Operands, left to right."""
    match node:
        case Binary():
            return (node.left, node.right)
        case Call():
            return node.args
        case Aggregate():
            return (node.expr,) if node.param is None else (node.param, node.expr)
        case Subquery() | Negative():
            return (node.expr,)
    return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, parents first."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack.extend(reversed(children(one)))


def selectors_in(node: Node) -> list[Selector]:
    return [one for one in walk(node) if isinstance(one, Selector)]


def constant(node: Node) -> float | None:
    """Value of an expression without series; None if it has any, or does not compute."""
    match node:
        case Number():
            return node.value
        case Negative():
            value = constant(node.expr)
            return None if value is None else -value
        case Binary(operator=operator) if operator in "+-*/" and not node.compares:
            left, right = constant(node.left), constant(node.right)
            if left is None or right is None or (operator == "/" and right == 0):
                return None
            return {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}[operator]
        case Call(function="vector", args=(only,)):
            return constant(only)
    return None
