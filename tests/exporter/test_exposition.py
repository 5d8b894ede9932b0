"""The exposition: every declared metric is in it, it parses, and what is not seen is not there."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from sre.actions.types import Outcome, RejectReason
from sre.adapters.envoy.judgement import GATEWAY_REFUSED
from sre.metrics import own
from sre.metrics.types import Kind, Metric
from sre.servers.exporter import Metrics
from sre.servers.exporter_gpu import answering, gpu_families
from sre.servers.exporter_host import HostView, host_families
from sre.signals.host import HostCounters, NetworkCounters
from sre.signals.types import NEVER, GpuDetails, Reading, Seen
from tests.conftest import require_binary
from tests.exporter.scene import (
    DECISION,
    DETAILS,
    ENGINE,
    HOST,
    POOL,
    Desk,
    everything,
    finished,
    gpu,
    numbers,
    snapshot,
)


def families(metrics: Metrics) -> dict[str, Family]:
    """Families that have a sample, by the name we declared."""
    found = text_string_to_metric_families(metrics.render().decode())
    return {f.name + ("_total" if f.type == "counter" else ""): f for f in found if f.samples}


def value(metrics: Metrics, sample: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(sample, labels)


def test_every_declared_metric_is_exported_and_every_exported_one_is_declared() -> None:
    exported = families(everything())
    assert set(exported) == set(own.OWN_METRICS)


@pytest.mark.parametrize("metric", own.OWN_METRICS.values(), ids=lambda metric: metric.name)
def test_type_labels_and_help_are_as_declared(metric: Metric) -> None:
    family = families(everything())[metric.name]
    assert family.type == metric.kind.value
    assert family.documentation == metric.help
    values = family.samples
    assert {frozenset(s.labels) - {"le"} for s in values} == {frozenset(metric.labels)}
    if metric.kind is Kind.HISTOGRAM:
        assert {s.labels["le"] for s in values if "le" in s.labels} == {*map(str, metric.buckets), "+Inf"}


ALLOWED_COMPLAINTS: dict[str, str] = {}
"""Complaint of promtool → why it stands. None does."""


def complaints(exposition: bytes) -> list[str]:
    promtool = require_binary("promtool", "apt-get install prometheus brings it")
    done = subprocess.run([promtool, "check", "metrics"], input=exposition, capture_output=True, timeout=60)
    lines = (done.stdout + done.stderr).decode().splitlines()
    if done.returncode not in (0, 3):
        raise AssertionError(f"promtool: {lines}")
    return [line for line in lines if line not in ALLOWED_COMPLAINTS]


def test_promtool_has_no_complaint() -> None:
    assert complaints(everything().render()) == []


def test_promtools_complaints_are_noticed() -> None:
    assert complaints(b"# HELP sre_x_total x\n# TYPE sre_x_total gauge\nsre_x_total 1\n")


# ---- units: what the name says, the catalogue says ------------------------------------------------------------------

UNITS_IN_NAMES = ("seconds", "bytes", "celsius", "watts", "ratio")


@pytest.mark.parametrize("metric", own.OWN_METRICS.values(), ids=lambda metric: metric.name)
def test_the_unit_of_a_name_is_its_unit(metric: Metric) -> None:
    match = re.search(rf"_(timestamp_seconds|{'|'.join(UNITS_IN_NAMES)})(_total)?$", metric.name)
    assert (match[1] if match else None) == (
        metric.unit.value if metric.unit.value in (*UNITS_IN_NAMES, "timestamp_seconds") else None
    )


# ---- host -----------------------------------------------------------------------------------------------------------


def host_values(view: HostView) -> dict[str, float]:
    return {s.name: s.value for family in host_families(view) for s in family.samples}


WITHOUT: tuple[tuple[HostCounters, str], ...] = (
    (replace(HOST, disks=()), "sre_host_disk_"),
    (replace(HOST, networks=()), "sre_host_network_"),
    (replace(HOST, tcp=None), "sre_host_tcp_"),
    (replace(HOST, cpu=None), "sre_host_cpu"),
    (replace(HOST, faults=None), "sre_host_page_faults"),
    (replace(HOST, memory=None), "sre_host_memory_"),
)


@pytest.mark.parametrize(("counters", "prefix"), WITHOUT, ids=[prefix for _, prefix in WITHOUT])
def test_a_source_that_was_not_seen_has_no_series(counters: HostCounters, prefix: str) -> None:
    whole = set(host_values(HostView(HOST, 0.0, up=True)))
    assert set(host_values(HostView(counters, 0.0, up=True))) == {n for n in whole if not n.startswith(prefix)}


def test_a_count_the_driver_lacks_has_no_series() -> None:
    counters = HostCounters(0.0, networks=(NetworkCounters("eth0", receive_bytes=5.0),))
    found = [n for n in host_values(HostView(counters, 0.0, up=True)) if "network" in n]
    assert found == ["sre_host_network_receive_bytes_total"]


def test_without_counters_only_the_reader_is_told_of() -> None:
    assert host_values(HostView(None, None, up=False)) == {"sre_host_reader_up": 0.0}
    assert host_values(HostView(None, 99.0, up=False)) == {
        "sre_host_reader_up": 0.0,
        "sre_host_sample_age_seconds": 99.0,
    }


# ---- GPUs -----------------------------------------------------------------------------------------------------------


def test_what_a_card_does_not_say_has_no_series() -> None:
    silent = gpu(1, GpuDetails(1.0), power_watts=Reading.missing(1.0))
    for family in gpu_families([silent]):
        assert family.name not in (
            "sre_gpu_power_watts",
            "sre_gpu_nvlink_bytes",
            "sre_gpu_throttled",
            "sre_gpu_xid_last",
        )
        assert family.name in (
            "sre_gpu_memory_used_ratio", "sre_gpu_temperature_celsius", "sre_gpu_utilization_ratio",
        )  # fmt: skip
    assert list(gpu_families([])) == []


def test_a_silent_card_beside_one_that_speaks() -> None:
    both = {f.name: f for f in gpu_families([gpu(0), gpu(1, None)])}
    assert {s.labels["gpu"] for s in both["sre_gpu_memory_used_ratio"].samples} == {"0", "1"}
    assert {s.labels["gpu"] for s in both["sre_gpu_xid_last"].samples} == {"0"}


def test_xids_that_alerts_ask_for_are_born_at_zero() -> None:
    metrics = everything(gpus=(gpu(details=replace(DETAILS, xid_last=0, xid_events=())),))
    labels = {"gpu": "0", "uuid": "GPU-0", "source": "nvml", "injected": "false"}
    for xid in own.ALERTED_XIDS:
        assert value(metrics, "sre_gpu_xid_errors_total", xid=str(xid), **labels) == 0.0
    counted = everything()
    assert value(counted, "sre_gpu_xid_errors_total", xid="79", **labels) == 2.0
    assert value(counted, "sre_gpu_xid_errors_total", xid="999", **labels) == 1.0


READINGS = ("memory_used_ratio", "temperature_celsius", "utilization_ratio", "power_watts")
GONE = dict.fromkeys(READINGS, Reading.missing(1.0, Seen.UNREACHABLE))


def test_the_number_of_gpus_is_what_answers_now() -> None:
    lost = gpu(1, None, **GONE)
    assert answering([gpu(0), gpu(2)]) == 2
    assert answering([gpu(0), lost]) == 1
    assert answering([lost]) == 0, "the reader works, the only GPU is gone"
    assert answering([]) is None
    assert answering([gpu(0, None, **dict.fromkeys(GONE, NEVER))]) is None, "not read yet"


def test_a_reader_that_does_not_answer_says_nothing_of_the_number() -> None:
    gpus = {0: gpu(0, None, **GONE)}
    assert numbers(gpus)()[own.GPUS] == [((), 0.0)]
    assert own.GPUS not in numbers(gpus, problem="a GPU call did not return")()


# ---- engines --------------------------------------------------------------------------------------------------------


def test_batch_histograms_carry_their_weights() -> None:
    metrics = everything()
    labels = {"engine": ENGINE, "pool": POOL}
    assert value(metrics, "sre_engine_batch_size_count", **labels) == 1.0
    assert value(metrics, "sre_engine_batch_size_bucket", le="2.0", **labels) == 0.0
    assert value(metrics, "sre_engine_batch_size_bucket", le="4.0", **labels) == 1.0
    assert value(metrics, "sre_engine_batch_size_sum", **labels) == 3.0
    assert value(metrics, "sre_engine_batch_formation_seconds_count", **labels) == 10.0
    assert value(metrics, "sre_engine_batch_formation_seconds_sum", **labels) == 1.0


def test_a_replaced_process_is_a_restart_and_a_first_look_is_none() -> None:
    metrics = everything()
    labels = {"engine": ENGINE, "pool": POOL}
    assert value(metrics, "sre_engine_restarts_total", **labels) == 0.0
    for at, pid in ((3.0, 2), (4.0, 2), (5.0, 3)):
        metrics.ticked(0.01, snapshot(at, pid=pid), DECISION, [])
    assert value(metrics, "sre_engine_restarts_total", **labels) == 2.0


def test_the_first_failure_is_an_increase() -> None:
    metrics = everything()
    assert value(metrics, "sre_guard_errors_total", boundary="store") == 0.0
    for outcome in ("success", "failure", "neutral"):
        assert value(metrics, "sre_requests_total", engine=ENGINE, pool=POOL, outcome=outcome) is not None


def test_requests_of_an_engine_that_is_gone_are_counted_in_its_pool() -> None:
    metrics = everything()
    gone = replace(snapshot(5.0), engines={})
    labels = {"pool": POOL, "outcome": "failure"}
    before = value(metrics, "sre_requests_total", engine=ENGINE, **labels) or 0.0
    # The model may be an alias: where the engine was seen counts.
    ended = [finished(Outcome.FAILURE, model="alias"), finished(Outcome.FAILURE, engine="never-seen")]
    metrics.ticked(0.01, gone, DECISION, ended)
    assert value(metrics, "sre_requests_total", engine=ENGINE, **labels) == before + 1
    assert value(metrics, "sre_requests_total", engine="never-seen", **labels) == 1.0
    metrics.ticked(0.01, gone, DECISION, [finished(Outcome.FAILURE, engine="never-seen", model="the client's word")])
    assert value(metrics, "sre_requests_total", engine="never-seen", pool="", outcome="failure") == 1.0


# ---- Refusals and hangs ---------------------------------------------------------------------------------------------


def test_refusals_for_our_reasons_are_all_a_breaker_and_the_gateway_know_but_rate_limits() -> None:
    assert set(own.REFUSED_FOR_OUR_REASONS) == (
        {reason.value for reason in RejectReason} | set(GATEWAY_REFUSED.values())
    ) - {"rate_limited"}


def test_the_first_refusal_is_an_increase() -> None:
    """An outage that refuses everything begins with it; a counter born then would hide it."""
    metrics = everything()
    labels = {"pool": POOL, "reason": "no_healthy_upstream"}
    assert value(metrics, "sre_requests_rejected_total", **labels) == 0.0
    refused = finished(Outcome.NEUTRAL, engine=None, status=503, detail="no_healthy_upstream")
    metrics.ticked(0.01, snapshot(3.0), DECISION, [refused])
    assert value(metrics, "sre_requests_rejected_total", **labels) == 1.0


@pytest.mark.parametrize(
    ("age", "limit", "hung"), [(None, 3.0, 0.0), (2.0, 3.0, 0.0), (16.0, 40.0, 0.0), (4.0, 3.0, 1.0), (9.0, 0.0, 0.0)]
)
def test_an_engine_hangs_when_no_step_came_for_longer_than_its_own_limit(
    age: float | None, limit: float, hung: float
) -> None:
    metrics, desk = everything(), Desk()
    desk.no_step_for_seconds, desk.hang_after_seconds = age, limit
    metrics.source = desk
    labels = {"engine": ENGINE, "pool": POOL}
    assert value(metrics, "sre_engine_hung", **labels) == hung
    assert value(metrics, "sre_engine_hang_limit_seconds", **labels) == limit
