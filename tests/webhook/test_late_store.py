"""A store that answers too late: who posts is told to come again, and what was written all the same is gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.incident_files import IncidentFiles
from sre.adapters.store import GuardStore
from sre.adapters.store.alerts import AlertBook
from sre.control.alert_intake import AlertIntake
from sre.control.notify_proof import Canaries
from sre.errors import StateError
from sre.notify.alert_decide import Intake
from sre.notify.alert_records import GuardNow, Verdict
from sre.notify.alert_routes import Routes
from sre.settings.webhook import ActionSettings, RouteSettings, WebhookSettings
from sre.testing.clock import ManualClock
from tests.store.hanging import HangingDisk
from tests.webhook.live import Counts
from tests.webhook.scenes import GUARD, everybody, one, payload

ACTIONS = (ActionSettings(do="trip", target="pool"), ActionSettings(do="incident"), ActionSettings(do="notify"))
SETTINGS = WebhookSettings(routes=(RouteSettings(name="all", actions=ACTIONS),))


class Tripping:
    """The hands of a guard that writes down what it was asked to trip."""

    def __init__(self) -> None:
        self.tripped: list[str] = []

    def now(self) -> GuardNow:
        return GUARD

    async def trip(self, target: str, reason: str) -> None:
        self.tripped.append(target)


async def take(intake: AlertIntake, *alerts: dict[str, Any]) -> Sequence[Verdict]:
    """Take one notification in, without the duties of time."""
    taking = asyncio.ensure_future(intake.take(payload(*alerts)))
    await asyncio.sleep(0)
    while batch := intake._batch():
        await intake._commit(batch)
    return (await taking).verdicts


async def again_until_stored(intake: AlertIntake, *alerts: dict[str, Any]) -> Sequence[Verdict]:
    """As Alertmanager does: on a busy machine a store that works may be late, too."""
    while True:
        try:
            return await take(intake, *alerts)
        except StateError:
            await asyncio.sleep(0.01)


async def turn_until(intake: AlertIntake, done: Callable[[], object]) -> None:
    while not done():
        await intake.turn()
        await asyncio.sleep(0.001)


async def test_a_trip_and_a_folder_that_were_written_too_late_are_carried_out(
    tmp_path: Path, wait_until_async: Callable[..., Awaitable[Any]]
) -> None:
    disk, clock, hands = HangingDisk(), ManualClock(), Tripping()
    store = GuardStore.open(tmp_path / "guard.db", clock=clock, boot_id="boot", trace=disk)
    folders = tmp_path / "incidents"
    intake = AlertIntake(
        Intake(SETTINGS, Routes(SETTINGS), everybody), AlertBook(store), hands, clock, Counts(),
        IncidentFiles(folders), canaries=Canaries(clock), store_seconds=0.05,
    )  # fmt: skip
    await intake.turn()  # nothing waits
    trips = one("VllmEngineHung", model_name="sim-7b", engine="sim-0", starts=clock.wall() - 20)
    opens = one("HostDown", node="n1", starts=clock.wall() - 20)
    with disk.hanging():
        with pytest.raises(StateError, match="no answer"):
            await take(intake, trips, opens)
        await intake.turn()
        assert not hands.tripped
    async with asyncio.timeout(30):
        await wait_until_async(lambda: not disk.waiting)
        repeated = await again_until_stored(intake, trips, opens)
        assert repeated == (Verdict.DUPLICATE, Verdict.DUPLICATE), "it was written, after all"
        # Of both alerts: this guard opened none for the trip. Each has its folder.
        await turn_until(intake, lambda: folders.is_dir() and len(list(folders.iterdir())) == 2)
    assert hands.tripped == ["sim-7b"]
    assert {path.name for path in folders.iterdir()} == {row.message.incident_id for row in store.outbox()}
    store.close()
