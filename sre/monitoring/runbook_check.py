"""What is wrong with a runbook: headings, commands, labels, names of metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from sre.monitoring.runbooks import (
    HEADINGS,
    LANGUAGES,
    PLACEHOLDER,
    PROMQL,
    SHELL,
    YAML,
    Code,
    Kind,
    Runbook,
    parse,
    pieces,
    shell_tokens,
)

_METRIC = re.compile(
    r"(?<![\w:/.-])(?:vllm:[a-z0-9_]+|(?:sre|node|envoy)_[a-z0-9_]+|http_requests?_[a-z0-9_]+|DCGM_[A-Za-z0-9_]+"
    r"|[a-z_]+:[a-z0-9_]+:[a-z0-9_]+)(?![\w:/.-])"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a page, and in which line."""

    line: int
    text: str


Series = Callable[[str], Collection[str] | None]
"""Labels by name of a series; None: no such series."""


def check(text: str, alert: str, labels: Collection[str], series: Series) -> list[Problem]:
    """
    Return what is wrong with the page of ``alert``, in order of lines.

    Args:
        labels: Those the alert has: what its expression keeps and what its rule adds.
        series: Labels of a metric or recorded series by name; None where there is none of that name.
    """
    page = parse(text)
    found = [*_check_headings(page, alert), *_check_prose(text), *_check_names(text, series)]
    for code in page.code:
        if code.language == PROMQL:
            found += _check_promql(code, labels, series)
        elif code.language in (SHELL, ""):
            found += _check_shell(code, labels)
        elif code.language != YAML:
            found.append(Problem(code.line, f"code block in {code.language!r}; use one of {', '.join(LANGUAGES)}"))
    return sorted(set(found), key=lambda problem: (problem.line, problem.text))


def _check_headings(page: Runbook, alert: str) -> Iterator[Problem]:
    wanted = (alert, *HEADINGS)
    have = tuple(title for title, _ in page.headings)
    if have != wanted:
        yield Problem(1, f"headings are {', '.join(have) or 'missing'}; they must be {', '.join(wanted)}")
        return
    for title, line in page.headings[1:]:
        if not page.sections[title].strip():
            yield Problem(line, f"section {title} is empty")
    if not re.match(r"1\. ", page.sections["Diagnosis"].lstrip()):
        yield Problem(page.headings[3][1], "Diagnosis is not a numbered list")
    commands = [code for code in page.code if code.section == "Diagnosis" and code.language in (SHELL, PROMQL)]
    if not commands:
        yield Problem(page.headings[3][1], "Diagnosis has no command to run (a block in sh or promql)")
    if not any(code.text.startswith("sre ") for code in page.code if code.section == "Mitigation"):
        yield Problem(page.headings[4][1], "Mitigation names no sre command")


def _check_prose(text: str) -> Iterator[Problem]:
    for piece in pieces(text):
        if piece.kind is Kind.PROSE:
            for match in PLACEHOLDER.finditer(piece.text):
                line = piece.line + piece.text.count("\n", 0, match.start())
                yield Problem(line, f"{match[0]} stands outside of code and would not be filled in")


def _check_names(text: str, series: Series) -> Iterator[Problem]:
    for number, line in enumerate(text.split("\n"), 1):
        for match in _METRIC.finditer(line):
            if series(match[0]) is None and match[0] not in _NO_METRICS:
                yield Problem(number, f"no metric or record {match[0]}")


_NO_METRICS = frozenset({"node_exporter"})


def _check_shell(code: Code, labels: Collection[str]) -> Iterator[Problem]:
    for number, line in enumerate(code.text.split("\n"), code.line):
        state = ""
        for token, state in shell_tokens(line):
            match = PLACEHOLDER.fullmatch(token.strip('"'))
            if match is not None and state == "'" and match["name"] in labels:
                yield Problem(number, f"{token} in single quotes: no shell replaces it")
            elif match is not None and state != "'" and match["name"] not in labels:
                yield Problem(number, f"{match[0]} is no label of this alert ({', '.join(sorted(labels))})")
            elif match is None and token == "$" and state != "'":
                yield Problem(number, "command substitution or ${…}; write plain commands")
            elif token == "`" and state != "'":
                yield Problem(number, "backticks; write plain commands")
        if len([token for token, place in shell_tokens(line) if token in "\"'" and place == ""]) % 2:
            yield Problem(number, "quotes that do not close")
        if not code.language and PLACEHOLDER.search(line) and "{" in line:
            yield Problem(number, "a query with a label stands in a sentence; put it into a block in promql")


def _check_promql(code: Code, labels: Collection[str], series: Series) -> Iterator[Problem]:
    import promql_parser

    for number, line in enumerate(code.text.split("\n"), code.line):
        query = line.strip()
        if not query:
            continue
        try:
            parsed = promql_parser.parse(query)
        except ValueError as error:
            yield Problem(number, f"no PromQL: {' '.join(str(error).split())}")
            continue
        for match in PLACEHOLDER.finditer(query):
            if match["name"] not in labels:
                yield Problem(number, f"{match[0]} is no label of this alert ({', '.join(sorted(labels))})")
        if re.search(r'[=!]~\s*"[^"]*\$[A-Za-z_]', query):
            yield Problem(number, "a label within a regular expression; use = or !=")
        for name, matched in sorted(selectors(parsed)):
            has = series(name)
            if has is None:
                yield Problem(number, f"no metric or record {name}")
            elif matched not in ("", *has):
                yield Problem(number, f"{name} has no label {matched} ({', '.join(sorted(has)) or 'none'})")


def selectors(parsed: object) -> set[tuple[str, str]]:
    """Names of the series that a parsed expression reads, each with "" and with every label it matches."""
    found: set[tuple[str, str]] = set()
    stack = [parsed]
    while stack:
        node = stack.pop()
        if type(node).__name__ == "VectorSelector":
            name = str(getattr(node, "name", None) or "")
            matchers = getattr(getattr(node, "matchers", None), "matchers", ())
            found.update((name, label) for label in ("", *(matcher.name for matcher in matchers)))
            continue
        for part in ("expr", "lhs", "rhs", "vector_selector", "args", "param"):
            child = getattr(node, part, None)
            if isinstance(child, list | tuple):
                stack.extend(child)
            elif child is not None and not isinstance(child, str | int | float):
                stack.append(child)
    return found
