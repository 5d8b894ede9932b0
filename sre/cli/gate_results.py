"""sre gate list, report, compare, schema, snippet: what runs left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ConfigError, ExitCode, StateError

if TYPE_CHECKING:
    from sre.gate.baseline import Baseline
    from sre.gate.fingerprint import Fingerprint
    from sre.gate.result import GateResult, RunResult
    from sre.gate.self_checks import Check
    from sre.gate.stages import Calibration
    from sre.gate.verdict import GateVerdict

FORMATS = ("text", "html", "markdown", "junit", "json", "annotations")

results_option = click.option(
    "--output-dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the runs. [default: gate in the state folder]",
)


@click.command("list")
@results_option
@output_option
@pass_app
def list_runs(app: App, folder: Path | None, output: str) -> int:
    """List runs, newest first: verdict, server, what decided."""
    from sre.gate.report import figures, tables
    from sre.wiring.gate import results

    files = results(app.paths(), folder)
    data: list[dict[str, Any]] = []
    for name in reversed(files.ids()):
        try:
            found = files.read(name)
        except StateError as error:
            data.append({"id": name, "verdict": None, "problem": str(error)})
            continue
        data.append({
            "id": name,
            "verdict": found.verdict.verdict.value,
            "interrupted": found.interrupted,
            "url": found.url,
            "model": found.model,
            "wall_started_at": found.wall_started_at,
            "runs": len(found.runs),
            "summary": found.verdict.summary,
            "headline": tables.headline(found),
            "decided": tables.decided(found),
        })  # fmt: skip

    def text() -> str:
        from sre.cli.gate_view import aligned

        if not data:
            return "no run yet; make one with sre gate run"
        rows = [
            (one["id"], "unreadable", "", "", one["problem"])
            if one["verdict"] is None
            else (
                one["id"],
                one["headline"].removeprefix("Gate: "),
                figures.utc(one["wall_started_at"]),
                one["url"],
                one["decided"],
            )
            for one in data
        ]
        return "\n".join(aligned(("run", "verdict", "started", "server", "what decided"), rows))

    app.emit(output, data, text)
    return ExitCode.OK


@click.command()
@click.argument("run", default="last")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="Form to print.")
@results_option
@pass_app
def report(app: App, run: str, form: str, folder: Path | None) -> int:
    """
    Print the report of RUN: last, an id or the beginning of one, a folder, or a gate.json.

    last is the run made last; where it cannot be read, the newest that can, and a line on stderr says so.
    """
    from sre.adapters.gate_files import LAST
    from sre.printable import printable
    from sre.wiring.gate import results

    files = results(app.paths(), folder)
    try:
        found, where = files.read(run), files.find(run)
    except StateError as error:
        readable = files.newest_readable() if run == LAST else None
        if readable is None:
            raise
        app.note(f"sre gate: {error}, shown here")
        found, where = files.read(readable), files.find(readable)
    text = _rendered(found, where, form)
    click.echo(text if form in ("html", "junit", "json") else printable(text), nl=not text.endswith("\n"))
    return ExitCode.OK


def _rendered(found: GateResult, where: Path, form: str) -> str:
    from sre.cli.gate_view import result_text
    from sre.gate.report import annotations, document, html, junit, markdown

    if form == "text":
        return result_text(found, where if where.is_dir() else where.parent, ExitCode.NO_ANSWER)
    if form == "html":
        return html.html(found)
    if form == "markdown":
        return markdown.markdown(found)
    if form == "junit":
        return junit.junit(found)
    if form == "annotations":
        return "\n".join(annotations.annotations(found))
    return document.dumps(found)


@click.command()
@click.argument("reference")
@click.argument("candidate")
@results_option
@output_option
@pass_app
def compare(app: App, reference: str, candidate: str, folder: Path | None, output: str) -> int:
    """
    Say whether CANDIDATE is slower than REFERENCE; each is a run (see report), or name or file of a baseline.

    \b
    Exit codes: 0 not slower · 2 not comparable, or the same run · 3 slower · 5 could not be told
    """
    from sre.gate.judge import compare as judge_both
    from sre.gate.judging import JudgePolicy
    from sre.gate.report import codec

    settings = app.settings().gate
    theirs, ours = _side(app, reference, folder), _side(app, candidate, folder)
    if same := sorted(theirs.ids & ours.ids):
        raise ConfigError([f"gate: run {same[0]} is in {reference} and in {candidate}: it cannot differ from itself"])
    verdict = judge_both(
        theirs.runs,
        ours.runs,
        JudgePolicy.of(settings),
        fingerprints=(theirs.fingerprint, ours.fingerprint),
        calibrations=(theirs.calibration, ours.calibration),
        checks=(*theirs.checks, *ours.checks),
        interrupted=theirs.interrupted or ours.interrupted,
    )
    app.emit(output, codec.encode(verdict), lambda: verdict_text(verdict))
    return exit_code(verdict, settings.inconclusive == "pass")


def verdict_text(verdict: GateVerdict) -> str:
    """A verdict without a run around it."""
    from sre.gate.report.tables import WORDS

    lines = [f"Gate: {WORDS[verdict.verdict]}", verdict.summary]
    lines += [f"{WORDS[cell.verdict]:13} {cell.cell}: {cell.detail or cell.reason.value}" for cell in verdict.cells]
    lines += [f"note: {remark}" for remark in verdict.remarks]
    return "\n".join(lines)


def exit_code(verdict: GateVerdict, inconclusive_passes: bool) -> ExitCode:
    """Of a verdict alone."""
    from sre.gate.verdict import Verdict

    if verdict.verdict is Verdict.FAIL:
        return ExitCode.NO
    if verdict.verdict is Verdict.INCONCLUSIVE and not inconclusive_passes:
        return ExitCode.NO_ANSWER
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a comparison, and what speaks for or against its numbers; a baseline was looked at when accepted."""

    runs: Baseline | Sequence[RunResult]
    fingerprint: Fingerprint
    calibration: Calibration | None = None
    checks: Sequence[Check] = ()
    interrupted: str = ""
    ids: frozenset[str] = frozenset()
    """Of the gate runs that its figures are of."""


