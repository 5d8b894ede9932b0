"""Trips as they are decided: written down first, refused, over, within a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sre.actions import facts
from sre.notify.alert_decide import alert_of
from sre.notify.alert_records import GuardNow, TripRefusal, Verdict
from sre.settings.webhook import ActionSettings, RouteSettings, WebhookSettings
from tests.webhook.scenes import ENGINES, GUARD, Desk, desk_of, one

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
