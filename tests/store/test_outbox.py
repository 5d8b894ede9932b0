"""The outbox: every message reaches its channel or a person's list, none twice without need, none out of order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sre.actions.records import OutboxMessage, OutboxRow, OutboxState
from sre.adapters.store import GuardStore, OutboxDesk
from sre.testing.clock import ManualClock
from tests.store.samples import message, outbox_counts, post

Opener = Callable[..., GuardStore]
BOTH = ("mail", "sms")


def take(store: GuardStore, channels: Collection[str] = BOTH, owner: str = "me") -> list[OutboxRow]:
    return list(store.lease(owner=owner, seconds=30, channels=channels))


def states(store: GuardStore) -> dict[str, OutboxState]:
    return {f"{row.message.event} {row.channel}": row.state for row in store.outbox()}


def test_a_message_is_queued_once_per_incident_event_channel_and_level(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(), post(), post("sms"), OutboxMessage(message(), "mail", level=1)])
    store.commit(state=None, outbox=[post(), post(event="resolve", incident="other")])
    assert [(row.message.incident_id, row.channel, row.level) for row in store.outbox()] == [
        ("inc-20270115-080000-00a1", "mail", 0),
        ("inc-20270115-080000-00a1", "sms", 0),
        ("inc-20270115-080000-00a1", "mail", 1),
        ("other", "mail", 0),
    ]


def test_a_lease_keeps_others_away_until_it_ends(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post()])
    assert [row.attempts for row in take(store)] == [0]
    assert take(store, owner="other") == []
    clock.advance(29)
    assert take(store, owner="other") == []
    clock.advance(1)
    assert [row.attempts for row in take(store, owner="other")] == [1]
    row = store.outbox()[0]
    assert (row.state, row.attempts) == (OutboxState.SENDING, 2)
    assert not store.mark_sent(row.id, owner="me"), "the lease went to another"
    assert store.mark_sent(row.id, owner="other")
    assert (store.outbox()[0].state, store.outbox()[0].sent_wall) == (OutboxState.SENT, clock.wall())


def test_one_message_per_channel_is_taken_at_a_time(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(3)] + [post("sms")])
    assert [(row.message.incident_id, row.channel) for row in take(store)] == [
        ("i0", "mail"),
        ("inc-20270115-080000-00a1", "sms"),
    ]
    assert [row.message.incident_id for row in take(store, ["mail"])] == ["i1"]
    assert [row.message.incident_id for row in store.lease(owner="me", seconds=1, channels=["mail"], exclude=[3])] == []


def test_a_held_message_goes_when_released_or_when_its_hold_ends(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(hold=2), post("sms", hold=2, incident="other")])
    assert take(store) == []
    assert store.release_held("inc-20270115-080000-00a1") == 1
    assert store.release_held("inc-20270115-080000-00a1") == 0
    assert [row.channel for row in take(store)] == ["mail"]
    clock.advance(2)
    assert [row.channel for row in take(store)] == ["sms"]


def test_a_failed_message_comes_back_after_its_wait(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post()])
    row = take(store)[0]
    assert store.mark_failed(row.id, owner="me", error="451 try later", retry_after_seconds=5)
    assert take(store) == []
    stored = store.outbox()[0]
    assert (stored.state, stored.attempts, stored.last_error) == (OutboxState.PENDING, 1, "451 try later")
    assert stored.due_in_seconds == pytest.approx(5)
    clock.advance(5)
    assert take(store)[0].attempts == 1
    assert store.mark_dead(row.id, owner="me", error="550")
    clock.advance(1e6)
    assert take(store) == []
    assert outbox_counts(store)[OutboxState.DEAD] == 1


@pytest.mark.parametrize("jump", [-1e7, 1e7], ids=["back", "ahead"])
def test_a_step_of_the_wall_clock_changes_no_wait(store: GuardStore, clock: ManualClock, jump: float) -> None:
    store.commit(state=None, outbox=[post(), post("sms", hold=2)])
    store.mark_failed(take(store)[0].id, owner="me", error="x", retry_after_seconds=5)
    clock.jump_wall(jump)
    assert take(store) == []
    clock.advance(5)
    assert {row.channel for row in take(store)} == {"mail", "sms"}
    assert all(row.age_seconds == pytest.approx(5) for row in store.outbox())


def test_after_a_reboot_everything_unsent_is_due(open_store: Opener, clock: ManualClock) -> None:
    first = open_store("boot-1")
    first.commit(state=None, outbox=[post(), post("sms", hold=1e6)])
    first.mark_failed(take(first)[0].id, owner="me", error="x", retry_after_seconds=1e6)
    first.close()
    rebooted = ManualClock(monotonic=1.0, wall=clock.wall() + 60)
    with GuardStore.open(first.path, clock=rebooted, boot_id="boot-2") as second:
        assert {row.channel for row in take(second)} == {"mail", "sms"}
        assert [row.age_seconds for row in second.outbox()] == [60, 60]


def test_a_new_guard_takes_over_what_the_old_one_was_sending(open_store: Opener) -> None:
    first = open_store()
    first.commit(state=None, outbox=[post()])
    take(first)
    first.close()
    second = open_store()
    assert [row.last_error for row in take(second)] == ["the sender ended before it knew the outcome"]


def test_an_unsent_alarm_is_told_together_with_its_end(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(), post("sms", hold=5)])
    row = take(store, ["mail"])[0]
    store.mark_sent(row.id, owner="me")
    store.commit(state=None, outbox=[post(event="resolve"), post("sms", event="resolve")])
    assert states(store) == {
        "open mail": OutboxState.SENT,
        "open sms": OutboxState.SUPERSEDED,
        "resolve mail": OutboxState.PENDING,
        "resolve sms": OutboxState.PENDING,
    }
    taken = {row.channel: row for row in take(store)}
    assert taken["mail"].opened is None
    assert taken["sms"].opened == message()


def test_an_alarm_under_way_when_its_incident_ends_is_never_repeated_after_the_end(
    store: GuardStore, clock: ManualClock
) -> None:
    store.commit(state=None, outbox=[post()])
    row = take(store)[0]
    store.commit(state=None, outbox=[post(event="resolve")])
    assert take(store) == [], "the end waits for the alarm that is under way"
    store.mark_failed(row.id, owner="me", error="x", retry_after_seconds=0)
    assert states(store) == {"open mail": OutboxState.SUPERSEDED, "resolve mail": OutboxState.PENDING}
    assert [row.opened for row in take(store)] == [message()]
    clock.advance(1e6)
    assert [row.message.event for row in take(store)] == ["resolve"]


def test_an_alarm_whose_sender_vanished_is_told_together_with_its_end(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post()])
    take(store)
    store.commit(state=None, outbox=[post(event="resolve")])
    clock.advance(30)
    assert [(row.message.event, row.opened) for row in take(store)] == [("resolve", message())]


def test_a_sender_that_could_not_write_tells_the_outcome_later(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post()])
    row = store.peek_due(channels=BOTH)[0]
    assert store.mark_sent(row.id, owner="me")
    assert (store.outbox()[0].state, store.outbox()[0].attempts) == (OutboxState.SENT, 1)
    assert not store.mark_failed(row.id, owner="me", error="x", retry_after_seconds=0), "sent stays sent"


def test_messages_for_channels_that_are_gone_are_shown_as_dead(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(), post("pager")])
    assert store.strand(["mail", "sms"]) == 1
    row = store.outbox(states=[OutboxState.DEAD])[0]
    assert row.last_error == "channel pager is not in sre.yaml"
    assert [(load.channel, load.pending, load.dead) for load in store.outbox_load()] == [
        ("mail", 1, 0),
        ("pager", 0, 1),
    ]


def test_old_finished_messages_go_and_dead_ones_stay(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(6)])
    for n in range(6):
        row = take(store)[0]
        if n:
            store.mark_sent(row.id, owner="me")
        else:
            store.mark_dead(row.id, owner="me", error="x")
    assert store.prune(journal_rows=1, journal_max_age_seconds=None, outbox_rows=2) == (0, 1), "they may have to end"
    store.commit(state=None, told=[message(f"i{n}", "resolve") for n in range(6)])
    assert store.prune(journal_rows=1, journal_max_age_seconds=None, outbox_rows=2) == (0, 2)
    assert [row.message.incident_id for row in store.outbox()] == ["i0", "i4", "i5"]


def test_an_operator_revives_and_drops_messages_beside_the_guard(store: GuardStore, clock: ManualClock) -> None:
    store.commit(state=None, outbox=[post(), post("sms"), post("pager")])
    rows = {row.channel: row for row in take(store)}
    store.mark_dead(rows["mail"].id, owner="me", error="535")
    clock.advance(1e6)
    with OutboxDesk.open(store.path, clock=clock, boot_id="boot-1") as desk:
        assert desk.retry(rows["mail"].id)
        assert not desk.retry(rows["sms"].id), "it is under way"
        assert not desk.drop(rows["sms"].id), "it is under way"
        assert desk.drop(3)
        assert not desk.retry(3), "dropped for good"
        assert not desk.retry(99)
    assert states(store)["open mail"] is OutboxState.PENDING
    row = store.outbox()[0]
    assert (row.attempts, row.age_seconds) == (0, 0)
    assert [(r.entry.reason, r.entry.target) for r in store.journal()] == [
        ("outbox_retry", "mail"),
        ("outbox_drop", "pager"),
    ]
    assert store.verify_chain() == 2


class OutboxLife(RuleBasedStateMachine):
    """Guards come and go, deliveries succeed, fail and vanish, incidents open and resolve."""

    INCIDENTS = ("a", "b")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.boot = 1
        self.store: GuardStore | None = None
        self.leases: dict[int, OutboxRow] = {}
        self.accepted: list[tuple[str, str, str]] = []  # (incident, channel, what the person learned)
        self.queued: set[tuple[str, str, str]] = set()
        self.lost_outcomes = 0

    @property
    def path(self) -> Path:
        return Path(self.folder.name) / "guard.db"

    @initialize()
    def begin(self) -> None:
        self.store = GuardStore.open(self.path, clock=self.clock, boot_id=f"boot-{self.boot}")

    @rule(incident=st.sampled_from(INCIDENTS), hold=st.sampled_from([0.0, 2.0]))
    def open_incident(self, incident: str, hold: float) -> None:
        assert self.store is not None
        if not any(q[0] == incident for q in self.queued):
            self.store.commit(state="s", outbox=[post(c, incident=incident, hold=hold) for c in BOTH])
            self.queued |= {(incident, c, "open") for c in BOTH}

    @rule(incident=st.sampled_from(INCIDENTS))
    def resolve_incident(self, incident: str) -> None:
        assert self.store is not None
        if (incident, "mail", "open") in self.queued:
            self.store.commit(state="s", outbox=[post(c, incident=incident, event="resolve") for c in BOTH])
            self.queued |= {(incident, c, "resolve") for c in BOTH}

    @rule()
    def take(self) -> None:
        assert self.store is not None
        busy = {row.channel for row in self.leases.values()}
        for row in self.store.lease(owner="me", seconds=30, channels=set(BOTH) - busy, exclude=tuple(self.leases)):
            assert row.id not in self.leases, "a leased message was given twice"
            self.leases[row.id] = row

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), outcome=st.sampled_from(["sent", "failed", "vanished", "accepted, then vanished"]))
    def end_delivery(self, data: st.DataObject, outcome: str) -> None:
        assert self.store is not None
        row = self.leases.pop(data.draw(st.sampled_from(sorted(self.leases))))
        if outcome in ("sent", "accepted, then vanished"):
            self.accept(row)
        if outcome == "sent":
            assert self.store.mark_sent(row.id, owner="me")
        elif outcome == "failed":
            assert self.store.mark_failed(row.id, owner="me", error="x", retry_after_seconds=5)
        else:
            self.lost_outcomes += outcome != "vanished"
            self.clock.advance(31)  # nobody tells: the lease ends
            self.leases.clear()

    def accept(self, row: OutboxRow) -> None:
        incident, channel = row.message.incident_id, row.channel
        if row.opened is not None:
            self.accepted.append((incident, channel, "open"))
        assert not (row.message.event == "open" and (incident, channel, "resolve") in self.accepted), (
            "an alarm after the all-clear"
        )
        self.accepted.append((incident, channel, row.message.event))

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(reboot=st.booleans(), jump=st.sampled_from([0.0, -1e6, 1e6]))
    def guard_dies(self, reboot: bool, jump: float) -> None:
        assert self.store is not None
        self.store.close()
        self.leases.clear()
        self.boot += reboot
        if reboot:
            self.clock = ManualClock(monotonic=1.0, wall=self.clock.wall() + 60)
        self.clock.jump_wall(jump)
        self.begin()

    @invariant()
    def the_chain_and_the_counts_hold(self) -> None:
        if self.store is not None:
            assert sum(outbox_counts(self.store).values()) == len(self.queued)

    def teardown(self) -> None:
        """However it went: with a sender that works, everything queued is told in the end."""
        if self.store is not None:
            self.leases.clear()
            for _ in range(20):
                self.clock.advance(31)
                self.take()
                for row in list(self.leases.values()):
                    self.accept(row)
                    self.store.mark_sent(row.id, owner="me")
                self.leases.clear()
            assert set(self.accepted) == self.queued
            assert len(self.accepted) <= len(self.queued) + 2 * self.lost_outcomes
            self.store.close()
        self.folder.cleanup()


OutboxLife.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestOutboxLife = OutboxLife.TestCase