def _side(app: App, name: str, folder: Path | None) -> _Side:
    from sre.adapters.gate_baselines import NAME, BaselineFolder
    from sre.adapters.gate_files import LAST
    from sre.cli.gate import config_of
    from sre.gate.plan import SIDE_B
    from sre.wiring.gate import baselines_folder, results

    files = results(app.paths(), folder)
    try:
        found = files.read(name)
    except StateError:
        path = Path(name)
        with contextlib.suppress(StateError, ConfigError):
            if path.suffix == ".json" and (baseline := BaselineFolder(path.parent).load(path.stem)) is not None:
                return _of_baseline(baseline)
        raise
    except ConfigError:
        if NAME.fullmatch(name):
            baseline = BaselineFolder(baselines_folder(app.settings().gate, config_of(app))).load(name)
            if baseline is not None:
                return _of_baseline(baseline)
        if name == LAST or any(known.startswith(name) for known in files.ids()):  # none yet, or several
            raise
        problem = f"gate: no run, no file and no baseline {name!r}; see sre gate list, sre gate baseline list"
        raise ConfigError([problem]) from None
    runs = [run for run in found.runs if run.side != SIDE_B]
    interrupted = f"{found.id}: {found.interrupted}" if found.interrupted else ""
    return _Side(runs, found.fingerprint, found.calibration, found.checks, interrupted, frozenset({found.id}))


def _of_baseline(baseline: Baseline) -> _Side:
    return _Side(baseline, baseline.fingerprint, ids=frozenset(one.run_id for one in baseline.acceptances))


@click.command()
def schema() -> None:
    """Print the JSON Schema of gate.json."""
    from sre.gate.report.schema import published

    click.echo(published(), nl=False)


@click.command()
@click.argument("name", type=click.Choice(["github", "gitlab", "kubernetes"]))
def snippet(name: str) -> None:
    """Print a ready file for a CI system: GitHub Actions, GitLab, or a Kubernetes Job."""
    from sre.gate.snippets import snippet as snippet_text

    click.echo(snippet_text(name), nl=False)
