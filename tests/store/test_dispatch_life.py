"""Incidents, storms, nights and deaths in any order: a person hears of everything."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sre.actions.records import OutboxMessage, OutboxRow, OutboxState
from sre.adapters.store import GuardStore
from sre.notify.policy import Dispatch, Storm
from sre.testing.clock import ManualClock
from tests.store.samples import message, post
from tests.store.sending import QUIET, take, ticket

Opener = Callable[..., GuardStore]


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
