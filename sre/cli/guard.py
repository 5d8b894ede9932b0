"""``sre guard``: the control loop itself."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.cli.durations import DURATION
from sre.errors import ExitCode


@click.group()
def guard() -> None:
    """Run, pause and inspect the control loop."""


@guard.command()
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append every snapshot to this file, for sre breaker replay.",
)
@pass_app
def run(app: App, record: Path | None) -> None:
    """Guard a stack that runs. sre up does this; by hand only beside sre up --no-guard."""
    import asyncio
    import os

    from sre.wiring.guard import configure_logging, run_guard

    settings, paths = app.settings(), app.paths()
    configure_logging(app.debug)
    asyncio.run(run_guard(settings, paths, os.environ, record))


@guard.command()
@output_option
@pass_app
def status(app: App, output: str) -> int:
    """
    Show what the guard sees and decides.

    Exit codes: 0 all closed and seen · 3 something is open, blind or paused, or the guard names a problem ·
    1 no guard answers
    """
    from sre.wiring.guard_client import ask

    data = ask(app.paths().guard_socket, "GET", "/status")
    app.emit(output, data, lambda: status_text(data))
    return ExitCode.OK if is_well(data) else ExitCode.NO


def is_well(data: dict[str, Any]) -> bool:
    """Whether the guard says that all is closed and seen, and that nothing keeps it from its work."""
    closed = all(e["state"] in ("closed", "disabled") for e in data["engines"].values())
    blind = any(e["blind"] for e in data["engines"].values())
    hindered = data["paused"] or data["problem"] or data.get("webhook_problem") or not data["gateway_reachable"]
    return bool(data["engines"]) and closed and not blind and not hindered


def status_text(data: dict[str, Any]) -> str:
    """The guard's status for a person."""
    age = data["tick_age_seconds"]
    lines = [f"mode {data['mode']}, last tick {'never' if age is None else f'{age:.1f} s ago'}"]
    if data["problem"]:
        lines.append(f"PROBLEM: {data['problem']}")
    if data.get("webhook_problem"):
        lines.append(f"PROBLEM: {data['webhook_problem']}; alerts of Alertmanager are not taken in")
    if data["paused"]:
        lines.append(f"PAUSED by {data['paused']['owner']}: {data['paused']['reason']}")
    for name in ("gateway", "supervisor"):
        if not data[f"{name}_reachable"]:
            lines.append(f"{name}: NOT SEEN")
    for name, pool in data["pools"].items():
        reason = f" ({pool['reason']})" if pool["reason"] else ""
        lines.append(f"pool {name}: {pool['state']}, refuses {pool['reject_percent']} %{reason}")
    for name, engine in data["engines"].items():
        flight = engine["in_flight"]["value"]
        seen = "not seen" if flight is None else f"{flight:.0f}"
        detail = f": {engine['detail']}" if engine["detail"] else ""
        if engine["blind"]:
            detail += f"; NOT SEEN for too long: {', '.join(engine['blind'])}"
        lines.append(f"engine {name}: {engine['state']}, process {engine['process']}, in flight {seen}{detail}")
    return "\n".join(lines)


@guard.command()
@click.option("--owner", default=getpass.getuser, show_default="you", help="Who pauses.")
@click.option("--reason", required=True, help="Why: others will read it.")
@click.option("--for", "duration", type=DURATION, help="Resume by itself after this time, e.g. 30m.")
@pass_app
def pause(app: App, owner: str, reason: str, duration: float | None) -> None:
    """Stop the guard's hands: it goes on watching and telling, and changes nothing."""
    from sre.wiring.guard_client import ask

    order = {"owner": owner, "reason": reason, "expires_seconds": duration}
    answer = ask(app.paths().guard_socket, "POST", "/pause", order)
    app.note("paused" if answer["changed"] else "was paused already; to change it, resume first")


@guard.command()
@pass_app
def resume(app: App) -> None:
    """Let the guard act again."""
    from sre.wiring.guard_client import ask

    answer = ask(app.paths().guard_socket, "POST", "/resume")
    app.note("resumed" if answer["changed"] else "was not paused")
