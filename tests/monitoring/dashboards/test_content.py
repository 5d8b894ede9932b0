"""What the dashboards show, and that every panel says what it is, what is bad, and where it comes from."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest

from sre.metrics import own
from sre.metrics.catalogue import CATALOGUE
from sre.monitoring.catalogue_rules import all_alerts, all_records
from sre.monitoring.dashboards import batching, overview, request, resource
from sre.monitoring.dashboards.catalogue import all_dashboards
from sre.monitoring.dashboards.document import DATASOURCE, document
from sre.monitoring.dashboards.layout import place
from sre.monitoring.dashboards.model import GRID_WIDTH, MAX_UID, Dashboard, Kind, Panel, Shown
from sre.monitoring.promql import number
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.dashboards.conftest import EVERYTHING
from tests.monitoring.dashboards.reading import panels, queries

Documents = dict[str, dict[str, Any]]
UIDS = ("sre-overview", "sre-resource", "sre-batching", "sre-request", "sre-slo", "sre-breaker")
ALERTS = {alert.name: alert for alert in all_alerts(EVERYTHING)}

A1 = (
    "gpu:utilization:ratio", "gpu:memory_used:ratio", "gpu:memory_used:bytes", "gpu:temperature:celsius",
    "gpu:power:watts", "gpu:xid:last", "gpu:nvlink:bytes_per_second", "instance_device:disk_read:bytes_rate5m",
    "instance_device:disk_written:bytes_rate5m", "instance_device:disk_read_await:seconds_rate5m",
    "instance_device:disk_utilization:ratio_rate5m", "instance_device:disk_iops:rate5m",
    "instance_device:network_receive:bytes_rate5m", "instance_device:network_receive_discards:rate5m",
    "instance_device:network_receive_missed_errors:rate5m", "instance:tcp_retransmits:ratio_rate5m",
    "instance:cpu_iowait:ratio_rate5m", "instance:cpu_softirq:ratio_rate5m", "instance:page_faults_major:rate5m",
)  # fmt: skip
A2 = (
    own.ENGINE_BATCH_SIZE.name + "_bucket", "engine:vllm_queue_seconds:mean_rate5m", "engine:vllm_requests_waiting:sum",
    "engine:vllm_kv_cache_usage:ratio_max", "engine:vllm_prefix_cache_hits:ratio_rate5m",
    "engine:vllm_preemptions:rate5m", "engine:vllm_iteration_tokens:mean_rate5m",
)  # fmt: skip
A3 = (
    *(f"engine:vllm_{family}_seconds:{q}_rate5m" for family in ("e2e", "ttft", "itl") for q in ("p50", "p90", "p99")),
    "pool:requests_errors:ratio_rate5m", "engine:http_errors:ratio_rate5m", "engine_reason:vllm_finished:rate5m",
    "engine:vllm_requests:rate5m", "engine:vllm_generation_tokens:rate5m", "engine:vllm_prompt_tokens:rate5m",
)  # fmt: skip


def the(dashboards: tuple[Dashboard, ...], uid: str) -> Dashboard:
    return next(one for one in dashboards if one.uid == uid)


# ---- What must be there ----------------------------------------------------------------------------------------------


def test_there_are_six_in_the_order_of_looking(dashboards: tuple[Dashboard, ...]) -> None:
    assert tuple(one.uid for one in dashboards) == UIDS


@pytest.mark.parametrize(("uid", "names"), [(resource.UID, A1), (batching.UID, A2), (request.UID, A3)])
def test_each_dimension_shows_all_its_signals(
    dashboards: tuple[Dashboard, ...], uid: str, names: tuple[str, ...]
) -> None:
    shown = {name for row in the(dashboards, uid).rows if not row.collapsed for p in row.panels for name in p.names}
    assert set(names) - shown == set()


def test_golden_signals_are_on_one_screen(dashboards: tuple[Dashboard, ...]) -> None:
    one = the(dashboards, overview.UID)
    placed = {panel.key: where for row in place(one.rows) for panel, where in row.panels}
    assert set(overview.GOLDEN) <= placed.keys()
    assert max(where.y + where.h for where in placed.values()) <= overview.SCREEN_HEIGHT
    assert {"breaker-worst", "alerts-count", "errors-now", "requests-now"} <= placed.keys()


def test_batch_size_is_a_heatmap_of_time_weighted_sizes(dashboards: tuple[Dashboard, ...]) -> None:
    panel = next(p for p in the(dashboards, batching.UID).panels if p.key == "batch-size")
    assert panel.kind is Kind.HEATMAP
    assert panel.names == ("sre_engine_batch_size_bucket",)


def test_breakers_actions_and_faults_are_drawn_as_events(documents: Documents) -> None:
    names = [one["name"] for one in documents["sre-breaker"]["annotations"]["list"]]
    assert names == ["Annotations & Alerts", "Alerts", "Breaker open", "Injected faults", "Actions", "Restarts"]


def test_budget_that_prometheus_cannot_know_is_shown_for_three_days_instead() -> None:
    """With 15 days of data there is no budget of 30 days."""
    short, long = (the(all_dashboards(s), "sre-slo") for s in (MonitoringSettings(), EVERYTHING))
    assert "budget-spent" in {p.key for p in short.panels}
    assert {"budget-left", "budget"} <= {p.key for p in long.panels}


# ---- Every alert has a place to look ---------------------------------------------------------------------------------


def test_every_alert_is_named_by_a_panel_of_the_dashboard_it_links_to(dashboards: tuple[Dashboard, ...]) -> None:
    named = {one.uid: {alert for panel in one.panels for alert in panel.all_alerts} for one in dashboards}
    missing = [(a.name, a.dashboard) for a in all_alerts(MonitoringSettings()) if a.name not in named[a.dashboard]]
    assert missing == []


def test_no_panel_names_an_alert_that_does_not_exist() -> None:
    """``all_dashboards`` drops alerts that the settings switch off; a slip of the pen must not go the same way."""
    from sre.monitoring.dashboards import breaker, slo
    from sre.monitoring.dashboards.sources import sources

    from_ = sources(EVERYTHING)
    for make in (overview.overview, resource.resource, batching.batching, request.request, slo.slo, breaker.breaker):
        for panel in make(from_).panels:
            assert set(panel.all_alerts) <= ALERTS.keys(), panel.title


def limited() -> list[Any]:
    found = []
    for one in all_dashboards(EVERYTHING):
        for panel in one.panels:
            for limit in panel.limits:
                if limit.alert:
                    found.append(pytest.param(panel, limit.value, limit.alert, id=f"{one.uid}-{panel.key}"))
    return found


@pytest.mark.parametrize(("panel", "value", "alert"), limited())
def test_a_line_stands_where_its_alert_fires(panel: Panel, value: float, alert: str) -> None:
    expression = ALERTS[alert].expr.text
    assert re.search(rf"[<>]=? ?{re.escape(number(value))}(?![\d.])", expression), f"{alert}: {expression}"


def test_thresholds_of_the_settings_move_the_lines() -> None:
    thresholds = MonitoringSettings().thresholds.model_copy(update={"gpu_temperature_celsius": 77.0})
    settings = MonitoringSettings(thresholds=thresholds)
    panel = next(p for p in the(all_dashboards(settings), resource.UID).panels if p.key == "gpu-temperature")
    assert [limit.value for limit in panel.limits] == [77.0]


# ---- Form ------------------------------------------------------------------------------------------------------------


def test_every_panel_says_what_it_shows_what_is_bad_and_where_it_comes_from(documents: Documents) -> None:
    units = {shown.value for shown in Shown}
    for uid, one in documents.items():
        for panel in panels(one):
            where = f"{uid}: {panel['title']}"
            defaults = panel["fieldConfig"]["defaults"]
            assert panel["title"], uid
            assert "Bad: " in panel["description"], where
            assert "From `" in panel["description"], where
            assert defaults["unit"] in units, where
            assert defaults["noValue"], where
            special = [m for m in defaults["mappings"] if m["type"] == "special"]
            assert [m["options"]["match"] for m in special] == ["null+nan"], where
            assert special[0]["options"]["result"]["text"] == defaults["noValue"], where
            assert panel["targets"], where


def test_ratios_have_no_axis_beyond_one_and_nothing_begins_below_zero_unasked(
    dashboards: tuple[Dashboard, ...],
) -> None:
    for one in dashboards:
        for panel in one.panels:
            if panel.kind is Kind.LINES:
                assert panel.bottom == 0.0 or panel.key in {"signal-value", "sli", "budget"}, panel.key


def test_descriptions_name_exactly_what_is_queried(documents: Documents) -> None:
    for one in documents.values():
        for panel in panels(one):
            named = set(re.findall(r"`([a-zA-Z_:][\w:]*)`", panel["description"]))
            queried = {name for target in panel["targets"] for name in re.findall(r"[a-zA-Z_:][\w:]*", target["expr"])}
            assert named <= queried, panel["title"]


def test_everything_reads_the_chosen_datasource(documents: Documents) -> None:
    for one in documents.values():
        for panel in panels(one):
            assert panel["datasource"] == DATASOURCE
            assert all(target["datasource"] == DATASOURCE for target in panel["targets"])
        variables = {variable["name"]: variable for variable in one["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource"
        assert all(v["datasource"] == DATASOURCE for v in variables.values() if v["type"] == "query")
        assert all(a["datasource"] == DATASOURCE for a in one["annotations"]["list"] if "builtIn" not in a)
        assert "__inputs" not in one


def test_variables_are_all_used_and_all_declared(documents: Documents) -> None:
    for uid, one in documents.items():
        declared = {variable["name"] for variable in one["templating"]["list"]}
        texts = [expression for _, expression in queries(one)]
        used = {name for text in texts for name in re.findall(r"\$(\w+)", text) if not name.startswith("__")}
        assert used | {"datasource"} == declared, uid


def test_variables_offer_all_and_match_series_without_the_label(documents: Documents) -> None:
    for one in documents.values():
        for variable in one["templating"]["list"]:
            if variable["type"] != "query":
                continue
            assert (variable["refresh"], variable["includeAll"], variable["multi"]) == (2, True, True)
            assert variable["allValue"] == ".*"
        for _, expression in queries(one):
            # A variable of several values is a pattern: "=" would match none of them.
            assert not re.search(r'[^~]"\$', expression), expression


def test_uids_and_numbers_of_panels_are_stable(dashboards: tuple[Dashboard, ...]) -> None:
    """People link to panels; a number that changes breaks the link."""
    panel = next(p for p in the(dashboards, "sre-overview").panels if p.key == "disk-await")
    assert panel.id == 514_276
    for one in dashboards:
        assert len(one.uid) <= MAX_UID
        ids = [panel["id"] for panel in document(one, EVERYTHING)["panels"]]
        assert len(ids) == len(set(ids))


def test_panels_neither_overlap_nor_leave_the_grid(dashboards: tuple[Dashboard, ...]) -> None:
    for one in dashboards:
        rows = list(place(one.rows))
        shown = [where for row in rows for where in (row.headline, *(w for _, w in row.panels)) if where is not None]
        closed = [where for row in rows if row.row.collapsed for _, where in row.panels]
        open_ = [where for where in shown if where not in closed]
        for group in (open_, closed):
            assert all(w.x >= 0 and w.x + w.w <= GRID_WIDTH for w in group)
            assert not any(a.overlaps(b) for a, b in combinations(group, 2)), one.uid


def test_lines_of_panels_use_the_whole_width(dashboards: tuple[Dashboard, ...]) -> None:
    """No ragged rows: each line is full, except the last one of a row."""
    for one in dashboards:
        for row in place(one.rows):
            lines: dict[int, int] = {}
            for _, where in row.panels:
                lines[where.y] = lines.get(where.y, 0) + where.w
            assert all(width == GRID_WIDTH for width in list(lines.values())[:-1]), (one.uid, row.row.title, lines)


def test_dashboards_cannot_be_edited_and_link_to_each_other(documents: Documents) -> None:
    for one in documents.values():
        assert one["editable"] is False
        assert one["id"] is None
        assert "version" not in one
        link = one["links"][0]
        assert (link["type"], link["tags"], link["includeVars"], link["keepTime"]) == (
            "dashboards",
            ["sre"],
            True,
            True,
        )
        assert link["tags"] == one["tags"]


def test_panels_link_to_runbooks_where_these_have_an_address(documents: Documents) -> None:
    panel = next(p for p in panels(documents["sre-overview"]) if p["title"] == "Disk await")
    assert [link["url"] for link in panel["links"]] == [
        "https://runbooks.example/sre/NodeDiskAwaitHigh.md#nodediskawaithigh",
        "https://runbooks.example/sre/NodeDiskSaturated.md#nodedisksaturated",
    ]
    relative = document(all_dashboards(MonitoringSettings())[0], MonitoringSettings())
    assert all(panel["links"] == [] for panel in panels(relative))


# ---- Sources ---------------------------------------------------------------------------------------------------------


def test_open_rows_read_records_and_own_metrics_only(dashboards: tuple[Dashboard, ...]) -> None:
    """Raw metrics of the exporters change names; they stand in rows that are closed, for drilling down."""
    records = {record.name for record in all_records(EVERYTHING)}
    for one in dashboards:
        for row in one.rows:
            for name in {name for panel in row.panels for name in panel.names}:
                metric = CATALOGUE.by_sample(name)
                assert name in records or metric is not None, name
                if not row.collapsed:
                    ours = metric is not None and metric.name in own.OWN_METRICS
                    assert name in records or ours or name in {"up", "ALERTS"}, f"{one.uid}: {name}"


@pytest.mark.parametrize("version", ["0.8", "0.11", "0.19", "0.32"])
@pytest.mark.parametrize("exporter", ["4.8.3", "4.9.0"])
def test_for_a_release_only_names_that_it_exposes_are_used(version: str, exporter: str) -> None:
    from sre.metrics.types import Exporter, Version

    settings = EVERYTHING.model_copy(update={"vllm_version": version, "dcgm_exporter_version": exporter})
    versions = {Exporter.VLLM: Version.parse(version), Exporter.DCGM: Version.parse(exporter)}
    records = {record.name for record in all_records(settings)}
    for one in all_dashboards(settings):
        for name in one.uses - records:
            metric = CATALOGUE.by_sample(name)
            assert metric is not None, name
            assert metric.exists_in(versions.get(metric.exporter)), f"{one.uid}: {name} is not in {version}/{exporter}"


def test_another_prefix_is_used_everywhere() -> None:
    settings = MonitoringSettings(metric_prefix="ray_vllm:")
    used = frozenset().union(*(one.uses for one in all_dashboards(settings)))
    assert not [name for name in used if name.startswith("vllm:")]
    assert "ray_vllm:num_requests_running" in used
