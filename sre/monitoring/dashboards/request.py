"""Requirement A3: latencies, errors, reasons of ending, throughput; and where the time goes (F2)."""

from __future__ import annotations

from sre.metrics import vllm
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
from sre.monitoring.promql import LE, Expr, ratio, sum_by

UID = "sre-request"
RESETS_WINDOW = "10m"
QUANTILES = ("p50", "p90", "p99")


def request(from_: Sources) -> Dashboard:
    """Latency, errors, throughput; the parts of the latency at the end."""
    from_ = from_.choosing("job", "node", "model", "instance")
    return Dashboard(
        UID,
        "sre: requests",
        "What users feel: latency, errors, throughput.",
        rows=(
            parts.row("Engines", (_engines(from_),)),
            parts.row("Latency", _latency(from_)),
            parts.row("Errors and ends", _errors(from_)),
            parts.row("Throughput", _throughput(from_)),
            parts.row("Where the time goes: raw metrics of the engines", _raw(from_), collapsed=True),
        ),
        variables=(
            job_variable(),
            record_variable("node", "Node", "Machine.", RUNNING, NODE),
            model_variable(),
            instance_variable(),
        ),
        annotations=parts.common_annotations(from_),
    )


def _engines(from_: Sources) -> Panel:
    return parts.targets(
        from_, "engines-up", "Engines answer", (from_.settings.jobs.vllm,), "Whether each engine's /metrics answers.",
        ("VllmEngineDown", "VllmModelDown", "VllmAllEnginesDown", "VllmTargetAbsent", "VllmMetricsMissing"),
        matcher(INSTANCE, "instance"),
    )  # fmt: skip


def _latency(from_: Sources) -> tuple[Panel | None, ...]:
    thresholds = from_.settings.thresholds

    def quantiles(key: str, title: str, family: str, about: str, bad: str, limit: Limit) -> Panel | None:
        names = tuple(f"engine:vllm_{family}_seconds:{q}_rate5m" for q in QUANTILES)
        return parts.lines(
            from_, key, title, Shown.SECONDS, names, about, bad, legends=tuple(q.upper() for q in QUANTILES),
            limits=(limit,), height=9,
        )  # fmt: skip

    return (
        quantiles(
            "e2e", "End-to-end latency", "e2e",
            "Arrival to last token; observed when a request ends, so a long one shows late. Between two bucket edges "
            "the value is interpolated.",
            "P99 above the threshold.", Limit(thresholds.e2e_seconds, "VllmLatencyHigh"),
        ),
        quantiles(
            "ttft", "Time to first token", "ttft", "Arrival to first token: queue and prefill.",
            "P99 above the threshold.", Limit(thresholds.ttft_seconds, "VllmTimeToFirstTokenHigh"),
        ),
        quantiles(
            "itl", "Inter-token latency", "itl",
            "Time between two streamed events of a request; with speculative decoding one event holds several tokens.",
            "P99 above the threshold: answers stutter.",
            Limit(thresholds.inter_token_seconds, "VllmInterTokenLatencyHigh"),
        ),
        parts.lines(
            from_, "model-p99", "P99 per model", Shown.SECONDS,
            (
                "model:vllm_e2e_seconds:p99_rate5m",
                "model:vllm_ttft_seconds:p99_rate5m",
                "model:vllm_itl_seconds:p99_rate5m",
            ),
            "The three latencies over all engines of a model.", "one engine above it drags the model along.",
            legends=("end to end", "first token", "inter-token"), width=12,
        ),
        parts.lines(
            from_, "queue-mean", "Queue time, mean", Shown.SECONDS, ("engine:vllm_queue_seconds:mean_rate5m",),
            "Mean time in the queue: the part of the first token's time that more engines would shorten.",
            "most of the time to first token.", width=12, alerts=("VllmQueueLatencyHigh",),
        ),
    )  # fmt: skip


def _errors(from_: Sources) -> tuple[Panel | None, ...]:
    limit = Limit(from_.settings.thresholds.error_ratio, "VllmErrorRatioHigh")
    return (
        parts.lines(
            from_, "errors-gateway", "Error ratio at the gateway", Shown.RATIO, ("pool:requests_errors:ratio_rate5m",),
            "Share of requests that failed, broken streams included, as the gateway saw it.", "above the threshold.",
            limits=(limit,),
        ),
        parts.lines(
            from_, "errors-http", "Error ratio of the engine's HTTP server", Shown.RATIO,
            ("engine:http_errors:ratio_rate5m",),
            "Share of 5xx answers, refusals because of a full queue left out. Streams that break are not in it.",
            "above the threshold.", limits=(limit,), alerts=("VllmAdmissionRejections",),
        ),
        parts.lines(
            from_, "finished", "Requests that ended, by reason", Shown.REQUESTS_PER_SECOND,
            ("engine_reason:vllm_finished:rate5m",),
            "stop: the model ended it; length: cut at max_tokens; error: it failed.",
            "error; or length where answers should end by themselves.", stacked=True,
        ),
    )  # fmt: skip


