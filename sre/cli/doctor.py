"""sre doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sre.cli.app import App, output_option, pass_app

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sre.control.doctor_facts import Finding

MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM", "not_seen": "not seen"}


@click.command()
@output_option
@pass_app
def doctor(app: App, output: str) -> int:
    """
    Check this machine and the configuration; say what to change.

    Changes nothing, needs no running stack and no network.

    \b
    Exit codes: 0 no problem · 3 something will not work · 5 something essential could not be looked at
    """
    import asyncio
    import os

    from sre.control.doctor import examine, exit_code
    from sre.wiring.doctor import look

    findings = examine(asyncio.run(look(app.settings(), app.paths(), os.environ)))
    code = exit_code(findings)
    data = {
        "verdict": {0: "ok", 3: "problems"}.get(int(code), "not_seen"),
        "findings": [
            {
                "check": finding.check,
                "level": finding.level.value,
                "sentence": finding.sentence,
                "remedy": finding.remedy,
                "essential": finding.essential,
            }
            for finding in findings
        ],
    }
    app.emit(output, data, lambda: render(findings))
    return int(code)


def render(findings: Sequence[Finding]) -> str:
    """One line per finding, its remedy below it; a count at the end."""
    lines = []
    for finding in findings:
        lines.append(f"{MARKS[finding.level.value]:<9} {finding.check:<10} {finding.sentence}")
        if finding.remedy is not None:
            lines.append(f"{'':<20} -> {finding.remedy}")
    levels = [finding.level.value for finding in findings]
    counts = {name: levels.count(name) for name in ("problem", "warning", "not_seen")}
    lines.append("")
    lines.append(
        f"{counts['problem']} problem(s), {counts['warning']} warning(s), {counts['not_seen']} not seen,"
        f" {levels.count('ok')} fine"
    )
    return "\n".join(lines)
