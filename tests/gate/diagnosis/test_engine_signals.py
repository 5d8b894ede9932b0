"""Pages of engines, reduced and compared; old releases, several engines, restarts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sre.gate.engine_signals import EnginePage, combine, difference, engine_page, engine_uses
from sre.gate.stages import Resource
from sre.metrics.exposition import parse_exposition

DATA = Path(__file__).parents[2] / "monitoring" / "data"
RELEASES = ("0.8", "0.11", "0.19", "0.32")


def recorded(release: str, change: tuple[str, str] = ("", "")) -> EnginePage:
    text = (DATA / f"vllm-{release}.metrics.txt").read_text()
    return engine_page(parse_exposition(text.replace(*change).encode() if change[0] else text.encode()))


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_is_read_under_its_own_names(release: str) -> None:
    page = recorded(release)
    assert page.is_engine
    assert page.gauges["running"] == 12
    assert page.gauges["kv_usage"] == 0.4375
    assert page.sums["queue_seconds_mean"][0] == 72
    assert {"generation_tokens", "prompt_tokens", "preemptions", "prefix_hits", "requests_finished", "steps"} <= set(
        page.counters
    )
    assert ("block_size", "16") in page.config


def test_rays_spelling_is_understood() -> None:
    assert recorded("0.32", ("vllm:", "ray_vllm_")) == recorded("0.32")


def test_ranks_of_a_page_are_summed_and_the_fullest_cache_counts() -> None:
    text = (
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        'vllm:generation_tokens_total{engine="0"} 10\nvllm:generation_tokens_total{engine="1"} 20\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.9\n'
        'vllm:num_requests_waiting{engine="0"} NaN\n'
    )
    page = engine_page(parse_exposition(text.encode()))
    assert (page.gauges, page.counters) == ({"running": 7, "kv_usage": 0.9}, {"generation_tokens": 30})


def test_a_page_of_something_else_is_no_engine() -> None:
    assert not engine_page(parse_exposition(b"node_load1 0.5\n")).is_engine


def test_means_are_those_of_the_stage() -> None:
    before = EnginePage({"generation_tokens": 100}, {}, {"queue_seconds_mean": (50.0, 100.0)})
    after = EnginePage({"generation_tokens": 400}, {}, {"queue_seconds_mean": (51.0, 110.0)})
    found = combine([difference(before, after)], [])
    assert found == {"generation_tokens": 300, "queue_seconds_mean": pytest.approx(0.1)}
    idle = combine([difference(after, after)], [])
    assert idle == {"generation_tokens": 0}


def test_several_engines_add_up() -> None:
    zero = EnginePage({"requests_finished": 0, "flops_per_gpu": 0}, {}, {"e2e_seconds_mean": (0, 0)})
    one = EnginePage({"requests_finished": 10, "flops_per_gpu": 2e12}, {}, {"e2e_seconds_mean": (10, 10)})
    two = EnginePage({"requests_finished": 30, "flops_per_gpu": 4e12}, {}, {"e2e_seconds_mean": (60, 30)})
    gauges = [EnginePage(gauges={"running": 4, "kv_usage": 0.5}), EnginePage(gauges={"running": 8, "kv_usage": 0.1})]
    more = [EnginePage(gauges={"running": 6, "kv_usage": 0.7}), EnginePage(gauges={"running": 8, "kv_usage": 0.1})]
    found = combine([difference(zero, one), difference(zero, two)], [gauges, more])
    assert found == {
        "requests_finished": 40, "flops_per_gpu": 3e12, "e2e_seconds_mean": 1.75,
        "running_mean": 13, "kv_usage_mean": pytest.approx(0.6), "kv_usage_max": 0.7,
    }  # fmt: skip


@pytest.mark.parametrize(
    "after",
    [
        EnginePage({"generation_tokens": 5}, {}, {"e2e_seconds_mean": (1, 1)}, 100),
        EnginePage({"generation_tokens": 5000}, {}, {"e2e_seconds_mean": (1, 1)}, 100),
        EnginePage({"generation_tokens": 5000}, {}, {"e2e_seconds_mean": (90, 90)}, 160),
    ],
    ids=["counter", "histogram", "start time"],
)
def test_an_engine_started_again_counts_since_then(after: EnginePage) -> None:
    before = EnginePage({"generation_tokens": 1000}, {}, {"e2e_seconds_mean": (80, 80)}, 100)
    delta = difference(before, after)
    assert delta.restarted
    assert delta.counters == after.counters
    assert not difference(before, dataclasses.replace(before, born=100.3)).restarted


def test_a_counter_that_appears_with_its_first_event_was_zero() -> None:
    assert difference(EnginePage(), EnginePage({"admission_rejections": 4})).counters == {"admission_rejections": 4}


def test_work_estimates_are_shares_of_the_peak() -> None:
    engine = {"flops_per_gpu": 3e15, "read_bytes_per_gpu": 8e12, "write_bytes_per_gpu": 2e12, "running_mean": 32.0}
    uses, unseen = engine_uses(engine, 30, batch_slots=64, flops_per_second=312e12, memory_bytes_per_second=2e12)
    found = {use.resource: use for use in uses}
    assert found[Resource.COMPUTE].utilization == pytest.approx(100 / 312)
    assert found[Resource.COMPUTE].amount == pytest.approx(100)
    assert found[Resource.COMPUTE].unit == "TFLOP/s"
    assert found[Resource.GPU_MEMORY_BANDWIDTH].utilization == pytest.approx(1 / 6)
    assert found[Resource.BATCH_SLOTS].utilization == 0.5
    assert set(unseen) == {"kv_cache"}


def pages(*gauges: tuple[float, float]) -> list[list[EnginePage]]:
    return [[EnginePage(gauges={"running": running, "waiting": waiting})] for running, waiting in gauges]


def test_a_batch_that_stands_while_others_wait_shows_its_slots() -> None:
    def used(*gauges: tuple[float, float]) -> float | None:
        uses, unseen = engine_uses(
            combine([], pages(*gauges)), 10, batch_slots=None, flops_per_second=None, memory_bytes_per_second=None
        )
        assert ("batch_slots" in unseen) is not any(use.resource is Resource.BATCH_SLOTS for use in uses)
        return next((use.utilization for use in uses if use.resource is Resource.BATCH_SLOTS), None)

    assert used((10, 0), *[(32, 9)] * 8, (31, 2)) == pytest.approx((8 * 32 + 31) / 9 / 32)
    assert used(*[(8, 0)] * 24, *[(32, 9)] * 8) == pytest.approx(14 / 32)  # reached for moments
    assert used(*[(32, 0)] * 10) is None  # nobody waits
    assert used(*[(20 + swing, 50) for swing in range(10)]) is None  # it swings
    assert used(*[(32, 9)] * 3) is None  # too short a look


def test_requests_that_end_with_a_step_were_in_its_batch() -> None:
    delta = difference(
        EnginePage({"requests_finished": 0, "steps": 0}), EnginePage({"requests_finished": 800, "steps": 200})
    )
    engine = combine([delta], pages(*[(28, 9)] * 8))
    assert engine["ending_per_step"] == 4
    assert "running_max" not in engine  # 4 of 28 swing: a plateau says nothing
    uses, _ = engine_uses(engine, 10, batch_slots=32, flops_per_second=None, memory_bytes_per_second=None)
    (slots,) = [use for use in uses if use.resource is Resource.BATCH_SLOTS]
    assert slots.utilization == 1.0


def test_what_the_engine_does_not_tell_has_a_reason() -> None:
    uses, unseen = engine_uses(
        {"running_mean": 3.0, "flops_per_gpu": 1e12}, 10, batch_slots=None, flops_per_second=None,
        memory_bytes_per_second=1e12,
    )  # fmt: skip
    assert uses == []
    assert "sre.yaml" in unseen["batch_slots"]
    assert "gate.capacity.compute_flops_per_second" in unseen["compute"]
    assert "--enable-mfu-metrics" in unseen["gpu_memory_bandwidth"]
