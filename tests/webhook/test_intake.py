"""The intake beside a real guard: committing together, trips, what time brings; deaths in between."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.incident_files import IncidentFiles
from sre.adapters.store.alerts import AlertBook
from sre.breaker.state import Pause
from sre.control.alert_duties import LISTENED_SECONDS, LOOK_SECONDS, OUTLIVES_SECONDS, PROBE_SECONDS
from sre.control.alert_guard import GuardHands
from sre.control.alert_intake import AlertIntake, Busy
from sre.control.notify_proof import Canaries
from sre.control.observe import EngineConfig
from sre.errors import StateError
from sre.notify.alert_decide import Decision, Intake
from sre.notify.alert_draft import Moment
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

    good, scene.intake.writer.book = scene.intake.writer.book, Refusing()  # type: ignore[assignment]
    with pytest.raises(StateError, match="disk is full"):
        await scene.take(one(node="n1", starts=scene.now()))
    await scene.intake.turn()
    assert "disk is full" in str(scene.intake.problem)
    scene.intake.writer.book = good
    assert await scene.take(one(node="n1", starts=scene.now())) == [Verdict.OPENED]
    assert scene.intake.problem is None


async def test_a_trip_that_waits_outlives_a_disk_that_refuses_once(scene: Scene) -> None:
    book = scene.intake.writer.book
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

    scene.intake.writer.book = RefusingOnce()  # type: ignore[assignment]
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


# ---- trips whose alert is over, or that cannot be read ---------------------------------------------------------------


class Between:
    """A book that does something just before one of its calls."""

    def __init__(self, book: Any, name: str, do: Callable[[], object]) -> None:
        self._book, self._name, self._do = book, name, do

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._do()
        return getattr(self._book, name)


def reasons(scene: Scene) -> list[str]:
    assert scene.world.store is not None
    return [row.entry.reason for row in scene.world.store.journal()]


def rejected(scene: Scene) -> int:
    assert scene.world.applied is not None
    return scene.world.applied.pools[0].reject_percent


async def test_an_alert_that_ended_before_its_trip_trips_nothing(scene: Scene) -> None:
    await scene.take(hung(scene))
    await scene.take(hung(scene, status="resolved"))
    await scene.intake.turn()
    assert rejected(scene) == 0
    assert reasons(scene)[-1] == "ended"
    assert scene.told() == []
    await scene.intake.turn()
    assert reasons(scene).count("ended") == 1, "settled"


async def test_an_end_that_comes_between_looking_and_tripping_trips_nothing(scene: Scene) -> None:
    await scene.take(hung(scene))
    book = scene.intake.writer.book
    ended = payload(hung(scene, status="resolved"))
    intake, hands, clock = scene.intake._intake, scene.intake._hands, scene.world.clock

    def end() -> None:
        def decide(known: Known) -> Changes:
            decision = Decision(intake, known, hands.now(), Moment(clock.wall(), clock.monotonic()))
            decision.take(ended)
            return decision.changes()

        assert book is not None
        book.change(intake.wanted(ended.alerts, hands.now()), decide)

    scene.intake.writer.book = Between(book, "episode", end)  # type: ignore[assignment]
    await scene.intake.turn()
    assert rejected(scene) == 0
    assert "ended" in reasons(scene)


async def test_a_guard_that_died_trips_nothing_for_what_ended_meanwhile(scene: Scene) -> None:
    await scene.take(hung(scene))
    await scene.world.bury()
    await scene.begin(ticks=2)
    await scene.take(hung(scene, status="resolved"))
    await scene.intake.turn()
    assert rejected(scene) == 0


@pytest.mark.parametrize("jump", [0.0, -40 * 365 * 86400.0, 400 * 86400.0])
async def test_after_a_reboot_nothing_trips_and_a_person_is_told_whatever_the_clock_says(
    scene: Scene, jump: float
) -> None:
    await scene.take(hung(scene))
    assert scene.world.store is not None
    scene.world.store._boot_id = "another"
    scene.world.clock.jump_wall(jump)
    await scene.intake.turn()
    assert rejected(scene) == 0
    assert "too_old" in reasons(scene)
    assert scene.told() == [("open", "VllmEngineHung")]


def damage(scene: Scene, statement: str) -> None:
    assert scene.world.store is not None
    scene.world.store._connection.execute(statement)


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


# ---- mistakes of ours ------------------------------------------------------------------------------------------------


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


# ---- looking after firings -------------------------------------------------------------------------------------------


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


# ---- what was refused for good ---------------------------------------------------------------------------------------


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
