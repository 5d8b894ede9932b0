"""Section ``monitoring``: what rules and dashboards are generated for."""

from __future__ import annotations

import itertools
from typing import Annotated

from pydantic import Field, model_validator

from sre.settings.base import Settings

Objective = Annotated[float, Field(gt=0, lt=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Share = Annotated[float, Field(gt=0, lt=1)]
Label = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]


class JobSettings(Settings):
    """Names of the scrape jobs (label ``job``)."""

    vllm: str = "vllm"
    sre: str = "sre"
    node: str = "node"
    dcgm: str = "dcgm"


class LatencySloSettings(Settings):
    """Share ``objective`` of the requests (or tokens) is faster than ``threshold_seconds``."""

    objective: Objective = 0.99
    threshold_seconds: Seconds
    """Must be a bucket edge of the metric, neither the first nor the last."""
    enabled: bool = True


class SloSettings(Settings):
    """Service level objectives, over ``period_days``."""

    period_days: Annotated[int, Field(ge=7, le=90)] = 30
    availability_objective: Objective = 0.999
    """Share of requests that do not fail. 1 leaves no error budget and is refused."""
    availability_enabled: bool = True
    min_bad_events: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    """Fewer failures than this in the long window fire nothing, however little traffic there is."""
    ttft: LatencySloSettings = LatencySloSettings(threshold_seconds=1.0)
    inter_token: LatencySloSettings = LatencySloSettings(threshold_seconds=0.1)
    e2e: LatencySloSettings = LatencySloSettings(objective=0.95, threshold_seconds=30.0)


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
    metric_prefix: Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")] = "vllm:"
    """What vLLM's metric names begin with; "ray_vllm_" or "ray_vllm:" under Ray."""
    jobs: JobSettings = JobSettings()
    matchers: dict[Label, str] = Field(default_factory=dict)
    """Further label="value" on every selector."""
    scrape_interval_seconds: Annotated[float, Field(ge=0.1, le=75)] = 15.0
    """Of the slowest job. Above 75 a range of five minutes no longer holds four scrapes."""
    retention_days: Annotated[float, Field(gt=0, le=36_500)] = 15.0
    """Prometheus' --storage.tsdb.retention.time. No range may be longer."""
    custom_buckets: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Metric family → upper edges, where vLLM runs with --custom-histogram-buckets."""
    runbook_base_url: str = "runbooks"
    grafana_url: str = ""
    """Begin of the links to dashboards; "" gives /d/…, relative to Grafana."""
    webhook_url: str = "http://127.0.0.1:9401/api/v1/alerts"
    """Our webhook, for Alertmanager's receivers."""
    webhook_token_file: str = "/etc/alertmanager/sre-webhook-token"
    """File on Alertmanager's machine with the webhook's bearer token."""
    slo: SloSettings = SloSettings()
    thresholds: ThresholdSettings = ThresholdSettings()

    @model_validator(mode="after")
    def _edges_rise(self) -> MonitoringSettings:
        for family, edges in self.custom_buckets.items():
            if len(edges) < 3 or any(a >= b for a, b in itertools.pairwise(edges)) or edges[0] <= 0:
                raise ValueError(f"custom_buckets.{family} must be three or more rising positive edges")
        return self
