"""What the checks of expressions find, and what they leave alone."""

from __future__ import annotations

import pytest

from sre.metrics.types import Exporter, Version
from sre.monitoring.lint import LintOptions, lint
from tests.monitoring.lint.support import alert, checks, record

QUANTILE = "histogram_quantile(0.99, sum by (le, model_name) (rate(vllm:{family}_bucket[5m]))) > {threshold}"


@pytest.mark.parametrize(
    "expr",
    [
        "node_filesystem_avail_bytes / node_filesystem_size_bytes < 0.1",
        "sum by (job) (rate(foreign_errors_total[5m])) > 3",
        "foreign_gauge{anything='x'} > 90",
        "DCGM_FI_DEV_SOME_NEW_FIELD > 3",
        "sre_teams_own_gauge > 1",
        "kube_pod_status_ready{condition='true'} == 0",
        "max by (node) (gpu:temperature:celsius) > 85",
        "increase(vllm:num_preemptions_total[10m]) > 5 and on (instance) up == 1",
        "sum by (job) (rate(http_requests_total{code=~'5..'}[5m])) "
        "/ (sum by (job) (rate(http_requests_total[5m])) > 0) > 0.05",
        "time() - sre_guard_last_tick_timestamp_seconds > 60",
        "avg_over_time(vllm:kv_cache_usage_perc[10m]) > 0.95",
        "count by (job) (up == 1) < 2 or absent(up)",
        "vllm:num_requests_waiting > 2 * vllm:num_requests_running",
        "(sre_chaos_faults_active unless on (instance) sre_guard_paused == 1) > 0",
        "count(count by (instance) (vllm:prompt_tokens_total)) < 3",
        "sum by (node) (max by (node, UUID) (DCGM_FI_DEV_BOARD_POWER_WATTS)) > 5000",
        "max by (node) (DCGM_FI_DEV_FB_USED_BYTES / (DCGM_FI_DEV_FB_CAPACITY_BYTES > 0)) > 0.9",
    ],
)
def test_nothing_is_found_in(expr: str) -> None:
    assert alert(expr) == []


