"""The cost model against the reference curves G1 to G5."""

from __future__ import annotations

import pytest

from sre.simulator.cost import G1_FIXED_OVER_DECODE, KV_REFERENCE_TOKENS, CostModel, Prefill, scheduling_share
from sre.simulator.host_load import host_load
from sre.simulator.scheduler import Limits, Request, Scheduler


@pytest.fixture
def cost() -> CostModel:
    return CostModel()


def decode(cost: CostModel, batch: int) -> float:
    return cost.step_seconds(batch, batch * KV_REFERENCE_TOKENS, [])


def test_g1_throughput_at_batch_8_is_3_2_times_that_at_batch_1(cost: CostModel) -> None:
    assert 8 / decode(cost, 8) / (1 / decode(cost, 1)) == pytest.approx(3.2)


def test_g1_latency_rises_by_47_percent_where_the_rest_does_not_grow_with_the_batch(cost: CostModel) -> None:
    fixed = G1_FIXED_OVER_DECODE * 100 * decode(cost, 1)
    ratio = cost.request_seconds(8, 100, fixed) / cost.request_seconds(1, 100, fixed)
    assert ratio == pytest.approx(1.47, abs=0.01)


def test_g1_latency_rises_by_more_when_the_prompts_are_computed_on_the_same_gpu(cost: CostModel) -> None:
    """Documents what the figures cannot be together: with prefill in the batch + 47 % is out of reach."""

    def slowest(batch: int) -> float:
        scheduler = Scheduler(Limits(prefix_caching=False), cost)
        requests = [Request(key, 2048, 16, arrived_at=0.0) for key in range(batch)]
        for request in requests:
            scheduler.add(request)
        now = 0.0
        while (step := scheduler.begin_step(now)) is not None:
            now += step.seconds
            scheduler.finish_step(step)
        return now

    assert slowest(8) / slowest(1) > 2


def test_g2_each_request_beyond_8_adds_15_percent_of_the_kv_read_latency(cost: CostModel) -> None:
    def read(batch: int) -> float:
        return cost.kv_read_seconds(batch, batch * KV_REFERENCE_TOKENS)

    assert read(8) == read(1)
    for batch in (9, 16, 64):
        assert read(batch) / read(8) == pytest.approx(1 + 0.15 * (batch - 8))


def test_g3_efficiency_peaks_at_batch_4_above_90_percent(cost: CostModel) -> None:
    efficiency = {batch: cost.efficiency(batch) for batch in range(1, 257)}
    assert max(efficiency, key=lambda batch: efficiency[batch]) == 4
    assert efficiency[4] >= 0.9


def test_g3_scheduling_share_grows_from_3_to_12_percent_beyond_batch_4() -> None:
    shares = [scheduling_share(batch) for batch in range(1, 257)]
    assert shares[:4] == [0.03] * 4
    assert shares[-1] == pytest.approx(0.12)
    assert shares == sorted(shares)


def test_g4_a_32k_prefill_takes_800_ms_in_one_step(cost: CostModel) -> None:
    assert cost.step_seconds(0, 0, [Prefill(32768, 0)]) == pytest.approx(0.8)


def test_g4_chunks_of_256_tokens_bound_the_step(cost: CostModel) -> None:
    steps = [
        cost.step_seconds(8, 8 * KV_REFERENCE_TOKENS, [Prefill(256, position)]) for position in range(0, 32768, 256)
    ]
    assert max(steps) < 0.05


def test_others_wait_for_a_32k_prefill_unless_it_is_chunked(cost: CostModel) -> None:
    def longest_gap(limits: Limits) -> float:
        scheduler = Scheduler(limits, cost)
        scheduler.add(Request(1, 16, 200))
        now, gap, arrived = 0.0, 0.0, False
        while (step := scheduler.begin_step(now)) is not None:
            now += step.seconds
            if any(progress.request.id == 1 for progress in scheduler.finish_step(step)):
                gap = max(gap, step.seconds)
            if not arrived:
                arrived = True
                scheduler.add(Request(2, 32768, 1, arrived_at=now))
        return gap

    assert 0.75 < longest_gap(Limits(chunked_prefill=False)) < 0.95
    assert longest_gap(Limits(max_num_batched_tokens=256)) < 0.05


def test_steps_only_grow_with_work(cost: CostModel) -> None:
    steps = [decode(cost, batch) for batch in range(1, 257)]
    assert steps == sorted(steps)
    assert cost.step_seconds(0, 0, []) == 0.0
    assert cost.step_seconds(8, 8 * 8192, []) > decode(cost, 8)


def test_g5_both_ends() -> None:
    low, high = host_load(16), host_load(128)
    assert (low.gpu_memory_bytes, high.gpu_memory_bytes) == (48 * 10**9, 68 * 10**9)
    assert high.gpu_memory_bytes / low.gpu_memory_bytes == pytest.approx(1.42, abs=0.005)
    assert [low.disk_latency_seconds, high.disk_latency_seconds] == pytest.approx([0.003, 0.089])
    assert [low.weight_load_share, high.weight_load_share] == pytest.approx([0.05, 0.35])
    assert high.network_bits_per_second == pytest.approx(8e9)
    assert [low.kv_hit_factor, high.kv_hit_factor] == pytest.approx([1, 0.82])
    assert [low.softirq_factor, high.softirq_factor] == pytest.approx([1, 3.1])


def test_g5_rises_between_the_ends_and_holds_outside() -> None:
    memory = [host_load(batch).gpu_memory_bytes for batch in range(16, 129)]
    assert memory == sorted(memory)
    assert host_load(0) == host_load(16)
    assert host_load(500) == host_load(128)
