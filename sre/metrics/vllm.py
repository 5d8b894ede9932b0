"""
vLLM's Prometheus metrics, each spelled once: name, type, labels, buckets.

What the simulated engine exposes, what the guard scrapes and what the contract test compares with the real vLLM all
come from here. State of vLLM 0.33, and every name since 0.8 that a rule may still use: deprecated in X.Y, hidden in
X.Y+1, removed in X.Y+2 (on paper). A counter's sample is ``name + "_total"``; every counter and histogram also has a
``_created`` gauge, which says nothing about load. Ray exports the same names with another prefix
(``ray_vllm:`` or ``ray_vllm_``): the prefix is a parameter of what uses the names, never an entry here.

Where ``since`` is not the release that brought the metric but the first of which we know that it has it, a comment says
so: later is the safe side, since rules for an older release then do without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sre.metrics.types import Exporter, Kind, Metric, Unit, Version

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
KV_BLOCK_SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800,
)  # fmt: skip


def declared(
    name: str,
    *,
    kind: Kind,
    text: str,
    labels: tuple[str, ...] = (),
    values: Sequence[str] = (),
    buckets: Sequence[float] = (),
    unit: Unit = Unit.ONE,
    since: str = "",
    deprecated: str = "",
    hidden: str = "",
    removed: str = "",
    replaced_by: str | None = None,
    optional: bool = False,
    per_engine: bool = True,
    optional_labels: tuple[str, ...] = (),
    late: bool = False,
    needs: str = "",
) -> Metric:
    """
    One metric of vLLM; releases as text, "" for "not that we know".

    Before 0.8.3, and on the V0 engine, no metric has the label ``engine``: no rule may need it.
    """

    def release(text: str) -> Version | None:
        return Version.parse(text) if text else None

    return Metric(
        name, kind, text, ((*PER_ENGINE, *labels) if per_engine else labels), tuple(buckets),
        token_buckets=kind is Kind.HISTOGRAM and not buckets,
        values=tuple(values), unit=unit, exporter=Exporter.VLLM, since=release(since), deprecated=release(deprecated),
        hidden=release(hidden), removed=release(removed), replaced_by=replaced_by, optional=optional,
        optional_labels=(ENGINE, *optional_labels) if per_engine else optional_labels, late=late,
        needs=needs,
    )  # fmt: skip


_gauge = partial(declared, kind=Kind.GAUGE)
_counter = partial(declared, kind=Kind.COUNTER)
_histogram = partial(declared, kind=Kind.HISTOGRAM)


# Scheduler state
REQUESTS_RUNNING = _gauge(
    "vllm:num_requests_running", text="Requests in the running batch, as of the last step.", unit=Unit.REQUESTS
)
REQUESTS_WAITING = _gauge(
    "vllm:num_requests_waiting", text="Requests that wait to be scheduled, as of the last step.", unit=Unit.REQUESTS
)
REQUESTS_WAITING_BY_REASON = _gauge(
    "vllm:num_requests_waiting_by_reason",
    text="Waiting requests by reason; the sum is vllm:num_requests_waiting.",
    labels=("reason",), values=("capacity", "deferred"), unit=Unit.REQUESTS, since="0.20",
)  # fmt: skip
ENGINE_SLEEP_STATE = _gauge(
    "vllm:engine_sleep_state", text="One of the three is 1.",
    labels=("sleep_state",), values=("awake", "weights_offloaded", "discard_all"), unit=Unit.STATE, since="0.12",
)  # fmt: skip
KV_CACHE_USAGE = _gauge(
    "vllm:kv_cache_usage_perc", text="Share of the KV cache in use, 0 to 1.", unit=Unit.RATIO, since="0.9.2"
)

# Caches
PREFIX_CACHE_QUERIES = _counter(
    "vllm:prefix_cache_queries", text="Tokens looked up in the prefix cache.", unit=Unit.TOKENS, since="0.9.2"
)
PREFIX_CACHE_HITS = _counter(
    "vllm:prefix_cache_hits", text="Tokens found in the prefix cache.", unit=Unit.TOKENS, since="0.9.2"
)
EXTERNAL_PREFIX_CACHE_QUERIES = _counter(
    "vllm:external_prefix_cache_queries",
    text="Tokens looked up in a cache shared between instances.", unit=Unit.TOKENS, since="0.12",
)  # fmt: skip
EXTERNAL_PREFIX_CACHE_HITS = _counter(
    "vllm:external_prefix_cache_hits",
    text="Tokens found in a cache shared between instances.", unit=Unit.TOKENS, since="0.12",
)  # fmt: skip
MM_CACHE_QUERIES = _counter("vllm:mm_cache_queries", text="Items looked up in the multi-modal cache.", since="0.12")
MM_CACHE_HITS = _counter("vllm:mm_cache_hits", text="Items found in the multi-modal cache.", since="0.12")
PREEMPTIONS = _counter(
    "vllm:num_preemptions",
    text="Requests put back into the queue because the KV cache was full.", unit=Unit.REQUESTS,
)  # fmt: skip

# Tokens and requests
PROMPT_TOKENS = _counter("vllm:prompt_tokens", text="Prompt tokens processed.", unit=Unit.TOKENS)
PROMPT_TOKENS_BY_SOURCE = _counter(
    "vllm:prompt_tokens_by_source", text="Prompt tokens by where their keys and values came from.",
    labels=("source",), values=("local_compute", "local_cache_hit", "external_kv_transfer"),
    unit=Unit.TOKENS, since="0.16",
)  # fmt: skip
PROMPT_TOKENS_CACHED = _counter(
    "vllm:prompt_tokens_cached", text="Prompt tokens that came from a cache.", unit=Unit.TOKENS, since="0.16"
)
PROMPT_TOKENS_CACHED_BY_SOURCE = _counter(
    "vllm:prompt_tokens_cached_by_source", text="Prompt tokens from a cache, by its tier.",
    labels=("source",), values=("device", "host", "p2p", "disk", "external_unspecified"),
    unit=Unit.TOKENS, since="0.32",
)  # fmt: skip
GENERATION_TOKENS = _counter("vllm:generation_tokens", text="Tokens generated.", unit=Unit.TOKENS)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
REQUEST_SUCCESS = _counter(
    "vllm:request_success", text="Requests that ended, by reason.",
    labels=("finished_reason",), values=FINISHED_REASONS, unit=Unit.REQUESTS,
)  # fmt: skip
"""Counts no failed request, and "abort" stays 0. Up to 0.11 the reasons are stop, length and abort."""
ADMISSION_REJECTIONS = _counter(
    "vllm:admission_rejections", text="Requests answered 503 because the queue was full.",
    labels=(MODEL_NAME, "reason"), values=("max_num_queued_reqs", "max_num_queued_tokens"),
    unit=Unit.REQUESTS, since="0.31", per_engine=False,
)  # fmt: skip
"""The limits exist since 0.29; the counter came later."""

# Work estimates: zero unless vLLM is asked to compute them
ESTIMATED_FLOPS = _counter(
    "vllm:estimated_flops_per_gpu",
    text="Estimated floating point operations per GPU.", unit=Unit.FLOPS, since="0.15",
)  # fmt: skip
ESTIMATED_READ_BYTES = _counter(
    "vllm:estimated_read_bytes_per_gpu", text="Estimated bytes read from GPU memory.", unit=Unit.BYTES, since="0.15"
)
ESTIMATED_WRITE_BYTES = _counter(
    "vllm:estimated_write_bytes_per_gpu", text="Estimated bytes written to GPU memory.", unit=Unit.BYTES, since="0.15"
)

# Per step. A histogram whose name ends in _total: its count is the number of engine steps, the heartbeat.
# Before 0.10 its bounds follow the CUDA graph sizes.
ITERATION_TOKENS = _histogram(
    "vllm:iteration_tokens_total", text="Tokens per engine step.", buckets=ITERATION_TOKEN_COUNTS, unit=Unit.TOKENS
)

# Per request, observed when it ends
REQUEST_PROMPT_TOKENS = _histogram(
    "vllm:request_prompt_tokens", text="Prompt tokens per finished request.", unit=Unit.TOKENS
)
REQUEST_GENERATION_TOKENS = _histogram(
    "vllm:request_generation_tokens", text="Generated tokens per finished request.", unit=Unit.TOKENS
)
REQUEST_MAX_NUM_GENERATION_TOKENS = _histogram(
    "vllm:request_max_num_generation_tokens",
    text="Longest answer among the n of a request, in tokens.", unit=Unit.TOKENS,
)  # fmt: skip
REQUEST_PARAMS_N = _histogram("vllm:request_params_n", text="Parameter n of requests.", buckets=PARAMS_N_COUNTS)
REQUEST_PARAMS_MAX_TOKENS = _histogram(
    "vllm:request_params_max_tokens", text="Parameter max_tokens of requests.", unit=Unit.TOKENS
)
REQUEST_PREFILL_KV_COMPUTED_TOKENS = _histogram(
    "vllm:request_prefill_kv_computed_tokens",
    text="Prompt tokens computed, cached ones left out.", unit=Unit.TOKENS, since="0.13",
)  # fmt: skip
REQUEST_NUM_PREEMPTIONS = _histogram(
    "vllm:request_num_preemptions",
    text="Preemptions per finished request.", buckets=PREEMPTION_COUNTS, since="0.31",
)  # fmt: skip
TIME_TO_FIRST_TOKEN = _histogram(
    "vllm:time_to_first_token_seconds",
    text="Arrival to first token, in seconds.", buckets=FIRST_TOKEN, unit=Unit.SECONDS,
)  # fmt: skip
INTER_TOKEN_LATENCY = _histogram(
    "vllm:inter_token_latency_seconds",
    text="Time between two tokens of a request, in seconds.", buckets=INTER_TOKEN, unit=Unit.SECONDS, since="0.10.2",
)  # fmt: skip
"""Per streamed event: with speculative decoding not per token."""
REQUEST_TIME_PER_OUTPUT_TOKEN = _histogram(
    "vllm:request_time_per_output_token_seconds",
    text="Mean time per token after the first, in seconds.", buckets=INTER_TOKEN, unit=Unit.SECONDS, since="0.12",
)  # fmt: skip
E2E_REQUEST_LATENCY = _histogram(
    "vllm:e2e_request_latency_seconds",
    text="Arrival to last token, in seconds.", buckets=LATENCY, unit=Unit.SECONDS,
)  # fmt: skip
REQUEST_QUEUE_TIME = _histogram(
    "vllm:request_queue_time_seconds", text="Time in the queue, in seconds.", buckets=LATENCY, unit=Unit.SECONDS
)
REQUEST_INFERENCE_TIME = _histogram(
    "vllm:request_inference_time_seconds",
    text="First scheduling to last token, in seconds.", buckets=LATENCY, unit=Unit.SECONDS,
)  # fmt: skip
REQUEST_PREFILL_TIME = _histogram(
    "vllm:request_prefill_time_seconds",
    text="First scheduling to first token, in seconds.", buckets=LATENCY, unit=Unit.SECONDS,
)  # fmt: skip
REQUEST_DECODE_TIME = _histogram(
    "vllm:request_decode_time_seconds", text="First to last token, in seconds.", buckets=LATENCY, unit=Unit.SECONDS
)

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

CACHE_CONFIG_INFO = _gauge(
    "vllm:cache_config_info", text="Settings of the KV cache as labels; always 1.", per_engine=False,
    labels=("block_size", "cache_dtype", "enable_prefix_caching", ENGINE, "gpu_memory_utilization",
            "kv_cache_size_tokens", "num_gpu_blocks"),
    optional_labels=(ENGINE, "kv_cache_size_tokens"),
)  # fmt: skip
"""vLLM has further labels; these are the ones worth reading. No model_name; old releases lack two of them."""

# Appear with the first sleep or wake-up
SLEEP_OPERATION_DURATION = _histogram(
    "vllm:sleep_mode_operation_duration_seconds", text="Duration of one sleep or wake-up, in seconds.",
    labels=("operation",), buckets=SLEEP_OPERATION, values=("sleep", "wake"),
    unit=Unit.SECONDS, since="0.32", needs="a first sleep", optional=True, per_engine=False,
)  # fmt: skip
SLEEP_OPERATIONS_IN_FLIGHT = _gauge(
    "vllm:sleep_mode_operations_in_flight", text="Sleep and wake-up calls that have not returned.",
    labels=("operation",), values=("sleep", "wake"), since="0.32", needs="a first sleep", optional=True,
    per_engine=False,
)  # fmt: skip

# Appear only where the feature is on: speculative decoding, LoRA, --kv-cache-metrics, NaN checks, KV connectors.
SPEC_DECODE_DRAFTS = _counter(
    "vllm:spec_decode_num_drafts",
    text="Drafts of speculative decoding.",
    since="0.9",
    needs="speculative decoding",
    optional=True,
)
SPEC_DECODE_DRAFT_TOKENS = _counter(
    "vllm:spec_decode_num_draft_tokens",
    text="Tokens drafted.",
    unit=Unit.TOKENS,
    needs="speculative decoding",
    optional=True,
)
SPEC_DECODE_ACCEPTED_TOKENS = _counter(
    "vllm:spec_decode_num_accepted_tokens",
    text="Drafted tokens accepted.",
    unit=Unit.TOKENS,
    needs="speculative decoding",
    optional=True,
)
SPEC_DECODE_ACCEPTED_TOKENS_PER_POS = _counter(
    "vllm:spec_decode_num_accepted_tokens_per_pos", text="Drafted tokens accepted, by position in the draft.",
    labels=("position",), unit=Unit.TOKENS, since="0.9", needs="speculative decoding", optional=True,
)  # fmt: skip
LORA_REQUESTS_INFO = _gauge(
    "vllm:lora_requests_info", text="Time of the last change, the adapters in use as labels.",
    labels=("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
    unit=Unit.TIMESTAMP_SECONDS, needs="--enable-lora", optional=True, per_engine=False,
)  # fmt: skip
KV_BLOCK_LIFETIME = _histogram(
    "vllm:kv_block_lifetime_seconds", text="Allocation to eviction of a KV block, in seconds.",
    buckets=KV_BLOCK_SECONDS, unit=Unit.SECONDS, since="0.13", needs="--kv-cache-metrics", optional=True,
)  # fmt: skip
KV_BLOCK_IDLE = _histogram(
    "vllm:kv_block_idle_before_evict_seconds", text="Last use to eviction of a KV block, in seconds.",
    buckets=KV_BLOCK_SECONDS, unit=Unit.SECONDS, since="0.13", needs="--kv-cache-metrics", optional=True,
)  # fmt: skip
CORRUPTED_REQUESTS = _counter(
    "vllm:corrupted_requests", text="Requests with NaN in their logits.", unit=Unit.REQUESTS, since="0.12",
    needs="VLLM_COMPUTE_NANS_IN_LOGITS=1", optional=True,
)  # fmt: skip
REQUESTS_KV_FETCH_BY_STAGE = _gauge(
    "vllm:num_requests_kv_fetch_by_stage", text="Waiting requests by stage of their KV transfer.",
    labels=("stage",), values=("waiting_to_start", "in_progress", "completed_waiting"),
    unit=Unit.REQUESTS, since="0.32", needs="a KV connector that reads", optional=True,
)  # fmt: skip
OPTIONAL_METRICS: tuple[Metric, ...] = (
    SLEEP_OPERATION_DURATION, SLEEP_OPERATIONS_IN_FLIGHT, SPEC_DECODE_DRAFTS, SPEC_DECODE_DRAFT_TOKENS,
    SPEC_DECODE_ACCEPTED_TOKENS, SPEC_DECODE_ACCEPTED_TOKENS_PER_POS, LORA_REQUESTS_INFO, KV_BLOCK_LIFETIME,
    KV_BLOCK_IDLE, CORRUPTED_REQUESTS, REQUESTS_KV_FETCH_BY_STAGE,
)  # fmt: skip

# HTTP side of the API server. The status is grouped: 2xx, 4xx, 5xx; a series appears with its first request.
_http = partial(declared, per_engine=False, late=True)
HTTP_REQUESTS = _http(
    "http_requests", kind=Kind.COUNTER, text="Requests.", labels=("handler", "method", "status"), unit=Unit.REQUESTS
)
HTTP_REQUEST_SIZE = _http(
    "http_request_size_bytes", kind=Kind.SUMMARY,
    text="Content-Length of requests.", labels=("handler",), unit=Unit.BYTES,
)  # fmt: skip
HTTP_RESPONSE_SIZE = _http(
    "http_response_size_bytes", kind=Kind.SUMMARY,
    text="Content-Length of answers.", labels=("handler",), unit=Unit.BYTES,
)  # fmt: skip
HTTP_DURATION_FINE = _http(
    "http_request_duration_highr_seconds", kind=Kind.HISTOGRAM,
    text="All handlers mixed, many buckets.", buckets=HTTP_FINE, unit=Unit.SECONDS,
)  # fmt: skip
HTTP_DURATION = _http(
    "http_request_duration_seconds", kind=Kind.HISTOGRAM,
    text="By handler, few buckets; a stream ends at its first byte.",
    labels=("handler", "method"), buckets=HTTP_COARSE, unit=Unit.SECONDS,
)  # fmt: skip
HTTP_METRICS: tuple[Metric, ...] = (
    HTTP_REQUESTS, HTTP_REQUEST_SIZE, HTTP_RESPONSE_SIZE, HTTP_DURATION_FINE, HTTP_DURATION,
)  # fmt: skip
HTTP_NOT_COUNTED: frozenset[str] = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
"""Handlers that the HTTP metrics leave out."""
HTTP_UNKNOWN_HANDLER = "none"
"""Value of ``handler`` for paths that match no route."""
