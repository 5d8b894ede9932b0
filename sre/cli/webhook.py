"""``sre webhook``: where Alertmanager posts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ConfigError, ExitCode


@click.group()
def webhook() -> None:
    """Take in Alertmanager's notifications; say what an alert would lead to."""


@webhook.command()
@click.option(
    "--late-secrets",
    is_flag=True,
    help="Start though secrets of channels are not there yet; they are looked for again at each try.",
)
@pass_app
def serve(app: App, late_secrets: bool) -> None:
    """
    Serve the webhook by itself, and deliver what it queues. With a guard, set webhook.enabled instead: the guard
    serves it.

    Exit codes: 0 stopped · 2 it could not listen, or a channel would tell nobody · 3 a guard has this state, or a
    route trips
    """
    import asyncio
    import os
    import ssl

    from sre.wiring.guard import configure_logging
    from sre.wiring.guard_webhook import serve_webhook

    settings, paths = app.settings(), app.paths()
    configure_logging(app.debug)

    def ready(port: int) -> None:
        app.note(f"listening on {settings.webhook.host} port {port}")

    try:
        asyncio.run(serve_webhook(settings, paths, os.environ, ready, late_secrets=late_secrets))
    except (OSError, ssl.SSLError) as error:
        where = f"{settings.webhook.host} port {settings.webhook.port}"
        raise ConfigError([f"webhook: {where}: {error.strerror or error}"]) from error


@webhook.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@output_option
@pass_app
def explain(app: App, file: Path, output: str) -> int:
    """
    Say what a notification would lead to; changes nothing.

    FILE holds a payload as Alertmanager posts it (- is standard input). Nothing is known of earlier alerts here: each
    is taken as new.

    Exit codes: 0 it would be taken in · 3 it would be refused, or alerts in it cannot be read
    """
    import sys

    from sre.notify.alerts import PayloadError, parse
    from sre.wiring.webhook_explain import explained

    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise ConfigError([f"{file}: {error.strerror}"]) from error
    try:
        payload = parse(raw)
    except PayloadError as error:
        answer = {"refused": error.refusal.value, "why": str(error)}
        app.emit(output, answer, f"refused ({error.refusal.value}): {error}")
        return ExitCode.NO
    found = explained(app.settings(), payload)
    app.emit(output, found, lambda: _text(found))
    return ExitCode.NO if found["unreadable"] else ExitCode.OK


def _text(found: dict[str, Any]) -> str:
    from sre.printable import rows

    lines = []
    for alert in found["alerts"]:
        lines.append(f"{alert['alertname']} {alert['status']} ({alert['severity']}): {alert['verdict']}")
        lines.append(f"  joined by: {alert['join_key']}")
        for tried in alert["routes"]:
            detail = f" ({tried['detail']})" if tried["detail"] else ""
            lines.append(f"  route {tried['route']}: {tried['why']}{detail}")
        for trip in alert["trips"]:
            said = f"refused: {trip['refused']}" if trip["refused"] else "would trip"
            lines.append(f"  trip {trip['scope']} {trip['target'] or '?'}: {said}")
    for bad in found["unreadable"]:
        lines.append(f"alerts[{bad['index']}] {bad['alertname'] or 'unnamed'}: cannot be read: {bad['why']}")
    for message in found["messages"]:
        lines.append(f"tells {', '.join(message['channels'])}: {message['event']} {message['summary']}")
    if found["truncated"]:
        lines.append(f"{found['truncated']} alerts were left out by Alertmanager (max_alerts)")
    return rows(lines) or "no alerts"
