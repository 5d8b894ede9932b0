"""The commands vllm-analyzer and vllm-config: other names, known to operators, for parts of ``sre``."""

from __future__ import annotations

import sys

import click

from sre.errors import ExitCode


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--last-failure", is_flag=True, help="Explain the newest incident: sre analyze last-failure.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def _analyzer(ctx: click.Context, last_failure: bool, output: str) -> int:
    """Another name for sre analyze."""
    from sre.cli.main import run

    if not last_failure:
        raise click.UsageError("say what to analyze: --last-failure", ctx)
    return run(["analyze", "last-failure", "--output", output])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--switch-model", metavar="MODEL", help="Move to another model; not available in this version.")
@click.option("--keep-session", type=float, metavar="SECONDS", help="Sessions stay on the old model so long.")
@click.pass_context
def _config(ctx: click.Context, switch_model: str | None, keep_session: float | None) -> int:
    """Another name for sre model switch."""
    if switch_model is None:
        raise click.UsageError("say what to do: --switch-model MODEL", ctx)
    click.echo(
        f"vllm-config: switching to {switch_model} is not available in this version of sre; nothing was changed:"
        " run the other model as a second engine in sre.yaml and start it with sre up",
        err=True,
    )
    return ExitCode.COULD_NOT_RUN


def _run(command: click.Command, name: str, argv: list[str]) -> int:
    try:
        result = command.main(args=argv, prog_name=name, standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return ExitCode.ABORTED
    return result if isinstance(result, int) else ExitCode.OK


def vllm_analyzer() -> None:
    """Entry point of ``vllm-analyzer``."""
    sys.exit(_run(_analyzer, "vllm-analyzer", sys.argv[1:]))


def vllm_config() -> None:
    """Entry point of ``vllm-config``."""
    sys.exit(_run(_config, "vllm-config", sys.argv[1:]))
