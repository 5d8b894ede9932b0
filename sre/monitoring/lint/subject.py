"""One expression where it stands, with all that the checks may ask about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import yaml

from sre.monitoring.lint.known import Names
from sre.monitoring.lint.labels import LabelInference
from sre.monitoring.lint.quantities import QuantityInference
from sre.monitoring.lint.report import Report
from sre.monitoring.lint.syntax import Parsed, Problem, parse
from sre.monitoring.lint.tree import Binary, Node, constant


class Role(enum.Enum):
    """What the expression is used for."""

    ALERT = "alert"
    RECORD = "record"
    PANEL = "panel"


@dataclass(slots=True)
class Tools:
    """What all expressions of a run share; parses are remembered by text."""

    names: Names
    labels: LabelInference
    quantities: QuantityInference
    _parsed: dict[tuple[str, bool], Parsed | Problem] = field(default_factory=dict)

    def parse(self, text: str, *, variables: bool = False) -> Parsed | Problem:
        key = (text, variables)
        if key not in self._parsed:
            self._parsed[key] = parse(text, variables=variables)
        return self._parsed[key]


@dataclass(slots=True)
class Subject:
    """
    An expression in its place.

    Attributes:
        node: The scalar it is written in.
        what: How messages call its owner: ``alert VllmDown``.
        for_seconds: Of an alert; None where not stated.
        absence_is_watched: Some linted rule asks for ``absent(up)``.
    """

    parsed: Parsed
    node: yaml.Node
    what: str
    role: Role
    report: Report
    tools: Tools
    for_seconds: float | None = None
    keep_firing_seconds: float | None = None
    absence_is_watched: bool = True
    _noted: set[tuple[str, str]] = field(default_factory=set)

    def note(self, check: str, message: str, needle: str = "", remedy: str = "") -> None:
        """Report at the expression, or at the piece ``needle`` of it; the same thing once."""
        if (check, message) in self._noted:
            return
        self._noted.add((check, message))
        self.report.add(check, self.node, f"{self.what}: {message}", remedy=remedy, needle=needle)


def comparison(node: Node) -> tuple[Node, str, float] | None:
    """``vector operator number`` of a comparison, whichever side the number stands on; None for anything else."""
    if not isinstance(node, Binary) or not node.compares or node.as_bool:
        return None
    right = constant(node.right)
    if right is not None and constant(node.left) is None:
        return node.left, node.operator, right
    left = constant(node.left)
    if left is not None and right is None:
        return node.right, _MIRRORED[node.operator], left
    return None


_MIRRORED = {">": "<", "<": ">", ">=": "<=", "<=": ">=", "==": "==", "!=": "!="}


def brief(text: str, length: int = 60) -> str:
    """A piece of an expression for a message, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def number(value: float) -> str:
    """A number as a person writes it."""
    return f"{value:g}" if abs(value) < 1e15 else f"{value:.6g}"
