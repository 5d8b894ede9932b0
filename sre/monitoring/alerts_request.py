"""Alerts of the request dimension: what a client of the engine feels, and whether we see the engine at all."""

from __future__ import annotations

from functools import partial

from sre.metrics import vllm
from sre.metrics.catalogue import variants
from sre.metrics.prometheus import UP
from sre.metrics.types import Exporter, Metric
from sre.monitoring import engine_scenarios as cases
from sre.monitoring import records_engine
from sre.monitoring.alerts_batching import LEAST_REQUESTS_PER_SECOND
from sre.monitoring.engine_hang import hang_alert
from sre.monitoring.engine_scenarios import ENGINE_LABELS, INSTANCE_OF_CASES, THE_ENGINE, engine_series
from sre.monitoring.levels import INSTANCE, JOB, LEVELS, MODEL_NAME, NODE
from sre.monitoring.model import Alert, Dimension, Input, Missing, Raw, Rising, Scenario, Severity, Shape, Steady
from sre.monitoring.promql import (
    Expr,
    Selection,
    absent_up,
    both,
    compare,
    either,
    labelled,
    max_by,
    number,
    on_each,
    seconds,
    unless,
    with_node,
)
from sre.monitoring.recorded import Recorded
from sre.monitoring.series import up
from sre.settings.monitoring import MonitoringSettings

ENGINE = LEVELS["engine"]
LEAST_TOKENS_PER_SECOND = 1.0
"""300 in the records' five minutes: of fewer the 99th percentile is the slowest few."""
RESETS_IN_10M = 3.0
"""A restart is one; more in ten minutes are a crash loop, or workers that answer scrapes in turn."""

ESSENTIAL: tuple[Metric, ...] = (
    vllm.REQUESTS_RUNNING, vllm.REQUESTS_WAITING, vllm.KV_CACHE_USAGE, vllm.ITERATION_TOKENS, vllm.GENERATION_TOKENS,
    vllm.REQUEST_SUCCESS, vllm.E2E_REQUEST_LATENCY, vllm.TIME_TO_FIRST_TOKEN, vllm.INTER_TOKEN_LATENCY,
)  # fmt: skip
"""What the rules live on: each is exposed from the start, without traffic, under one of its names."""

_alert = partial(Alert, dimension=Dimension.REQUEST, component="engine", dashboard="sre-request")


def alerts(selection: Selection, settings: MonitoringSettings) -> list[Alert]:
    """Those that the chosen release has the signals for."""
    recorded = Recorded(records_engine.records(selection, settings))
    made = (
        hang_alert(selection, settings),
        _engine_down(selection),
        _all_engines_down(selection),
        _model_down(selection, recorded),
        _target_absent(selection, settings),
        _metrics_missing(selection),
        _counter_resets(selection),
        _error_ratio(selection, settings, recorded),
        _latency(
            "VllmTimeToFirstTokenHigh", "ttft", vllm.TIME_TO_FIRST_TOKEN, settings.thresholds.ttft_seconds,
            "requests wait more than {} s for their first token", selection, recorded,
        ),
        _latency(
            "VllmInterTokenLatencyHigh", "itl", vllm.INTER_TOKEN_LATENCY, settings.thresholds.inter_token_seconds,
            "tokens come more than {} s after the one before", selection, recorded,
        ),
        _latency(
            "VllmLatencyHigh", "e2e", vllm.E2E_REQUEST_LATENCY, settings.thresholds.e2e_seconds,
            "requests take more than {} s", selection, recorded,
        ),
    )  # fmt: skip
    return [alert for alert in made if alert is not None]


# ---- Seen at all ----------------------------------------------------------------------------------------------------


def _up(selection: Selection) -> Expr:
    return selection.gauge(UP, job=selection.jobs[Exporter.VLLM])


def _engine_down(selection: Selection) -> Alert:
    return _alert(
        name="VllmEngineDown",
        expr=compare(max_by(with_node(_up(selection)), NODE, INSTANCE), "==", 0),
        for_="2m",
        severity=Severity.TICKET,
        summary="{{ $labels.instance }} does not answer the scrape",
        description=(
            "The API server of {{ $labels.instance }} is gone, frozen or out of reach. Its process may have ended with"
            " code 0: an engine that dies says so."
        ),
        scenario=Scenario(
            (Input(up(selection, Exporter.VLLM, instance=INSTANCE_OF_CASES), Steady(0), Steady(1), Missing()),),
            fires_after="3m", resolves_after="1m", labels={NODE: "n1", INSTANCE: INSTANCE_OF_CASES},
        ),
    )  # fmt: skip


