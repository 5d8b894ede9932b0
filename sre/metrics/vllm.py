"""
vLLM's Prometheus metrics, each spelled once: name, type, labels, buckets.

What the simulated engine exposes, what the guard scrapes and what the contract test compares with the real vLLM all
come from here. State of vLLM 0.32. A counter's sample is ``name + "_total"``; every counter and histogram also has a
``_created`` gauge, which says nothing about load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sre.metrics.types import Kind, Metric

# Labels
MODEL_NAME = "model_name"
ENGINE = "engine"
PER_ENGINE = (MODEL_NAME, ENGINE)

# Buckets, seconds unless said otherwise
LATENCY = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
INTER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
ITERATION_TOKEN_COUNTS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N_COUNTS = (1, 2, 5, 10, 20)
PREEMPTION_COUNTS = (1, 2, 3, 4, 5, 10, 20)
SLEEP_OPERATION = (0.01, 0.1, 1, 10, 30, 60, 120, 300, 600)
HTTP_COARSE = (0.1, 0.5, 1)
HTTP_FINE = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60,
)  # fmt: skip


def _gauge(name: str, text: str, *labels: str, values: Sequence[str] = ()) -> Metric:
    return Metric(name, Kind.GAUGE, text, (*PER_ENGINE, *labels), values=tuple(values))


def _counter(name: str, text: str, *labels: str, values: Sequence[str] = ()) -> Metric:
    return Metric(name, Kind.COUNTER, text, (*PER_ENGINE, *labels), values=tuple(values))


def _histogram(name: str, text: str, buckets: Sequence[float] = ()) -> Metric:
    return Metric(name, Kind.HISTOGRAM, text, PER_ENGINE, tuple(buckets), token_buckets=not buckets)


# Scheduler state
REQUESTS_RUNNING = _gauge("vllm:num_requests_running", "Requests in the running batch, as of the last step.")
REQUESTS_WAITING = _gauge("vllm:num_requests_waiting", "Requests that wait to be scheduled, as of the last step.")
REQUESTS_WAITING_BY_REASON = _gauge(
    "vllm:num_requests_waiting_by_reason",
    "Waiting requests by reason; the sum is vllm:num_requests_waiting.",
    "reason",
    values=("capacity", "deferred"),
)
ENGINE_SLEEP_STATE = _gauge(
    "vllm:engine_sleep_state",
    "One of the three is 1.",
    "sleep_state",
    values=("awake", "weights_offloaded", "discard_all"),
)
KV_CACHE_USAGE = _gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.")

# Caches
PREFIX_CACHE_QUERIES = _counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.")
PREFIX_CACHE_HITS = _counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.")
EXTERNAL_PREFIX_CACHE_QUERIES = _counter(
    "vllm:external_prefix_cache_queries", "Tokens looked up in a cache shared between instances."
)
EXTERNAL_PREFIX_CACHE_HITS = _counter(
    "vllm:external_prefix_cache_hits", "Tokens found in a cache shared between instances."
)
MM_CACHE_QUERIES = _counter("vllm:mm_cache_queries", "Items looked up in the multi-modal cache.")
MM_CACHE_HITS = _counter("vllm:mm_cache_hits", "Items found in the multi-modal cache.")
PREEMPTIONS = _counter("vllm:num_preemptions", "Requests put back into the queue because the KV cache was full.")

# Tokens and requests
PROMPT_TOKENS = _counter("vllm:prompt_tokens", "Prompt tokens processed.")
PROMPT_TOKENS_BY_SOURCE = _counter(
    "vllm:prompt_tokens_by_source",
    "Prompt tokens by where their keys and values came from.",
    "source",
    values=("local_compute", "local_cache_hit", "external_kv_transfer"),
)
PROMPT_TOKENS_CACHED = _counter("vllm:prompt_tokens_cached", "Prompt tokens that came from a cache.")
PROMPT_TOKENS_CACHED_BY_SOURCE = _counter(
    "vllm:prompt_tokens_cached_by_source",
    "Prompt tokens from a cache, by its tier.",
    "source",
    values=("device", "host", "p2p", "disk", "external_unspecified"),
)
GENERATION_TOKENS = _counter("vllm:generation_tokens", "Tokens generated.")
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
REQUEST_SUCCESS = _counter(
    "vllm:request_success", "Requests that ended, by reason.", "finished_reason", values=FINISHED_REASONS
)
ADMISSION_REJECTIONS = Metric(
    "vllm:admission_rejections",
    Kind.COUNTER,
    "Requests answered 503 because the queue was full.",
    (MODEL_NAME, "reason"),
    values=("max_num_queued_reqs", "max_num_queued_tokens"),
)

# Work estimates: zero unless vLLM is asked to compute them
ESTIMATED_FLOPS = _counter("vllm:estimated_flops_per_gpu", "Estimated floating point operations per GPU.")
ESTIMATED_READ_BYTES = _counter("vllm:estimated_read_bytes_per_gpu", "Estimated bytes read from GPU memory.")
ESTIMATED_WRITE_BYTES = _counter("vllm:estimated_write_bytes_per_gpu", "Estimated bytes written to GPU memory.")

# Per step. A histogram whose name ends in _total: its count is the number of engine steps, the heartbeat.
ITERATION_TOKENS = _histogram("vllm:iteration_tokens_total", "Tokens per engine step.", ITERATION_TOKEN_COUNTS)

# Per request
REQUEST_PROMPT_TOKENS = _histogram("vllm:request_prompt_tokens", "Prompt tokens per finished request.")
REQUEST_GENERATION_TOKENS = _histogram("vllm:request_generation_tokens", "Generated tokens per finished request.")
REQUEST_MAX_NUM_GENERATION_TOKENS = _histogram(
    "vllm:request_max_num_generation_tokens", "Longest answer among the n of a request, in tokens."
)
REQUEST_PARAMS_N = Metric(
    "vllm:request_params_n", Kind.HISTOGRAM, "Parameter n of requests.", PER_ENGINE, PARAMS_N_COUNTS
)
REQUEST_PARAMS_MAX_TOKENS = _histogram("vllm:request_params_max_tokens", "Parameter max_tokens of requests.")
REQUEST_PREFILL_KV_COMPUTED_TOKENS = _histogram(
    "vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed, cached ones left out."
)
REQUEST_NUM_PREEMPTIONS = _histogram(
    "vllm:request_num_preemptions", "Preemptions per finished request.", PREEMPTION_COUNTS
)
TIME_TO_FIRST_TOKEN = _histogram("vllm:time_to_first_token_seconds", "Arrival to first token, in seconds.", FIRST_TOKEN)
INTER_TOKEN_LATENCY = _histogram(
    "vllm:inter_token_latency_seconds", "Time between two tokens of a request, in seconds.", INTER_TOKEN
)
REQUEST_TIME_PER_OUTPUT_TOKEN = _histogram(
    "vllm:request_time_per_output_token_seconds", "Mean time per token after the first, in seconds.", INTER_TOKEN
)
E2E_REQUEST_LATENCY = _histogram("vllm:e2e_request_latency_seconds", "Arrival to last token, in seconds.", LATENCY)
REQUEST_QUEUE_TIME = _histogram("vllm:request_queue_time_seconds", "Time in the queue, in seconds.", LATENCY)
REQUEST_INFERENCE_TIME = _histogram(
    "vllm:request_inference_time_seconds", "First scheduling to last token, in seconds.", LATENCY
)
REQUEST_PREFILL_TIME = _histogram(
    "vllm:request_prefill_time_seconds", "First scheduling to first token, in seconds.", LATENCY
)
REQUEST_DECODE_TIME = _histogram("vllm:request_decode_time_seconds", "First to last token, in seconds.", LATENCY)

# What the engine exposes from its start
ENGINE_METRICS: tuple[Metric, ...] = (
    ESTIMATED_FLOPS, ESTIMATED_READ_BYTES, ESTIMATED_WRITE_BYTES,
    REQUESTS_RUNNING, REQUESTS_WAITING, REQUESTS_WAITING_BY_REASON, ENGINE_SLEEP_STATE, KV_CACHE_USAGE,
    PREFIX_CACHE_QUERIES, PREFIX_CACHE_HITS, EXTERNAL_PREFIX_CACHE_QUERIES, EXTERNAL_PREFIX_CACHE_HITS,
    MM_CACHE_QUERIES, MM_CACHE_HITS, PREEMPTIONS,
    PROMPT_TOKENS, PROMPT_TOKENS_BY_SOURCE, PROMPT_TOKENS_CACHED, PROMPT_TOKENS_CACHED_BY_SOURCE,
    GENERATION_TOKENS, REQUEST_SUCCESS, ADMISSION_REJECTIONS,
    REQUEST_PROMPT_TOKENS, REQUEST_GENERATION_TOKENS, ITERATION_TOKENS, REQUEST_MAX_NUM_GENERATION_TOKENS,
    REQUEST_PARAMS_N, REQUEST_PARAMS_MAX_TOKENS,
    TIME_TO_FIRST_TOKEN, INTER_TOKEN_LATENCY, REQUEST_TIME_PER_OUTPUT_TOKEN, E2E_REQUEST_LATENCY,
    REQUEST_QUEUE_TIME, REQUEST_INFERENCE_TIME, REQUEST_PREFILL_TIME, REQUEST_DECODE_TIME,
    REQUEST_NUM_PREEMPTIONS, REQUEST_PREFILL_KV_COMPUTED_TOKENS,
)  # fmt: skip

CACHE_CONFIG_INFO = Metric(
    "vllm:cache_config_info",
    Kind.GAUGE,
    "Settings of the KV cache as labels; always 1.",
    ("block_size", "cache_dtype", "enable_prefix_caching", ENGINE, "gpu_memory_utilization", "kv_cache_size_tokens",
     "num_gpu_blocks"),
)  # fmt: skip
"""vLLM has further labels; these are the ones worth reading. No model_name."""

# Appear with the first sleep or wake-up
SLEEP_OPERATION_DURATION = Metric(
    "vllm:sleep_mode_operation_duration_seconds",
    Kind.HISTOGRAM,
    "Duration of one sleep or wake-up, in seconds.",
    ("operation",),
    SLEEP_OPERATION,
    values=("sleep", "wake"),
)
SLEEP_OPERATIONS_IN_FLIGHT = Metric(
    "vllm:sleep_mode_operations_in_flight",
    Kind.GAUGE,
    "Sleep and wake-up calls that have not returned.",
    ("operation",),
    values=("sleep", "wake"),
)

# HTTP side of the API server. The status is grouped: 2xx, 4xx, 5xx.
HTTP_REQUESTS = Metric("http_requests", Kind.COUNTER, "Requests.", ("handler", "method", "status"))
HTTP_REQUEST_SIZE = Metric("http_request_size_bytes", Kind.SUMMARY, "Content-Length of requests.", ("handler",))
HTTP_RESPONSE_SIZE = Metric("http_response_size_bytes", Kind.SUMMARY, "Content-Length of answers.", ("handler",))
HTTP_DURATION_FINE = Metric(
    "http_request_duration_highr_seconds", Kind.HISTOGRAM, "All handlers mixed, many buckets.", (), HTTP_FINE
)
HTTP_DURATION = Metric(
    "http_request_duration_seconds",
    Kind.HISTOGRAM,
    "By handler, few buckets; a stream ends at its first byte.",
    ("handler", "method"),
    HTTP_COARSE,
)
HTTP_METRICS: tuple[Metric, ...] = (
    HTTP_REQUESTS, HTTP_REQUEST_SIZE, HTTP_RESPONSE_SIZE, HTTP_DURATION_FINE, HTTP_DURATION,
)  # fmt: skip
HTTP_NOT_COUNTED: frozenset[str] = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
"""Handlers that the HTTP metrics leave out."""
HTTP_UNKNOWN_HANDLER = "none"
"""Value of ``handler`` for paths that match no route."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """A metric that older versions of vLLM call otherwise."""

    metric: Metric
    old_samples: tuple[str, ...] = field(default=())


RENAMED: Mapping[str, Renamed] = {
    "kv_cache_usage": Renamed(KV_CACHE_USAGE, ("vllm:gpu_cache_usage_perc",)),
    "prefix_cache_queries": Renamed(PREFIX_CACHE_QUERIES, ("vllm:gpu_prefix_cache_queries_total",)),
    "prefix_cache_hits": Renamed(PREFIX_CACHE_HITS, ("vllm:gpu_prefix_cache_hits_total",)),
    "inter_token_latency": Renamed(INTER_TOKEN_LATENCY, ("vllm:time_per_output_token_seconds_count",)),
    "queue_time": Renamed(REQUEST_QUEUE_TIME, ("vllm:time_in_queue_requests_count",)),
}
"""By a name of ours: where to look when the present name is absent."""
