"""Short ways to lint one rule."""

from __future__ import annotations

from sre.monitoring.lint import Finding, LintOptions, lint

ALERT = """\
groups:
  - name: example
    rules:
      - alert: ExampleAlert
        expr: |
{expr}
        for: {for_}
        labels:
          severity: ticket
        annotations:
          summary: {summary}
          description: "It is {{{{ $value | humanize }}}}."
          runbook_url: https://example.org/ExampleAlert.md
"""
RECORD = """\
groups:
  - name: example
    rules:
      - record: {name}
        expr: |
{expr}
"""


def _indented(expr: str) -> str:
    return "\n".join(" " * 10 + line for line in expr.splitlines())


def alert(
    expr: str, options: LintOptions | None = None, *, for_: str = "5m", summary: str = '"Something is wrong"'
) -> list[Finding]:
    """Findings of one alert."""
    return lint(ALERT.format(expr=_indented(expr), for_=for_, summary=summary), "rules.yml", options)


def record(expr: str, options: LintOptions | None = None, *, name: str = "job:example:sum") -> list[Finding]:
    """Findings of one recording rule, its name and level aside."""
    found = lint(RECORD.format(expr=_indented(expr), name=name), "rules.yml", options)
    return [one for one in found if one.check not in ("rule/record-level", "rule/record-name")]


def checks(findings: list[Finding]) -> list[str]:
    return [one.check for one in findings]
