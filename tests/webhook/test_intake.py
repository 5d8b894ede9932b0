"""Taking alerts in: committing together, what waits, disks that refuse, mistakes of ours."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sre.actions.records import OutboxMessage
from sre.adapters.incident_files import IncidentFiles
from sre.control.alert_duties import PROBE_SECONDS
from sre.control.alert_intake import REFUSED_KEPT_SECONDS, AlertIntake, Busy
from sre.control.alert_outage import LOOK_SECONDS, OutageWatch
from sre.errors import StateError
from sre.notify.alert_decide import Intake
from sre.notify.alert_records import Changes, Known, Verdict, Wanted
from sre.notify.alert_routes import Routes
from tests.webhook.beside_guard import SETTINGS, Scene
from tests.webhook.scenes import everybody, one, payload


class FailingHands:
    """A guard that cannot be looked at while ``broken``."""

    def __init__(self, hands: Any) -> None:
        self._hands, self.broken = hands, True

    def now(self) -> Any:
        if self.broken:
            raise RuntimeError("no such thing")
        return self._hands.now()

    async def trip(self, target: str, reason: str) -> None:
        raise AssertionError


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

    good, scene.intake.writer.book = scene.intake.writer.book, Refusing()  # type: ignore[assignment]
    with pytest.raises(StateError, match="disk is full"):
        await scene.take(one(node="n1", starts=scene.now()))
    await scene.intake.turn()
    assert "disk is full" in str(scene.intake.problem)
    scene.intake.writer.book = good
    assert await scene.take(one(node="n1", starts=scene.now())) == [Verdict.OPENED]
    assert scene.intake.problem is None


async def test_a_store_that_takes_small_writes_only_is_told_of_though_it_works_again_and_again(scene: Scene) -> None:
    good, clock, sent = scene.intake.writer.book, scene.world.clock, list[OutboxMessage]()
    watch = OutageWatch(lambda: scene.intake.unstored, everybody, clock, sent.extend)

    class Small:
        """A book on a disk that has room for one alert, and not for two."""

        def change(self, wanted: Wanted, decide: Callable[[Known], Changes]) -> Changes:
            if len(wanted.keys) > 1:
                raise StateError("guard state guard.db: the disk is full")
            assert good is not None
            return good.change(wanted, decide)

        def __getattr__(self, name: str) -> Any:
            return getattr(good, name)

    async def large() -> None:
        await scene.take(one(node="n1", starts=scene.now()), one(node="n2", starts=scene.now()), group="large")

    scene.intake.writer.book = Small()  # type: ignore[assignment]
    for turn in range(10):
        with pytest.raises(StateError, match="disk is full"):
            await large()
        await scene.take(one(node=f"m{turn}", starts=scene.now()), group="small")
        assert scene.intake.problem is None
        watch.look()
        clock.advance(LOOK_SECONDS)
    assert {m.message.summary for m in sent} == {
        "alerts cannot be stored, so nobody is told of them: guard state guard.db: the disk is full"
    }
    scene.intake.writer.book = good
    await large()
    watch.look()
    assert {m.message.event for m in sent} == {"open", "resolve"}
    assert scene.intake.unstored is None


async def test_what_nobody_posts_again_is_not_waited_for_without_end(scene: Scene) -> None:
    good, scene.intake._hands = scene.intake._hands, FailingHands(scene.intake._hands)
    taking = asyncio.ensure_future(scene.intake.take(payload(one(node="n1"))))
    running = asyncio.create_task(scene.intake.run())
    with pytest.raises(StateError):
        await taking
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    scene.intake._hands = good
    assert scene.intake.unstored is not None
    scene.world.clock.advance(REFUSED_KEPT_SECONDS)
    assert scene.intake.unstored is None


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


async def test_taking_in_outlives_any_exception_and_answers_meanwhile(scene: Scene) -> None:
    hands = FailingHands(scene.intake._hands)
    scene.intake._hands = hands  # type: ignore[assignment]
    running = asyncio.create_task(scene.intake.run())
    for number in range(3):
        with pytest.raises(StateError, match="no such thing"):
            async with asyncio.timeout(5):
                await scene.intake.take(payload(one(node=f"n{number}")))
    assert scene.counts.failures >= 1
    hands.broken = False
    async with asyncio.timeout(5):
        while True:
            try:
                taken = await scene.intake.take(payload(one(node="n1", starts=scene.now())))
                break
            except StateError:
                await asyncio.sleep(0)
    assert taken.verdicts == (Verdict.OPENED,)
    assert scene.intake.problem is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    with pytest.raises(StateError, match="stopping"):
        await scene.intake.take(payload(one(node="n9")))


@pytest.mark.parametrize("labels", [None, {"alertname": "Bad", "odd": object()}])
async def test_one_that_cannot_be_decided_on_keeps_the_others_of_its_batch_not_back(scene: Scene, labels: Any) -> None:
    bad = payload(one(node="bad", starts=scene.now()))
    bad = replace(bad, alerts=(replace(bad.alerts[0], labels=labels),))
    posts = [payload(one(node="n1", starts=scene.now())), bad, payload(one(node="n2", starts=scene.now()))]
    tasks = [asyncio.ensure_future(scene.intake.take(post)) for post in posts]
    await asyncio.sleep(0)
    await scene.intake._commit(scene.intake._batch())
    first, failed, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(failed, StateError)
    assert not isinstance(first, BaseException)
    assert not isinstance(second, BaseException)
    assert first.verdicts == second.verdicts == (Verdict.OPENED,)


async def test_a_store_that_works_again_is_noticed_though_nobody_posts(scene: Scene) -> None:
    assert scene.world.store is not None
    connection = scene.world.store._connection
    await scene.take(one(node="n1", starts=scene.now()))
    connection.execute(f"PRAGMA max_page_count={connection.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(StateError, match="disk is full"):
        await scene.take(
            *(one(node=f"n{n}", starts=scene.now(), annotations={"summary": "s" * 900}) for n in range(99))
        )
    for _ in range(3):
        scene.world.clock.advance(PROBE_SECONDS)
        await scene.intake.turn()
        assert "disk is full" in str(scene.intake.problem), "not before there is room for a notification"
    connection.execute("PRAGMA max_page_count=1073741823")
    scene.world.clock.advance(PROBE_SECONDS)
    await scene.intake.turn()
    assert scene.intake.problem is None


async def test_a_disk_that_is_full_at_the_very_first_alert_is_overcome(tmp_path: Path) -> None:
    """The tables themselves could not be made."""
    scene = Scene(tmp_path)
    await scene.begin()
    assert scene.world.store is not None
    connection = scene.world.store._connection
    connection.execute(f"PRAGMA max_page_count={connection.execute('PRAGMA page_count').fetchone()[0]}")
    for _ in range(2):
        with pytest.raises(StateError, match="disk is full"):
            await scene.take(one(node="n1", starts=scene.now()))
    connection.execute("PRAGMA max_page_count=1073741823")
    assert await scene.take(one(node="n1", starts=scene.now())) == [Verdict.OPENED]
    await scene.end()
