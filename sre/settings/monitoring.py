"""Section ``monitoring``: what rules and dashboards are generated for."""

from __future__ import annotations

import itertools
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema

from sre.settings.base import Settings


def _objective(value: float) -> float:
    if 0 < value < 1:
        return value
    if value == 1:
        raise ValueError("1 leaves no error budget: every failure would page; write less, 0.999 for 99.9 %")
    meant = f"{value / 100:g} for {value:g} %" if 1 < value < 100 else "0.999 for 99.9 %"
    raise ValueError(f"{value:g} is not a share between 0 and 1; write {meant}")


def _matchers(matchers: dict[str, str]) -> dict[str, str]:
    for name in matchers:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__"):
            raise ValueError(f'"{name}" is no name of a label; use letters, digits and _, and no __ in front')
        if name == "job":
            raise ValueError("job differs from exporter to exporter; set monitoring.jobs")
        if name in {"instance", "le"}:
            raise ValueError(f"{name} tells targets or buckets apart and cannot be matched for all; remove it")
    return matchers


def _prefix(text: str) -> str:
    if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text):
        raise ValueError(f'"{text}" cannot begin a metric\'s name; use letters, digits, _ and :, e.g. ray_vllm:')
    return text


def _edges(edges: tuple[float, ...]) -> tuple[float, ...]:
    if len(edges) < 3 or edges[0] <= 0 or any(a >= b for a, b in itertools.pairwise(edges)):
        raise ValueError("edges must be three or more positive numbers, each larger than the one before")
    return edges


def _base(url: str) -> str:
    """Begin of a link: it becomes part of an annotation, where braces are a template."""
    if not re.fullmatch(r"[^\s{}\"]*", url) or not url.isprintable():
        raise ValueError("is no begin of a link; write an address or a path without spaces, quotes and braces")
    return url


def _webhook(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError("is not the URL of a webhook; write http://host:port/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a secret is never written here; remove user and password, and set webhook_token_file")
    return _base(url)


Objective = Annotated[
    float,
    AfterValidator(_objective),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Share = Annotated[float, Field(gt=0, lt=1)]
Edges = Annotated[tuple[float, ...], AfterValidator(_edges)]
LinkBase = Annotated[str, AfterValidator(_base)]
JobName = Annotated[str, Field(min_length=1)]


class JobSettings(Settings):
    """Names of the scrape jobs (label ``job``)."""

    vllm: JobName = "vllm"
    sre: JobName = "sre"
    node: JobName = "node"
    dcgm: JobName = "dcgm"


class LatencySloSettings(Settings):
    """Share ``objective`` of the requests (or tokens) is faster than ``threshold_seconds``."""

    objective: Objective = 0.99
    threshold_seconds: Seconds
    """Must be a bucket edge of the metric, neither the first nor the last."""
    enabled: bool = True


class TtftSloSettings(LatencySloSettings):
    """Time to first token."""

    threshold_seconds: Seconds = 1.0


class InterTokenSloSettings(LatencySloSettings):
    """Time between two tokens."""

    threshold_seconds: Seconds = 0.1


class E2eSloSettings(LatencySloSettings):
    """Time to the last token."""

    objective: Objective = 0.95
    threshold_seconds: Seconds = 30.0


class SloSettings(Settings):
    """Service level objectives, over ``period_days``."""

    period_days: Annotated[int, Field(ge=7, le=90)] = 30
    availability_objective: Objective = 0.999
    """Share of requests that do not fail. 1 leaves no error budget and is refused."""
    availability_enabled: bool = True
    min_bad_events: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    """Fewer failures than this in the long window fire nothing, however little traffic there is."""
    ttft: TtftSloSettings = TtftSloSettings()
    inter_token: InterTokenSloSettings = InterTokenSloSettings()
    e2e: E2eSloSettings = E2eSloSettings()


class ThresholdSettings(Settings):
    """Thresholds of the alerts. Latency thresholds must be bucket edges."""

    gpu_temperature_celsius: Annotated[float, Field(gt=0, le=150)] = 85.0
    gpu_memory_temperature_celsius: Annotated[float, Field(gt=0, le=150)] = 95.0
    gpu_memory_used_ratio: Share = 0.95
    gpu_idle_ratio: Share = 0.05
    gpu_pcie_replays_per_second: Annotated[float, Field(gt=0)] = 0.1
    gpu_nvlink_errors_per_second: Annotated[float, Field(gt=0)] = 0.1
    disk_await_seconds: Seconds = 0.1
    disk_utilization_ratio: Share = 0.95
    network_receive_discards_ratio: Share = 0.001
    network_receive_missed_errors_per_second: Annotated[float, Field(gt=0)] = 1.0
    tcp_retransmits_ratio: Share = 0.02
    cpu_softirq_ratio: Share = 0.2
    cpu_iowait_ratio: Share = 0.2
    page_faults_major_per_second: Annotated[float, Field(gt=0)] = 100.0
    kv_cache_usage_ratio: Share = 0.9
    preemptions_per_second: Annotated[float, Field(gt=0)] = 0.1
    requests_waiting: Annotated[float, Field(gt=0)] = 32.0
    queue_seconds: Seconds = 2.0
    prefix_cache_hits_ratio: Share = 0.05
    error_ratio: Share = 0.05
    ttft_seconds: Seconds = 2.5
    inter_token_seconds: Seconds = 0.2
    e2e_seconds: Seconds = 0.5
    """Requirement C2's number: P99 end-to-end latency above 500 ms. Long answers need a larger one."""
    engine_stuck_seconds: Seconds = 15.0
    """Requests in flight and no engine step for this long."""


class MonitoringSettings(Settings):
    """Rules, dashboards, Alertmanager."""

    vllm_version: str | None = None
    """Release of vLLM, e.g. "0.32"; null: any, old and new names of metrics joined."""
    dcgm_exporter_version: str | None = None
    """Release of dcgm-exporter, e.g. "4.8.3"; null: any."""
    metric_prefix: Annotated[str, AfterValidator(_prefix)] = "vllm:"
    """What vLLM's metric names begin with; "ray_vllm_" or "ray_vllm:" under Ray."""
    jobs: JobSettings = JobSettings()
    matchers: Annotated[dict[str, str], AfterValidator(_matchers)] = Field(default_factory=dict)
    """
    Further label="value" on every selector. Rules join engines, gateway and cards by names of models and nodes, which
    two clusters may share: give each cluster its own Prometheus, or generate rules for each with its label here.
    """
    scrape_interval_seconds: Annotated[float, Field(ge=0.1, le=75)] = 15.0
    """Of the slowest job. Above 75 a range of five minutes no longer holds four scrapes."""
    retention_days: Annotated[float, Field(gt=0, le=36_500)] = 15.0
    """Prometheus' --storage.tsdb.retention.time. No range may be longer."""
    custom_buckets: dict[str, Edges] = Field(default_factory=dict)
    """Metric family → upper edges, where vLLM runs with --custom-histogram-buckets."""
    runbook_base_url: LinkBase = "runbooks"
    grafana_url: LinkBase = ""
    """Begin of the links to dashboards; "" gives /d/…, relative to Grafana."""
    webhook_url: Annotated[str, AfterValidator(_webhook)] = "http://127.0.0.1:9401/api/v1/alerts"
    """Our webhook, for Alertmanager's receivers."""
    webhook_token_file: str = "/etc/alertmanager/sre-webhook-token"
    """File on Alertmanager's machine with the webhook's bearer token."""
    slo: SloSettings = SloSettings()
    thresholds: ThresholdSettings = ThresholdSettings()
