"""sre gate: does this build serve slower than the last one? Run before a deploy."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.cli.groups import PartlyElsewhere
from sre.errors import SreError

if TYPE_CHECKING:
    from sre.control.gate_end import Ended
    from sre.wiring.gate import Asked

# name -> (module, attribute): imported when called.
_ELSEWHERE = {
    "list": ("sre.cli.gate_results", "list_runs"),
    "report": ("sre.cli.gate_results", "report"),
    "compare": ("sre.cli.gate_results", "compare"),
    "import": ("sre.cli.gate_import", "import_records"),
    "baseline": ("sre.cli.gate_baseline", "baseline"),
    "schema": ("sre.cli.gate_results", "schema"),
    "snippet": ("sre.cli.gate_results", "snippet"),
}


@click.group(cls=PartlyElsewhere, elsewhere=_ELSEWHERE)
def gate() -> None:
    """Put load on a server before a deploy, and say whether it is good enough."""


@gate.command()
@click.option(
    "--url",
    metavar="URL",
    help="Server to load, any OpenAI-compatible one. [default: gate.target.url, else our gateway]",
)
@click.option("--model", metavar="NAME", help="Served name. [default: gate.target.model, else the first it lists]")
@click.option("--api", type=click.Choice(["completions", "chat"]), help="Endpoint. [default: gate.target.api]")
@click.option(
    "--stages", metavar="QPS,QPS,…", help="Rates of the staircase, rising: 10,50,100. [default: gate.load.stages_qps]"
)
@click.option("--scale", type=float, metavar="FACTOR", help="Factor on every rate. [default: gate.load.qps_scale]")
@click.option("--seconds", type=float, metavar="S", help="Length of a stage. [default: gate.load.stage_seconds]")
@click.option(
    "--runs",
    type=int,
    metavar="N",
    help="Passes over the staircase; five compare with a baseline. [default: gate.baseline.runs]",
)
@click.option("--seed", type=int, metavar="N", help="Of schedule and prompts. [default: gate.load.seed]")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    help="Gaps between requests. [default: gate.load.arrivals]",
)
@click.option(
    "--trace",
    metavar="FILE",
    help="Replay these arrivals (JSONL) instead of the staircase. [default: gate.load.trace_file]",
)
@click.option(
    "--knee/--no-knee",
    default=None,
    help="Search for the rate at which the server saturates. [default: gate.knee.enabled]",
)
@click.option(
    "--long-tail/--no-long-tail",
    default=None,
    help="Shorts alone, then beside long prompts. [default: gate.long_tail.enabled]",
)
@click.option(
    "--long-tokens",
    type=int,
    metavar="N",
    help="Length of the long prompts. [default: gate.long_tail.long_prompt_tokens]",
)
@click.option(
    "--against", metavar="URL", help="Compare with this server, both loaded in turn (A B B A …); no baseline is needed."
)
@click.option(
    "--baseline", "baseline_name", metavar="NAME", help="Baseline to compare with. [default: gate.baseline.name]"
)
@click.option(
    "--require-baseline",
    is_flag=True,
    help="Exit 2 where there is no baseline, instead of judging by the objectives alone.",
)
@click.option(
    "--inconclusive",
    type=click.Choice(["fail", "pass"]),
    help="pass: exit 0 instead of 5. [default: gate.inconclusive]",
)
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder in which the run gets its folder. [default: gate in the state folder]",
)
@click.option(
    "--junit", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write JUnit XML there, too."
)
@click.option(
    "--summary",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="GITHUB_STEP_SUMMARY",
    help="Append the Markdown summary to FILE. [env GITHUB_STEP_SUMMARY]",
)
@click.option(
    "--github-annotations",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Write ::error lines on stderr; auto: inside GitHub Actions.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be sent and how long it takes; send nothing.")
@output_option
@pass_app
def run(
    app: App,
    /,
    against: str | None,
    baseline_name: str | None,
    require_baseline: bool,
    output_dir: Path | None,
    junit: Path | None,
    summary: Path | None,
    github_annotations: str,
    dry_run: bool,
    output: str,
    **options: Any,
) -> int:
    """
    Load a server, find where it saturates, and judge it: PASS, FAIL or INCONCLUSIVE.

    Ctrl-C ends the run: what was measured is kept, marked, and reported. A second one ends it at once.

    \b
    Exit codes: 0 pass · 1 could not run, or not to the end (unreachable, full disk) · 2 wrong usage, or the baseline is
    of another environment · 3 an objective is missed, or slower than the baseline · 5 could not be told · 6 stopped
    """
    from sre.cli.gate_view import display, dry_run_document, dry_run_text
    from sre.wiring.gate_options import asked_for

    try:
        _require_writable(junit, summary)
        asked = asked_for(
            app.settings(),
            app.paths(),
            config_of(app),
            options | {"baseline": baseline_name, "require_baseline": require_baseline or None},
            against=against,
            output_dir=output_dir,
        )
        if baseline_name is not None and against is None and asked.baseline is None:
            app.note(
                f"gate: --baseline {baseline_name}: there is none of this name, the objectives alone judge;"
                " see sre gate baseline list"
            )
        if dry_run:
            app.emit(output, dry_run_document(asked), lambda: dry_run_text(asked))
            return 0
        with display(app) as shown:
            ended = drive(asked, shown)
    except SreError as error:
        if output == "json":  # whoever reads it reads it whatever the exit code
            try:
                app.emit(output, {"verdict": None, "exit_code": int(error.exit_code), "error": str(error)}, "")
            except OSError:  # stderr gets the error all the same
                _forget_stdout()
        raise
    return tell(app, ended, asked, output, junit, summary, github_annotations)


def config_of(app: App) -> Path | None:
    """The configuration file in force; None: there is none."""
    from sre.settings.load import DEFAULT_PATH

    return app.config or (DEFAULT_PATH if DEFAULT_PATH.exists() else None)


def drive(asked: Asked, shown: Any) -> Ended:
    """Run the gate. The first signal ends it and keeps what there is; the second ends it at once."""
    import asyncio
    import signal

    from sre.wiring.gate import perform

    async def main() -> Ended:
        stop = asyncio.Event()
        task = asyncio.current_task()
        assert task is not None

        def on_signal() -> None:
            if stop.is_set():
                task.cancel()
                return
            stop.set()
            shown.says("stopping: what was measured is kept; once more ends at once")

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, on_signal)
        return await perform(asked, os.environ, shown, stop)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        from sre.errors import Aborted

        raise Aborted("gate: ended at once; what was on disk by then is marked as killed: sre gate list") from None


def tell(
    app: App, ended: Ended, asked: Asked, output: str, junit: Path | None, summary: Path | None, annotate: str
) -> int:
    """Print the answer, write what CI wants, return the exit code."""
    from sre.cli.gate_answer import answer_text
    from sre.cli.gate_view import result_document
    from sre.errors import ExitCode, StateError

    code = ended.exit_code(inconclusive_passes=asked.settings.inconclusive == "pass")
    try:  # before the answer: an output that is gone must not cost CI its files
        _for_ci(ended, junit, summary)
    except StateError as error:
        app.note(f"sre gate: {error}")
        code = code if code is ExitCode.ABORTED else ExitCode.COULD_NOT_RUN
    try:
        app.emit(output, result_document(ended, code), lambda: answer_text(ended.result, ended.folder.path, code))
    except OSError as error:
        from sre.gate.report.tables import headline

        _forget_stdout()
        why = "nobody reads stdout" if isinstance(error, BrokenPipeError) else f"stdout: {error.strerror or error}"
        told = (
            f"sre gate: the answer could not be printed: {why}; it is in {ended.folder.path}: {headline(ended.result)}"
        )
        # A refusal stands without its text. An answer that nobody got lets nothing through.
        app.note(told if code else f"{told}, and would have been exit code 0")
        code = code or ExitCode.COULD_NOT_RUN
    if annotate == "on" or (annotate == "auto" and os.environ.get("GITHUB_ACTIONS") == "true"):
        from sre.gate.report.annotations import annotations

        for line in annotations(ended.result):
            app.note(line)
    if ended.broken:
        app.note(f"sre gate: not run to its end: {ended.broken}")
    return code


def _forget_stdout() -> None:
    """What stdout still holds must not fail a second time at exit: that would be another exit code."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, sys.stdout.fileno())
        finally:
            os.close(null)


def _require_writable(junit: Path | None, summary: Path | None) -> None:
    """Before the load: at its end, half an hour of it would be reported nowhere."""
    from sre.adapters.gate_files import require_writable

    if sys.stdout is None or sys.stdout.closed:
        raise OSError(errno.EBADF, "stdout is closed, nobody would get the answer; to throw it away: > /dev/null")
    if junit is not None:
        require_writable(junit, "--junit", makes_folder=True)
    if summary is not None:
        require_writable(summary, "--summary", makes_folder=False)


def _for_ci(ended: Ended, junit: Path | None, summary: Path | None) -> None:
    from sre.adapters.gate_files import append, write

    if junit is not None:
        from sre.gate.report.junit import junit as junit_text

        write(junit, junit_text(ended.result))
    if summary is not None:
        from sre.gate.report.markdown import markdown

        append(summary, markdown(ended.result))
