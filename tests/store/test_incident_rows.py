"""Who acknowledged what, whom nobody answered, and what goes to the fallback."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sre.actions import facts
from sre.actions.records import AckOutcome, OutboxMessage, OutboxRow, OutboxState
from sre.adapters.store import GuardStore, OutboxDesk, StoreReader
from sre.notify.escalation import FIRST_LEVEL, Escalation
from sre.testing.clock import ManualClock
from tests.store.samples import message, outbox_counts, post
from tests.store.sending import STORM, send, take, ticket

Opener = Callable[..., GuardStore]
ESCALATION = Escalation(after_seconds=900, repeat_seconds=300, max_levels=2, channels=("boss", "sms"))


def levels(store: GuardStore) -> list[tuple[str, int]]:
    return [
        (row.channel, row.level - FIRST_LEVEL)
        for row in store.outbox()
        if row.message.event == "escalate" and row.level > FIRST_LEVEL
    ]


# ---- damage


@pytest.mark.parametrize("payload", ["{", "[]", "7", "{}"])
def test_a_damaged_row_keeps_no_other_back_and_is_told(store: GuardStore, clock: ManualClock, payload: str) -> None:
    store.commit(state=None, outbox=[post(incident="i", channel="mail"), post(incident="j", channel="sms")])
    with store._transaction() as connection:
        connection.execute("UPDATE outbox SET payload = ?, opened = ? WHERE channel = 'mail'", (payload, payload))
        connection.execute("UPDATE incident SET payload = ? WHERE id = 'i'", (payload,))
    clock.advance(900)
    assert store.escalate(ESCALATION) == 2
    rows = {row.channel: row for row in store.lease(owner="me", seconds=30, channels=["mail", "sms"])}
    assert (rows["mail"].message.incident_id, rows["mail"].message.reason) == ("i", "unreadable")
    assert rows["sms"].message.incident_id == "j"
    assert store.mark_sent(rows["mail"].id, owner="me")


# ---- acknowledgement


def test_an_incident_is_acknowledged_once_and_by_the_first(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    assert store.unacknowledged() == {"page": 1}
    at = clock.wall()
    first = store.acknowledge("i", by="alice", note="on it")
    assert (first.outcome, first.incidents, first.by, first.at_wall) == (AckOutcome.ACKNOWLEDGED, ("i",), "alice", at)
    clock.advance(60)
    second = store.acknowledge("i", by="bob")
    assert (second.outcome, second.incidents, second.by, second.at_wall) == (AckOutcome.ALREADY, (), "alice", at)
    row = store.incident("i")
    assert row is not None
    assert (row.acknowledged_by, row.note, row.acknowledged_wall) == ("alice", "on it", at)
    assert store.unacknowledged() == {}
    entries = [(e.entry.kind, e.entry.reason, e.entry.incident_id, dict(e.entry.data)) for e in store.journal()]
    assert entries == [
        ("override", "acknowledged", "i", {"by": "alice", "note": "on it", "via": "command", "incidents": 1})
    ]


def test_an_acknowledged_ticket_that_becomes_a_page_waits_again(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[ticket(incident="i")])
    store.acknowledge("i", by="alice")
    store.commit(state=None, outbox=[post(incident="i", event="escalate")])
    assert store.unacknowledged() == {"page": 1}
    clock.advance(900)
    assert store.escalate(ESCALATION) == 1


def test_what_is_over_needs_nobody(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    clock.advance(60)
    store.commit(state=None, outbox=[post(incident="i", event="resolve")])
    found = store.acknowledge("i", by="alice")
    assert (found.outcome, found.at_wall) == (AckOutcome.RESOLVED, clock.wall())
    assert store.acknowledge("never heard of", by="alice").outcome is AckOutcome.UNKNOWN
    assert store.journal() == []


def test_an_incident_that_no_channel_wanted_is_known_all_the_same(store: GuardStore) -> None:
    store.commit(state=None, told=[ticket(incident="i").message])
    assert store.unacknowledged() == {"ticket": 1}
    store.commit(state=None, told=[message("i", "resolve")])
    assert store.unacknowledged() == {}


def test_channels_where_somebody_waits_hear_of_it_if_they_heard_of_the_incident(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post("chat", incident="i"), post("mail", incident="i")])
    store.acknowledge("i", by="alice", tell=["chat", "pager"])
    told = [(r.channel, r.message.summary) for r in store.outbox() if r.message.event == "acknowledge"]
    assert told == [("chat", "acknowledged by alice")]


def test_of_an_incident_that_is_over_no_acknowledgement_is_told(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post("chat", incident="i")])
    send(store, channel="chat")
    store.acknowledge("i", by="alice", tell=["chat"])
    store.commit(state=None, outbox=[post("chat", incident="i", event="resolve")])
    assert [r.message.event for r in send(store, channel="chat")] == ["resolve"]


def test_a_digest_is_acknowledged_and_told_as_one(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(500)])
    digest = send(store)[-1].message.incident_id
    store.acknowledge("i100", by="carol")
    found = store.acknowledge(digest, by="alice", tell=["mail"])
    assert found.outcome is AckOutcome.ACKNOWLEDGED
    assert len(found.incidents) == 496
    assert store.unacknowledged() == {"page": 3}
    told = [r.message for r in store.outbox() if r.message.event == "acknowledge"]
    assert [(m.incident_id, m.summary) for m in told] == [(digest, "acknowledged by alice")]
    assert store.acknowledge(digest, by="bob").outcome is AckOutcome.ALREADY
    assert [e.entry.reason for e in store.journal()].count("acknowledged") == 2


def test_a_person_acknowledges_where_no_guard_runs(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post("chat", incident="i")])
    store.close()
    with OutboxDesk.open(store.path, clock=clock, boot_id="boot-1") as desk:
        assert desk.acknowledge("i", by="alice", tell=["chat"]).outcome is AckOutcome.ACKNOWLEDGED
    with StoreReader.open_readonly(store.path, clock=clock, boot_id="boot-1") as reader:
        assert reader.unacknowledged() == {}
        assert reader.verify_chain() == 1


# ---- escalation


def test_a_page_that_nobody_acknowledges_goes_to_more_people_level_by_level(
    store: GuardStore, clock: ManualClock
) -> None:
    store.commit(state=None, outbox=[post(incident="i"), ticket(incident="t")])
    clock.advance(899)
    assert store.escalate(ESCALATION) == 0
    clock.advance(1)
    assert store.escalate(ESCALATION) == 1
    assert store.escalate(ESCALATION) == 0
    clock.advance(300)
    assert store.escalate(ESCALATION) == 1
    clock.advance(1e6)
    assert store.escalate(ESCALATION) == 0
    assert levels(store) == [("boss", 1), ("sms", 1), ("boss", 2), ("sms", 2)]
    assert [e.entry.data for e in store.journal()] == [
        {"level": 1, "channels": ["boss", "sms"]},
        {"level": 2, "channels": ["boss", "sms"]},
    ]
    row = store.incident("i")
    assert row is not None
    assert row.level == 2


def test_long_absence_tells_one_level_not_all(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    clock.advance(1e6)
    assert store.escalate(ESCALATION) == 1
    assert store.escalate(ESCALATION) == 0


@pytest.mark.parametrize("end", ["acknowledge", "resolve"])
def test_it_ends_with_an_answer(store: GuardStore, clock: ManualClock, end: str) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    clock.advance(900)
    store.escalate(ESCALATION)
    if end == "acknowledge":
        store.acknowledge("i", by="alice")
    else:
        store.commit(state=None, outbox=[post("boss", incident="i", event="resolve")])
    clock.advance(1e6)
    assert store.escalate(ESCALATION) == 0
    states = {r.channel: r.state for r in store.outbox() if r.level > FIRST_LEVEL}
    assert states["boss"] is OutboxState.SUPERSEDED, "what was queued is not sent any more"


@pytest.mark.parametrize("outcome", ["failed", "vanished", "restarted"])
def test_what_was_under_way_when_somebody_answered_is_not_repeated(
    open_store: Opener, clock: ManualClock, outcome: str
) -> None:
    store = open_store()
    store.commit(state=None, outbox=[post(incident="i")])
    clock.advance(900)
    store.escalate(ESCALATION)
    row = take(store, channel="boss")
    assert row is not None
    store.acknowledge("i", by="alice")
    if outcome == "failed":
        store.mark_failed(row.id, owner="me", error="451", retry_after_seconds=5)
    elif outcome == "restarted":
        store.close()
        store = open_store()
    clock.advance(31)
    assert send(store, channel="boss") == []
    assert store.outbox_row(row.id).state is OutboxState.SUPERSEDED  # type: ignore[union-attr]


def test_a_ticket_that_becomes_a_page_waits_from_then_on(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[ticket(incident="i")])
    clock.advance(1e5)
    store.commit(state=None, outbox=[OutboxMessage(message("i", "escalate"), "mail", 1)])
    clock.advance(899)
    assert store.escalate(ESCALATION) == 0
    clock.advance(1)
    assert store.escalate(ESCALATION) == 1


@pytest.mark.parametrize("jump", [-1e7, 1e7], ids=["back", "ahead"])
def test_restarts_and_steps_of_the_clock_change_nothing(open_store: Opener, clock: ManualClock, jump: float) -> None:
    store = open_store()
    store.commit(state=None, outbox=[post(incident="i")])
    clock.advance(600)
    clock.jump_wall(jump)
    store.close()
    store = open_store()
    clock.advance(299)
    assert store.escalate(ESCALATION) == 0
    clock.advance(1)
    assert store.escalate(ESCALATION) == 1


@pytest.mark.parametrize(("passed", "left"), [(600.0, 300.0), (-1e6, 900.0), (1e7, 0.0)])
def test_after_a_reboot_the_wall_clock_says_how_long_it_waited(
    open_store: Opener, clock: ManualClock, passed: float, left: float
) -> None:
    store = open_store("boot-1")
    store.commit(state=None, outbox=[post(incident="i")])
    store.close()
    rebooted = ManualClock(monotonic=3.0, wall=clock.wall() + passed)
    with GuardStore.open(store.path, clock=rebooted, boot_id="boot-2") as store:
        if left:
            rebooted.advance(left - 1)
            assert store.escalate(ESCALATION) == 0
            rebooted.advance(1)
        assert store.escalate(ESCALATION) == 1


def test_a_storm_escalates_in_parts(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(450)])
    clock.advance(900)
    assert [store.escalate(ESCALATION) for _ in range(4)] == [200, 200, 50, 0]
    sent = send(store, STORM, "boss")
    assert [r.message.event for r in sent] == ["escalate", "escalate", "escalate", "digest"]
    assert sent[-1].message.summary == "447 messages in 0 s: 0 begun, 447 escalated, 0 ended"


# ---- fallback


def fail(store: GuardStore, row: OutboxRow, *, fallback: str | None = "sms") -> None:
    assert store.mark_failed(row.id, owner="me", error="451 try later", retry_after_seconds=5, fallback=fallback)


def test_the_fallback_is_told_once_and_says_why(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    for _ in range(3):
        row = take(store)
        assert row is not None
        fail(store, row)
        clock.advance(5)
    (told,) = send(store, channel="sms")
    assert dict(told.message.facts)[facts.INSTEAD_OF] == "mail: 451 try later"
    assert told.fallback_of == row.id
    assert store.outbox()[0].fell_back
    assert [e.entry.reason for e in store.journal()] == ["fallback"]
    assert [r.message.incident_id for r in send(store)] == ["i"], "its own channel is tried on"


def test_what_is_given_up_is_told_elsewhere_and_stays_visible(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    row = take(store)
    assert row is not None
    assert store.mark_dead(row.id, owner="me", error="550 no such user", fallback="sms")
    assert outbox_counts(store)[OutboxState.DEAD] == 1
    assert len(send(store, channel="sms")) == 1


def test_a_channel_that_has_the_message_is_not_told_again(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident="i"), post("sms", incident="i")])
    row = take(store)
    assert row is not None
    fail(store, row)
    assert len(send(store, channel="sms")) == 1
    assert len(store.outbox()) == 2
    assert store.journal() == []


def test_a_fallback_that_has_not_begun_is_not_needed_once_its_own_channel_delivered(
    store: GuardStore, clock: ManualClock
) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    row = take(store)
    assert row is not None
    fail(store, row)
    clock.advance(5)
    assert len(send(store)) == 1
    assert send(store, channel="sms") == []
    assert store.outbox()[1].state is OutboxState.SUPERSEDED


def test_of_an_incident_that_is_over_the_fallback_hears_with_its_end(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    row = take(store)
    assert row is not None
    store.commit(
        state=None, outbox=[post("mail", incident="i", event="resolve"), post("sms", incident="i", event="resolve")]
    )
    fail(store, row)
    assert send(store, channel="sms") == []
    row = take(store)
    assert row is not None
    fail(store, row)
    assert [(r.message.event, r.opened is not None) for r in send(store, channel="sms")] == [("resolve", True)]


def test_when_a_channel_is_down_what_waits_for_it_goes_to_the_fallback_too(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(5)] + [post(incident="h", hold=9)])
    row = take(store)
    assert row is not None
    fail(store, row)
    assert store.divert("mail", "sms", "no answer") == 4
    assert store.divert("mail", "sms", "no answer") == 0
    told = [r.message.incident_id for r in send(store, channel="sms", dispatch=type(STORM)())]
    assert told == [f"i{n}" for n in range(5)], "a page that is held for its contexts is not late"


def test_a_chain_of_fallbacks_goes_on(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    for channel, following in (("mail", "sms"), ("sms", "chat")):
        row = take(store, channel=channel)
        assert row is not None
        assert store.mark_dead(row.id, owner="me", error="no", fallback=following)
    (told,) = send(store, channel="chat")
    assert [value for name, value in told.message.facts if name == facts.INSTEAD_OF] == ["sms: no", "mail: no"]


def test_a_digest_goes_to_a_fallback_that_has_not_all_of_it(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(c, incident=f"i{n}") for n in range(9) for c in ("mail", "chat")])
    digest = [take(store) for _ in range(4)][-1]
    assert digest is not None
    assert store.mark_dead(digest.id, owner="me", error="no", fallback="chat")
    assert not any(r.message.event == "digest" for r in store.outbox() if r.channel == "chat"), "it has each of them"
    store.commit(state=None, outbox=[post("pager", incident=f"j{n}") for n in range(9)])
    digest = [take(store, channel="pager") for _ in range(4)][-1]
    assert digest is not None
    assert store.mark_dead(digest.id, owner="me", error="no", fallback="sms")
    (told,) = send(store, channel="sms")
    assert told.message.incident_id == digest.message.incident_id


def test_a_long_answer_of_a_provider_is_cut(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    row = take(store)
    assert row is not None
    assert store.mark_dead(row.id, owner="me", error="no\n" * 3000, fallback="sms")
    (told,) = send(store, channel="sms")
    said = dict(told.message.facts)[facts.INSTEAD_OF]
    assert len(said) < 220
    assert "\n" not in said


def test_an_incident_that_no_file_takes_stops_no_other_escalation(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(3)])
    with store._transaction() as connection:
        connection.execute("UPDATE incident SET payload = replace(payload, 'engine', '\\ud800') WHERE id = 'i1'")
    clock.advance(900)
    assert store.escalate(ESCALATION) == 3
    assert len(levels(store)) == 6
    told = {row.message.incident_id: row.message.reason for row in store.outbox() if row.channel == "boss"}
    assert told == {"i0": "hang", "i1": "unreadable", "i2": "hang"}


def test_a_damaged_end_is_an_end(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    send(store)
    store.commit(state=None, outbox=[post(incident="i", event="resolve")])
    with store._transaction() as connection:
        connection.execute("UPDATE outbox SET payload = '{' WHERE event = 'resolve'")
    assert [row.message.event for row in send(store)] == ["resolve"]


def test_a_damaged_row_within_a_digest_keeps_no_digest_back(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(9)])
    with store._transaction() as connection:
        connection.execute("UPDATE outbox SET payload = '{' WHERE incident_id = 'i5'")
    digest = send(store)[-1]
    assert digest.is_digest
    with store._transaction() as connection:
        connection.execute("UPDATE outbox SET payload = '{' WHERE is_digest")
    store.commit(state=None, outbox=[post(incident=f"i{n}", event="resolve") for n in range(9)])
    assert send(store)[-1].message.incident_id == digest.message.incident_id


def test_what_waits_for_a_removed_channel_and_nobody_heard_goes_to_who_hears_such(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post("gone", incident=f"i{n}") for n in range(9)])
    for _ in range(3):
        take(store, channel="gone")
    store.commit(
        state=None, outbox=[ticket("gone", incident="t"), post("gone", incident="both"), post(incident="both")]
    )
    assert store.strand(["mail", "sms"], {"page": ["mail", "sms"], "ticket": ["mail"]}) == 11
    assert store.strand(["mail", "sms"]) == 0
    calm = type(STORM)()
    assert len(send(store, calm, "sms")) == 9
    assert sorted(r.message.incident_id for r in send(store, calm)) == ["both", *(f"i{n}" for n in range(9)), "t"]
