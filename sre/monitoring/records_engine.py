"""
Records of the batching and request dimensions: what one engine and one model do, under one name for every release.

Old releases have no label ``engine``, new ones have one rank each: all is aggregated by node, instance and model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from sre.metrics import own, vllm
from sre.metrics.catalogue import variants
from sre.metrics.types import Metric
from sre.monitoring.http_errors import ENGINE, engine_http
from sre.monitoring.levels import LEVELS, MODEL_NAME, NODE, POOL
from sre.monitoring.model import Record
from sre.monitoring.promql import (
    RANGE_SCRAPES,
    Expr,
    Selection,
    among,
    either,
    max_by,
    or_zero,
    quantile,
    ratio,
    sum_by,
    with_node,
)
from sre.settings.monitoring import MonitoringSettings

WINDOW = "5m"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
LATENCIES = {
    "e2e": (vllm.E2E_REQUEST_LATENCY, "Arrival to last token"),
    "ttft": (vllm.TIME_TO_FIRST_TOKEN, "Arrival to first token"),
    "itl": (vllm.INTER_TOKEN_LATENCY, "Between two streamed events"),
}


FLAT_SECONDS = 60
"""No step for so long, where only Prometheus counts them: longer than prefills and compilations that are legal."""


def flat_window(selection: Selection) -> str:
    """Range over which steps are counted: a minute, or four scrapes if that is longer."""
    return at_least_four_scrapes(selection, FLAT_SECONDS)


def at_least_four_scrapes(selection: Selection, seconds: int) -> str:
    """A range of ``seconds``, or of four scrapes if that is longer."""
    longest = max(seconds, math.ceil(RANGE_SCRAPES * selection.scrape_interval_seconds))
    return f"{longest // 60}m" if longest % 60 == 0 else f"{longest}s"


def records(selection: Selection, settings: MonitoringSettings) -> list[Record]:
    """Records of engines, models and pools; what the chosen release does not expose is left out."""
    return [
        record
        for make in (_scheduler, _caches, _throughput, _latencies, _errors)
        for record in make(selection)
        if record is not None
    ]


def joined(selection: Selection, metric: Metric, build: Callable[[Metric], Expr]) -> Expr | None:
    """``build`` of the metric under each name that the release exposes, the newest first; None without any."""
    names = variants(metric, selection.versions.get(metric.exporter))
    return either(*(build(name) for name in names)) if names else None


def recorded(name: str, expr: Expr | None, text: str) -> Record | None:
    """A record, or None where there is nothing to record."""
    return None if expr is None else Record(name, expr, text)


def rate_by(
    selection: Selection, metric: Metric, *by: str, part: str = "", window: str = WINDOW, function: str = "rate"
) -> Expr | None:
    """Summed rate (or increase) of a counter, or of a histogram's part, under every name of it."""
    taken = selection.rate if function == "rate" else selection.increase
    return joined(selection, metric, lambda one: sum_by(placed(taken(one, window, part=part), by), *by))


def placed(expr: Expr, by: Iterable[str]) -> Expr:
    """The series with their node, where it is asked for."""
    return with_node(expr) if NODE in by else expr


def _scheduler(selection: Selection) -> Iterable[Record | None]:
    def gauge(metric: Metric) -> Expr | None:
        return joined(selection, metric, lambda one: sum_by(with_node(selection.gauge(one)), *ENGINE))

    yield recorded(
        "engine:vllm_requests_running:sum", gauge(vllm.REQUESTS_RUNNING),
        "Requests in the running batch; frozen while the engine hangs.",
    )  # fmt: skip
    yield recorded("engine:vllm_requests_waiting:sum", gauge(vllm.REQUESTS_WAITING), "Requests in the engine's queue.")
    yield recorded(
        "engine:vllm_steps:rate5m", rate_by(selection, vllm.ITERATION_TOKENS, *ENGINE, part="count"),
        "Engine steps per second: the heartbeat.",
    )  # fmt: skip
    window = flat_window(selection)
    yield recorded(
        f"engine:vllm_steps:increase{window}",
        rate_by(selection, vllm.ITERATION_TOKENS, *ENGINE, part="count", window=window, function="increase"),
        f"Engine steps in {window}: 0 with requests in flight is a hang.",
    )
    yield recorded("engine:vllm_iteration_tokens:mean_rate5m", _mean(selection, vllm.ITERATION_TOKENS, *ENGINE),
                   "Tokens per engine step.")  # fmt: skip
    yield recorded(
        "engine:vllm_queue_seconds:mean_rate5m", _mean(selection, vllm.REQUEST_QUEUE_TIME, *ENGINE),
        "Mean time in the queue, of the requests that ended.",
    )  # fmt: skip
    yield recorded(
        "engine:vllm_queue_seconds:p99_rate5m", _quantile(selection, vllm.REQUEST_QUEUE_TIME, 0.99, *ENGINE),
        "Time in the queue that 99 % stay under; below the first edge this says nothing, see the mean.",
    )  # fmt: skip
    yield recorded(
        "engine:vllm_preemptions:rate5m", rate_by(selection, vllm.PREEMPTIONS, *ENGINE),
        "Requests per second put back into the queue because the KV cache was full.",
    )  # fmt: skip
    yield recorded(
        "engine:vllm_admission_rejections:rate5m", rate_by(selection, vllm.ADMISSION_REJECTIONS, *ENGINE),
        "Requests per second that vLLM itself answered 503 because its queue was full.",
    )  # fmt: skip


