"""Which alerts can fire against what was seen: expressions and causes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sre.metrics.exposition import Series
from sre.metrics.types import Exporter, Kind, Unit
from sre.monitoring.evidence import Cause, Verdict
from sre.monitoring.model import Group, Record
from sre.monitoring.promql import Expr, Selection
from sre.monitoring.seen import Down, joined
from sre.monitoring.verify import verify
from tests.monitoring.seen import PAGES, alert, causes, changed, judged, page, recorded, scraped, without

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
