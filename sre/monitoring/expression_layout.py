"""Long PromQL on several lines. Only white space is added, and only where it means nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

WIDTH = 100

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\s+|[A-Za-z_][A-Za-z0-9_:]*|[0-9][0-9A-Za-z.]*|[<>=!]=|=~|!~|.', re.DOTALL)
_LOOSEST_FIRST: tuple[tuple[str, ...], ...] = (
    ("or",), ("and", "unless"), ("==", "!=", "<=", ">=", "<", ">"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
_OPERATORS = frozenset(operator for operators in _LOOSEST_FIRST for operator in operators)
_OPEN = frozenset("([{")
_CLOSE = frozenset(")]}")


def laid_out(text: str, width: int = WIDTH) -> list[str]:
    """The expression in lines, two spaces per depth; an expression that fits stays on one line."""
    return _lines(_TOKEN.findall(text), 0, width)


def _lines(tokens: Sequence[str], indent: int, width: int, deeper: int = 0) -> list[str]:
    """``deeper``: how far operators stand in where the whole is itself an operand."""
    text = "".join(tokens).strip()
    pad = " " * indent
    if len(text) + indent <= width:
        return [pad + text]
    for operators in _LOOSEST_FIRST:
        parts = _split(tokens, operators)
        if len(parts) > 1:
            out = _lines(parts[0][1], indent, width, 2)
            for operator, operand in parts[1:]:
                lines = _lines(operand, indent + deeper, width, 2)
                lines[0] = f"{' ' * (indent + deeper)}{operator} {lines[0].lstrip()}"
                out += lines
            return out
    return _bracketed(tokens, indent, width) or [pad + text]


def _split(tokens: Sequence[str], operators: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """Operands outside of all brackets, each with the operator before it ("" for the first)."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    depth = 0
    before = ""
    for token in tokens:
        depth += (token in _OPEN) - (token in _CLOSE)
        sign = not before or before in _OPERATORS
        if depth == 0 and token in operators and not sign:
            parts.append((token, []))
        else:
            parts[-1][1].append(token)
        before = before if token.isspace() else token
    return parts


def _bracketed(tokens: Sequence[str], indent: int, width: int) -> list[str]:
    """``head (``, the content on lines of its own, ``)``; [] where the last bracket does not end the expression."""
    tokens = list(tokens)
    while tokens and tokens[-1].isspace():
        tokens.pop()
    if not tokens or tokens[-1] != ")":
        return []
    depth = 0
    start = len(tokens)
    while start > 0:
        start -= 1
        depth += (tokens[start] == ")") - (tokens[start] == "(")
        if depth == 0:
            break
    head = "".join(tokens[:start]).lstrip()
    lines: list[str] = []
    for _, argument in _split(tokens[start + 1 : -1], (",",)):
        inner = _lines(argument, indent + 2, width)
        joined = f"{lines[-1]}, {inner[0].lstrip()}" if lines else ""
        if lines and len(inner) == 1 and len(joined) <= width and not lines[-1].lstrip().startswith(")"):
            lines[-1] = joined
        else:
            if lines:
                lines[-1] += ","
            lines += inner
    pad = " " * indent
    return [f"{pad}{head}(", *lines, f"{pad})"]