def _all_engines_down(selection: Selection) -> Alert:
    return _alert(
        name="VllmAllEnginesDown",
        expr=compare(max_by(_up(selection), JOB), "==", 0),
        for_="1m",
        severity=Severity.PAGE,
        summary="no engine of job {{ $labels.job }} answers",
        description="Nobody serves: every target of job {{ $labels.job }} fails its scrape.",
        scenario=Scenario(
            (
                Input(up(selection, Exporter.VLLM, instance="n1:8000"), Steady(0), Steady(0), Missing()),
                Input(up(selection, Exporter.VLLM, instance="n2:8000"), Steady(0), Steady(1), Missing()),
            ),
            fires_after="2m", resolves_after="1m", labels={JOB: selection.jobs[Exporter.VLLM]},
        ),
    )  # fmt: skip


def _model_down(selection: Selection, recorded: Recorded) -> Alert | None:
    """By model: the other models' engines answer, and keep ``VllmAllEnginesDown`` silent."""
    models = recorded.find("engine:vllm_model:last")
    if models is None:
        return None
    answers = on_each(models, max_by(with_node(_up(selection)), NODE, INSTANCE), NODE, INSTANCE)

    def running(instance: str, model: str, firing: Shape, quiet: Shape) -> Input:
        name = engine_series(selection, vllm.REQUESTS_RUNNING, instance=instance, model_name=model)
        return Input(name, firing, quiet, Steady(0))

    return _alert(
        name="VllmModelDown",
        expr=compare(max_by(answers, MODEL_NAME), "==", 0),
        for_="1m",
        severity=Severity.PAGE,
        summary="no engine of {{ $labels.model_name }} answers",
        description=(
            "Nobody serves {{ $labels.model_name }}: every target that had it last fails its scrape. Other models of"
            " the job may be well."
        ),
        # Of the expression only the model is left; the job says which VllmAllEnginesDown explains it.
        labels={JOB: selection.jobs[Exporter.VLLM]},
        scenario=Scenario(
            (
                Input(up(selection, Exporter.VLLM, instance="n1:8000"), Raw("1x3 0x11"), Steady(1)),
                running("n1:8000", "m", Raw("2x3 stale _x11"), Steady(2)),
                Input(up(selection, Exporter.VLLM, instance="n2:8000"), Steady(1), Steady(1)),
                running("n2:8000", "other", Steady(2), Steady(2)),
            ),
            fires_after="225s", resolves_after="2m", labels={MODEL_NAME: "m"},
        ),
    )  # fmt: skip


def _target_absent(selection: Selection, settings: MonitoringSettings) -> Alert:
    return _alert(
        name="VllmTargetAbsent",
        expr=absent_up(selection.jobs[Exporter.VLLM], selection.matchers),
        for_="5m",
        severity=Severity.TICKET,
        summary="Prometheus knows no target of job {{ $labels.job }}",
        description=(
            "Service discovery or the scrape configuration lost job {{ $labels.job }}: nothing of the engines is seen,"
            " and no other alert on them can fire."
        ),
        scenario=Scenario(
            (Input(up(selection, Exporter.VLLM, instance=INSTANCE_OF_CASES), Missing(), Steady(1), Steady(0)),),
            fires_after="6m", resolves_after="1m",
            labels={JOB: selection.jobs[Exporter.VLLM], **dict(selection.matchers)},
        ),
    )  # fmt: skip


def _metrics_missing(selection: Selection) -> Alert:
    """Per instance and metric, against the targets that answer: ``absent`` would miss one engine of many."""
    alive = compare(_up(selection), "==", 1)
    known = [metric for metric in ESSENTIAL if variants(metric, selection.versions.get(Exporter.VLLM))]

    def missing(metric: Metric) -> Expr:
        names = variants(metric, selection.versions.get(Exporter.VLLM))
        lost = alive
        for name in names:
            lost = unless(lost, selection.raw(name), JOB, INSTANCE)
        placed = labelled(with_node(lost), "metric", selection.name(names[0].sample))
        return max_by(placed, NODE, INSTANCE, "metric")

    lost = known[0]
    lost_names = variants(lost, selection.versions.get(Exporter.VLLM))
    return _alert(
        name="VllmMetricsMissing",
        expr=either(*(missing(metric) for metric in known)),
        for_="15m",
        severity=Severity.INFO,
        summary="{{ $labels.instance }} does not expose {{ $labels.metric }}",
        description=(
            "{{ $labels.instance }} answers scrapes without {{ $labels.metric }}: vLLM renamed or removed it, or a"
            " relabelling drops it. Records and alerts made of it are blind; sre rules verify says which."
        ),
        scenario=Scenario(
            (
                # Without a target nothing of it is missing.
                Input(up(selection, Exporter.VLLM, instance=INSTANCE_OF_CASES), Steady(1), Steady(1), Missing()),
                *(
                    Input(
                        engine_series(selection, metric), Missing() if metric is lost else Steady(0), Steady(0),
                        Missing(),
                    )
                    for metric in known
                ),
            ),
            fires_after="17m", resolves_after="1m",
            labels={NODE: "n1", INSTANCE: INSTANCE_OF_CASES, "metric": selection.name(lost_names[0].sample)},
        ),
    )  # fmt: skip


