"""Which alerts can fire against what was seen: expressions, causes, recorded pages of each release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sre.metrics.exposition import Series, parse_exposition
from sre.metrics.types import Exporter, Kind, Unit, Version
from sre.monitoring.catalogue_rules import all_alerts, all_groups, selection
from sre.monitoring.evidence import Cause, Verdict
from sre.monitoring.model import Alert, Dimension, Group, Input, Record, Scenario, Severity, Steady
from sre.monitoring.promql import Expr, Selection
from sre.monitoring.seen import Down, Seen, joined
from sre.monitoring.verify import Finding, Report, verify, wanted_samples
from sre.settings.monitoring import MonitoringSettings

DATA = Path(__file__).parent / "data"
PAGES = {path.name.removesuffix(".metrics.txt"): path.read_bytes() for path in sorted(DATA.glob("*.metrics.txt"))}
SETTINGS = MonitoringSettings()
GROUPS = all_groups(SETTINGS)
CHOSEN = selection(SETTINGS)
SCENARIO = Scenario((Input("x", Steady(1), Steady(0)),), "1m", "1m", {})


@lru_cache(maxsize=32)
def page(body: bytes) -> Seen:
    found = parse_exposition(body)
    return Seen(pages=found.samples, names=frozenset(found.samples), kinds=found.types)


def recorded(*names: str) -> Seen:
    return joined(page(PAGES[name]) for name in names)


def scraped(*pages: tuple[str, str], down: tuple[Down, ...] = (), **labels: str) -> Seen:
    """Recorded pages as a Prometheus has them: (text, job) pairs, target labels added, ``up`` there."""
    fleet: dict[str, tuple[Series, ...]] = {}
    kinds: dict[str, Kind | None] = {}
    up = []
    for name, job in pages:
        target = {"job": job, "instance": f"{name}:1", **labels}
        seen = recorded(name)
        for sample, series in seen.pages.items():
            fleet[sample] = (*fleet.get(sample, ()), *(Series({**one.labels, **target}, one.value) for one in series))
        kinds |= seen.kinds
        up.append(Series(target, 1.0))
    up += [Series({"job": one.job, "instance": one.instance}, 0.0) for one in down]
    fleet["up"] = tuple(up)
    return Seen(fleet=fleet, names=frozenset(fleet), kinds=kinds, prometheus=True, down=down)


def changed(seen: Seen, name: str, *values: float, **labels: str) -> Seen:
    """``seen`` with other values (or labels added) of one sample on its pages."""
    series = seen.pages[name]
    values = values or tuple(one.value for one in series)
    new = tuple(Series({**one.labels, **labels}, values[i % len(values)]) for i, one in enumerate(series))
    return replace(seen, pages={**seen.pages, name: new})


def without(seen: Seen, *names: str) -> Seen:
    gone = {name for name in seen.names if name.startswith(names)}
    return Seen(
        {k: v for k, v in seen.pages.items() if k not in gone}, {k: v for k, v in seen.fleet.items() if k not in gone},
        seen.names - gone, {k: v for k, v in seen.kinds.items() if k not in gone}, seen.prometheus, seen.down,
    )  # fmt: skip


def alert(text: str) -> Alert:
    expr = Expr(text, Unit.ONE, frozenset(), frozenset(), condition=True)
    return Alert("A", expr, "1m", Severity.TICKET, Dimension.REQUEST, "engine", "It is.", "It is.", "d", SCENARIO)


def judged(text: str, seen: Seen, records: Mapping[str, str] | None = None, chosen: Selection | None = None) -> Finding:
    """What becomes of an alert with this expression."""
    rules: list[Record | Alert] = [
        Record(name, Expr(expr, Unit.ONE, frozenset(), frozenset()), "", source_name=True)
        for name, expr in (records or {}).items()
    ]
    report = verify(seen, [Group("g", (*rules, alert(text)))], chosen or Selection())
    (finding,) = report.alerts
    return finding


def causes(finding: Finding) -> list[Cause]:
    return [reason.cause for reason in finding.outcome.reasons]


def by_verdict(report: Report, verdict: Verdict) -> set[str]:
    return {finding.name for finding in report.alerts if finding.outcome.verdict is verdict}


# ---- Expressions -----------------------------------------------------------------------------------------------------

TOKENS = "sum(rate(vllm:generation_tokens_total[5m]))"
NONE = "sum(rate(nothing_total[5m]))"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("vllm:num_requests_running > 1", Verdict.CAN_FIRE),
        ("nothing > 1", Verdict.CANNOT_FIRE),
        # One of two is enough for "or"; both are needed for "and" and arithmetic; "unless" needs the first.
        ("nothing > 1 or vllm:num_requests_running > 1", Verdict.CAN_FIRE),
        ("nothing > 1 and vllm:num_requests_running > 1", Verdict.CANNOT_FIRE),
        ("vllm:num_requests_running > 1 and nothing > 1", Verdict.CANNOT_FIRE),
        ("vllm:num_requests_running > 1 unless nothing", Verdict.CAN_FIRE),
        ("nothing unless vllm:num_requests_running", Verdict.CANNOT_FIRE),
        ("vllm:num_requests_running / nothing > 1", Verdict.CANNOT_FIRE),
        ("nothing + vllm:num_requests_running > 1", Verdict.CANNOT_FIRE),
        ("vllm:num_requests_running > nothing", Verdict.CANNOT_FIRE),
        ("(nothing or vllm:num_requests_running) / vllm:num_requests_waiting > 1", Verdict.CAN_FIRE),
        ("absent(nothing)", Verdict.CAN_FIRE),
        ("absent_over_time(nothing[5m]) and on () vllm:num_requests_running > 0", Verdict.CAN_FIRE),
        ("max by (x) (vllm:num_requests_running == 1)", Verdict.CAN_FIRE),
        ("count(nothing) > 1", Verdict.CANNOT_FIRE),
        ("-nothing > 1", Verdict.CANNOT_FIRE),
        ("max_over_time(rate(nothing[5m])[1h:1m]) > 1", Verdict.CANNOT_FIRE),
        ('label_replace(nothing, "a", "$1", "b", "(.*)") > 1', Verdict.CANNOT_FIRE),
        # A zero that fills a gap keeps an expression alive, and exceeds nothing.
        (f"({NONE} or 0 * {TOKENS}) > 0", Verdict.CANNOT_FIRE),
        (f"({NONE} or 0 * {TOKENS}) == 0", Verdict.CAN_FIRE),
        (f"({NONE} or vector(0)) > 0", Verdict.CANNOT_FIRE),
        (f"{TOKENS} - ({NONE} or 0 * {TOKENS}) > 0", Verdict.CAN_FIRE),
        (f"({NONE} or 0 * {TOKENS}) - {TOKENS} > 0", Verdict.CANNOT_FIRE),
        (f"({NONE} or 0 * {TOKENS}) + {TOKENS} > 0", Verdict.CAN_FIRE),
        (f"({NONE} or 0 * {TOKENS}) / ({TOKENS} > 0) > 0.1", Verdict.CANNOT_FIRE),
        (f"1 - ({NONE} or 0 * {TOKENS}) > 0.5", Verdict.CAN_FIRE),
        # Gauges and error counters may stand at zero now; what is divided by may not.
        ("vllm:num_requests_running == 0", Verdict.CAN_FIRE),
        ("1 < vllm:num_requests_running", Verdict.CAN_FIRE),
        ("vector(1) > 0", Verdict.CAN_FIRE),
    ],
)
def test_an_expression_needs_what_it_needs(text: str, verdict: Verdict) -> None:
    assert judged(text, recorded("vllm-0.32")).outcome.verdict is verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("rate(vllm:num_preemptions_total[5m]) > 0.1", Verdict.CAN_FIRE),
        ("histogram_quantile(0.99, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m]))) > 1",
         Verdict.NO_TRAFFIC),
        (f"{TOKENS} / (sum(rate(vllm:iteration_tokens_total_count[5m])) > 0) > 1", Verdict.NO_TRAFFIC),
        ("rate(http_requests_total[5m]) > 1", Verdict.CAN_FIRE),
        ("vllm:num_requests_waiting > 5", Verdict.CAN_FIRE),
    ],
)  # fmt: skip
def test_without_traffic_only_ratios_and_quantiles_have_nothing_to_go_by(text: str, verdict: Verdict) -> None:
    idle = page(b"\n".join(
        line if line.startswith(b"#") else line.rpartition(b" ")[0] + b" 0"
        for line in PAGES["vllm-0.32"].splitlines() if line
    ) + b"\n")  # fmt: skip
    assert judged(text, idle).outcome.verdict is verdict


def test_records_are_followed_into_their_expressions() -> None:
    seen = recorded("vllm-0.32")
    records = {"a": "sum(b)", "b": "nothing or vllm:num_requests_running", "c": "b / nothing", "d": "d + 1"}
    assert judged("a > 1", seen, records).outcome.verdict is Verdict.CAN_FIRE
    assert judged("c > 1", seen, records).outcome.verdict is Verdict.CANNOT_FIRE
    assert judged("d > 1", seen, records).outcome.verdict is Verdict.CANNOT_FIRE  # reads only itself


def test_a_record_of_several_slos_is_the_one_that_is_selected() -> None:
    rules = [
        Record("slo:x:y", Expr(text, Unit.ONE, frozenset(), frozenset()), "", {"slo": slo}, source_name=True)
        for slo, text in (("good", "vllm:num_requests_running"), ("bad", "nothing"))
    ]
    for slo, verdict in (("good", Verdict.CAN_FIRE), ("bad", Verdict.CANNOT_FIRE)):
        report = verify(
            recorded("vllm-0.32"), [Group("g", (*rules, alert(f'slo:x:y{{slo="{slo}"}} > 1')))], Selection()
        )
        assert report.alerts[0].outcome.verdict is verdict


# ---- Causes ----------------------------------------------------------------------------------------------------------


def test_a_slip_of_the_pen_names_what_is_near() -> None:
    finding = judged("vllm:num_request_running > 1", recorded("vllm-0.32"))
    assert causes(finding) == [Cause.MISSING]
    assert "vllm:num_requests_running" in finding.outcome.reasons[0].text


@pytest.mark.parametrize(
    ("metric", "text", "cause", "words"),
    [
        ("vllm:kv_cache_usage_perc", "vllm-0.8", Cause.RENAMED, "called vllm:gpu_cache_usage_perc here"),
        ("vllm:gpu_cache_usage_perc", "vllm-0.32", Cause.RENAMED, "called vllm:kv_cache_usage_perc here"),
        ("vllm:inter_token_latency_seconds_bucket", "vllm-0.8", Cause.RENAMED,
         "called vllm:time_per_output_token_seconds_bucket here"),
        ("vllm:prefix_cache_hits_total", "vllm-0.8", Cause.RENAMED, "called vllm:gpu_prefix_cache_hits_total here"),
        ("DCGM_FI_DEV_GPU_UTIL", "dcgm-4.9", Cause.RENAMED, "called DCGM_FI_DEV_GPU_UTIL_RATIO here (renamed in 4.9)"),
        ("vllm:cpu_cache_usage_perc", "vllm-0.32", Cause.REMOVED, "gone since vllm 0.9"),
        ("vllm:admission_rejections_total", "vllm-0.19", Cause.COMES_LATER, "comes with vllm 0.31; this is 0.16"),
        ("vllm:spec_decode_num_drafts_total", "vllm-0.32", Cause.SWITCHED_OFF, "speculative decoding"),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "dcgm-4.8", Cause.SWITCHED_OFF, "(CSV)"),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", "dcgm-4.9-mig", Cause.SWITCHED_OFF, "MIG"),
        ("node_network_receive_missed_errors_total", "node-1.5", Cause.SWITCHED_OFF, "enable-detailed-metrics"),
        ("node_disk_io_now", "vllm-0.32", Cause.NOT_LOOKED_AT, "node_exporter is not among the URLs"),
        ("up", "vllm-0.32", Cause.NOT_LOOKED_AT, "a Prometheus is not among the URLs"),
    ],
)  # fmt: skip
def test_the_cause_of_absence_is_told_with_its_remedy(metric: str, text: str, cause: Cause, words: str) -> None:
    finding = judged(f"{metric} > 1", recorded(text))
    assert causes(finding) == [cause]
    assert words in finding.outcome.reasons[0].text


def test_what_should_be_there_and_is_not_is_missing() -> None:
    finding = judged("vllm:num_requests_waiting > 1", without(recorded("vllm-0.32"), "vllm:num_requests_waiting"))
    assert causes(finding) == [Cause.MISSING]
    assert "should have it" in finding.outcome.reasons[0].text


@pytest.mark.parametrize(("prefix", "says"), [("ray_vllm:", "'ray_vllm:'"), ("ray_vllm_", "'ray_vllm_'")])
def test_another_prefix_is_found_out_and_can_be_set(prefix: str, says: str) -> None:
    seen = page(PAGES["vllm-0.32"].replace(b"vllm:", prefix.encode()))
    finding = judged("vllm:num_requests_running > 1", seen)
    assert causes(finding) == [Cause.PREFIX]
    assert says in finding.outcome.reasons[0].text
    set_right = judged(f"{prefix}num_requests_running > 1", seen, chosen=Selection(prefix=prefix))
    assert set_right.outcome.verdict is Verdict.CAN_FIRE


def test_a_ratio_that_shows_per_cent_misleads_even_where_another_name_would_do() -> None:
    seen = changed(recorded("dcgm-4.9"), "DCGM_FI_DEV_GPU_UTIL_RATIO", 97.0, 3.0)
    finding = judged("DCGM_FI_DEV_GPU_UTIL_RATIO > 0.9 or vllm:num_requests_running > 1", seen)
    assert finding.outcome.verdict is Verdict.MISLEADS
    assert causes(finding) == [Cause.UNIT]
    assert "per cent" in finding.outcome.reasons[0].text


@pytest.mark.parametrize(
    ("metric", "text", "value"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", "dcgm-4.8", 0.97),
        ("DCGM_FI_DEV_FB_USED", "dcgm-4.8", 7.6e10),
        ("DCGM_FI_DEV_FB_CAPACITY_BYTES", "dcgm-4.9", 81559.0),
        ("DCGM_FI_DEV_GPU_TEMP", "dcgm-4.8", 331.0),
        ("vllm:kv_cache_usage_perc", "vllm-0.32", 43.75),
        ("vllm:kv_cache_usage_perc", "vllm-0.32", -0.5),
    ],
)
def test_values_of_another_unit_are_seen(metric: str, text: str, value: float) -> None:
    assert causes(judged(f"{metric} > 1", changed(recorded(text), metric, value))) == [Cause.UNIT]
    assert judged(f"{metric} > 1", recorded(text)).outcome.verdict is Verdict.CAN_FIRE


@pytest.mark.parametrize("blank", [float("nan"), float("inf"), 9223372036854775794.0])
def test_a_blank_value_is_no_value_of_another_unit(blank: float) -> None:
    seen = changed(recorded("dcgm-4.8"), "DCGM_FI_DEV_GPU_TEMP", blank, 55.0)
    assert judged("DCGM_FI_DEV_GPU_TEMP > 85", seen).outcome.verdict is Verdict.CAN_FIRE


def test_a_wrong_type_is_told() -> None:
    seen = recorded("vllm-0.32")
    seen = replace(seen, kinds={**seen.kinds, "vllm:num_preemptions_total": Kind.GAUGE})
    assert causes(judged("rate(vllm:num_preemptions_total[5m]) > 1", seen)) == [Cause.TYPE]


def test_types_that_contradict_one_another_say_nothing() -> None:
    one, other = recorded("vllm-0.32"), recorded("vllm-0.19")
    other = replace(other, kinds={**other.kinds, "vllm:num_preemptions_total": Kind.GAUGE})
    assert judged("rate(vllm:num_preemptions_total[5m]) > 1", joined([one, other])).outcome.verdict is Verdict.CAN_FIRE


def test_a_label_that_series_lack_is_told() -> None:
    seen = page(PAGES["vllm-0.32"].replace(b'model_name="demo-8b"', b'model="demo-8b"'))
    finding = judged("vllm:num_requests_running > 1", seen)
    assert causes(finding) == [Cause.LABEL]
    assert "without the label model_name" in finding.outcome.reasons[0].text


def test_a_label_that_prometheus_renamed_is_told() -> None:
    seen = scraped(("dcgm-4.9", "dcgm"))
    name = "DCGM_FI_DEV_GPU_TEMP_CELSIUS"
    moved = tuple(
        Series({**{k: v for k, v in one.labels.items() if k != "gpu"}, "exported_gpu": "0"}, one.value)
        for one in seen.fleet[name]
    )
    finding = judged(f"{name} > 85", replace(seen, fleet={**seen.fleet, name: moved}))
    assert causes(finding) == [Cause.LABEL]
    assert "honor_labels" in finding.outcome.reasons[0].text


def test_a_bucket_edge_that_is_not_there_is_told_with_those_that_are() -> None:
    finding = judged('rate(vllm:e2e_request_latency_seconds_bucket{le="0.65"}[5m]) > 1', recorded("vllm-0.32"))
    assert causes(finding) == [Cause.EDGE]
    assert "0.3, 0.5, 0.8" in finding.outcome.reasons[0].text.replace("+Inf, ", "")


@pytest.mark.parametrize(
    ("matcher", "text", "verdict"),
    [
        ('finished_reason="error"', "vllm-0.32", Verdict.CAN_FIRE),
        ('finished_reason="error"', "vllm-0.8", Verdict.CANNOT_FIRE),  # the label value exists from the start, or never
        ('finished_reason=~"err.+|nothing"', "vllm-0.32", Verdict.CAN_FIRE),
        ('finished_reason!~"stop|length"', "vllm-0.32", Verdict.CAN_FIRE),
        ('finish="error"', "vllm-0.32", Verdict.CANNOT_FIRE),
        ('finished_reason=~"\\\\pL+"', "vllm-0.32", Verdict.CAN_FIRE),  # RE2 may read what Python does not
    ],
)
def test_matchers_are_held_against_the_series(matcher: str, text: str, verdict: Verdict) -> None:
    assert judged(f"rate(vllm:request_success_total{{{matcher}}}[5m]) > 1", recorded(text)).outcome.verdict is verdict


def test_a_status_that_no_request_had_yet_is_no_fault() -> None:
    seen = page(PAGES["vllm-0.32"].replace(b'status="5xx"', b'status="2xx"'))
    assert judged('rate(http_requests_total{status="5xx"}[5m]) > 1', seen).outcome.verdict is Verdict.CAN_FIRE


def test_pages_are_not_asked_for_labels_of_targets() -> None:
    expression = 'vllm:num_requests_running{job="vllm",cluster="a"} > 1'
    chosen = Selection(matchers=(("cluster", "a"),))
    assert judged(expression, recorded("vllm-0.32"), chosen=chosen).outcome.verdict is Verdict.CAN_FIRE


def test_a_job_of_another_name_is_told_with_the_setting() -> None:
    finding = judged('vllm:num_requests_running{job="vllm"} > 1', scraped(("vllm-0.32", "inference")))
    assert causes(finding) == [Cause.LABEL]
    assert "there are inference" in finding.outcome.reasons[0].text
    assert "monitoring.jobs" in finding.outcome.reasons[0].text


def test_in_a_prometheus_what_nobody_exposes_is_missing_not_unseen() -> None:
    finding = judged("node_disk_io_now > 1", scraped(("vllm-0.32", "vllm")))
    assert causes(finding) == [Cause.NO_EXPORTER]
    assert finding.outcome.verdict is Verdict.CANNOT_FIRE


def test_a_target_that_is_down_is_the_reason() -> None:
    chosen = Selection(jobs={Exporter.NODE: "node"})
    seen = scraped(("vllm-0.32", "vllm"), down=(Down("node", "h:9100", "connection refused"),))
    finding = judged("node_disk_io_now > 1", seen, chosen=chosen)
    assert causes(finding) == [Cause.TARGET_DOWN]
    assert "h:9100" in finding.outcome.reasons[0].text
    assert "connection refused" in finding.outcome.reasons[0].text
    assert judged('up{job="node"} == 0', seen, chosen=chosen).outcome.verdict is Verdict.CAN_FIRE


def test_a_family_that_is_declared_without_series_waits_for_its_event() -> None:
    body = (
        b"# TYPE sre_outbox_oldest_seconds gauge\n# TYPE sre_gpu_temperature_celsius gauge\nsre_guard_ticks_total 5\n"
    )
    assert judged("sre_outbox_oldest_seconds > 300", page(body)).outcome.verdict is Verdict.CAN_FIRE
    assert causes(judged("sre_gpu_temperature_celsius > 85", page(body))) == [Cause.SWITCHED_OFF]


def test_an_expression_that_is_none_is_told() -> None:
    assert judged("sum(", recorded("vllm-0.32")).outcome.verdict is Verdict.CANNOT_FIRE


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
    seen = scraped(("vllm-0.32", "vllm"), ("dcgm-4.9", "dcgm"), ("node-1.5", "node"))
    report = verify(seen, GROUPS, CHOSEN)
    cannot = {name for name in by_verdict(report, Verdict.CANNOT_FIRE) if not name.startswith("Sre")}
    assert cannot <= {"GpuNvlinkErrors", "GpuEccUncorrected", "GpuThrottled", "NodeNetworkMissedErrors"}
    assert by_verdict(report, Verdict.NOT_LOOKED_AT) == set()


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
