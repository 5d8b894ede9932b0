"""sre incident, sre analyze, sre notify outbox, and the old names: whole output, exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sre.actions.records import JournalEntry, OutboxMessage
from sre.actions.types import InFlightRequest, Message
from sre.adapters.incident_files import IncidentFiles
from sre.adapters.store import GuardStore
from sre.cli.main import run
from sre.settings.paths import StatePaths
from sre.testing.clock import ManualClock

ID = "inc-20270115-080000-00a1"
WALL = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SRE_CONFIG", "SRE_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def paths(short_dir: Path) -> StatePaths:
    found = StatePaths(short_dir)
    found.create()
    return found


@pytest.fixture
def hang(paths: StatePaths) -> StatePaths:
    """A stack that had a hang: SMS sent, mail dead."""
    clock = ManualClock(wall=WALL)
    files = IncidentFiles(paths.incidents)
    files.open(ID, {"scope": "engine sim-0", "reason": "hang", "severity": "page", "step_age_seconds": 3.1})
    files.write_contexts(
        ID,
        [
            InFlightRequest(
                request_id="r1", path="/v1/completions", model="sim-7b", engine="sim-0", client="127.0.0.1:5000",
                started_wall=WALL - 9, age_seconds=9.0, max_tokens=16, stream=True, bytes_sent=120,
            )
        ],
    )  # fmt: skip
    files.write_evidence(ID, "engine-log.txt", "loading\nstep 1\n\x1b[31mstep 2\n")
    message = Message(ID, "open", "page", "engine sim-0", "hang", "no step for 3.1 s", WALL)
    with GuardStore.open(paths.guard_db, clock=clock, boot_id="b") as store:
        refused = JournalEntry(
            kind="applied", action="refuse", target="pool sim-7b", reason="hang", incident_id=ID, at_wall=WALL + 0.02,
            at_monotonic=1000.02,
        )  # fmt: skip
        entry = JournalEntry(
            kind="intent", action="restart", target="sim-0", reason="hang", incident_id=ID, at_wall=WALL + 30,
            at_monotonic=1030.0,
        )  # fmt: skip
        store.commit(state="{}", journal=[refused, entry], outbox=[OutboxMessage(message, c) for c in ("sms", "mail")])
        rows = {row.channel: row for row in store.lease(owner="o", seconds=9, channels=["sms", "mail"])}
        clock.advance(0.5)
        store.mark_sent(rows["sms"].id, owner="o")
        store.mark_dead(rows["mail"].id, owner="o", error="550 no such user")
    files.resolve(ID, at_wall=WALL + 41)
    return paths


def sre(paths: StatePaths, *argv: str) -> int:
    return run(["--state-dir", str(paths.root), *argv])


def test_list(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(hang, "incident", "list") == 0
    assert capsys.readouterr().out == f"{ID}  2027-01-15 08:00:00  resolved      hang              engine sim-0\n"
    assert sre(hang, "incident", "list", "-o", "json") == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["id"], one["in_flight"], one["resolved_wall"]) == (ID, 1, WALL + 41)


def test_show(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(hang, "incident", "show", ID) == 0
    assert (
        capsys.readouterr().out
        == f"""\
{ID}  resolved 2027-01-15 08:00:41 UTC
  scope:     engine sim-0
  reason:    hang
  severity:  page
  opened:    2027-01-15 08:00:00 UTC
  lasted:    41.0 s

what was seen
  step_age_seconds: 3.1

in flight when it opened
  1 requests
    r1  /v1/completions  sim-7b  from 127.0.0.1:5000  120 bytes sent

what happened (UTC)
  2027-01-15 08:00:00      +0.00 s  queued         open for sms
  2027-01-15 08:00:00      +0.00 s  queued         open for mail
  2027-01-15 08:00:00      +0.02 s  applied        refuse pool sim-7b: hang
  2027-01-15 08:00:00      +0.50 s  sent           open to sms, 0.5 s after it was queued
  2027-01-15 08:00:30     +30.00 s  intent         restart sim-0: hang

notifications
  open      sms              sent 2027-01-15 08:00:00
  open      mail             dead, 1 tries: 550 no such user

