"""
Records of the batching and request dimensions: what one engine and one model do, under one name for every release.

Old releases have no label ``engine``, new ones have one rank each: all is aggregated by node, instance and model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from sre.metrics import vllm
from sre.metrics.catalogue import variants
from sre.metrics.types import Metric
from sre.monitoring.gateway_requests import gateway_requests
from sre.monitoring.http_errors import ENGINE, engine_http
from sre.monitoring.levels import INSTANCE, LEVELS, MODEL_NAME, NODE
from sre.monitoring.model import Record
from sre.monitoring.promql import (
    RANGE_SCRAPES,
    Expr,
    Selection,
    either,
    equal_to_each,
    evaluated_at,
    max_by,
    over_time,
    present_by,
    quantile,
    ratio,
    sum_by,
    with_node,
)
from sre.settings.monitoring import MonitoringSettings

WINDOW = "5m"
REMEMBERED = "1d"
"""How long the model of an engine that does not answer is remembered."""
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


def joined(selection: Selection, metric: Metric, take: Callable[[Metric], Expr]) -> Expr | None:
    """
    The series of the metric under each name that the release exposes, the newest first; None without any.

    To be aggregated afterwards: while releases are mixed, ``or`` between sums of one model would leave out all replicas
    that have the older name.

    Args:
        take: Series of one name, not aggregated.
    """
    names = variants(metric, selection.versions.get(metric.exporter))
    return either(*(take(name) for name in names)) if names else None


def record_of(name: str, expr: Expr | None, text: str) -> Record | None:
    """A record, or None where there is nothing to record."""
    return None if expr is None else Record(name, expr, text)


def rate_by(
    selection: Selection, metric: Metric, *by: str, part: str = "", window: str = WINDOW, function: str = "rate"
) -> Expr | None:
    """Summed rate (or increase) of a counter, or of a histogram's part, under every name of it."""
    taken = selection.rate if function == "rate" else selection.increase
    every = joined(selection, metric, lambda one: taken(one, window, part=part))
    return None if every is None else sum_by(placed(every, by), *by)


def placed(expr: Expr, by: Iterable[str]) -> Expr:
    """The series with their node, where it is asked for."""
    return with_node(expr) if NODE in by else expr


def _scheduler(selection: Selection) -> Iterable[Record | None]:
    def gauge(metric: Metric) -> Expr | None:
        every = joined(selection, metric, selection.gauge)
        return None if every is None else sum_by(with_node(every), *ENGINE)

    yield record_of(
        "engine:vllm_requests_running:sum", gauge(vllm.REQUESTS_RUNNING),
        "Requests in the running batch; frozen while the engine hangs.",
    )  # fmt: skip
    running = joined(selection, vllm.REQUESTS_RUNNING, selection.gauge)
    seen = record_of(
        "engine:vllm_seen:timestamp_seconds",
        None if running is None else evaluated_at(present_by(with_node(running), *ENGINE)),
        "When the instance was last seen to serve the model.",
    )
    if seen is not None:
        yield seen
        yield Record(
            "engine:vllm_model:last",
            _newest(seen),
            f"1 for the model that the instance serves, or served last, in {REMEMBERED}.",
        )
    yield record_of("engine:vllm_requests_waiting:sum", gauge(vllm.REQUESTS_WAITING), "Requests in the engine's queue.")
    yield record_of(
        "engine:vllm_steps:rate5m", rate_by(selection, vllm.ITERATION_TOKENS, *ENGINE, part="count"),
        "Engine steps per second: the heartbeat.",
    )  # fmt: skip
    window = flat_window(selection)
    yield record_of(
        f"engine:vllm_steps:increase{window}",
        rate_by(selection, vllm.ITERATION_TOKENS, *ENGINE, part="count", window=window, function="increase"),
        f"Engine steps in {window}: 0 with requests in flight is a hang.",
    )
    yield record_of("engine:vllm_iteration_tokens:mean_rate5m", _mean(selection, vllm.ITERATION_TOKENS, *ENGINE),
                   "Tokens per engine step.")  # fmt: skip
    yield record_of(
        "engine:vllm_queue_seconds:mean_rate5m", _mean(selection, vllm.REQUEST_QUEUE_TIME, *ENGINE),
        "Mean time in the queue, of the requests that ended.",
    )  # fmt: skip
    yield record_of(
        "engine:vllm_queue_seconds:p99_rate5m", _quantile(selection, vllm.REQUEST_QUEUE_TIME, 0.99, *ENGINE),
        "Time in the queue that 99 % stay under; below the first edge this says nothing, see the mean.",
    )  # fmt: skip
    yield record_of(
        "engine:vllm_preemptions:rate5m", rate_by(selection, vllm.PREEMPTIONS, *ENGINE),
        "Requests per second put back into the queue because the KV cache was full.",
    )  # fmt: skip
    yield record_of(
        "engine:vllm_admission_rejections:rate5m", rate_by(selection, vllm.ADMISSION_REJECTIONS, *ENGINE),
        "Requests per second that vLLM itself answered 503 because its queue was full.",
    )  # fmt: skip


