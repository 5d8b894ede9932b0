"""The intake beside a real guard: committing together, trips, what time brings; deaths in between."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.incident_files import IncidentFiles
from sre.adapters.store.alerts import AlertBook
from sre.breaker.state import Pause
from sre.control.alert_guard import GuardHands
from sre.control.alert_intake import OUTLIVES_SECONDS, AlertIntake, Busy
from sre.control.notify_proof import Canaries
from sre.control.observe import EngineConfig
from sre.errors import StateError
from sre.notify.alert_decide import Intake
from sre.notify.alert_records import Changes, Known, Verdict, Wanted
from sre.notify.alert_routes import Routes
from sre.settings.webhook import ActionSettings, HeartbeatSettings, RouteSettings, WebhookSettings
from tests.guard.world import ENGINE, POOL, World
from tests.webhook.live import Counts
from tests.webhook.scenes import CHANNELS, everybody, one, payload

ACTIONS = (ActionSettings(do="trip", target="pool"), ActionSettings(do="incident"), ActionSettings(do="notify"))
SETTINGS = WebhookSettings(
    routes=(RouteSettings(name="all", actions=ACTIONS),), heartbeat=HeartbeatSettings(timeout_seconds=300)
)


class Scene:
    """A guard in its world, and an intake beside it."""

    def __init__(self, folder: Path, settings: WebhookSettings = SETTINGS, most_waiting: int = 1000) -> None:
        self.world, self.settings, self.most_waiting = World(folder), settings, most_waiting
        self.world.commit_seconds = 5.0
        self.counts = Counts()
        self.intake: AlertIntake = None  # type: ignore[assignment]
        self._task: asyncio.Task[None] | None = None

    async def begin(self, ticks: int = 8) -> None:
        world = self.world
        for _ in range(ticks):
            await world.tick()
        assert world.guard is not None
        assert world.store is not None
        hands = GuardHands(
            world.guard, [EngineConfig(ENGINE, POOL, True, (0,))], {ENGINE: "127.0.0.1:8000"}, world.policy
        )
        self.canaries = Canaries(world.clock)
        self.intake = AlertIntake(
            Intake(self.settings, Routes(self.settings), everybody),
            AlertBook(world.store),
            hands,
            world.clock,
            self.counts,
            IncidentFiles(world.folder / "incidents"),
            canaries=self.canaries,
            most_waiting=self.most_waiting,
        )

    async def take(self, *alerts: dict[str, Any]) -> list[Verdict]:
        """Take one notification in, without the duties of time."""
        taking = asyncio.ensure_future(self.intake.take(payload(*alerts)))
        await asyncio.sleep(0)
        while batch := self.intake._batch():
            await self.intake._commit(batch)
        return list((await taking).verdicts)

    def told(self, channel: str = CHANNELS[0]) -> list[tuple[str, str]]:
        assert self.world.store is not None
        rows = self.world.store.outbox()
        return [(r.message.event, r.message.reason) for r in rows if r.channel == channel]

    def now(self) -> float:
        return self.world.clock.wall()

    async def end(self) -> None:
        await self.world.bury()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    await made.begin()
    yield made
    await made.end()


def hung(scene: Scene, **more: Any) -> dict[str, Any]:
    return one("VllmEngineHung", **{"model_name": POOL, "engine": ENGINE, "starts": scene.now() - 20, **more})


async def test_an_alert_trips_the_breaker_and_there_is_one_page(scene: Scene) -> None:
    world = scene.world
    assert await scene.take(hung(scene)) == [Verdict.TRIPPING]
    assert world.applied is not None
    assert world.applied.pools[0].reject_percent == 0, "not before it is written down and its turn comes"
    await scene.intake.turn()
    assert world.applied.pools[0].reject_percent == 100
    assert [event for event, _ in scene.told("mail")] == ["open"], "the guard's own page is the page"
    assert world.guard is not None
    detail = world.guard.state.breakers[ENGINE].detail
    assert "by alertmanager: alert VllmEngineHung (route all)" in detail
    await world.tick()
    assert await scene.take(hung(scene, gpu="1")) == [Verdict.JOINED_GUARD]
    assert len(scene.told("mail")) == 1


async def test_a_paused_guard_trips_nothing_and_the_alert_pages(scene: Scene) -> None:
    guard = scene.world.guard
    assert guard is not None
    await guard.set_pause(Pause("ann", "migration", scene.now()))
    assert await scene.take(hung(scene)) == [Verdict.OPENED]
    assert scene.told() == [("open", "VllmEngineHung")]


async def test_a_guard_that_died_between_writing_and_tripping_trips_after_its_restart(scene: Scene) -> None:
    await scene.take(hung(scene))
    await scene.world.bury()
    await scene.begin(ticks=2)
    await scene.intake.turn()
    assert scene.world.applied is not None
    assert scene.world.applied.pools[0].reject_percent == 100
    await scene.intake.turn()
    assert scene.world.guard is not None
    assert len(scene.world.guard.state.incidents) == 1


async def test_after_a_long_death_nothing_trips_and_a_person_is_told(scene: Scene) -> None:
    await scene.take(hung(scene))
    await scene.world.bury()
    scene.world.clock.advance(3600)
    await scene.begin(ticks=2)
    await scene.intake.turn()
    assert scene.world.applied is not None
    assert scene.world.applied.pools[0].reject_percent == 0
    assert scene.told() == [("open", "VllmEngineHung")]
    store = scene.world.store
    assert store is not None
    assert "too_old" in [row.entry.reason for row in store.journal()]


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


async def test_a_canary_of_ours_is_sent_on_and_one_of_others_is_not(scene: Scene) -> None:
    scene.canaries.send("c0ffee", 60)
    assert await scene.take(one("SreCanary", severity="info", id="c0ffee")) == [Verdict.CANARY]
    assert scene.told() == [("test", "test")]
    report = scene.canaries.report("c0ffee")
    assert report is not None
    assert report["committed_wall"] is not None
    await scene.take(one("SreCanary", severity="info", id="c0ffee", status="resolved"))
    assert await scene.take(one("SreCanary", severity="info", id="other")) != [Verdict.CANARY]
    assert [event for event, _ in scene.told()].count("test") == 1


async def test_a_disk_that_refuses_costs_nothing_but_time(scene: Scene) -> None:
    class Refusing:
        """A book whose disk is full."""

        def change(self, wanted: Wanted, decide: Callable[[Known], Changes]) -> Changes:
            raise StateError("guard state guard.db: the disk is full")

        def __getattr__(self, name: str) -> Any:
            raise StateError("guard state guard.db: the disk is full")

    good, scene.intake._book = scene.intake._book, Refusing()  # type: ignore[assignment]
    with pytest.raises(StateError, match="disk is full"):
        await scene.take(one(node="n1", starts=scene.now()))
    await scene.intake.turn()
    assert "disk is full" in str(scene.intake.problem)
    scene.intake._book = good
    assert await scene.take(one(node="n1", starts=scene.now())) == [Verdict.OPENED]
    assert scene.intake.problem is None


async def test_a_trip_that_waits_outlives_a_disk_that_refuses_once(scene: Scene) -> None:
    book = scene.intake._book
    assert book is not None
    assert await scene.take(hung(scene)) == [Verdict.TRIPPING]

    class RefusingOnce:
        """A book that cannot be read the first time."""

        refused = False

        def __getattr__(self, name: str) -> Any:
            if name == "pending_trips" and not self.refused:
                self.refused = True
                raise StateError("guard state guard.db: the disk does not answer")
            return getattr(book, name)

    scene.intake._book = RefusingOnce()  # type: ignore[assignment]
    await scene.intake.turn()
    assert scene.world.applied is not None
    assert scene.world.applied.pools[0].reject_percent == 0
    await scene.intake.turn()
    assert scene.world.applied.pools[0].reject_percent == 100


async def test_without_a_state_everything_is_told_to_come_again(scene: Scene) -> None:
    blind = AlertIntake(
        Intake(SETTINGS, Routes(SETTINGS), everybody), None, scene.intake._hands, scene.world.clock, scene.counts,
        IncidentFiles(scene.world.folder / "incidents"), canaries=scene.canaries, problem="guard state: corrupt",
    )  # fmt: skip
    with pytest.raises(StateError, match="corrupt"):
        await blind.take(payload(one()))
    await blind.turn()
    assert blind.problem == "guard state: corrupt"


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    scene = Scene(tmp_path, most_waiting=3)
    await scene.begin()
    many = [asyncio.ensure_future(scene.intake.take(payload(one(node=f"n{n}")))) for n in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await scene.intake.take(payload(one()))
    while batch := scene.intake._batch():
        await scene.intake._commit(batch)
    await asyncio.gather(*many)
    assert await scene.take(one(node="later"))
    await scene.end()


async def test_what_was_sent_together_is_committed_together(scene: Scene) -> None:
    assert scene.world.store is not None
    with sqlite3.connect(scene.world.store.path) as view:
        before = view.execute("PRAGMA data_version").fetchone()[0]
        tasks = [asyncio.ensure_future(scene.intake.take(payload(one(node=f"n{n}")))) for n in range(50)]
        await asyncio.sleep(0)
        batch = scene.intake._batch()
        assert len(batch) == 50
        await scene.intake._commit(batch)
        verdicts = [taken.verdicts for taken in await asyncio.gather(*tasks)]
        assert all(len(one_) == 1 for one_ in verdicts)
        assert view.execute("PRAGMA data_version").fetchone()[0] == before + 1
    view.close()
