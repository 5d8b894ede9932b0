"""The journal: chained, counted, pruned."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sre.actions.records import JournalEntry
from sre.adapters.store import GuardStore, journal
from sre.adapters.store.alerts import AlertBook
from sre.errors import StateError
from sre.notify.alert_records import Changes, Known, Wanted
from sre.testing.clock import ManualClock
from tests.store.samples import intent

Opener = Callable[..., GuardStore]


def spent(store: GuardStore, target: str = "sim-0") -> int:
    """Restarts of the last hour, as a budget counts them."""
    counts: list[int] = []

    def look(known: Known) -> Changes:
        counts.append(known.spent["restart", target])
        return Changes()

    AlertBook(store).change(Wanted(intents=frozenset({("restart", target)})), look)
    return counts[0]


CHANGES = [
    ("UPDATE journal SET reason = 'other' WHERE seq = 3", "journal row 3 was changed"),
    ("UPDATE journal SET data = '{}' WHERE seq = 1", "journal row 1 was changed"),
    ("DELETE FROM journal WHERE seq = 4", "journal row 4 is missing"),
    ("DELETE FROM journal WHERE seq = 1", "journal row 1 is missing"),
    ("DELETE FROM journal WHERE seq = 5", "the journal ends with row 4 instead of 5"),
    ("INSERT INTO journal SELECT 6, at_wall, at_monotonic, boot_id, kind, incident_id, target, action, reason, data,"
     " prev_hash, hash FROM journal WHERE seq = 5", "journal row 6 was changed"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), CHANGES, ids=[c[1] for c in CHANGES])
def test_a_changed_journal_is_noticed_and_refused_at_the_next_start(
    open_store: Opener, db: Path, change: str, sentence: str
) -> None:
    store = open_store()
    store.commit(state="s", journal=[intent(str(n)) for n in range(5)])
    assert store.verify_chain() == 5
    store.close()
    other = sqlite3.connect(db, isolation_level=None)
    other.execute(change)
    other.close()
    with pytest.raises(StateError, match=sentence):
        open_store()


def test_the_chain_can_be_checked_from_its_newest_part(store: GuardStore) -> None:
    store.commit(state=None, journal=[intent(str(n)) for n in range(30)])
    assert store.verify_chain(last_rows=10) == 10
    assert store.verify_chain(last_rows=100) == 30


def test_pruning_keeps_the_newest_rows_and_the_chain(open_store: Opener, clock: ManualClock) -> None:
    store = open_store()
    old = clock.wall() - 10 * 86400
    store.commit(state=None, journal=[intent(str(n), at_wall=old) for n in range(40)])
    assert store.prune(journal_rows=15, journal_max_age_seconds=None, outbox_rows=10) == (25, 0)
    assert [row.entry.target for row in store.journal()] == [str(n) for n in range(25, 40)]
    assert store.verify_chain() == 15
    store.commit(state=None, journal=[intent("next", at_wall=clock.wall())])
    assert store.prune(journal_rows=1000, journal_max_age_seconds=86400, outbox_rows=10) == (15, 0)
    assert [row.entry.target for row in store.journal()] == ["next"]
    store.close()
    assert open_store().verify_chain() == 1


def test_what_a_budget_counts_is_never_pruned(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, journal=[intent(str(n), at_wall=clock.wall() - 60) for n in range(20)])
    assert store.prune(journal_rows=5, journal_max_age_seconds=1, outbox_rows=10) == (0, 0)


def test_commits_prune_by_themselves(store: GuardStore, clock: ManualClock) -> None:
    old = clock.wall() - 10 * 86400
    rows = journal.ROWS_KEPT + journal.PRUNE_SLACK
    store.commit(state=None, journal=[intent("x", at_wall=old)] * rows)
    assert len(store.journal(limit=10**6)) == rows
    store.commit(state=None, journal=[intent("x", at_wall=old)])
    assert len(store.journal(limit=10**6)) == journal.ROWS_KEPT
    assert store.verify_chain() == journal.ROWS_KEPT


def test_budgets_count_reserved_actions_by_target(store: GuardStore, clock: ManualClock) -> None:
    done = JournalEntry(
        kind="applied", action="restart", target="a", reason="hang", at_wall=clock.wall(), at_monotonic=1000.0
    )
    store.commit(state=None, journal=[intent("a"), intent("a"), intent("b"), done, intent("a", action="refuse")])
    assert [spent(store, target) for target in ("a", "b", "c")] == [2, 1, 0]


def test_budgets_survive_a_restart_and_a_reboot(open_store: Opener, clock: ManualClock) -> None:
    first = open_store("boot-1")
    first.commit(state=None, journal=[intent(at_wall=clock.wall(), at_monotonic=clock.monotonic())])
    first.close()
    again = open_store("boot-1")
    assert spent(again) == 1
    again.close()
    rebooted = open_store("boot-2")
    assert spent(rebooted) == 1
    clock.advance(3601)
    assert spent(rebooted) == 0


@settings(max_examples=40, deadline=None)
@given(jump=st.floats(-1e8, 1e8), passed=st.floats(0, 3590))
def test_a_step_of_the_wall_clock_neither_fills_nor_empties_a_budget(jump: float, passed: float) -> None:
    clock = ManualClock()
    with (
        tempfile.TemporaryDirectory() as folder,
        GuardStore.open(Path(folder) / "guard.db", clock=clock, boot_id="b") as store,
    ):
        store.commit(state=None, journal=[intent(at_wall=clock.wall(), at_monotonic=clock.monotonic())])
        clock.advance(passed)
        clock.jump_wall(jump)
        assert spent(store) == 1
        clock.advance(3601)
        assert spent(store) == 0


def test_the_journal_of_an_incident(store: GuardStore) -> None:
    other = JournalEntry(kind="note", target="t", reason="r", at_wall=1, at_monotonic=1, data={"n": [1, None, "ü"]})
    store.commit(state=None, journal=[intent(), other, intent("sim-1")])
    rows = store.journal(incident_id="inc-20270115-080000-00a1")
    assert [row.seq for row in rows] == [1, 3]
    assert [row.entry for row in store.journal(limit=2)] == [other, intent("sim-1")]
