"""``sre up``, ``sre down``, ``sre status``."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ConfigError, ExitCode
from sre.printable import printable

if TYPE_CHECKING:
    from sre.control.supervision import Say
    from sre.settings.models import Root
    from sre.settings.paths import StatePaths
    from sre.wiring.invocation import Invocation, Ready

WATCH_SECONDS = 1.0


def _invocation(app: App, paths: StatePaths, *, with_guard: bool, late_secrets: bool) -> Invocation:
    from sre.settings.load import DEFAULT_PATH
    from sre.wiring.invocation import Invocation

    config = app.config if app.config is not None else DEFAULT_PATH if DEFAULT_PATH.exists() else None
    return Invocation(None if config is None else config.absolute(), paths.root, with_guard, late_secrets)


def _talker(log: Path | None, *, stamped: bool) -> Say:
    """Tell a person on stderr, and write it down. A closed terminal must not end the supervisor."""

    def say(name: str, text: str) -> None:
        line = f"{name:<12} {text}"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with contextlib.suppress(OSError):
            click.echo(printable(f"{stamp} {line}" if stamped else line), err=True)
        if log is not None:
            with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
                file.write(f"{stamp} {line}\n")

    return say


def _report_problems(app: App, problems: tuple[str, ...]) -> int:
    for problem in problems:
        app.note(f"sre up: {problem}")
    return ExitCode.COULD_NOT_RUN


@click.command()
@click.option("--detach", "-d", is_flag=True, help="Return as soon as it is ready; it runs on in the background.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check, and print what would be started; change nothing.",
)
@click.option("--no-guard", is_flag=True, help="Run without the guard: nothing watches, nothing is contained.")
@click.option(
    "--late-secrets",
    is_flag=True,
    help="Start though secrets of channels or webhook are not there yet; the guard looks for them again at each try.",
)
@click.option("--in-background", is_flag=True, hidden=True, help="This is the background process of --detach.")
@pass_app
def up(app: App, detach: bool, dry_run: bool, no_guard: bool, late_secrets: bool, in_background: bool) -> int:
    """
    Run the stack: engines, gateway, guard.

    Takes over what an earlier sre up left running. Ctrl-C drains and stops everything; a second Ctrl-C hurries.

    \b
    Exit codes: 0 stopped as told · 1 something stands in the way: all of it is named, nothing was started ·
    3 it runs already · 4 a process could not be ended · 6 stopped before everything was ready
    """
    root, paths = app.settings(), app.paths()
    call = _invocation(app, paths, with_guard=not no_guard, late_secrets=late_secrets)
    if detach and not dry_run:
        return _up_detached(app, root, paths, call)
    from sre.wiring import up as wiring

    try:
        if dry_run:
            return _print_plan(app, root, paths, call)
        return _up_here(root, paths, call, in_background=in_background)
    except wiring.CannotStart as error:
        return _report_problems(app, error.problems)


def _up_here(root: Root, paths: StatePaths, call: Invocation, *, in_background: bool) -> int:
    import asyncio
    import signal

    from sre.wiring.invocation import SUPERVISOR_LOG
    from sre.wiring.up import up as run

    if in_background:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log = None if in_background else paths.logs / SUPERVISOR_LOG
    say = _talker(log, stamped=in_background)
    was_ready = asyncio.run(run(root, paths, call, say, _print_ready))
    say("supervisor", "stopped" if was_ready else "stopped before everything was ready")
    return ExitCode.OK if was_ready else ExitCode.ABORTED


def _print_ready(ready: Ready) -> None:
    with contextlib.suppress(OSError):
        metrics = f"  metrics {ready.metrics_url}" if ready.metrics_url else ""
        click.echo(f"ready: gateway {ready.gateway_url}{metrics}  state {ready.state_dir}")


def _print_plan(app: App, root: Root, paths: StatePaths, call: Invocation) -> int:
    from sre.wiring.up import CannotStart, dry_run_problems, plan

    problems = dry_run_problems(root, paths, call)
    if problems:
        raise CannotStart(problems)
    for row in plan(root, paths, call):
        argv = row.pop("argv", None)
        words = [str(row.pop("action")).ljust(6), str(row.pop("name")).ljust(12)]
        words += [f"{key} {value}" for key, value in row.items()]
        words += [" ".join(argv)] if isinstance(argv, list) else []
        click.echo(printable(" ".join(words)))
    app.note("sre up: nothing was changed (--dry-run)")
    return ExitCode.OK


def _up_detached(app: App, root: Root, paths: StatePaths, call: Invocation) -> int:
    import asyncio

    from sre.wiring.detach import start_detached

    say = _talker(None, stamped=False)
    outcome = asyncio.run(start_detached(root, paths, call, say, debug=app.debug))
    if outcome.ready is not None:
        _print_ready(outcome.ready)
        return ExitCode.OK
    for line in outcome.problem.splitlines():
        app.note(f"sre up: {line}")
    return outcome.exit_code


@click.command()
@click.option("--now", is_flag=True, help="Do not let running requests finish.")
@click.option(
    "--timeout", type=click.FloatRange(0, 86_400), metavar="SECONDS", help="Longest wait for running requests."
)
@pass_app
def down(app: App, now: bool, timeout: float | None) -> int:
    """
    Drain and stop the stack.

    Also stops what a killed sre up left running. New requests get a 503 while the running ones finish.
    """
    import asyncio

    from sre.wiring.up import down as run

    if timeout is not None and timeout != timeout:  # NaN is in every range
        raise click.BadParameter("nan is not a number of seconds", param_hint="--timeout")
    root, paths = _settings_or_state_dir(app)
    ran = asyncio.run(run(root, paths, _talker(None, stamped=False), now=now, drain_timeout_seconds=timeout))
    app.note("stopped; nothing is left running" if ran else f"nothing is running (state folder {paths.root})")
    return ExitCode.OK


def _settings_or_state_dir(app: App) -> tuple[Root | None, StatePaths]:
    """A broken sre.yaml must not keep anybody from stopping or looking, if the state folder is named."""
    from sre.settings.paths import state_paths
    from sre.settings.stack import StackSettings

    try:
        return app.settings(), app.paths()
    except ConfigError as error:
        if app.state_dir_option is None:
            raise
        app.note(f"sre: going on without the configuration: {error.problems[0]}")
        return None, state_paths(StackSettings(), app.state_dir_option, os.environ)


@click.command()
@click.option("--watch", "-w", is_flag=True, help="Go on showing it, once a second, until Ctrl-C.")
@output_option
@pass_app
def status(app: App, watch: bool, output: str) -> int:
    """
    Show processes, breaker states and traffic.

    \b
    Exit codes: 0 all ready and closed · 3 something is down or open ·
    5 not all is seen: supervisor or guard does not answer, or the guard names what keeps it from its work
    """
    import asyncio

    from sre.cli.stack_view import console, render
    from sre.wiring.status import stack_status

    _, paths = _settings_or_state_dir(app)
    screen = console()
    if watch and output == "text" and screen.is_terminal:
        return _watch(paths)
    while True:
        seen = asyncio.run(stack_status(paths))
        if output == "json":
            click.echo(json.dumps(seen.to_json(), sort_keys=True, indent=None if watch else 2))
        else:
            screen.print(*render(seen), sep="\n")
        if not watch:
            return seen.exit_code
        time.sleep(WATCH_SECONDS)


def _watch(paths: StatePaths) -> int:
    import asyncio

    from rich.console import Group
    from rich.live import Live

    from sre.cli.stack_view import render
    from sre.wiring.status import stack_status

    seen = asyncio.run(stack_status(paths))
    try:
        with Live(Group(*render(seen)), auto_refresh=False, transient=False) as live:
            while True:
                live.update(Group(*render(seen)), refresh=True)
                time.sleep(WATCH_SECONDS)
                seen = asyncio.run(stack_status(paths))
    except KeyboardInterrupt:
        return seen.exit_code
