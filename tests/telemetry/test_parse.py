"""What one /metrics text is reduced to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.adapters.engine_telemetry import parse
from sre.metrics import signals
from sre.signals.types import Reading, Seen

REAL = (Path(__file__).parent / "data" / "vllm-0.32.0.metrics.txt").read_bytes()
"""Scraped from vLLM 0.32.0 (CPU build) after three completions of 8 tokens."""

RANK = '{engine="0",model_name="m"}'


def steps(text: str) -> Reading:
    return parse(text.encode(), 5.0).steps_total


def signal(text: str, name: str) -> Reading:
    return parse(text.encode(), 5.0).signals[name]


def test_real_vllm_text_gives_every_signal() -> None:
    sample = parse(REAL, 5.0)
    assert sample.steps_total == Reading(24.0, 5.0)
    assert {name: reading.value for name, reading in sample.signals.items()} == {
        signals.KV_CACHE_USAGE_RATIO: 0.0,
        signals.REQUESTS_RUNNING: 0.0,
        signals.REQUESTS_WAITING: 0.0,
        signals.PROMPT_TOKENS_TOTAL: 21.0,
        signals.GENERATION_TOKENS_TOTAL: 24.0,
        signals.PREEMPTIONS_TOTAL: 0.0,
        signals.QUEUE_SECONDS_TOTAL: 0.00013420699997368501,
        signals.QUEUED_REQUESTS_TOTAL: 3.0,
    }
    assert not sample.asleep


def test_ranks_are_summed_and_the_fullest_cache_counts() -> None:
    text = "".join(
        f'vllm:iteration_tokens_total_count{{engine="{rank}"}} {value}\n'
        f'vllm:num_requests_waiting{{engine="{rank}"}} {value}\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}"}} 0.{value}\n'
        for rank, value in ((0, 3), (1, 5))
    )
    assert steps(text).value == 8.0
    assert signal(text, signals.REQUESTS_WAITING).value == 8.0
    assert signal(text, signals.KV_CACHE_USAGE_RATIO).value == 0.5


def test_the_label_engine_is_not_needed() -> None:
    assert steps('vllm:iteration_tokens_total_count{model_name="m"} 7\n').value == 7.0
    assert steps("vllm:iteration_tokens_total_count 7\n").value == 7.0


def test_the_old_name_of_the_cache_gauge_counts_only_where_the_new_one_is_absent() -> None:
    old, new = f"vllm:gpu_cache_usage_perc{RANK} 0.7\n", f"vllm:kv_cache_usage_perc{RANK} 0.2\n"
    assert signal(old, signals.KV_CACHE_USAGE_RATIO).value == 0.7
    assert signal(old + new, signals.KV_CACHE_USAGE_RATIO).value == 0.2


def test_an_absent_metric_is_absent_and_never_zero() -> None:
    sample = parse(b"# nothing of interest\nup 1\n", 5.0)
    assert {reading.seen for reading in (sample.steps_total, *sample.signals.values())} == {Seen.ABSENT}
    assert sample.steps_total.value is None


def test_an_empty_answer_is_absent() -> None:
    assert parse(b"", 5.0).steps_total.seen is Seen.ABSENT


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "twelve", ""])
def test_what_is_no_count_is_invalid(value: str) -> None:
    assert steps(f"vllm:iteration_tokens_total_count{RANK} {value}\n").seen is Seen.INVALID


@pytest.mark.parametrize("value", ["NaN", "1.2", "-0.1"])
def test_what_is_no_ratio_is_invalid(value: str) -> None:
    assert signal(f"vllm:kv_cache_usage_perc{RANK} {value}\n", signals.KV_CACHE_USAGE_RATIO).seen is Seen.INVALID


def test_one_nan_rank_makes_the_sum_invalid_and_not_smaller() -> None:
    text = 'vllm:iteration_tokens_total_count{engine="0"} 5\nvllm:iteration_tokens_total_count{engine="1"} NaN\n'
    assert steps(text).seen is Seen.INVALID


def test_opposite_infinities_are_invalid() -> None:
    text = 'vllm:iteration_tokens_total_count{engine="0"} +Inf\nvllm:iteration_tokens_total_count{engine="1"} -Inf\n'
    assert steps(text).seen is Seen.INVALID


def test_a_broken_line_spoils_only_its_own_signal() -> None:
    text = f"vllm:iteration_tokens_total_count{{engine= 5\nvllm:num_requests_waiting{RANK} 4\n"
    assert steps(text).seen is Seen.INVALID
    assert signal(text, signals.REQUESTS_WAITING).value == 4.0


def test_names_that_begin_alike_are_not_mixed_up() -> None:
    text = (
        f"vllm:iteration_tokens_total_created{RANK} 1.7e9\n"
        f'vllm:num_requests_waiting_by_reason{{reason="capacity"}} 9\n'
        f"vllm:prompt_tokens_cached_total{RANK} 9\n"
    )
    sample = parse(text.encode(), 5.0)
    assert sample.steps_total.seen is Seen.ABSENT
    assert sample.signals[signals.REQUESTS_WAITING].seen is Seen.ABSENT
    assert sample.signals[signals.PROMPT_TOKENS_TOTAL].seen is Seen.ABSENT


@pytest.mark.parametrize(
    ("awake", "offloaded", "discarded", "asleep"),
    [
        ("1", "0", "0", False),
        ("0", "1", "0", True),
        ("0", "0", "1", True),
        ("0", "1", "1", True),
        ("NaN",) * 3 + (False,),
    ],
)
def test_sleep_is_read_from_its_states(awake: str, offloaded: str, discarded: str, asleep: bool) -> None:
    text = "".join(
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{state}"}} {value}\n'
        for state, value in (("awake", awake), ("weights_offloaded", offloaded), ("discard_all", discarded))
    )
    assert parse(text.encode(), 5.0).asleep is asleep


def test_an_engine_without_sleep_states_is_awake() -> None:
    assert not parse(b"", 5.0).asleep


@given(st.binary(max_size=300))
def test_no_bytes_raise(noise: bytes) -> None:
    parse(noise, 5.0)


@given(
    st.text(max_size=60), st.sampled_from(sorted(signals.ENGINE_SOURCES[0].metrics + signals.ENGINE_SOURCES[1].metrics))
)
def test_no_text_after_a_wanted_name_raises_or_invents_a_number_beyond_its_range(noise: str, name: str) -> None:
    sample = parse(f"{name}{{{noise}\n{name} {noise}\n".encode("utf-8", "replace"), 5.0)
    kv_cache = sample.signals[signals.KV_CACHE_USAGE_RATIO].value
    assert kv_cache is None or 0.0 <= kv_cache <= 1.0
    assert sample.steps_total.value is None or sample.steps_total.value >= 0.0


@given(st.integers(min_value=0, max_value=len(REAL)))
def test_a_text_cut_anywhere_gives_the_true_value_or_none_at_a_line_end(cut: int) -> None:
    whole_lines = REAL[: REAL[:cut].rfind(b"\n") + 1]
    assert parse(whole_lines, 5.0).steps_total.value in {None, 24.0}
