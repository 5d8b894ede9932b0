"""The end of an incident goes to whom its beginning reached, or is still on its way to, and to nobody else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from sre.adapters.store import GuardStore, OutboxDesk, alerts_tables
from sre.adapters.store.alerts import AlertBook
from sre.notify.policy import Dispatch
from sre.testing.clock import ManualClock
from tests.store import version_1
from tests.store.samples import message, post
from tests.store.sending import send, take

Opener = Callable[..., GuardStore]
EVERYBODY = ("mail", "sms", "pager")


def end(store: GuardStore, incident: str = "i") -> None:
    """As the guard does it: for every channel, and the outbox knows who is not to hear it."""
    store.commit(state=None, outbox=[post(channel, incident=incident, event="resolve") for channel in EVERYBODY])


def heard(store: GuardStore, channel: str) -> list[str]:
    return [row.message.event for row in send(store, channel=channel)]


def test_the_end_goes_where_the_beginning_went(store: GuardStore) -> None:
    """An on-call number that wants pages only is not called for the end of a ticket."""
    store.commit(state=None, outbox=[post("mail", incident="i")])
    send(store)
    end(store)
    assert (heard(store, "mail"), heard(store, "sms")) == (["resolve"], [])


@pytest.mark.parametrize("begins", ["escalate", "open"])
def test_who_was_told_later_or_only_of_the_worse_hears_the_end(store: GuardStore, begins: str) -> None:
    store.commit(state=None, outbox=[post("mail", incident="i")])
    store.commit(state=None, outbox=[post("sms", incident="i", event=begins)])
    send(store, channel="sms")
    end(store)
    assert heard(store, "sms") == ["resolve"]


def test_the_end_of_what_no_channel_wanted_goes_to_nobody(open_store: Opener, clock: ManualClock) -> None:
    with open_store() as store:
        store.commit(state=None, told=[message("i")])
    again = open_store("after a reboot")
    end(again)
    assert [heard(again, channel) for channel in EVERYBODY] == [[], [], []]
    assert again.unacknowledged() == {}, "and it is over all the same"


def test_what_first_nobody_and_then_somebody_wanted_ends_for_them(store: GuardStore) -> None:
    store.commit(state=None, told=[message("i")])
    store.commit(state=None, outbox=[post("pager", incident="i", event="escalate")])
    end(store)
    assert [heard(store, channel) for channel in EVERYBODY] == [[], [], ["resolve"]]


def test_where_the_beginning_is_forgotten_everybody_hears_the_end(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post("mail", incident="i")])
    send(store)
    store.commit(state=None, outbox=[post(incident=f"later-{n}") for n in range(3)])
    send(store, Dispatch())
    store.prune(journal_rows=1, journal_max_age_seconds=None, outbox_rows=1)
    assert "i" not in {row.message.incident_id for row in store.outbox()}
    end(store)
    assert [heard(store, channel) for channel in EVERYBODY] == [["resolve"]] * 3


# ---- what was queued and never arrived


def test_a_fallback_that_was_not_needed_does_not_hear_the_end(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post("mail", incident="i")])
    row = take(store)
    assert row is not None
    store.mark_failed(row.id, owner="me", error="451", retry_after_seconds=5, fallback="pager")
    clock.advance(5)
    assert heard(store, "mail") == ["open"]
    end(store)
    assert [heard(store, channel) for channel in EVERYBODY] == [["resolve"], [], []]


def test_a_fallback_that_took_its_place_hears_the_end(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post("mail", incident="i")])
    row = take(store)
    assert row is not None
    store.mark_dead(row.id, owner="me", error="550", fallback="pager")
    assert heard(store, "pager") == ["open"]
    end(store)
    assert heard(store, "pager") == ["resolve"]


@pytest.mark.parametrize("tried", [False, True])
def test_what_a_person_dropped_has_an_end_only_if_it_may_have_arrived(
    store: GuardStore, clock: ManualClock, tried: bool
) -> None:
    store.commit(state=None, outbox=[post("pager", incident="i")])
    (row,) = store.outbox()
    if tried:
        assert take(store, channel="pager") is not None
        store.mark_failed(row.id, owner="me", error="timeout", retry_after_seconds=60)
    with OutboxDesk.open(store.path, clock=clock, boot_id="boot-1") as desk:
        assert desk.drop(row.id)
    end(store)
    assert heard(store, "pager") == (["resolve"] if tried else [])


def test_what_was_sent_without_a_lease_and_then_dropped_may_have_arrived_and_ends(
    store: GuardStore, clock: ManualClock
) -> None:
    store.commit(state=None, outbox=[post("pager", incident="i")])
    (row,) = store.peek_due(channels=["pager"])
    with OutboxDesk.open(store.path, clock=clock, boot_id="boot-1") as desk:
        assert desk.drop(row.id)
    assert not store.mark_sent(row.id, owner="me"), "its sender could not write it down before"
    end(store)
    assert heard(store, "pager") == ["resolve"]


# ---- ended before the fallback was told


def test_a_beginning_refused_after_its_end_opens_nothing_at_the_fallback_that_stays(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post("mail", incident="i")])
    row = take(store)
    assert row is not None
    end(store)
    store.mark_dead(row.id, owner="me", error="550 too large", fallback="pager")
    assert heard(store, "mail") == ["resolve"], "what is refused may be this message alone"
    told = send(store, channel="pager")
    assert [(r.message.event, r.opened is not None) for r in told] == [("resolve", True)], "both in one"


def test_what_waited_for_a_removed_channel_and_ended_opens_nothing_elsewhere(open_store: Opener) -> None:
    with open_store() as store:
        store.commit(state=None, outbox=[post("mail", incident="i")])
        assert take(store) is not None
        end(store)
    again = open_store()
    again.strand(["pager"], {"page": ["pager"]})
    assert heard(again, "pager") == ["resolve"]


# ---- files of older versions


def test_of_incidents_from_before_everybody_hears_the_end(db: Path, open_store: Opener) -> None:
    """A file of version 2 does not say whether any channel wanted them."""
    with open_store() as store:
        store.commit(state=None, told=[message("i")])
    connection = sqlite3.connect(db, isolation_level=None)
    connection.execute("ALTER TABLE incident DROP COLUMN wanted")
    connection.execute("PRAGMA user_version=2")
    connection.close()
    again = open_store()
    end(again)
    assert [heard(again, channel) for channel in EVERYBODY] == [["resolve"]] * 3


def test_of_a_file_of_version_3_nothing_may_have_arrived_yet(db: Path, open_store: Opener) -> None:
    with open_store() as store:
        store.commit(state=None, outbox=[post("mail", incident="i")])
    connection = sqlite3.connect(db, isolation_level=None)
    connection.execute("ALTER TABLE outbox DROP COLUMN unknown_outcomes")
    alerts_tables.make(connection)
    connection.execute("ALTER TABLE alert_incident DROP COLUMN told_in")
    connection.execute("PRAGMA user_version=3")
    connection.close()
    again = open_store()
    assert AlertBook(again).counts() == (0, 0)
    assert AlertBook(again).unfiled(10) == []
    assert [row.unknown_outcomes for row in again.outbox()] == [0]
    assert heard(again, "mail") == ["open"]


def test_an_incident_of_version_1_ends_where_it_began(db: Path, open_store: Opener) -> None:
    version_1.make(db)
    store = open_store()
    send(store, channel="sms")
    end(store, "inc-now")
    assert heard(store, "sms") == ["resolve"]
