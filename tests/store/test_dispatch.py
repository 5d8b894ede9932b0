"""What a channel is sent next: storms become digests, quiet hours hold, nothing is lost and nothing takes long."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime, time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sre.actions import facts
from sre.actions.records import AckOutcome, OutboxMessage, OutboxRow, OutboxState
from sre.adapters.store import GuardStore, OutboxDesk
from sre.adapters.store.digests import GATHERED_AT_ONCE
from sre.notify.digest import IDS_NAMED
from sre.notify.policy import Dispatch, Storm
from sre.notify.quiet_hours import QuietHours
from sre.testing.clock import ManualClock
from tests.store.samples import message, post

Opener = Callable[..., GuardStore]

QUIET = QuietHours(time(22), time(7), UTC, frozenset({"ticket", "info"}))
STORM = Dispatch(Storm(3, 100.0))
NIGHT = Dispatch(quiet_hours=QUIET)


def ticket(channel: str = "mail", incident: str = "t", event: str = "open") -> OutboxMessage:
    severity = "info" if event == "resolve" else "ticket"
    base = message(incident, event)
    return OutboxMessage(
        type(base)(**{f: getattr(base, f) for f in base.__dataclass_fields__} | {"severity": severity}), channel
    )


def take(store: GuardStore, dispatch: Dispatch = STORM, channel: str = "mail") -> OutboxRow | None:
    rows = store.lease(owner="me", seconds=30, channels=[channel], dispatch=dispatch)
    return rows[0] if rows else None


def send(store: GuardStore, dispatch: Dispatch = STORM, channel: str = "mail") -> list[OutboxRow]:
    """Deliver everything that may go now."""
    sent = []
    while (row := take(store, dispatch, channel)) is not None:
        assert store.mark_sent(row.id, owner="me")
        sent.append(row)
    return sent


def told(rows: list[OutboxRow]) -> list[str]:
    return ["digest" if r.is_digest else f"{r.message.event} {r.message.incident_id}" for r in rows]


# ---- storms


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
    assert store.outbox_counts()[OutboxState.DIGESTED] == count - 3


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
    assert second.outbox_counts()[OutboxState.DIGESTED] == GATHERED_AT_ONCE
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


# ---- quiet hours


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


# ---- a peek, where nothing can be written


def test_what_would_be_digested_comes_by_itself_where_nothing_can_be_written(store: GuardStore) -> None:
    store.commit(state=None, outbox=[post(incident=f"i{n}") for n in range(9)])
    for _ in range(3):
        take(store)
    (row,) = store.peek_due(channels=["mail"], dispatch=STORM)
    assert row.message.incident_id == "i3"
    (row,) = store.peek_due(channels=["mail"], exclude=[row.id], dispatch=STORM)
    assert row.message.incident_id == "i4"


# ---- all of it together


class Life(RuleBasedStateMachine):
    """Incidents begin, worsen and end, in the day and at night; guards come and go; a channel works or does not."""

    DISPATCH = Dispatch(Storm(2, 50.0), QUIET)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.boot = 1
        self.count = 0
        self.open: dict[str, str] = {}
        self.severity: dict[str, str] = {}
        self.ended: set[str] = set()
        self.heard: dict[str, set[str]] = {}
        self.begun: list[float] = []
        self.store = self.opened()

    def opened(self) -> GuardStore:
        path = Path(self.folder.name) / "guard.db"
        return GuardStore.open(path, clock=self.clock, boot_id=f"boot-{self.boot}")

    @rule(many=st.integers(1, 6), severity=st.sampled_from(["page", "ticket"]))
    def incidents_begin(self, many: int, severity: str) -> None:
        names = [f"i{self.count + n}" for n in range(many)]
        self.count += many
        make = post if severity == "page" else ticket
        self.store.commit(state=None, outbox=[make("mail", incident=name) for name in names])
        self.open |= dict.fromkeys(names, severity)
        self.severity |= dict.fromkeys(names, severity)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def an_incident_ends(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[name]
        self.ended.add(name)
        self.store.commit(state=None, outbox=[ticket(incident=name, event="resolve")])

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def an_incident_worsens(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.store.commit(state=None, outbox=[OutboxMessage(message(name, "escalate"), "mail", 1)])
        self.severity[name] = "page"

    @rule(outcomes=st.lists(st.sampled_from(["sent", "sent", "failed", "lost"]), max_size=5))
    def the_channel_is_served(self, outcomes: list[str]) -> None:
        for outcome in outcomes:
            row = take(self.store, self.DISPATCH)
            if row is None:
                return
            self.check(row)
            if outcome == "sent":
                self.hear(row)
                assert self.store.mark_sent(row.id, owner="me")
            elif outcome == "failed":
                assert self.store.mark_failed(row.id, owner="me", error="x", retry_after_seconds=5)
            else:
                self.clock.advance(31)

    def check(self, row: OutboxRow) -> None:
        hour = datetime.fromtimestamp(self.clock.wall(), UTC).hour
        if hour >= 22 or hour < 7:
            assert row.severity == "page", "only pages go out at night"

    def hear(self, row: OutboxRow) -> None:
        """A person learns what a row says."""
        if row.is_digest or row.message.incident_id.startswith("digest-"):
            digest = row.message.incident_id
            if not row.is_digest and row.opened is None:
                return  # the end of a digest that was told
            for member in self.store.outbox(digest=digest):
                self.heard.setdefault(member.message.incident_id, set()).add(member.message.event)
                if member.opened is not None:
                    self.heard[member.message.incident_id].add("open")
            return
        known = self.heard.setdefault(row.message.incident_id, set())
        assert not (row.message.event == "open" and "resolve" in known), "an alarm after the all-clear"
        known.add(row.message.event)
        if row.opened is not None:
            known.add("open")

    @rule(seconds=st.sampled_from([1.0, 6.0, 3600.0, 6 * 3600.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(reboot=st.booleans())
    def the_guard_dies(self, reboot: bool) -> None:
        self.store.close()
        self.boot += reboot
        if reboot:
            self.clock = ManualClock(monotonic=1.0, wall=self.clock.wall() + 60)
        self.store = self.opened()

    @invariant()
    def nothing_is_lost(self) -> None:
        rows = self.store.outbox(limit=100_000)
        found = {row.message.incident_id for row in rows}
        assert set(self.severity) <= found
        for row in rows:
            assert (row.state is OutboxState.DIGESTED) is (row.digest is not None)

    def teardown(self) -> None:
        """However it went: with a channel that works, by the next noon a person has heard of everything."""
        for _ in range(2):
            for _ in range(60):
                self.clock.advance(31)
                row = take(self.store, self.DISPATCH)
                if row is not None:
                    self.check(row)
                    self.hear(row)
                    self.store.mark_sent(row.id, owner="me")
            self.clock.advance(12 * 3600)
        assert not self.store.outbox(states=[OutboxState.PENDING, OutboxState.HELD, OutboxState.SENDING])
        for name in self.severity:
            assert "open" in self.heard.get(name, ()), f"{name} was never told"
            told_of_end = "resolve" in self.heard[name]
            row = next(r for r in self.store.outbox(incident_id=name) if r.message.event == "open")
            if name in self.ended and row.state is not OutboxState.DIGESTED:
                assert told_of_end, f"the end of {name} was never told"
        self.store.close()
        self.folder.cleanup()


Life.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestLife = Life.TestCase


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
    assert store.mark_dead(digest.id, owner="me", error="550")
    with OutboxDesk.open(store.path, clock=clock, boot_id="boot-1") as desk:
        assert desk.drop(digest.id)
    store.commit(state=None, outbox=[post(incident=f"i{n}", event="resolve") for n in (3, 4, 5)])
    assert send(store) == []


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
