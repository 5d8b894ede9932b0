"""Burn rates: the table of factors, the rows that cannot fire, low traffic, the sources of availability, the budget."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.monitoring import alerts_slo, slo
from sre.monitoring.case_files import case_files
from sre.monitoring.catalogue_rules import all_groups, rule_files, selection
from sre.monitoring.model import Group
from sre.monitoring.slo import BURN_WINDOWS, burn_windows, objectives
from sre.settings.load import parse_settings
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.promtool import judge_values

DEFAULT = MonitoringSettings()


def settings(**changed: object) -> MonitoringSettings:
    """Defaults with changes in ``slo``."""
    return MonitoringSettings.model_validate({"slo": changed})


# ---- Factors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("days", "factors"),
    [
        (30, ["14.4", "6", "3", "1"]),
        (28, ["13.44", "5.6", "2.8", "0.933"]),
        (7, ["3.36", "1.4", "0.7", "0.233"]),
        (90, ["43.2", "18", "9", "3"]),
    ],
)
def test_factors_are_budget_share_times_period_through_window(days: int, factors: list[str]) -> None:
    assert [slo._short(row.factor(days)) for row in BURN_WINDOWS] == factors


def test_the_short_window_is_a_twelfth_of_the_long() -> None:
    from sre.monitoring.promql import seconds

    assert [seconds(row.long) / seconds(row.short) for row in BURN_WINDOWS] == [12, 12, 12, 12]


def test_thresholds_are_written_without_binary_dust() -> None:
    texts = {alert.name: alert.expr.text for alert in alerts_slo.alerts(selection(DEFAULT), DEFAULT)}
    assert texts["SloAvailabilityBurn1h"] == (
        '(slo:errors:ratio_rate1h{slo="availability"} > 0.0144 and '
        'slo:errors:ratio_rate5m{slo="availability"} > 0.0144) and '
        'slo:errors:increase1h{slo="availability"} >= 5'
    )
    assert "> 0.144 and" in texts["SloTtftBurn1h"]
    assert "> 0.01 and" in texts["SloItlBurn3d"]


@given(
    st.integers(7, 90),
    st.decimals(min_value="0.0001", max_value="0.9999", places=4),
)
def test_every_row_that_is_left_can_fire_and_means_something(days: int, objective: Decimal) -> None:
    chosen = settings(period_days=days, availability_objective=float(objective))
    (availability, *_) = objectives(selection(chosen), chosen)
    left = burn_windows(availability, chosen)
    for row, threshold in left:
        assert 0 < threshold < 1
        assert threshold == row.factor(days) * (1 - objective)
    said = " ".join(note for note in slo.notes(selection(chosen), chosen) if "retention" not in note)
    for row in BURN_WINDOWS:
        if row not in [kept for kept, _ in left]:
            assert f"over {row.long}" in said


def test_a_row_that_could_never_fire_is_left_out_and_named() -> None:
    chosen = settings(availability_objective=0.9)
    names = [alert.name for alert in alerts_slo.alerts(selection(chosen), chosen)]
    assert "SloAvailabilityBurn1h" not in names
    assert "SloAvailabilityBurn6h" in names
    assert slo.notes(selection(chosen), chosen)[0] == (
        "monitoring.slo.availability_objective: no burn alert over 1h for availability: 14.4 times the budget of 0.1 is"
        " more than everything, so it could never fire; raise the objective to have it"
    )


def test_a_short_period_has_no_slow_rows_and_says_so() -> None:
    chosen = settings(period_days=7)
    names = {alert.name for alert in alerts_slo.alerts(selection(chosen), chosen)}
    assert {name for name in names if "Availability" in name} == {"SloAvailabilityBurn1h", "SloAvailabilityBurn6h"}
    (day, three_days) = slo.notes(selection(chosen), chosen)
    assert "no burn alerts over 1d: burning 0.7 times as fast as allowed is within the budget of 7 days" in day
    assert "no burn alerts over 3d" in three_days


def test_an_objective_that_is_switched_off_has_neither_records_nor_alerts() -> None:
    chosen = settings(availability_enabled=False, ttft={"enabled": False, "threshold_seconds": 1.0})
    assert {part.slo.name for part in slo.slo_records(selection(chosen), chosen)} == {"itl", "e2e"}
    assert {dict(alert.labels)["slo"] for alert in alerts_slo.alerts(selection(chosen), chosen)} == {"itl", "e2e"}


def test_without_objectives_a_short_retention_is_fine() -> None:
    off = "{enabled: false, threshold_seconds: 1.0}"
    text = f"monitoring: {{retention_days: 1, slo: {{availability_enabled: false, ttft: {off}, e2e: {off}, "
    root = parse_settings(f"{text}inter_token: {off.replace('1.0', '0.1')}}}}}".encode())
    assert "sre-slo" not in {file.stem for file in rule_files(root.monitoring)}


# ---- Budget ---------------------------------------------------------------------------------------------------------


def test_the_state_of_the_period_needs_its_data() -> None:
    def names(retention_days: float) -> set[str]:
        chosen = MonitoringSettings(retention_days=retention_days)
        return {record.name for record in slo.records(selection(chosen), chosen)}

    assert names(31) - names(15) == {"slo:period_burn_rate:ratio", "slo:period_error_budget_remaining:ratio"}
    assert "monitoring.retention_days: 15 is shorter" in slo.notes(selection(DEFAULT), DEFAULT)[-1]
    assert slo.notes(selection(DEFAULT), MonitoringSettings(retention_days=30)) == []


def availability() -> list[Group]:
    """Its records over five minutes: the longer windows differ in nothing but the range."""
    groups = (group for group in all_groups(DEFAULT) if group.name == "sre-records-slo-availability-short")
    return [replace(one, rules=tuple(rule for rule in one.rules if rule.name.endswith("5m"))) for one in groups]


def only_slo(chosen: MonitoringSettings, name: str) -> list[Group]:
    return [group for group in all_groups(chosen) if group.name.startswith(f"sre-records-slo-{name}")]


def test_availability_is_what_the_gateway_saw_where_it_saw_the_model(tmp_path: Path) -> None:
    gateway = 'sre_requests_total{job="sre",engine="e",pool="m",outcome="%s"}'
    http = 'http_requests_total{job="vllm",instance="n:1",handler="/v1/completions",method="POST",status="%s"}'
    judged = judge_values(
        availability(),
        tmp_path,
        {
            gateway % "success": "0+48x40",
            gateway % "failure": "0+16x40",
            gateway % "neutral": "0+100x40",
            http % "5xx": "0+64x40",
            'vllm:num_requests_running{job="vllm",instance="n:1",model_name="m"}': "1x40",
            # A model beside the gateway: 64 judged, 32 of them 5xx of which 16 shed; 4xx do not count.
            (http % "2xx").replace("n:1", "n:2"): "0+32x40",
            (http % "4xx").replace("n:1", "n:2"): "0+64x40",
            (http % "5xx").replace("n:1", "n:2"): "0+32x40",
            'vllm:admission_rejections_total{job="vllm",instance="n:2",model_name="o",reason="max_num_queued_reqs"}': (
                "0+16x40"
            ),
            'vllm:num_requests_running{job="vllm",instance="n:2",model_name="o",engine="0"}': "1x40",
            'vllm:num_requests_running{job="vllm",instance="n:2",model_name="o",engine="1"}': "1x40",
        },
        {
            "round(slo:errors:ratio_rate5m * 1024)": {
                '{model_name="m",slo="availability"}': 256,
                '{model_name="o",slo="availability"}': 341,  # 16 / 48
            }
        },
    )
    assert judged.returncode == 0, judged.output


ENDED = 'sre_requests_total{job="sre",engine="e",pool="m",outcome="%s"}'
REFUSED = 'sre_requests_rejected_total{job="sre",pool="m",reason="%s"}'
ANSWERED = 'http_requests_total{job="vllm",instance="n:1",handler="/v1/completions",method="POST",status="%s"}'
OF_M = 'slo:errors:ratio_rate5m{model_name="m",slo="availability"}'


@pytest.mark.parametrize("reason", ["no_healthy_upstream", "concurrency_limit", "hang", "manual"])
def test_a_refusal_that_is_no_fault_of_the_client_is_a_failure(reason: str, tmp_path: Path) -> None:
    """No engine in rotation: no request ends at one, and nothing else says that the model is down."""
    judged = judge_values(
        availability(),
        tmp_path,
        {ENDED % "success": "0x40", ENDED % "failure": "0x40", REFUSED % reason: "0+16x40"},
        {"slo:errors:ratio_rate5m": {OF_M: 1}},
    )
    assert judged.returncode == 0, judged.output


@pytest.mark.parametrize("reason", ["rate_limited", "shed_offline", "body_too_large", "invalid_json"])
def test_limits_and_bad_requests_are_no_failures(reason: str, tmp_path: Path) -> None:
    judged = judge_values(
        availability(),
        tmp_path,
        {ENDED % "success": "0+48x40", ENDED % "failure": "0+16x40", REFUSED % reason: "0+64x40"},
        {"slo:errors:ratio_rate5m": {OF_M: 0.25}},
    )
    assert judged.returncode == 0, judged.output


def test_what_belongs_to_no_pool_is_no_model(tmp_path: Path) -> None:
    """An engine that is gone for good, or a model that nobody serves: of which objective would they be?"""
    judged = judge_values(
        availability(),
        tmp_path,
        {
            ENDED % "success": "0+48x40", ENDED % "failure": "0+16x40",
            (ENDED % "failure").replace('pool="m"', 'pool=""'): "0+64x40",
            (REFUSED % "no_healthy_upstream").replace('pool="m"', 'pool=""'): "0+64x40",
        },
        {"slo:errors:ratio_rate5m": {OF_M: 0.25}},
    )  # fmt: skip
    assert judged.returncode == 0, judged.output


def test_a_full_outage_of_one_of_two_models_burns(tmp_path: Path) -> None:
    """Its engines are gone, and the gateway refuses; the other model is well."""
    groups = [*only_slo(DEFAULT, "availability"), *(g for g in all_groups(DEFAULT) if g.name == "sre-slo")]
    judged = judge_values(
        groups,
        tmp_path,
        {
            ENDED % "success": "0+64x40 2560x60", ENDED % "failure": "0x100",
            REFUSED % "no_healthy_upstream": "0x40 0+64x60",
            (ENDED % "success").replace('"m"', '"o"'): "0+64x100",
        },
        {'count by (model_name) (ALERTS{alertname="SloAvailabilityBurn1h",alertstate="firing"})': {
            '{model_name="m"}': 1}},
        at="18m",
    )  # fmt: skip
    assert judged.returncode == 0, judged.output


@pytest.mark.parametrize("gateway", ["0x40", "0+64x10 704x30"], ids=["born at 0", "idle since"])
def test_a_gateway_that_carries_nothing_hides_no_failure_of_direct_traffic(gateway: str, tmp_path: Path) -> None:
    judged = judge_values(
        availability(),
        tmp_path,
        {
            ENDED % "success": gateway, ENDED % "failure": "0x40", REFUSED % "hang": "0x40",
            ANSWERED % "2xx": "0x40", ANSWERED % "5xx": "0+64x40",
            'vllm:num_requests_running{job="vllm",instance="n:1",model_name="m"}': "1x40",
        },
        {"slo:errors:ratio_rate5m": {OF_M: 1}},
    )  # fmt: skip
    assert judged.returncode == 0, judged.output


def test_without_traffic_the_objective_is_known(tmp_path: Path) -> None:
    judged = judge_values(
        only_slo(DEFAULT, "availability"),
        tmp_path,
        {ENDED % "success": "0x40", ENDED % "failure": "0x40"},
        {
            "slo:objective:ratio": {'slo:objective:ratio{model_name="m",slo="availability"}': 0.999},
            "slo:errors:ratio_rate5m": {},
        },
    )
    assert judged.returncode == 0, judged.output


def test_failures_of_an_instance_count_for_the_model_that_it_has_now(tmp_path: Path) -> None:
    """It served another model earlier in the window; the failures were counted for both."""
    running = 'vllm:num_requests_running{job="vllm",instance="n:1",model_name="%s"}'
    judged = judge_values(
        availability(),
        tmp_path,
        {
            ANSWERED % "2xx": "0+64x40", ANSWERED % "5xx": "0+64x40",
            running % "before": "1x30 stale", running % "m": "_x31 1x9",
        },
        {"slo:errors:ratio_rate5m": {OF_M: 0.5}},
    )  # fmt: skip
    assert judged.returncode == 0, judged.output


def test_more_shed_than_failed_is_no_negative_failure(tmp_path: Path) -> None:
    http = 'http_requests_total{job="vllm",instance="n:2",handler="/v1/completions",method="POST",status="%s"}'
    judged = judge_values(
        availability(),
        tmp_path,
        {
            http % "2xx": "0+32x40",
            http % "5xx": "0+8x40",
            'vllm:admission_rejections_total{job="vllm",instance="n:2",model_name="o",reason="max_num_queued_reqs"}': (
                "0+16x40"
            ),
            'vllm:num_requests_running{job="vllm",instance="n:2",model_name="o"}': "1x40",
        },
        {"slo:errors:ratio_rate5m": {'slo:errors:ratio_rate5m{model_name="o",slo="availability"}': 0}},
    )
    assert judged.returncode == 0, judged.output


def test_an_engine_that_gave_up_counts_though_its_status_was_200(tmp_path: Path) -> None:
    judged = judge_values(
        availability(),
        tmp_path,
        {
            'http_requests_total{job="vllm",instance="n:2",handler="/v1/completions",method="POST",status="2xx"}': (
                "0+64x40"
            ),
            'vllm:request_success_total{job="vllm",instance="n:2",model_name="o",finished_reason="error"}': "0+16x40",
            'vllm:request_success_total{job="vllm",instance="n:2",model_name="o",finished_reason="stop"}': "0+48x40",
            'vllm:num_requests_running{job="vllm",instance="n:2",model_name="o"}': "1x40",
        },
        {"slo:errors:ratio_rate5m": {'slo:errors:ratio_rate5m{model_name="o",slo="availability"}': 0.25}},
    )
    assert judged.returncode == 0, judged.output


def test_a_model_whose_engine_died_a_minute_ago_keeps_its_failures(tmp_path: Path) -> None:
    judged = judge_values(
        availability(),
        tmp_path,
        {
            'http_requests_total{job="vllm",instance="n:2",handler="/v1/completions",method="POST",status="2xx"}': (
                "0+64x36 stale"
            ),
            'http_requests_total{job="vllm",instance="n:2",handler="/v1/completions",method="POST",status="5xx"}': (
                "0+64x36 stale"
            ),
            'vllm:num_requests_running{job="vllm",instance="n:2",model_name="o"}': "1x36 stale",
        },
        {"slo:errors:ratio_rate5m": {'slo:errors:ratio_rate5m{model_name="o",slo="availability"}': 0.5}},
    )
    assert judged.returncode == 0, judged.output


def test_budget_and_burn_rate(tmp_path: Path) -> None:
    chosen = MonitoringSettings(retention_days=40)
    judged = judge_values(
        only_slo(chosen, "ttft"),
        tmp_path,
        {
            'vllm:time_to_first_token_seconds_count{job="vllm",instance="n:1",model_name="m"}': "0+64x80",
            'vllm:time_to_first_token_seconds_bucket{job="vllm",instance="n:1",model_name="m",le="1.0"}': "0+48x80",
        },
        {
            "slo:objective:ratio": {'slo:objective:ratio{model_name="m",slo="ttft"}': 0.99},
            "slo:error_budget:ratio": {'slo:error_budget:ratio{model_name="m",slo="ttft"}': 0.01},
            "round(slo:current_burn_rate:ratio)": {'{model_name="m",slo="ttft"}': 25},
            "round(slo:period_burn_rate:ratio)": {'{model_name="m",slo="ttft"}': 25},
            "round(slo:period_error_budget_remaining:ratio)": {'{model_name="m",slo="ttft"}': -24},
        },
        at="20m",
        settings=chosen,
    )
    assert judged.returncode == 0, judged.output


# ---- Low traffic ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failures", "fires"), [(1, False), (4, False), (8, True)])
def test_few_failures_fire_nothing_however_little_traffic_there_is(failures: int, fires: bool, tmp_path: Path) -> None:
    """One failure of two requests is 50 %, and no reason to wake anybody."""
    counter = 'sre_requests_total{job="sre",engine="e",pool="m",outcome="%s"}'
    groups = [*only_slo(DEFAULT, "availability"), *(g for g in all_groups(DEFAULT) if g.name == "sre-slo")]
    judged = judge_values(
        groups,
        tmp_path,
        {counter % "failure": f"0x4 {failures}x40", counter % "success": f"0x4 {failures}x40"},
        {
            'count(ALERTS{alertname="SloAvailabilityBurn1h",alertstate="firing"}) or vector(0)': {"{}": int(fires)},
            'round(slo:errors:ratio_rate1h{slo="availability"} * 100)': {'{model_name="m",slo="availability"}': 50},
        },
        at="5m",
    )
    assert judged.returncode == 0, judged.output


def test_every_objective_has_cases_for_any_guard_against_low_traffic() -> None:
    chosen = settings(min_bad_events=1000)
    groups = all_groups(chosen)
    alert = next(alert for alert in alerts_slo.alerts(selection(chosen), chosen) if alert.name == "SloE2eBurn6h")
    _, files = case_files(groups, alert, chosen)
    assert "+1024x" in files["SloE2eBurn6h.test.yml"]