def _throughput(from_: Sources) -> tuple[Panel | None, ...]:
    return (
        parts.lines(
            from_, "requests", "Requests", Shown.REQUESTS_PER_SECOND,
            ("engine:vllm_requests:rate5m", "engine:vllm_finished:rate5m"),
            "Requests that ended with an answer, and sequences that ended: n of them where a request asks for n.",
            "a drop that clients did not ask for.", legends=("requests", "sequences"),
        ),
        parts.lines(
            from_, "generation-tokens", "Generated tokens", Shown.TOKENS_PER_SECOND,
            ("engine:vllm_generation_tokens:rate5m",),
            "Tokens of answers per second.", "a drop while requests run.", alerts=("VllmEngineHung",), stacked=True,
        ),
        parts.lines(
            from_, "prompt-tokens", "Prompt tokens", Shown.TOKENS_PER_SECOND, ("engine:vllm_prompt_tokens:rate5m",),
            "Tokens of prompts per second.", "bursts: long prompts hold up the answers of others.", stacked=True,
        ),
    )  # fmt: skip


def _raw(from_: Sources) -> tuple[Panel | None, ...]:
    target = (matcher(JOB, "job"), matcher(INSTANCE, "instance"))
    chosen = (*target, matcher(MODEL_NAME, "model"))

    def mean(metric: Metric) -> Query | None:
        def summed(part: str) -> Expr | None:
            return from_.joined(
                metric, lambda one: from_.rate(one, *chosen, part=part), lambda every: sum_by(every, MODEL_NAME)
            )

        total, count = summed("sum"), summed("count")
        if total is None or count is None:
            return None
        name = metric.name.removeprefix("vllm:request_").removesuffix("_time_seconds")
        return Query(ratio(total, count, metric.unit), f"{name} {labels(MODEL_NAME)}")

    def heatmap(key: str, title: str, metric: Metric, bad: str) -> Panel | None:
        buckets = from_.joined(
            metric, lambda one: from_.rate(one, *chosen, part="bucket"), lambda every: sum_by(every, LE)
        )
        if buckets is None:
            return None
        return Panel(key, title, Kind.HEATMAP, Shown.SECONDS, (Query(buckets, labels(LE)),), metric.help, bad)

    resets = from_.joined(
        vllm.GENERATION_TOKENS,
        lambda one: from_.raw.over_time("resets", one, RESETS_WINDOW, *chosen),
        lambda every: sum_by(every, INSTANCE),
    )
    http = sum_by(from_.rate(vllm.HTTP_REQUESTS, *target), "status", "handler")
    pieces = tuple(
        query
        for metric in (vllm.REQUEST_QUEUE_TIME, vllm.REQUEST_PREFILL_TIME, vllm.REQUEST_DECODE_TIME)
        if (query := mean(metric)) is not None
    )
    return (
        Panel(
            "raw-parts", "Mean time per part", Kind.LINES, Shown.SECONDS, pieces,
            "Queue, prefill (compute until the first token) and decode, per request; together the time in the engine.",
            "the part that grew is where to look: queue, capacity; prefill, long prompts; decode, batch or bandwidth.",
            width=12, stacked=True,
        ) if pieces else None,
        Panel(
            "raw-http", "HTTP answers", Kind.LINES, Shown.REQUESTS_PER_SECOND,
            (Query(http, labels("status", "handler")),), "Answers by class of status and path.", "5xx on completions.",
            width=12, stacked=True,
        ),
        heatmap("raw-e2e", "End-to-end latency", vllm.E2E_REQUEST_LATENCY, "a second band far above the first."),
        heatmap("raw-ttft", "Time to first token", vllm.TIME_TO_FIRST_TOKEN, "a second band far above the first."),
        heatmap("raw-itl", "Inter-token latency", vllm.INTER_TOKEN_LATENCY, "a band of long pauses: prefills between."),
        Panel(
            "raw-resets", "Counter resets", Kind.LINES, Shown.COUNT, (Query(resets, labels(INSTANCE)),),
            "How often the token counter went back in 10 minutes.",
            "several without a restart: workers share one port, and rates are invented.", empty="no engine", width=24,
            height=6, alerts=("VllmCounterResets",),
        ) if resets is not None else None,
    )  # fmt: skip
