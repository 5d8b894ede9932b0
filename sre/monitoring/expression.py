"""A PromQL expression and what it means: unit, labels, what it reads; and the texts it is made of."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal

from sre.metrics.types import Unit

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
