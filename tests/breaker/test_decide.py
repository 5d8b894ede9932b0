"""One engine through whole incidents: what is refused, told, restarted, and how traffic comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sre.actions.types import RejectReason
from sre.breaker.effects import CloseIncident, RestartEngine, SaveContexts
from sre.breaker.hang import HangVerdict
from sre.breaker.machine import BreakerState
from sre.breaker.memory import Memory
from sre.settings.guard import BudgetSettings
from sre.signals.types import CanaryVerdict, ProcessState
from tests.breaker.scenes import POLICY, EngineScene, Scene, hang, policy, reject, transitions, weights


def test_a_hang_is_refused_within_five_seconds() -> None:
    scene = Scene()
    scene.ticks(30)
    hang(scene)
    began = scene.at
    decision = scene.tick_until(lambda d: reject(d) == 100)
    assert scene.at - began <= 5.0
    assert decision.desired.pools[0].reason is RejectReason.HANG
    assert next(type(e) for e in decision.effects) is SaveContexts
    assert {m.channel for m in decision.outbox} == {"mail", "sms"}
    assert all(m.hold_seconds == 2.0 for m in decision.outbox)


def test_no_trip_while_steps_go_on() -> None:
    scene = Scene()
    scene.ticks(600)
    assert transitions(scene.decisions) == []


def test_an_idle_engine_is_asked_for_a_token_and_two_failures_trip() -> None:
    scene = Scene()
    scene.engines["e0"].in_flight = 0
    scene.engines["e0"].answers_canaries = CanaryVerdict.FAILURE
    scene.tick_until(lambda d: reject(d) == 100, most=40)
    assert "canary completions failed" in scene.breaker().detail


def test_neutral_canaries_say_nothing() -> None:
    scene = Scene()
    scene.engines["e0"].in_flight = 0
    scene.engines["e0"].answers_canaries = CanaryVerdict.NEUTRAL
    scene.ticks(300)
    assert scene.breaker().state is BreakerState.CLOSED


def test_bytes_at_the_gateway_disprove_a_hang() -> None:
    """/metrics may crawl while streams flow."""
    scene = Scene()
    engine = scene.engines["e0"]
    scene.ticks(5)
    engine.stepping = False
    for _ in range(60):
        engine.sent += 100
        scene.tick()
    assert scene.breaker().state is BreakerState.CLOSED


def test_a_long_prompt_alone_is_no_hang() -> None:
    """vLLM counts no step while it only computes pieces of a prompt; its KV cache fills."""
    scene = Scene()
    scene.ticks(5)
    engine = scene.engines["e0"]
    engine.stepping, engine.kv_usage = False, 0.0
    for _ in range(20):
        engine.kv_usage += 0.01
        scene.tick()
    assert scene.breaker().state is BreakerState.CLOSED
    scene.tick_until(lambda d: reject(d) == 100, most=6)


def test_unseen_steps_never_hang() -> None:
    scene = Scene()
    scene.ticks(5)
    scene.engines["e0"].steps = None
    scene.ticks(120)
    assert scene.breaker().state is BreakerState.CLOSED
    assert [e.reason for d in scene.decisions for e in d.journal if e.reason == "blind"] == ["blind"]


def test_stale_step_samples_never_hang() -> None:
    """An engine at its batch limit answers /metrics in seconds: the old sample proves nothing."""
    scene = Scene()
    scene.ticks(5)
    engine = scene.engines["e0"]
    engine.stepping = False
    for _ in range(60):
        engine.step_sample_age += 1.0
        scene.tick()
    assert scene.breaker().state is BreakerState.CLOSED


def test_a_pause_is_no_hang() -> None:
    scene = Scene()
    scene.ticks(5)
    hang(scene)
    scene.engines["e0"].paused = True
    scene.ticks(300)
    assert scene.breaker().state is BreakerState.CLOSED


def test_a_long_legal_step_raises_the_limit() -> None:
    scene = Scene()
    engine = scene.engines["e0"]
    scene.ticks(5)
    for _ in range(20):  # steps of nearly three seconds
        engine.stepping = False
        scene.ticks(2)
        engine.stepping = True
        scene.tick()
    engine.stepping = False
    scene.ticks(3)
    assert scene.breaker().state is BreakerState.CLOSED
    scene.ticks(2)
    assert scene.breaker().state is BreakerState.OPEN


def test_one_flat_look_between_two_requests_is_no_long_step() -> None:
    """Light traffic: idle between two looks, in flight at both."""
    scene = Scene()
    engine = scene.engines["e0"]
    for _ in range(30):
        engine.stepping = False
        scene.tick()
        engine.stepping = True
        scene.tick()
    assert scene.memory.engines["e0"].hang.hang_after_seconds == 3.0


def test_the_grace_after_a_start_allows_a_compile() -> None:
    scene = Scene()
    scene.engines["e0"].ready_at = scene.at
    scene.ticks(2)
    hang(scene)
    scene.ticks(8)
    assert scene.breaker().state is BreakerState.CLOSED


def test_a_compile_of_eight_seconds_is_refused_but_never_restarted() -> None:
    scene = Scene()
    scene.ticks(30)
    hang(scene)
    scene.ticks(8)
    assert scene.breaker().state is BreakerState.OPEN
    scene.engines["e0"].stepping = True
    scene.engines["e0"].answers_canaries = CanaryVerdict.SUCCESS
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.CLOSED)
    assert not [e for d in scene.decisions for e in d.effects if isinstance(e, RestartEngine)]


def test_a_compile_whose_client_left_is_not_restarted() -> None:
    """Steps stay flat since nobody is left; the confirming canary succeeds."""
    scene = Scene()
    scene.ticks(30)
    hang(scene)
    scene.ticks(6)
    engine = scene.engines["e0"]
    engine.in_flight = 0
    engine.answers_canaries = CanaryVerdict.SUCCESS
    scene.ticks(120)
    assert not [e for d in scene.decisions for e in d.effects if isinstance(e, RestartEngine)]
    assert scene.breaker().state is BreakerState.CLOSED


def test_a_lasting_hang_is_restarted_once_after_thirty_seconds_and_traffic_ramps_back() -> None:
    scene = Scene()
    scene.ticks(30)
    hang(scene)
    began = scene.at
    decision = scene.tick_until(lambda d: any(isinstance(e, RestartEngine) for e in d.effects))
    assert 30.0 <= scene.at - began <= 36.0
    restart = next(e for e in decision.effects if isinstance(e, RestartEngine))
    assert restart.expected.pid == 100
    intents = [e for e in decision.journal if e.action == "restart"]
    assert [e.kind for e in intents] == ["intent"]
    engine = scene.engines["e0"]
    engine.process = ProcessState.STARTING
    scene.ticks(2)
    engine.process, engine.pid, engine.ready_at = ProcessState.READY, 200, scene.at
    engine.stepping, engine.answers_canaries, engine.in_flight = True, CanaryVerdict.SUCCESS, 1
    first_new = len(scene.decisions)
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.CLOSED)
    later = scene.decisions[first_new:]
    assert sorted({reject(d) for d in later}, reverse=True) == [100, 90, 75, 50, 0]
    assert transitions(later) == ["wait_elapsed", "probes_good", "ramp_step", "ramp_step", "ramp_step", "ramp_done"]
    last = scene.decisions[-1]
    assert [m.message.event for m in last.outbox] == ["resolve", "resolve"]
    assert [type(e) for e in last.effects] == [CloseIncident]
    assert sum(1 for d in scene.decisions for e in d.journal if e.action == "restart" and e.kind == "intent") == 1


def test_a_spent_budget_stops_restarts_and_the_breaker_latches_in_the_end() -> None:
    scene = Scene(policy=replace(POLICY, budgets=BudgetSettings(restarts_per_engine_per_hour=1)))
    scene.ticks(30)
    hang(scene)
    scene.ticks(3000)
    assert sum(1 for d in scene.decisions for e in d.journal if e.action == "restart") == 1
    assert scene.breaker().latched
    escalations = [m for d in scene.decisions for m in d.outbox if m.message.event == "escalate"]
    assert {m.channel for m in escalations} == {"mail", "sms"}
    assert len(escalations) == 2


def test_gpu_memory_beyond_95_percent_for_ten_seconds_trips() -> None:
    scene = Scene()
    scene.ticks(10)
    scene.gpu_memory = 0.97
    began = scene.at
    scene.tick_until(lambda d: reject(d) == 100)
    assert 10.0 <= scene.at - began <= 11.5
    assert scene.breaker().reason is RejectReason.GPU_MEMORY


def test_a_full_gpu_from_the_start_disarms_the_rule() -> None:
    scene = Scene(gpu_memory=0.97)
    scene.ticks(120)
    assert scene.breaker().state is BreakerState.CLOSED
    assert scene.state.armed == {"e0/gpu-memory/gpu0/0.95": False}


def test_another_process_is_armed_anew() -> None:
    """More memory by configuration: what was a fault for the old process is the steady state of the new one."""
    scene = Scene()
    scene.ticks(10)
    engine = scene.engines["e0"]
    engine.pid, engine.last_exit_asked, engine.ready_at = 101, None, scene.at
    scene.gpu_memory = 0.97
    scene.ticks(60)
    assert scene.breaker().state is BreakerState.CLOSED
    assert scene.state.armed == {"e0/gpu-memory/gpu0/0.95": False}


def test_an_engine_that_rests_above_recover_below_still_closes_again() -> None:
    """vLLM often rests at 93..95 %: hysteresis must not hold the breaker open for ever."""
    scene = Scene(gpu_memory=0.94)
    scene.ticks(10)
    scene.gpu_memory = 0.98
    scene.tick_until(lambda d: reject(d) == 100)
    scene.gpu_memory = 0.94
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.CLOSED)


def test_temperature_trips_at_once_and_vetoes_probing_until_it_recovered() -> None:
    scene = Scene()
    scene.ticks(10)
    scene.gpu_temperature = 92
    scene.tick()
    assert scene.breaker().reason is RejectReason.GPU_TEMPERATURE
    scene.ticks(200)
    assert scene.breaker().state is BreakerState.OPEN
    scene.gpu_temperature = 82  # below the threshold, above recover_below
    scene.ticks(60)
    assert scene.breaker().state is BreakerState.OPEN
    scene.gpu_temperature = 60
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.CLOSED)


def test_a_missing_gpu_is_told_as_blind_and_trips_nothing() -> None:
    scene = Scene()
    scene.ticks(10)
    scene.gpu_temperature = None
    scene.ticks(60)
    assert scene.breaker().state is BreakerState.CLOSED
    told = [m.message for d in scene.decisions for m in d.outbox]
    assert {(m.event, m.reason) for m in told} == {("open", "blind")}
    assert len(told) == 2  # one per channel


def test_error_ratio_needs_twenty_verdicts() -> None:
    scene = Scene()
    scene.ticks(12)
    engine = scene.engines["e0"]
    engine.failure += 10
    scene.tick()
    assert scene.breaker().state is BreakerState.CLOSED
    engine.failure += 10
    scene.tick()
    assert scene.breaker().reason is RejectReason.ERROR_RATIO


def test_neutral_outcomes_do_not_exist_for_the_breaker() -> None:
    scene = Scene()
    for _ in range(100):
        scene.engines["e0"].success += 3
        scene.tick()
    assert scene.breaker().state is BreakerState.CLOSED


def test_three_failed_batches_trip_and_do_not_veto_the_way_back() -> None:
    scene = Scene()
    scene.ticks(5)
    engine = scene.engines["e0"]
    engine.failed_batches, engine.failure = 3, 3
    scene.tick()
    assert scene.breaker().reason is RejectReason.FAILED_BATCHES
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.CLOSED)


@pytest.mark.parametrize("exit_state", [ProcessState.CRASHED, ProcessState.FAILED])
def test_a_dead_process_trips(exit_state: ProcessState) -> None:
    scene = Scene()
    scene.ticks(5)
    scene.engines["e0"].process = exit_state
    decision = scene.tick()
    assert reject(decision) == 100
    assert decision.desired.pools[0].reason is RejectReason.ENGINE_DEAD


def test_a_replaced_process_is_a_crash_even_if_nobody_saw_it_down() -> None:
    scene = Scene()
    scene.ticks(5)
    engine = scene.engines["e0"]
    engine.pid, engine.last_exit_asked, engine.ready_at = 101, False, scene.at
    scene.tick()
    assert scene.breaker().reason is RejectReason.ENGINE_DEAD
    assert scene.breaker().openings == 1
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.CLOSED)


@pytest.mark.parametrize("asked", [True, None], ids=["restart by order", "down and up again"])
def test_a_process_replaced_on_request_is_no_crash(asked: bool | None) -> None:
    scene = Scene()
    scene.ticks(5)
    scene.engines["e0"].pid, scene.engines["e0"].last_exit_asked = 101, asked
    scene.ticks(20)
    assert transitions(scene.decisions) == []


def test_errors_that_turn_out_to_be_a_death_are_called_one() -> None:
    scene = Scene()
    scene.ticks(12)
    engine = scene.engines["e0"]
    engine.failure += 30
    scene.tick()
    assert scene.breaker().reason is RejectReason.ERROR_RATIO
    engine.process, engine.pid, engine.last_exit_asked, engine.ready_at = ProcessState.STARTING, 101, False, None
    decision = scene.tick()
    assert decision.desired.pools[0].reason is RejectReason.ENGINE_DEAD
    assert [(e.action, e.reason) for e in decision.journal if e.kind == "intent"] == [("refuse", "engine_dead")]


def test_a_first_start_is_no_incident() -> None:
    scene = Scene()
    scene.engines["e0"].process = ProcessState.STARTING
    scene.ticks(60)
    scene.engines["e0"].process = ProcessState.READY
    scene.ticks(60)
    assert transitions(scene.decisions) == []


def test_a_stop_on_request_is_no_incident() -> None:
    scene = Scene()
    scene.ticks(5)
    for state in (ProcessState.DRAINING, ProcessState.STOPPED, ProcessState.STARTING):
        scene.engines["e0"].process = state
        scene.ticks(5)
    scene.engines["e0"].process, scene.engines["e0"].pid = ProcessState.READY, 300
    scene.ticks(5)
    assert transitions(scene.decisions) == []


def test_one_bad_engine_of_two_leaves_rotation_and_the_pool_stays() -> None:
    scene = Scene(engines={"e0": EngineScene(), "e1": EngineScene(name="e1", pid=2, gpus=())})
    scene.ticks(5)
    hang(scene)
    decision = scene.tick_until(lambda d: scene.breaker().state is BreakerState.OPEN)
    assert reject(decision) == 0
    assert weights(decision) == {"e0": (100, True), "e1": (100, False)}
    hang(scene, "e1")
    decision = scene.tick_until(lambda d: scene.breaker("e1").state is BreakerState.OPEN)
    assert reject(decision) == 100


def test_a_ramping_engine_beside_a_good_one_gets_its_share_of_weight() -> None:
    scene = Scene(engines={"e0": EngineScene(), "e1": EngineScene(name="e1", pid=2, gpus=())})
    scene.ticks(5)
    scene.gpu_temperature = 92
    scene.tick()
    scene.gpu_temperature = 60
    decision = scene.tick_until(lambda d: weights(d)["e0"] == (10, False))
    assert reject(decision) == 0


def test_external_engines_are_only_observed() -> None:
    scene = Scene(engines={"e0": EngineScene(managed=False, process=ProcessState.UNKNOWN, pid=0)})
    scene.ticks(5)
    hang(scene)
    decision = scene.tick_until(lambda d: scene.breaker().state is BreakerState.OPEN)
    assert reject(decision) == 0
    assert dict(decision.outbox[0].message.facts)["done automatically"] == "nothing: observe only"


def test_an_unhealthy_external_engine_can_come_back_without_a_restart() -> None:
    scene = Scene(
        policy=replace(POLICY, mode="act"),
        engines={"e0": EngineScene(managed=False, process=ProcessState.UNKNOWN, pid=0)},
    )
    scene.ticks(5)
    hang(scene)
    scene.ticks(40)
    engine = scene.engines["e0"]
    engine.stepping, engine.answers_canaries = True, CanaryVerdict.SUCCESS
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.CLOSED)


def test_a_lost_canary_frees_its_slot() -> None:
    scene = Scene()
    scene.ticks(5)
    scene.gpu_temperature = 92
    scene.tick()
    scene.gpu_temperature = 60
    scene.engines["e0"].answers_canaries = None
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.HALF_OPEN)
    scene.ticks(30)
    scene.engines["e0"].answers_canaries = CanaryVerdict.SUCCESS
    scene.tick_until(lambda d: scene.breaker().state is BreakerState.CLOSED)


def test_a_restarted_guard_continues_the_incident_and_asks_for_the_restart_again() -> None:
    """Between commit and act the guard may die: the next one repeats what is not recorded as done."""
    scene = Scene()
    scene.ticks(30)
    hang(scene)
    scene.tick_until(lambda d: any(isinstance(e, RestartEngine) for e in d.effects))
    scene.memory = Memory()
    decision = scene.tick_until(lambda d: any(isinstance(e, RestartEngine) for e in d.effects), most=10)
    assert not [e for e in decision.journal if e.action == "restart"], "the budget is charged once"
    assert [e.incident_id for e in decision.effects if isinstance(e, SaveContexts)] == [scene.state.incidents["e0"].id]


def test_hang_verdict_is_unknown_without_gateway_counts() -> None:
    scene = Scene()
    scene.ticks(5)
    hang(scene)
    scene.engines["e0"].answers_canaries = CanaryVerdict.NEUTRAL
    scene.engines["e0"].in_flight = None
    scene.ticks(20)
    assert scene.memory.engines["e0"].hang.verdict is HangVerdict.UNKNOWN
    assert scene.breaker().state is BreakerState.CLOSED


def test_open_times_double_and_are_capped() -> None:
    from sre.breaker.machine import open_seconds

    settings = policy().half_open
    assert [open_seconds("e", k, settings) for k in (1, 2, 3, 6, 60)] == [30, 60, 120, 600, 600]
