"""Whatever opens an alert at a paging service, under whatever name and on whatever way, is closed there in the end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from sre.actions.records import OutboxMessage, OutboxRow, OutboxState
from sre.adapters.store import GuardStore, OutboxDesk
from sre.adapters.store.digests import GATHERED_AT_ONCE
from sre.notify.escalation import Escalation
from sre.notify.forms import Act, render
from sre.notify.policy import Dispatch, Storm
from sre.testing.clock import ManualClock
from tests.store.samples import message, outbox_counts, post
from tests.store.sending import STORM, send, take, ticket, told

Opener = Callable[..., GuardStore]
ESCALATION = Escalation(after_seconds=900, repeat_seconds=300, max_levels=2, channels=("pager",))


class Pager:
    """A paging service: alerts by their key, opened and closed as PagerDuty does it."""

    def __init__(self) -> None:
        self.open: set[str] = set()

    def hears(self, row: OutboxRow) -> None:
        form = render(row.message, "pagerduty", row.opened)
        if form.act is Act.TRIGGER:
            self.open.add(form.key)
        elif form.act is Act.RESOLVE:
            self.open.discard(form.key)


def serve(store: GuardStore, pager: Pager, channel: str = "pager", dispatch: Dispatch = STORM) -> list[str]:
    rows = send(store, dispatch, channel)
    for row in rows:
        pager.hears(row)
    return told(rows)


def end(store: GuardStore, *incidents: str, channels: tuple[str, ...] = ("mail", "pager")) -> None:
    store.commit(state=None, outbox=[post(c, incident=i, event="resolve") for i in incidents for c in channels])


def storm_on_mail(store: GuardStore, count: int = 6) -> OutboxRow:
    """Return the digest of all but three."""
    store.commit(state=None, outbox=[post("mail", incident=f"i{n}") for n in range(count)])
    for _ in range(3):
        row = take(store)
        assert row is not None
        store.mark_sent(row.id, owner="me")
    digest = take(store)
    assert digest is not None
    assert digest.is_digest
    return digest


def test_a_digest_of_nothing_but_escalations_has_an_end(store: GuardStore, clock: ManualClock) -> None:
    pager = Pager()
    store.commit(state=None, outbox=[post("mail", incident=f"i{n}") for n in range(9)])
    clock.advance(900)
    assert store.escalate(ESCALATION) == 9
    assert serve(store, pager)[-1] == "digest"
    assert len(pager.open) == 4
    end(store, *(f"i{n}" for n in range(8)))
    serve(store, pager)
    assert len(pager.open) == 1, "the digest's own alert: one of its incidents is not over"
    end(store, "i8")
    serve(store, pager)
    assert pager.open == set()


@pytest.mark.parametrize("over_first", [False, True])
def test_a_digest_that_went_to_the_fallback_ends_there_too(store: GuardStore, over_first: bool) -> None:
    pager = Pager()
    digest = storm_on_mail(store)
    if over_first:
        end(store, "i3", "i4", "i5")
    assert store.mark_dead(digest.id, owner="me", error="550", fallback="pager")
    serve(store, pager)
    assert bool(pager.open) is not over_first
    end(store, "i3", "i4", "i5")
    serve(store, pager)
    assert pager.open == set()
    assert sum(r.message.event == "resolve" for r in store.outbox(incident_id=digest.message.incident_id)) == 2


def test_a_digest_within_a_digest_of_the_fallback_ends_with_the_last_of_both(
    store: GuardStore, clock: ManualClock
) -> None:
    pager = Pager()
    store.commit(state=None, outbox=[post("pager", incident=f"p{n}") for n in range(3)])
    serve(store, pager)
    digest = storm_on_mail(store)
    store.commit(state=None, outbox=[post("pager", incident="p3")])
    assert store.mark_dead(digest.id, owner="me", error="550", fallback="pager")
    assert serve(store, pager) == ["digest"]
    end(store, "p0", "p1", "p2", "p3", "i0", "i1", "i2", "i3", "i4")
    serve(store, pager)
    assert len(pager.open) == 1
    clock.advance(100)
    end(store, "i5")
    serve(store, pager)
    assert pager.open == set()


def test_what_was_escalated_by_itself_ends_by_itself_though_a_digest_told_its_beginning(
    store: GuardStore, clock: ManualClock
) -> None:
    pager = Pager()
    store.commit(state=None, outbox=[post("pager", incident=f"i{n}") for n in range(9)])
    serve(store, pager)
    clock.advance(900)
    for n in range(8):
        store.acknowledge(f"i{n}", by="alice")
    store.escalate(ESCALATION)
    assert serve(store, pager) == ["escalate i8"]
    assert "i8" in pager.open
    end(store, "i8")
    serve(store, pager)
    assert "i8" not in pager.open


def test_the_end_of_what_was_only_escalated_to_a_channel_goes_into_no_digest(
    store: GuardStore, clock: ManualClock
) -> None:
    pager = Pager()
    store.commit(state=None, outbox=[post("mail", incident=f"i{n}") for n in range(3)])
    clock.advance(900)
    store.escalate(ESCALATION)
    assert serve(store, pager) == ["escalate i0", "escalate i1", "escalate i2"]
    end(store, "i0", "i1", "i2", *(f"never-told-{n}" for n in range(9)))
    serve(store, pager)
    assert pager.open == set()


def test_what_was_over_before_its_digest_was_complete_opens_nothing(open_store: Opener) -> None:
    store, pager = open_store(), Pager()
    count = GATHERED_AT_ONCE + 5
    store.commit(state=None, outbox=[post("pager", incident=f"i{n}") for n in range(count)])
    serve_three = [take(store, channel="pager") for _ in range(3)]
    for row in filter(None, serve_three):
        pager.hears(row)
        store.mark_sent(row.id, owner="me")
    commits = 0

    def dies(statement: str) -> None:
        nonlocal commits
        commits += statement == "BEGIN IMMEDIATE"
        if commits == 2:
            store._connection.execute("PRAGMA query_only=1")

    store._connection.set_trace_callback(dies)
    with pytest.raises(Exception, match="cannot be opened for writing"):
        take(store, channel="pager")
    store.close()
    again = open_store()
    end(again, *(f"i{n}" for n in range(count)))
    serve(again, pager)
    assert pager.open == set()
    assert outbox_counts(again)[OutboxState.DEAD] == 0


def test_a_digest_of_acknowledgements_opens_nothing(store: GuardStore) -> None:
    pager = Pager()
    store.commit(state=None, outbox=[post("pager", incident=f"i{n}") for n in range(3)])
    serve(store, pager)
    before = set(pager.open)
    quick = Dispatch(Storm(1, 100.0))
    store.commit(
        state=None,
        outbox=[OutboxMessage(message(f"other{n}", "acknowledge"), "pager") for n in range(4)],
    )
    assert "digest" in serve(store, pager, dispatch=quick)
    assert pager.open == before


def test_a_digest_that_was_tried_and_then_dropped_may_have_arrived_and_ends(
    store: GuardStore, clock: ManualClock
) -> None:
    digest = storm_on_mail(store)
    assert store.mark_failed(digest.id, owner="me", error="no answer", retry_after_seconds=60)
    with OutboxDesk.open(store.path, clock=clock, boot_id="boot-1") as desk:
        assert desk.drop(digest.id)
    end(store, "i3", "i4", "i5", channels=("mail",))
    assert told(send(store)) == [f"resolve {digest.message.incident_id}"]


def test_ends_find_what_began_though_much_else_was_told_since(store: GuardStore) -> None:
    pager = Pager()
    store.commit(state=None, outbox=[post("pager", incident=f"i{n}") for n in range(6)])
    serve(store, pager)
    store.commit(state=None, outbox=[ticket("mail", incident=f"t{n}") for n in range(10)])
    store.commit(state=None, outbox=[ticket("mail", incident=f"t{n}", event="resolve") for n in range(10)])
    send(store, Dispatch())
    assert store.prune(journal_rows=1, journal_max_age_seconds=None, outbox_rows=15)[1] == 5, "mail's own"
    end(store, *(f"i{n}" for n in range(6)))
    serve(store, pager)
    assert pager.open == set()


def test_a_page_sent_without_a_lease_whose_incident_ended_meanwhile_is_ended_by_itself(store: GuardStore) -> None:
    pager = Pager()
    store.commit(state=None, outbox=[post("pager", incident="i")])
    (row,) = store.peek_due(channels=["pager"])
    pager.hears(row)
    end(store, "i", *(f"never-told-{n}" for n in range(9)))
    assert not store.mark_sent(row.id, owner="me")
    serve(store, pager)
    assert pager.open == set()


class PagerLife(RuleBasedStateMachine):
    """Mail with a paging service as its fallback and as the one who is called when nobody answers."""

    DISPATCH = Dispatch(Storm(2, 50.0))

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.pager = Pager()
        self.count = 0
        self.open: set[str] = set()
        self.store = self.opened()

    def opened(self) -> GuardStore:
        return GuardStore.open(Path(self.folder.name) / "guard.db", clock=self.clock, boot_id="boot")

    @rule(many=st.integers(1, 6), channels=st.sampled_from([("mail",), ("pager",), ("mail", "pager")]))
    def incidents_begin(self, many: int, channels: tuple[str, ...]) -> None:
        names = [f"i{self.count + n}" for n in range(many)]
        self.count += many
        self.open |= set(names)
        self.store.commit(state=None, outbox=[post(c, incident=name) for name in names for c in channels])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), many=st.integers(1, 5))
    def incidents_end(self, data: st.DataObject, many: int) -> None:
        for _ in range(min(many, len(self.open))):
            name = data.draw(st.sampled_from(sorted(self.open)))
            self.open.remove(name)
            end(self.store, name)

    @rule()
    def nobody_answers(self) -> None:
        self.clock.advance(900)
        self.store.escalate(ESCALATION)

    @rule(outcomes=st.lists(st.sampled_from(["sent", "sent", "unknown", "failed", "dead", "lost"]), max_size=6),
          channel=st.sampled_from(["mail", "pager"]))  # fmt: skip
    def a_channel_is_served(self, outcomes: list[str], channel: str) -> None:
        fallback = "pager" if channel == "mail" else None
        for outcome in outcomes:
            row = take(self.store, self.DISPATCH, channel)
            if row is None:
                return
            if channel == "pager" and outcome in ("sent", "unknown", "lost"):
                self.pager.hears(row)
            if outcome == "sent":
                self.store.mark_sent(row.id, owner="me")
            elif outcome in ("unknown", "failed"):
                self.store.mark_failed(row.id, owner="me", error=outcome, retry_after_seconds=5, fallback=fallback)
            elif outcome == "dead":
                self.store.mark_dead(row.id, owner="me", error=outcome, fallback=fallback)
            else:
                self.clock.advance(31)

    @rule()
    def mail_is_down(self) -> None:
        self.store.divert("mail", "pager", "no answer")

    @rule(seconds=st.sampled_from([1.0, 6.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def the_guard_dies(self) -> None:
        self.store.close()
        self.store = self.opened()

    @rule()
    def a_person_sends_what_is_dead(self) -> None:
        with OutboxDesk.open(self.store.path, clock=self.clock, boot_id="boot") as desk:
            desk.retry_dead("pager")

    def teardown(self) -> None:
        """When every incident is over and the services work, no alert is left open."""
        end(self.store, *sorted(self.open))
        for _ in range(3):
            self.a_person_sends_what_is_dead()
            for _ in range(40):
                self.clock.advance(31)
                for channel in ("mail", "pager"):
                    row = take(self.store, self.DISPATCH, channel)
                    if row is not None:
                        if channel == "pager":
                            self.pager.hears(row)
                        self.store.mark_sent(row.id, owner="me")
        waiting = self.store.outbox(states=[OutboxState.PENDING, OutboxState.HELD, OutboxState.SENDING])
        assert not waiting
        assert self.pager.open == set()
        self.store.close()
        self.folder.cleanup()


PagerLife.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestPagerLife = PagerLife.TestCase
