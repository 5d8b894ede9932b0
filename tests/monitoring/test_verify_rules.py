"""Our own rules against recorded pages of every release, and against any mixture of series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sre.metrics.exposition import Series, parse_exposition
from sre.metrics.types import Kind, Version
from sre.monitoring.catalogue_rules import all_alerts, all_groups, selection
from sre.monitoring.evidence import Cause, Verdict
from sre.monitoring.model import Record
from sre.monitoring.seen import Seen
from sre.monitoring.verify import verify, wanted_samples
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.seen import (
    CHOSEN,
    GROUPS,
    PAGES,
    SETTINGS,
    by_verdict,
    causes,
    judged,
    page,
    recorded,
    scraped,
    without,
)

# ---- Our own rules ---------------------------------------------------------------------------------------------------

CANNOT: Mapping[str, set[str]] = {
    "vllm-0.8": {"VllmAdmissionRejections"},
    "vllm-0.11": {"VllmAdmissionRejections"},
    "vllm-0.19": {"VllmAdmissionRejections"},
    "dcgm-4.8": {"GpuNvlinkErrors"},  # not in the exporter's default fields
    "dcgm-4.9": {"GpuNvlinkErrors"},
    "dcgm-4.9-mig": {"GpuNvlinkErrors"},
}
"""Alerts that the release behind a page cannot feed, whoever else is looked at."""


@pytest.mark.parametrize("text", PAGES)
def test_every_release_feeds_our_alerts(text: str) -> None:
    report = verify(recorded(text), GROUPS, CHOSEN)
    assert by_verdict(report, Verdict.MISLEADS) == by_verdict(report, Verdict.NO_TRAFFIC) == set()
    assert by_verdict(report, Verdict.CANNOT_FIRE) <= CANNOT.get(text, set())
    assert by_verdict(report, Verdict.CAN_FIRE)
    assert not report.blind


@pytest.mark.parametrize("text", PAGES)
def test_a_healthy_page_has_no_problem(text: str) -> None:
    (exporter,) = verify(recorded(text), GROUPS, CHOSEN).exporters
    assert exporter.metrics > 15
    assert {reason.cause for reason in exporter.problems} <= ({Cause.SWITCHED_OFF} if "mig" in text else set())


def test_a_page_feeds_no_alert_of_another_exporter() -> None:
    report = verify(recorded("vllm-0.32"), GROUPS, CHOSEN)
    assert {name for name in by_verdict(report, Verdict.CAN_FIRE) if name.startswith(("Gpu", "Node", "Sre"))} == set()
    report = verify(recorded("node-1.5"), GROUPS, CHOSEN)
    assert {name for name in by_verdict(report, Verdict.CAN_FIRE) if not name.startswith("Node")} == set()


@pytest.mark.parametrize(("vllm", "dcgm"), [("0.8", "4.8"), ("0.11", "4.8"), ("0.19", "4.9"), ("0.32", "4.9")])
def test_rules_for_a_release_fit_that_release(vllm: str, dcgm: str) -> None:
    settings = MonitoringSettings(vllm_version=vllm, dcgm_exporter_version=dcgm)
    seen = recorded(f"vllm-{vllm}", f"dcgm-{dcgm}", "node-1.5")
    report = verify(seen, all_groups(settings), selection(settings))
    assert by_verdict(report, Verdict.CANNOT_FIRE) <= {"GpuNvlinkErrors"}
    assert by_verdict(report, Verdict.MISLEADS) == set()


def test_rules_for_another_release_are_found_out() -> None:
    settings = MonitoringSettings(vllm_version="0.32")
    report = verify(recorded("vllm-0.8"), all_groups(settings), selection(settings))
    cannot = by_verdict(report, Verdict.CANNOT_FIRE)
    assert "VllmKvCacheNearlyFull" in cannot
    assert not report.good


def test_a_prometheus_with_everything_feeds_everything_but_what_is_switched_off() -> None:
    seen = scraped(("vllm-0.32", "vllm"), ("dcgm-4.9", "dcgm"), ("node-1.5", "node"), node="n1")
    report = verify(seen, GROUPS, CHOSEN)
    cannot = {name for name in by_verdict(report, Verdict.CANNOT_FIRE) if not name.startswith("Sre")}
    assert cannot <= {"GpuNvlinkErrors", "GpuEccUncorrected", "GpuThrottled", "NodeNetworkMissedErrors"}
    assert by_verdict(report, Verdict.NOT_LOOKED_AT) == set()


def test_a_guard_without_a_webhook_is_told_how_to_get_one_and_needs_no_canary_on_its_way() -> None:
    seen = page(b'# TYPE sre_build_info gauge\nsre_build_info{version="0.1"} 1\n')
    report = {finding.name: finding for finding in verify(seen, GROUPS, CHOSEN).alerts}
    assert report["SreCanary"].outcome.verdict is Verdict.CAN_FIRE
    watchdog = report["SreWatchdog"].outcome
    assert watchdog.verdict is Verdict.CANNOT_FIRE
    assert "webhook.enabled: true" in watchdog.reasons[0].text


def test_an_alert_whose_sides_are_of_other_nodes_cannot_fire() -> None:
    seen = scraped(("vllm-0.32", "vllm"), ("dcgm-4.9", "dcgm"), ("node-1.5", "node"))  # without a common label node
    report = verify(seen, GROUPS, CHOSEN)
    (finding,) = [one for one in report.alerts if one.name == "GpuIdleUnderLoad"]
    assert causes(finding) == [Cause.APART]
    assert "node vllm-0.32 (" in finding.outcome.reasons[0].text


def test_a_histogram_that_prometheus_keeps_natively_is_told() -> None:
    seen = scraped(("vllm-0.32", "vllm"))
    family = "vllm:e2e_request_latency_seconds"
    native = without(seen, family)
    native = replace(native, names=native.names | {family}, kinds={**native.kinds, family: Kind.HISTOGRAM})
    finding = judged(f"histogram_quantile(0.9, rate({family}_bucket[5m])) > 1", native)
    assert causes(finding) == [Cause.NATIVE]
    assert "always_scrape_classic_histograms" in finding.outcome.reasons[0].text


def test_nothing_of_ours_is_blind() -> None:
    report = verify(page(b"go_goroutines 5\n"), GROUPS, CHOSEN)
    assert report.blind
    assert report.exporters == ()


def test_everything_that_is_read_is_asked_for() -> None:
    wanted = wanted_samples(GROUPS, CHOSEN)
    recorded_names = {rule.name for group in GROUPS for rule in group.rules if isinstance(rule, Record)}
    assert not wanted & recorded_names
    for one in all_alerts(SETTINGS):
        assert one.uses <= wanted | recorded_names
    ray = selection(MonitoringSettings(metric_prefix="ray_vllm_"))
    assert "ray_vllm_iteration_tokens_total_count" in wanted_samples([], ray)


def test_the_release_is_stated_where_the_exporter_states_it() -> None:
    (exporter,) = verify(recorded("node-1.5"), [], CHOSEN).exporters
    assert exporter.release == str(Version(1, 5))


# ---- Whatever is seen ------------------------------------------------------------------------------------------------

LINES = [line for body in PAGES.values() for line in body.splitlines(keepends=True) if not line.startswith(b"#")]


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(LINES), min_size=1, max_size=60),
    st.lists(st.floats(), min_size=1, max_size=5),
    st.booleans(),
)
def test_any_mixture_of_series_is_judged(lines: list[bytes], values: list[float], prometheus: bool) -> None:
    found = parse_exposition(b"".join(lines)).samples
    series = {
        name: tuple(Series(one.labels, values[i % len(values)]) for i, one in enumerate(every))
        for name, every in found.items()
    }
    where = {"fleet": series} if prometheus else {"pages": series}
    report = verify(Seen(names=frozenset(series), prometheus=prometheus, **where), GROUPS, CHOSEN)
    for finding in report.alerts:
        assert (finding.outcome.verdict is Verdict.CAN_FIRE) is (not finding.outcome.reasons)
