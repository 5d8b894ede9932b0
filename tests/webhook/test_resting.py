"""What fails by a mistake of ours: tried ever more seldom, heard at once, and keeping nothing else back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sre.control.resting import LONGEST_SECONDS, Rests
from sre.control.tasks import LONGEST_REST_SECONDS, kept_up
from sre.notify.alert_records import Verdict
from sre.testing.clock import ManualClock
from tests.webhook.beside_guard import Scene, hung


async def test_a_trip_that_fails_again_and_again_is_not_tried_each_second(scene: Scene) -> None:
    book, clock = scene.intake.writer.book, scene.world.clock
    assert book is not None
    assert await scene.take(hung(scene)) == [Verdict.TRIPPING]
    tried: list[float] = []

    class Mistaken:
        """A book with a mistake of ours in it."""

        def __getattr__(self, name: str) -> Any:
            if name == "change":
                tried.append(clock.monotonic())
                raise RuntimeError("a mistake of ours")
            return getattr(book, name)

    scene.intake.writer.book = Mistaken()  # type: ignore[assignment]
    for _ in range(120):
        await scene.intake.turn()
        clock.advance(1)
    assert len(set(tried)) <= 7, "after 2 s, 4 s, 8 s, …"
    scene.intake.writer.book = book
    clock.advance(LONGEST_SECONDS)
    await scene.intake.turn()
    assert book.pending_trips() == []


async def test_one_message_that_cannot_be_told_keeps_no_other_back(scene: Scene) -> None:
    def mistaken(_: object) -> None:
        raise RuntimeError("a mistake of ours")

    scene.intake.duties._to_tell["bad"] = mistaken
    scene.intake.duties.lost("too large", "one")
    for _ in range(60):
        await scene.intake.turn()
        scene.world.clock.advance(1)
    assert [reason for _, reason in scene.told()] == ["alerts-refused"]
    assert scene.counts.failures <= 6


def test_a_rest_doubles_up_to_a_limit_and_is_forgotten_when_it_is_over() -> None:
    clock, waits = ManualClock(), []
    rests = Rests(clock)
    for _ in range(8):
        rests.failed("x")
        began = clock.monotonic()
        while not rests.due("x"):
            clock.advance(1)
        waits.append(clock.monotonic() - began)
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
    assert rests.due("y")
    rests.failed("x")
    rests.over("x")
    assert rests.due("x")


async def test_work_in_the_background_begins_again_and_is_heard_at_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, began, failures = ManualClock(), [], []

    async def work() -> None:
        began.append(clock.monotonic())
        if len(began) < 9:
            raise RuntimeError("a mistake of ours")

    await kept_up(work, "guard: chaos", clock, failed=lambda: failures.append(1))
    waits = [round(after - before) for before, after in itertools.pairwise(began)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert waits[-1] == LONGEST_REST_SECONDS
    assert len(failures) == 8
    assert caplog.text.count("guard: chaos ended by a mistake") == 8
    assert "RuntimeError: a mistake of ours" in caplog.text
