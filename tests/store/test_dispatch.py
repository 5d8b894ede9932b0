"""What a channel is sent next: pages first, each channel within its limit, nothing is lost and nothing takes long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sre.actions.records import OutboxMessage
from sre.adapters.store import GuardStore, OutboxDesk
from sre.notify.policy import Dispatch, Storm
from sre.testing.clock import ManualClock
from tests.store.samples import message, post
from tests.store.sending import NIGHT, STORM, send, take, ticket, told

Opener = Callable[..., GuardStore]


def test_tickets_without_end_do_not_keep_a_page_waiting(store: GuardStore) -> None:
    store.commit(state=None, outbox=[ticket(incident=f"t{n}") for n in range(50)])
    assert told(send(store))[-1] == "digest"
    store.commit(state=None, outbox=[*(ticket(incident=f"u{n}") for n in range(50)), post(incident="page")])
    assert told(send(store)) == ["open page"]


def test_a_page_goes_before_tickets_that_wait_longer(store: GuardStore) -> None:
    store.commit(state=None, outbox=[ticket(incident="t1"), ticket(incident="t2"), post(incident="page")])
    assert told(send(store)) == ["open page", "open t1", "open t2"]


def test_a_ticket_that_becomes_a_page_goes_before_others_and_keeps_its_order(store: GuardStore) -> None:
    store.commit(state=None, outbox=[ticket(incident="a"), ticket(incident="b")])
    store.commit(state=None, outbox=[OutboxMessage(message("b", "escalate"), "mail", 1)])
    assert told(send(store)) == ["open b", "escalate b", "open a"]
    assert store.unacknowledged() == {"ticket": 1, "page": 1}


def test_the_same_message_with_a_worse_severity_takes_the_place_of_the_first(store: GuardStore) -> None:
    store.commit(state=None, outbox=[ticket(incident="a")])
    store.commit(state=None, outbox=[post(incident="a")])
    store.commit(state=None, outbox=[ticket(incident="a")])
    (row,) = store.outbox()
    assert (row.message.severity, row.severity) == ("page", "page")


def test_each_channel_has_its_own_limit(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(c, incident=f"i{n}") for n in range(5) for c in ("mail", "sms")])
    assert told(send(store)) == told(send(store, channel="sms")) == ["open i0", "open i1", "open i2", "digest"]


def test_tries_again_count_against_no_limit(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(3)])
    for _ in range(3):
        for _ in range(3):
            row = take(store)
            assert row is not None
            store.mark_failed(row.id, owner="me", error="x", retry_after_seconds=5)
        clock.advance(5)
    assert told(send(store)) == ["open i0", "open i1", "open i2"]


def steps(store: GuardStore, work: Callable[[], object]) -> int:
    """How many steps SQLite took, in hundreds."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    store._connection.set_progress_handler(tick, 100)
    try:
        work()
    finally:
        store._connection.set_progress_handler(None, 0)
    return count


def costs(store: GuardStore, clock: ManualClock, count: int) -> dict[str, int]:
    """Steps of what a sender does all day, where ``count`` messages wait."""
    found: dict[str, int] = {}

    def cost(name: str, work: Callable[[], object]) -> None:
        found[name] = steps(store, work)

    store.commit(state=None, outbox=[ticket(incident=f"i{n}") for n in range(count)])
    cost("first", lambda: take(store, Dispatch()))
    cost("second", lambda: take(store))
    cost("third", lambda: take(store))
    cost("failed", lambda: store.mark_failed(1, owner="me", error="x", retry_after_seconds=9))
    cost("sent", lambda: store.mark_sent(2, owner="me"))
    digest = take(store)
    assert digest is not None
    assert digest.is_digest
    cost("resolve", lambda: store.commit(state=None, outbox=[ticket(incident="i1", event="resolve")]))
    cost("end of one told", lambda: take(store))
    cost("end of one digested", lambda: store.commit(state=None, outbox=[ticket(incident="i9", event="resolve")]))
    store.commit(state=None, outbox=[ticket(incident=f"j{n}") for n in range(count)])
    cost("next digest comes later", lambda: take(store))
    store.commit(state=None, outbox=[post(incident="page")])
    cost("page", lambda: take(store))
    clock.advance(15 * 3600)
    take(store, NIGHT)
    cost("waits for the morning", lambda: take(store, NIGHT))
    clock.advance(9 * 3600)
    return found


def test_the_next_message_is_found_as_fast_among_ten_thousand(tmp_path: Path, clock: ManualClock) -> None:
    measured = []
    for count in (20, 10_000):
        with GuardStore.open(tmp_path / f"{count}.db", clock=clock, boot_id="boot-1") as store:
            measured.append(costs(store, clock, count))
    few, many = measured
    assert all(many[name] <= 1.5 * few[name] + 4 for name in few), measured


def test_after_a_reboot_a_storm_goes_on_being_one(open_store: Opener, clock: ManualClock) -> None:
    first = open_store("boot-1")
    first.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(20)])
    assert len(send(first)) == 4
    first.close()
    with GuardStore.open(first.path, clock=ManualClock(5.0, clock.wall() + 60), boot_id="boot-2") as second:
        second.commit(state=None, outbox=[post(incident=f"j{n}") for n in range(20)])
        assert told(send(second)) == ["open j0", "open j1", "open j2", "digest"]


def test_what_would_be_digested_comes_by_itself_where_nothing_can_be_written(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(9)])
    for _ in range(3):
        take(store)
    (row,) = store.peek_due(channels=["mail"], dispatch=STORM)
    assert row.message.incident_id == "i3"
    (row,) = store.peek_due(channels=["mail"], exclude=[row.id], dispatch=STORM)
    assert row.message.incident_id == "i4"


def test_a_person_revives_and_drops_all_that_is_dead(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(c, incident=f"i{n}") for n in range(3) for c in ("mail", "sms")])
    for channel in ("mail", "sms"):
        for _ in range(3):
            row = take(store, Dispatch(), channel)
            assert row is not None
            assert store.mark_dead(row.id, owner="me", error="535")
    with OutboxDesk.open(store.path, clock=clock, boot_id="boot-1") as desk:
        assert desk.retry_dead("mail") == 3
        assert desk.retry_dead("mail") == 0
        assert desk.drop_dead() == 3
    assert told(send(store, Dispatch(Storm(1, 1e6)))) == ["open i0", "open i1", "open i2"], "no limit holds them"
    assert [(e.entry.target, e.entry.reason, e.entry.data["dead"]) for e in store.journal()] == [
        ("mail", "outbox_retry", 3),
        ("outbox", "outbox_drop", 3),
    ]
