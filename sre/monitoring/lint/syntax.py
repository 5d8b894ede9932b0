"""
PromQL text to a tree of ours.

promql-parser does the parsing; around it stand what it lacks: bounds on size (its parser recurses), raw strings in
backticks, ``holt_winters``, Grafana's variables, and places of names in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sre.monitoring.lint.conversion import MAX_DEPTH, TooDeepError, convert
from sre.monitoring.lint.tree import Node, Selector, children

MAX_CHARACTERS = 32_768
MAX_OPERATORS = 600
"""Parentheses, braces and operators in one expression; the parser recurses on them."""

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
VARIABLE = re.compile(r"\$\{[^}\n]*\}|\$\w+|\[\[\w+\]\]")


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
            root = convert(tree, newer, 0)
        except TooDeepError:
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


def _numbered(root: Node) -> tuple[tuple[Node, int], ...]:
    nodes: list[tuple[Node, int]] = []
    stack = [(root, -1)]
    while stack:
        node, parent = stack.pop()
        here = len(nodes)
        nodes.append((node, parent))
        stack.extend((child, here) for child in reversed(children(node)))
    return tuple(nodes)


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