@pytest.mark.parametrize(
    ("expr", "check"),
    [
        ("up{job='a',job='b'} == 0", "expression/impossible"),
        ("up == 2", "expression/impossible"),
        ('up{job="a"} == 0 and up{job="a"} == 1', "expression/impossible"),
        ("foreign > 5 and 3 >= foreign", "expression/impossible"),
        ("avg(model:vllm_e2e_seconds:p99_rate5m) > 1", "expression/quantile-aggregated"),
        ("rate(foreign_total[5m]) < 0", "expression/impossible"),
        ("absent(up{job='x'}) == 0", "expression/impossible"),
        ("histogram_quantile(99, sum by (le) (rate(x_bucket[5m]))) > 1", "expression/impossible"),
        ("DCGM_FI_DEV_GPU_UTIL < 5 and DCGM_FI_DEV_GPU_UTIL > 0.01", "expression/unit"),
        ("vllm:generation_tokens_total > 100", "expression/counter-without-rate"),
        ("deriv(vllm:generation_tokens_total[5m]) > 100", "expression/counter-without-rate"),
        ("foreign_total - foreign_total offset 5m > 3", "expression/counter-without-rate"),
        ("rate(sum by (job) (foreign_total)[10m:1m]) > 3", "expression/rate-of-sum"),
        ("increase(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL[5m]) > 0", "expression/rate-of-rate"),
        ("sum by (job) (rate(foreign_total[5m])) / up > 1", "expression/label-mismatch"),
        ("sum by (job) (rate(a_total[5m])) > on (node) sum by (job) (rate(b_total[5m]))", "expression/label-stripped"),
        ("max by (model_name) (vllm:num_requests_running{reason='x'}) > 1", "expression/unknown-label"),
        ("foreign_value != 0 and 1 - a / rate(b_total[5m]) != 0", "expression/nan-not-equal"),
        ("container_memory_rss / container_spec_memory_limit_bytes > 0.9", "expression/unguarded-division"),
        ("foreign{job=~'^a$'} > 1", "expression/needless-regex"),
        ("sort_by_label(foreign, 'job') > 1", "expression/grammar"),
        ("foreign[5m:] > 1", "expression/syntax"),
        ("foreign{a='x' or b='y'} > 1", "expression/grammar"),
        ("vllm:e2e_request_latency_seconds > 1", "expression/type"),
        ("vllm:prompt_tokens > 1", "expression/type"),
        ("histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds_count[5m])) > 1", "expression/type"),
        ("increase(foreign_total[14d] offset 2d) > 3", "expression/range-beyond-retention"),
        ("max_over_time(rate(foreign_total[1h])[15d:1h]) > 3", "expression/range-beyond-retention"),
        ("bottomk(1, foreign) < 3", "expression/fragile"),
        ("DCGM_FI_DEV_XID_ERROR == 79", "expression/xid-latch"),
        ("gpu:xid_of_dcgm:last == 79", "expression/xid-latch"),
        ("gpu:xid_of_guard:last > 0", "expression/xid-latch"),
        ("DCGM_FI_DEV_FB_USED_BYTES / (DCGM_FI_DEV_FB_USED > 0) > 0.9", "expression/unit-mix"),
        ("DCGM_FI_DEV_FB_USED_BYTES > DCGM_FI_DEV_FB_USED", "expression/unit-mix"),
        ("DCGM_FI_DEV_GPU_UTIL > DCGM_FI_DEV_GPU_UTIL_RATIO", "expression/unit-mix"),
        ("sum by (node) (DCGM_FI_DEV_BOARD_POWER_WATTS) > 5000", "expression/device-doubled"),
        ("sum(rate(DCGM_FI_DEV_PCIE_REPLAY_TOTAL[5m])) > 5000", "expression/device-doubled"),
        ("count by (node) (DCGM_FI_DEV_GPU_TEMP_CELSIUS) < 8", "expression/device-doubled"),
        ("DCGM_FI_DEV_XID_ERROR > 0 and changes(DCGM_FI_DEV_XID_ERROR[5m]) > 0", "alert/xid-keep-firing-for"),
        ("increase(sre_gpu_xid_errors_total[5m]) > 0", "alert/xid-keep-firing-for"),
        ("max by (Hostname) (DCGM_FI_DEV_GPU_TEMP_CELSIUS) > 85", "expression/pod-or-hostname"),
        ("vllm:request_success_total{finished_reason=~'abort|error'} > 0", "expression/abort-reason"),
    ],
)  # fmt: skip
def test_is_found(expr: str, check: str) -> None:
    found = alert(expr)
    assert check in checks(found), found


def test_what_a_pod_draws_is_no_card_counted_twice() -> None:
    only = LintOptions(only=frozenset({"expression/device-doubled"}))
    assert alert("sum by (pod) (DCGM_FI_DEV_BOARD_POWER_WATTS) > 700", only) == []


@pytest.mark.parametrize("edge", ["0.5", "0.8", "1", "60"])
def test_an_inner_edge_is_a_threshold(edge: str) -> None:
    assert alert(QUANTILE.format(family="e2e_request_latency_seconds", threshold=edge)) == []


@pytest.mark.parametrize("edge", ["0.3", "0.65", "7680", "9000"])
def test_the_first_and_the_last_edge_and_no_edge_are_none(edge: str) -> None:
    found = alert(QUANTILE.format(family="e2e_request_latency_seconds", threshold=edge))
    assert checks(found) == ["expression/bucket-edge"]
    assert "nearest edge" in found[0].remedy


def test_custom_buckets_count_instead() -> None:
    expr = QUANTILE.format(family="e2e_request_latency_seconds", threshold="0.65")
    custom = LintOptions(custom_buckets={"vllm:e2e_request_latency_seconds": (0.1, 0.65, 2.0)})
    assert alert(expr, custom) == []


