"""The guard's /metrics on this machine, with simulated engines under load: what a Prometheus gets."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sre.metrics import own
from tests.conftest import unused_port
from tests.e2e.live import Live, live_stack
from tests.exporter.test_exposition import complaints

pytestmark = pytest.mark.integration

LOAD_SECONDS = 4.0
NEEDS_AN_EVENT = {
    "sre_canaries_total", "sre_canary_first_token_seconds", "sre_breaker_openings_total",
    "sre_incidents_total", "sre_actions_total", "sre_chaos_faults_active",
}  # fmt: skip
NEEDS_THE_WEBHOOK = {name for name in own.OWN_METRICS if name.startswith("sre_webhook_")} | {"sre_canary_alert"}
NEEDS_A_CARD = {
    "sre_gpu_memory_temperature_celsius", "sre_gpu_nvlink_bytes_total", "sre_gpu_throttled",
    "sre_gpu_ecc_uncorrected_errors_total", "sre_gpu_row_remap_failed",
}  # fmt: skip


def scraped(live: Live) -> bytes:
    return requests.get(f"http://127.0.0.1:{live.metrics_port}/metrics", timeout=30).content


def samples(text: bytes) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def total(text: bytes, name: str) -> float:
    return sum(sample.value for sample in samples(text)[name])


@pytest.fixture(scope="module")
def scrapes() -> Iterator[tuple[bytes, bytes, float, int]]:
    """Two scrapes around a load, the seconds between them, and the requests answered."""
    folder = Path(tempfile.mkdtemp(prefix="sre-", dir="/tmp"))
    try:
        with live_stack(
            folder, unused_port, [{"name": "sim-0", "kind": "sim", "model": "sim-7b", "gpus": [0]}]
        ) as live:
            live.until("engine seen", lambda: total(scraped(live), "sre_engine_batch_size_count") > 0)
            before, began = scraped(live), time.monotonic()
            live.start_load(clients=3, max_tokens=8, pause=0.05)
            time.sleep(LOAD_SECONDS)
            live.stop_load()
            answered = sum(status == 200 for _, status, _, _ in live.answers)
            counted = ("sre_engine_batch_formation_seconds_count", "sre_requests_total")
            live.until("every answer counted", lambda: min(total(scraped(live), n) for n in counted) >= answered)
            yield before, scraped(live), time.monotonic() - began, answered
    finally:
        shutil.rmtree(folder, ignore_errors=True)


Scrapes = tuple[bytes, bytes, float, int]


def test_every_metric_that_needs_no_event_and_no_card_is_there(scrapes: Scrapes) -> None:
    _, text, _, _ = scrapes
    found = samples(text)
    missing = {m.name for m in own.OWN_METRICS.values() if not any(name in found for name in m.samples)}
    assert missing <= NEEDS_AN_EVENT | NEEDS_A_CARD | NEEDS_THE_WEBHOOK
    assert missing >= NEEDS_A_CARD, "the simulated card says what only a card can know"


def test_promtool_has_no_complaint(scrapes: Scrapes) -> None:
    assert complaints(scrapes[1]) == []


def test_the_batch_size_counts_the_time_that_passed(scrapes: Scrapes) -> None:
    before, after, seconds, _ = scrapes
    grown = total(after, "sre_engine_batch_size_count") - total(before, "sre_engine_batch_size_count")
    assert seconds - 2.5 <= grown <= seconds + 1.5, "a tick is a second; a busy machine loses one"
    assert total(after, "sre_engine_batch_size_sum") > total(before, "sre_engine_batch_size_sum")


def test_the_batch_formation_counts_every_request_once(scrapes: Scrapes) -> None:
    _, after, _, answered = scrapes
    assert answered > 0
    canaries = sum(sample.value for sample in samples(after).get("sre_canaries_total", []))
    assert answered <= total(after, "sre_engine_batch_formation_seconds_count") <= answered + canaries
    assert total(after, "sre_requests_total") == answered


def test_an_engine_without_a_fault_has_its_weight_and_its_budget(scrapes: Scrapes) -> None:
    assert total(scrapes[1], "sre_engine_weight_ratio") == 1.0
    assert total(scrapes[1], "sre_action_budget_remaining") == 4.0
    assert total(scrapes[1], "sre_engine_restarts_total") == 0.0


def test_host_counters_grow_and_never_fall(scrapes: Scrapes) -> None:
    before, after, seconds, _ = scrapes
    first, second = samples(before), samples(after)
    for name, old in first.items():
        if name.startswith("sre_host_") and name.endswith("_total"):
            for a, b in zip(old, second[name], strict=True):
                assert a.labels == b.labels
                assert b.value >= a.value, name
    cpu = total(after, "sre_host_cpu_seconds_total") - total(before, "sre_host_cpu_seconds_total")
    assert cpu == pytest.approx(seconds * total(after, "sre_host_cpus"), rel=0.2)
