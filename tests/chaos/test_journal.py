"""The journal: written ahead, readable after any death of its writer, and never trusted blindly."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sre.watchdog.journal import Journal, JournalUnreadable, JournalUnwritable, Story, check_folder
from tests.chaos.records import planned, text


def test_reads_back_what_was_written(short_dir: Path) -> None:
    journal = Journal.create(short_dir, "run-1")
    journal.append("planned", **planned(short_dir))
    journal.append("injecting", step=0)
    story = journal.read()
    assert story.plan is not None
    assert story.plan.run_id == "run-1"
    assert story.begun == {0}
    assert not story.finished


def test_folder_is_private_and_the_file_too(short_dir: Path) -> None:
    journal = Journal.create(short_dir, "run-1")
    assert journal.path.parent.stat().st_mode & 0o777 == 0o700
    assert journal.path.stat().st_mode & 0o777 == 0o600


def test_a_run_id_is_used_once(short_dir: Path) -> None:
    Journal.create(short_dir, "run-1")
    with pytest.raises(JournalUnwritable, match="exists"):
        Journal.create(short_dir, "run-1")


def test_torn_last_line_means_that_any_step_may_have_begun(short_dir: Path) -> None:
    data = text(planned(short_dir, steps=2)) + b'{"record": "injec'
    story = Story.parse(data)
    assert story.torn
    assert story.begun == {0, 1}
    assert not story.finished


def test_torn_first_line_means_that_nothing_was_injected(short_dir: Path) -> None:
    story = Story.parse(text(planned(short_dir))[:-20])
    assert story.plan is None
    assert story.begun == frozenset()


def test_append_after_a_torn_line_keeps_the_journal_readable(short_dir: Path) -> None:
    journal = Journal.create(short_dir, "run-1")
    journal.path.write_bytes(text(planned(short_dir)) + b'{"record": "injec')
    journal.append("reverting", by="recover", cause="test")
    journal.append("closed", outcome="reverted")
    story = journal.read()
    assert story.begun == {0}
    assert story.finished


def test_deed_begun_after_the_closing_opens_the_run_again(short_dir: Path) -> None:
    data = text(planned(short_dir), {"record": "closed"}, {"record": "injecting", "step": 0})
    assert not Story.parse(data).finished


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": 2}, "schema 2"),
        ({"steps": [{"name": "x"}]}, "KeyError"),
        ({"lease_seconds": "soon"}, "ValueError"),
        ({"injector": None}, "TypeError"),
    ],
)
def test_plan_that_cannot_be_understood_is_unreadable(short_dir: Path, change: dict[str, Any], why: str) -> None:
    with pytest.raises(JournalUnreadable, match=why):
        Story.parse(text({**planned(short_dir), **change}))


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\n" + text({"record": "closed"}),
        text({"record": "injecting", "step": 0}),
        b"[1]\n" + text({"record": "closed"}),
    ],
)
def test_garbage_in_the_middle_is_unreadable(data: bytes) -> None:
    with pytest.raises(JournalUnreadable):
        Story.parse(data)


def test_folder_that_others_may_write_in_is_refused(short_dir: Path) -> None:
    short_dir.chmod(0o777)
    with pytest.raises(JournalUnwritable, match="chmod go-w"):
        Journal.create(short_dir, "run-1")


def test_link_to_a_folder_is_refused(short_dir: Path) -> None:
    (short_dir / "real").mkdir(mode=0o700)
    (short_dir / "link").symlink_to(short_dir / "real")
    with pytest.raises(JournalUnwritable, match="not a folder"):
        check_folder(short_dir / "link")


def test_folder_under_a_place_where_everybody_may_write_is_refused(short_dir: Path) -> None:
    shared = short_dir / "shared"
    shared.mkdir()
    shared.chmod(0o777)  # without the sticky bit: anybody may replace what is in it
    (shared / "chaos").mkdir(mode=0o700)
    with pytest.raises(JournalUnwritable, match="everybody may write"):
        check_folder(shared / "chaos")


def test_full_disk_is_said_and_not_swallowed(short_dir: Path) -> None:
    journal = Journal(Path("/dev/full"))
    with pytest.raises(JournalUnwritable):
        journal.append("planned", **planned(short_dir))


def test_journal_that_is_no_file_of_ours_is_unreadable(short_dir: Path) -> None:
    journal = Journal.create(short_dir, "run-1")
    journal.path.rename(short_dir / "elsewhere")
    journal.path.symlink_to(short_dir / "elsewhere")
    with pytest.raises(JournalUnreadable):
        journal.read()
    with pytest.raises(JournalUnreadable, match="not a file of ours"):
        Journal(Path("/dev/zero")).read()
    os.mkfifo(short_dir / "fifo")
    with pytest.raises(JournalUnreadable, match="not a file of ours"):
        Journal(short_dir / "fifo").read()


def test_lock_held_by_another_does_not_stop_who_waits(short_dir: Path) -> None:
    journal = Journal.create(short_dir, "run-1")
    with journal.locked(1.0) as first, journal.locked(0.05) as second:
        assert first
        assert not second


def test_records_carry_both_clocks(short_dir: Path) -> None:
    journal = Journal.create(short_dir, "run-1")
    journal.append("planned", **planned(short_dir))
    record = json.loads(journal.path.read_text())
    assert {"wall", "monotonic"} <= record.keys()
    assert os.path.getsize(journal.path) < 4096
