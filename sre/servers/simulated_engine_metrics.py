"""vLLM's metrics of the simulated engine, kept by prometheus-client from the catalogue in ``sre.metrics.vllm``."""

from __future__ import annotations

from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    Summary,
    generate_latest,
)

from sre.metrics import vllm
from sre.metrics.types import Kind, Metric
from sre.simulator.kv_cache import BLOCK_TOKENS

CONTENT_TYPE = CONTENT_TYPE_LATEST
ENGINE_INDEX = "0"
AWAKE, OFFLOADED, DISCARDED = vllm.ENGINE_SLEEP_STATE.values


class EngineMetrics:
    """
    All series of one engine, in a registry of their own.

    Args:
        model: The served model name, label ``model_name``.
        max_model_len: Longest sequence: bounds of the token histograms.
        kv_cache_tokens: Size of the KV cache, for ``vllm:cache_config_info``.
    """

    def __init__(self, model: str, max_model_len: int, kv_cache_tokens: int, prefix_caching: bool) -> None:
        self._registry = CollectorRegistry()
        GCCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        ProcessCollector(registry=self._registry)
        self._model = model
        self._max_model_len = max_model_len
        self._children: dict[str, Any] = {}
        self._valued: dict[str, dict[str, Any]] = {}
        for metric in vllm.ENGINE_METRICS:
            self._register(metric)
        self._http = {metric.name: self._family(metric) for metric in vllm.HTTP_METRICS}
        info = {
            "block_size": str(BLOCK_TOKENS),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(prefix_caching),
            vllm.ENGINE: ENGINE_INDEX,
            "gpu_memory_utilization": "0.92",
            "kv_cache_size_tokens": str(kv_cache_tokens),
            "num_gpu_blocks": str(kv_cache_tokens // BLOCK_TOKENS),
        }
        self._family(vllm.CACHE_CONFIG_INFO).labels(**info).set(1)
        self.set_sleep(None)
        # The ones touched per token or step, looked up once.
        self.inter_token_latency = self.of(vllm.INTER_TOKEN_LATENCY)
        self.time_to_first_token = self.of(vllm.TIME_TO_FIRST_TOKEN)

    def of(self, metric: Metric, value: str | None = None) -> Any:
        """The series of ``metric`` for this engine; ``value``: of its last label."""
        return self._children[metric.name] if value is None else self._valued[metric.name][value]

    def set_sleep(self, level: int | None) -> None:
        """Level of sleep: None is awake, 1 weights offloaded, 2 discarded; 0 only stops and offloads nothing."""
        state = AWAKE if level is None else {1: OFFLOADED, 2: DISCARDED}.get(level)
        for name in vllm.ENGINE_SLEEP_STATE.values:
            self.of(vllm.ENGINE_SLEEP_STATE, name).set(1 if name == state else 0)

    def sleep_operation(self, operation: str, seconds: float) -> None:
        """One sleep or wake-up that took ``seconds``."""
        if vllm.SLEEP_OPERATION_DURATION.name not in self._valued:
            self._register(vllm.SLEEP_OPERATION_DURATION)
            self._register(vllm.SLEEP_OPERATIONS_IN_FLIGHT)
        self.of(vllm.SLEEP_OPERATION_DURATION, operation).observe(seconds)

    def http(self, handler: str, method: str, status: int, seconds: float, received: int, sent: int) -> None:
        """One HTTP exchange; ``seconds`` until the first byte of the answer, sizes by Content-Length."""
        http = self._http
        http[vllm.HTTP_REQUESTS.name].labels(handler, method, f"{status // 100}xx").inc()
        http[vllm.HTTP_REQUEST_SIZE.name].labels(handler).observe(received)
        http[vllm.HTTP_RESPONSE_SIZE.name].labels(handler).observe(sent)
        http[vllm.HTTP_DURATION_FINE.name].observe(seconds)
        http[vllm.HTTP_DURATION.name].labels(handler, method).observe(seconds)

    def render(self) -> bytes:
        """Text exposition."""
        return generate_latest(self._registry)

    def _register(self, metric: Metric) -> None:
        family = self._family(metric)
        fixed = {vllm.MODEL_NAME: self._model, vllm.ENGINE: ENGINE_INDEX}
        labels = [fixed[name] for name in metric.labels if name in fixed]
        if metric.values:
            self._valued[metric.name] = {value: family.labels(*labels, value) for value in metric.values}
        else:
            self._children[metric.name] = family.labels(*labels)

    def _family(self, metric: Metric) -> Any:
        if metric.kind is Kind.COUNTER:
            return Counter(metric.name, metric.help, metric.labels, registry=self._registry)
        if metric.kind is Kind.GAUGE:
            return Gauge(metric.name, metric.help, metric.labels, registry=self._registry)
        if metric.kind is Kind.SUMMARY:
            return Summary(metric.name, metric.help, metric.labels, registry=self._registry)
        bounds = metric.bounds(self._max_model_len)
        return Histogram(metric.name, metric.help, metric.labels, registry=self._registry, buckets=bounds)
