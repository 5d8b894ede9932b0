"""What alerts lead to: order, duplicates, ends; heartbeat and canary; whatever comes in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sre.actions import facts
from sre.incidents.identity import is_incident_id
from sre.notify.alert_decide import REORDERED_SECONDS
from sre.notify.alert_later import Later
from sre.notify.alert_records import HEARTBEAT_KEY, Verdict, Wanted
from sre.settings.webhook import WebhookSettings
from tests.webhook.scenes import Desk, desk_of, one, payload, rfc3339

NOW = 1_800_000_000.0


def test_a_firing_opens_an_incident_and_its_end_closes_it(desk: Desk) -> None:
    assert desk.take(one(node="n1")) == [Verdict.OPENED]
    assert desk.events() == ["open"]
    opening = desk.messages()[0]
    assert is_incident_id(opening.incident_id)
    assert opening.severity == "page"
    assert dict(opening.facts)[facts.RULE] == "VllmQueueGrowing"
    assert desk.take(one(node="n1", status="resolved")) == [Verdict.ENDED]
    assert desk.events() == ["open", "resolve"]
    assert desk.open_incidents() == 0


def test_what_is_known_changes_nothing(desk: Desk) -> None:
    desk.take(one(node="n1"))
    rows = len(desk.journal())
    assert desk.take(one(node="n1")) == [Verdict.DUPLICATE]
    assert desk.take(one(node="n1", status="resolved")) == [Verdict.ENDED]
    assert desk.take(one(node="n1", status="resolved"), one(node="n1")) == [Verdict.DUPLICATE, Verdict.DUPLICATE]
    assert desk.events() == ["open", "resolve"]
    assert len(desk.journal()) == rows + 1


def test_two_hundred_copies_decided_together_are_one(desk: Desk) -> None:
    changes = desk.change(*[payload(one(node="n1"))] * 200)
    assert [verdict for _, verdict in changes.verdicts].count(Verdict.DUPLICATE) == 199
    assert desk.events("mail") == desk.events("sms") == ["open"]


def test_an_end_without_a_beginning_is_stored_and_told_nobody(desk: Desk) -> None:
    assert desk.take(one(node="n1", status="resolved")) == [Verdict.ENDED_UNSEEN]
    assert desk.events() == []
    assert desk.take(one(node="n1")) == [Verdict.ENDED_BEFORE], "its firing comes later and is over already"
    assert desk.events() == []
    assert [e.reason for e in desk.journal()] == ["ended_before"], "but it is on record"


def test_a_new_start_is_a_new_firing(desk: Desk) -> None:
    desk.take(one(node="n1"))
    desk.take(one(node="n1", status="resolved"))
    assert desk.take(one(node="n1", starts=NOW + 90)) == [Verdict.OPENED]
    assert desk.events() == ["open", "resolve", "open"]


def test_a_firing_that_comes_back_with_its_start_is_told_again(desk: Desk) -> None:
    """A partition between Prometheus and Alertmanager, or a silence, ends what goes on firing since the same moment."""
    desk.take(one(node="n1"))
    desk.take(one(node="n1", status="resolved"))
    assert desk.take(one(node="n1")) == [Verdict.DUPLICATE], "overtaken by its end"
    desk.clock.advance(REORDERED_SECONDS + 1)
    assert desk.take(one(node="n1")) == [Verdict.OPENED]
    assert desk.take(one(node="n1")) == [Verdict.DUPLICATE]
    assert desk.take(one(node="n1", status="resolved")) == [Verdict.ENDED]
    assert desk.events() == ["open", "resolve", "open", "resolve"]


def test_an_end_without_a_beginning_swallows_no_later_firing(desk: Desk) -> None:
    desk.take(one(node="n1", status="resolved"))
    desk.clock.advance(7200)
    assert desk.take(one(node="n1")) == [Verdict.OPENED]
    assert desk.events() == ["open"]


def test_an_end_that_was_not_heard_swallows_no_other_firing(desk: Desk) -> None:
    """Alertmanager tells nobody that an alert ended while it was silenced or inhibited."""
    desk.take(one(node="n1"))
    desk.clock.advance(23 * 3600)
    assert desk.take(one(node="n1", starts=NOW + 23 * 3600)) == [Verdict.OPENED]
    assert desk.events() == ["open", "resolve", "open"]
    assert desk.book.counts() == (1, 1)


@pytest.mark.parametrize("earlier_fires", [False, True])
def test_an_end_with_an_earlier_start_ends_the_firing_we_know(desk: Desk, earlier_fires: bool) -> None:
    """Two Prometheus servers name two starts; Alertmanager keeps the earlier one."""
    desk.take(one(node="n1", starts=NOW))
    if earlier_fires:
        assert desk.take(one(node="n1", starts=NOW - 10)) == [Verdict.ENDED_BEFORE]
    desk.clock.advance(60)
    assert desk.take(one(node="n1", starts=NOW - 10, status="resolved")) == [Verdict.ENDED]
    assert desk.events() == ["open", "resolve"]
    assert desk.open_incidents() == 0


def ended_at(moment: float) -> dict[str, Any]:
    """As Alertmanager tells of an end that was sent without a start, and before the start of what fires."""
    return one(node="n1", starts=moment, status="resolved") | {"endsAt": rfc3339(moment)}


def test_an_end_in_whole_seconds_ends_what_began_within_that_second(desk: Desk) -> None:
    """A sender that writes whole seconds ends a short alert before it began; nobody tells of that end again."""
    desk.take(one(node="n1", starts=NOW + 0.643))
    assert desk.take(ended_at(NOW)) == [Verdict.ENDED]
    assert desk.open_incidents() == 0
    desk.take(one(node="n1", starts=NOW + 60))
    assert desk.take(ended_at(NOW + 58)) == [Verdict.ENDED_UNSEEN]
    assert desk.open_incidents() == 1


def test_a_late_end_of_an_earlier_firing_leaves_the_present_one_alone(desk: Desk) -> None:
    desk.take(one(node="n1", starts=NOW))
    assert desk.take(one(node="n1", starts=NOW - 600, status="resolved")) == [Verdict.ENDED_UNSEEN]
    assert desk.open_incidents() == 1


def test_a_start_that_changed_without_an_end_goes_on_in_its_incident(desk: Desk) -> None:
    desk.take(one(node="n1"))
    assert desk.take(one(node="n1", starts=NOW + 90)) == [Verdict.JOINED]
    assert desk.events() == ["open"]
    assert desk.book.counts() == (1, 1)
    desk.take(one(node="n1", starts=NOW + 90, status="resolved"))
    assert desk.events() == ["open", "resolve"]


def test_an_older_firing_that_comes_after_its_successor_is_over(desk: Desk) -> None:
    desk.take(one(node="n1", starts=NOW))
    assert desk.take(one(node="n1", starts=NOW - 600)) == [Verdict.ENDED_BEFORE]
    assert desk.book.counts() == (1, 1)


def test_what_is_heard_of_late_is_told_as_such(desk: Desk) -> None:
    desk.take(one(node="n1", starts=NOW - 3 * 3600))
    assert "began 3.0 h ago, heard only now" in desk.messages()[0].summary


def test_a_clock_that_is_ahead_is_mentioned(desk: Desk) -> None:
    desk.take(one(node="n1", starts=NOW + 1200))
    assert "20 min ahead" in dict(desk.messages()[0].facts)["clock"]


def decide_on_heartbeat(desk: Desk, what: Callable[[Later], None]) -> None:
    desk.later(Wanted(join_keys=frozenset({HEARTBEAT_KEY})), what)


def test_silence_is_told_once_and_ends_when_the_heartbeat_is_heard(desk: Desk) -> None:
    assert desk.book.heartbeat_age() == 0
    desk.clock.advance(400)
    assert desk.book.heartbeat_age() == 400
    for _ in range(3):
        decide_on_heartbeat(desk, lambda decision: decision.silence(400.0))
    (message,) = desk.messages()
    assert (message.severity, message.reason) == ("page", "pipeline_silent")
    assert desk.take(one("SreWatchdog", severity="info")) == [Verdict.HEARTBEAT]
    assert desk.events() == ["open", "resolve"]
    assert desk.book.heartbeat_age() == 0
    desk.clock.advance(60)
    assert desk.take(one("SreWatchdog", severity="info")) == [Verdict.HEARTBEAT], "the same firing again is a beat, too"
    assert desk.book.heartbeat_age() == 0


def test_the_end_of_the_heartbeat_is_no_heartbeat(desk: Desk) -> None:
    desk.book.heartbeat_age()
    desk.clock.advance(10)
    desk.take(one("SreWatchdog", status="resolved"))
    assert desk.book.heartbeat_age() == 10


def test_a_heartbeat_nobody_asks_for_any_more_is_not_missed(desk: Desk) -> None:
    decide_on_heartbeat(desk, lambda decision: decision.silence(400.0))
    decide_on_heartbeat(desk, Later.unwatch)
    assert desk.events() == ["open", "resolve"]


def test_a_bad_alert_costs_the_others_nothing_and_a_person_is_told(desk: Desk) -> None:
    assert desk.take({"labels": {"alertname": "Bad"}}, one(node="n1")) == [Verdict.OPENED]
    assert [m.reason for m in desk.messages()] == ["VllmQueueGrowing", "alerts-unreadable"]
    assert "alerts[0] Bad" in desk.messages()[1].summary
    desk.take({"labels": {"alertname": "Bad"}}, one(node="n1"))
    assert len(desk.messages()) == 2, "once an hour"


def test_alerts_that_were_left_out_are_noted(desk: Desk) -> None:
    desk.take(one(node="n1"), truncatedAlerts=17)
    assert "17 more" in dict(desk.messages()[0].facts)["alerts not listed"]
    assert desk.journal()[-1].reason == "alerts_truncated"


def test_a_firing_nobody_speaks_of_is_taken_for_over_and_said_to_be_unproven(desk: Desk) -> None:
    desk.take(one(node="n1"))
    desk.clock.advance(3600)
    desk.take(one(node="n1"))
    assert not desk.book.unheard(desk.clock.wall() - 60, 10), "spoken of again"
    desk.clock.advance(200_000)
    (left,) = desk.book.unheard(desk.clock.wall() - 172_800, 10)
    desk.later(Wanted(keys=frozenset({left.key})), lambda later: later.forget(left))
    assert desk.events() == ["open", "resolve"]
    assert "unproven" in desk.messages()[1].summary


def test_a_firing_seen_in_a_future_that_was_none_is_seen_now(desk: Desk) -> None:
    desk.clock.jump_wall(30 * 86400)
    desk.take(one(node="n1"))
    desk.clock.jump_wall(-30 * 86400)
    desk.take(one(node="n1"))
    assert not desk.book.unheard(desk.clock.wall(), 10)
    assert desk.book.unheard(desk.clock.wall() + 1, 10)


def test_a_canary_leaves_no_incident_open_at_a_pager(desk: Desk) -> None:
    desk.intake = replace(desk.intake, pagers=frozenset({"sms"}))

    canary = payload(one("SreCanary", severity="info", id="c0ffee"))
    changes = desk.later(Wanted(), lambda later: later.take(canary, frozenset({"c0ffee"})))
    assert changes.canaries == ("c0ffee",)
    assert (desk.events("mail"), desk.events("sms")) == (["test"], ["test", "resolve"])


STEP = st.tuples(
    st.sampled_from(["A", "B"]),
    st.sampled_from(["n1", "n2"]),
    st.integers(0, 2),
    st.sampled_from(["firing", "resolved"]),
    st.sampled_from(["page", "ticket"]),
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batches=st.lists(st.lists(STEP, min_size=1, max_size=5), min_size=1, max_size=12))
def test_invariants(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[str, str, int, str, str]]]
) -> None:
    """Each incident begins once and ends at most once; it is open exactly while a firing of it is; in any order."""
    with desk_of(tmp_path_factory.mktemp("any"), WebhookSettings()) as desk:
        for batch in batches:
            desk.take(*(one(a, node=n, starts=NOW + s, status=status, severity=sev) for a, n, s, status, sev in batch))
            desk.clock.advance(1)
            told = desk.messages()
            for identifier in {m.incident_id for m in told}:
                events = [m.event for m in told if m.incident_id == identifier]
                assert events[0] == "open"
                assert events.count("open") == 1
                assert events.count("resolve") <= 1
                assert "resolve" not in events[:-1], "nothing is told after the end"
            opened = {m.incident_id for m in told if m.event == "open"}
            ended = {m.incident_id for m in told if m.event == "resolve"}
            firing, incidents = desk.book.counts()
            assert len(opened - ended) == incidents
            assert (firing > 0) == (incidents > 0)
