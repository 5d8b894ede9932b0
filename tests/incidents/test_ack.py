"""sre incident ack and list, sre notify outbox list: with a guard that runs and without; whole output, exit code."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from sre.actions.records import OutboxMessage, OutboxState
from sre.adapters.clock import SystemClock
from sre.adapters.incident_files import IncidentFiles
from sre.adapters.store import GuardStore, StoreReader
from sre.cli.main import run
from sre.control.acknowledgements import Acknowledgements
from sre.control.desk import Desk
from sre.notify.escalation import Escalation
from sre.notify.policy import Dispatch, Storm
from sre.servers.guard_api import guard_app, serve_unix
from sre.settings.paths import StatePaths
from sre.testing.clock import ManualClock
from sre.watchdog.processes import boot_id
from tests.guard.world import World
from tests.store.samples import message, post

ID = "inc-20270115-080000-00a1"
WALL = 1_800_000_000.0
CONFIG = """\
notify:
  channels:
    - {name: mail, kind: email, url: "env:A"}
    - {name: chat, kind: chat, url: "env:B"}
"""


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SRE_CONFIG", "SRE_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sre.yaml").write_text(CONFIG)


@pytest.fixture
def paths(short_dir: Path) -> StatePaths:
    found = StatePaths(short_dir)
    found.create()
    return found


def store_of(paths: StatePaths, clock: ManualClock | None = None) -> GuardStore:
    return GuardStore.open(paths.guard_db, clock=clock or ManualClock(wall=WALL), boot_id="b")


@pytest.fixture
def hang(paths: StatePaths) -> StatePaths:
    """An incident with a folder, told by mail and chat; and one that is known by its messages only."""
    IncidentFiles(paths.incidents).open(ID, {"scope": "engine sim-0", "reason": "hang", "severity": "page"})
    alert = replace(message("alert-1"), severity="ticket", scope="node-17", reason="DiskFull", at_wall=WALL + 60)
    clock = ManualClock(wall=WALL)
    with store_of(paths, clock) as store:
        store.commit(state=None, outbox=[post("mail", incident=ID), post("chat", incident=ID)])
        clock.advance(60)
        store.commit(state=None, outbox=[OutboxMessage(alert, "mail")])
    return paths


def sre(paths: StatePaths, *argv: str) -> int:
    return run(["--state-dir", str(paths.root), *argv])


def test_the_list_says_how_each_stands(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(hang, "incident", "list") == 0
    assert capsys.readouterr().out == (
        "alert-1  2027-01-15 08:01:00  open          DiskFull          node-17\n"
        f"{ID}  2027-01-15 08:00:00  open          hang              engine sim-0\n"
    )
    clock = ManualClock(monotonic=5000.0, wall=WALL + 4000)
    with store_of(hang, clock) as store:
        assert store.escalate(Escalation(60, 60, 3, ("mail",))) == 1
    assert sre(hang, "incident", "ack", "alert-1", "--by", "bob") == 0
    capsys.readouterr()
    assert sre(hang, "incident", "list") == 0
    assert capsys.readouterr().out == (
        "alert-1  2027-01-15 08:01:00  acknowledged  DiskFull          node-17  (bob)\n"
        f"{ID}  2027-01-15 08:00:00  escalated     hang              engine sim-0\n"
    )
    with store_of(hang) as store:
        store.commit(state=None, told=[message("alert-1", "resolve")])
    assert sre(hang, "incident", "list", "--open", "-o", "json") == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["id"], one["state"], one["escalations"], one["severity"]) == (ID, "escalated", 1, "page")


def test_without_a_guard_the_file_is_written(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(hang, "incident", "ack", ID, "--by", "alice", "--note", "on it") == 0
    assert capsys.readouterr().out == f"{ID} is acknowledged by alice\n"
    assert sre(hang, "incident", "ack", ID, "--by", "bob", "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["outcome"], answer["incidents"], answer["by"]) == ("already_acknowledged", [], "alice")
    assert sre(hang, "incident", "ack", ID) == 0
    assert capsys.readouterr().out.startswith(f"{ID} was acknowledged already by alice at ")
    assert sre(hang, "incident", "show", ID) == 0
    shown = capsys.readouterr().out
    assert "UTC by alice: on it\n" in shown
    assert f"override       {ID}: acknowledged" in shown
    with StoreReader.open_readonly(hang.guard_db, clock=ManualClock(), boot_id="b") as reader:
        told = [(r.channel, r.message.summary) for r in reader.outbox() if r.message.event == "acknowledge"]
        assert told == [("chat", "acknowledged by alice: on it")], "nobody waits for it in a mailbox"


def test_its_head_says_how_it_stands(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    def head() -> str:
        capsys.readouterr()
        assert sre(hang, "incident", "show", ID) == 0
        return capsys.readouterr().out.splitlines()[0]

    assert head() == f"{ID}  open"
    with store_of(hang, ManualClock(monotonic=5000.0, wall=WALL + 4000)) as store:
        store.escalate(Escalation(60, 60, 3, ("mail",)))
    assert head() == f"{ID}  escalated, nobody acknowledged it"
    with store_of(hang, ManualClock(monotonic=6000.0, wall=WALL + 5000)) as store:
        store.acknowledge(ID, by="alice", note="")
    assert head() == f"{ID}  acknowledged by alice since 2027-01-15 09:23:20 UTC, not resolved"
    with store_of(hang, ManualClock(monotonic=7000.0, wall=WALL + 6000)) as store:
        store.commit(state=None, told=[message(ID, "resolve")])
    assert head() == f"{ID}  resolved 2027-01-15 09:40:00 UTC", "though its folder does not say so"


def test_what_is_over_or_unknown_is_said(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    with store_of(hang) as store:
        store.commit(state=None, told=[message(ID, "resolve")])
    assert sre(hang, "incident", "ack", ID) == 3
    assert capsys.readouterr().out == (
        f"{ID} is resolved at 2027-01-15 08:00:00 UTC; there is nothing to acknowledge\n"
    )
    assert sre(hang, "incident", "ack", "inc-20270115-080000-ffff") == 3
    assert "no message about 'inc-20270115-080000-ffff' is on record; see sre incident list" in capsys.readouterr().err


def test_a_stack_that_never_ran_has_nothing_to_acknowledge(
    paths: StatePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    never = f"no state yet in {paths.root}: the guard has not run; start it with sre up\n"
    assert sre(paths, "incident", "ack", ID) == 3
    assert capsys.readouterr().err == (
        f"{never}sre: incident: no message about '{ID}' is on record; see sre incident list\n"
    )
    assert sre(paths, "incident", "list") == 0
    assert capsys.readouterr() == ("no incidents\n", never)
    assert sre(paths, "incident", "show", ID) == 3


def test_an_incident_without_a_folder_is_shown_from_what_was_told(
    hang: StatePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sre(hang, "incident", "show", "alert-1") == 0
    out = capsys.readouterr().out
    assert out.startswith("alert-1  open\n  scope:     node-17\n  reason:    DiskFull\n  severity:  ticket\n")
    assert sre(hang, "incident", "timeline", "alert-1") == 0
    assert "open for mail" in capsys.readouterr().out


async def test_a_guard_that_runs_is_asked(hang: StatePaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, woken = World(tmp_path), []
    await world.tick()
    assert world.guard is not None
    with store_of(hang) as store:
        acknowledge = Acknowledgements(store, ("chat",), wake=lambda: woken.append(True))
        desk = Desk(world.guard, world.policy, world.clock, acknowledge=acknowledge)
        async with serve_unix(guard_app(desk), hang.guard_socket):
            assert await asyncio.to_thread(sre, hang, "incident", "ack", ID, "--by", "alice") == 0
            assert await asyncio.to_thread(sre, hang, "incident", "ack", ID, "--by", "bob") == 0
            assert await asyncio.to_thread(sre, hang, "incident", "ack", "nothing") == 3
            store.close()
            assert await asyncio.to_thread(sre, hang, "incident", "ack", ID) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"{ID} is acknowledged by alice"
    assert "already by alice" in out.splitlines()[1]
    assert "guard state" in err.splitlines()[-1]
    assert woken == [True]
    await world.bury()


async def test_a_guard_of_an_older_version_that_still_runs_is_understood(
    hang: StatePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its answer has what it had before notices could be quieted."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"outcome": "acknowledged", "incidents": [ID], "by": "alice", "at_wall": WALL})

    app = web.Application()
    app.router.add_post("/acknowledge", answer)
    async with serve_unix(app, hang.guard_socket):
        assert await asyncio.to_thread(sre, hang, "incident", "ack", ID, "--by", "alice") == 0
    assert capsys.readouterr().out == f"{ID} is acknowledged by alice\n"


async def test_a_guard_without_a_store_says_so(
    hang: StatePaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path)
    await world.tick()
    assert world.guard is not None
    async with serve_unix(guard_app(Desk(world.guard, world.policy, world.clock)), hang.guard_socket):
        assert await asyncio.to_thread(sre, hang, "incident", "ack", ID) == 1
    assert "cannot be trusted, so nothing can be acknowledged" in capsys.readouterr().err
    await world.bury()


def test_a_digest_and_what_it_tells_are_found(paths: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    storm = Dispatch(Storm(1, 100.0))
    with store_of(paths) as store:
        store.commit(state=None, outbox=[post(incident=f"alert-{n}") for n in range(4)])
        rows = [store.lease(owner="o", seconds=9, channels=["mail"], dispatch=storm)[0] for _ in range(2)]
        digest = rows[1].message.incident_id
        store.mark_dead(rows[1].id, owner="o", error="550", fallback="sms")
    assert sre(paths, "notify", "outbox", "list") == 3
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[3:6] == ["sending", "1", "mail"]
    assert f"mail              digest     {digest}" in out[2]
    assert out[3:5] == ["       550", "       its channel's fallback is told, too"]
    assert out[-1] == "       in place of message 5"
    assert sre(paths, "notify", "outbox", "list", "--digest", digest) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in out[1::2]] == ["alert-1", "alert-2", "alert-3"]
    assert out[2] == f"       told in {digest}"
    assert sre(paths, "notify", "outbox", "retry", "2") == 3
    assert f"message 2: it is told in {digest}; change that one" in capsys.readouterr().err
    assert sre(paths, "incident", "ack", digest, "--by", "alice") == 0
    assert capsys.readouterr().out == f"{digest} is acknowledged by alice (3 incidents)\n"
    assert sre(paths, "notify", "outbox", "retry", "5") == 0
    with StoreReader.open_readonly(paths.guard_db, clock=ManualClock(), boot_id="b") as reader:
        row = reader.outbox_row(5)
        assert row is not None
        assert (row.state, row.waits_for) == (OutboxState.PENDING, "by_hand")


def test_the_newest_are_listed_and_more_are_said(paths: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    with store_of(paths) as store:
        store.commit(state=None, outbox=[post(incident=f"alert-{n}") for n in range(5)])
    assert sre(paths, "notify", "outbox", "list", "--limit", "2") == 0
    captured = capsys.readouterr()
    assert [line.split()[-1] for line in captured.out.splitlines()[1:]] == ["alert-3", "alert-4"]
    assert captured.err == "the newest 2 are listed; more with --limit\n"
    assert sre(paths, "notify", "outbox", "list", "--incident", "alert-0", "-o", "json") == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["incident_id"], one["waits_for"], one["digest"]) == ("alert-0", None, None)


def test_all_that_is_dead_at_once(paths: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    with store_of(paths) as store:
        store.commit(state=None, outbox=[post(c, incident=f"alert-{n}") for n in range(2) for c in ("mail", "sms")])
        for row_id in range(1, 5):
            store.mark_dead(row_id, owner="o", error="535")
    outbox = ("notify", "outbox")
    assert sre(paths, *outbox, "retry", "--all-dead", "--channel", "mail", "--dry-run") == 0
    assert capsys.readouterr().err == "2 dead messages could be changed: retry\n"
    assert sre(paths, *outbox, "retry", "--all-dead", "--channel", "mail") == 0
    assert capsys.readouterr().err == "2 dead messages are sent as soon as the guard runs\n"
    assert sre(paths, *outbox, "drop", "--all-dead") == 0
    assert capsys.readouterr().err == "2 dead messages are given up\n"
    assert sre(paths, *outbox, "list") == 0
    for wrong in (("retry",), ("drop", "1", "--all-dead"), ("retry", "1", "--channel", "mail")):
        assert sre(paths, *outbox, *wrong) == 2
        assert "give either a message's id, or --all-dead" in capsys.readouterr().err


def test_what_is_no_incident_says_so(paths: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    notice, canary = "limit-lim-20270115-08", "canary-c1"
    with store_of(paths) as store:
        store.commit(state=None, outbox=[post(incident=notice, event="blind"), post(incident=canary, event="test")])
    for name, what in ((notice, "a notice"), (canary, "a test"), ("test-20270115-080000", "a test")):
        assert sre(paths, "incident", "ack", name) == 3
        assert capsys.readouterr().out == f"{name} is {what}: nothing to acknowledge\n"
    with store_of(paths) as store:
        store.mark_failed(1, owner="o", error="cut off", retry_after_seconds=900, unknown_outcomes=3)
    assert sre(paths, "incident", "ack", notice) == 0
    assert capsys.readouterr().out == f"{notice} is a notice: nothing to acknowledge; it is not repeated any more\n"


def test_a_message_that_waits_says_when_it_is_tried_next(paths: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    with GuardStore.open(paths.guard_db, clock=SystemClock(), boot_id=boot_id()) as store:
        store.commit(state=None, outbox=[post(incident="alert-1"), post(incident="alert-2")])
        store.mark_failed(1, owner="o", error="cut off", retry_after_seconds=90_000, unknown_outcomes=3)
        store.mark_dead(2, owner="o", error="550")
    assert sre(paths, "notify", "outbox", "list", "-o", "json") == 3
    waiting, dead = json.loads(capsys.readouterr().out)
    assert 80_000 < waiting["next_try_in_seconds"] <= 90_000
    assert (waiting["unknown_outcomes"], dead["next_try_in_seconds"]) == (3, None)
    for command in (("list",), ("show", "1")):
        sre(paths, "notify", "outbox", *command)
        assert re.search(r"^       next try in [89]\d{4} s$", capsys.readouterr().out, re.MULTILINE), command


def test_no_name_fills_the_list(paths: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    alert = replace(message("alert-1"), reason="A" * 5000, scope="s" * 5000)
    with store_of(paths) as store:
        store.commit(state=None, outbox=[OutboxMessage(alert, "mail")])
    assert sre(paths, "incident", "list") == 0
    out = capsys.readouterr().out
    assert f"  {'A' * 117}...  {'s' * 117}...\n" in out


def test_an_answer_that_nobody_gets_is_no_success(paths: StatePaths) -> None:
    command = f'exec "{sys.executable}" -m sre --state-dir "{paths.root}" notify outbox list >&-'
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert ran.stderr == "sre: the output cannot be written: stdout is closed\n"
