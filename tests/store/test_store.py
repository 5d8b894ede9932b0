"""The file: whole or refused, one writer, all or nothing."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sre.actions.records import JournalEntry, OutboxState
from sre.adapters.store import GuardStore, StoreReader
from sre.errors import StateError
from sre.testing.clock import ManualClock
from tests.store.samples import intent, outbox_counts, post

Opener = Callable[..., GuardStore]


def test_a_new_store_has_no_state_and_nobody_else_may_read_it(store: GuardStore, db: Path) -> None:
    assert store.load_state() is None
    assert stat.S_IMODE(db.stat().st_mode) == 0o600
    assert not list(db.parent.glob("*.new*"))


def test_what_was_committed_is_there_after_a_restart(open_store: Opener) -> None:
    first = open_store()
    first.commit(state='{"a": 1}', journal=[intent()], outbox=[post(), post("sms", hold=2)])
    first.commit(state=None, journal=[intent("sim-1")])
    first.close()
    second = open_store("boot-2")
    assert second.load_state() == '{"a": 1}'
    assert [row.entry for row in second.journal()] == [intent(), intent("sim-1")]
    assert [(row.channel, row.state) for row in second.outbox()] == [
        ("mail", OutboxState.PENDING),
        ("sms", OutboxState.HELD),
    ]
    assert second.outbox()[0].message == post().message
    assert second.verify_chain() == 2


def test_a_commit_that_fails_leaves_nothing(store: GuardStore) -> None:
    store.commit(state="before", journal=[intent()], outbox=[post()])
    unwritable = JournalEntry(kind="note", target="x", reason="y", at_wall=0, at_monotonic=0, data={"what": object()})
    with pytest.raises(StateError, match="journal entry note y for x"):
        store.commit(state="after", journal=[intent("sim-1"), unwritable], outbox=[post("sms")])
    assert store.load_state() == "before"
    assert len(store.journal()) == 1
    assert [row.channel for row in store.outbox()] == ["mail"]
    store.commit(state="later")
    assert store.load_state() == "later"


@pytest.mark.parametrize("text", ["\ud800", "a" * 10], ids=["lone surrogate", "plain"])
def test_odd_text_is_an_error_of_ours_or_is_kept(store: GuardStore, text: str) -> None:
    entry = JournalEntry(kind="note", target=text, reason="r", at_wall=0, at_monotonic=0)
    if text.isascii():
        store.commit(state=None, journal=[entry])
        assert store.journal()[0].entry == entry
    else:
        with pytest.raises(StateError):
            store.commit(state=None, journal=[entry])
        assert store.journal() == []


def test_a_second_guard_is_refused_with_the_pid_of_the_first(store: GuardStore, db: Path, clock: ManualClock) -> None:
    with pytest.raises(StateError) as caught:
        GuardStore.open(db, clock=clock, boot_id="boot-1")
    assert str(caught.value) == (
        f"guard state {db}: in use by a guard with pid {os.getpid()}; stop that one first, or use another --state-dir"
    )
    store.close()
    GuardStore.open(db, clock=clock, boot_id="boot-1").close()


def test_readers_see_commits_while_the_guard_writes(store: GuardStore, db: Path, clock: ManualClock) -> None:
    with StoreReader.open_readonly(db, clock=clock, boot_id="boot-1") as reader:
        assert reader.load_state() is None
        store.commit(state="s", outbox=[post()])
        assert reader.load_state() == "s"
        assert outbox_counts(reader)[OutboxState.PENDING] == 1
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._connection.execute("DELETE FROM state")


def test_a_reader_needs_no_guard_that_runs(store: GuardStore, db: Path, clock: ManualClock) -> None:
    store.commit(state="s")
    store.close()
    with StoreReader.open_readonly(db, clock=clock, boot_id="boot-1") as reader:
        assert reader.load_state() == "s"


def test_a_reader_without_a_store_is_told_to_start_one(db: Path, clock: ManualClock) -> None:
    with pytest.raises(StateError, match="not there; the guard has not run yet, or it was moved or deleted"):
        StoreReader.open_readonly(db, clock=clock, boot_id="b")
    assert not db.exists()


def test_commits_of_many_threads_take_turns(store: GuardStore) -> None:
    threads = [
        threading.Thread(target=lambda: [store.commit(state="s", journal=[intent()]) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.verify_chain() == 80


def closed_copy(open_store: Opener, db: Path) -> bytes:
    store = open_store()
    store.commit(state='{"openings": 3}', journal=[intent(str(n)) for n in range(50)], outbox=[post()])
    store.close()
    return db.read_bytes()


def test_an_empty_file_is_corrupt_not_new(open_store: Opener, db: Path) -> None:
    db.touch()
    with pytest.raises(StateError) as caught:
        open_store()
    assert "corrupt (the file is empty); the guard does not act" in str(caught.value)
    assert f"mv {db} {db}.corrupt" in str(caught.value)


def test_a_lost_file_whose_log_is_left_is_corrupt_not_new(open_store: Opener, db: Path) -> None:
    store = open_store()
    store.commit(state="s")
    db.unlink()
    with pytest.raises(StateError, match="moved, replaced or deleted"):
        store.commit(state="t")
    shutil.copy(f"{db}-wal", f"{db}-kept")
    store.close()
    os.replace(f"{db}-kept", f"{db}-wal")
    with pytest.raises(StateError, match=r"the file is gone, its log guard\.db-wal is still there"):
        open_store()


def test_a_foreign_database_is_refused(open_store: Opener, db: Path) -> None:
    with sqlite3.connect(db) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(StateError, match="not one of ours"):
        open_store()


def test_a_newer_schema_is_refused_and_left_alone(open_store: Opener, db: Path) -> None:
    closed_copy(open_store, db)
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("PRAGMA user_version=7")
    other.close()
    before = db.read_bytes()
    with pytest.raises(StateError, match=r"written by a newer sre \(schema 7, this one knows 4\)"):
        open_store()
    assert db.read_bytes() == before


def test_a_state_that_was_edited_by_hand_is_refused(open_store: Opener, db: Path) -> None:
    closed_copy(open_store, db)
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("UPDATE state SET document = replace(document, '3', '0')")
    other.close()
    with pytest.raises(StateError, match="does not match its checksum"):
        open_store()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_never_taken_for_another_state(tmp_path: Path, data: st.DataObject) -> None:
    """Cut or overwrite any part: the store opens with the state that was there, or not at all."""
    clock = ManualClock()
    folder = tmp_path / "whole"
    if not folder.exists():
        folder.mkdir()
        with GuardStore.open(folder / "guard.db", clock=clock, boot_id="b") as store:
            store.commit(state='{"openings": 3}', journal=[intent(str(n)) for n in range(50)], outbox=[post()])
    raw = bytearray((folder / "guard.db").read_bytes())
    if data.draw(st.booleans(), label="cut"):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1), label="length")]
    else:
        at = data.draw(st.integers(0, len(raw) - 1), label="at")
        raw[at : at + 512] = random.Random(data.draw(st.integers(0, 9), label="seed")).randbytes(
            min(512, len(raw) - at)
        )
    damaged = tmp_path / "damaged"
    shutil.rmtree(damaged, ignore_errors=True)
    damaged.mkdir()
    (damaged / "guard.db").write_bytes(raw)
    try:
        with GuardStore.open(damaged / "guard.db", clock=clock, boot_id="b") as store:
            assert store.load_state() == '{"openings": 3}'
            assert len(store.journal()) == 50
    except StateError:
        pass


def test_a_full_file_refuses_the_commit_and_keeps_what_it_had(store: GuardStore) -> None:
    store.commit(state="small", outbox=[post()])
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StateError, match="the disk is full; free space there"):
        store.commit(state="x" * 500_000, journal=[intent()], outbox=[post("sms")])
    assert store.load_state() == "small"
    assert store.journal() == []
    assert [row.channel for row in store.outbox()] == ["mail"]
    store._connection.execute("PRAGMA max_page_count=1000000")
    store.commit(state="x" * 500_000, journal=[intent()])
    assert store.verify_chain() == 1


REFUSED_BY_THE_SYSTEM = """
import resource, signal, sys
from pathlib import Path
from sre.adapters.clock import SystemClock
from sre.adapters.store import GuardStore
from sre.errors import StateError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = GuardStore.open(Path(sys.argv[1]), clock=SystemClock(), boot_id="b")
store.commit(state="small")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, hard))
try:
    store.commit(state="x" * 300_000)