def _newest(seen: Record) -> Expr:
    """Of each instance the model that was seen last: one that it had before is not its model any more."""
    last = over_time("max_over_time", seen(), REMEMBERED)
    newest = max_by(last, NODE, INSTANCE)
    return present_by(equal_to_each(last, newest, NODE, INSTANCE), *ENGINE)


def _caches(selection: Selection) -> Iterable[Record | None]:
    every = joined(selection, vllm.KV_CACHE_USAGE, selection.gauge)
    usage = record_of(
        "engine:vllm_kv_cache_usage:ratio_max",
        None if every is None else max_by(with_node(every), *ENGINE),
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
        yield record_of("engine:vllm_prefix_cache_hits:ratio_rate5m", ratio(hits, queries),
                       "Share of the looked-up tokens that the prefix cache had.")  # fmt: skip


def _throughput(selection: Selection) -> Iterable[Record | None]:
    yield record_of(
        "engine:vllm_requests:rate5m", rate_by(selection, vllm.E2E_REQUEST_LATENCY, *ENGINE, part="count"),
        "Requests that ended with an answer, per second.",
    )  # fmt: skip
    yield record_of("engine:vllm_finished:rate5m", rate_by(selection, vllm.REQUEST_SUCCESS, *ENGINE),
                   "Sequences that ended, per second.")  # fmt: skip
    yield record_of(
        "engine_reason:vllm_finished:rate5m", rate_by(selection, vllm.REQUEST_SUCCESS, *LEVELS["engine_reason"]),
        "The same by reason; abort stays 0 in vLLM.",
    )  # fmt: skip
    yield record_of("engine:vllm_generation_tokens:rate5m", rate_by(selection, vllm.GENERATION_TOKENS, *ENGINE),
                   "Tokens generated per second.")  # fmt: skip
    yield record_of("engine:vllm_prompt_tokens:rate5m", rate_by(selection, vllm.PROMPT_TOKENS, *ENGINE),
                   "Prompt tokens processed per second.")  # fmt: skip


def _latencies(selection: Selection) -> Iterable[Record | None]:
    for short, (metric, text) in LATENCIES.items():
        for name, q in QUANTILES.items():
            yield record_of(f"engine:vllm_{short}_seconds:{name}_rate5m", _quantile(selection, metric, q, *ENGINE),
                           f"{text}: {q * 100:g} % stay under this, to the grain of the buckets.")  # fmt: skip
        yield record_of(f"model:vllm_{short}_seconds:p99_rate5m", _quantile(selection, metric, 0.99, MODEL_NAME),
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
    gateway = gateway_requests(selection, WINDOW)
    yield Record(
        "pool:requests_errors:ratio_rate5m",
        ratio(gateway.bad, gateway.judged),
        "Share of requests that failed or were refused for our reasons, as the gateway saw them; neutral left out.",
    )


def _mean(selection: Selection, metric: Metric, *by: str) -> Expr | None:
    """What a histogram observed, on average; exact, unlike a quantile."""
    total = rate_by(selection, metric, *by, part="sum")
    count = rate_by(selection, metric, *by, part="count")
    if total is None or count is None:
        return None
    return ratio(total, count, metric.unit)


def _quantile(selection: Selection, metric: Metric, q: float, *by: str) -> Expr | None:
    buckets = joined(selection, metric, lambda one: selection.rate(one, WINDOW, part="bucket"))
    return None if buckets is None else quantile(q, placed(buckets, by), *by)
