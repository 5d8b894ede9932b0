"""Attribution: the resource that truly binds is named, and nothing is named where none does."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

import pytest

from sre.gate.bottleneck import Attribution, attribute
from sre.gate.host_signals import ALL_PROCESSES
from sre.gate.knee import Knee
from sre.gate.result import StageResult
from sre.gate.stages import Calibration, Resource, ResourceUse, StageKind, StagePlan, StageSignals
from sre.gate.summary import summarize
from sre.simulator.capacity import Bound, Kind, capacity
from sre.simulator.scheduler import Limits
from tests.gate.diagnosis.queueing import KIND, Service, Station, gate
from tests.support.virtual_gate import VirtualTarget, plan, serve

WATCHED = (Resource.STORAGE, Resource.NETWORK, Resource.COMPUTE, Resource.GPU_MEMORY_BANDWIDTH, Resource.CPU)
UNITS = {
    Resource.STORAGE: ("MB/s", 3500.0),
    Resource.NETWORK: ("Gbit/s", 10.0),
    Resource.COMPUTE: ("TFLOP/s", 312.0),
    Resource.GPU_MEMORY_BANDWIDTH: ("GB/s", 2039.0),
    Resource.CPU: ("", None),
}
RATES = (15.0, 75.0, 150.0)
CASES = 10


def service(binding: Resource | None, seed: int, *, others: float = 0.8) -> Service:
    """A service in which ``binding`` binds, and the others have at most so much of its demand."""
    chance = random.Random(f"{binding}/{seed}")
    capacity_rps = chance.uniform(45, 130)
    stations = {}
    for resource in chance.sample(WATCHED, len(WATCHED)):
        share = 1.0 if resource is binding else chance.uniform(0.05, others)
        servers = chance.choice((1, 2, 4)) if resource is Resource.CPU else 1
        idle = chance.choice((0.0, chance.uniform(0.02, 0.15)))
        unit, most = UNITS[resource]
        stations[resource] = Station(servers * (1 - idle) * share / capacity_rps, servers, idle, unit, most)
    return Service(stations)


def found(binding: Resource, seed: int) -> Attribution:
    stages, knee = gate(service(binding, seed), seed=seed, rates=RATES)
    return attribute(stages, knee)


@pytest.mark.parametrize("resource", WATCHED, ids=lambda one: one.value)
def test_the_resource_that_binds_is_named_in_nine_of_ten_cases(resource: Resource) -> None:
    answers = [found(resource, seed) for seed in range(CASES)]
    right = [one for one in answers if one.binding is resource and one.confirmed]
    assert len(right) >= 9, [(one.binding, one.confirmed, one.detail) for one in answers if one not in right]
    wrong = [one for one in answers if one.confirmed and one.binding is not resource]
    assert len(wrong) <= 1
    assert all(one.client_ruled_out for one in answers)


def test_a_limit_on_admission_is_explained_by_no_resource() -> None:
    for seed in range(CASES):
        free = service(None, seed, others=0.6)
        inside = sum(one.seconds for one in free.stations.values()) + 0.08
        # Enough for 70 % of what the busiest resource would allow, at most
        admitted = max(2, round(min(0.7 * free.capacity_rps, 110.0) * inside))
        capped = dataclasses.replace(free, admitted=admitted, delay_seconds=0.08)
        stages, knee = gate(capped, seed=seed, rates=RATES)
        answer = attribute(stages, knee)
        assert knee.estimate_rps is not None
        assert answer.binding is None, answer.detail
        assert not answer.confirmed
        assert "no watched resource explains the knee" in answer.detail
        assert answer.demands


@pytest.mark.parametrize("resource", WATCHED, ids=lambda one: one.value)
def test_a_binding_resource_without_a_monitor_is_not_replaced_by_another(resource: Resource) -> None:
    blind = dataclasses.replace(service(resource, 3, others=0.6), hidden=frozenset({resource}))
    stages, knee = gate(blind, seed=3, rates=RATES)
    answer = attribute(stages, knee)
    assert answer.binding is None
    assert [entry for entry in answer.unseen if entry.startswith(resource.value)] == [f"{resource.value}: no monitor"]


@pytest.mark.parametrize(
    ("resource", "limits", "kind", "bound"),
    [
        (Resource.BATCH_SLOTS, Limits(max_num_seqs=16), Kind(64, 8), Bound.SLOTS),
        (Resource.KV_CACHE, Limits(kv_cache_tokens=16_000), Kind(256, 60), Bound.KV_CACHE),
    ],
    ids=["batch_slots", "kv_cache"],
)
def test_limits_of_the_engine_are_named_as_limits(resource: Resource, limits: Limits, kind: Kind, bound: Bound) -> None:
    known = capacity(limits, [kind])
    assert known.bound is bound
    right = 0
    for seed in range(CASES):
        chance = random.Random(seed)
        mix = (dataclasses.replace(KIND[0], prompt_tokens=kind.prompt_tokens, max_tokens=kind.output_tokens),)
        target = VirtualTarget(limits, slowness=chance.uniform(0.7, 1.4))
        rate = known.requests_per_second / target.slowness
        stages = [
            engine_stage(target, plan(rate * factor, max(10.0, 400 / rate), classes=mix, seed=seed))
            for factor in (0.15, 0.7, 1.3)
        ]
        answer = attribute(stages, None)
        right += answer.binding is resource and answer.confirmed
        assert [limit.resource for limit in answer.limits][:1] == [resource]
        assert resource not in [one.resource for one in answer.demands]
    assert right >= 9


def engine_stage(target: VirtualTarget, stage: StagePlan) -> StageResult:
    served = serve(stage, target)
    return StageResult(stage, summarize(served.load), served.signals)


def test_time_in_steps_is_no_demand_of_a_batching_engine() -> None:
    """It is busy all the time at a tenth of its capacity already."""
    target = VirtualTarget(Limits(max_num_seqs=256))
    stages = [engine_stage(target, plan(rate, 10, seed=2)) for rate in (50, 300, 800, 1000)]
    answer = attribute(stages, None)
    (busy,) = [one for one in answer.demands if one.resource is Resource.ENGINE_BUSY]
    assert not busy.counts
    assert busy.why
    assert answer.binding is None


# ---- Exact cases ----------------------------------------------------------------------------------------------------


def stages_of(
    uses: Mapping[Resource, tuple[float, ...]],
    rates: tuple[float, ...] = (100, 200, 300),
    *,
    lag: float = 0.001,
    shed: int = 0,
) -> list[StageResult]:
    """Stages with these utilizations per rate; the last one saturated."""
    results = []
    for position, rate in enumerate(rates):
        served = serve(plan(rate, 2), VirtualTarget())
        summary = dataclasses.replace(
            summarize(served.load), completed_rps=rate, saturated=position == len(rates) - 1,
            lag_p99_seconds=lag, shed=shed,
        )  # fmt: skip
        shown = tuple(
            ResourceUse(resource, values[position], resource in (Resource.KV_CACHE, Resource.BATCH_SLOTS), "meter")
            for resource, values in uses.items()
        )
        results.append(StageResult(plan(rate, 2), summary, StageSignals(2.0, shown, {"network": "no link speed"})))
    return results


def test_demand_ceiling_and_margin_are_those_of_the_law() -> None:
    answer = attribute(stages_of({Resource.CPU: (0.3, 0.6, 0.9), Resource.STORAGE: (0.1, 0.2, 0.3)}), None)
    cpu, storage = answer.demands
    assert cpu.resource is Resource.CPU
    assert cpu.seconds_per_request == pytest.approx(0.003)
    assert cpu.ceiling_rps == pytest.approx(1000 / 3)
    assert storage.ceiling_rps == pytest.approx(1000)
    assert (answer.binding, answer.confirmed) == (Resource.CPU, True)
    assert answer.margin_ratio == pytest.approx(2)
    assert answer.unseen == ("network: no link speed",)


def test_a_ceiling_15_percent_beside_the_knee_confirms_and_further_does_not() -> None:
    uses = {Resource.CPU: (0.3, 0.6, 0.9)}
    for knee_rps, binding in ((330, Resource.CPU), (291, Resource.CPU), (285, None), (395, None)):
        knee = Knee(knee_rps - 5, knee_rps + 5, knee_rps, 5, "resolved", ())
        assert attribute(stages_of(uses), knee).binding is binding, knee_rps


@pytest.mark.parametrize(("half", "confirmed"), [(40, True), (60, False), (290, False)])
def test_a_knee_known_only_roughly_confirms_nothing(half: float, confirmed: bool) -> None:
    uses = {Resource.CPU: (0.3, 0.6, 0.9)}  # its ceiling: 333
    answer = attribute(stages_of(uses), Knee(330 - half, 330 + half, 330, half, "too_many_stages", ()))
    assert (answer.binding, answer.confirmed) == (Resource.CPU, confirmed)
    assert ("confirms nothing" in answer.detail) is not confirmed


def test_use_without_requests_is_taken_out_of_demand_and_capacity() -> None:
    answer = attribute(stages_of({Resource.CPU: (0.4, 0.6, 0.8)}), None)
    (cpu,) = answer.demands
    assert cpu.idle_utilization == pytest.approx(0.2)
    assert cpu.seconds_per_request == pytest.approx(0.002)
    assert cpu.ceiling_rps == pytest.approx(400)


def test_the_client_is_ruled_out_first() -> None:
    uses = {Resource.CPU: (0.33, 0.66, 0.99)}
    late = attribute(stages_of(uses, lag=0.05), None)
    shed = attribute(stages_of(uses, shed=3), None)
    slow = attribute(
        stages_of(uses), None, calibration=Calibration(300, 600, 0.05, 0.06, 0.03, 0.4, 1, True, "TTFT floor 50 ms")
    )
    for answer, why in ((late, "50 ms late"), (shed, "did not send 3"), (slow, "TTFT floor 50 ms")):
        assert answer.binding is None
        assert not answer.client_ruled_out
        assert why in answer.detail


def test_a_demand_that_explains_the_knee_comes_before_a_limit_that_filled_up_behind_it() -> None:
    uses = {Resource.COMPUTE: (0.32, 0.65, 0.98), Resource.BATCH_SLOTS: (0.1, 0.4, 1.0)}
    answer = attribute(stages_of(uses), None)
    assert answer.binding is Resource.COMPUTE
    assert [limit.resource for limit in answer.limits] == [Resource.BATCH_SLOTS]


def test_a_limit_that_was_reached_and_held_is_not_confirmed() -> None:
    answer = attribute(stages_of({Resource.BATCH_SLOTS: (0.2, 0.95, 1.0), Resource.CPU: (0.1, 0.2, 0.3)}), None)
    assert (answer.binding, answer.confirmed) == (Resource.BATCH_SLOTS, False)
    assert answer.limits[0].stage == "200qps"


def test_a_limit_reached_right_at_the_knee_is_confirmed_though_that_stage_held() -> None:
    stages = stages_of({Resource.BATCH_SLOTS: (0.2, 0.95, 1.0), Resource.CPU: (0.1, 0.2, 0.3)}, (100, 200, 240))
    answer = attribute(stages, Knee(200, 220, 210, 10, "resolved", ()))
    assert (answer.binding, answer.confirmed) == (Resource.BATCH_SLOTS, True)


def test_what_one_stage_showed_is_not_unseen() -> None:
    stages = stages_of({Resource.CPU: (0.3, 0.6, 0.9)})
    blind = dataclasses.replace(stages[0], signals=StageSignals(2.0, unseen={"cpu": "no time passed"}))
    assert attribute([blind, *stages[1:]], None).unseen == ("network: no link speed",)


def test_without_a_knee_the_lowest_ceiling_is_named_but_not_confirmed() -> None:
    stages = stages_of({Resource.CPU: (0.1, 0.2, 0.3)})
    held = [
        dataclasses.replace(one, summary=dataclasses.replace(one.summary, saturated=False))
        for one in stages
        if one.summary
    ]
    answer = attribute(held, None)
    assert (answer.binding, answer.confirmed, answer.knee_rps) == (Resource.CPU, False, None)
    assert "knee was not reached" in answer.detail


def test_a_batch_above_64_looks_at_storage_first() -> None:
    uses = {Resource.CPU: (0.335, 0.67, 1.0), Resource.STORAGE: (0.32, 0.64, 0.96)}
    for running, first in ((40.0, Resource.CPU), (80.0, Resource.STORAGE)):
        stages = [
            dataclasses.replace(one, signals=dataclasses.replace(one.signals, engine={"running_mean": running}))
            for one in stages_of(uses)
            if one.signals
        ]
        assert attribute(stages, None).binding is first
    blind = [
        dataclasses.replace(one, signals=dataclasses.replace(one.signals, engine={"running_mean": 80.0}))
        for one in stages_of({Resource.CPU: (0.335, 0.67, 1.0)})
        if one.signals
    ]
    assert "look at storage first, which was not seen" in attribute(blind, None).detail


def test_the_sentence_says_how_much_of_how_much_and_what_it_rests_on() -> None:
    stages = [
        dataclasses.replace(
            one,
            signals=StageSignals(
                2.0, (ResourceUse(Resource.STORAGE, use, False, "/proc/diskstats nvme0n1", use * 3500, "MB/s", 3500.0),)
            ),
        )
        for one, use in zip(stages_of({}), (0.3, 0.6, 0.9), strict=True)
    ]
    answer = attribute(stages, None)
    assert answer.detail == (
        "storage binds: 90% used at 300qps, 3150 of 3500 MB/s; 3 ms of it per request, so at most 333.3 requests/s; "
        "rests on /proc/diskstats nvme0n1, and the knee is at 300; no other resource could be compared"
    )


def test_nothing_measured_is_said() -> None:
    answer = attribute([StageResult(plan(100), None, None, skipped="given up")], None)
    assert (answer.binding, answer.confirmed, answer.demands) == (None, False, ())
    answer = attribute([StageResult(plan(100, kind=StageKind.WARM_UP), None, None)], None)
    assert answer.binding is None


def shared_cpu(stage: StageResult, clients: float) -> StageResult:
    """The CPU as /proc/stat tells it, of two cores; ``clients``: share of what is used that this client took."""
    assert stage.summary is not None
    assert stage.signals is not None
    (cpu,) = (use for use in stage.signals.uses if use.resource is Resource.CPU)
    spent = clients * cpu.utilization * 2 * stage.signals.seconds
    seen = dataclasses.replace(cpu, source=ALL_PROCESSES, amount=2 * cpu.utilization, unit="cores", capacity=2.0)
    others = tuple(use for use in stage.signals.uses if use is not cpu)
    return dataclasses.replace(
        stage,
        signals=dataclasses.replace(stage.signals, uses=(seen, *others)),
        summary=dataclasses.replace(stage.summary, client_cpu_seconds_per_1000=1000 * spent / stage.summary.sent),
    )


def test_cpu_of_all_processes_is_said_to_be_that_less_what_the_client_took() -> None:
    stages, knee = gate(service(Resource.CPU, 1, others=0.4), seed=1, rates=RATES)
    whole = attribute([shared_cpu(stage, 0.0) for stage in stages], knee)
    assert (whole.binding, whole.confirmed) == (Resource.CPU, True)
    assert "all processes of this machine, this client among them" in whole.detail
    assert "the target's own share is not known" in whole.detail
    less = attribute([shared_cpu(stage, 0.02) for stage in stages], knee)
    assert (less.binding, less.confirmed) == (Resource.CPU, True)
    assert "all processes of this machine but this client, whose 2% is taken out" in less.detail


def test_a_machine_that_client_and_target_fill_together_is_no_bottleneck_of_the_target() -> None:
    stages, knee = gate(service(Resource.CPU, 1, others=0.4), seed=1, rates=RATES)
    half = attribute([shared_cpu(stage, 0.5) for stage in stages], knee)
    assert not half.confirmed
    assert half.binding is not Resource.CPU
    assert "with this client the CPU of this machine was" in half.detail
    assert half.detail.endswith("put the client on another one")
