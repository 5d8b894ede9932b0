"""
Names that vLLM no longer exposes, or only on request: what old releases have, and what rules must not use any more.

Read off vLLM's source at several commits between 0.8 and 0.12 (comments there name the release of a deprecation); where
the release of the removal is planned only, it is the planned one.
"""

from __future__ import annotations

from functools import partial

from sre.metrics import vllm
from sre.metrics.types import Kind, Metric, Unit
from sre.metrics.vllm import declared

# Of the engine that is there today (V1)
GPU_CACHE_USAGE = declared(
    "vllm:gpu_cache_usage_perc", kind=Kind.GAUGE, text="Share of the KV cache in use, 0 to 1.", unit=Unit.RATIO,
    deprecated="0.9.2", hidden="0.11", removed="0.12", replaced_by=vllm.KV_CACHE_USAGE.sample,
)  # fmt: skip
GPU_PREFIX_CACHE_QUERIES = declared(
    "vllm:gpu_prefix_cache_queries", kind=Kind.COUNTER, text="Blocks (0.8) or tokens looked up in the prefix cache.",
    unit=Unit.TOKENS, deprecated="0.9.2", hidden="0.11", removed="0.12",
    replaced_by=vllm.PREFIX_CACHE_QUERIES.sample,
)  # fmt: skip
GPU_PREFIX_CACHE_HITS = declared(
    "vllm:gpu_prefix_cache_hits", kind=Kind.COUNTER, text="Blocks (0.8) or tokens found in the prefix cache.",
    unit=Unit.TOKENS, deprecated="0.9.2", hidden="0.11", removed="0.12", replaced_by=vllm.PREFIX_CACHE_HITS.sample,
)  # fmt: skip
TIME_PER_OUTPUT_TOKEN = declared(
    "vllm:time_per_output_token_seconds", kind=Kind.HISTOGRAM,
    text="Time between two tokens of a request, in seconds.", buckets=vllm.INTER_TOKEN, unit=Unit.SECONDS,
    deprecated="0.10.2", hidden="0.12", removed="0.15", replaced_by=vllm.INTER_TOKEN_LATENCY.name,
)  # fmt: skip

# Of the V0 engine, gone with it; deprecated in 0.8 because V1 has no such thing, or has it under another name.
_v0 = partial(declared, deprecated="0.8", hidden="0.9", removed="0.10", per_engine=False, labels=(vllm.MODEL_NAME,))
TIME_IN_QUEUE_REQUESTS = _v0(
    "vllm:time_in_queue_requests", kind=Kind.HISTOGRAM, text="Time in the queue, in seconds.",
    buckets=vllm.LATENCY, unit=Unit.SECONDS, replaced_by=vllm.REQUEST_QUEUE_TIME.name,
)  # fmt: skip
MODEL_FORWARD_TIME = _v0(
    "vllm:model_forward_time_milliseconds", kind=Kind.HISTOGRAM, text="Time of the forward pass, in milliseconds.",
    unit=Unit.MILLISECONDS, replaced_by=vllm.REQUEST_INFERENCE_TIME.name,
)  # fmt: skip
MODEL_EXECUTE_TIME = _v0(
    "vllm:model_execute_time_milliseconds", kind=Kind.HISTOGRAM, text="Time to execute the model, in milliseconds.",
    unit=Unit.MILLISECONDS, replaced_by=vllm.REQUEST_INFERENCE_TIME.name,
)  # fmt: skip
REQUESTS_SWAPPED = _v0(
    "vllm:num_requests_swapped", kind=Kind.GAUGE, text="Requests swapped to the CPU.", unit=Unit.REQUESTS,
    replaced_by=vllm.PREEMPTIONS.sample,
)  # fmt: skip
CPU_CACHE_USAGE = _v0(
    "vllm:cpu_cache_usage_perc", kind=Kind.GAUGE, text="Share of the CPU's KV cache in use, 0 to 1.", unit=Unit.RATIO
)
CPU_PREFIX_CACHE_HIT_RATE = _v0(
    "vllm:cpu_prefix_cache_hit_rate", kind=Kind.GAUGE, text="Prefix cache hits on the CPU, 0 to 1.", unit=Unit.RATIO
)
GPU_PREFIX_CACHE_HIT_RATE = _v0(
    "vllm:gpu_prefix_cache_hit_rate", kind=Kind.GAUGE, text="Prefix cache hits on the GPU, 0 to 1.", unit=Unit.RATIO,
    replaced_by=vllm.PREFIX_CACHE_HITS.sample,
)  # fmt: skip
AVG_PROMPT_THROUGHPUT = _v0(
    "vllm:avg_prompt_throughput_toks_per_s", kind=Kind.GAUGE, text="Prompt tokens per second.", unit=Unit.TOKENS,
    replaced_by=vllm.PROMPT_TOKENS.sample,
)  # fmt: skip
AVG_GENERATION_THROUGHPUT = _v0(
    "vllm:avg_generation_throughput_toks_per_s", kind=Kind.GAUGE, text="Generated tokens per second.",
    unit=Unit.TOKENS, replaced_by=vllm.GENERATION_TOKENS.sample,
)  # fmt: skip
SPEC_DECODE_DRAFT_ACCEPTANCE_RATE = _v0(
    "vllm:spec_decode_draft_acceptance_rate", kind=Kind.GAUGE, text="Drafted tokens accepted, 0 to 1.",
    unit=Unit.RATIO, optional=True, replaced_by=vllm.SPEC_DECODE_ACCEPTED_TOKENS.sample,
)  # fmt: skip
SPEC_DECODE_EFFICIENCY = _v0(
    "vllm:spec_decode_efficiency", kind=Kind.GAUGE, text="Efficiency of speculative decoding, 0 to 1.",
    unit=Unit.RATIO, optional=True, replaced_by=vllm.SPEC_DECODE_ACCEPTED_TOKENS.sample,
)  # fmt: skip

PAST_METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
