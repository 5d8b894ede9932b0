"""A simulated stack under load in a real Prometheus: every rule works, a hang pages in time, dashboards have data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.monitoring.live.delay import HUNG
from tests.monitoring.live.excuses import ALWAYS_EMPTY, excused_operand, excused_sample
from tests.monitoring.live.hang import hang
from tests.monitoring.live.story import Story
from tests.monitoring.live.world import TOKEN, short_folder, unhealthy, watched

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ENGINES = [
    {"name": f"sim-{n}", "kind": "sim", "model": "sim-7b", "gpus": [0], "stop_timeout_seconds": 3} for n in range(2)
]
MONITORING = {"thresholds": {"engine_stuck_seconds": 5.0}}
# A third of the defaults, so that the guard's restart still comes before the alert has been pending for its 15 s.
HANG = {
    "start_grace_seconds": 1.0,
    "restart_after_seconds": 10.0,
    "canary_first_token_timeout_seconds": 2.0,
    "canary_timeout_seconds": 4.0,
}
GROUP_WAIT_SECONDS = 10.0
"""Of pages, as we generate it."""


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    """All of it happens here; the tests look at what was seen."""
    with short_folder() as folder, watched(folder, ENGINES, monitoring=MONITORING, hang=HANG) as world:
        told = Story(world)
        world.live.start_load(clients=4, max_tokens=32)
        told.look()
        told.hang = hang(world, "sim-0", hold="60s", group_wait=GROUP_WAIT_SECONDS, timeout=60, meanwhile=told.verify)
        world.live.stop_load()
        yield told


# ---- Rules -----------------------------------------------------------------------------------------------------------


def test_every_rule_is_healthy(story: Story) -> None:
    assert len(story.rules) > 200
    assert unhealthy(story.rules) == []


def test_every_sample_that_rules_read_is_scraped(story: Story) -> None:
    assert story.unexcused_samples() == set()


def test_every_record_has_a_series(story: Story) -> None:
    assert story.unexcused_records() == set()
    assert story.records >= ALWAYS_EMPTY.keys(), "an excuse that nobody needs any more"


def test_every_operand_of_an_alert_has_a_series(story: Story) -> None:
    assert story.unexcused_operands() == {}


def test_what_is_empty_without_an_excuse_is_noticed(story: Story) -> None:
    """The checks above can fail: a name that nobody exposes has no series, and no excuse."""
    renamed = "vllm:kv_cache_usage_ratio"
    assert story.world.prometheus.query(renamed) == []
    assert not excused_sample(renamed, story.world.exporters)
    assert not excused_operand("engine:vllm_steps:rate5m", ["engine:vllm_steps:rate5m"], story.world.exporters)
    assert excused_sample("vllm:gpu_cache_usage_perc", story.world.exporters)


def test_exporters_declare_the_types_of_the_catalogue(story: Story) -> None:
    assert story.wrong_types() == {}


# ---- A hang ----------------------------------------------------------------------------------------------------------


def test_a_hang_pages_and_resolves_though_the_guard_restarts_the_engine(story: Story) -> None:
    seen = story.hang
    assert seen is not None
    assert seen.resolved is not None
    assert seen.told.receiver == "sre-page"
    expected = {"engine": "sim-0", "model_name": "sim-7b", "node": "127.0.0.1", "severity": "page"}
    assert expected.items() <= seen.told.labels.items()
    assert seen.told.annotations["summary"].startswith("engine sim-0 of sim-7b hangs")
    assert seen.told.at < seen.resolved.at
    assert seen.report["verdict"] == "PASS"
    assert seen.restarted
    assert seen.report["ending"] == "target_absent", "the guard's restart ended the fault"
    reverted = next(stamp["wall"] for stamp in seen.report["stamps"] if stamp["name"] == "t9_reverted")
    assert reverted < seen.told.at - GROUP_WAIT_SECONDS, "the hang was over before the alert fired, and yet it pages"


def test_the_parts_of_the_delay_are_what_settings_say_and_add_up(story: Story) -> None:
    seen = story.hang
    assert seen is not None
    print("\n" + seen.delay.table(f"{HUNG}, simulated engine, scrapes and evaluations every second"))
    assert story.parts_out_of_bounds(GROUP_WAIT_SECONDS) == {}
    assert seen.delay.total == pytest.approx(seen.told.at - seen.fault_at, abs=0.01)


def test_pages_are_of_the_engine_that_hangs_and_its_breaker_only(story: Story) -> None:
    assert story.hang is not None
    pages = [one.labels for one in story.hang.pages if one.labels["severity"] == "page"]
    assert {(page["alertname"], page.get("engine") or page.get("target")) for page in pages} == {
        (HUNG, "sim-0"),
        ("SreBreakerOpen", "sim-0"),
    }


def test_every_notification_carries_the_token(story: Story) -> None:
    assert story.world.receiver.authorizations == {f"Bearer {TOKEN}"}


# ---- sre rules verify ------------------------------------------------------------------------------------------------


def test_verify_finds_in_prometheus_that_all_can_fire_whose_exporters_are_there(story: Story) -> None:
    verdicts = story.verdicts("prometheus")
    cannot = verdicts.pop("cannot fire")
    assert verdicts.keys() == {"can fire"}
    for alert in ("ResourceExporterDown", "GpuMetricsMissing"):
        assert cannot.pop(alert, {"up"}) == {"up"}, "there are no targets of dcgm-exporter and node_exporter"
    assert "GpuThrottled" in cannot, "only a card knows whether its clocks are held down"
    assert {alert: names for alert, names in cannot.items() if not excused(story, names)} == {}
    assert story.verified["prometheus"].returncode == 3


def test_verify_finds_in_metrics_pages_that_all_can_fire_that_read_them(story: Story) -> None:
    """Of targets only a Prometheus knows."""
    verdicts = story.verdicts("pages")
    unseen = verdicts.pop("not looked at") | verdicts.pop("cannot fire", {})
    assert verdicts.keys() == {"can fire"}
    assert {"VllmEngineDown", "SreGuardDown"} <= unseen.keys()
    assert {alert: names for alert, names in unseen.items() if not excused(story, names - {"up"})} == {}


def excused(story: Story, names: set[str]) -> bool:
    return all(excused_sample(name, story.world.exporters) for name in names)


# ---- Dashboards ------------------------------------------------------------------------------------------------------


def test_every_panel_has_data_or_its_text_is_the_truth(story: Story) -> None:
    assert story.unexcused_panels(seconds=90) == {}