def test_a_threshold_is_held_against_a_record_of_a_quantile() -> None:
    text = (
        "groups:\n  - name: a\n    rules:\n      - record: model_name:vllm_ttft_seconds:p99_rate5m\n"
        "        expr: histogram_quantile(0.99, sum by (le, model_name) "
        "(rate(vllm:time_to_first_token_seconds_bucket[5m])))\n"
        "      - alert: Slow\n        expr: model_name:vllm_ttft_seconds:p99_rate5m > 0.6\n"
    )
    found = lint(text, "rules.yml", LintOptions(only=frozenset({"expression/bucket-edge"})))
    assert [(one.line, one.check) for one in found] == [(7, "expression/bucket-edge")]


@pytest.mark.parametrize("le", ["0.5", "0.3", "+Inf"])
def test_a_bucket_that_exists_may_be_selected(le: str) -> None:
    assert record(f'sum by (job) (rate(vllm:e2e_request_latency_seconds_bucket{{le="{le}"}}[5m]))') == []


@pytest.mark.parametrize("le", ["0.50", "0.65", "0.10000000000000001"])
def test_a_bucket_that_does_not_exist_may_not(le: str) -> None:
    expr = f'sum by (job) (rate(vllm:e2e_request_latency_seconds_bucket{{le="{le}"}}[5m]))'
    assert checks(record(expr)) == ["expression/bucket-edge"]


def test_renamed_metrics_pass_when_their_release_is_named() -> None:
    old = "max by (node) (DCGM_FI_DEV_GPU_TEMP) > 85"
    assert "expression/deprecated-metric" in checks(alert(old))
    assert alert(old, LintOptions(versions={Exporter.DCGM: Version(4, 8)})) == []
    newer = LintOptions(versions={Exporter.DCGM: Version(4, 9)})
    assert checks(alert(old, newer)) == ["expression/removed-metric"]


def test_a_metric_newer_than_the_release_is_found() -> None:
    new = "max by (node) (DCGM_FI_DEV_GPU_TEMP_CELSIUS) > 85"
    found = alert(new, LintOptions(versions={Exporter.DCGM: Version(4, 8)}))
    assert checks(found) == ["expression/removed-metric"]
    assert "exists since" in found[0].message


@pytest.mark.parametrize(
    ("name", "release", "found"),
    [
        ("vllm:gpu_cache_usage_perc", Version(0, 8), []),
        ("vllm:gpu_cache_usage_perc", Version(0, 32), ["expression/removed-metric"]),
        ("vllm:time_per_output_token_seconds_count", Version(0, 8), []),
        ("vllm:time_per_output_token_seconds_count", Version(0, 11), ["expression/deprecated-metric"]),
    ],
)
def test_a_metric_is_deprecated_in_releases_that_have_the_successor(
    name: str, release: Version, found: list[str]
) -> None:
    options = LintOptions(versions={Exporter.VLLM: release})
    expr = f"rate({name}[5m])" if name.endswith("_count") else name
    assert checks(alert(f"{expr} > 0.9", options)) == found


def test_the_successor_is_named() -> None:
    found = alert("vllm:gpu_cache_usage_perc > 0.9")
    assert checks(found) == ["expression/removed-metric"]
    assert "vllm:kv_cache_usage_perc" in found[0].remedy


@pytest.mark.parametrize("prefix", ["ray_vllm_", "ray_vllm:"])
def test_rays_prefix_is_vllm(prefix: str) -> None:
    assert "expression/unit" in checks(alert(f"{prefix}kv_cache_usage_perc > 90"))
    assert alert(f"{prefix}kv_cache_usage_perc > 0.9") == []


def test_another_prefix_is_an_option() -> None:
    options = LintOptions(metric_prefix="llm_")
    assert "expression/unit" in checks(alert("llm_kv_cache_usage_perc > 90", options))
    assert alert("llm_kv_cache_usage_perc > 90") == []


