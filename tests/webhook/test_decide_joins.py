"""What joins: alerts of one cause, alerts of the guard's own incidents, and what is over a limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sre.notify.alert_places import guard_incident, place_of
from sre.notify.alert_records import Verdict, Wanted
from sre.settings.webhook import ActionSettings, RouteSettings, WebhookSettings
from tests.webhook.scenes import GUARD, Desk, desk_of, one

NOW = 1_800_000_000.0


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
