"""sre incident, sre analyze: what happened, from what the guard wrote down."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ExitCode, Refused, StateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sre.actions.records import JournalRow, OutboxRow
    from sre.adapters.incident_files import IncidentFiles
    from sre.incidents.records import Incident
    from sre.incidents.report import Report

KERNEL_EVIDENCE = "kernel.log"
"""When the guard took the kernel's log into the incident, the log is not read again now."""


@click.group()
def incident() -> None:
    """List and show incidents."""


@click.group()
def analyze() -> None:
    """Explain the last failure."""


@incident.command("list")
@output_option
@pass_app
def list_incidents(app: App, output: str) -> int:
    """List incidents, newest first."""
    from sre.incidents.report import moment, printable

    files = _files(app)
    found = [one for name in reversed(files.list()) if (one := files.read(name)) is not None]
    data = [
        {
            "id": one.id,
            "opened_wall": one.opened_wall,
            "resolved_wall": one.resolved_wall,
            "facts": dict(one.facts),
            "in_flight": None if one.contexts is None else len(one.contexts),
        }
        for one in found
    ]
    lines = [
        f"{one.id}  {moment(one.opened_wall)}  {'resolved' if one.resolved else 'open':<8}"
        f"  {one.facts.get('reason', '?')!s:<16}  {one.facts.get('scope', '?')}"
        for one in found
    ]
    app.emit(output, data, printable("\n".join(lines)) if lines else "no incidents")
    return ExitCode.OK


@incident.command()
@click.argument("incident_id")
@output_option
@pass_app
def show(app: App, incident_id: str, output: str) -> int:
    """Show one incident: what tripped, what was seen, who was told."""
    from sre.incidents.report import as_json, as_text

    report = _report(app, _files(app), _known(app, incident_id), kernel=False)
    app.emit(output, as_json(report), lambda: as_text(report))
    return ExitCode.OK


@incident.command()
@click.argument("incident_id")
@output_option
@pass_app
def timeline(app: App, incident_id: str, output: str) -> int:
    """Show what happened in an incident, in order."""
    from sre.incidents.report import printable, timeline_lines

    found = _known(app, incident_id)
    report = _report(app, _files(app), found, kernel=False)
    text = printable("\n".join(timeline_lines(report.events, began=found.opened_wall)))
    app.emit(output, [asdict(event) for event in report.events], text)
    for problem in (*found.damage, *report.problems):
        app.note(problem)
    return ExitCode.OK


@analyze.command("last-failure")
@output_option
@pass_app
def last_failure(app: App, output: str) -> int:
    """Explain the newest incident, with evidence and the kernel's word on the GPU. Exit 3 if there is none."""
    from sre.incidents.report import as_json, as_text

    files = _files(app)
    names = files.list()
    newest = files.read(names[-1]) if names else None
    if newest is None:
        app.emit(output, None, f"no failure on record in {app.paths().incidents}")
        return ExitCode.NO
    report = _report(app, files, newest, kernel=True)
    app.emit(output, as_json(report), lambda: as_text(report))
    return ExitCode.OK


def _files(app: App) -> IncidentFiles:
    from sre.adapters.incident_files import IncidentFiles

    return IncidentFiles(app.paths().incidents)


def _known(app: App, incident_id: str) -> Incident:
    found = _files(app).read(incident_id)
    if found is None:
        raise Refused(f"incident: there is no {incident_id!r}; see sre incident list")
    return found


def _report(app: App, files: IncidentFiles, incident: Incident, *, kernel: bool) -> Report:
    from sre.adapters.kernel_log import read_nvidia_lines
    from sre.incidents.report import Report, events

    journal, outbox, problems = _recorded(app, incident.id)
    evidence = {
        name: text for name in incident.evidence if (text := files.read_evidence(incident.id, name)) is not None
    }
    kernel_lines: Sequence[str] = ()
    if kernel and KERNEL_EVIDENCE not in evidence:
        log = read_nvidia_lines(limit=20)
        kernel_lines = log.lines
        if log.problem is not None:
            problems.append(f"kernel log {log.problem}")
    return Report(incident, events(incident, journal, outbox), outbox, evidence, kernel_lines, problems)


def _recorded(app: App, incident_id: str) -> tuple[Sequence[JournalRow], Sequence[OutboxRow], list[str]]:
    """What the guard's store knows of the incident; a store that cannot be read is a problem to name, not an end."""
    from sre.adapters.clock import SystemClock
    from sre.adapters.store import StoreReader
    from sre.watchdog.processes import boot_id

    try:
        with StoreReader.open_readonly(app.paths().guard_db, clock=SystemClock(), boot_id=boot_id()) as store:
            return store.journal(incident_id=incident_id), store.outbox(incident_id=incident_id), []
    except StateError as error:
        return (), (), [str(error)]
