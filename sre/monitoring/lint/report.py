"""Collects findings: gives them a place, drops what is disabled by an option or by a comment."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import yaml

from sre.monitoring.lint.checks import CHECKS
from sre.monitoring.lint.documents import Mark, Source
from sre.monitoring.lint.findings import Finding, LintOptions
from sre.monitoring.lint.syntax import locate

MAX_HINTS = 200
"""Searches for a near name in one file: each costs milliseconds, and the two-hundredth helps nobody."""
MAX_HINT_CHARACTERS = 120
MAX_FINDINGS = 10_000
"""Of one file; the last one says that there are more."""
_COMMENT = re.compile(r"#[ \t]*sre-lint:[ \t]*(?P<rest>[^\n]*)")
_DISABLE = re.compile(r"disable=(?P<ids>[\w/,-]*)[ \t]*(?P<reason>.*)")


@dataclass(frozen=True, slots=True)
class Comment:
    """``# sre-lint: disable=a,b reason``; ``line`` and ``column`` count from 0 in its source."""

    line: int
    column: int
    ids: frozenset[str]
    problem: str = ""


def comments(text: str) -> list[Comment]:
    """Every comment to the lint, in order; a wrong one has ``problem`` set and disables nothing."""
    found: list[Comment] = []
    line, counted = 0, 0
    for match in _COMMENT.finditer(text):
        line += text.count("\n", counted, match.start())
        counted = match.start()
        column = match.start() - (text.rfind("\n", 0, match.start()) + 1)
        found.append(_comment(match["rest"].strip(), line, column, hint=len(found) < MAX_HINTS))
    return found


def _comment(rest: str, line: int, column: int, *, hint: bool) -> Comment:
    match = _DISABLE.fullmatch(rest)
    if match is None:
        return Comment(line, column, frozenset(), f"{rest[:60]!r} is no order to the lint")
    ids = frozenset(one for one in match["ids"].split(",") if one)
    unknown = sorted(one for one in ids if one not in CHECKS)
    if not ids:
        return Comment(line, column, frozenset(), "names no check")
    if unknown:
        near = difflib.get_close_matches(unknown[0][:MAX_HINT_CHARACTERS], CHECKS, n=1) if hint else []
        mean = f"; did you mean {near[0]}?" if near else ""
        return Comment(line, column, frozenset(), f"there is no check {unknown[0][:80]}{mean}")
    if len(match["reason"].strip()) < 3:
        return Comment(line, column, frozenset(), "gives no reason")
    return Comment(line, column, ids)


class Report:
    """Findings of one file."""

    def __init__(self, path: str, options: LintOptions) -> None:
        self.path = path
        self.options = options
        self.findings: list[Finding] = []
        self.source = Source("")
        self._hints = MAX_HINTS
        self.silenced: frozenset[str] = frozenset()
        """Checks that a comment disables where the lint is now."""

    def wants(self, check: str) -> bool:
        return check not in self.silenced and self.options.wants(check)

    def near(self, name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
        """``; did you mean x?`` for a mistyped name; "" when none comes near."""
        if self._hints <= 0 or len(name) > MAX_HINT_CHARACTERS:
            return ""
        self._hints -= 1
        close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
        return f"; did you mean {close[0]}?" if close else ""

    def add(
        self, check: str, where: yaml.Node | Mark | None, message: str, *, remedy: str = "", needle: str = ""
    ) -> None:
        """
        Note a finding.

        Args:
            where: The node it is about; None: the begin of the document.
            needle: A piece of the node's text that the place is narrowed down to.
        """
        if not self.wants(check) or len(self.findings) >= MAX_FINDINGS:
            return
        line, column = self._place(where, needle)
        known = CHECKS[check]
        if len(self.findings) == MAX_FINDINGS - 1:
            message += f" (and more: only the first {MAX_FINDINGS:,} findings are listed)"
        self.findings.append(Finding(self.path, line, column, check, known.severity, message, remedy or known.remedy))

    def _place(self, where: yaml.Node | Mark | None, needle: str) -> tuple[int, int]:
        if where is None:
            return self.source.place(0, 0)
        mark = where if isinstance(where, Mark) else where.start_mark
        line, column = mark.line, mark.column
        if needle and isinstance(where, yaml.ScalarNode) and self.source.exact:
            raw = self.source.text[mark.index : where.end_mark.index]
            offset = locate(raw, needle)
            if offset is not None:
                before = raw[:offset]
                newlines = before.count("\n")
                line += newlines
                column = offset - before.rfind("\n") - 1 if newlines else column + offset
        return self.source.place(line, column)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a document that comments can be about: a group or a rule. ``node`` is its mapping."""

    node: yaml.Node
    is_rule: bool


def silenced_by(found: Iterable[Comment], spans: Sequence[Span]) -> tuple[dict[int, frozenset[str]], list[Comment]]:
    """
    Which checks are disabled where: by ``id`` of the spans' nodes; and the comments that stand above nothing.

    A comment is about the rule or group below it, or about the rule it stands in: as a line indented like the rule's
    keys, or at the end of one of its lines.
    """
    ordered = sorted(spans, key=lambda span: (span.node.start_mark.line, span.is_rule))
    starts = [span.node.start_mark.line for span in ordered]
    result: dict[int, frozenset[str]] = {}
    idle = []
    position = 0
    for comment in found:
        if not comment.ids:
            continue
        while position < len(ordered) and starts[position] <= comment.line:
            position += 1
        target: Span | None = ordered[position] if position < len(ordered) else None
        inside = ordered[position - 1] if position else None
        if inside is not None and inside.is_rule and comment.column >= inside.node.start_mark.column:
            target = inside
        if target is None:
            idle.append(comment)
            continue
        key = id(target.node)
        result[key] = result.get(key, frozenset()) | comment.ids
    return result, idle