evidence engine-log.txt (last 3 lines)
  loading
  step 1
  ?[31mstep 2
"""
    )


def test_show_json_and_timeline(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(hang, "incident", "show", ID, "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["contexts"][0]["request_id"] == "r1"
    assert [n["state"] for n in report["notifications"]] == ["sent", "dead"]
    assert sre(hang, "incident", "timeline", ID) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert sre(hang, "incident", "timeline", ID, "-o", "json") == 0
    assert [e["kind"] for e in json.loads(capsys.readouterr().out)] == ["queued", "queued", "applied", "sent", "intent"]


def test_no_label_of_an_alert_looks_like_a_line_of_ours(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    forged = "n1\ninc-20270115-080000-ffff  2027-01-15 08:00:00  resolved      all fine"
    other = "inc-20270115-080001-a001"
    files = IncidentFiles(hang.incidents)
    files.open(other, {"scope": forged, "reason": forged, "severity": "page", "summary": forged, "joined_by": forged})
    note = JournalEntry(kind="note", target=forged, reason=forged, incident_id=other, at_wall=WALL, at_monotonic=1000.0)
    with GuardStore.open(hang.guard_db, clock=ManualClock(wall=WALL), boot_id="b") as store:
        store.commit(state=None, journal=[note])
    assert sre(hang, "incident", "list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    for verb in ("show", "timeline"):
        assert sre(hang, "incident", verb, other) == 0
        out = capsys.readouterr().out
        assert "all fine" in out
        assert not [line for line in out.splitlines() if line.startswith("inc-20270115-080000-ffff")]


@pytest.mark.parametrize("wanted", ["inc-20270115-080000-ffff", "../../etc", "x"])
def test_an_unknown_incident(hang: StatePaths, capsys: pytest.CaptureFixture[str], wanted: str) -> None:
    assert sre(hang, "incident", "show", wanted) == 3
    assert capsys.readouterr().err == f"sre: incident: there is no {wanted!r}; see sre incident list\n"


def test_last_failure(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(hang, "analyze", "last-failure") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{ID}  resolved")
    assert "kernel log" in out or "could not be read" in out or "NVRM" not in out
    assert sre(hang, "analyze", "last-failure", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["in_flight"] == 1


def test_last_failure_without_any(paths: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert sre(paths, "analyze", "last-failure") == 3
    assert capsys.readouterr().out == f"no failure on record in {paths.incidents}\n"


def test_an_incident_can_be_read_although_the_store_cannot(
    hang: StatePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    hang.guard_db.write_bytes(b"")
    assert sre(hang, "incident", "show", ID) == 0
    out = capsys.readouterr().out
    assert "r1  /v1/completions" in out
    assert "could not be read\n  guard state" in out


def configure(*channels: str) -> None:
    """Write an sre.yaml with ``channels`` into the folder that commands run in."""
    listed = "".join(f"    - {{name: {name}, kind: email, url: 'env:X'}}\n" for name in channels)
    Path("sre.yaml").write_text(f"notify:\n  channels:\n{listed}")


def test_outbox(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    configure("mail")
    assert sre(hang, "notify", "outbox", "list") == 3
    captured = capsys.readouterr()
    assert captured.out == (
        "   id  queued (UTC)         state       tries  channel           event      incident\n"
        f"    2  2027-01-15 08:00:00  dead            1  mail              open       {ID}\n"
        "       550 no such user\n"
    )
    assert captured.err == "1 dead: send again with sre notify outbox retry ID or --all-dead, or give up with … drop\n"
    assert sre(hang, "notify", "outbox", "show", "2") == 0
    assert "no step for 3.1 s" in capsys.readouterr().out
    assert sre(hang, "notify", "outbox", "retry", "2", "--dry-run") == 0
    assert sre(hang, "notify", "outbox", "retry", "2") == 0
    assert capsys.readouterr().err.splitlines()[-1] == "message 2 to mail is sent as soon as the guard runs"
    assert sre(hang, "notify", "outbox", "list", "-o", "json") == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["pending"]
    assert sre(hang, "notify", "outbox", "drop", "2") == 0
    assert sre(hang, "notify", "outbox", "list") == 0
    assert capsys.readouterr().out == "no messages\n"
    assert sre(hang, "notify", "outbox", "retry", "1") == 3
    assert "message 1: it is sent; only held, pending and dead ones" in capsys.readouterr().err
    assert sre(hang, "notify", "outbox", "drop", "99") == 3
    assert "message 99: there is no such message" in capsys.readouterr().err


def test_what_nobody_would_send_is_not_called_sent_soon(hang: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    """Its channel was taken out of sre.yaml, or renamed."""
    configure("post")
    for words in (["2"], ["--all-dead"], ["--all-dead", "--channel", "mail"], ["--all-dead", "--dry-run"]):
        assert sre(hang, "notify", "outbox", "retry", *words) == 3
        err = capsys.readouterr().err
        assert "channel mail is not in sre.yaml" in err
        assert "put the channel back" in err
        assert "message 2 to mail is sent" not in err
    assert sre(hang, "notify", "outbox", "list") == 3
    assert "  dead  " in capsys.readouterr().out
    configure("post", "mail")
    assert sre(hang, "notify", "outbox", "retry", "--all-dead") == 0
    assert capsys.readouterr().err == "1 dead messages are sent as soon as the guard runs\n"


def test_a_name_that_is_misspelt_is_not_an_empty_answer(
    hang: StatePaths, paths: StatePaths, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("post")
    for verb in ("retry", "drop"):
        for more in ([], ["--dry-run"]):
            assert sre(hang, "notify", "outbox", verb, "--all-dead", "--channel", "mial", *more) == 2
            assert capsys.readouterr() == (
                "", "sre: --channel: no channel 'mial'; did you mean mail? known: mail, post\n",
            )  # fmt: skip
    assert sre(hang, "notify", "outbox", "list", "--incident", "inc-nix") == 3
    assert capsys.readouterr() == ("", "sre: incident: there is no 'inc-nix'; see sre incident list\n")
    assert sre(hang, "notify", "outbox", "list", "--digest", "digest-nix") == 3
    assert "there is no digest 'digest-nix'" in capsys.readouterr().err
    IncidentFiles(hang.incidents).open("inc-20270115-090000-00a1", {"scope": "engine sim-0", "reason": "hang"})
    assert sre(hang, "notify", "outbox", "list", "--incident", "inc-20270115-090000-00a1") == 0
    assert capsys.readouterr().out == "no messages\n", "it is there, and nobody was told"


def test_the_outbox_of_a_stack_that_never_ran(paths: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    never = f"no state yet in {paths.root}: the guard has not run; start it with sre up\n"
    assert sre(paths, "notify", "outbox", "list") == 0
    assert capsys.readouterr() == ("no messages\n", never)
    assert sre(paths, "notify", "outbox", "list", "-o", "json") == 0
    assert capsys.readouterr() == ("[]\n", never)
    assert sre(paths, "notify", "outbox", "retry", "--all-dead") == 0
    assert capsys.readouterr() == ("", never)
    assert sre(paths, "notify", "outbox", "drop", "--all-dead", "--channel", "nix") == 2
    assert "--channel: no channel 'nix'; known: " in capsys.readouterr().err
    assert sre(paths, "notify", "outbox", "list", "--incident", "nix") == 3
    assert "there is no 'nix'" in capsys.readouterr().err
    for verb in ("show", "retry", "drop"):
        assert sre(paths, "notify", "outbox", verb, "1") == 3
        assert "message 1" in capsys.readouterr().err
    assert not paths.guard_db.exists()


def test_a_lost_state_is_no_empty_list(paths: StatePaths, capsys: pytest.CaptureFixture[str]) -> None:
    paths.guard_db.with_name(paths.guard_db.name + "-wal").write_bytes(b"x")
    for words in (["notify", "outbox", "list"], ["notify", "outbox", "retry", "1"], ["incident", "ack", ID]):
        assert sre(paths, *words) == 1
        assert "corrupt" in capsys.readouterr().err


def old_name(function: str, *argv: str, state_dir: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; from sre.cli.aliases import {function}; sys.argv[0] = 'x'; {function}()"
    env = {**os.environ, "SRE_STATE_DIR": str(state_dir)}
    return subprocess.run(
        [sys.executable, "-c", code, *argv], env=env, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.integration
def test_old_names(hang: StatePaths) -> None:
    told = old_name("vllm_analyzer", "--last-failure", state_dir=hang.root)
    assert (told.returncode, told.stdout.splitlines()[0]) == (0, f"{ID}  resolved 2027-01-15 08:00:41 UTC")
    assert old_name("vllm_analyzer", state_dir=hang.root).returncode == 2
    switch = old_name("vllm_config", "--switch-model", "m", "--keep-session", "300", state_dir=hang.root)
    assert (switch.returncode, switch.stdout) == (1, "")
    assert "switching to m is not available in this version of sre; nothing was changed" in switch.stderr
    assert old_name("vllm_config", state_dir=hang.root).returncode == 2