@pytest.mark.parametrize(
    ("expr", "release", "found"),
    [
        ("{'a.b'} > 0", "2.42", True),
        ("{'a.b'} > 0", "3.0", False),
        ("max_over_time(foreign[5m]) > 0 or histogram_avg(foreign) > 0", "2.42", True),
        ("holt_winters(foreign[1h], 0.5, 0.5) > 1", "2.42", False),
        ("holt_winters(foreign[1h], 0.5, 0.5) > 1", "3.0", True),
    ],
)
def test_grammar_depends_on_the_release(expr: str, release: str, found: bool) -> None:
    options = LintOptions(prometheus_version=Version.parse(release), only=frozenset({"expression/grammar"}))
    assert bool(alert(expr, options)) is found


def test_raw_strings_in_backticks_are_read() -> None:
    assert alert("foreign{path=~`/v1/\\d+`} > 1") == []


@pytest.mark.parametrize(
    ("factor", "objective", "refused"),
    [("14.4", "0.93", True), ("14.4", "0.9306", False), ("6", "0.83", True), ("3", "0.66", True), ("3", "0.67", False)],
)
def test_impossible_burn_rows(factor: str, objective: str, refused: bool) -> None:
    expr = f"job:errors:ratio_rate1h > {factor} * (1 - {objective})"
    only = LintOptions(only=frozenset({"expression/burn-factor", "expression/impossible"}))
    assert checks(alert(expr, only)) == (["expression/burn-factor"] if refused else [])


def test_a_budget_recorded_as_a_series_is_a_burn_threshold_too() -> None:
    threshold = "> 14.4 * slo:error_budget:ratio"
    expr = f"slo:errors:ratio_rate1h {threshold} and slo:errors:ratio_rate5m {threshold}"
    assert checks(alert(expr)) == ["expression/low-traffic-guard"]
    assert alert(f"{expr} and on (slo) slo:errors:increase1h >= 5") == []


def test_traffic_asked_for_beside_a_division_guards_it() -> None:
    division = "sum by (job) (rate(a_total[5m])) / sum by (job) (rate(b_total[5m])) > 0.1"
    assert "expression/unguarded-division" in checks(alert(division))
    assert alert(f"{division} and sum by (job) (rate(b_total[5m])) > 1") == []


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("sum(rate(a_total{code='500'}[5m])) / sum(rate(a_total[5m])) > 0.1", False),
        ("sum(rate(a_total{code='500'}[5m])) / sum(rate(a_total[5m])) * 100 > 10", False),
        ("rate(a_seconds_sum[5m]) / rate(a_seconds_count[5m]) > 3", False),
        ("sum(rate(a_total{code='500'}[5m])) / sum(rate(b_total[5m])) > 0.1", True),  # 1/0 is above everything
        ("1 - sum(rate(a_total{code='200'}[5m])) / sum(rate(a_total[5m])) != 0", True),
        ("avg(rate(a_total{code='500'}[5m]) / rate(a_total[5m])) > 0.1", True),
    ],
)
def test_a_quotient_that_is_only_compared_is_no_danger_where_it_is_nan(expr: str, found: bool) -> None:
    only = LintOptions(only=frozenset({"expression/unguarded-division"}))
    assert bool(alert(expr, only)) is found


def test_a_counter_just_born_may_be_read() -> None:
    assert alert("(foreign_total unless foreign_total offset 5m) > 0 or increase(foreign_total[5m]) > 0") == []


def test_two_jobs_divided_without_for_are_fragile() -> None:
    expr = "sum(foreign{job='a'}) / sum(foreign{job='b'}) > 2"
    assert checks(alert(expr, for_="0s")) == ["expression/fragile"]
    assert alert(expr) == []


