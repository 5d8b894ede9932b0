"""/metrics of an engine: the same on the simulated engine and on the real vLLM, and as our catalogue says."""

from __future__ import annotations

from typing import Any

import pytest

from sre.metrics import vllm
from sre.metrics.types import Kind, Metric
from tests.conftest import WaitUntil
from tests.support.engines import EngineProcess
from tests.support.vllm import MAX_MODEL_LEN

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def _labels(metric: Metric) -> set[str]:
    return set(metric.labels)


@pytest.fixture
def families(engine: EngineProcess) -> dict[str, Any]:
    assert engine.complete(2).status_code == 200
    found: dict[str, Any] = engine.families()
    return found


@pytest.mark.parametrize("metric", [*vllm.ENGINE_METRICS, *vllm.HTTP_METRICS], ids=lambda metric: metric.name)
def test_metric_has_the_type_labels_and_buckets_of_the_catalogue(families: dict[str, Any], metric: Metric) -> None:
    family = families[metric.name]
    assert family.type == metric.kind.value
    samples = [sample for sample in family.samples if sample.name == metric.sample]
    assert samples
    assert all(set(sample.labels) == _labels(metric) for sample in samples)
    if metric.values:
        assert {sample.labels[metric.labels[-1]] for sample in samples} == set(metric.values)
    if metric.kind is Kind.HISTOGRAM:
        bounds = {sample.labels["le"] for sample in family.samples if sample.name == metric.name + "_bucket"}
        assert bounds == {str(float(bound)) for bound in metric.bounds(MAX_MODEL_LEN)} | {"+Inf"}
    if metric.kind is not Kind.GAUGE:
        assert families[metric.name + "_created"].type == "gauge"


def test_no_metric_is_missing_in_the_catalogue(families: dict[str, Any]) -> None:
    known = {metric.name for metric in (*vllm.ENGINE_METRICS, vllm.CACHE_CONFIG_INFO)}
    known |= {vllm.SLEEP_OPERATION_DURATION.name, vllm.SLEEP_OPERATIONS_IN_FLIGHT.name}
    found = {name.removesuffix("_created") for name in families if name.startswith("vllm:")}
    assert found - known == set()


def test_cache_config_info(families: dict[str, Any]) -> None:
    (sample,) = families[vllm.CACHE_CONFIG_INFO.name].samples
    assert sample.value == 1
    assert _labels(vllm.CACHE_CONFIG_INFO) <= set(sample.labels)
    assert int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"]) > 0
    assert "model_name" not in sample.labels


def test_process_metrics_have_no_labels(families: dict[str, Any]) -> None:
    assert [sample.labels for sample in families["process_resident_memory_bytes"].samples] == [{}]


def test_a_finished_request_is_counted(engine: EngineProcess, wait_until: WaitUntil) -> None:
    counters = [
        vllm.GENERATION_TOKENS, vllm.PROMPT_TOKENS, vllm.TIME_TO_FIRST_TOKEN, vllm.INTER_TOKEN_LATENCY,
        vllm.E2E_REQUEST_LATENCY, vllm.REQUEST_QUEUE_TIME, vllm.REQUEST_PROMPT_TOKENS, vllm.ITERATION_TOKENS,
        vllm.REQUEST_PARAMS_N, vllm.REQUEST_MAX_NUM_GENERATION_TOKENS,
    ]  # fmt: skip
    before = {metric: engine.value(metric.sample) for metric in counters}
    length = engine.value("vllm:request_success_total", finished_reason="length")
    usage = engine.complete(6).json()["usage"]
    wait_until(lambda: engine.value("vllm:request_success_total", finished_reason="length") == length + 1)
    grown = {metric: engine.value(metric.sample) - before[metric] for metric in counters}
    assert grown == {
        vllm.GENERATION_TOKENS: 6,
        vllm.PROMPT_TOKENS: usage["prompt_tokens"],
        vllm.TIME_TO_FIRST_TOKEN: 1,
        vllm.INTER_TOKEN_LATENCY: 5,
        vllm.E2E_REQUEST_LATENCY: 1,
        vllm.REQUEST_QUEUE_TIME: 1,
        vllm.REQUEST_PROMPT_TOKENS: 1,
        vllm.ITERATION_TOKENS: 6,
        vllm.REQUEST_PARAMS_N: 1,
        vllm.REQUEST_MAX_NUM_GENERATION_TOKENS: 1,
    }


def test_prefix_cache_counts_tokens(engine: EngineProcess) -> None:
    def counts() -> tuple[float, float]:
        return engine.value("vllm:prefix_cache_queries_total"), engine.value("vllm:prefix_cache_hits_total")

    prompt = "a b c d e f g h " * 20
    queries, hits = counts()
    first = engine.complete(1, prompt=prompt).json()["usage"]["prompt_tokens"]
    engine.complete(1, prompt=prompt)
    assert counts()[0] - queries == 2 * first
    assert 0 < counts()[1] - hits < first


def test_http_metrics_group_the_status_and_leave_probes_out(engine: EngineProcess) -> None:
    engine.get("/nosuch")
    engine.post("/v1/completions", {"prompt": "x", "n": 0})
    labels = {
        (sample.labels["handler"], sample.labels["method"], sample.labels["status"])
        for sample in engine.families()["http_requests"].samples
    }
    assert {("/v1/completions", "POST", "2xx"), ("/v1/completions", "POST", "4xx"), ("none", "GET", "4xx")} <= labels
    assert not {handler for handler, _, _ in labels} & vllm.HTTP_NOT_COUNTED
