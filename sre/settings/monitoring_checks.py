"""What the section ``monitoring`` must fulfil beyond its fields: edges that exist, windows that the data covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sre.metrics import vllm, vllm_past
from sre.metrics.catalogue import CATALOGUE, KNOWN_RELEASES
from sre.metrics.edges import undecidable
from sre.metrics.types import Exporter, Kind, Metric, Version
from sre.settings.document import Location
from sre.settings.explain import nearest
from sre.settings.monitoring import MonitoringSettings

Finding = tuple[Location, str]
"""Where, and the sentence: *what is wrong; what to write instead*."""

BUCKET_FAMILIES: Mapping[str, tuple[Metric, ...]] = {
    "request_latency": (
        vllm.E2E_REQUEST_LATENCY, vllm.REQUEST_QUEUE_TIME, vllm.REQUEST_INFERENCE_TIME, vllm.REQUEST_PREFILL_TIME,
        vllm.REQUEST_DECODE_TIME,
    ),
    "time_to_first_token": (vllm.TIME_TO_FIRST_TOKEN,),
    "inter_token_latency": (
        vllm.INTER_TOKEN_LATENCY, vllm.REQUEST_TIME_PER_OUTPUT_TOKEN, vllm_past.TIME_PER_OUTPUT_TOKEN,
    ),
    "iteration_tokens": (vllm.ITERATION_TOKENS,),
    "request_params_n": (vllm.REQUEST_PARAMS_N,),
    "request_num_preemptions": (vllm.REQUEST_NUM_PREEMPTIONS,),
    "request_tokens": (
        vllm.REQUEST_PROMPT_TOKENS, vllm.REQUEST_GENERATION_TOKENS, vllm.REQUEST_MAX_NUM_GENERATION_TOKENS,
        vllm.REQUEST_PARAMS_MAX_TOKENS, vllm.REQUEST_PREFILL_KV_COMPUTED_TOKENS,
    ),
    "kv_cache_residency": (vllm.KV_BLOCK_LIFETIME, vllm.KV_BLOCK_IDLE),
}  # fmt: skip
"""Families that vLLM's ``--custom-histogram-buckets`` knows, and the histograms of each."""

LONGEST_WINDOW_DAYS = 3.0
"""Range of the slowest burn-rate alert."""


def bucket_edges(settings: MonitoringSettings) -> dict[str, tuple[float, ...]]:
    """Edges by metric name, where the user changed vLLM's. A metric's own name wins over its family."""
    edges: dict[str, tuple[float, ...]] = {}
    for family, bounds in settings.custom_buckets.items():
        for metric in BUCKET_FAMILIES.get(family, ()):
            edges[metric.name] = bounds
    for name, bounds in settings.custom_buckets.items():
        own = CATALOGUE.family(name)
        if own is not None:
            edges[own.name] = bounds
    return edges


def errors(settings: MonitoringSettings) -> Iterator[Finding]:
    """Everything that makes rules impossible, at places below ``monitoring``."""
    yield from _version_errors(settings)
    yield from _bucket_errors(settings)
    yield from _edge_errors(settings)
    if settings.retention_days < LONGEST_WINDOW_DAYS and _has_objectives(settings):
        yield (
            ("retention_days",),
            f"{settings.retention_days:g} is shorter than the window of 3d that the burn-rate alerts look back over;"
            " keep Prometheus' data longer (--storage.tsdb.retention.time) and write that here, or switch the"
            " objectives in monitoring.slo off",
        )


def _has_objectives(settings: MonitoringSettings) -> bool:
    slo = settings.slo
    return slo.availability_enabled or any(latency.enabled for latency in (slo.ttft, slo.inter_token, slo.e2e))


def _releases(settings: MonitoringSettings) -> Iterator[tuple[str, str, Exporter]]:
    """Setting, what it says, and whose release it is, where one is named."""
    for name, text, exporter in (
        ("vllm_version", settings.vllm_version, Exporter.VLLM),
        ("dcgm_exporter_version", settings.dcgm_exporter_version, Exporter.DCGM),
    ):
        if text is not None:
            yield name, text, exporter


def warnings(settings: MonitoringSettings) -> Iterator[Finding]:
    """What rules and dashboards are made for only by guessing."""
    for name, text, exporter in _releases(settings):
        oldest, newest = KNOWN_RELEASES[exporter]
        version = Version.parse(text)
        if (version.major, version.minor) > (newest.major, newest.minor):
            yield (
                (name,),
                f"{text} is newer than what is known ({oldest} to {newest}); everything is as for {newest} and may name"
                " metrics that are gone: see sre rules verify",
            )


def _version_errors(settings: MonitoringSettings) -> Iterator[Finding]:
    for name, text, exporter in _releases(settings):
        least = KNOWN_RELEASES[exporter][0]
        try:
            version = Version.parse(text)
        except ValueError as error:
            yield (name,), str(error)
            continue
        if version < least:
            yield (name,), f"{text} is older than {least}, the oldest release whose metrics are known; upgrade it"


def _bucket_errors(settings: MonitoringSettings) -> Iterator[Finding]:
    for name in settings.custom_buckets:
        metric = CATALOGUE.family(name)
        if name in BUCKET_FAMILIES or (metric is not None and metric.kind is Kind.HISTOGRAM):
            continue
        where: Location = ("custom_buckets", name)
        if metric is not None:
            yield where, f"{name} is a {metric.kind.value} and has no buckets; remove it"
            continue
        histograms = [one.name for one in CATALOGUE.of(Exporter.VLLM) if one.kind is Kind.HISTOGRAM]
        near = nearest(name, [*BUCKET_FAMILIES, *histograms])
        hint = f"did you mean {near}?" if near else f"families of vLLM: {', '.join(BUCKET_FAMILIES)}"
        yield where, f"no histogram of this name; {hint}"


def _edge_errors(settings: MonitoringSettings) -> Iterator[Finding]:
    edges = bucket_edges(settings)
    slo, thresholds = settings.slo, settings.thresholds
    for where, value, metric in (
        (("slo", "ttft", "threshold_seconds"), slo.ttft.threshold_seconds, vllm.TIME_TO_FIRST_TOKEN),
        (("slo", "inter_token", "threshold_seconds"), slo.inter_token.threshold_seconds, vllm.INTER_TOKEN_LATENCY),
        (("slo", "e2e", "threshold_seconds"), slo.e2e.threshold_seconds, vllm.E2E_REQUEST_LATENCY),
        (("thresholds", "queue_seconds"), thresholds.queue_seconds, vllm.REQUEST_QUEUE_TIME),
        (("thresholds", "ttft_seconds"), thresholds.ttft_seconds, vllm.TIME_TO_FIRST_TOKEN),
        (("thresholds", "inter_token_seconds"), thresholds.inter_token_seconds, vllm.INTER_TOKEN_LATENCY),
        (("thresholds", "e2e_seconds"), thresholds.e2e_seconds, vllm.E2E_REQUEST_LATENCY),
    ):
        found = undecidable(value, edges.get(metric.name, metric.buckets))
        if found is None:
            continue
        # Edges in the settings are three or more: an inner one exists.
        yield (
            where,
            f"{value:g} is {found.place} of {metric.name}, so nobody could tell; write {found.nearest:g}, the nearest"
            " that can decide, or give vLLM other edges (--custom-histogram-buckets) and say so in"
            " monitoring.custom_buckets",
        )