def test_labels_are_followed_through_records() -> None:
    text = (
        "groups:\n  - name: a\n    rules:\n"
        "      - record: job:errors:rate5m\n        expr: sum by (job) (rate(foreign_total[5m]))\n"
        "      - alert: Errors\n        expr: job:errors:rate5m{instance='a'} > 1\n        for: 5m\n"
        "        labels: {severity: page}\n"
        '        annotations: {summary: "on {{ $labels.instance }}", description: "x", runbook_url: "y"}\n'
    )
    assert checks(lint(text, "rules.yml")) == ["expression/label-stripped", "alert/label-lost"]


@pytest.mark.parametrize(
    ("expr", "kept"),
    [
        ("sum by (job, pod) (foreign) > 1", True),
        ("sum without (pod) (foreign) > 1", True),  # what else foreign has is not known
        ("sum without (pod) (sum by (job, pod) (foreign)) > 1", False),
        ("sum by (job) (foreign) * on (job) group_left (pod) foreign_info > 1", True),
        ("label_replace(sum by (job) (foreign), 'pod', '$1', 'job', '(.+)') > 1", True),
        ("sum by (job) (foreign) > on (job) foreign_limit", False),
        ("topk(3, foreign) > 1", True),
        ("count_values('pod', foreign) > 1", True),
        ("absent(foreign{pod='a'})", True),
        ("absent(foreign{pod=~'a|b'})", False),
        ("sum by (job) (foreign) > 1 or sum by (pod) (foreign) > 1", True),
        ("sum by (pod) (foreign) > 1 and on () up == 1", True),
        ("vector(1) > 0", False),
    ],
)
def test_a_label_in_a_template_must_survive(expr: str, kept: bool) -> None:
    only = LintOptions(only=frozenset({"alert/label-lost"}))
    assert checks(alert(expr, only, summary='"{{ $labels.pod }}"')) == ([] if kept else ["alert/label-lost"])


def test_labels_of_a_group_are_those_of_its_rules() -> None:
    text = (
        "groups:\n  - name: a\n    labels: {team: x}\n    rules:\n"
        "      - record: job:errors:rate5m\n        expr: sum by (job) (rate(foreign_total[5m]))\n"
        "      - record: job:errors:sum\n        expr: sum by (job, team) (job:errors:rate5m{team='x'})\n"
    )
    three = LintOptions(prometheus_version=Version(3, 0))
    assert lint(text, "rules.yml", three) == []
    assert checks(lint(text, "rules.yml")) == ["group/newer-key"]


def test_a_level_of_somebody_else_is_not_judged() -> None:
    sloth = "groups: [{name: a, rules: [{record: 'slo:sli_error:ratio_rate5m', expr: '%s', labels: {sloth_slo: x}}]}]"
    assert lint(sloth % "sum(rate(a_total[5m])) / (sum(rate(b_total[5m])) > 0)", "rules.yml") == []
    only = LintOptions(only=frozenset({"rule/record-level"}))
    month = sloth.replace("rate5m", "rate30d") % "sum by (sloth_id) (sum_over_time(slo:sli_error:ratio_rate5m[30d]))"
    assert lint(month, "rules.yml", only) == []
    objective = sloth.replace("sli_error:ratio_rate5m", "objective:ratio") % "max by (sloth_id) (foreign)"
    assert lint(objective, "rules.yml", only) == []
    ours = "groups: [{name: a, rules: [{record: 'slo:errors:ratio_rate5m', expr: 'max by (pool) (foreign)'}]}]"
    assert checks(lint(ours, "rules.yml", only)) == ["rule/record-level"]


@pytest.mark.parametrize(
    "expr",
    [
        "foreign > 3 and foreign < 5",
        "foreign >= 3 and foreign <= 3",
        "foreign != 3 and foreign > 2",
        'foreign{job="a"} == 0 and on () foreign{job="b"} == 1',
        "foreign == 0 and on () foreign == 1",
        "foreign == 0 and foreign offset 5m == 1",
    ],
)
def test_conditions_that_can_hold_together_are_left_alone(expr: str) -> None:
    assert alert(expr, LintOptions(only=frozenset({"expression/impossible"}))) == []
