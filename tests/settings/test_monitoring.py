"""Section monitoring: vLLM's bucket families, and what is held against the catalogue at loading."""

from __future__ import annotations

import pytest

from sre.metrics import vllm
from sre.metrics.types import Kind
from sre.settings.load import parse_settings
from sre.settings.monitoring import MonitoringSettings
from sre.settings.monitoring_checks import BUCKET_FAMILIES, bucket_edges, errors

EDGES = (0.1, 0.5, 1.0, 30.0, 60.0)


def test_a_family_is_what_shares_its_edges() -> None:
    for family, metrics in BUCKET_FAMILIES.items():
        assert {metric.kind for metric in metrics} == {Kind.HISTOGRAM}
        assert len({metric.buckets for metric in metrics}) == 1, family
        assert len({metric.token_buckets for metric in metrics}) == 1, family


def test_edges_of_a_family_hold_for_all_its_histograms_and_a_metrics_own_win() -> None:
    own = (0.2, 2.0, 3.0)
    settings = MonitoringSettings(
        custom_buckets={vllm.REQUEST_QUEUE_TIME.name: own, "request_latency": EDGES, "time_to_first_token": EDGES}
    )
    edges = bucket_edges(settings)
    assert edges[vllm.E2E_REQUEST_LATENCY.name] == EDGES
    assert edges[vllm.REQUEST_QUEUE_TIME.name] == own
    assert edges[vllm.TIME_TO_FIRST_TOKEN.name] == EDGES
    assert vllm.INTER_TOKEN_LATENCY.name not in edges


def test_the_defaults_need_no_correction() -> None:
    assert list(errors(MonitoringSettings())) == []


@pytest.mark.parametrize("version", ["0.8", "0.8.5", "v0.11.0", "0.33.0.dev1", "1.0"])
def test_releases_are_read_as_they_are_written(version: str) -> None:
    assert list(errors(MonitoringSettings(vllm_version=version))) == []


def test_a_file_may_hold_all_of_it() -> None:
    text = """
monitoring:
  vllm_version: "0.32"
  metric_prefix: ray_vllm_
  matchers: {cluster: "a b", tenant: x}
  custom_buckets: {request_latency: [0.25, 0.5, 1, 2, 30, 60]}
  slo: {e2e: {threshold_seconds: 1}}
  thresholds: {queue_seconds: 1}
"""
    settings = parse_settings(text.encode()).monitoring
    assert settings.slo.e2e.threshold_seconds == 1
    # What is not written keeps its default: that of this objective, not of another.
    assert settings.slo.e2e.objective == 0.95