def _caches(selection: Selection) -> Iterable[Record | None]:
    usage = recorded(
        "engine:vllm_kv_cache_usage:ratio_max",
        joined(selection, vllm.KV_CACHE_USAGE, lambda one: max_by(with_node(selection.gauge(one)), *ENGINE)),
        "KV cache in use, of the fullest rank.",
    )
    if usage is not None:
        yield usage
        yield Record(
            "model:vllm_kv_cache_usage:ratio_max",
            max_by(usage(), MODEL_NAME),
            "KV cache in use, of the model's fullest engine.",
        )
    hits = rate_by(selection, vllm.PREFIX_CACHE_HITS, *ENGINE)
    queries = rate_by(selection, vllm.PREFIX_CACHE_QUERIES, *ENGINE)
    if hits is not None and queries is not None:
        yield recorded("engine:vllm_prefix_cache_hits:ratio_rate5m", ratio(hits, queries),
                       "Share of the looked-up tokens that the prefix cache had.")  # fmt: skip


def _throughput(selection: Selection) -> Iterable[Record | None]:
    yield recorded(
        "engine:vllm_requests:rate5m", rate_by(selection, vllm.E2E_REQUEST_LATENCY, *ENGINE, part="count"),
        "Requests that ended with an answer, per second.",
    )  # fmt: skip
    yield recorded("engine:vllm_finished:rate5m", rate_by(selection, vllm.REQUEST_SUCCESS, *ENGINE),
                   "Sequences that ended, per second.")  # fmt: skip
    yield recorded(
        "engine_reason:vllm_finished:rate5m", rate_by(selection, vllm.REQUEST_SUCCESS, *LEVELS["engine_reason"]),
        "The same by reason; abort stays 0 in vLLM.",
    )  # fmt: skip
    yield recorded("engine:vllm_generation_tokens:rate5m", rate_by(selection, vllm.GENERATION_TOKENS, *ENGINE),
                   "Tokens generated per second.")  # fmt: skip
    yield recorded("engine:vllm_prompt_tokens:rate5m", rate_by(selection, vllm.PROMPT_TOKENS, *ENGINE),
                   "Prompt tokens processed per second.")  # fmt: skip


def _latencies(selection: Selection) -> Iterable[Record | None]:
    for short, (metric, text) in LATENCIES.items():
        for name, q in QUANTILES.items():
            yield recorded(f"engine:vllm_{short}_seconds:{name}_rate5m", _quantile(selection, metric, q, *ENGINE),
                           f"{text}: {q * 100:g} % stay under this, to the grain of the buckets.")  # fmt: skip
        yield recorded(f"model:vllm_{short}_seconds:p99_rate5m", _quantile(selection, metric, 0.99, MODEL_NAME),
                       f"{text}: 99 % of a model's stay under this.")  # fmt: skip


def _errors(selection: Selection) -> Iterable[Record | None]:
    http = engine_http(selection, WINDOW)
    served = Record("engine:http_requests:rate5m", http.served, "POSTs per second that vLLM answered 2xx or 5xx.")
    errors = Record(
        "engine:http_errors:rate5m",
        http.errors,
        "Requests per second that failed: HTTP 5xx without those shed at admission.",
    )
    yield from (served, errors)
    yield Record("engine:http_errors:ratio_rate5m", ratio(errors(), served()), "Share of requests that failed.")
    failed = outcomes(selection, "failure")
    judged = outcomes(selection, "success", "failure")
    yield Record(
        "pool:requests_errors:ratio_rate5m",
        ratio(or_zero(failed, judged), judged),
        "Share of requests that failed, as the gateway saw them; neutral outcomes left out.",
    )


def outcomes(selection: Selection, *outcome: str) -> Expr:
    """Requests per second that ended with such an outcome at the gateway, by pool."""
    return sum_by(selection.rate(own.REQUESTS, WINDOW, among("outcome", *outcome)), POOL)


def _mean(selection: Selection, metric: Metric, *by: str) -> Expr | None:
    """What a histogram observed, on average; exact, unlike a quantile."""

    def build(one: Metric) -> Expr:
        total, count = (sum_by(placed(selection.rate(one, WINDOW, part=part), by), *by) for part in ("sum", "count"))
        return ratio(total, count, one.unit)

    return joined(selection, metric, build)


def _quantile(selection: Selection, metric: Metric, q: float, *by: str) -> Expr | None:
    def build(one: Metric) -> Expr:
        return quantile(q, placed(selection.rate(one, WINDOW, part="bucket"), by), *by)

    return joined(selection, metric, build)
