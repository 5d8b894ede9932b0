"""sre runbook: what to do about an alert."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ConfigError, ExitCode
from sre.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sre.monitoring.model import Alert
    from sre.monitoring.runbooks import Runbook

LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@click.group()
def runbook() -> None:
    """Read what to do about an alert."""


@runbook.command("list")
@output_option
@pass_app
def list_runbooks(app: App, output: str) -> int:
    """List the alerts that have a runbook: how urgent, in which dimension, what they say."""
    from sre.monitoring.runbooks import load_runbooks

    alerts = _alerts()
    pages = load_runbooks()
    # In the order of the rules; what the rules do not have (a page of the user's own) comes last.
    names = [name for name in alerts if name in pages] + [name for name in pages if name not in alerts]
    rows = [{"alert": name, **_facts(alerts.get(name))} for name in names]
    width = max(len(name) for name in names)
    lines = [
        f"{row['alert']:<{width}}  {row['severity'] or '-':<6}  {row['dimension'] or '-':<8}  {row['summary'] or ''}"
        for row in rows
    ]
    app.emit(output, rows, "\n".join(line.rstrip() for line in lines))
    return ExitCode.OK


@runbook.command()
@click.argument("alert")
@click.option("--label", "-l", "labels", metavar="NAME=VALUE", multiple=True, help="Label of the alert, for commands.")
@click.option(
    "--output",
    "-o",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="Form of the answer; text is laid out on a terminal, and Markdown elsewhere.",
)
@pass_app
def show(app: App, alert: str, labels: tuple[str, ...], output: str) -> int:
    """
    Show the runbook of ALERT.

    Labels are put into its commands as single words, whatever they hold; one that cannot be made harmless is refused.
    """
    from sre.monitoring.runbooks import fill, find_runbook, load_runbooks, parse

    given = _labels(labels)
    page = find_runbook(load_runbooks(), alert)
    filled = parse(fill(page.text, {name: value for name, value in given.items() if name in page.labels}))
    _note_labels(app, page, given)
    if output == "json":
        app.emit(output, _document(filled, page, given), "")
    elif output == "text" and _terminal():
        _print(printable(filled.text))
    else:
        click.echo(printable(filled.text), nl=not filled.text.endswith("\n"))
    return ExitCode.OK


def _alerts() -> Mapping[str, Alert]:
    """
    Alerts by name, as they are without a configuration file.

    A runbook is read when things are broken: a wrong sre.yaml must not stand in the way.
    """
    from sre.monitoring.catalogue_rules import all_alerts
    from sre.settings.monitoring import MonitoringSettings

    return {alert.name: alert for alert in all_alerts(MonitoringSettings())}


def _facts(alert: Alert | None) -> dict[str, str | None]:
    if alert is None:
        return {"severity": None, "dimension": None, "component": None, "summary": None}
    return {
        "severity": alert.severity.value,
        "dimension": alert.dimension.value,
        "component": alert.component,
        "summary": plain_template(alert.summary),
    }


def plain_template(text: str) -> str:
    """An annotation as people write it: ``$node`` for ``{{ $labels.node }}``, ``$value`` for the value."""
    # What stands there if a label does, stands there: its name says as much.
    text = re.sub(r"\{\{ *(?:if \$labels\.\w+|end) *\}\}", "", text)
    text = re.sub(r"\{\{ *\$labels\.(\w+)[^}]*\}\}", r"$\1", text)
    return re.sub(r"\{\{ *\$value[^}]*\}\}", "$value", text)


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in given:
        name, found, value = text.partition("=")
        if not found or not LABEL_NAME.fullmatch(name):
            raise ConfigError([f"sre runbook: --label {text!r}: write it as NAME=VALUE, e.g. node=gpu-1"])
        if labels.setdefault(name, value) != value:
            raise ConfigError([f"sre runbook: --label {name}: given twice with different values; give it once"])
    return labels


def _note_labels(app: App, page: Runbook, given: Mapping[str, str]) -> None:
    """Say on stderr which labels are still to be filled in, and which were of no use."""
    missing = [name for name in page.labels if name not in given]
    if missing:
        options = " ".join(f"--label {name}=…" for name in missing)
        app.note(f"fill in the labels of the alert: {options}")
    unused = [name for name in given if name not in page.labels]
    if unused:
        app.note(f"no command here uses {', '.join(unused)}")


def _document(filled: Runbook, page: Runbook, given: Mapping[str, str]) -> dict[str, Any]:
    from textwrap import dedent

    facts = _facts(_alerts().get(page.alert))
    return {
        "alert": page.alert,
        **facts,
        "labels": {name: given.get(name) for name in page.labels},
        "sections": dict(filled.sections),
        "commands": [
            {"section": code.section, "language": code.language, "text": dedent(code.text).rstrip("\n")}
            for code in filled.code
            if code.language
        ],
        "markdown": filled.text,
    }


def _terminal() -> bool:
    import sys

    return sys.stdout.isatty()


def _print(text: str) -> None:
    """
    Lay the page out on the terminal.

    Commands are not wrapped, so that they can be copied whole.
    """
    from textwrap import dedent, indent

    from rich.console import Console
    from rich.markdown import Markdown
    from rich.text import Text

    from sre.monitoring.runbooks import Kind, pieces

    console = Console(highlight=False, markup=False, emoji=False)
    prose: list[str] = []

    def flush() -> None:
        if "".join(prose).strip():
            console.print(Markdown("".join(prose)))
        prose.clear()

    for piece in pieces(text):
        if piece.kind is Kind.BLOCK:
            flush()
            command = indent(dedent(piece.text).rstrip("\n"), "    ")
            console.print(Text(f"\n{command}\n", style="bold cyan"), soft_wrap=True)
        elif piece.kind is not Kind.FENCE:
            prose.append(piece.text)
    flush()
