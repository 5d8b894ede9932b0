"""Alerts that Alertmanager left out of a notification (max_alerts): nobody here knows them, so a person has to look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sre.notify.alert_decide import LEFT_OUT_REASON
from tests.webhook.scenes import Desk, one

GROUP = '{}:{alertname="VllmQueueGrowing"}'


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path)
    yield found
    found.close()


def left_out(desk: Desk) -> list[tuple[str, str]]:
    return [(m.severity, m.summary) for m in desk.messages() if m.reason == LEFT_OUT_REASON]


def test_a_new_alert_beyond_the_limit_is_not_lost_without_a_word(desk: Desk) -> None:
    """The group is sent again because of it, and lists what is known already."""
    known = [one(node=f"n{n}") for n in range(3)]
    desk.take(*known)
    assert left_out(desk) == []
    desk.take(*known, truncatedAlerts=1)
    assert left_out(desk) == [
        (
            "page",
            "1 alerts of a group (VllmQueueGrowing) are left out of its notification; what is new may be among them",
        )
    ]


def test_it_is_told_once_an_hour_per_group(desk: Desk) -> None:
    for _ in range(200):
        desk.take(one(node="n1"), truncatedAlerts=7)
    assert len(left_out(desk)) == 1
    desk.take(one(node="n1"), truncatedAlerts=7, groupKey="another")
    assert len(left_out(desk)) == 2
    desk.clock.advance(3600)
    desk.take(one(node="n1"), truncatedAlerts=7)
    assert len(left_out(desk)) == 3


def test_it_is_as_urgent_as_the_worst_that_is_listed(desk: Desk) -> None:
    desk.take(one("Slow", severity="ticket"), truncatedAlerts=7, groupKey="tickets")
    desk.take(one("Slow", severity="ticket"), one("Dead", severity="page"), truncatedAlerts=7, groupKey="both")
    desk.take(truncatedAlerts=7, groupKey="nothing")
    assert [severity for severity, _ in left_out(desk)] == ["ticket", "page", "page"]
