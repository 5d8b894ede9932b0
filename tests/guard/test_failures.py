"""What the guard does when its own feet are shot at: disk, gateway, supervisor; and what people may order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.store import GuardStore
from sre.breaker.machine import BreakerState
from sre.breaker.manual import Command, CommandError
from sre.breaker.state import Pause
from sre.control.desk import Desk
from sre.errors import StateError, Unreachable
from sre.metrics import own
from sre.settings.guard import HalfOpenSettings
from tests.guard.world import ENGINE, POOL, QUICK, World


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    for _ in range(8):
        await made.tick()
    yield made
    await made.bury()


@pytest.fixture
async def hanging(tmp_path: Path) -> Any:
    """A world whose guard does not wait for the disk for long."""
    made = World(tmp_path)
    made.commit_seconds = 0.2
    for _ in range(8):
        await made.tick()
    yield made
    made.disk_answers.set()
    await made.bury()


def reject(world: World) -> int | None:
    return None if world.applied is None else world.applied.pools[0].reject_percent


async def test_a_full_disk_stops_the_hands_says_so_and_ends_by_itself(world: World) -> None:
    guard, paged = world.guard, world.paged_unstored
    assert guard is not None
    world.disk_full = True
    world.hang()
    for _ in range(20):
        await world.tick()
    assert reject(world) == 0, "nothing is done that cannot be written down"
    assert not guard.health.store_up
    assert "disk" in str(guard.health.problem)
    assert paged, "a person is told all the same"
    assert len({(m.message.incident_id, m.channel) for m in paged}) == 2, "once, not once a tick"
    assert "NOT contained" in paged[0].message.summary
    assert b"sre_state_store_up 0.0" in world_metrics(world)
    world.disk_full = False
    told = {(m.message.incident_id, m.channel) for m in paged}
    await world.until(lambda: reject(world) == 100)
    assert guard.health.store_up
    ends = [m for m in paged if m.message.event == "resolve"]
    assert {(m.message.incident_id, m.channel) for m in ends} == told, "what was opened from memory does not stay open"
    assert len(ends) == 2


async def test_an_end_that_cannot_be_written_down_is_not_told_before_it_is(world: World) -> None:
    world.gpu.hang()
    assert world.guard is not None
    await world.until(lambda: bool(world.guard is not None and world.guard.state.blind))
    world.disk_full = True
    world.gpu.recover()
    for _ in range(5):
        await world.tick()
    assert world.paged_unstored == []
    assert world.guard.state.blind
    world.disk_full = False
    await world.until(lambda: world.guard is not None and not world.guard.state.blind)
    assert world.store is not None
    assert [r.message.event for r in world.store.outbox() if r.channel == "mail"] == ["open", "resolve"]


def world_metrics(world: World) -> bytes:
    assert world.guard is not None
    world.metrics.source = Desk(world.guard, world.policy, world.clock, None)
    return world.metrics.render()


async def test_a_corrupt_state_is_never_taken_for_an_empty_one(world: World) -> None:
    await world.guard.order(Command("trip", ENGINE, "ann", "drill"))  # type: ignore[union-attr]
    await world.bury()
    store = GuardStore.open(world.folder / "guard.db", clock=world.clock, boot_id="boot")
    store.commit(state='{"version": 99}')
    store.close()
    guard = world.start_guard()
    assert not guard.health.store_up
    before = world.applies
    for _ in range(30):
        await world.tick()
    assert world.applies == before, "it watches and does not act"
    assert "does not act" in str(guard.health.problem)


async def test_a_gateway_that_is_down_is_tried_again_and_journaled_once(world: World) -> None:
    world.gateway_up = False
    world.hang()
    for _ in range(8):
        await world.tick()
    store = world.store
    assert store is not None
    failures = [r.entry for r in store.journal() if r.entry.kind == "failed"]
    assert [f.reason for f in failures] == ["apply_failed"]
    assert world.guard is not None
    assert "not in force" in str(world.guard.health.problem), "status must not say that all is well"
    world.gateway_up = True
    await world.tick()
    assert reject(world) == 100


async def test_a_supervisor_that_is_down_delays_the_restart_and_costs_no_second_budget_at_once(world: World) -> None:
    world.hang()
    await world.until(lambda: ENGINE in world.guard.state.incidents)  # type: ignore[union-attr]
    for _ in range(3):
        await world.tick()
    world.supervisor.reachable = False
    for _ in range(10):
        await world.tick()
    assert world.supervisor.restarts == []
    world.supervisor.reachable = True
    await world.until(lambda: world.supervisor.restarts)
    assert len(world.supervisor.restarts) == 1


async def test_an_order_acts_between_ticks(world: World) -> None:
    guard = world.guard
    assert guard is not None
    await guard.order(Command("trip", POOL, "ann", "drill"))
    assert reject(world) == 100
    assert guard.state.breakers[ENGINE].state is BreakerState.OPEN


async def test_an_order_that_the_gateway_did_not_confirm_is_an_error_and_still_comes_true(world: World) -> None:
    guard = world.guard
    assert guard is not None
    world.gateway_up = False
    with pytest.raises(Unreachable):
        await guard.order(Command("trip", ENGINE, "ann", "drill"))
    world.gateway_up = True
    await world.tick()
    assert reject(world) == 100


async def test_orders_that_make_no_sense(world: World) -> None:
    guard = world.guard
    assert guard is not None
    for command in (
        Command("explode", ENGINE, "ann", "x"),
        Command("trip", "nobody", "ann", "x"),
        Command("force-open", ENGINE, "", ""),
    ):
        with pytest.raises(CommandError):
            await guard.order(command)
    assert guard.state.breakers[ENGINE].state is BreakerState.CLOSED


async def test_a_forced_breaker_is_undone_by_nothing_but_its_expiry(world: World) -> None:
    guard = world.guard
    assert guard is not None
    await guard.order(Command("force-open", ENGINE, "ann", "maintenance", 30.0))
    for _ in range(25):
        await world.tick()
    assert reject(world) == 100
    await world.until(lambda: reject(world) == 0)


async def test_a_disabled_breaker_never_trips(world: World) -> None:
    guard = world.guard
    assert guard is not None
    await guard.order(Command("disable", ENGINE, "ann", "known compile", None))
    world.hang()
    for _ in range(60):
        await world.tick()
    assert reject(world) == 0
    assert world.supervisor.restarts == []


async def test_a_paused_guard_watches_and_changes_nothing(world: World) -> None:
    guard = world.guard
    assert guard is not None
    assert await guard.set_pause(Pause("ann", "migration", world.clock.wall()))
    assert not await guard.set_pause(Pause("bob", "again", world.clock.wall()))
    world.hang()
    for _ in range(30):
        await world.tick()
    assert reject(world) == 0
    assert world.supervisor.restarts == []
    assert guard.state.breakers[ENGINE].state is BreakerState.OPEN, "it sees"
    assert await guard.set_pause(None)
    await world.tick()
    assert reject(world) == 100


async def test_observe_mode_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, replace(QUICK, mode="observe"))
    for _ in range(8):
        await world.tick()
    world.hang()
    for _ in range(30):
        await world.tick()
    assert world.applies == 0
    assert world.supervisor.restarts == []
    assert world.guard is not None
    assert world.guard.state.incidents
    await world.bury()


async def test_status_before_the_first_tick_says_that_nothing_was_seen(tmp_path: Path) -> None:
    world = World(tmp_path)
    guard = world.start_guard()
    desk = Desk(guard, world.policy, world.clock, None)
    assert desk.status()["tick_age_seconds"] is None
    assert desk.status()["engines"] == {}
    with pytest.raises(StateError):
        await desk.order({"verb": "trip", "target": ENGINE, "owner": "ann", "reason": "x"})
    await world.bury()


async def test_an_order_without_an_owner_is_refused(world: World) -> None:
    assert world.guard is not None
    desk = Desk(world.guard, world.policy, world.clock, None)
    for order in ({}, {"verb": "trip"}, {"verb": "trip", "target": 5}, {"verb": "trip", "target": ENGINE, "owner": ""}):
        with pytest.raises(ValueError, match="the order needs"):
            await desk.order(order)
    for bad in (0, -1, "5", True, 1e12):
        with pytest.raises(ValueError, match="expires_seconds"):
            await desk.order({"verb": "trip", "target": ENGINE, "owner": "a", "reason": "b", "expires_seconds": bad})


async def test_every_metric_of_ours_that_the_guard_exports_is_in_the_catalogue(world: World) -> None:
    text = world_metrics(world).decode()
    exported = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE sre_")}
    known = {name.removesuffix("_total") for name in own.OWN_METRICS} | set(own.OWN_METRICS)
    assert {e.removesuffix("_created").removesuffix("_total") for e in exported} <= known
    assert 'sre_breaker_state{scope="engine",state="closed",target="sim-0"} 1.0' in text


async def test_a_write_that_was_given_up_and_lands_late_is_true_for_this_guard_too(hanging: World) -> None:
    """Else the next guard would find a forced breaker that this one never knew."""
    world = hanging
    guard = world.guard
    assert guard is not None
    world.disk_answers.clear()
    with pytest.raises(StateError):
        await guard.order(Command("force-open", ENGINE, "ann", "maintenance", None))
    assert reject(world) == 0
    assert guard.state.breakers[ENGINE].state is BreakerState.CLOSED
    world.disk_answers.set()
    await guard.written()
    await world.until(lambda: reject(world) == 100)
    assert guard.state.breakers[ENGINE].effective is BreakerState.FORCED_OPEN
    assert guard.health.problem is None, "and the problem is over, though nothing else is to be written"
    assert world.store is not None
    world.store.verify_chain()


async def test_a_disk_that_hangs_for_a_whole_incident_still_pages_from_memory(hanging: World) -> None:
    world = hanging
    world.disk_answers.clear()
    world.hang()
    for _ in range(10):
        await world.tick()
    assert {m.channel for m in world.paged_unstored} == {"mail", "sms"}
    assert len({m.message.incident_id for m in world.paged_unstored}) == 1
    world.disk_answers.set()
    assert world.guard is not None
    await world.guard.written()
    await world.until(lambda: reject(world) == 100)


async def test_a_paused_guard_that_restarts_changes_nothing(world: World) -> None:
    guard = world.guard
    assert guard is not None
    await guard.set_pause(Pause("ann", "migration", world.clock.wall()))
    world.hang()
    for _ in range(10):
        await world.tick()
    await world.bury()
    applies = world.applies
    for _ in range(10):
        await world.tick()
    assert world.applies == applies
    assert reject(world) == 0


async def test_an_adapter_that_breaks_its_contract_does_not_stop_pages_and_contexts(world: World) -> None:
    world.gateway_breaks = KeyError("surprise")
    world.hang()
    await world.until(lambda: ENGINE in world.guard.state.incidents)  # type: ignore[union-attr]
    await world.until(lambda: world.guard.state.incidents[ENGINE].contexts_saved)  # type: ignore[union-attr]
    assert world.guard is not None
    assert "KeyError" in str(world.guard.health.problem)


async def test_evidence_that_cannot_be_taken_does_not_stop_the_restart(world: World) -> None:
    world.evidence_hangs = True
    world.hang()
    await world.until(lambda: world.supervisor.restarts)


async def test_fewer_ramp_steps_than_when_the_state_was_written(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(8):
        await world.tick()
    world.hang()
    await world.until(lambda: (world.guard.state.breakers[ENGINE].ramp_index or 0) >= 2)  # type: ignore[union-attr]
    await world.bury()
    world.policy = replace(QUICK, half_open=HalfOpenSettings(ramp_percents=(50, 100), ramp_dwell_seconds=1))
    await world.until(lambda: world.guard.state.breakers[ENGINE].state is BreakerState.CLOSED)  # type: ignore[union-attr]
    await world.bury()
