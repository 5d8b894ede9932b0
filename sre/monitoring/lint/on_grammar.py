"""Checks of grammar: what this Prometheus can read, and what could be written more simply."""

from __future__ import annotations

import re

from sre.metrics.types import Version
from sre.monitoring.lint.subject import Role, Subject
from sre.monitoring.lint.syntax import VARIABLE
from sre.monitoring.lint.tree import Aggregate, Call, Matcher, Selector, Subquery, walk

_META = re.compile(r"[\\.+*?()\[\]{}|^$]")


def check(subject: Subject) -> None:
    """Grammar, experimental functions, regular expressions, ranges against retention."""
    _newer(subject)
    for node, _ in subject.parsed.nodes:
        if isinstance(node, Call) and node.experimental:
            subject.note("expression/experimental-function", f"{node.function}() is experimental", node.function)
        elif isinstance(node, Aggregate) and node.operator in ("limitk", "limit_ratio"):
            subject.note("expression/experimental-function", f"{node.operator}() is experimental", node.operator)
        elif isinstance(node, Selector):
            _matchers(subject, node)
    _retention(subject)


def _newer(subject: Subject) -> None:
    release = subject.report.options.prometheus_version
    for what, since in subject.parsed.newer:
        needle = what.split("(")[0]
        if since.startswith("removed in "):
            if release >= Version.parse(since.removeprefix("removed in ")):
                subject.note(
                    "expression/grammar", f"{what}() is {since}", needle,
                    "Write double_exponential_smoothing(), or deriv().",
                )  # fmt: skip
        elif since == "no release of Prometheus":
            subject.note("expression/grammar", f"{what} is known to {since}", remedy="Write two selectors and or.")
        elif release < Version.parse(since):
            subject.note(
                "expression/grammar", f"{what} needs Prometheus {since}, and {release} must read the file", needle
            )


def _matchers(subject: Subject, selector: Selector) -> None:
    seen: dict[str, Matcher] = {}
    for matcher in selector.matchers:
        if matcher.label == "__name__":
            subject.note("expression/name-regex", f"selects by {{__name__{matcher.operator}…}}", "__name__")
            continue
        if matcher.operator in ("=~", "!~"):
            _regex(subject, matcher)
        _contradiction(subject, matcher, seen)


def _contradiction(subject: Subject, matcher: Matcher, seen: dict[str, Matcher]) -> None:
    other = seen.get(matcher.label)
    if matcher.operator == "=":
        if other is not None and other.value != matcher.value:
            subject.note(
                "expression/impossible",
                f"{matcher.label} is to be {other.value!r} and {matcher.value!r} at once: nothing is selected",
                matcher.label,
            )
        seen[matcher.label] = matcher
    elif matcher.operator == "!=" and other is not None and other.value == matcher.value:
        subject.note(
            "expression/impossible", f"{matcher.label} is to be {matcher.value!r} and not: nothing is selected",
            matcher.label,
        )  # fmt: skip


def _regex(subject: Subject, matcher: Matcher) -> None:
    value = matcher.value
    if VARIABLE.search(value):
        return  # Grafana's variable: several values become a|b
    equal = "=" if matcher.operator == "=~" else "!="
    if value == ".*":
        effect = "matches everything" if matcher.operator == "=~" else "matches nothing"
        subject.note("expression/needless-regex", f'{matcher.label}{matcher.operator}".*" {effect}', matcher.label,
                     "Leave the matcher out." if matcher.operator == "=~" else "Remove the selector.")  # fmt: skip
    elif value.startswith("^") or (value.endswith("$") and not value.endswith("\\$")):
        subject.note(
            "expression/needless-regex", f"{matcher.label}{matcher.operator}{value!r} has an anchor, which is implied",
            matcher.label, "Leave ^ and $ out.",
        )  # fmt: skip
    elif not _META.search(value):
        subject.note(
            "expression/needless-regex", f"{matcher.label}{matcher.operator}{value!r} is a plain text", matcher.label,
            f'Write {matcher.label}{equal}"{value}".',
        )  # fmt: skip


def _retention(subject: Subject) -> None:
    retention = subject.report.options.retention_seconds
    if subject.role is Role.PANEL:
        return
    for node, parent in subject.parsed.nodes:
        if parent >= 0 and isinstance(subject.parsed.nodes[parent][0], Subquery):
            continue
        if isinstance(node, Subquery):
            inner = max(
                (one.offset_seconds + (one.range_seconds or 0) for one in walk(node.expr) if isinstance(one, Selector)),
                default=0.0,
            )
            reach = node.range_seconds + node.offset_seconds + inner
        elif isinstance(node, Selector):
            reach = (node.range_seconds or 0.0) + node.offset_seconds
        else:
            continue
        if reach > retention:
            subject.note(
                "expression/range-beyond-retention",
                f"reaches {reach / 86400:g} days back, and Prometheus keeps {retention / 86400:g}",
            )
