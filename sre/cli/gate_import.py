"""sre gate import: what another load tool measured, judged by the same rules."""

from __future__ import annotations

from pathlib import Path

import click

from sre.cli.app import App, output_option, pass_app
from sre.cli.gate_results import results_option
from sre.errors import ConfigError


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--tool",
    type=click.Choice(["vllm", "aiperf", "guidellm"]),
    help="Which tool wrote them. [default: told by their content]",
)
@click.option(
    "--class",
    "request_class",
    default="short",
    show_default=True,
    metavar="NAME",
    help="What their requests are called in objectives and cells.",
)
@click.option("--rate", type=float, metavar="QPS", help="Asked for, where the file does not say (aiperf).")
@click.option(
    "--baseline",
    "baseline_name",
    metavar="NAME",
    help="Compare with this baseline. [default: judged by the objectives alone]",
)
@results_option
@output_option
@pass_app
def import_records(
    app: App,
    files: tuple[Path, ...],
    tool: str | None,
    request_class: str,
    rate: float | None,
    baseline_name: str | None,
    folder: Path | None,
    output: str,
) -> int:
    """
    Judge per-request records of vllm bench serve (--save-detailed), aiperf or guidellm: FILES of one server.

    The result is kept as a run: accept it as a baseline, compare it, report it. Files of one rate are runs of it.

    \b
    Exit codes: 0 pass · 2 not readable as such · 3 an objective is missed, or slower · 5 could not be told
    """
    from sre.adapters.gate_baselines import BaselineFolder
    from sre.cli.gate import config_of
    from sre.cli.gate_results import exit_code
    from sre.cli.gate_view import result_text
    from sre.gate.report import codec
    from sre.wiring.gate import baselines_folder, results
    from sre.wiring.gate_import import take_in

    settings = app.settings().gate
    baseline = None
    if baseline_name is not None:
        baseline = BaselineFolder(baselines_folder(settings, config_of(app))).load(baseline_name)
        if baseline is None:
            raise ConfigError([f"--baseline: there is no baseline {baseline_name!r}; see sre gate baseline list"])
    kept, result = take_in(
        files,
        results(app.paths(), folder),
        settings,
        tool=tool,
        request_class=request_class,
        rate=rate,
        baseline=baseline,
    )
    code = exit_code(result.verdict, settings.inconclusive == "pass")
    app.emit(
        output,
        {"id": result.id, "folder": str(kept), "exit_code": int(code), "notes": list(result.notes)}
        | codec.encode(result.verdict),
        lambda: result_text(result, kept, code),
    )
    return code
