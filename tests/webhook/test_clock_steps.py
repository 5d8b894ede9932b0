"""Steps of the wall clock in mid-life, an hour forwards or back, neither bring anything forward nor put it off."""

from __future__ import annotations

from pathlib import Path

import pytest

from sre.notify.alert_knocks import LOCKED_OUT_SECONDS
from sre.settings.webhook import ActionSettings, HeartbeatSettings, RouteSettings, WebhookSettings
from tests.webhook.beside_guard import Scene
from tests.webhook.scenes import one

STEPS = pytest.mark.parametrize("jump", [3600.0, -3600.0])


async def pass_time(scene: Scene, seconds: float) -> None:
    scene.world.clock.advance(seconds)
    await scene.intake.turn()


@STEPS
@pytest.mark.parametrize("restarts", [False, True])
async def test_the_heartbeat_is_missed_when_it_was_to_come(scene: Scene, jump: float, restarts: bool) -> None:
    await scene.take(one("SreWatchdog", severity="info"))
    await scene.intake.turn()
    scene.world.clock.jump_wall(jump)
    if restarts:
        await scene.world.bury()
        await scene.begin(ticks=1)
    await pass_time(scene, 290)
    assert scene.told() == []
    await pass_time(scene, 10)
    assert scene.told() == [("open", "pipeline_silent")]


@STEPS
async def test_whoever_is_locked_out_is_told_of_after_as_long(tmp_path: Path, jump: float) -> None:
    scene = Scene(tmp_path, WebhookSettings(heartbeat=HeartbeatSettings(enabled=False)))
    await scene.begin()
    scene.intake.turned_away()
    scene.world.clock.jump_wall(jump)
    scene.intake.turned_away()
    await pass_time(scene, LOCKED_OUT_SECONDS - 1)
    assert scene.told() == []
    await pass_time(scene, 1)
    assert scene.told() == [("open", "locked_out")]
    await scene.end()


@STEPS
async def test_what_a_limit_kept_back_is_told_within_the_hour(tmp_path: Path, jump: float) -> None:
    route = RouteSettings(name="all", actions=(ActionSettings(do="notify", max_per_hour=1),))
    scene = Scene(tmp_path, WebhookSettings(routes=(route,), heartbeat=HeartbeatSettings(enabled=False)))
    await scene.begin()
    for node in ("n1", "n2"):
        await scene.take(one(node=node, starts=scene.now()))
    before = scene.told()
    scene.world.clock.jump_wall(jump)
    await pass_time(scene, 3500)
    assert scene.told() == before
    await pass_time(scene, 100)
    assert scene.told()[len(before) :] == [("open", "over_limit")]
    await scene.end()


@STEPS
async def test_a_firing_that_is_spoken_of_is_not_forgotten_and_its_end_ends_it(scene: Scene, jump: float) -> None:
    began = scene.now()
    await scene.take(one(node="n1", starts=began))
    scene.world.clock.jump_wall(jump)
    await pass_time(scene, 60)
    await scene.take(one(node="n1", starts=began))
    await scene.take(one(node="n1", starts=began, status="resolved"))
    assert [event for event, reason in scene.told() if reason == "VllmQueueGrowing"] == ["open", "resolve"]
