"""The real vLLM under load in a real Prometheus: every rule works on what it exposes, and a stopped core pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.live.delay import HUNG
from tests.monitoring.live.hang import hang
from tests.monitoring.live.story import Story
from tests.monitoring.live.world import short_folder, unhealthy, watched
from tests.support.vllm import MAX_MODEL_LEN, READY_SECONDS, python_path

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.timeout(480)]

MONITORING = {"thresholds": {"engine_stuck_seconds": 5.0}}
GROUP_WAIT_SECONDS = 1.0
"""A tenth of ours: the simulated stack shows that of ours."""


def engine(python: str, model: Path) -> dict[str, Any]:
    """Our entry for vLLM on a CPU."""
    return {
        "name": "vllm-0", "kind": "vllm", "build": "cpu", "python": python, "model": str(model),
        "served_model_name": "tiny", "ready_timeout_seconds": READY_SECONDS, "stop_timeout_seconds": 3,
        "drain_timeout_seconds": 1, "env": {"PYTHONPATH": python_path()},
        "args": ["--enforce-eager", "--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)],
    }  # fmt: skip


@pytest.fixture(scope="module")
def story(vllm_python: str, tiny_model: Path) -> Iterator[Story]:
    """One start for everything. The fault is held for less than the guard waits before it restarts."""
    with (
        short_folder() as folder,
        watched(
            folder,
            [engine(vllm_python, tiny_model)],
            monitoring=MONITORING,
            group_wait=f"{GROUP_WAIT_SECONDS:g}s",
            ready=READY_SECONDS,
            hang={"start_grace_seconds": 1.0},
        ) as world,
    ):
        told = Story(world)
        world.live.start_load(clients=2, max_tokens=64)
        answered = "vllm:e2e_request_latency_seconds_count > 2"
        world.prometheus.until("requests answered", lambda: world.prometheus.query(answered))
        # Rates over minutes have their series during the hang as well: stock is taken while the alert is pending.
        told.hang = hang(
            world, "vllm-0", hold="8s", group_wait=GROUP_WAIT_SECONDS, timeout=60, meanwhile=told.look,
            until_resolved=False,
        )  # fmt: skip
        world.live.stop_load()
        told.verify()
        yield told


def test_every_rule_is_healthy_and_has_a_series(story: Story) -> None:
    assert len(story.rules) > 200
    assert unhealthy(story.rules) == []
    assert story.unexcused_samples() == set()
    assert story.unexcused_records() == set()
    assert story.unexcused_operands() == {}


def test_vllm_declares_the_types_of_the_catalogue(story: Story) -> None:
    assert story.wrong_types() == {}


def test_every_panel_has_data_or_its_text_is_the_truth(story: Story) -> None:
    assert story.unexcused_panels(seconds=60) == {}


def test_a_stopped_core_pages_and_the_parts_of_the_delay_add_up(story: Story) -> None:
    seen = story.hang
    assert seen is not None
    print("\n" + seen.delay.table(f"{HUNG}, vLLM on a CPU, scrapes and evaluations every second"))
    assert {"engine": "vllm-0", "model_name": "tiny", "severity": "page"}.items() <= seen.told.labels.items()
    assert seen.report["verdict"] == "PASS"
    assert not seen.restarted
    assert story.parts_out_of_bounds(GROUP_WAIT_SECONDS) == {}
    assert seen.delay.total == pytest.approx(seen.told.at - seen.fault_at, abs=0.01)


def test_verify_finds_nothing_in_vllm_that_an_alert_misses(story: Story) -> None:
    for of in ("prometheus", "pages"):
        missed = {
            alert: names
            for verdict, alerts in story.verdicts(of).items()
            if verdict not in ("can fire", "not looked at")
            for alert, names in alerts.items()
            if any(name.startswith("vllm:") for name in names)
        }
        assert missed == {}
