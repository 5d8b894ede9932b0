"""Trips that alerts ask for, beside a real guard: carried out, refused, over before their time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sre.actions import facts
from sre.breaker.state import Pause
from sre.errors import StateError
from sre.notify.alert_decide import Decision
from sre.notify.alert_draft import Moment
from sre.notify.alert_records import Changes, Known, Verdict
from tests.guard.world import ENGINE, POOL
from tests.webhook.beside_guard import Scene, hung, reasons, rejected
from tests.webhook.scenes import payload


class Between:
    """A book that does something just before one of its calls."""

    def __init__(self, book: Any, name: str, do: Callable[[], object]) -> None:
        self._book, self._name, self._do = book, name, do

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._do()
        return getattr(self._book, name)


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


async def test_a_trip_that_cannot_be_settled_is_carried_out_once(scene: Scene) -> None:
    """Else it would trip again when the breaker has closed, until its evidence is too old."""
    book, world = scene.intake.writer.book, scene.world
    assert book is not None
    assert await scene.take(hung(scene)) == [Verdict.TRIPPING]

    class Unsettling:
        """A book that takes no end of a trip."""

        def __getattr__(self, name: str) -> Any:
            if name == "change":
                raise StateError("guard state guard.db: the disk is full")
            return getattr(book, name)

    scene.intake.writer.book = Unsettling()  # type: ignore[assignment]
    await scene.intake.turn()
    assert rejected(scene) == 100
    await world.until(lambda: not world.guard.state.incidents)  # type: ignore[union-attr]
    await scene.intake.turn()
    assert rejected(scene) == 0
    scene.intake.writer.book = book
    await scene.intake.turn()
    assert rejected(scene) == 0
    # It fires on after all that: a person is told, and of the trip as it was.
    assert [event for event, _ in scene.told()] == ["open", "resolve", "open"]
    assert world.store is not None
    done = dict(world.store.outbox()[-1].message.facts)[facts.DONE]
    assert done == f"the trip of {POOL} was carried out; no incident of it is open now"


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


async def test_a_trip_whose_alert_ends_meanwhile_stands_and_closes_by_itself(scene: Scene) -> None:
    """The engine is probed before traffic comes back, as after any trip: that an alert ended proves nothing of it."""
    await scene.take(hung(scene))
    await scene.intake.turn()
    assert await scene.take(hung(scene, status="resolved")) == [Verdict.ENDED]
    for _ in range(3):
        await scene.world.tick()
        await scene.intake.turn()
    assert rejected(scene) == 100
    world = scene.world
    await world.until(lambda: not world.guard.state.incidents)  # type: ignore[union-attr]
    assert rejected(scene) == 0
    assert [event for event, _ in scene.told()] == ["open", "resolve"]


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
