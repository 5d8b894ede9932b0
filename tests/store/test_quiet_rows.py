"""What can wait waits for the end of quiet hours, and says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from sre.actions.records import OutboxMessage, OutboxState
from sre.adapters.store import GuardStore, OutboxDesk
from sre.notify.policy import Dispatch
from sre.testing.clock import ManualClock
from tests.store.samples import message, post
from tests.store.sending import NIGHT, send, take, ticket, told

Opener = Callable[..., GuardStore]


@pytest.fixture
def night(clock: ManualClock) -> ManualClock:
    """It is 23:00."""
    clock.advance(15 * 3600)
    assert datetime.fromtimestamp(clock.wall(), UTC).hour == 23
    return clock


def until_morning(clock: ManualClock) -> None:
    clock.advance(8 * 3600)


def test_what_can_wait_waits_for_the_morning_and_says_so(store: GuardStore, night: ManualClock) -> None:
    store.commit(state=None, outbox=[ticket(incident="t"), post(incident="p")])
    assert told(send(store, NIGHT)) == ["open p"], "a page never waits"
    row = store.outbox()[0]
    assert (row.state, row.waits_for) == (OutboxState.PENDING, "quiet_hours")
    assert store.outbox_load()[0].oldest_seconds is None, "nobody is late with it"
    night.advance(8 * 3600 - 1)
    assert send(store, NIGHT) == []
    night.advance(1)
    assert told(send(store, NIGHT)) == ["open t"]
    assert store.outbox()[0].age_seconds == 0, "it is not too old to be told"


def test_much_that_waited_comes_as_one(store: GuardStore, night: ManualClock) -> None:
    store.commit(state=None, outbox=[ticket(incident=f"t{n}") for n in range(5)])
    assert send(store, NIGHT) == []
    until_morning(night)
    store.commit(state=None, outbox=[post(incident="p")])
    sent = send(store, NIGHT)
    assert told(sent) == ["open p", "digest"]
    assert (sent[1].message.reason, sent[1].message.severity) == ("quiet_hours_over", "ticket")


def test_what_began_and_ended_in_the_night_is_one_message(store: GuardStore, night: ManualClock) -> None:
    store.commit(state=None, outbox=[ticket(incident="t")])
    send(store, NIGHT)
    night.advance(60)
    store.commit(state=None, outbox=[ticket(incident="t", event="resolve")])
    assert send(store, NIGHT) == []
    until_morning(night)
    (row,) = send(store, NIGHT)
    assert row.message.event == "resolve"
    assert row.opened == ticket(incident="t").message


def test_the_end_of_a_page_is_told_at_night_to_whom_it_woke(store: GuardStore, night: ManualClock) -> None:
    store.commit(state=None, outbox=[post(incident="p")])
    assert told(send(store, NIGHT)) == ["open p"]
    store.commit(state=None, outbox=[ticket(incident="p", event="resolve")])
    assert told(send(store, NIGHT)) == ["resolve p"]


def test_a_ticket_that_becomes_a_page_wakes_somebody(store: GuardStore, night: ManualClock) -> None:
    store.commit(state=None, outbox=[ticket(incident="t")])
    assert send(store, NIGHT) == []
    store.commit(state=None, outbox=[OutboxMessage(message("t", "escalate"), "mail", 1)])
    assert told(send(store, NIGHT)) == ["open t", "escalate t"]


def test_tries_that_failed_before_the_night_wait_too_unless_a_person_sends_them(
    store: GuardStore, clock: ManualClock
) -> None:
    clock.advance(14 * 3600 - 10)
    store.commit(state=None, outbox=[ticket(incident="t")])
    row = take(store, NIGHT)
    assert row is not None
    store.mark_failed(row.id, owner="me", error="x", retry_after_seconds=60)
    clock.advance(3600)
    assert take(store, NIGHT) is None
    assert store.outbox()[0].waits_for == "quiet_hours"
    with OutboxDesk.open(store.path, clock=clock, boot_id="boot-1") as desk:
        assert desk.retry(row.id)
    assert told(send(store, NIGHT)) == ["open t"]


def test_a_message_that_waits_survives_restarts_and_the_end_of_quiet_hours_in_the_configuration(
    open_store: Opener, night: ManualClock
) -> None:
    store = open_store()
    store.commit(state=None, outbox=[ticket(incident="t")])
    assert send(store, NIGHT) == []
    store.close()
    again = open_store()
    assert send(again, NIGHT) == []
    assert told(send(again, Dispatch())) == ["open t"]
