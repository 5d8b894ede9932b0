"""Requirement A2: size of the batch, time until a request is in it, KV cache, prefix cache, tokens per step."""

from __future__ import annotations

from sre.metrics import own, vllm
from sre.metrics.types import Metric
from sre.monitoring.dashboards import parts
from sre.monitoring.dashboards.model import Dashboard, Kind, Limit, Panel, Query, Shown
from sre.monitoring.dashboards.sources import (
    RUNNING,
    Sources,
    instance_variable,
    job_variable,
    labels,
    matcher,
    model_variable,
    record_variable,
)
from sre.monitoring.levels import INSTANCE, JOB, MODEL_NAME, NODE
from sre.monitoring.promql import LE, Expr, quantile, ratio, sum_by

UID = "sre-batching"
NO_ENGINE = "no engine"
NO_GUARD = "no traffic, or no guard"


def batching(from_: Sources) -> Dashboard:
    """The scheduler's view; each rank and the histograms at the end."""
    from_ = from_.choosing("job", "node", "model", "instance")
    return Dashboard(
        UID,
        "sre: batching",
        "What the scheduler does: batch size, batch formation, caches.",
        rows=(
            parts.row("Batch", _batch(from_)),
            parts.row("Queue", _queue(from_)),
            parts.row("Caches", _caches(from_)),
            parts.row("Raw metrics of the engines", _raw(from_), collapsed=True),
        ),
        variables=(
            job_variable(),
            record_variable("node", "Node", "Machine.", RUNNING, NODE),
            model_variable(),
            instance_variable(),
        ),
        annotations=parts.common_annotations(from_),
    )


def _batch(from_: Sources) -> tuple[Panel | None, ...]:
    sizes = sum_by(from_.rate(own.ENGINE_BATCH_SIZE, *_pool(), part="bucket"), LE)
    mean = ratio(
        sum_by(from_.rate(own.ENGINE_BATCH_SIZE, *_pool(), part="sum"), own.ENGINE),
        sum_by(from_.rate(own.ENGINE_BATCH_SIZE, *_pool(), part="count"), own.ENGINE),
        own.ENGINE_BATCH_SIZE.unit,
    )
    return (
        Panel(
            "batch-size", "Batch size", Kind.HEATMAP, Shown.COUNT, (Query(sizes, labels(LE)),),
            "Share of time spent at each number of running requests, from the guard's histogram (pool = model).",
            "always 1: nothing is batched; always the largest: requests wait.", empty=NO_GUARD, width=12,
        ),
        Panel(
            "batch-size-mean", "Mean batch size", Kind.LINES, Shown.COUNT, (Query(mean, labels(own.ENGINE)),),
            "Running requests, averaged over time.", "far below the limit while requests wait.", empty=NO_GUARD,
            width=12,
        ),
        parts.lines(
            from_, "running-waiting", "Requests running and waiting", Shown.COUNT,
            (RUNNING, "engine:vllm_requests_waiting:sum"),
            "Requests in the running batch, and those that wait for a place in it.",
            "a queue that grows: more arrives than is served.", legends=("running", "waiting"), empty=NO_ENGINE,
            alerts=("VllmQueueGrowing",),
        ),
        parts.lines(
            from_, "iteration-tokens", "Tokens per step", Shown.COUNT, ("engine:vllm_iteration_tokens:mean_rate5m",),
            "Mean number of tokens, prompt and answer, in one step of the engine.",
            "a few tokens per step under load: the batch does not fill.",
        ),
        parts.lines(
            from_, "steps", "Engine steps", Shown.PER_SECOND, ("engine:vllm_steps:rate5m",),
            "Steps of the engine per second: its heartbeat.", "zero with requests in flight: the engine hangs.",
            alerts=("VllmEngineHung",), empty=NO_ENGINE,
        ),
        parts.lines(
            from_, "admission-rejections", "Refused by the engine", Shown.REQUESTS_PER_SECOND,
            ("engine:vllm_admission_rejections:rate5m",), "Requests that vLLM itself answered 503: its queue was full.",
            "any: the gateway should have sent them elsewhere.", alerts=("VllmAdmissionRejections",),
            empty="none, or not exported", width=24, height=6,
        ),
    )  # fmt: skip


