"""Alerts on engines where a single scenario does not say it all: hangs seen in three ways, guards against chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from sre.monitoring.cases import alerts_of, needed
from sre.monitoring.catalogue_rules import all_groups
from sre.monitoring.model import Group
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.promtool import judge_cases, judge_values

SETTINGS = MonitoringSettings()
GROUPS = all_groups(SETTINGS)

IN_FLIGHT = 'sre_engine_requests_in_flight{job="sre",instance="g:9400",engine="%s",pool="m"}'
AGE = 'sre_engine_step_age_seconds{job="sre",instance="g:9400",engine="%s",pool="m"}'
HUNG = 'sre_engine_hung{job="sre",instance="g:9400",engine="%s",pool="m"}'
STEPS = 'vllm:iteration_tokens_total_count{job="vllm",instance="%s:8000",model_name="m",engine="0"}'
RUNNING = 'vllm:num_requests_running{job="vllm",instance="%s:8000",model_name="m",engine="0"}'
WAITING = 'vllm:num_requests_waiting{job="vllm",instance="%s:8000",model_name="m",engine="0"}'
STOPPED = "0+9x10 90x30"
"""Steps of an engine whose core stops after two and a half minutes."""
STEPPING = "0+9x40"


def rules_of(alert: str) -> list[Group]:
    return list(needed(GROUPS, [one for one in alerts_of(GROUPS) if one.name == alert]))


def firing(alert: str, folder: Path, series: dict[str, str], expected: list[str], at: str = "10m") -> None:
    """Exactly these alerts, told by their labels, fire at ``at``."""
    judged = judge_values(
        rules_of(alert),
        folder,
        series,
        {f'count without (alertstate) (ALERTS{{alertname="{alert}",alertstate="firing"}})': dict.fromkeys(expected, 1)},
        at=at,
    )
    assert judged.returncode == 0, judged.output


def hung(engine: str, node: str) -> str:
    return (
        f'{{alertname="VllmEngineHung",component="engine",dimension="request",engine="{engine}",model_name="m",'
        f'node="{node}",severity="page"}}'
    )


def idle(instance: str) -> dict[str, str]:
    """Gauges as they freeze in most hangs."""
    return {RUNNING % instance: "0x40", WAITING % instance: "0x40"}


def test_the_guard_names_the_one_engine_that_hangs(tmp_path: Path) -> None:
    series = {
        IN_FLIGHT % "e0": "3x40", AGE % "e0": "0x10 15+15x29", HUNG % "e0": "0x10 1x29",
        IN_FLIGHT % "e1": "3x40", AGE % "e1": "0x40", HUNG % "e1": "0x40",
        STEPS % "a": STOPPED, STEPS % "b": STEPPING, **idle("a"), **idle("b"),
    }  # fmt: skip
    firing("VllmEngineHung", tmp_path, series, [hung("e0", "g")])


def test_without_steps_of_the_guard_those_of_the_scrape_count(tmp_path: Path) -> None:
    """Requests in flight at the gateway, and no engine of the model steps; its gauges froze at 0."""
    series = {IN_FLIGHT % "e0": "3x40", STEPS % "a": STOPPED, **idle("a")}
    firing("VllmEngineHung", tmp_path, series, [hung("a:8000", "a")])


def test_another_engine_of_the_model_that_steps_may_have_the_requests(tmp_path: Path) -> None:
    series = {IN_FLIGHT % "e0": "3x40", STEPS % "a": STOPPED, STEPS % "b": STEPPING, **idle("a"), **idle("b")}
    firing("VllmEngineHung", tmp_path, series, [])


def test_a_request_that_has_just_come_is_no_hang(tmp_path: Path) -> None:
    """Two quiet minutes, then a request: steps are flat, but it was not in flight all along."""
    series = {IN_FLIGHT % "e0": "0x38 3x2", STEPS % "a": "90x40", **idle("a")}
    firing("VllmEngineHung", tmp_path, series, [])


def test_without_a_gateway_the_engines_own_gauges_must_do(tmp_path: Path) -> None:
    series = {STEPS % "a": STOPPED, RUNNING % "a": "2x40", WAITING % "a": "0x40"}
    firing("VllmEngineHung", tmp_path, series, [hung("a:8000", "a")])


@pytest.mark.parametrize("running", ["0x40", "2x11 0x29"])
def test_an_idle_engine_does_not_hang(running: str, tmp_path: Path) -> None:
    series = {STEPS % "a": STOPPED, RUNNING % "a": running, WAITING % "a": "0x40"}
    firing("VllmEngineHung", tmp_path, series, [])


def test_where_the_gateway_counts_none_in_flight_frozen_gauges_are_not_believed(tmp_path: Path) -> None:
    """A client that went away, a pause: the gauge stays, nobody waits."""
    series = {IN_FLIGHT % "e0": "0x40", STEPS % "a": STOPPED, RUNNING % "a": "2x40", WAITING % "a": "0x40"}
    firing("VllmEngineHung", tmp_path, series, [])


UP = 'up{job="vllm",instance="%s:8000"}'
OF_MODEL = 'vllm:num_requests_running{job="vllm",instance="%s:8000",model_name="%s",engine="0"}'


def down(model: str) -> str:
    return (
        f'{{alertname="VllmModelDown",component="engine",dimension="request",job="vllm",model_name="{model}",'
        'severity="page"}'
    )


def test_a_model_is_down_when_none_of_its_engines_answers_whatever_the_others_do(tmp_path: Path) -> None:
    """Both of ``m`` fail, one of two of ``o``."""
    series = {
        UP % "a": "1x20 0x60", UP % "b": "1x10 0x70", UP % "c": "1x80", UP % "d": "1x10 0x70",
        OF_MODEL % ("a", "m"): "1x20 stale", OF_MODEL % ("b", "m"): "1x10 stale",
        OF_MODEL % ("c", "o"): "1x80", OF_MODEL % ("d", "o"): "1x10 stale",
    }  # fmt: skip
    firing("VllmModelDown", tmp_path, series, [down("m")])
    firing("VllmModelDown", tmp_path, series, [], at="5m")


def test_a_model_stays_down_until_an_engine_of_it_answers(tmp_path: Path) -> None:
    """Not only for as long as a lookback: a page that ends by itself says that all is well."""
    series = {UP % "a": "1x20 0x2000", OF_MODEL % ("a", "m"): "1x20 stale"}
    firing("VllmModelDown", tmp_path, series, [down("m")], at="8h")


def test_a_model_that_was_taken_off_is_not_down(tmp_path: Path) -> None:
    """``a`` was given another model and then failed; of ``b`` not even the target is left."""
    series = {
        UP % "a": "1x40 0x60", OF_MODEL % ("a", "before"): "1x20 stale", OF_MODEL % ("a", "m"): "_x21 1x19 stale",
        UP % "b": "1x20 stale", OF_MODEL % ("b", "gone"): "1x20 stale",
    }  # fmt: skip
    firing("VllmModelDown", tmp_path, series, [down("m")], at="20m")


def test_a_queue_that_shrinks_does_not_grow(tmp_path: Path) -> None:
    series = {WAITING % "a": "1000-4x60"}
    firing("VllmQueueGrowing", tmp_path, series, [], at="15m")


def test_the_percentile_of_a_handful_of_requests_says_nothing(tmp_path: Path) -> None:
    bucket = 'vllm:e2e_request_latency_seconds_%s{job="vllm",instance="a:8000",model_name="m"%s}'
    series = {
        bucket % ("bucket", ',le="0.5"'): "0x60", bucket % ("bucket", ',le="0.8"'): "0+1x60",
        bucket % ("bucket", ',le="+Inf"'): "0+1x60", bucket % ("count", ""): "0+1x60",
    }  # fmt: skip
    firing("VllmLatencyHigh", tmp_path, series, [], at="15m")


def test_a_missing_metric_is_told_by_engine_and_name(tmp_path: Path) -> None:
    """One of two engines lost the KV gauge under both its names; the other has the old one."""
    present = [
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:iteration_tokens_total_count",
        "vllm:generation_tokens_total", "vllm:request_success_total", "vllm:e2e_request_latency_seconds_count",
        "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count",
    ]  # fmt: skip
    engines = [f'job="vllm",instance="{name}:8000"' for name in ("a", "b")]
    series = {f'{name}{{{engine},model_name="m"}}': "1x80" for name in present for engine in engines}
    series |= {f"up{{{engine}}}": "1x80" for engine in engines}
    series[f'vllm:gpu_cache_usage_perc{{{engines[0]},model_name="m"}}'] = "0x80"
    firing(
        "VllmMetricsMissing", tmp_path, series,
        [
            '{alertname="VllmMetricsMissing",component="engine",dimension="request",instance="b:8000",'
            'metric="vllm:kv_cache_usage_perc",node="b",severity="info"}'
        ],
        at="20m",
    )  # fmt: skip


def test_shed_requests_are_no_failures(tmp_path: Path) -> None:
    http = 'http_requests_total{job="vllm",instance="a:8000",handler="/v1/completions",method="POST",status="%s"}'
    rejected = (
        'vllm:admission_rejections_total{job="vllm",instance="a:8000",model_name="m",reason="max_num_queued_reqs"}'
    )
    series = {http % "2xx": "0+64x60", http % "5xx": "0+64x60", rejected: "0+64x60", RUNNING % "a": "4x60"}
    firing("VllmErrorRatioHigh", tmp_path, series, [], at="15m")


ODD = {
    "rarely": MonitoringSettings.model_validate(
        {
            "scrape_interval_seconds": 60,
            "matchers": {"cluster": 'a "b"'},
            "jobs": {"vllm": "v", "sre": "s"},
            "slo": {"min_bad_events": 100},
            "thresholds": {
                "kv_cache_usage_ratio": 0.2, "preemptions_per_second": 1000, "requests_waiting": 5000,
                "queue_seconds": 60, "prefix_cache_hits_ratio": 0.9, "error_ratio": 0.9, "ttft_seconds": 640,
                "inter_token_seconds": 0.025, "e2e_seconds": 1920, "engine_stuck_seconds": 0.5,
            },
        }
    ),
    "often": MonitoringSettings.model_validate(
        {
            "scrape_interval_seconds": 1,
            "vllm_version": "0.8.5",
            "custom_buckets": {"request_latency": [0.1, 0.65, 1.3, 100], "inter_token_latency": [0.01, 0.02, 0.2, 0.3]},
            "slo": {"e2e": {"threshold_seconds": 1.3}, "inter_token": {"threshold_seconds": 0.02}},
            "thresholds": {"e2e_seconds": 0.65, "queue_seconds": 0.65},
        }
    ),
}  # fmt: skip


DEPENDENT = {
    "rarely": {"VllmEngineHung", "VllmPreemptions", "VllmQueueGrowing", "VllmErrorRatioHigh", "VllmKvCacheNearlyFull"},
    "often": {"VllmEngineHung", "VllmLatencyHigh", "VllmQueueLatencyHigh", "SloItlBurn1h"},
}
"""Alerts whose cases are computed from the settings."""


@pytest.mark.parametrize("name", ODD)
def test_cases_hold_for_other_thresholds_edges_intervals_and_releases(name: str, tmp_path: Path) -> None:
    groups = all_groups(ODD[name])
    some = [one for one in alerts_of(groups) if one.name in DEPENDENT[name]]
    assert len(some) == len(DEPENDENT[name])
    judged = judge_cases(needed(groups, some), tmp_path, ODD[name])
    assert judged.returncode == 0, judged.output


def growing() -> str:
    return (
        '{alertname="VllmQueueGrowing",component="engine",dimension="batching",instance="a:8000",model_name="m",'
        'node="a",severity="ticket"}'
    )


@pytest.mark.parametrize("waiting", ["500x240", "480+2x20 520-2x20 " * 6], ids=["flat", "wavering"])
def test_a_long_queue_that_stands_still_is_told(waiting: str, tmp_path: Path) -> None:
    firing("VllmQueueGrowing", tmp_path, {WAITING % "a": waiting}, [growing()], at="50m")


@pytest.mark.parametrize("waiting", ["10x240", "900-3x240"])
def test_a_short_queue_or_one_that_shrinks_is_not(waiting: str, tmp_path: Path) -> None:
    firing("VllmQueueGrowing", tmp_path, {WAITING % "a": waiting}, [], at="50m")
