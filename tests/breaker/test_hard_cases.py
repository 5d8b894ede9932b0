"""Hard cases: who still restarts the engine, what is history, what is nobody's fault."""

from __future__ import annotations

from dataclasses import replace

from sre.breaker.effects import CloseIncident, RestartEngine
from sre.breaker.machine import BreakerState
from sre.breaker.memory import Memory
from sre.signals.types import CanaryVerdict, ProcessState
from tests.breaker.scenes import POLICY, EngineScene, Scene, hang, reject, transitions


def restarts(scene: Scene) -> list[RestartEngine]:
    return [e for d in scene.decisions for e in d.effects if isinstance(e, RestartEngine)]


def test_an_idle_engine_that_hangs_is_restarted() -> None:
    """Nobody is waiting and nothing new is let in: only canaries see it."""
    scene = Scene()
    scene.engines["e0"].in_flight = 0
    scene.engines["e0"].answers_canaries = CanaryVerdict.FAILURE
    scene.tick_until(lambda d: bool(restarts(scene)), most=120)
    assert not scene.breaker().latched


def test_a_guard_restarted_in_a_hang_whose_clients_left_still_restarts_the_engine() -> None:
    scene = Scene()
    scene.ticks(30)
    hang(scene)
    scene.tick_until(lambda d: reject(d) == 100)
    scene.memory = Memory()
    scene.engines["e0"].in_flight = 0
    scene.tick_until(lambda d: bool(restarts(scene)), most=60)


def test_a_restart_that_was_decided_is_repeated_though_the_clients_left() -> None:
    scene = Scene()
    scene.ticks(30)
    hang(scene)
    scene.tick_until(lambda d: bool(restarts(scene)))
    scene.memory = Memory()
    scene.engines["e0"].in_flight = 0
    known = len(restarts(scene))
    scene.ticks(3)
    assert len(restarts(scene)) > known


def test_a_hung_engine_that_answers_canaries_with_queue_full_is_restarted() -> None:
    scene = Scene()
    scene.ticks(30)
    hang(scene)
    scene.engines["e0"].answers_canaries = CanaryVerdict.NEUTRAL
    scene.tick_until(lambda d: bool(restarts(scene)), most=80)


def test_half_open_without_a_verdict_is_told() -> None:
    scene = Scene()
    scene.ticks(5)
    scene.gpu_temperature = 92
    scene.tick()
    scene.gpu_temperature = 60
    scene.engines["e0"].answers_canaries = CanaryVerdict.NEUTRAL
    scene.ticks(400)
    told = [m.message for d in scene.decisions for m in d.outbox if m.message.event == "escalate"]
    assert len(told) == 2
    assert "no verdict" in dict(told[0].facts)["seen"]


def test_a_death_from_before_the_guard_started_is_history() -> None:
    scene = Scene()
    scene.ticks(5)
    engine = scene.engines["e0"]
    engine.pid, engine.last_exit_asked, engine.ready_at = 101, False, scene.at
    scene.at += 3000
    scene.memory = Memory()
    scene.ticks(5)
    assert transitions(scene.decisions) == []


def test_an_unreachable_supervisor_does_not_make_the_guard_forget() -> None:
    scene = Scene()
    scene.ticks(30)
    hang(scene)
    scene.tick_until(lambda d: reject(d) == 100)
    assert scene.memory.engines["e0"].hang.hung
    scene.engines["e0"].process, scene.engines["e0"].ready_at = ProcessState.UNKNOWN, None
    snapshot_without_identity = scene.engines["e0"]
    snapshot_without_identity.pid = 100
    scene.tick()
    assert scene.memory.engines["e0"].hang.hung
    assert scene.memory.engines["e0"].hang.ready_at == -100.0


def test_an_engine_that_cannot_start_is_escalated_once() -> None:
    scene = Scene()
    scene.ticks(5)
    scene.engines["e0"].process = ProcessState.FAILED
    scene.ticks(60)
    assert len([m for d in scene.decisions for m in d.outbox if m.message.event == "escalate"]) == 2  # per channel


def test_an_engine_that_left_the_configuration_takes_its_incident_along() -> None:
    scene = Scene(engines={"e0": EngineScene(), "e1": EngineScene(name="e1", pid=2, gpus=())})
    scene.ticks(5)
    hang(scene)
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.OPEN)
    del scene.engines["e0"]
    decision = scene.tick()
    assert scene.state.incidents == {}
    assert [m.message.event for m in decision.outbox] == ["resolve", "resolve"]
    assert CloseIncident in {type(e) for e in decision.effects}


def test_a_rule_of_severity_ticket_tells_a_ticket() -> None:
    rules = tuple(r.model_copy(update={"severity": "ticket"}) for r in POLICY.rules)
    scene = Scene(policy=replace(POLICY, rules=rules))
    scene.ticks(5)
    scene.gpu_temperature = 92
    assert {m.message.severity for m in scene.tick().outbox} == {"ticket"}


def test_memory_that_is_never_seen_is_told_as_blind() -> None:
    scene = Scene(gpu_memory=None)
    scene.ticks(60)
    told = [m.message for d in scene.decisions for m in d.outbox]
    assert {(m.event, m.reason) for m in told} == {("open", "blind")}
    assert "gpu-memory" in told[0].summary


def test_a_frozen_front_is_caught_by_a_canary_and_the_stuck_requests() -> None:
    """The API server stands still: no metrics, no bytes, no answers."""
    scene = Scene()
    scene.ticks(30)
    engine = scene.engines["e0"]
    engine.stepping, engine.steps, engine.answers_canaries = False, None, CanaryVerdict.FAILURE
    began = scene.at
    scene.tick_until(lambda d: reject(d) == 100, most=12)
    assert scene.at - began <= 8  # here canaries fail at once; really they take their own deadline, 5 s
    scene.tick_until(lambda d: bool(restarts(scene)), most=60)


def test_a_gateway_that_does_not_answer_is_not_the_engines_fault() -> None:
    scene = Scene()
    scene.ticks(30)
    engine = scene.engines["e0"]
    scene.gateway_reachable = False
    engine.in_flight, engine.answers_canaries = None, CanaryVerdict.FAILURE
    scene.ticks(120)
    assert transitions(scene.decisions) == []


def test_nothing_ramps_while_the_gateway_does_not_answer() -> None:
    scene = Scene()
    scene.ticks(5)
    scene.gpu_temperature = 92
    scene.tick()
    scene.gpu_temperature = 60
    scene.tick_until(lambda d: scene.breaker().ramp_index == 1)
    scene.gateway_reachable = False
    scene.ticks(60)
    assert scene.breaker().ramp_index == 1
    scene.gateway_reachable = True
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.CLOSED)
