"""sre incident, sre analyze: what happened, from what the guard wrote down."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.cli.bottleneck import bottleneck
from sre.cli.notify import TEST_ID, has_state, no_state
from sre.errors import ExitCode, Refused, StateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sre.actions.records import IncidentRow, JournalRow, OutboxRow
    from sre.adapters.incident_files import IncidentFiles
    from sre.incidents.records import Incident
    from sre.incidents.report import Report

LONGEST_CELL = 120
"""Characters of a value in a list; sre incident show and JSON have it whole. Names of alerts have no limit."""

KERNEL_EVIDENCE = "kernel.log"
"""When the guard took the kernel's log into the incident, the log is not read again now."""


@click.group()
def incident() -> None:
    """List and show incidents."""


@click.group()
def analyze() -> None:
    """Explain the last failure, or what limits a server under load."""


analyze.add_command(bottleneck)


@incident.command("list")
@click.option("--open", "only_open", is_flag=True, help="Only those that are not resolved.")
@output_option
@pass_app
def list_incidents(app: App, only_open: bool, output: str) -> int:
    """
    List incidents, newest first: open, escalated (nobody acknowledged it), acknowledged or resolved. Before the guard
    first ran there are none: exit 0, and that is said.

    \b
    Exit codes: 0 all is listed · 1 a guard runs and its state is not there ·
    5 the state cannot be read: only what has a folder is listed
    """
    from sre.incidents.report import moment
    from sre.incidents.standing import standings
    from sre.printable import rows

    def short(value: object) -> str:
        text = str(value)
        return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 3]}..."

    files = _files(app)
    stored, problems = _stored(app)
    folders = [one for name in files.list() if (one := files.read(name)) is not None]
    found = [one for one in standings(folders, stored) if not only_open or one.resolved_wall is None]
    data = [
        {
            "id": one.id,
            "state": one.state,
            "severity": one.severity,
            "opened_wall": one.opened_wall,
            "resolved_wall": one.resolved_wall,
            "acknowledged_wall": one.acknowledged_wall,
            "acknowledged_by": one.acknowledged_by,
            "note": one.note,
            "escalations": one.level,
            "facts": dict(one.facts),
            "in_flight": one.contexts,
        }
        for one in found
    ]
    lines = [
        f"{one.id}  {moment(one.opened_wall)}  {one.state:<12}  {short(one.facts.get('reason', '?')):<16}"
        f"  {short(one.facts.get('scope', '?'))}{f'  ({one.acknowledged_by})' if one.acknowledged_by else ''}"
        for one in found
    ]
    app.emit(output, data, rows(lines) if lines else "no incidents")
    if not problems and not has_state(app):
        if folders:
            problems = [
                f"guard state {app.paths().guard_db}: not there, though it wrote these: it was moved or deleted"
            ]
        else:
            app.note(no_state(app))
    for problem in problems:
        app.note(problem)
    return ExitCode.NO_ANSWER if problems else ExitCode.OK


@incident.command()
@click.argument("incident_id")
@click.option("--by", default=getpass.getuser, show_default="you", help="Who takes care of it.")
@click.option("--note", default="", help="What others should know.")
@output_option
@pass_app
def ack(app: App, incident_id: str, by: str, note: str, output: str) -> int:
    """
    Acknowledge an incident: somebody takes care of it, nobody else is called. The id of a digest acknowledges all
    incidents it tells. The first acknowledgement stays. A notice or a test has nothing to acknowledge; one that is
    repeated because it may not have arrived is not repeated any more.

    Exit codes: 0 acknowledged, now or before, or not repeated any more · 3 there is nothing to acknowledge
    """
    from sre.errors import Unreachable
    from sre.wiring.guard_client import ask

    try:
        answer = ask(
            app.paths().guard_socket, "POST", "/acknowledge", {"incident": incident_id, "by": by, "note": note}
        )
    except Unreachable:
        # No guard runs: its file is written directly.
        answer = _acknowledge(app, incident_id, by, note)
    if answer["outcome"] == "unknown":
        if not TEST_ID.fullmatch(incident_id):
            raise Refused(f"incident: no message about {incident_id!r} is on record; see sre incident list")
        answer["outcome"] = "notice"  # sre notify test sends by itself: the outbox never had it
    app.emit(output, answer, lambda: _acknowledged(incident_id, answer))
    over = answer["outcome"] == "resolved" or (answer["outcome"] == "notice" and not answer.get("quieted"))
    return ExitCode.NO if over else ExitCode.OK


