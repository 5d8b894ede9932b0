"""
PromQL text to a tree of ours.

promql-parser does the parsing; around it stand what it lacks: bounds on size (its parser recurses), raw strings in
backticks, ``holt_winters``, Grafana's variables, and places of names in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import promql_parser as pp

MAX_CHARACTERS = 32_768
MAX_OPERATORS = 600
"""Parentheses, braces and operators in one expression; the parser recurses on them."""
MAX_DEPTH = 120

_TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`[^`]*`)
      |(?P<comment>\#[^\n]*)
      |(?P<variable>\$\{[^}\n]*\}|\$\w+|\[\[\w+\]\])
      |(?P<number>\d[\w.]*(?:[eE][+-]\d+)?)
      |(?P<word>[A-Za-z_:][\w:]*)
      |(?P<operator>==|!=|=~|!~|>=|<=|[-+*/%^<>(){}\[\],@=])
      |(?P<blank>\s+)
      |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_WORD_OPERATORS = frozenset({"and", "or", "unless", "atan2"})
_LEGACY_NAME = re.compile(r"[A-Za-z_:][\w:]*", re.ASCII)
LEGACY_LABEL = re.compile(r"[A-Za-z_]\w*", re.ASCII)
VARIABLE = re.compile(r"\$\{[^}\n]*\}|\$\w+|\[\[\w+\]\]")


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


@dataclass(frozen=True, slots=True)
class Problem:
    """The text is no PromQL."""

    message: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """
    An expression.

    Attributes:
        nodes: Every node, parents before children, with the index of its parent (-1 at the root).
        newer: Grammar that Prometheus 2.42 lacks: what, and since which release.
        variables: Grafana's variables stood in it and were replaced.
    """

    text: str
    root: Node
    nodes: tuple[tuple[Node, int], ...]
    newer: tuple[tuple[str, str], ...]
    variables: tuple[str, ...]

    def parents(self, index: int) -> Iterator[tuple[Node, Node]]:
        """(node, parent) pairs from node ``index`` up to the root."""
        node, parent = self.nodes[index]
        while parent >= 0:
            above, next_parent = self.nodes[parent]
            yield node, above
            node, parent = above, next_parent

    def selectors(self) -> Iterator[Selector]:
        for node, _ in self.nodes:
            if isinstance(node, Selector):
                yield node


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


# ---- Reading --------------------------------------------------------------------------------------------------------


def parse(text: str, *, variables: bool = False) -> Parsed | Problem:
    """
    Read one expression.

    Args:
        variables: Grafana's ``$name`` and ``[[name]]`` are allowed and replaced by something that parses.
    """
    import promql_parser

    if len(text) > MAX_CHARACTERS:
        return Problem(f"has {len(text):,} characters, more than {MAX_CHARACTERS:,}; split it into records")
    tokens = [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(text)]
    operators = sum(
        1 for kind, token in tokens if (kind == "operator" and token != ",") or token.lower() in _WORD_OPERATORS
    )
    if operators > MAX_OPERATORS:
        return Problem(f"has more than {MAX_OPERATORS} operators and brackets; split it into records")
    found = [token for kind, token in tokens if kind == "variable"] if variables else []
    newer: list[tuple[str, str]] = []
    error = ""
    for stand_in in ("1", "stand_in") if found else ("",):
        newer = []
        try:
            tree = promql_parser.parse(_prepared(tokens, stand_in, newer))
        except ValueError as problem:
            error = error or _readable(str(problem))
            continue
        except RecursionError:
            return Problem(f"is nested deeper than {MAX_DEPTH} levels; split it into records")
        try:
            root = _convert(tree, newer, 0)
        except _TooDeep:
            return Problem(f"is nested deeper than {MAX_DEPTH} levels; split it into records")
        return Parsed(text, root, _numbered(root), tuple(dict.fromkeys(newer)), tuple(found))
    return Problem(error)


def _readable(problem: str) -> str:
    first = problem.strip().splitlines()[0] if problem.strip() else "cannot be read"
    return "is no PromQL" if first == "invalid promql query" else first


def _prepared(tokens: list[tuple[str, str]], stand_in: str, newer: list[tuple[str, str]]) -> str:
    """The text for promql-parser; what 2.42 cannot read is noted in ``newer``."""
    out: list[str] = []
    in_range = in_braces = False
    previous = ""
    for position, (kind, token) in enumerate(tokens):
        if kind == "string":
            following = next((text for what, text in tokens[position + 1 :] if what != "blank"), "")
            if in_braces and previous in ("{", ",") and following in ("=", "!=", "=~", "!~", ",", "}"):
                newer.append((f"the quoted name {token}", "3.0"))
            if token[0] == "`":
                token = '"' + token[1:-1].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        elif kind == "comment":
            token = " "
        elif kind == "variable" and stand_in:
            token = _stand_in(token, in_range, stand_in)
        elif kind == "number" and in_range and token.isdigit():
            newer.append((f"a range without unit, [{token}]", "3.4"))
        elif kind == "word" and token == "holt_winters":
            newer.append(("holt_winters", "removed in 3.0"))
            token = "double_exponential_smoothing"
        elif kind == "word" and token == "double_exponential_smoothing":
            newer.append(("double_exponential_smoothing()", "3.0"))
        elif kind == "operator":
            in_range = token == "[" or (in_range and token != "]")
            in_braces = token == "{" or (in_braces and token != "}")
        if kind not in ("blank", "comment"):
            previous = token
        out.append(token)
    return "".join(out)


def _stand_in(variable: str, in_range: bool, stand_in: str) -> str:
    name = variable.strip("${}[]").split(":")[0]
    if in_range or name in ("__rate_interval", "__interval", "__range"):
        return "1h" if name == "__range" else "5m"
    return "300" if name in ("__interval_ms", "__range_s", "__range_ms") else stand_in


class _TooDeep(Exception):
    pass


def _seconds(span: timedelta | None) -> float:
    return span.total_seconds() if span is not None else 0.0


def _convert(node: pp.Expr, newer: list[tuple[str, str]], depth: int) -> Node:
    import promql_parser as p

    if depth > MAX_DEPTH:
        raise _TooDeep
    deeper = depth + 1
    if isinstance(node, p.ParenExpr):
        return _convert(node.expr, newer, deeper)
    if isinstance(node, p.NumberLiteral):
        return Number(node.val)
    if isinstance(node, p.StringLiteral):
        return String(node.val)
    if isinstance(node, p.VectorSelector):
        return _selector(node, None, newer)
    if isinstance(node, p.MatrixSelector):
        return _selector(node.vector_selector, node.range.total_seconds(), newer)
    if isinstance(node, p.SubqueryExpr):
        return Subquery(_convert(node.expr, newer, deeper), _seconds(node.range), _seconds(node.offset))
    if isinstance(node, p.UnaryExpr):
        return Negative(_convert(node.expr, newer, deeper))
    if isinstance(node, p.AggregateExpr):
        operator = str(node.op)
        if operator in ("limitk", "limit_ratio"):
            newer.append((f"{operator}()", "2.54"))
        labels = tuple(node.modifier.labels) if node.modifier is not None else ()
        _note_labels(labels, newer)
        without = node.modifier is not None and node.modifier.type == p.AggModifierType.Without
        param = _convert(node.param, newer, deeper) if node.param is not None else None
        return Aggregate(operator, _convert(node.expr, newer, deeper), param, labels, without)
    if isinstance(node, p.Call):
        name = node.func.name
        if name in NEWER_FUNCTIONS:
            newer.append((f"{name}()", NEWER_FUNCTIONS[name]))
        args = tuple(_convert(arg, newer, deeper) for arg in node.args)
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
    left, right = _convert(node.lhs, newer, depth), _convert(node.rhs, newer, depth)
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


def _numbered(root: Node) -> tuple[tuple[Node, int], ...]:
    nodes: list[tuple[Node, int]] = []
    stack = [(root, -1)]
    while stack:
        node, parent = stack.pop()
        here = len(nodes)
        nodes.append((node, parent))
        stack.extend((child, here) for child in reversed(children(node)))
    return tuple(nodes)


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


# ---- Places ---------------------------------------------------------------------------------------------------------


def locate(raw: str, needle: str) -> int | None:
    """Index of a name, number or other piece of an expression in its raw text, whole words only."""
    if not needle:
        return None
    pattern = re.escape(needle)
    if needle[0].isalnum() or needle[0] in "_:":
        pattern = r"(?<![\w:.])" + pattern
    if needle[-1].isalnum() or needle[-1] in "_:":
        pattern += r"(?![\w:])"
    match = re.search(pattern, raw)
    return match.start() if match else None
