"""Where messages lead."""

from __future__ import annotations

from pathlib import Path

import pytest

from sre.actions.types import RejectReason
from sre.notify.links import DASHBOARDS, DEFAULT_DASHBOARD, NOWHERE, RUNBOOKS, Links, is_web_address

PROJECT = Path(__file__).parents[2]
WITHOUT = {RejectReason.RAMP.value}
"""Begins no incident."""


def test_every_reason_of_the_guard_leads_to_a_runbook_and_a_dashboard_that_exist() -> None:
    assert {reason.value for reason in RejectReason} - WITHOUT <= set(RUNBOOKS)
    for alert in RUNBOOKS.values():
        assert (PROJECT / "runbooks" / f"{alert}.md").exists(), alert
    for uid in {*DASHBOARDS.values(), DEFAULT_DASHBOARD}:
        assert (PROJECT / "dashboards" / f"{uid}.json").exists(), uid


def test_links() -> None:
    links = Links("https://x.example.org/runbooks/", "https://grafana.example.org/")
    assert links.runbook("hang") == "https://x.example.org/runbooks/VllmEngineHung.md#vllmenginehung"
    assert links.dashboard("hang") == "https://grafana.example.org/d/sre-breaker"
    assert links.dashboard("gpu_memory") == "https://grafana.example.org/d/sre-resource"
    assert links.runbook("test") == links.dashboard("test") == ""
    assert Links("runbooks", "").runbook("blind") == NOWHERE.runbook("blind") == "sre runbook show SreRuleBlind"
    assert NOWHERE.dashboard("hang") == ""


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("https://a/b?c=1&d=2#e", True),
        ("http://127.0.0.1:3000", True),
        ("javascript:alert(1)", False),
        ('https://a/"onclick="x', False),
        ("https://a b", False),
        ("https://", False),
        ("ftp://a", False),
        ("https://a\n", False),
    ],
)
def test_what_may_stand_behind_a_link(text: str, is_one: bool) -> None:
    assert is_web_address(text) is is_one
