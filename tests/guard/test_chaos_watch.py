"""A fault that is left behind is paged once, and only when nobody is at work on it."""

from __future__ import annotations

from pathlib import Path

from sre.wiring.chaos_watch import ChaosWatch
from tests.guard.world import World


async def test_a_run_that_nobody_can_read_is_paged_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(3):
        await world.tick()
    folder = tmp_path / "chaos"
    folder.mkdir(mode=0o700)
    run = folder / "20261130T000000Z-gpu-hang-abcd"
    run.mkdir(mode=0o700)
    journal = run / "journal.jsonl"
    journal.write_text("this was never a journal\n")
    journal.chmod(0o600)
    guard, store = world.guard, world.store
    assert guard is not None
    assert store is not None
    watch = ChaosWatch(folder, guard, world.clock)
    for _ in range(2):
        await watch.look()
    assert list(store.outbox()) == [], "a few seconds belong to the watchdog"
    for _ in range(5):
        await watch.look()
    rows = store.outbox()
    assert {r.channel for r in rows} == {"mail", "sms"}
    assert len(rows) == 2
    assert "not proven reverted" in rows[0].message.summary
    assert sum(watch.active.values()) == 1
    await world.bury()
