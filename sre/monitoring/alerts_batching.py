"""Alerts of the batching dimension: KV cache, queue, preemptions. Causes, not symptoms: tickets at most."""

from __future__ import annotations

from functools import partial

from sre.metrics import vllm
from sre.monitoring import engine_scenarios as cases
from sre.monitoring import records_engine
from sre.monitoring.engine_scenarios import ENGINE_LABELS, STEP_SECONDS, THE_ENGINE, engine_series
from sre.monitoring.model import Alert, Dimension, Input, Missing, Rising, Scenario, Severity, Steady
from sre.monitoring.promql import Selection, both, compare, less_than, number, over_time, scaled
from sre.monitoring.recorded import Recorded
from sre.settings.monitoring import MonitoringSettings

LEAST_REQUESTS_PER_SECOND = 0.1
"""30 in five minutes: of fewer the 99th percentile is the slowest one."""
SOON_SECONDS = 7200
"""A queue that is empty after that, if it goes on so, shrinks."""
LEAST_PROMPT_TOKENS_PER_SECOND = 100.0
"""Below that a hit ratio says nothing."""

_alert = partial(Alert, dimension=Dimension.BATCHING, component="engine", dashboard="sre-batching")


def alerts(selection: Selection, settings: MonitoringSettings) -> list[Alert]:
    """Those that the chosen release has the signals for."""
    recorded = Recorded(records_engine.records(selection, settings))
    makers = (_kv_cache, _preemptions, _queue_growing, _queue_latency, _prefix_cache, _rejections)
    made = (make(selection, settings, recorded) for make in makers)
    return [alert for alert in made if alert is not None]


def _kv_cache(selection: Selection, settings: MonitoringSettings, recorded: Recorded) -> Alert | None:
    usage = recorded.find("engine:vllm_kv_cache_usage:ratio_max")
    if usage is None:
        return None
    return _alert(
        name="VllmKvCacheNearlyFull",
        expr=compare(usage, ">", settings.thresholds.kv_cache_usage_ratio),
        for_="10m",
        severity=Severity.TICKET,
        summary=f"KV cache of {THE_ENGINE} is {{{{ $value | humanizePercentage }}}} full",
        description=(
            f"{THE_ENGINE} has little room for further tokens: requests wait, and running ones are put back"
            " (preempted) and computed again."
        ),
        scenario=Scenario(
            (cases.steady(
                    engine_series(selection, vllm.KV_CACHE_USAGE), 1,
                    settings.thresholds.kv_cache_usage_ratio / 2, 0,
                ),),
            fires_after="11m", resolves_after="2m", labels=ENGINE_LABELS, value="100%",
        ),
    )  # fmt: skip


def _preemptions(selection: Selection, settings: MonitoringSettings, recorded: Recorded) -> Alert | None:
    rate = recorded.find("engine:vllm_preemptions:rate5m")
    if rate is None:
        return None
    per_second = cases.above(settings.thresholds.preemptions_per_second)
    return _alert(
        name="VllmPreemptions",
        expr=compare(rate, ">", settings.thresholds.preemptions_per_second),
        for_="10m",
        keep_firing_for="10m",
        severity=Severity.TICKET,
        summary=f"{THE_ENGINE} puts back {{{{ $value | humanize }}}} running requests a second",
        description=(
            f"The KV cache of {THE_ENGINE} is too small for the batch: requests lose their place and are computed"
            " again from the start. Less concurrency or more cache helps; a smaller gpu-memory-utilization does not."
        ),
        scenario=Scenario(
            (
                Input(
                    engine_series(selection, vllm.PREEMPTIONS), firing=Rising(per_second * STEP_SECONDS),
                    quiet=Rising(cases.below(settings.thresholds.preemptions_per_second) * STEP_SECONDS),
                ),
            ),
            fires_after="16m", resolves_after="17m", labels=ENGINE_LABELS, value=cases.humanized(per_second),
        ),
    )  # fmt: skip


def _queue_growing(selection: Selection, settings: MonitoringSettings, recorded: Recorded) -> Alert | None:
    waiting = recorded.find("engine:vllm_requests_waiting:sum")
    if waiting is None:
        return None
    threshold = settings.thresholds.requests_waiting
    # Not "deriv >= 0": a plateau that wavers would start anew with each dip.
    gone_soon = scaled(over_time("deriv", waiting, "15m"), -SOON_SECONDS, waiting.unit)
    return _alert(
        name="VllmQueueGrowing",
        expr=both(compare(waiting, ">", threshold), less_than(gone_soon, waiting)),
        for_="10m",
        severity=Severity.TICKET,
        summary=f"the queue of {THE_ENGINE} stays beyond {number(threshold)} requests, and does not shrink",
        description=(
            f"As many requests reach {THE_ENGINE} as it finishes, or more, for ten minutes now: the queue does not get"
            " shorter by itself, and every request waits through it."
        ),
        scenario=Scenario(
            (
                Input(
                    engine_series(selection, vllm.REQUESTS_WAITING), firing=Rising(cases.above(threshold)),
                    quiet=Steady(1), idle=Steady(0),
                ),
            ),
            fires_after="12m", resolves_after="2m", labels=ENGINE_LABELS,
        ),
    )  # fmt: skip


