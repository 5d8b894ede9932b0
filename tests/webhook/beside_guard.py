"""A guard in its world, and an intake beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sre.adapters.incident_files import IncidentFiles
from sre.adapters.store.alerts import AlertBook
from sre.control.alert_guard import GuardHands
from sre.control.alert_intake import AlertIntake
from sre.control.notify_proof import Canaries
from sre.control.observe import EngineConfig
from sre.notify.alert_decide import Intake
from sre.notify.alert_records import Verdict
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

    async def take(self, *alerts: dict[str, Any], group: str = "{}") -> list[Verdict]:
        """Take one notification in, without the duties of time."""
        taking = asyncio.ensure_future(self.intake.take(payload(*alerts, groupKey=group)))
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


def hung(scene: Scene, **more: Any) -> dict[str, Any]:
    return one("VllmEngineHung", **{"model_name": POOL, "engine": ENGINE, "starts": scene.now() - 20, **more})


def rejected(scene: Scene) -> int:
    assert scene.world.applied is not None
    return scene.world.applied.pools[0].reject_percent


def reasons(scene: Scene) -> list[str]:
    assert scene.world.store is not None
    return [row.entry.reason for row in scene.world.store.journal()]


def damage(scene: Scene, statement: str) -> None:
    assert scene.world.store is not None
    scene.world.store._connection.execute(statement)
