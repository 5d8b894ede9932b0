"""sre chaos: inject faults that are always reverted."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    import asyncio

    from sre.chaos.admission import Request
    from sre.chaos.plan import Plan
    from sre.chaos.report import Report, Stamp
    from sre.watchdog.recover import Recovered

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def _duration(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """``500ms``, ``30s``, ``2m`` → seconds."""
    from sre.chaos.durations import parse_duration

    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.group()
def chaos() -> None:
    """Inject faults that are always reverted."""


@chaos.command("list")
@output_option
@pass_app
def list_faults(app: App, output: str) -> None:
    """List the faults: what each does, how its effect is proven, what it is not."""
    from sre.chaos.catalogue import load_faults
    from sre.cli.chaos_text import faults_text

    faults = load_faults()
    app.emit(output, [f.model_dump(mode="json") for f in faults.values()], lambda: faults_text(faults.values()))


@chaos.command()
@click.argument("fault")
@click.option("--engine", help="Name of the engine to hit. Only a stack of one simulated engine has a default.")
@click.option(
    "--for",
    "hold_seconds",
    callback=_duration,
    metavar="DURATION",
    help="How long to hold it: 500ms, 30s, 2m. [default: per fault]",
)
@click.option("--value", type=float, help="Temperature in °C, ratio, or number of batches. [default: per fault]")
@click.option("--gpu", "gpus", type=int, multiple=True, help="GPU index (GPU faults). [default: those of the engine]")
@click.option("--dry-run", is_flag=True, help="Print the exact steps and their reverts; change nothing.")
@click.option("--i-own", metavar="ENGINE", help="Say the engine's name again: needed to break a real vLLM.")
@click.option("--yes", is_flag=True, help="Same as --i-own with the engine named by --engine.")
@click.option("--last-engine", is_flag=True, help="Hit even the last engine of its pool that serves.")
@click.option("--without-guard", is_flag=True, help="Inject although no guard is there to contain the fault.")
@click.option("--no-verify", is_flag=True, help="Do not wait for proof that the fault takes effect.")
@output_option
@pass_app
def inject(
    app: App,
    fault: str,
    engine: str | None,
    hold_seconds: float | None,
    value: float | None,
    gpus: tuple[int, ...],
    dry_run: bool,
    i_own: str | None,
    yes: bool,
    last_engine: bool,
    without_guard: bool,
    no_verify: bool,
    output: str,
) -> int:
    """
    Inject FAULT, hold it, revert it; Ctrl-C reverts at once.

    A watchdog process reverts it when this command is killed, stopped or hangs.

    \b
    Exit codes: 0 took effect and is reverted · 1 refused, nothing was changed · 2 wrong usage ·
    3 reverted, but the engine did not come back · 4 not proven reverted · 5 no effect was seen · 6 aborted and reverted
    """
    from sre.adapters.clock import SystemClock
    from sre.chaos.admission import Request
    from sre.chaos.catalogue import find_fault, load_faults
    from sre.cli.chaos_text import report_text, stamp_text
    from sre.control.chaos_run import rehearse, run_fault
    from sre.wiring.chaos import chaos_places, chaos_policy, chaos_world

    chosen = find_fault(load_faults(), fault)
    settings, paths = app.settings(), app.paths()
    name = engine or _only_engine(app)
    request = Request(
        fault=chosen,
        engine=name,
        hold_seconds=chosen.default_hold_seconds if hold_seconds is None else hold_seconds,
        value=value,
        gpus=gpus or None,
        i_own=i_own or (engine if yes else None),
        last_engine=last_engine,
        without_guard=without_guard,
        verify_effect=not no_verify,
    )
    world, places, policy = chaos_world(settings, paths, os.environ), chaos_places(paths), chaos_policy(settings)
    if dry_run:
        return _dry_run(app, output, request, rehearse(request, world, places, policy, SystemClock()))
    first: list[Stamp] = []

    def on_stamp(stamp: Stamp) -> None:
        first.append(stamp)
        _say(app, stamp_text(stamp, first[0]))

    report = drive(
        lambda abort, hurry: run_fault(
            request,
            world,
            places,
            clock=SystemClock(),
            policy=policy,
            on_stamp=on_stamp,
            abort=abort,
            hurry=hurry,
        ),
        lambda line: _say(app, line),
    )
    app.emit(output, report.document(), lambda: report_text(report))
    return report.exit_code


@chaos.command()
@output_option
@pass_app
def status(app: App, output: str) -> int:
    """Show the fault in force and past runs; exit 4 if something may be left changed."""
    from sre.cli.chaos_text import status_text
    from sre.control.chaos_status import survey

    found = survey(app.paths().chaos)
    app.emit(output, [s.document() for s in found], lambda: status_text(found))
    return ExitCode.LEFT_CHANGED if any(s.state.left for s in found) else ExitCode.OK


@chaos.command()
@click.option("--dry-run", is_flag=True, help="Show what would be ended.")
@output_option
@pass_app
def revert(app: App, dry_run: bool, output: str) -> int:
    """End the fault in force now, whoever injected it; exit 4 if that cannot be proven."""
    import asyncio

    from sre.adapters.clock import SystemClock
    from sre.control.chaos_status import end_all

    if dry_run:
        return _show_open(app, output)
    return _emit_recovered(app, output, asyncio.run(end_all(app.paths().chaos, SystemClock())))


@chaos.command()
@click.option("--discard", metavar="RUN", help="Set this run aside after a look: nothing of it will be reverted.")
@click.option("--dry-run", is_flag=True, help="Show what would be recovered.")
@output_option
@pass_app
def recover(app: App, discard: str | None, dry_run: bool, output: str) -> int:
    """Close what killed runs left open; exit 4 if that cannot be proven. Runs before each injection, too."""
    from sre.control.chaos_start import chaos_lock
    from sre.errors import StateError
    from sre.watchdog.journal import JournalUnwritable
    from sre.watchdog.recover import discard as set_aside
    from sre.watchdog.recover import holds_run
    from sre.watchdog.recover import recover as recover_runs

    folder = app.paths().chaos
    if discard is not None and not holds_run(folder, discard):
        raise ConfigError([f"sre chaos: --discard: no run {discard!r}; see sre chaos status"])
    if dry_run:
        return _show_open(app, output)
    if not folder.exists():
        return _emit_recovered(app, output, ())
    with chaos_lock(folder):
        if discard is not None:
            try:
                app.note(f"sre chaos: set aside as {set_aside(folder, discard)}")
            except FileNotFoundError as error:
                raise ConfigError([f"sre chaos: --discard: no run {discard!r}; see sre chaos status"]) from error
        try:
            return _emit_recovered(app, output, recover_runs(folder))
        except JournalUnwritable as error:
            raise StateError(str(error)) from error


def drive(
    make: Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, Report]], note: Callable[[str], None]
) -> Report:
    """
    Run one injection to its end.

    The first SIGINT, SIGTERM, SIGHUP or SIGQUIT means: revert, then end. A second one hurries what comes after the
    revert, and skips nothing of it.
    """
    import asyncio

    async def main() -> Report:
        abort, hurry = asyncio.Event(), asyncio.Event()

        def on_signal() -> None:
            if abort.is_set():
                hurry.set()
                note("still reverting; the revert is never skipped")
            else:
                abort.set()
                note("reverting")

        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, on_signal)
        return await make(abort, hurry)

    return asyncio.run(main())


def _only_engine(app: App) -> str:
    engines = app.settings().stack.engines
    if len(engines) == 1 and engines[0].kind == "sim":
        return engines[0].name
    raise ConfigError([f"sre chaos: --engine is missing; say which one: {', '.join(e.name for e in engines)}"])


def _dry_run(app: App, output: str, request: Request, rehearsal: Coroutine[Any, Any, Plan]) -> int:
    import asyncio

    plan = asyncio.run(rehearsal)
    document = {
        "run_id": plan.run_id,
        "fault": plan.fault,
        "engine": plan.engine,
        "hold_seconds": plan.hold_seconds,
        "ttl_seconds": plan.ttl_seconds,
        "steps": [step.record() for step in plan.steps],
        "fidelity": request.fault.fidelity.model_dump(mode="json"),
    }
    app.emit(output, document, lambda: "\n".join(plan.describe()))
    return ExitCode.OK


def _show_open(app: App, output: str) -> int:
    from sre.cli.chaos_text import status_text
    from sre.control.chaos_status import RunState, survey

    found = [s for s in survey(app.paths().chaos) if s.state is RunState.ACTIVE or s.state.left]
    app.emit(output, [s.document() for s in found], lambda: status_text(found))
    return ExitCode.OK


def _emit_recovered(app: App, output: str, done: Any) -> int:
    from sre.cli.chaos_text import recovered_document, recovered_text

    items: list[Recovered] = list(done)
    app.emit(output, [recovered_document(item) for item in items], lambda: recovered_text(items))
    return ExitCode.OK if all(item.clean for item in items) else ExitCode.LEFT_CHANGED


def _say(app: App, line: str) -> None:
    # The terminal may be gone (SIGHUP); that must not get in the way of the revert.
    with contextlib.suppress(OSError):
        app.note(line)
