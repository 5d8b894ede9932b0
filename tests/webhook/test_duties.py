"""What time brings beside a real guard: silence, firings that outlive or are forgotten, refusals, folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sre.adapters.incident_files import IncidentFiles
from sre.control.alert_duties import LISTENED_SECONDS, LOOK_SECONDS, OUTLIVES_SECONDS
from sre.errors import StateError
from sre.notify.alert_records import Verdict
from sre.settings.webhook import ActionSettings, HeartbeatSettings, RouteSettings, WebhookSettings
from tests.webhook.beside_guard import SETTINGS, Scene, hung
from tests.webhook.scenes import one


async def test_an_alert_that_outlives_the_guards_incident_is_told_after_a_while(tmp_path: Path) -> None:
    routes = SETTINGS.routes
    scene = Scene(tmp_path, WebhookSettings(routes=routes, heartbeat=HeartbeatSettings(enabled=False)))
    await scene.begin()
    await scene.take(hung(scene))
    await scene.intake.turn()
    world = scene.world
    await world.until(lambda: not world.guard.state.incidents)  # type: ignore[union-attr]
    world.clock.advance(20)
    await scene.intake.turn()
    assert [event for event, _ in scene.told()] == ["open", "resolve"]
    world.clock.advance(OUTLIVES_SECONDS)
    await scene.intake.turn()
    assert [event for event, _ in scene.told()] == ["open", "resolve", "open"]
    world.clock.advance(60)
    await scene.intake.turn()
    assert len(scene.told()) == 3, "once"
    await scene.end()


async def test_silence_is_paged_after_the_timeout_and_ends_with_the_heartbeat(scene: Scene) -> None:
    await scene.intake.turn()
    scene.world.clock.advance(290)
    await scene.intake.turn()
    assert scene.told() == []
    scene.world.clock.advance(20)
    for _ in range(3):
        await scene.intake.turn()
    assert scene.told() == [("open", "pipeline_silent")]
    await scene.take(one("SreWatchdog", severity="info"))
    assert scene.told() == [("open", "pipeline_silent"), ("resolve", "pipeline_silent")]
    assert scene.counts.heartbeats == 1
    scene.world.clock.advance(290)
    await scene.intake.turn()
    assert len(scene.told()) == 2


async def test_silence_survives_a_restart_and_has_a_grace_after_it(scene: Scene) -> None:
    await scene.take(one("SreWatchdog", severity="info"))
    await scene.world.bury()
    scene.world.clock.advance(1000)
    await scene.begin(ticks=1)
    await scene.intake.turn()
    assert scene.told() == [], "while the guard was down nobody could be heard"
    scene.world.clock.advance(125)
    await scene.intake.turn()
    assert scene.told() == [("open", "pipeline_silent")]


async def test_many_that_outlive_the_guards_incident_starve_nobody(tmp_path: Path) -> None:
    """Under a limit: each is looked at once, and told in the end."""
    actions = (ActionSettings(do="trip", target="pool"), ActionSettings(do="notify", max_per_hour=1))
    settings = WebhookSettings(
        routes=(RouteSettings(name="all", actions=actions),), heartbeat=HeartbeatSettings(enabled=False)
    )
    scene = Scene(tmp_path, settings)
    await scene.begin()
    many = [hung(scene, gpu=f"{n}", node=f"n{n}") for n in range(230)]
    await scene.take(*many)
    await scene.intake.turn()
    world = scene.world
    await world.until(lambda: not world.guard.state.incidents)  # type: ignore[union-attr]
    world.clock.advance(LOOK_SECONDS)
    await scene.intake.turn()
    book = scene.intake.writer.book
    assert book is not None
    for left in (30, 0):
        world.clock.advance(OUTLIVES_SECONDS)
        await scene.intake.turn()
        assert len(book.firing_of(book.joined_of_guard() or ["-"], 1000)) == left
    _, more = book.left_out(1)["all"]
    assert more == 228, "all but the one that was told"
    world.clock.advance(3601)
    await scene.intake.turn()
    world.clock.advance(LOOK_SECONDS)
    await scene.intake.turn()
    assert not book.left_out(1)
    assert scene.told()[-1] == ("open", "over_limit")
    await scene.end()


async def test_a_clock_that_was_wrong_at_the_start_forgets_nothing(scene: Scene) -> None:
    await scene.take(one(node="n1", starts=scene.now()))
    await scene.world.bury()
    scene.world.clock.jump_wall(30 * 86400)
    await scene.begin(ticks=1)
    scene.world.clock.advance(LISTENED_SECONDS / 2)
    await scene.intake.turn()
    assert "resolve" not in [event for event, reason in scene.told() if reason != "pipeline_silent"]
    # Whatever goes on is spoken of by then.
    assert await scene.take(one(node="n1", starts=scene.now() - 30 * 86400 - LISTENED_SECONDS / 2 - 1)) != []
    scene.world.clock.advance(LISTENED_SECONDS)
    await scene.intake.turn()
    assert ("resolve", "VllmQueueGrowing") not in scene.told()


async def test_a_refusal_for_good_is_told_once_an_hour_per_cause(scene: Scene) -> None:
    for _ in range(50):
        scene.intake.lost("too_large", "more than 4 bytes")
        scene.intake.lost("encoded", "they are compressed")
        await scene.intake.turn()
    assert scene.told() == [("blind", "alerts-refused")] * 2
    scene.world.clock.advance(3601)
    scene.intake.lost("encoded", "they are compressed")
    await scene.intake.turn()
    assert scene.told().count(("blind", "alerts-refused")) == 3


async def test_a_refusal_is_told_when_the_store_works_again(scene: Scene) -> None:
    book = scene.intake.writer.book

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            raise StateError("guard state guard.db: the disk is full")

    scene.intake.writer.book = Refusing()  # type: ignore[assignment]
    scene.intake.lost("too_large", "more than 4 bytes")
    await scene.intake.turn()
    scene.intake.writer.book = book
    await scene.intake.turn()
    assert scene.told() == [("blind", "alerts-refused")]


async def test_folders_that_cannot_be_written_cost_the_folders_only(scene: Scene) -> None:
    await scene.take(one(node="n1", starts=scene.now()))
    folder = scene.world.folder / "incidents"
    folder.write_text("in the way")
    await scene.intake.turn()
    assert scene.intake.problem is None
    assert await scene.take(one(node="n2", starts=scene.now())) == [Verdict.OPENED]
    folder.unlink()
    await scene.intake.turn()
    assert len(IncidentFiles(folder).list()) == 2