except StateError as error:
    print(error)
print(store.load_state())
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
store.commit(state="y" * 300_000)
print(len(store.load_state()))
store.close()
"""


@pytest.mark.integration
def test_a_write_that_the_system_refuses_is_a_sentence_and_the_store_goes_on(db: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", REFUSED_BY_THE_SYSTEM, str(db)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stderr == ""
    sentence, state, length = run.stdout.splitlines()
    assert sentence.startswith(f"guard state {db}: the disk ")
    assert (state, length) == ("small", "300000")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere; nobody may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_cannot_be_written_is_a_sentence(short_dir: Path, clock: ManualClock) -> None:
    folder = short_dir / "state"
    folder.mkdir(mode=0o755)
    short_dir.chmod(0o755)
    with GuardStore.open(folder / "guard.db", clock=clock, boot_id="b") as store:
        store.commit(state="s")
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    try:
        with as_nobody(), pytest.raises(StateError, match="Permission denied; check owner, mode"):
            GuardStore.open(folder / "guard.db", clock=clock, boot_id="b")
    finally:
        folder.chmod(0o755)


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(StateError, match="No such file or directory"):
        GuardStore.open(tmp_path / "none" / "guard.db", clock=clock, boot_id="b")


def test_a_refused_open_leaves_no_descriptor_open(open_store: Opener, db: Path) -> None:
    db.touch()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(StateError):
            open_store()
    assert len(os.listdir("/proc/self/fd")) == before


def test_file_size_stays_bounded(store: GuardStore, db: Path) -> None:
    """Ten thousand commits of a 2 kB state leave a file and a log of a few megabytes."""
    for n in range(2_000):
        store.commit(state=f"{n}" * 500)
    total = sum(file.stat().st_size for file in db.parent.iterdir())
    assert total < 12_000_000
