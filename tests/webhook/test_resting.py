"""What fails by a mistake of ours: tried ever more seldom, heard at once, and keeping nothing else back."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any, cast

import pytest

from sre.control.alert_duties import LOOK_SECONDS
from sre.control.alert_intake import AlertIntake
from sre.control.alert_outage import OutageWatch
from sre.control.resting import LONGEST_SECONDS, Rests
from sre.control.tasks import LONGEST_REST_SECONDS, kept_up
from sre.notify.alert_limits import NOTICE_ACTION
from sre.notify.alert_records import Verdict
from sre.servers.exporter import Metrics
from sre.servers.exporter_webhook import WebhookMetrics
from sre.settings.webhook import ActionSettings, HeartbeatSettings, RouteSettings, WebhookSettings
from sre.testing.clock import ManualClock
from sre.wiring.guard_webhook import Webhook
from tests.webhook.beside_guard import Scene, hung
from tests.webhook.scenes import one, payload


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


def limited(name: str) -> RouteSettings:
    actions = (ActionSettings(do="incident"), ActionSettings(do="notify", max_per_hour=1))
    return RouteSettings(name=name, match={"team": name}, actions=actions)


async def test_what_a_limit_kept_back_on_one_route_waits_for_no_other_route(tmp_path: Path) -> None:
    settings = WebhookSettings(routes=(limited("bad"), limited("good")), heartbeat=HeartbeatSettings(enabled=False))
    scene = Scene(tmp_path, settings)
    await scene.begin()
    book, clock = scene.intake.writer.book, scene.world.clock
    assert book is not None
    await scene.take(*(one(node=f"n{n}", team=team) for team in ("bad", "good") for n in range(3)))
    assert sorted(book.left_out(1)) == ["bad", "good"]
    tried: list[float] = []

    class Mistaken:
        """A book with a mistake of ours in it, about one route."""

        def __getattr__(self, name: str) -> Any:
            return getattr(book, name)

        def change(self, wanted: Any, decide: Any) -> Any:
            if (NOTICE_ACTION, "bad") in wanted.intents:
                tried.append(clock.monotonic())
                raise RuntimeError("a mistake of ours")
            return book.change(wanted, decide)

    scene.intake.writer.book = Mistaken()  # type: ignore[assignment]
    clock.advance(3601)
    for _ in range(600):
        await scene.intake.turn()
        clock.advance(1)
    assert list(book.left_out(1)) == ["bad"], "that of the other route was told"
    assert len(tried) <= 600 / LONGEST_SECONDS + LONGEST_SECONDS / LOOK_SECONDS, "ever more seldom"
    scene.intake.writer.book = book
    clock.advance(LONGEST_SECONDS)
    await scene.intake.turn()
    assert book.left_out(1) == {}
    await scene.end()


async def test_an_intake_that_is_begun_again_takes_in_again(scene: Scene) -> None:
    for node in ("n1", "n2"):
        running = asyncio.create_task(scene.intake.run())
        await asyncio.sleep(0)
        assert (await scene.intake.take(payload(one(node=node)))).verdicts == (Verdict.OPENED,)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("mistaken", ["intake", "outage"])
async def test_a_mistake_in_one_half_of_taking_in_leaves_the_other_running_once(mistaken: str) -> None:
    class Half:
        def __init__(self, fails: int) -> None:
            self.fails, self.begun, self.running = fails, 0, 0

        async def run(self) -> None:
            self.begun += 1
            if self.begun <= self.fails:
                raise RuntimeError("a mistake of ours")
            self.running += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.running -= 1

    halves = {name: Half(3 if name == mistaken else 0) for name in ("intake", "outage")}
    webhook = Webhook(
        WebhookSettings(),
        cast(AlertIntake, halves["intake"]),
        WebhookMetrics(Metrics()),
        None,
        ManualClock(),
        cast(OutageWatch, halves["outage"]),
    )
    taking = asyncio.create_task(webhook.take_in())
    for _ in range(100):
        await asyncio.sleep(0)
    assert {name: (half.begun, half.running) for name, half in halves.items()} == {
        name: (4 if name == mistaken else 1, 1) for name in halves
    }
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    assert [half.running for half in halves.values()] == [0, 0]


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
