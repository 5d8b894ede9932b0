"""What commands that write generated files share: where to, or only print or compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from sre.cli.app import App
from sre.errors import ExitCode
from sre.printable import printable

F = TypeVar("F", bound=Callable[..., Any])


def file_options(
    *, folders: Sequence[str], formats: Sequence[str], about_formats: str, everything: str
) -> Callable[[F], F]:
    """
    ``--output-dir``, ``--stdout``, ``--check`` and ``--format``; see ``only_one_way`` and ``write``.

    Args:
        folders: Written to without ``--output-dir``: one for all formats, or one each.
        formats: The first is the default.
        everything: What ``--stdout`` prints.
    """
    where = ", ".join(folders) + (", by format" if len(folders) > 1 else "")
    options = (
        click.option(
            "--output-dir",
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder to write to; earlier generated files that are no longer needed are removed from it "
            f"[default: {where}].",
        ),
        click.option("--stdout", "to_stdout", is_flag=True, help=f"Print {everything} instead of writing files."),
        click.option("--check", is_flag=True, help="Write nothing; print what differs and exit 3."),
        click.option(
            "--format",
            "form",
            type=click.Choice(list(formats)),
            default=formats[0],
            show_default=True,
            help=about_formats,
        ),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def only_one_way(*, to_stdout: bool, check: bool, output_dir: Path | None) -> None:
    """Raise UsageError where the options contradict each other."""
    if to_stdout and (check or output_dir):
        raise click.UsageError("--stdout excludes --check and --output-dir")


def write(app: App, folder: Path, files: Mapping[str, str], mark: str, *, check: bool, what: str, command: str) -> int:
    """
    Bring ``folder`` to ``files`` (name → text) and say what was done; with ``check`` only say what would be, exit 3.

    Args:
        mark: Of generated files: others are left alone.
        what: The files, in the plural.
    """
    from sre.adapters.generated_files import apply, changes

    planned = changes(folder, files, mark)
    if check:
        click.echo(printable(planned.diff), nl=False)
        if planned:
            app.note(f"{folder}: not what {command} writes; run it, without --check")
        return ExitCode.NO if planned else ExitCode.OK
    apply(folder, planned)
    stale = f"; no longer wanted and removed: {', '.join(planned.remove)}" if planned.remove else ""
    app.note(f"{folder}: {len(files)} {what}, {len(planned.write)} written{stale}")
    return ExitCode.OK