def _queue(from_: Sources) -> tuple[Panel | None, ...]:
    thresholds = from_.settings.thresholds
    formation = quantile(0.99, from_.rate(own.ENGINE_BATCH_FORMATION_SECONDS, *_pool(), part="bucket"), own.ENGINE)
    return (
        parts.lines(
            from_, "queue-mean", "Batch formation, mean", Shown.SECONDS, ("engine:vllm_queue_seconds:mean_rate5m",),
            "Mean time from arrival to the first place in a batch; exact, also below vLLM's first bucket of 0.3 s.",
            "a rise without a rise of traffic.", alerts=("VllmQueueLatencyHigh",),
        ),
        parts.lines(
            from_, "queue-p99", "Batch formation, P99 of the engine", Shown.SECONDS,
            ("engine:vllm_queue_seconds:p99_rate5m",),
            "Time in the queue that 99 % of requests stay below. Buckets begin at 0.3 s: what is shorter is a guess.",
            "above the threshold.", limits=(Limit(thresholds.queue_seconds, "VllmQueueLatencyHigh"),),
        ),
        Panel(
            "formation-p99", "Batch formation, P99 of the guard", Kind.LINES, Shown.SECONDS,
            (Query(formation, labels(own.ENGINE)),),
            "The same from the guard's finer buckets, which begin at 1 ms: means per tick, weighted by requests.",
            "a rise without a rise of traffic.", empty=NO_GUARD,
        ),
    )  # fmt: skip


def _caches(from_: Sources) -> tuple[Panel | None, ...]:
    thresholds = from_.settings.thresholds
    return (
        parts.lines(
            from_, "kv-cache-usage", "KV-cache usage", Shown.RATIO, ("engine:vllm_kv_cache_usage:ratio_max",),
            "Share of the KV cache in use.", "near 1 requests are put back into the queue (preemption).", top=1.0,
            limits=(Limit(thresholds.kv_cache_usage_ratio, "VllmKvCacheNearlyFull"),), empty=NO_ENGINE,
        ),
        parts.lines(
            from_, "preemptions", "Preemptions", Shown.PER_SECOND, ("engine:vllm_preemptions:rate5m",),
            "Requests put back into the queue because the KV cache was full; their work is done again.",
            "anything lasting.", limits=(Limit(thresholds.preemptions_per_second, "VllmPreemptions"),),
            empty=NO_ENGINE,
        ),
        parts.lines(
            from_, "prefix-cache-hits", "Prefix-cache hit ratio", Shown.RATIO,
            ("engine:vllm_prefix_cache_hits:ratio_rate5m",),
            "Share of prompt tokens found in the prefix cache.", "below the threshold where prompts share a beginning.",
            limits=(Limit(thresholds.prefix_cache_hits_ratio, "VllmPrefixCacheHitLow", below=True),), top=1.0,
        ),
    )  # fmt: skip


def _raw(from_: Sources) -> tuple[Panel | None, ...]:
    chosen = (matcher(JOB, "job"), matcher(INSTANCE, "instance"), matcher(MODEL_NAME, "model"))

    def gauge(metric: Metric, by: str) -> Expr | None:
        return from_.joined(
            metric, lambda one: from_.raw.gauge(one, *chosen), lambda every: sum_by(every, INSTANCE, by)
        )

    tokens = from_.joined(
        vllm.ITERATION_TOKENS, lambda one: from_.rate(one, *chosen, part="bucket"), lambda every: sum_by(every, LE)
    )
    formation = sum_by(from_.rate(own.ENGINE_BATCH_FORMATION_SECONDS, *_pool(), part="bucket"), LE)
    return (
        _drill(
            "raw-running", "Running, per data-parallel rank", Kind.LINES, Shown.COUNT,
            gauge(vllm.REQUESTS_RUNNING, vllm.ENGINE), labels(INSTANCE, vllm.ENGINE),
            "Running requests of each rank.", "one rank full, another empty: the balancing fails.", NO_ENGINE,
        ),
        _drill(
            "raw-waiting", "Waiting, by reason", Kind.LINES, Shown.COUNT,
            gauge(vllm.REQUESTS_WAITING_BY_REASON, "reason"), labels(INSTANCE, "reason"),
            "Waiting requests by reason; older releases do not say.", "capacity: the batch or the KV cache is full.",
            "not exported",
        ),
        _drill(
            "raw-iteration-tokens", "Tokens per step", Kind.HEATMAP, Shown.COUNT, tokens, labels(LE),
            "How many tokens the steps hold.", "single large steps between small ones: prefills hold up answers.",
            "no traffic",
        ),
        _drill(
            "raw-formation", "Batch formation", Kind.HEATMAP, Shown.SECONDS, formation, labels(LE),
            "How long requests waited for a place in a batch, as the guard saw it.", "a second band far above.",
            NO_GUARD,
        ),
    )  # fmt: skip


def _drill(
    key: str, title: str, kind: Kind, shown: Shown, expr: Expr | None, legends: str, about: str, bad: str, empty: str
) -> Panel | None:
    if expr is None:
        return None
    return Panel(key, title, kind, shown, (Query(expr, legends),), about, bad, empty=empty, width=12)


def _pool() -> tuple[str, ...]:
    """The guard names pools as the models they serve."""
    return (matcher(own.POOL, "model"),)
