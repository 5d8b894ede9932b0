"""sre gate baseline: what later runs are measured by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.cli.gate_results import results_option
from sre.errors import ConfigError, ExitCode, StateError

if TYPE_CHECKING:
    from sre.adapters.gate_baselines import BaselineFolder
    from sre.gate.baseline import Baseline


@click.group()
def baseline() -> None:
    """Accept, show and list what later runs are measured by."""


@baseline.command()
@click.argument("run", default="last")
@click.option("--name", metavar="NAME", help="Of the baseline. [default: gate.baseline.name]")
@click.option("--add", is_flag=True, help="Add its runs to the baseline that is there: runs of several days say more.")
@click.option(
    "--force",
    is_flag=True,
    help="Take fewer than five runs, or a run older than the one it replaces. A failing, interrupted or client-limited "
    "run is never taken.",
)
@click.option("--note", default="", metavar="TEXT", help="Why; kept with it.")
@click.option("--dry-run", is_flag=True, help="Say what would be accepted; write nothing.")
@results_option
@output_option
@pass_app
def accept(
    app: App,
    run: str,
    name: str | None,
    add: bool,
    force: bool,
    note: str,
    dry_run: bool,
    folder: Path | None,
    output: str,
) -> int:
    """
    Make RUN (last, an id, a folder, a gate.json) the baseline. Commit the file that this writes.

    Replaces an older baseline of that name, and says which.

    \b
    Exit codes: 0 accepted, or it is the baseline already · 1 the file cannot be written · 2 no such run · 3 does not
    qualify, or is older
    """
    from sre.adapters.clock import SystemClock
    from sre.adapters.gate_baselines import ANOTHER_FOLDER
    from sre.adapters.gate_files import require_writable
    from sre.gate.acceptance import already_is, never_passes, require_newer
    from sre.gate.baseline import accept as accepted
    from sre.gate.judging import JudgePolicy
    from sre.gate.report.figures import counted
    from sre.wiring.gate import results

    settings = app.settings().gate
    chosen = name or settings.baseline.name
    found = results(app.paths(), folder).read(run)
    files = _files(app)
    path = files.path(chosen)
    there = _There(None) if add else _there(files, chosen)
    if there.baseline is not None and not force:
        if already_is(there.baseline, found):
            document = {"name": chosen, "file": str(path), "written": False, "replaces": None, "warnings": []}
            said = f"{found.id} is baseline {chosen} already: nothing to do"
            app.emit(output, {**document, **_document(there.baseline)}, said)
            return ExitCode.OK
        require_newer(there.baseline, found)
    at = SystemClock().wall()

    def change(existing: Baseline | None) -> Baseline:
        return accepted(
            found,
            name=chosen,
            accepted_at=at,
            note=note,
            existing=existing if add else None,
            force=force,
            may_differ=settings.baseline.may_differ,
            client_lag_p99_seconds=settings.client_lag_p99_seconds,
        )

    if dry_run:
        require_writable(path, f"baseline {chosen}:", makes_folder=True, instead=ANOTHER_FOLDER)
        made = change(files.load(chosen) if add else None)
    else:
        made = _write(files, chosen, change, add)
    warnings = never_passes(found, JudgePolicy.of(settings))
    document = {"name": chosen, "file": str(path), "written": not dry_run, "replaces": there.said or None}
    app.emit(
        output,
        {**document, "warnings": list(warnings), **_document(made)},
        lambda: (
            f"{'would accept' if dry_run else 'accepted'} {found.id} as baseline {chosen}: "
            f"{counted(len(made.runs), 'run')} in {path}"
            + (f"; replaces {there.said}" if there.said else "")
            + ("" if dry_run else "; commit it")
        ),
    )
    for warning in warnings:
        app.note(f"sre gate: warning: {warning}")
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _There:
    """What a run takes the place of. ``said``: in words; "" if there is nothing."""

    baseline: Baseline | None
    said: str = ""


def _there(files: BaselineFolder, name: str) -> _There:
    from sre.gate.acceptance import replaced

    try:
        found = files.load(name)
    except StateError:  # damaged, or of another version: to replace it is the remedy
        return _There(None, "a file that could not be read")
    return _There(found, "" if found is None else replaced(found))


def _write(files: BaselineFolder, name: str, change: Any, add: bool) -> Baseline:
    if add:
        return files.update(name, change)
    made: Baseline = change(None)
    files.replace(name, made)
    return made


@baseline.command()
@click.argument("name", required=False)
@output_option
@pass_app
def show(app: App, name: str | None, output: str) -> int:
    """Show a baseline: its runs, when and of what they were, what they can show. [default: gate.baseline.name]"""
    from sre.gate.acceptance import outlook
    from sre.gate.judging import JudgePolicy

    chosen = name or app.settings().gate.baseline.name
    files = _files(app)
    found = files.load(chosen)
    if found is None:
        known = ", ".join(files.names())
        remedy = f"there are: {known}" if known else "accept one with sre gate baseline accept"
        raise ConfigError([f"gate: no baseline {chosen!r} in {files.path(chosen).parent}; {remedy}"])
    settings = app.settings().gate
    told = outlook(found, JudgePolicy.of(settings), settings.baseline.runs)
    document = {"name": found.name, "file": str(files.path(chosen)), **_document(found), "outlook": list(told)}
    app.emit(output, document, lambda: _text(found, told))
    return ExitCode.OK


@baseline.command("list")
@output_option
@pass_app
def list_baselines(app: App, output: str) -> int:
    """List the baselines."""
    found = _files(app).list()
    data = [
        {"name": one.name, "problem": one.problem, **({} if one.baseline is None else _document(one.baseline))}
        for one in found
    ]

    def text() -> str:
        from sre.cli.gate_view import aligned

        if not found:
            return "no baseline yet; accept one with sre gate baseline accept"
        rows = [
            (one.name, "", "", one.problem)
            if one.baseline is None
            else (one.name, str(len(one.baseline.runs)), ", ".join(one.baseline.days), one.baseline.model)
            for one in found
        ]
        return "\n".join(aligned(("baseline", "runs", "days", "model"), rows, frozenset({1})))

    app.emit(output, data, text)
    return ExitCode.OK


def _files(app: App) -> BaselineFolder:
    from sre.adapters.gate_baselines import BaselineFolder
    from sre.cli.gate import config_of
    from sre.wiring.gate import baselines_folder

    return BaselineFolder(baselines_folder(app.settings().gate, config_of(app)))


def _document(found: Baseline) -> dict[str, Any]:
    return {
        "model": found.model,
        "runs": len(found.runs),
        "days": list(found.days),
        "tool_version": found.tool_version,
        "acceptances": [asdict(one) for one in found.acceptances],
        "fingerprint": dict(found.fingerprint.fields),
        "subject": dict(found.fingerprint.subject),
        "stages": [stage.name for stage in found.runs[0].stages] if found.runs else [],
    }


def _text(found: Baseline, outlook: Sequence[str]) -> str:
    from sre.gate.report.figures import counted, utc

    lines = [f"baseline {found.name}: {counted(len(found.runs), 'run')} of {found.model}, days {', '.join(found.days)}"]
    for one in found.acceptances:
        forced = ", by force" if one.forced else ""
        note = f": {one.note}" if one.note else ""
        lines.append(f"  {utc(one.accepted_at)} {one.run_id}, {one.runs} runs{forced}{note}")
    lines += ["what it can show:", *(f"  {sentence}" for sentence in outlook)]
    lines += ["conditions:", *(f"  {name}: {value}" for name, value in found.fingerprint.fields)]
    lines += ["of:", *(f"  {name}: {value}" for name, value in found.fingerprint.subject)]
    return "\n".join(lines)
