"""How findings are shown: like a compiler, as JSON, as GitHub workflow commands; and the list of checks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from sre.monitoring.lint.checks import CHECKS
from sre.monitoring.lint.findings import Check, Finding, Severity

_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def _one_line(text: str) -> str:
    """Control characters shown, not obeyed: a finding stays on its line, and colours nothing."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def as_text(findings: Iterable[Finding]) -> str:
    """``file:line:column: error: message [family/check]``, the remedy below it."""
    lines = []
    for one in findings:
        place = f"{_one_line(one.path)}:{one.line}:{one.column}"
        lines.append(f"{place}: {one.severity.value}: {_one_line(one.message)} [{one.check}]")
        lines.append(f"    {_one_line(one.remedy)}")
    return "\n".join(lines)


def summary(findings: Iterable[Finding], files: int) -> str:
    """``3 files: 1 error, 2 warnings``."""
    found = list(findings)
    parts = []
    for severity, word in ((Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "remark")):
        count = sum(1 for one in found if one.severity is severity)
        if count:
            parts.append(f"{count} {word}{'' if count == 1 else 's'}")
    said = ", ".join(parts) or ("nothing to say" if files else "nothing was checked")
    return f"{files} file{'' if files == 1 else 's'}: {said}"


def as_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """One object per finding."""
    return [
        {
            "path": one.path,
            "line": one.line,
            "column": one.column,
            "severity": one.severity.value,
            "check": one.check,
            "message": one.message,
            "remedy": one.remedy,
        }
        for one in findings
    ]


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def as_github(findings: Iterable[Finding]) -> str:
    """Workflow commands, which GitHub shows at the line of the change."""
    return "\n".join(
        f"::{_GITHUB[one.severity]} file={_escaped_property(one.path)},line={one.line},col={one.column},"
        f"title={_escaped_property(one.check)}::{_escaped(f'{one.message} {one.remedy}')}"
        for one in findings
    )


def check_table() -> str:
    """Every check on a line: id, severity, why."""
    width = max(len(check.id) for check in CHECKS.values())
    return "\n".join(f"{check.id:<{width}}  {check.severity.value:<7}  {check.why}" for check in CHECKS.values())


def explain(check: Check) -> str:
    """One check in full."""
    why, remedy = textwrap.fill(check.why, 100), textwrap.fill(check.remedy, 100, subsequent_indent=" " * 8)
    disable = f"# sre-lint: disable={check.id} why it is right here"
    return (
        f"{check.id} ({check.severity.value})\n\n{why}\n\nRemedy: {remedy}\nIn a rule file, above the rule: {disable}"
    )
