"""
The signals the guard reads, each spelled once: name, unit, range, and from which vLLM metrics it comes.

Rules (``guard.rules[].signal``), ``EngineSeen.signals``, journal lines and our own ``/metrics`` use them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sre.metrics import vllm, vllm_past

VLLM_AWAKE = "awake"
"""Value of the label ``sleep_state`` whose series is 1 while the engine does not sleep."""

# Names of our signals.
STEPS_TOTAL = "steps_total"
KV_CACHE_USAGE_RATIO = "kv_cache_usage_ratio"
REQUESTS_RUNNING = "requests_running"
REQUESTS_WAITING = "requests_waiting"
PROMPT_TOKENS_TOTAL = "prompt_tokens_total"
GENERATION_TOKENS_TOTAL = "generation_tokens_total"
PREEMPTIONS_TOTAL = "preemptions_total"
QUEUE_SECONDS_TOTAL = "queue_seconds_total"
QUEUED_REQUESTS_TOTAL = "queued_requests_total"
GPU_MEMORY_USED_RATIO = "gpu_memory_used_ratio"
GPU_TEMPERATURE_CELSIUS = "gpu_temperature_celsius"
CONSECUTIVE_FAILED_BATCHES = "consecutive_failed_batches"
ERROR_RATIO = "error_ratio"


class Scope(enum.Enum):
    """What a signal is a property of."""

    ENGINE = "engine"
    GPU = "gpu"


class Aggregation(enum.Enum):
    """How the series of one engine (one per data-parallel rank, label ``engine``) become one value."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Signal:
    """
    One signal.

    Attributes:
        unit: "ratio" (0..1), "celsius", "requests", "tokens", "steps", "batches", "seconds".
        low, high: Values outside are INVALID; None is unbounded.
        rule: Whether ``guard.rules`` may name it.
    """

    name: str
    scope: Scope
    unit: str
    help: str
    low: float | None = 0.0
    high: float | None = None
    rule: bool = False


SIGNALS: dict[str, Signal] = {
    signal.name: signal
    for signal in (
        Signal(
            GPU_MEMORY_USED_RATIO, Scope.GPU, "ratio", "Memory of the GPU that is taken, driver's share included.",
            high=1.0, rule=True,
        ),
        Signal(
            GPU_TEMPERATURE_CELSIUS, Scope.GPU, "celsius", "Temperature of the GPU core.",
            low=-40.0, high=150.0, rule=True,
        ),
        Signal(
            CONSECUTIVE_FAILED_BATCHES, Scope.ENGINE, "batches",
            "Engine batches in a row in which every request failed, as seen at the gateway.", rule=True,
        ),
        Signal(
            ERROR_RATIO, Scope.ENGINE, "ratio", "Failures / (successes + failures) in the window, at the gateway.",
            high=1.0, rule=True,
        ),
        Signal(
            KV_CACHE_USAGE_RATIO, Scope.ENGINE, "ratio", "Share of the KV cache in use; of the fullest rank.",
            high=1.0, rule=True,
        ),
        Signal(REQUESTS_WAITING, Scope.ENGINE, "requests", "Requests in the engine's queue.", rule=True),
        Signal(REQUESTS_RUNNING, Scope.ENGINE, "requests", "Requests in the last batch; frozen in a hang."),
        Signal(STEPS_TOTAL, Scope.ENGINE, "steps", "Engine steps since the engine started: its heartbeat."),
        Signal(PROMPT_TOKENS_TOTAL, Scope.ENGINE, "tokens", "Prompt tokens processed since the engine started."),
        Signal(GENERATION_TOKENS_TOTAL, Scope.ENGINE, "tokens", "Tokens generated since the engine started."),
        Signal(QUEUE_SECONDS_TOTAL, Scope.ENGINE, "seconds", "Time in the queue, summed over requests that ended."),
        Signal(QUEUED_REQUESTS_TOTAL, Scope.ENGINE, "requests", "Requests that ended, counted in queue_seconds_total."),
        Signal(PREEMPTIONS_TOTAL, Scope.ENGINE, "requests", "Requests pushed out of the batch for want of KV cache."),
    )
}  # fmt: skip
"""Every signal by name."""


@dataclass(frozen=True, slots=True)
class EngineSource:
    """
    Where a signal stands in an engine's /metrics.

    Attributes:
        metrics: Sample names, the current one first; an older name counts only where no newer one is present.
    """

    signal: str
    metrics: tuple[str, ...]
    aggregation: Aggregation = Aggregation.SUM


ENGINE_SOURCES: tuple[EngineSource, ...] = (
    # One observation per engine step: a histogram's count, though its name looks like a counter's.
    EngineSource(STEPS_TOTAL, (vllm.ITERATION_TOKENS.sample,)),
    EngineSource(KV_CACHE_USAGE_RATIO, (vllm.KV_CACHE_USAGE.sample, vllm_past.GPU_CACHE_USAGE.sample), Aggregation.MAX),
    EngineSource(REQUESTS_RUNNING, (vllm.REQUESTS_RUNNING.sample,)),
    EngineSource(REQUESTS_WAITING, (vllm.REQUESTS_WAITING.sample,)),
    EngineSource(PROMPT_TOKENS_TOTAL, (vllm.PROMPT_TOKENS.sample,)),
    EngineSource(GENERATION_TOKENS_TOTAL, (vllm.GENERATION_TOKENS.sample,)),
    EngineSource(PREEMPTIONS_TOTAL, (vllm.PREEMPTIONS.sample,)),
    EngineSource(QUEUE_SECONDS_TOTAL, (vllm.REQUEST_QUEUE_TIME.name + "_sum",)),
    EngineSource(QUEUED_REQUESTS_TOTAL, (vllm.REQUEST_QUEUE_TIME.name + "_count",)),
)
"""What one scrape of an engine is reduced to."""
