"""Posts with credentials that open nothing: a person hears of it where no alert can say so; strangers call nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sre.actions import facts
from sre.notify.alert_knocks import LOCKED_OUT_POSTS, LOCKED_OUT_SECONDS
from sre.settings.webhook import HeartbeatSettings, WebhookSettings
from tests.webhook.beside_guard import Scene
from tests.webhook.scenes import one

UNWATCHED = WebhookSettings(heartbeat=HeartbeatSettings(enabled=False))
OLD_TOKEN = ("open", "locked_out")
NEW_TOKEN = ("resolve", "locked_out")


@pytest.fixture
async def unwatched(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path, UNWATCHED)
    await made.begin()
    await made.intake.turn()
    yield made
    await made.end()


async def knock(scene: Scene, times: int = 5, seconds: float = LOCKED_OUT_SECONDS) -> None:
    """So many posts are turned away within ``seconds``."""
    for n in range(times):
        scene.intake.turned_away()
        scene.world.clock.advance(seconds / (times - 1) if n < times - 1 else 0.0)
        await scene.intake.turn()


async def test_an_old_token_is_told_once_and_ends_with_the_first_good_post(unwatched: Scene) -> None:
    await knock(unwatched)
    assert unwatched.told() == [OLD_TOKEN]
    for _ in range(3):
        await knock(unwatched)
    assert unwatched.told() == [OLD_TOKEN], "once, however long"
    assert unwatched.world.store is not None
    message = unwatched.world.store.outbox()[0].message
    assert message.severity == "ticket"
    assert message.summary == "4 posts with wrong or no credentials in 5 min, and none that fit"
    await unwatched.take(one("SreInfo", severity="info"))
    await unwatched.intake.turn()
    await unwatched.take(one("SreInfo", severity="info"))
    await unwatched.intake.turn()
    assert unwatched.told() == [OLD_TOKEN, NEW_TOKEN]
    await knock(unwatched)
    await unwatched.intake.turn()
    assert unwatched.told() == [OLD_TOKEN, NEW_TOKEN, OLD_TOKEN], "and begins anew"


@pytest.mark.parametrize("good", ["a post", "one that is refused for what it holds"])
async def test_a_stranger_calls_nobody_while_somebody_comes_in(unwatched: Scene, good: str) -> None:
    for _ in range(10):
        await knock(unwatched, seconds=LOCKED_OUT_SECONDS - 1)
        if good == "a post":
            await unwatched.take(one("SreInfo", severity="info"))
        else:
            unwatched.intake.lost("encoded", "they are compressed")
    assert OLD_TOKEN not in unwatched.told()


async def test_few_or_for_a_moment_is_nothing(unwatched: Scene) -> None:
    await knock(unwatched, times=50, seconds=LOCKED_OUT_SECONDS - 1)
    unwatched.intake.duties.let_in()
    for _ in range(LOCKED_OUT_POSTS - 1):
        unwatched.intake.turned_away()
    unwatched.world.clock.advance(10 * LOCKED_OUT_SECONDS)
    await unwatched.intake.turn()
    assert unwatched.told() == []


async def test_it_ends_also_after_a_restart(unwatched: Scene) -> None:
    await knock(unwatched)
    await unwatched.world.bury()
    await unwatched.begin(ticks=1)
    await knock(unwatched)
    assert unwatched.told() == [OLD_TOKEN], "the same episode"
    await unwatched.take(one("SreInfo", severity="info"))
    await unwatched.intake.turn()
    assert unwatched.told() == [OLD_TOKEN, NEW_TOKEN]


async def test_where_a_heartbeat_is_asked_for_its_silence_says_it_and_nothing_else_does(scene: Scene) -> None:
    await scene.intake.turn()
    await knock(scene, times=7, seconds=3 * LOCKED_OUT_SECONDS)
    assert scene.told() == [("open", "pipeline_silent")]
    assert scene.world.store is not None
    said = dict(scene.world.store.outbox()[0].message.facts)
    assert said[facts.SEEN] == "2 posts with wrong or no credentials meanwhile"
    assert said[facts.NEXT].startswith("compare the credentials that Alertmanager sends")
