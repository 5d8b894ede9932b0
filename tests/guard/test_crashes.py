"""The guard dies at every single step of an incident. The next one must bring it to the same end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sre.adapters.store import GuardStore
from sre.breaker.machine import BreakerState
from tests.guard.world import ENGINE, World


async def whole_incident(world: World) -> None:
    for _ in range(8):
        await world.tick()
    world.hang()
    await world.until(lambda: ENGINE in world.guard.state.incidents)  # type: ignore[union-attr]
    await world.until(lambda: not world.guard.state.incidents)  # type: ignore[union-attr]
    for _ in range(3):
        await world.tick()
    await world.until(lambda: True)  # the last death may have been in the last tick


def check_the_end(world: World) -> None:
    assert world.guard is not None
    assert world.guard.state.breakers[ENGINE].state is BreakerState.CLOSED
    assert world.applied is not None
    assert world.applied.pools[0].reject_percent == 0
    assert len(world.supervisor.restarts) == 1, "the hung process is restarted, and only it"
    store = world.store
    assert isinstance(store, GuardStore)
    store.verify_chain()
    messages = Counter((r.message.event, r.channel) for r in store.outbox())
    assert messages == {(event, channel): 1 for event in ("open", "resolve") for channel in ("mail", "sms")}
    (folder,) = [f for f in (world.folder / "incidents").iterdir() if f.name.startswith("inc-")]
    assert len((folder / "contexts.jsonl").read_text().splitlines()) == 3
    intents = [r for r in store.journal(limit=5000) if r.entry.kind == "intent" and r.entry.action == "restart"]
    assert len(intents) == 1, "the budget is charged once"


async def test_an_incident_without_a_death(tmp_path: Path) -> None:
    world = World(tmp_path)
    await whole_incident(world)
    check_the_end(world)
    names = world.steps.names
    refuse = next(i for i, n in enumerate(names) if n == "open begins")
    assert names[refuse - 1] == "apply is confirmed", "refuse first, then contexts"
    assert names.index("write_contexts is done") < names.index("release begins"), "contexts, then the page"
    assert names.index("evidence") < names.index("restart begins"), "evidence, then the restart"
    await world.bury()


@pytest.mark.parametrize("block", range(10))
async def test_death_at_every_step(tmp_path: Path, block: int) -> None:
    """Every step is somebody's turn: block b dies at steps b, b+10, b+20 …"""
    counted = World(tmp_path / "count")
    counted.folder.mkdir()
    await whole_incident(counted)
    total = len(counted.steps.names)
    await counted.bury()
    assert total > 50
    for fatal in range(block + 1, total + 1, 10):
        folder = tmp_path / f"at-{fatal}"
        folder.mkdir()
        world = World(folder)
        world.steps.fatal = fatal
        await whole_incident(world)
        try:
            check_the_end(world)
        except AssertionError as error:
            raise AssertionError(f"death at step {fatal} ({world.steps.names[fatal - 1]}): {error}") from error
        finally:
            await world.bury()
