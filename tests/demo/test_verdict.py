"""The demo's verdict: what counts as evidence, and that each promise can be broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sre.control.demo import Budgets, Check, Event, Mark, Observer, Received, Story, Stream, count_cut, verdict
from sre.signals.types import ProcessIdentity
from sre.testing.clock import ManualClock

OLD, NEW = ProcessIdentity(10, 1), ProcessIdentity(20, 2)
EFFECT = 100.0


def served(sent: float, ended: float, request_id: str = "a") -> Stream:
    return Stream(sent, request_id, 200, sent + 0.1, ended, complete=True)


def stalled(sent: float, ended: float | None = None, request_id: str | None = None) -> Stream:
    return Stream(sent, request_id, 200 if request_id else None, None, ended)


def refused(sent: float, took: float = 0.01) -> Stream:
    return Stream(
        sent, None, 503, None, sent + took, refusal="hang", retry_after="5", error_type="service_unavailable_error"
    )


def good_run() -> tuple[Story, list[Stream]]:
    """A run in which every promise is kept."""
    story = Story(lambda _: None)
    times = {
        Event.REQUESTED: -0.5, Event.EFFECTIVE: 0.0, Event.DETECTED: 3.5, Event.REFUSED: 3.6, Event.CONTEXTS: 3.8,
        Event.MAIL: 4.5, Event.SMS: 4.4, Event.RESTART: 8.0, Event.RESTARTED: 12.0, Event.HALF_OPEN: 13.0,
        Event.ANSWERED: 15.0, Event.CLOSED: 22.0, Event.RESOLVED_MAIL: 22.5, Event.RESOLVED_SMS: 22.4,
    }  # fmt: skip
    for event, at in times.items():
        story.add(Mark(event, EFFECT + at, "test"))
    story.saved_ids = ("s1", "s2", "s3")
    streams = [
        served(90, 92),
        stalled(99, EFFECT + 8.5, "s1"),
        stalled(99.5, EFFECT + 8.5, "s2"),
        stalled(101, EFFECT + 8.5),
        refused(103.59),
        refused(104),
        served(114, 115),
    ]
    return story, streams


def failed(checks: Sequence[Check]) -> list[str]:
    return [check.name for check in checks if not check.passed]


def test_a_good_run_passes_every_check() -> None:
    assert failed(verdict(*good_run(), Budgets())) == []


def test_without_an_effect_nothing_is_proven() -> None:
    assert failed(verdict(Story(lambda _: None), [], Budgets())) == ["fault took effect"]


@pytest.mark.parametrize(
    ("event", "check"),
    [
        (Event.REFUSED, "fault → first new request refused"),
        (Event.CONTEXTS, "trip → contexts on disk"),
        (Event.MAIL, "fault → e-mail at the SMTP server"),
        (Event.SMS, "fault → SMS at the HTTP endpoint"),
        (Event.RESTARTED, "fault → engine restarted and ready"),
        (Event.CLOSED, "fault → all traffic back"),
        (Event.RESOLVED_MAIL, "closed → resolved e-mail"),
        (Event.RESOLVED_SMS, "closed → resolved SMS"),
    ],
)
def test_what_was_not_seen_or_came_late_fails_its_line(event: Event, check: str) -> None:
    story, streams = good_run()
    story.marks = [mark for mark in story.marks if mark.event is not event]
    assert check in failed(verdict(story, streams, Budgets()))
    story, streams = good_run()
    story.marks = [replace(mark, at=mark.at + 500) if mark.event is event else mark for mark in story.marks]
    assert check in failed(verdict(story, streams, Budgets()))


def test_a_stream_that_ends_between_trip_and_restart_was_cut_by_the_trip() -> None:
    story, streams = good_run()
    streams.append(stalled(99.2, EFFECT + 5, "s3"))
    story.saved_ids = ("s1", "s2", "s3", "x")
    assert failed(verdict(story, streams, Budgets())) == ["running streams cut by the trip"]


def test_streams_that_end_with_the_restarted_engine_are_counted_apart() -> None:
    _, streams = good_run()
    cut = count_cut(streams, EFFECT + 3.6, EFFECT + 8.0)
    assert (cut.open, cut.cut_by_trip, cut.ended_by_restart) == (3, 0, 3)


def test_a_request_in_flight_whose_context_is_missing_fails() -> None:
    story, streams = good_run()
    story.saved_ids = ("s1", "x", "y")
    assert failed(verdict(story, streams, Budgets())) == ["contexts of requests in flight saved"]
    story.saved_ids = ("s1", "s2")
    assert failed(verdict(story, streams, Budgets())) == ["contexts of requests in flight saved"]


@pytest.mark.parametrize("change", [{"retry_after": None}, {"error_type": None}])
def test_a_refusal_that_does_not_say_why_fails(change: Mapping[str, Any]) -> None:
    story, streams = good_run()
    streams.append(replace(refused(105), **change))
    assert failed(verdict(story, streams, Budgets())) == ["refusals with reason, Retry-After, JSON"]


def test_slow_refusals_fail() -> None:
    story, streams = good_run()
    streams += [refused(105, took=0.3), refused(105, took=0.3), refused(105, took=0.3)]
    assert failed(verdict(story, streams, Budgets())) == ["time of a refusal, median"]


# --- observing -----------------------------------------------------------------------------------------------------


def entry(seq: int, kind: str, at: float, action: str | None = None, **data: object) -> dict[str, Any]:
    return {
        "seq": seq, "kind": kind, "target": "e", "reason": "hang", "at_monotonic": at, "incident_id": "inc-1",
        "action": action, "data": data,
    }  # fmt: skip


@dataclass
class FakeWorld:
    """A world whose parts tests set."""

    streams_: list[Stream] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    identity: ProcessIdentity | None = OLD
    ready_at: float | None = 1.0
    contexts_: tuple[float, tuple[str, ...]] | None = None
    mails_: list[Received] = field(default_factory=list)
    texts_: list[Received] = field(default_factory=list)

    def streams(self) -> Sequence[Stream]:
        return self.streams_

    async def journal(self, after: int) -> Sequence[Mapping[str, Any]]:
        return [e for e in self.entries if e["seq"] > after]

    async def engine(self, name: str) -> tuple[ProcessIdentity | None, float | None]:
        return self.identity, self.ready_at

    def contexts(self, incident_id: str) -> tuple[float, tuple[str, ...]] | None:
        return self.contexts_ if incident_id == "inc-1" else None

    def mails(self) -> Sequence[Received]:
        return self.mails_

    def texts(self) -> Sequence[Received]:
        return self.texts_


async def observe(world: FakeWorld, *, effective: bool = True) -> Story:
    story = Story(lambda _: None)
    observer = Observer(world, story, "e", (10, 25, 50, 100))
    past, world.entries = world.entries, []
    await observer.baseline()
    world.entries = past
    story.add(Mark(Event.REQUESTED, EFFECT - 0.5, "test"))
    if effective:
        story.add(Mark(Event.EFFECTIVE, EFFECT, "test"))
    await observer.look()
    return story


async def test_states_come_from_the_journal_and_each_ramp_step_is_an_event() -> None:
    world = FakeWorld(
        entries=[
            entry(1, "transition", 103, to="open", detail="no step for 3 s"),
            entry(2, "intent", 108, action="restart"),
            entry(3, "transition", 113, to="half_open"),
            entry(4, "transition", 115, to="half_open", ramp_index=0),
            entry(5, "transition", 117, to="half_open", ramp_index=1),
            entry(6, "transition", 119, to="closed"),
            entry(7, "transition", 125, to="open", detail="again"),
        ]
    )
    story = await observe(world)
    assert [(m.event, m.at, m.detail) for m in story.marks[2:]] == [
        (Event.DETECTED, 103, "no step for 3 s"),
        (Event.RESTART, 108, "hang"),
        (Event.HALF_OPEN, 113, ""),
        (Event.RAMP, 115, "10 %"),
        (Event.RAMP, 117, "25 %"),
        (Event.CLOSED, 119, ""),
    ]
    assert story.incident_id == "inc-1"


async def test_entries_of_other_engines_are_no_evidence() -> None:
    world = FakeWorld(entries=[{**entry(1, "transition", 103, to="open"), "target": "other"}])
    assert (await observe(world)).at(Event.DETECTED) is None


async def test_a_refusal_counts_only_after_the_effect_and_with_our_reason() -> None:
    world = FakeWorld(streams_=[refused(99), replace(refused(101), refusal=None)])
    assert (await observe(world)).at(Event.REFUSED) is None
    world.streams_.append(refused(102))
    assert (await observe(world)).at(Event.REFUSED) == pytest.approx(102.01)
    assert (await observe(world, effective=False)).at(Event.REFUSED) is None


async def test_a_restart_counts_when_another_process_is_ready() -> None:
    world = FakeWorld()
    story = Story(lambda _: None)
    observer = Observer(world, story, "e", (100,))
    await observer.baseline()
    story.add(Mark(Event.EFFECTIVE, EFFECT, "test"))
    await observer.look()
    world.identity, world.ready_at = NEW, None
    await observer.look()
    assert story.at(Event.RESTARTED) is None
    world.ready_at = 112.0
    await observer.look()
    assert story.at(Event.RESTARTED) == 112.0


async def test_messages_before_the_fault_are_no_evidence_and_resolving_ones_are_told_apart() -> None:
    world = FakeWorld(
        mails_=[Received(90, "sre: test"), Received(104, "OPEN hang e"), Received(120, "RESOLVED hang e")],
        texts_=[Received(104.5, "open hang e")],
    )
    story = await observe(world)
    assert (story.at(Event.MAIL), story.at(Event.RESOLVED_MAIL)) == (104, 120)
    assert (story.at(Event.SMS), story.at(Event.RESOLVED_SMS)) == (104.5, None)


async def test_following_ends_when_the_story_is_told_or_time_is_up() -> None:
    clock = ManualClock(monotonic=EFFECT)
    story = Story(lambda _: None)
    assert not await Observer(FakeWorld(), story, "e", (100,)).follow(clock, EFFECT + 5)
    assert clock.monotonic() == pytest.approx(EFFECT + 5, abs=0.2)
    for event in (Event.CLOSED, Event.ANSWERED, Event.RESOLVED_MAIL, Event.RESOLVED_SMS):
        story.add(Mark(event, EFFECT, "test"))
    assert await Observer(FakeWorld(), story, "e", (100,)).follow(clock, EFFECT)