def _acknowledge(app: App, incident_id: str, by: str, note: str) -> dict[str, Any]:
    from sre.actions.records import Acknowledgement, AckOutcome
    from sre.adapters.clock import SystemClock
    from sre.adapters.store import OutboxDesk
    from sre.control.desk import acknowledgement_json
    from sre.notify.escalation import told_of_acknowledgement
    from sre.watchdog.processes import boot_id

    if not has_state(app):
        app.note(no_state(app))
        return acknowledgement_json(Acknowledgement(AckOutcome.UNKNOWN))
    told = told_of_acknowledgement(app.settings().notify.channels)
    with OutboxDesk.open(app.paths().guard_db, clock=SystemClock(), boot_id=boot_id()) as desk:
        return acknowledgement_json(desk.acknowledge(incident_id, by=by, note=note, tell=told))


def _acknowledged(incident_id: str, answer: dict[str, Any]) -> str:
    from sre.incidents.report import moment

    when = "" if answer["at_wall"] is None else f" at {moment(answer['at_wall'])} UTC"
    who = "" if not answer["by"] else f" by {answer['by']}"
    count = len(answer["incidents"])
    several = f" ({count} incidents)" if count > 1 else ""
    what = "a test" if incident_id.startswith(("test-", "canary-")) else "a notice"
    quieted = "; it is not repeated any more" if answer.get("quieted") else ""
    return {
        "acknowledged": f"{incident_id} is acknowledged{who}{several}",
        "already_acknowledged": f"{incident_id} was acknowledged already{who}{when}",
        "notice": f"{incident_id} is {what}: nothing to acknowledge{quieted}",
        "resolved": f"{incident_id} is resolved{when}; there is nothing to acknowledge",
    }[answer["outcome"]]


@incident.command()
@click.argument("incident_id")
@output_option
@pass_app
def show(app: App, incident_id: str, output: str) -> int:
    """Show one incident: what tripped, what was seen, who was told. Exit 3 if there is no such incident."""
    from sre.incidents.report import as_json, as_text

    report = _report(app, _files(app), _known(app, incident_id), kernel=False)
    app.emit(output, as_json(report), lambda: as_text(report))
    return ExitCode.OK


@incident.command()
@click.argument("incident_id")
@output_option
@pass_app
def timeline(app: App, incident_id: str, output: str) -> int:
    """Show what happened in an incident, in order. Exit 3 if there is no such incident."""
    from sre.incidents.report import timeline_lines
    from sre.printable import rows

    found = _known(app, incident_id)
    report = _report(app, _files(app), found, kernel=False)
    text = rows(timeline_lines(report.events, began=found.opened_wall))
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
        has_state(app)  # raises where the state was lost or moved away: then nothing is known
        app.emit(output, None, f"no failure on record in {app.paths().incidents}")
        return ExitCode.NO
    report = _report(app, files, newest, kernel=True)
    app.emit(output, as_json(report), lambda: as_text(report))
    return ExitCode.OK


def _files(app: App) -> IncidentFiles:
    from sre.adapters.incident_files import IncidentFiles

    return IncidentFiles(app.paths().incidents)


def _known(app: App, incident_id: str) -> Incident:
    from sre.incidents.standing import without_folder

    found = _files(app).read(incident_id)
    if found is None:
        stored, problems = _stored(app, incident_id)
        if stored:
            return without_folder(stored[0])
        if problems:
            raise StateError(
                f"incident {incident_id}: it has no folder, and what was told cannot be read: {problems[0]}"
            )
        has_state(app)  # raises where the state was moved away: then nothing is known of it
        raise Refused(f"incident: there is no {incident_id!r}; see sre incident list")
    return found


def _report(app: App, files: IncidentFiles, incident: Incident, *, kernel: bool) -> Report:
    from sre.adapters.kernel_log import read_nvidia_lines
    from sre.incidents.report import Report, events
    from sre.incidents.standing import standing

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
    stored, _ = _stored(app, incident.id)
    return Report(
        incident, events(incident, journal, outbox), outbox, evidence, kernel_lines, problems,
        standing(incident, stored[0] if stored else None),
    )  # fmt: skip


def _stored(app: App, incident_id: str | None = None) -> tuple[Sequence[IncidentRow], list[str]]:
    """What people were told of (of one incident), and who acknowledged it; why that cannot be read, if so."""
    from sre.adapters.clock import SystemClock
    from sre.adapters.store import StoreReader
    from sre.watchdog.processes import boot_id

    if not app.paths().guard_db.exists():
        return (), []
    try:
        with StoreReader.open_readonly(app.paths().guard_db, clock=SystemClock(), boot_id=boot_id()) as store:
            if incident_id is None:
                return store.incidents(), []
            one = store.incident(incident_id)
            return () if one is None else (one,), []
    except StateError as error:
        return (), [str(error)]


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
