"""sre notify: are the channels right, does a message arrive, what is stuck."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ConfigError, ExitCode, Refused

if TYPE_CHECKING:
    from sre.actions.records import OutboxRow
    from sre.actions.types import Message
    from sre.adapters.store import OutboxDesk, StoreReader
    from sre.notify.renderer import Renderer
    from sre.settings.notify import ChannelSettings

NO_CHANNELS = "no channel is configured: nobody is told of an incident; add one under notify.channels in sre.yaml"


WAITS_FOR = {
    "quiet_hours": "waits for the end of quiet hours",
    "quiet_hours_over": "waited for the end of quiet hours",
    "gathering": "a digest that is being put together",
    "by_hand": "sent again by hand",
}


@click.group()
def notify() -> None:
    """Check and test channels; look after the outbox."""


@notify.command()
@output_option
@pass_app
def check(app: App, output: str) -> int:
    """
    Check every channel without sending: secrets there, URLs and numbers understood, one recipient each, templates
    good. Exit 2 if not.
    """
    channels = app.settings().notify.channels
    if not channels:
        app.emit(output, [], NO_CHANNELS)
        return ExitCode.NO
    results = asyncio.run(_check(channels))
    app.emit(
        output,
        results,
        "\n".join(f"{r['name']:<16} {r['kind']:<9} {'; '.join(r['problems']) or 'ok  ' + r['shown']}" for r in results),
    )
    return ExitCode.USAGE if any(r["problems"] for r in results) else ExitCode.OK


@notify.command()
@click.argument("channel", required=False)
@click.option("--dry-run", is_flag=True, help="Show what would be sent; send nothing.")
@click.option(
    "--end-to-end",
    is_flag=True,
    help="Send a canary alert through Prometheus, Alertmanager and the guard's webhook to every channel.",
)
@click.option("--prometheus", default="http://127.0.0.1:9090", show_default=True, help="With --end-to-end: its URL.")
@click.option("--alertmanager", default="http://127.0.0.1:9093", show_default=True, help="With --end-to-end: its URL.")
@click.option(
    "--wait",
    type=click.FloatRange(1, 800),
    default=180.0,
    show_default=True,
    help="With --end-to-end: seconds the canary may take.",
)
@output_option
@pass_app
def test(
    app: App,
    channel: str | None,
    dry_run: bool,
    end_to_end: bool,
    prometheus: str,
    alertmanager: str,
    wait: float,
    output: str,
) -> int:
    """
    Send a test message to CHANNEL, or to all. Exit 3 if a provider does not accept it: then what kind of refusal it
    is and what helps is said. At PagerDuty the test opens an incident and resolves it.

    With --end-to-end the time each hop took is measured. Exit 3: it stopped at the hop that is named · 5: it did not
    arrive, and where it stopped could not be seen.
    """
    if end_to_end:
        if channel is not None or dry_run:
            raise click.UsageError("--end-to-end takes the way of every alert: to all channels, and really")
        from sre.cli.notify_proof import end_to_end as prove

        return prove(app, prometheus, alertmanager, wait, output)
    channels = _chosen(app, channel)
    if not channels:
        app.emit(output, [], NO_CHANNELS)
        return ExitCode.NO
    message = _test_message(time.time())
    if dry_run:
        render = _renderer(app)
        forms = [(c.name, render(message, c)) for c in channels]
        app.emit(
            output,
            [{"name": name, "title": form.title, "body": form.body, "html": form.html} for name, form in forms],
            "\n\n".join("\n".join(filter(None, (f"to {name}:", form.title, form.body))) for name, form in forms),
        )
        return ExitCode.OK
    results = asyncio.run(_send(channels, message, _renderer(app)))
    app.emit(output, results, lambda: "\n".join(_tried(result) for result in results))
    return ExitCode.OK if all(r["verdict"] == "delivered" for r in results) else ExitCode.NO


@notify.group()
def outbox() -> None:
    """Messages on their way, and those given up."""


@outbox.command("list")
@click.option("--all", "everything", is_flag=True, help="Also what was sent, told in a digest, superseded or dropped.")
@click.option("--digest", metavar="ID", help="What this digest tells, e.g. digest-20270115-080000-0017.")
@click.option("--incident", metavar="ID", help="Only messages of this incident, whatever their state.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="The newest so many.")
@output_option
@pass_app
def list_messages(app: App, everything: bool, digest: str | None, incident: str | None, limit: int, output: str) -> int:
    """
    List unsent messages. Exit 3 if one is dead: given up, and a person has to look.

    A message says when it is tried next, or that it waits for its channel's limit, for the end of quiet hours or for a
    digest. Before the guard first ran there are none: exit 0, and that is said. Exit 3, too, if there is no such digest
    or incident; exit 1 if a guard runs and its state is not there.
    """
    from sre.actions.records import OutboxState
    from sre.incidents.report import notification_json

    if not has_state(app):
        _require_known(app, None, digest, incident)
        app.emit(output, [], lambda: _table(()))
        app.note(no_state(app))
        return ExitCode.OK
    unfinished = (OutboxState.HELD, OutboxState.PENDING, OutboxState.SENDING, OutboxState.DEAD)
    with _reader(app) as store:
        states = None if everything or digest or incident else unfinished
        rows = store.outbox(states=states, digest=digest, incident_id=incident, limit=limit)
        if not rows:
            _require_known(app, store, digest, incident)
    app.emit(output, [notification_json(row) for row in rows], lambda: _table(rows))
    if len(rows) == limit:
        app.note(f"the newest {limit} are listed; more with --limit")
    dead = [row.id for row in rows if row.state is OutboxState.DEAD]
    if dead:
        app.note(f"{len(dead)} dead: send again with sre notify outbox retry ID or --all-dead, or give up with … drop")
    return ExitCode.NO if dead else ExitCode.OK


def _require_known(app: App, store: StoreReader | None, digest: str | None, incident: str | None) -> None:
    """Raise Refused where no message was found because a digest or incident of this name never was."""
    from sre.adapters.incident_files import IncidentFiles

    if digest is not None and (store is None or not store.outbox(digest=digest, limit=1)):
        raise Refused(f"outbox: there is no digest {digest!r}; see sre notify outbox list --all")
    if incident is None or (store is not None and store.incident(incident) is not None):
        return
    if IncidentFiles(app.paths().incidents).read(incident) is None:
        raise Refused(f"incident: there is no {incident!r}; see sre incident list")


@outbox.command()
@click.argument("message_id", type=int)
@output_option
@pass_app
def show(app: App, message_id: int, output: str) -> int:
    """Show one message with its text and what its provider said. Exit 3 if there is no such message."""
    from sre.incidents.report import notification_json
    from sre.notify.envelope import message_to_json
    from sre.notify.forms import long_text

    row = None
    if has_state(app):
        with _reader(app) as store:
            row = store.outbox_row(message_id)
    if row is None:
        raise Refused(f"outbox: no message {message_id}; see sre notify outbox list --all")
    data = {
        **notification_json(row),
        "message": message_to_json(row.message),
        "opened": None if row.opened is None else message_to_json(row.opened),
    }
    app.emit(output, data, lambda: "\n".join((_table([row]), "", long_text(row.message, row.opened))))
    return ExitCode.OK


ONE_OR_ALL_DEAD = (
    click.argument("message_id", type=int, required=False),
    click.option("--all-dead", is_flag=True, help="All that are given up, instead of one."),
    click.option("--channel", metavar="NAME", help="With --all-dead: only of this channel."),
    click.option("--dry-run", is_flag=True, help="Only say whether it could be done."),
)


def _one_or_all_dead(command: Callable[..., int]) -> Callable[..., int]:
    for option in reversed(ONE_OR_ALL_DEAD):
        command = option(command)
    return command


@outbox.command()
@_one_or_all_dead
@pass_app
def retry(app: App, message_id: int | None, all_dead: bool, channel: str | None, dry_run: bool) -> int:
    """
    Send a waiting or dead message now, with all its tries again; quiet hours and storms do not hold it. Exit 3 if
    there is no such message, if it is finished or under way, or if its channel is not in sre.yaml.
    """
    return _change(app, message_id, "retry", all_dead=all_dead, channel=channel, dry_run=dry_run)


@outbox.command()
@_one_or_all_dead
@pass_app
def drop(app: App, message_id: int | None, all_dead: bool, channel: str | None, dry_run: bool) -> int:
    """
    Give a waiting or dead message up for good; it stays on record. Exit 3 if there is no such message, or if it is
    finished or under way.
    """
    return _change(app, message_id, "drop", all_dead=all_dead, channel=channel, dry_run=dry_run)


UNCONFIGURED = (
    "is not in sre.yaml, so nobody would send it; put the channel back and restart the guard, or give up with"
    " sre notify outbox drop"
)

DONE = {"retry": "sent as soon as the guard runs", "drop": "given up"}


def _change(app: App, message_id: int | None, verb: str, *, all_dead: bool, channel: str | None, dry_run: bool) -> int:
    from sre.actions.records import OutboxState

    if (message_id is None) is not all_dead or (channel is not None and not all_dead):
        raise click.UsageError("give either a message's id, or --all-dead (with --channel or without)")
    if not has_state(app):
        _require_channel(app, channel, ())
        app.note(no_state(app))
        if message_id is None:
            return ExitCode.OK
        raise Refused(f"outbox: message {message_id}: there is no such message")
    changeable = (OutboxState.HELD, OutboxState.PENDING, OutboxState.DEAD)
    with _desk(app) as desk:
        if message_id is None:
            return _change_dead(app, desk, verb, channel, dry_run=dry_run)
        row = desk.outbox_row(message_id)
        if row is not None and verb == "retry" and row.state in changeable and row.channel not in _names(app):
            raise Refused(f"outbox: message {message_id}: channel {row.channel} {UNCONFIGURED}")
        possible = row is not None and row.state in changeable and row.waits_for != "gathering"
        if possible and not dry_run:
            possible = desk.retry(message_id) if verb == "retry" else desk.drop(message_id)
    if row is None or not possible:
        state = "there is no such message" if row is None else f"it is {row.state.value}"
        if row is not None and row.state is OutboxState.DIGESTED:
            state = f"it is told in {row.digest}; change that one"
        raise Refused(f"outbox: message {message_id}: {state}; only held, pending and dead ones can be changed")
    app.note(f"message {message_id} to {row.channel} {'could be changed: ' + verb if dry_run else f'is {DONE[verb]}'}")
    return ExitCode.OK


def _change_dead(app: App, desk: OutboxDesk, verb: str, channel: str | None, *, dry_run: bool) -> int:
    loads = desk.outbox_load()
    _require_channel(app, channel, [load.channel for load in loads])
    dead = {load.channel: load.dead for load in loads if load.dead and channel in (None, load.channel)}
    # What nobody would send stays what it is: dead, and seen.
    stranded = sorted(set(dead) - _names(app)) if verb == "retry" else []
    count = 0
    for name in (name for name in dead if name not in stranded):
        change = desk.retry_dead if verb == "retry" else desk.drop_dead
        count += dead[name] if dry_run else change(name)
    app.note(f"{count} dead messages {'could be changed: ' + verb if dry_run else f'are {DONE[verb]}'}")
    for name in stranded:
        app.note(f"{dead[name]} stay dead: channel {name} {UNCONFIGURED}")
    return ExitCode.NO if stranded else ExitCode.OK


def _require_channel(app: App, name: str | None, with_messages: Sequence[str]) -> None:
    """Raise ConfigError where neither sre.yaml nor a message knows the channel: nothing of it was looked at."""
    known = sorted({*_names(app), *with_messages})
    if name is not None and name not in known:
        raise _no_channel("--channel", name, known)


def _names(app: App) -> set[str]:
    return {channel.name for channel in app.settings().notify.channels}


def _chosen(app: App, name: str | None) -> Sequence[ChannelSettings]:
    channels = app.settings().notify.channels
    if name is None:
        return channels
    chosen = [channel for channel in channels if channel.name == name]
    if not chosen:
        raise _no_channel("notify.channels", name, [channel.name for channel in channels])
    return chosen


def _no_channel(where: str, name: str, known: Sequence[str]) -> ConfigError:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return ConfigError([f"{where}: no channel {name!r}; {hint}known: {', '.join(known) or 'none'}"])


TEST_ID = re.compile(r"test-\d{8}-\d{6}")
"""Of what ``sre notify test`` sends."""


def _test_message(wall: float) -> Message:
    from sre.actions.types import Message
    from sre.incidents.report import moment

    stamp = "".join(c for c in moment(wall) if c.isdigit())
    return Message(
        incident_id=f"test-{stamp[:8]}-{stamp[8:]}",
        event="test",
        severity="ticket",
        scope="sre notify test",
        reason="test",
        summary="A test message; nothing is wrong.",
        at_wall=wall,
    )


async def _check(channels: Sequence[ChannelSettings]) -> list[dict[str, Any]]:
    from sre.adapters.notifiers.process import AppriseSender

    async with AppriseSender(os.environ) as sender:
        checks = await asyncio.gather(*(sender.check(channel) for channel in channels))
    return [
        {
            "name": channel.name,
            "kind": channel.kind,
            "severities": list(channel.severities),
            "fallback": channel.fallback,
            "shown": found.shown,
            "problems": list(found.problems),
        }
        for channel, found in zip(channels, checks, strict=True)
    ]


async def _send(channels: Sequence[ChannelSettings], message: Message, render: Renderer) -> list[dict[str, Any]]:
    from dataclasses import replace

    from sre.adapters.notifiers.process import AppriseSender
    from sre.notify.delivery import Verdict
    from sre.notify.outcomes import REMEDIES

    async def one(sender: AppriseSender, channel: ChannelSettings) -> dict[str, Any]:
        began = time.monotonic()
        result = await sender(channel, render(message, channel))
        if channel.kind == "pagerduty" and result.verdict is Verdict.DELIVERED:
            # The first message opened an incident there; nobody is to be left with it.
            result = await sender(channel, render(replace(message, event="resolve"), channel))
        return {
            "name": channel.name,
            "verdict": result.verdict.value,
            "cause": None if result.cause is None else result.cause.value,
            "detail": result.detail,
            "retry_after_seconds": result.retry_after_seconds,
            "remedy": None if result.cause is None else REMEDIES[result.cause],
            "seconds": round(time.monotonic() - began, 3),
        }

    async with AppriseSender(os.environ) as sender:
        return list(await asyncio.gather(*(one(sender, channel) for channel in channels)))


def _tried(result: dict[str, Any]) -> str:
    line = f"{result['name']:<16} {result['verdict']} in {result['seconds']:.1f} s"
    if result["cause"] is None:
        return line
    wait = result["retry_after_seconds"]
    asked = "" if wait is None else f" (the provider asks to wait {wait:.0f} s)"
    again = {
        "failed": "passes perhaps: the guard repeats it",
        "refused_now": "passes perhaps: the guard tells the fallback at once, and repeats it until it is too old",
        "rejected": "for good: repeating does not help",
        "unknown": "unknown whether it arrived: the guard repeats it a few times, a page ever more seldom after that",
        "impossible": "never sent: the guard tells the fallback at once, and repeats it until it is too old",
    }[result["verdict"]]
    return "\n".join(
        (
            f"{line}: {result['cause']}: {result['detail']}",
            f"{'':<16} {again}{asked}",
            f"{'':<16} remedy: {result['remedy']}",
        )
    )


def _renderer(app: App) -> Renderer:
    from sre.adapters.notifiers.templates import load_templates
    from sre.notify.links import Links
    from sre.notify.renderer import Renderer

    root = app.settings()
    links = Links(root.monitoring.runbook_base_url, root.monitoring.grafana_url)
    return Renderer(root.notify, load_templates(root.notify), links)


def _table(rows: Sequence[OutboxRow]) -> str:
    from sre.incidents.report import moment

    if not rows:
        return "no messages"
    lines = [f"{'id':>5}  {'queued (UTC)':<19}  {'state':<10}  {'tries':>5}  {'channel':<16}  {'event':<9}  incident"]
    for row in rows:
        lines.append(
            f"{row.id:>5}  {moment(row.created_wall)}  {row.state.value:<10}  {row.attempts:>5}  {row.channel:<16}"
            f"  {row.message.event:<9}  {row.message.incident_id}"
        )
        if row.last_error:
            lines.append(f"{'':>7}{row.last_error}")
        note = _standing(row)
        if note:
            lines.append(f"{'':>7}{note}")
    return "\n".join(lines)


def _standing(row: OutboxRow) -> str:
    """What the state alone does not say; "" where nothing is to be added."""
    from sre.actions.records import OutboxState
    from sre.incidents.report import next_try_in_seconds

    if row.state is OutboxState.DIGESTED:
        return f"told in {row.digest}"
    notes = []
    if row.state in (OutboxState.HELD, OutboxState.PENDING):
        notes.append(WAITS_FOR.get(row.waits_for, ""))
        wait = next_try_in_seconds(row)
        if wait:
            notes.append(f"next try in {wait:.0f} s")
    if row.fell_back:
        notes.append("its channel's fallback is told, too")
    if row.fallback_of is not None:
        notes.append(f"in place of message {row.fallback_of}")
    return "; ".join(filter(None, notes))


def has_state(app: App) -> bool:
    """Whether the guard of this stack ever ran. Raises StateError where its state was lost, or taken from under it."""
    from sre.adapters.store import StoreReader
    from sre.errors import StateError

    paths = app.paths()
    if StoreReader.is_there(paths.guard_db):
        return True
    from sre.wiring.seen import guard_seen

    guard = guard_seen(paths)
    if guard is not None:
        raise StateError(
            f"guard state {paths.guard_db}: not there, though a guard runs for it ({guard}): it was moved or deleted,"
            " or cannot be made, or the guard is just starting; put it back, and see the guard's log"
        )
    return False


def no_state(app: App) -> str:
    """Return what is said where there is no state yet."""
    return f"no state yet in {app.paths().root}: the guard has not run; start it with sre up"


def _reader(app: App) -> StoreReader:
    from sre.adapters.clock import SystemClock
    from sre.adapters.store import StoreReader
    from sre.watchdog.processes import boot_id

    return StoreReader.open_readonly(app.paths().guard_db, clock=SystemClock(), boot_id=boot_id())


def _desk(app: App) -> OutboxDesk:
    from sre.adapters.clock import SystemClock
    from sre.adapters.store import OutboxDesk
    from sre.watchdog.processes import boot_id

    return OutboxDesk.open(app.paths().guard_db, clock=SystemClock(), boot_id=boot_id())
