"""What alerts lead to: order, duplicates, joining, ends, limits, trips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sre.actions import facts
from sre.incidents.identity import is_incident_id
from sre.notify.alert_decide import REORDERED_SECONDS, alert_of
from sre.notify.alert_later import Later
from sre.notify.alert_places import guard_incident, place_of
from sre.notify.alert_records import HEARTBEAT_KEY, GuardNow, TripRefusal, Verdict, Wanted
from sre.settings.webhook import ActionSettings, RouteSettings, WebhookSettings
from tests.webhook.scenes import ENGINES, GUARD, Desk, one, payload, rfc3339

NOW = 1_800_000_000.0
TRIP = WebhookSettings(
    routes=(
        RouteSettings(
            name="hung",
            match={"alertname": "VllmEngineHung"},
            actions=(
                ActionSettings(do="trip", max_per_hour=2),
                ActionSettings(do="incident"),
                ActionSettings(do="notify"),
            ),
        ),
    )
)


@contextmanager
def desk_of(folder: Path, chosen: WebhookSettings, guard: GuardNow = GUARD) -> Iterator[Desk]:
    made = Desk(folder, chosen, guard)
    try:
        yield made
    finally:
        made.close()


# ---- order and duplicates --------------------------------------------------------------------------------------------


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


# ---- joining ---------------------------------------------------------------------------------------------------------


def test_a_storm_of_one_cause_is_one_incident(desk: Desk) -> None:
    storm = [one(node="n1", instance=f"n1:{port}") for port in range(300)]
    assert desk.take(*storm) == [Verdict.OPENED] + [Verdict.JOINED] * 299
    assert desk.events() == ["open"]
    assert len(desk.journal()) <= 12, "what joins is written down, not once each"
    desk.take(*[one(node="n1", instance=f"n1:{port}", status="resolved") for port in range(299)])
    assert desk.events() == ["open"]
    desk.take(one(node="n1", instance="n1:299", status="resolved"))
    assert desk.events() == ["open", "resolve"]


def test_another_node_another_model_or_another_alert_is_another_incident(desk: Desk) -> None:
    verdicts = desk.take(
        one(node="n1", model_name="m"),
        one(node="n2", model_name="m"),
        one(node="n1", model_name="other"),
        one("VllmLatencyHigh", node="n1", model_name="m"),
        one(instance="n9:1"),
        one(instance="n9:2"),
    )
    assert verdicts == [Verdict.OPENED] * 6
    assert len({m.incident_id for m in desk.messages()}) == 6


def test_a_separator_in_a_value_joins_nothing(desk: Desk) -> None:
    assert desk.take(one(model_name="a,node=b"), one(model_name="a", node="b")) == [Verdict.OPENED] * 2


def test_the_end_of_what_was_only_stored_closes_nothing(tmp_path: Path) -> None:
    with desk_of(tmp_path, WebhookSettings(incident_by=("model_name",))) as desk:
        assert desk.take(one("Down")) == [Verdict.OPENED]
        assert desk.take(one("Elsewhere")) == [Verdict.OPENED], "none of the labels is nothing in common"
        desk.take(one("Note", severity="info"))
        desk.take(one("Note", severity="info", status="resolved"))
        assert desk.events() == ["open", "open"]
        assert desk.open_incidents() == 2


def test_what_is_worse_than_what_was_told_is_told(desk: Desk) -> None:
    desk.take(one(node="n1", severity="ticket"))
    assert desk.take(one(node="n1", severity="page")) == [Verdict.JOINED]
    assert desk.events() == ["open", "escalate"]
    assert desk.messages()[1].severity == "page"
    desk.take(one(node="n1", severity="page", instance="i2"))
    assert desk.events() == ["open", "escalate"]


def test_info_is_stored_and_told_nobody(desk: Desk) -> None:
    assert desk.take(one(severity="info", node="n1")) == [Verdict.STORED]
    assert desk.events() == []
    assert desk.take(one(severity="info", node="n1")) == [Verdict.DUPLICATE]


@pytest.mark.parametrize(
    ("given_", "ours"), [("critical", "page"), ("warning", "ticket"), ("odd", "ticket"), ("", "ticket")]
)
def test_severities_of_others_are_understood(desk: Desk, given_: str, ours: str) -> None:
    desk.take(one(severity=given_, node="n1"))
    assert desk.messages()[0].severity == ours


# ---- the guard's own incidents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ({"engine": "sim-0"}, ("sim-0", "sim-7b")),
        ({"scope": "engine", "target": "sim-1"}, ("sim-1", "sim-7b")),
        ({"instance": "127.0.0.1:8001"}, ("sim-1", "sim-7b")),
        ({"scope": "pool", "target": "sim-7b"}, (None, "sim-7b")),
        ({"model_name": "sim-7b"}, (None, "sim-7b")),
        ({"engine": "0", "model_name": "theirs"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_labels_name_engines_and_pools(labels: dict[str, str], place: tuple[str | None, str | None]) -> None:
    assert place_of(labels, GUARD) == place


def test_an_alert_about_a_pool_of_several_is_not_about_one_engine() -> None:
    guard = replace(GUARD, incidents={"sim-0": "inc-1", "solo": "inc-2"})
    assert guard_incident({"engine": "sim-0"}, guard) == "inc-1"
    assert guard_incident({"engine": "sim-1"}, guard) is None
    assert guard_incident({"model_name": "sim-7b"}, guard) is None
    assert guard_incident({"scope": "pool", "target": "sim-7b"}, guard) == "inc-1"
    assert guard_incident({"model_name": "solo-7b"}, guard) == "inc-2"


def test_an_alert_about_the_same_engine_joins_the_guards_incident(tmp_path: Path) -> None:
    guard = replace(GUARD, incidents={"sim-0": "inc-20270115-080000-0001"})
    with desk_of(tmp_path, WebhookSettings(), guard) as desk:
        desk.tell_of_guard("inc-20270115-080000-0001")
        assert desk.take(one("VllmEngineHung", engine="sim-0")) == [Verdict.JOINED_GUARD]
        assert len(desk.messages()) == 1, "the guard's page is the page"
        assert desk.take(one("VllmEngineHung", engine="sim-1")) == [Verdict.OPENED]
        assert len(desk.messages()) == 2
        entry = next(e for e in desk.journal() if e.reason == "joined_guard")
        assert entry.incident_id == "inc-20270115-080000-0001"


def test_an_alert_that_outlives_the_guards_incident_gets_its_own(tmp_path: Path) -> None:
    guard = replace(GUARD, incidents={"sim-0": "inc-20270115-080000-0001"})
    with desk_of(tmp_path, WebhookSettings(), guard) as desk:
        desk.tell_of_guard("inc-20270115-080000-0001")
        desk.take(one("VllmEngineHung", engine="sim-0"))
        assert desk.book.joined_of_guard() == {"inc-20270115-080000-0001"}
        desk.guard = GUARD
        (left,) = desk.book.firing_of(["inc-20270115-080000-0001"], 10)
        desk.later(Wanted(keys=frozenset({left.key})), lambda later: later.outlives(left))
        assert desk.events() == ["open", "open"]
        assert "still fires though inc-20270115-080000-0001 is over" in desk.messages()[1].summary
        assert not desk.book.joined_of_guard()
        desk.take(one("VllmEngineHung", engine="sim-0", status="resolved"))
        assert desk.events() == ["open", "open", "resolve"]


@pytest.mark.parametrize("severity", ["page", "ticket"])
def test_an_incident_of_the_guard_that_nobody_was_told_of_is_told_by_its_alert(tmp_path: Path, severity: str) -> None:
    """The guard could not tell it: its store refused, or it told only from memory and died."""
    incident = "inc-20270115-080000-0001"
    with desk_of(tmp_path, WebhookSettings(), replace(GUARD, incidents={"sim-0": incident})) as desk:
        assert desk.take(one("VllmEngineHung", engine="sim-0", severity=severity)) == [Verdict.JOINED_GUARD]
        (message,) = desk.messages()
        assert (message.incident_id, message.severity) == (incident, severity)
        desk.take(one("VllmEngineHung", engine="sim-0", severity=severity, gpu="1"))
        assert len(desk.messages()) == 1, "once"
        desk.tell_of_guard(incident)
        assert [m.event for m in desk.messages()] == ["escalate", "open"], (
            "the guard's own page is swallowed by nothing"
        )


def test_an_alert_that_wants_nobody_told_tells_nobody_of_the_guards_incident(tmp_path: Path) -> None:
    only = WebhookSettings(routes=(RouteSettings(name="quiet", actions=(ActionSettings(do="incident"),)),))
    guard = replace(GUARD, incidents={"sim-0": "inc-20270115-080000-0001"})
    with desk_of(tmp_path, only, guard) as desk:
        assert desk.take(one("VllmEngineHung", engine="sim-0")) == [Verdict.JOINED_GUARD]
        assert desk.messages() == []


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_a_limit_holds_across_restarts_and_says_so(tmp_path: Path) -> None:
    route = RouteSettings(
        name="few", actions=(ActionSettings(do="incident", max_per_hour=2), ActionSettings(do="notify", max_per_hour=2))
    )
    chosen = WebhookSettings(routes=(route,))
    with desk_of(tmp_path, chosen) as desk:
        assert desk.take(one(node="n1")) == [Verdict.OPENED]
    with desk_of(tmp_path, chosen) as desk:
        assert desk.take(one(node="n2"), one(node="n3"), one(node="n4")) == [
            Verdict.OPENED, Verdict.OVER_LIMIT, Verdict.OVER_LIMIT,
        ]  # fmt: skip
        assert [m.event for m in desk.messages()] == ["open", "open", "blind"]
        assert "limit of 2 per hour" in desk.messages()[2].summary
        desk.clock.advance(3700)
        assert desk.take(one(node="n5")) == [Verdict.OPENED]


# ---- trips -----------------------------------------------------------------------------------------------------------


def hung(**more: Any) -> dict[str, Any]:
    return one("VllmEngineHung", **{"engine": "sim-0", **more})


def settle(desk: Desk, refusal: TripRefusal | None) -> None:
    pending = desk.pending()
    desk.later(desk.intake.wanted([alert_of(pending)], desk.guard), lambda later: later.settle(pending, refusal))


def test_a_trip_is_written_down_before_it_is_done_and_its_page_is_the_guards(tmp_path: Path) -> None:
    with desk_of(tmp_path, TRIP) as desk:
        assert desk.take(hung()) == [Verdict.TRIPPING]
        assert desk.events() == []
        assert [(e.kind, e.action, e.target) for e in desk.journal()] == [("intent", "alert_trip", "sim-0")]
        desk.guard = replace(GUARD, incidents={"sim-0": "inc-20270115-080000-0001"})
        desk.tell_of_guard("inc-20270115-080000-0001")
        settle(desk, None)
        assert [(e.kind, e.reason) for e in desk.journal()][1:] == [("applied", "tripped"), ("note", "joined_guard")]
        assert desk.events() == ["open"]
        assert not desk.book.pending_trips()


def test_a_trip_that_failed_pages_by_itself_and_says_what_was_tried(tmp_path: Path) -> None:
    with desk_of(tmp_path, TRIP) as desk:
        desk.take(hung())
        settle(desk, TripRefusal.FAILED)
        assert desk.events() == ["open"]
        assert "no trip of sim-0 (failed)" in dict(desk.messages()[0].facts)[facts.DONE]


def test_an_alert_that_ended_before_its_trip_was_settled_opens_nothing(tmp_path: Path) -> None:
    with desk_of(tmp_path, TRIP) as desk:
        desk.take(hung())
        desk.take(hung(status="resolved"))
        settle(desk, TripRefusal.ENDED)
        assert desk.events() == []
        assert (desk.journal()[-1].kind, desk.journal()[-1].reason) == ("failed", "ended")
        assert not desk.book.pending_trips()


def test_an_alert_that_ended_while_its_trip_was_under_way_is_on_record_as_such(tmp_path: Path) -> None:
    with desk_of(tmp_path, TRIP) as desk:
        desk.take(hung())
        desk.take(hung(status="resolved"))
        settle(desk, None)
        last = desk.journal()[-1]
        assert (last.kind, last.reason, last.data["meanwhile"]) == ("applied", "tripped", "ended")
        assert desk.events() == []


@pytest.mark.parametrize(
    ("labels", "guard", "refusal"),
    [
        ({"engine": ""}, GUARD, "no_label"),
        ({"engine": "nobody"}, GUARD, "no_target"),
        ({}, GuardNow(), "no_guard"),
        ({}, replace(GUARD, paused=True), "paused"),
        ({"engine": "solo"}, GUARD, "last_engine"),
        ({}, replace(GUARD, engines={**ENGINES, "sim-1": replace(ENGINES["sim-1"], state="open")}), "last_engine"),
        ({}, replace(GUARD, engines={**ENGINES, "sim-0": replace(ENGINES["sim-0"], acting=False)}), "only_observed"),
        ({}, replace(GUARD, engines={**ENGINES, "sim-0": replace(ENGINES["sim-0"], state="disabled")}), "held_by_hand"),
        ({"starts": NOW - 400}, GUARD, "too_old"),
    ],
)
def test_a_trip_that_must_not_be_pages_instead(
    tmp_path: Path, labels: dict[str, Any], guard: GuardNow, refusal: str
) -> None:
    with desk_of(tmp_path, TRIP, guard) as desk:
        assert desk.take(hung(**labels)) == [Verdict.OPENED]
        assert f"({refusal})" in dict(desk.messages()[0].facts)[facts.DONE]
        assert not desk.book.pending_trips()
        assert all(e.kind != "intent" for e in desk.journal()), "what was refused costs no budget"


def test_the_budget_of_trips_survives_restarts(tmp_path: Path) -> None:
    for number in range(2):
        with desk_of(tmp_path, TRIP) as desk:
            assert desk.take(hung(starts=NOW + number, fingerprint=f"{number:016x}")) == [Verdict.TRIPPING]
            settle(desk, TripRefusal.FAILED)
    with desk_of(tmp_path, TRIP) as desk:
        assert desk.take(hung(starts=NOW, fingerprint="f" * 16, node="n7")) == [Verdict.OPENED]
        assert "(budget_spent)" in dict(desk.messages()[-1].facts)[facts.DONE]


def test_two_alerts_that_trip_one_engine_cost_one(tmp_path: Path) -> None:
    with desk_of(tmp_path, TRIP) as desk:
        assert desk.take(hung(gpu="0"), hung(gpu="1")) == [Verdict.TRIPPING] * 2
        assert [e.kind for e in desk.journal()] == ["intent"]
        assert len(desk.book.pending_trips()) == 2


# ---- heartbeat, what is bad, what is cut -----------------------------------------------------------------------------


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


# ---- whatever comes in whatever order --------------------------------------------------------------------------------

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