def _queue_latency(selection: Selection, settings: MonitoringSettings, recorded: Recorded) -> Alert | None:
    p99, requests = recorded.find("engine:vllm_queue_seconds:p99_rate5m"), recorded.find("engine:vllm_requests:rate5m")
    if p99 is None or requests is None:
        return None
    threshold = selection.decidable(vllm.REQUEST_QUEUE_TIME, settings.thresholds.queue_seconds)
    return _alert(
        name="VllmQueueLatencyHigh",
        expr=both(compare(p99, ">", threshold), compare(requests, ">", LEAST_REQUESTS_PER_SECOND)),
        for_="10m",
        severity=Severity.TICKET,
        summary=f"1 % of the requests wait more than {number(threshold)} s in the queue of {THE_ENGINE}",
        description=(
            f'The 99th percentile is {{{{ $value | printf "%.4g" }}}} s. {THE_ENGINE} has more requests than its batch'
            " or its KV cache has room for."
        ),
        scenario=Scenario(
            (
                *cases.slow_histogram(selection, vllm.REQUEST_QUEUE_TIME, threshold),
                cases.traffic(selection),
            ),
            fires_after="12m", resolves_after="7m", labels=ENGINE_LABELS,
            value=cases.shown_quantile(selection, vllm.REQUEST_QUEUE_TIME, threshold),
        ),
    )  # fmt: skip


def _prefix_cache(selection: Selection, settings: MonitoringSettings, recorded: Recorded) -> Alert | None:
    hits, tokens = (
        recorded.find("engine:vllm_prefix_cache_hits:ratio_rate5m"),
        recorded.find("engine:vllm_prompt_tokens:rate5m"),
    )
    if hits is None or tokens is None:
        return None
    return _alert(
        name="VllmPrefixCacheHitLow",
        expr=both(
            compare(hits, "<", settings.thresholds.prefix_cache_hits_ratio),
            compare(tokens, ">", LEAST_PROMPT_TOKENS_PER_SECOND),
        ),
        for_="1h",
        severity=Severity.INFO,
        summary=f"the prefix cache of {THE_ENGINE} has {{{{ $value | humanizePercentage }}}} of what is looked up",
        description=(
            f"{THE_ENGINE} computes nearly every prompt in full, for an hour now. That is right where prompts share"
            " nothing; after a change of routing or of the prompt's beginning it is a loss."
        ),
        scenario=Scenario(
            (
                Input(engine_series(selection, vllm.PREFIX_CACHE_HITS), firing=Rising(0), quiet=Rising(16384),
                      idle=Rising(0)),
                Input(engine_series(selection, vllm.PREFIX_CACHE_QUERIES), firing=Rising(16384), quiet=Rising(16384),
                      idle=Rising(0)),
                Input(engine_series(selection, vllm.PROMPT_TOKENS), firing=Rising(16384), quiet=Rising(16384),
                      idle=Rising(0)),
            ),
            fires_after="70m", resolves_after="10m", labels=ENGINE_LABELS, value="0%", interval="1m",
        ),
    )  # fmt: skip


def _rejections(selection: Selection, settings: MonitoringSettings, recorded: Recorded) -> Alert | None:
    rate = recorded.find("engine:vllm_admission_rejections:rate5m")
    if rate is None:
        return None
    return _alert(
        name="VllmAdmissionRejections",
        expr=compare(rate, ">", 0),
        for_="10m",
        severity=Severity.TICKET,
        summary=f"{THE_ENGINE} turns away {{{{ $value | humanize }}}} requests a second",
        description=(
            f"The queue of {THE_ENGINE} is at its limit (--max-num-queued-reqs or --max-num-queued-tokens) and it"
            " answers 503. The gateway should shed or spread the load before that."
        ),
        scenario=Scenario(
            (
                Input(
                    engine_series(selection, vllm.ADMISSION_REJECTIONS, reason="max_num_queued_reqs"),
                    # vLLM counts by reason: before the first there is no series.
                    firing=Rising(2 * STEP_SECONDS), quiet=Rising(0), idle=Missing(),
                ),
            ),
            fires_after="12m", resolves_after="7m", labels=ENGINE_LABELS, value="2",
        ),
    )  # fmt: skip
