"""A file of version 1 is brought up to date where it lies; nothing of it is lost, whenever the guard dies meanwhile."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sre.actions.records import OutboxState
from sre.adapters.store import GuardStore, OutboxDesk, StoreReader
from sre.adapters.store.migrate import migrate
from sre.adapters.store.schema import SCHEMA_VERSION
from sre.errors import StateError
from sre.testing.clock import ManualClock
from tests.store import version_1
from tests.store.samples import outbox_counts, post

Opener = Callable[..., GuardStore]


@pytest.fixture
def old(db: Path) -> Path:
    version_1.make(db)
    return db


def test_everything_is_there_afterwards(old: Path, open_store: Opener) -> None:
    store = open_store()
    assert version_1.version(old) == SCHEMA_VERSION
    assert store.load_state() == version_1.STATE
    assert store.verify_chain() == 3
    rows = store.outbox()
    assert [(r.message.incident_id, r.message.event, r.channel, r.state.value, r.attempts) for r in rows] == [
        row[:5] for row in version_1.ROWS
    ]
    assert [r.id for r in rows] == list(range(1, len(rows) + 1))
    assert {r.severity for r in rows} == {"page"}, "the end of a page's incident is as urgent as the page"


def test_messages_that_waited_go_on_as_they_were(old: Path, open_store: Opener) -> None:
    store = open_store()
    taken = store.lease(owner="me", seconds=30, channels=["mail", "sms"])
    assert [(r.message.incident_id, r.message.event, r.channel) for r in taken] == [
        ("inc-over", "resolve", "mail"),
        ("inc-now", "open", "sms"),
    ]
    assert outbox_counts(store)[OutboxState.DEAD] == 1


def test_no_number_is_given_twice(old: Path, open_store: Opener) -> None:
    store = open_store()
    store.commit(state=None, outbox=[post(incident="new")])
    assert store.outbox()[-1].id == version_1.PRUNED + 1


def test_incidents_are_known_and_old_ones_call_nobody(old: Path, open_store: Opener) -> None:
    store = open_store()
    found = {one.id: one.resolved_wall is not None for one in store.incidents()}
    assert found == {"inc-over": True, "inc-now": False, "inc-dead": False, "inc-held": False}
    assert store.unacknowledged() == {"page": 3}


def test_a_damaged_payload_does_not_keep_the_rest_back(old: Path, open_store: Opener) -> None:
    connection = sqlite3.connect(old)
    connection.execute("UPDATE outbox SET payload = '{' WHERE id = 1")
    connection.commit()
    connection.close()
    store = open_store()
    assert store.load_state() == version_1.STATE
    assert [r.channel for r in store.lease(owner="me", seconds=30, channels=["sms"])] == ["sms"]
    damaged = next(row for row in store.outbox() if row.id == 1)
    assert damaged.message.reason == "unreadable", "and a person is told that there was a page"
    assert f"sre incident show {damaged.message.incident_id}" in damaged.message.summary


@pytest.mark.parametrize("opened", [StoreReader.open_readonly, OutboxDesk.open], ids=["reader", "desk"])
def test_only_the_guard_changes_the_file(old: Path, clock: ManualClock, opened: Callable[..., object]) -> None:
    before = old.read_bytes()
    with pytest.raises(
        StateError,
        match=r"by an older sre \(schema 1, this one reads 4\).*sre down, then sre up; or end sre webhook serve",
    ):
        opened(old, clock=clock, boot_id="boot-1")
    assert old.read_bytes() == before


def test_a_version_that_never_was_is_corrupt(db: Path, open_store: Opener) -> None:
    version_1.make(db)
    connection = sqlite3.connect(db, isolation_level=None)
    connection.execute("PRAGMA user_version=0")
    connection.close()
    with pytest.raises(StateError, match="corrupt"):
        open_store()


def test_a_reader_that_was_there_before_sees_one_version_or_the_other(old: Path, open_store: Opener) -> None:
    reader = sqlite3.connect(old)
    try:
        assert reader.execute("SELECT count(*) FROM outbox").fetchone() == (len(version_1.ROWS),)
        open_store()
        assert reader.execute("SELECT count(*) FROM outbox WHERE severity = 'page'").fetchone() == (
            len(version_1.ROWS),
        )
    finally:
        reader.close()


def test_a_full_disk_leaves_the_old_file(old: Path, open_store: Opener, clock: ManualClock) -> None:
    connection = sqlite3.connect(old, isolation_level=None)
    try:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            migrate(connection, clock=clock, boot_id="boot-1")
    finally:
        connection.close()
    assert version_1.version(old) == 1
    assert open_store().load_state() == version_1.STATE


@pytest.mark.integration
def test_killed_before_any_statement_the_file_is_whole_and_of_one_version(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.store.migrate_loop", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.stderr == ""
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert lines[-1]["died_before"] is None
    assert len(lines) > 30
    versions = [line["version"] for line in lines]
    assert versions == sorted(versions)
    assert set(versions) == {1, SCHEMA_VERSION}, "deaths fell on both sides of the commit"
    outcomes = {json.dumps([line[k] for k in ("state", "chain", "outbox", "incidents")]) for line in lines}
    assert len(outcomes) == 1, "whenever it died, the next guard finds the same"
    assert {"BEGIN IMMEDIATE", "COMMIT", "DROP TABLE outbox_1"} <= {str(line["died_before"]) for line in lines}
