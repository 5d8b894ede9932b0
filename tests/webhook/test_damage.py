"""Rows that are damaged keep nothing else back, and a person is told."""

from __future__ import annotations

import pytest

from sre.control.alert_duties import LOOK_SECONDS
from sre.notify.alert_records import Verdict
from tests.webhook.beside_guard import Scene, damage, hung, reasons, rejected
from tests.webhook.scenes import one


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE alert_trip SET trip = '{'",
        "UPDATE alert_trip SET trip = '[]'",
        "UPDATE alert_trip SET trip = '{\"target\": 7}'",
        "UPDATE alert_trip SET trip = x'ff'",
        "UPDATE alert_trip SET trip = json_set(trip, '$.max_per_hour', 'many')",
        "UPDATE alert_trip SET trip = json_set(trip, '$.more', 1)",
        "UPDATE alert_trip SET labels = 'nothing'",
        "UPDATE alert_trip SET labels = '[1]'",
        "UPDATE alert_trip SET annotations = '{\"a\": 1}'",
        "UPDATE alert_trip SET at_monotonic = 'soon'",
        "UPDATE alert_trip SET starts_ns = 'then'",
    ],
)
async def test_a_damaged_trip_keeps_nothing_back_and_a_person_is_told_once(scene: Scene, statement: str) -> None:
    await scene.take(hung(scene))
    damage(scene, statement)
    assert await scene.take(one("Another", node="n1", starts=scene.now())) == [Verdict.OPENED], "posts are taken in"
    for _ in range(3):
        await scene.intake.turn()
    assert rejected(scene) == 0
    told = scene.told()
    assert told.count(("blind", "record-damaged")) == 1
    if "starts_ns" not in statement:
        assert ("open", "VllmEngineHung") in told, "its alert is told by itself"
    assert "unreadable" in reasons(scene)
    assert scene.intake.problem is None
    damage(scene, "DELETE FROM alert_trip")
    assert await scene.take(hung(scene, gpu="3", engine="other")) != []


async def test_a_damaged_trip_does_not_stop_a_whole_one(scene: Scene) -> None:
    await scene.take(hung(scene))
    await scene.take(hung(scene, gpu="1"))
    damage(scene, "UPDATE alert_trip SET trip = '{' WHERE number = (SELECT min(number) FROM alert_trip)")
    await scene.intake.turn()
    assert rejected(scene) == 100


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE alert_episode SET labels = '{'",
        "UPDATE alert_episode SET labels = '[' || hex(randomblob(9))",
        "UPDATE alert_episode SET labels = x'00ff'",
        "UPDATE alert_episode SET seen_wall = 'just now'",
        "UPDATE alert_episode SET firing_wall = 'just now'",
    ],
)
async def test_a_damaged_firing_is_mended_told_once_and_ends(scene: Scene, statement: str) -> None:
    await scene.take(one("First", node="n1", starts=scene.now()))
    damage(scene, statement)
    assert await scene.take(one("First", node="n1", starts=scene.now())) == [Verdict.DUPLICATE]
    assert await scene.take(one("Next", node="n2", starts=scene.now())) == [Verdict.OPENED]
    assert scene.told().count(("blind", "record-damaged")) == 1
    scene.world.clock.advance(LOOK_SECONDS + 1)
    await scene.intake.turn()
    assert await scene.take(one("First", node="n1", starts=scene.now() - LOOK_SECONDS - 1, status="resolved"))
    assert scene.told()[-1][0] == "resolve"
    assert scene.told().count(("blind", "record-damaged")) == 1


async def test_a_damaged_heartbeat_begins_anew(scene: Scene) -> None:
    await scene.take(one("SreWatchdog", severity="info"))
    damage(scene, "UPDATE alert_heartbeat SET wall = 'then', monotonic = 'then'")
    await scene.world.bury()
    await scene.begin(ticks=1)
    await scene.intake.turn()
    assert scene.intake.problem is None
    scene.world.clock.advance(310)
    await scene.intake.turn()
    assert scene.told() == [("open", "pipeline_silent")]
