"""
The names that an operator knows from the source material (requirement A4), made of the records.

They keep their own form: exempt from ``level:metric:operation``.
"""

from __future__ import annotations

from sre.metrics import own
from sre.metrics.types import Unit
from sre.monitoring.levels import DEVICE, GPU, LEVELS, MODEL_NAME, NODE, POOL
from sre.monitoring.model import Record
from sre.monitoring.promql import LE, Expr, Selection, max_by, relabelled, sum_by
from sre.monitoring.records_engine import QUANTILES
from sre.settings.monitoring import MonitoringSettings

QUANTILE = "quantile"


def records(selection: Selection, settings: MonitoringSettings) -> list[Record]:
    """``vllm_gpu_utilization{device}`` and its five companions; ratios are 0..1, latencies seconds."""
    return [
        _source(
            "vllm_gpu_utilization",
            _by_device("gpu:utilization:ratio", Unit.RATIO),
            "Share of time in which the device ran anything, 0..1.",
        ),
        _source(
            "vllm_gpu_memory_used_bytes",
            _by_device("gpu:memory_used:bytes", Unit.BYTES),
            "Memory of the device that is taken.",
        ),
        _source(
            "vllm_batch_size_bucket",
            sum_by(_buckets(selection), POOL, own.ENGINE, LE),
            "Seconds spent at this batch size or below; take rate() of it, as of any bucket.",
        ),
        _source(
            "vllm_batch_formation_latency_seconds",
            max_by(_recorded("engine:vllm_queue_seconds:mean_rate5m", Unit.SECONDS), MODEL_NAME),
            "Mean time in the queue, of the model's slowest engine.",
        ),
        _source(
            "vllm_p99_latency_seconds",
            max_by(_recorded("model:vllm_e2e_seconds:p99_rate5m", Unit.SECONDS), MODEL_NAME),
            "Arrival to last token: 99 % stay under this.",
        ),
        *(
            Record(
                "vllm_first_token_latency_seconds",
                max_by(_recorded(f"engine:vllm_ttft_seconds:{name}_rate5m", Unit.SECONDS), MODEL_NAME),
                f"Arrival to first token: {q * 100:g} % stay under this, on the model's slowest engine.",
                {QUANTILE: f"{q:g}"},
                source_name=True,
            )
            for name, q in QUANTILES.items()
        ),
    ]


def _source(name: str, expr: Expr, text: str) -> Record:
    return Record(name, expr, text, source_name=True)


def _buckets(selection: Selection) -> Expr:
    """The counters themselves, one per engine and edge: a sum of one, so resets stay resets."""
    metric = own.ENGINE_BATCH_SIZE
    counted = selection.raw(metric)
    name = f"{metric.name}_bucket"
    return Expr(counted.text.replace(metric.sample, name, 1), Unit.ONE, counted.labels | {LE}, frozenset({name}))


def _recorded(name: str, unit: Unit) -> Expr:
    return Expr(name, unit, frozenset(LEVELS[name.split(":")[0]]), frozenset({name}))


def _by_device(name: str, unit: Unit) -> Expr:
    return max_by(relabelled(_recorded(name, unit), DEVICE, GPU), NODE, DEVICE)
