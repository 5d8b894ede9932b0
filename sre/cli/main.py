"""The ``sre`` command. Subcommands load their modules only when called: --help stays fast."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from pathlib import Path

import click

from sre.cli.app import App
from sre.errors import ConfigError, ExitCode, SreError
from sre.printable import printable

# name -> (module, attribute, help line). The help line stands here so that --help imports nothing.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("sre.cli.stack", "up", "Run the stack: engines, gateway, guard."),
    "down": ("sre.cli.stack", "down", "Drain and stop the stack."),
    "status": ("sre.cli.stack", "status", "Show processes, breaker states and traffic."),
    "doctor": ("sre.cli.doctor", "doctor", "Check this machine and the configuration; say what to change."),
    "demo": ("sre.cli.demo", "demo", "Watch a stack survive a GPU hang, in under 90 seconds."),
    "config": ("sre.cli.config", "config", "Write, check and show sre.yaml."),
    "guard": ("sre.cli.guard", "guard", "Run, pause and inspect the control loop."),
    "breaker": ("sre.cli.breaker", "breaker", "See, trip, reset, force and explain the circuit breaker."),
    "notify": ("sre.cli.notify", "notify", "Check and test channels; look after the outbox."),
    "webhook": ("sre.cli.webhook", "webhook", "Take in Alertmanager's notifications; say what an alert would lead to."),
    "incident": ("sre.cli.incident", "incident", "List and show incidents."),
    "analyze": ("sre.cli.incident", "analyze", "Explain the last failure, or what limits a server under load."),
    "chaos": ("sre.cli.chaos", "chaos", "Inject faults that are always reverted."),
    "gate": ("sre.cli.gate", "gate", "Put load on a server before a deploy, and say whether it is good enough."),
    "rules": ("sre.cli.rules", "rules", "Generate, list, test, lint and verify alerts and recording rules."),
    "runbook": ("sre.cli.runbook", "runbook", "Read what to do about an alert."),
    "dashboards": ("sre.cli.dashboards", "dashboards", "Generate, list and push Grafana dashboards."),
}


class LazyGroup(click.Group):
    """Group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute, _ = entry
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; see sre --help"
            ctx.fail(f"no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--config",
    "-c",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="SRE_CONFIG",
    help="Configuration file [env SRE_CONFIG]; default: ./sre.yaml if it exists, else built-in defaults. Relative"
    " paths in it begin at its folder.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SRE_STATE_DIR",
    help="Folder of state, logs and incidents [env SRE_STATE_DIR].",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(package_name="sre", prog_name="sre")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, state_dir: Path | None, debug: bool) -> None:
    """
    Resilience toolkit for LLM serving on vLLM.

    Sees a fault within seconds, contains it at the gateway without cutting a running stream, tells a person, brings
    the engine back, and proves all of this in drills.

    \b
    Exit codes: 0 yes · 1 could not run · 2 wrong usage or configuration · 3 ran, the answer is no ·
    4 something was left changed · 5 ran, no answer · 6 aborted
    """
    ctx.obj = App(config, state_dir, debug)


def run(argv: list[str]) -> int:
    """Run one command; return its exit code. Errors of ours are one line (each) on stderr."""
    debug = "--debug" in argv
    try:
        result = cli.main(args=argv, prog_name="sre", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        with io.StringIO() as said:
            error.show(said)
            click.echo(printable(said.getvalue()), err=True, nl=False)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("sre: aborted", err=True)
        return ExitCode.ABORTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.COULD_NOT_RUN
    except OSError as error:  # what no command foresaw; a full disk under stdout above all
        if debug:
            raise
        if sys.stdout is not None:  # None: it was closed before we began
            with contextlib.suppress(OSError):  # what stdout still holds must not fail a second time at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
        where = f"{error.filename}: " if error.filename else "the output cannot be written: " if full else ""
        click.echo(f"sre: {printable(where)}{error.strerror or error}", err=True)
        return ExitCode.COULD_NOT_RUN
    except SreError as error:
        if debug:
            raise
        lines = error.problems if isinstance(error, ConfigError) else [str(error)]
        for line in lines:
            click.echo(printable(f"sre: {line}"), err=True)
        return error.exit_code
    return result if isinstance(result, int) else 0


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    sys.exit(run(sys.argv[1:]))
