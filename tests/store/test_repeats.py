"""What is repeated because it may not have arrived: who answers it is not told again; what nobody may have is dead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sre.actions.records import AckOutcome, OutboxMessage, OutboxState
from sre.adapters.store import GuardStore
from sre.testing.clock import ManualClock
from tests.store.samples import message, post
from tests.store.sending import send, take, ticket

WAIT = 900.0
NOTICE = OutboxMessage(message("limit-lim-20270115-08", "blind"), "mail")


def cut_off(store: GuardStore, row_id: int, *, times: int = 3, fallback: str | None = None) -> None:
    assert store.mark_failed(
        row_id,
        owner="me",
        error="may have arrived",
        retry_after_seconds=WAIT,
        unknown_outcomes=times,
        fallback=fallback,
    )


def digest(store: GuardStore) -> str:
    """Three incidents are sent, five are told as one that may have arrived, on its channel and its fallback's."""
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(8)])
    while (row := take(store)) is not None and not row.is_digest:
        store.mark_sent(row.id, owner="me")
    assert row is not None
    cut_off(store, row.id, fallback="sms")
    twin = take(store, channel="sms")
    assert twin is not None
    cut_off(store, twin.id)
    return row.message.incident_id


def states(store: GuardStore, incident: str) -> set[OutboxState]:
    return {row.state for row in store.outbox(incident_id=incident)}


def test_who_acknowledges_a_digest_is_not_told_it_again(store: GuardStore) -> None:
    name = digest(store)
    assert states(store, name) == {OutboxState.PENDING}
    assert len(store.acknowledge(name, by="alice").incidents) == 5
    assert states(store, name) == {OutboxState.SUPERSEDED}


def test_a_digest_of_which_each_incident_is_acknowledged_or_over_is_not_repeated(store: GuardStore) -> None:
    name = digest(store)
    for n in range(3, 7):
        store.acknowledge(f"i{n}", by="alice")
    assert states(store, name) == {OutboxState.PENDING}
    store.acknowledge("i7", by="alice")
    assert states(store, name) == {OutboxState.SUPERSEDED}


def test_a_digest_that_was_under_way_while_it_was_acknowledged_is_not_repeated(
    store: GuardStore, clock: ManualClock
) -> None:
    name = digest(store)
    clock.advance(WAIT)
    row = take(store)
    assert row is not None
    assert row.message.incident_id == name
    store.acknowledge(name, by="alice")
    cut_off(store, row.id, times=4)
    clock.advance(WAIT)
    assert take(store) is None
    assert states(store, name) == {OutboxState.SUPERSEDED}


def test_what_was_known_of_a_message_stays_when_it_is_acknowledged(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident="i")])
    cut_off(store, 1)
    store.acknowledge("i", by="alice")
    assert store.outbox()[0].last_error == "may have arrived; acknowledged"


def test_a_notice_has_nothing_to_acknowledge_but_who_answers_it_is_not_told_again(store: GuardStore) -> None:
    store.commit(state=None, outbox=[NOTICE])
    found = store.acknowledge(NOTICE.message.incident_id, by="alice")
    assert (found.outcome, found.quieted) == (AckOutcome.NOTICE, 0)
    assert store.outbox()[0].state is OutboxState.PENDING, "its first try is still to come"
    cut_off(store, 1)
    found = store.acknowledge(NOTICE.message.incident_id, by="alice")
    assert (found.outcome, found.quieted) == (AckOutcome.NOTICE, 1)
    assert store.outbox()[0].state is OutboxState.SUPERSEDED
    assert [row.entry.reason for row in store.journal()] == ["not_repeated"]


@pytest.mark.parametrize(
    ("event", "outcome"), [("blind", AckOutcome.NOTICE), ("test", AckOutcome.NOTICE), ("open", AckOutcome.RESOLVED)]
)
def test_what_has_no_incident_is_known_by_its_messages(store: GuardStore, event: str, outcome: AckOutcome) -> None:
    store.commit(state=None, outbox=[post(incident="i", event=event)])
    with store._transaction() as connection:
        connection.execute("DELETE FROM incident")  # long over, and forgotten
    assert store.acknowledge("i", by="alice").outcome is outcome
    assert store.acknowledge("j", by="alice").outcome is AckOutcome.UNKNOWN


def test_one_message_at_a_time_is_brought_forward(store: GuardStore) -> None:
    store.commit(state=None, outbox=[ticket(incident="t"), *(post(incident=f"i{n}") for n in range(4))])
    for row_id in (1, 2, 3):
        cut_off(store, row_id)
    cut_off(store, 4, times=2)
    assert store.bring_forward("sms", unknown_outcomes=3) is None
    assert store.bring_forward("mail", unknown_outcomes=3) == 2, "the oldest of the most urgent"
    assert [row.due_in_seconds for row in store.outbox()[:4]] == [WAIT, 0.0, WAIT, WAIT]
    assert store.bring_forward("mail", unknown_outcomes=3, exclude=[3]) == 1
    assert store.bring_forward("mail", unknown_outcomes=3, exclude=[3]) is None


# ---- dead, and who has it


def load(store: GuardStore, channel: str = "mail") -> tuple[int, int]:
    return next((one.dead, one.perhaps_told) for one in store.outbox_load() if one.channel == channel)


def test_a_ticket_that_may_have_arrived_is_perhaps_told_and_a_page_is_not(store: GuardStore) -> None:
    told = [ticket(incident="t"), ticket(incident="u"), post(incident="i")]
    store.commit(state=None, outbox=told)
    store.mark_dead(1, owner="me", error="so 3 times", unknown_outcomes=3)
    store.mark_dead(2, owner="me", error="550")
    store.mark_dead(3, owner="me", error="too old", unknown_outcomes=9)
    assert load(store) == (3, 1)


def test_what_another_channel_delivered_in_its_place_is_told(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident="i"), post(incident="j")])
    store.mark_dead(1, owner="me", error="550", fallback="sms")
    store.mark_dead(2, owner="me", error="550", fallback="sms")
    assert load(store) == (2, 0), "the fallback has not got them yet"
    row = take(store, channel="sms")
    assert row is not None
    store.mark_sent(row.id, owner="me")
    assert load(store) == (2, 1)
    send(store, channel="sms")
    assert load(store) == (2, 2)


def test_another_channel_that_is_no_fallback_does_not_count(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident="i"), replace(post(incident="i"), channel="sms")])
    store.mark_dead(1, owner="me", error="550")
    send(store, channel="sms")
    assert load(store) == (1, 0)
