"""Many messages as one: what a digest tells, how it is made, and that what it told has an end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sre.actions import facts
from sre.actions.records import AckOutcome, OutboxState
from sre.adapters.store import GuardStore, OutboxDesk
from sre.adapters.store.digests import GATHERED_AT_ONCE
from sre.notify.digest import IDS_NAMED
from sre.notify.notices import NO_END
from sre.notify.policy import Dispatch, Storm
from sre.testing.clock import ManualClock
from tests.store.samples import outbox_counts, post
from tests.store.sending import send, take, told

Opener = Callable[..., GuardStore]


def test_more_than_the_limit_is_told_as_one_and_every_incident_is_found_again(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(50)])
    sent = send(store)
    assert told(sent) == ["open i0", "open i1", "open i2", "digest"]
    digest = sent[-1].message
    assert digest.summary == "47 messages in 0 s: 47 begun, 0 escalated, 0 ended"
    assert (digest.event, digest.severity, digest.scope, digest.reason) == ("digest", "page", "47 incidents", "storm")
    named = dict(digest.facts)[facts.INCIDENTS]
    assert named == ", ".join(f"i{n}" for n in range(3, 3 + IDS_NAMED)) + ", and 27 more"
    assert dict(digest.facts)[facts.NEXT] == f"sre notify outbox list --digest {digest.incident_id}"
    members = store.outbox(digest=digest.incident_id)
    assert [row.message.incident_id for row in members] == [f"i{n}" for n in range(3, 50)]
    assert {(row.state, row.digest) for row in members} == {(OutboxState.DIGESTED, digest.incident_id)}
    assert [e.entry.reason for e in store.journal()] == ["digest_storm"]


def test_digests_keep_a_distance_and_one_message_more_comes_by_itself(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(10)])
    assert told(send(store))[-1] == "digest"
    store.commit(state=None, outbox=[post(incident="late")])
    assert send(store) == []
    clock.advance(10)
    assert told(send(store)) == ["open late"], "a digest of one says less"
    store.commit(state=None, outbox=[post(incident=f"more{n}") for n in range(2)])
    clock.advance(9)
    assert send(store) == []
    clock.advance(1)
    assert told(send(store)) == ["digest"]
    clock.advance(100)
    store.commit(state=None, outbox=[post(incident="calm")])
    assert told(send(store)) == ["open calm"]


def test_what_was_told_by_itself_ends_by_itself_though_there_is_a_storm(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(9)])
    send(store)
    store.commit(state=None, outbox=[post(incident=f"i{n}", event="resolve") for n in range(3)])
    assert told(send(store)) == ["resolve i0", "resolve i1", "resolve i2"]


def test_what_a_digest_told_ends_once_for_all(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(9)])
    digest = send(store)[-1].message
    clock.advance(50)
    for n in range(3, 8):
        store.commit(state=None, outbox=[post(incident=f"i{n}", event="resolve")])
        store.commit(state=None, outbox=[post(incident=f"i{n}", event="resolve")])
    assert send(store) == []
    store.commit(state=None, outbox=[post(incident="i8", event="resolve")])
    (over,) = send(store)
    assert (over.message.incident_id, over.message.event) == (digest.incident_id, "resolve")
    assert over.message.summary == f"all incidents of {digest.incident_id} are over"
    assert len(store.outbox(digest=digest.incident_id)) == 12, "six beginnings, six ends"


def test_a_storm_that_is_over_before_its_digest_went_out_is_one_message(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(6)])
    rows = [take(store) for _ in range(4)]
    digest = rows[-1]
    assert digest is not None
    assert digest.is_digest
    store.mark_failed(digest.id, owner="me", error="451", retry_after_seconds=500)
    store.commit(state=None, outbox=[post(incident=f"i{n}", event="resolve") for n in (3, 4, 5)])
    row = take(store)
    assert row is not None
    assert (row.message.event, row.opened) == ("resolve", digest.message)
    assert store.outbox_row(digest.id).state is OutboxState.SUPERSEDED  # type: ignore[union-attr]


def test_beginnings_that_are_over_and_ends_are_a_digest_that_opens_nothing(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(9)])
    store.commit(state=None, outbox=[post(incident=f"i{n}", event="resolve") for n in range(9)])
    sent = send(store)
    assert told(sent) == ["resolve i0", "resolve i1", "resolve i2", "digest"]
    assert sent[-1].message.event == "resolve", "a paging service would open an incident for a digest"
    assert sent[-1].message.summary == "6 messages in 0 s: 0 begun, 0 escalated, 6 ended"


def test_a_digest_of_notices_says_that_it_has_no_end(store: GuardStore) -> None:
    for event, said in (("blind", NO_END), ("open", None)):
        store.commit(state=None, outbox=[post(event, incident=f"{event}-{n}", event=event) for n in range(9)])
        *_, digest = send(store, channel=event)
        assert digest.message.event == "digest"
        assert dict(digest.message.facts).get(facts.MEANING) == said


def test_a_digest_that_fails_is_repeated_as_it_was(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(9)])
    for _ in range(3):
        take(store)
    first = take(store)
    assert first is not None
    store.mark_failed(first.id, owner="me", error="x", retry_after_seconds=5)
    store.commit(state=None, outbox=[post(incident="late")])
    clock.advance(5)
    again = take(store)
    assert again is not None
    assert (again.id, again.message) == (first.id, first.message)


def test_a_large_digest_is_put_together_a_part_at_a_time(open_store: Opener, clock: ManualClock) -> None:
    store = open_store()
    count = 2 * GATHERED_AT_ONCE + 7
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(count)])
    sent = send(store)
    assert sent[-1].message.scope == f"{count - 3} incidents"
    assert outbox_counts(store)[OutboxState.DIGESTED] == count - 3


def test_a_digest_whose_maker_died_is_completed_by_the_next(open_store: Opener, db: Path, clock: ManualClock) -> None:
    """Killed between two parts: the first part is on disk, the rest is not."""
    store = open_store()
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(GATHERED_AT_ONCE + 9)])
    for _ in range(3):
        take(store)
    commits = 0

    def dies(statement: str) -> None:
        nonlocal commits
        commits += statement == "BEGIN IMMEDIATE"
        if commits == 2:
            store._connection.execute("PRAGMA query_only=1")

    store._connection.set_trace_callback(dies)
    with pytest.raises(Exception, match="cannot be opened for writing"):
        take(store)
    store.close()
    second = open_store()
    assert outbox_counts(second)[OutboxState.DIGESTED] == GATHERED_AT_ONCE
    second.commit(state=None, outbox=[post(incident="meanwhile")])
    row = next(r for r in send(second) if r.is_digest)
    assert row.message.scope == f"{GATHERED_AT_ONCE + 6} incidents", "what came meanwhile is for the next one"


def test_while_a_digest_is_put_together_others_write(open_store: Opener, clock: ManualClock) -> None:
    store = open_store()
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(8 * GATHERED_AT_ONCE)])
    for _ in range(3):
        take(store)
    done: list[int] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            store.commit(state="s")
            done.append(store._connection.execute("SELECT count(*) FROM outbox WHERE state = 'digested'").fetchone()[0])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert take(store) is not None
    finally:
        stop.set()
        writer.join()
    assert len({count for count in done if 0 < count < 8 * GATHERED_AT_ONCE - 3}) >= 3, "between the parts"


def test_an_acknowledged_digest_stands_for_its_incidents(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(9)])
    digest = send(store)[-1].message.incident_id
    found = store.acknowledge(digest, by="alice")
    assert found.outcome is AckOutcome.ACKNOWLEDGED
    assert found.incidents == tuple(f"i{n}" for n in range(3, 9))
    assert store.unacknowledged() == {"page": 3}


def test_what_is_too_old_goes_into_no_digest_and_shows(store: GuardStore, clock: ManualClock) -> None:
    strict = Dispatch(Storm(3, 100.0), max_age_seconds=3600)
    store.commit(state=None, outbox=[post(incident=f"old{n}") for n in range(30)])
    clock.advance(3601)
    store.commit(state=None, outbox=[post(incident=f"new{n}") for n in range(9)])
    assert told(send(store, strict)) == ["open new0", "open new1", "open new2", "digest"]
    dead = store.outbox(states=[OutboxState.DEAD])
    assert [row.message.incident_id for row in dead] == [f"old{n}" for n in range(30)]
    assert {row.last_error for row in dead} == {"not sent: older than 3600 s"}


def test_of_a_digest_that_a_person_dropped_no_end_is_told(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(6)])
    digest = [take(store) for _ in range(4)][-1]
    assert digest is not None
    store._connection.execute("UPDATE outbox SET state = 'pending', begun_boot = NULL WHERE id = ?", (digest.id,))
    with OutboxDesk.open(store.path, clock=clock, boot_id="boot-1") as desk:
        assert desk.drop(digest.id), "before it was tried"
    store.commit(state=None, outbox=[post(incident=f"i{n}", event="resolve") for n in (3, 4, 5)])
    assert send(store) == []