def _counter_resets(selection: Selection) -> Alert:
    resets = selection.over_time("resets", vllm.GENERATION_TOKENS, "10m")
    return _alert(
        name="VllmCounterResets",
        expr=compare(max_by(with_node(resets), *ENGINE), ">", RESETS_IN_10M),
        for_="0s",
        keep_firing_for="15m",
        severity=Severity.INFO,
        summary=f"counters of {THE_ENGINE} fell back to zero {{{{ $value | humanize }}}} times in ten minutes",
        description=(
            f"{THE_ENGINE} restarts again and again, or several API servers answer its scrapes in turn without a"
            " shared registry (PROMETHEUS_MULTIPROC_DIR). Rates of its counters count too much."
        ),
        scenario=Scenario(
            (
                Input(
                    engine_series(selection, vllm.GENERATION_TOKENS),
                    Raw(" ".join(["0+64x7"] * 5) + " 0"), Rising(64),
                ),
            ),
            fires_after="10m", resolves_after="27m", labels=ENGINE_LABELS, value="5",
        ),
    )  # fmt: skip


# ---- Felt -----------------------------------------------------------------------------------------------------------


def _error_ratio(selection: Selection, settings: MonitoringSettings, recorded: Recorded) -> Alert | None:
    share, errors = recorded.find("engine:http_errors:ratio_rate5m"), recorded.find("engine:http_errors:rate5m")
    if share is None or errors is None:
        return None
    least = settings.slo.min_bad_events / seconds(records_engine.WINDOW)
    per_step = cases.above(least) * cases.STEP_SECONDS

    def answered(status: str) -> str:
        return engine_series(selection, vllm.HTTP_REQUESTS, handler="/v1/completions", method="POST", status=status)

    return _alert(
        name="VllmErrorRatioHigh",
        expr=both(compare(share, ">", settings.thresholds.error_ratio), compare(errors, ">=", round(least, 6))),
        for_="5m",
        severity=Severity.TICKET,
        summary=f"{{{{ $value | humanizePercentage }}}} of the requests to {THE_ENGINE} fail",
        description=(
            f"{THE_ENGINE} answers them 5xx; those it shed because its queue was full are not counted. A broken stream"
            " has the status 200 and is not counted either: the gateway sees it."
        ),
        scenario=Scenario(
            (
                Input(answered("5xx"), firing=Rising(per_step), quiet=Rising(0)),
                Input(answered("2xx"), firing=Rising(0), quiet=Rising(per_step)),
                cases.steady(engine_series(selection, vllm.REQUESTS_RUNNING), 4, 4, 0),
            ),
            fires_after="8m", resolves_after="7m", labels=ENGINE_LABELS, value="100%",
        ),
    )  # fmt: skip


def _latency(
    name: str, short: str, metric: Metric, threshold: float, words: str, selection: Selection, recorded: Recorded
) -> Alert | None:
    """At a bucket edge "the 99th percentile is above" and "more than 1 % are slower" are the same statement."""
    p99 = recorded.find(f"engine:vllm_{short}_seconds:p99_rate5m")
    of_tokens = short == "itl"
    enough = recorded.find("engine:vllm_generation_tokens:rate5m" if of_tokens else "engine:vllm_requests:rate5m")
    if p99 is None or enough is None:
        return None
    least = LEAST_TOKENS_PER_SECOND if of_tokens else LEAST_REQUESTS_PER_SECOND
    selection.decidable(metric, threshold)
    inputs = cases.slow_histogram(selection, metric, threshold)
    if of_tokens:
        tokens = engine_series(selection, vllm.GENERATION_TOKENS)
        inputs += (Input(tokens, firing=Rising(64), quiet=Rising(64)),)
    else:
        inputs += (cases.traffic(selection),)
    return _alert(
        name=name,
        expr=both(compare(p99, ">", threshold), compare(enough, ">", least)),
        for_="10m",
        severity=Severity.TICKET,
        summary=f"1 % of the {words.format(number(threshold))} at {THE_ENGINE}",
        description=(
            f'The 99th percentile of {THE_ENGINE} is about {{{{ $value | printf "%.4g" }}}} s (to the grain of the'
            " buckets). The SLO alerts say whether that hurts."
        ),
        scenario=Scenario(
            inputs, fires_after="12m", resolves_after="7m", labels=ENGINE_LABELS,
            value=cases.shown_quantile(selection, metric, threshold),
        ),
    )  # fmt: skip
