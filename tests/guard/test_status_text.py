"""What ``sre guard status`` makes of the guard's word."""

from __future__ import annotations

from typing import Any

import pytest

from sre.cli.guard import is_well, status_text

ENGINE = {"state": "closed", "blind": [], "in_flight": {"value": 0.0}, "detail": "", "process": "ready"}
WELL: dict[str, Any] = {
    "tick_age_seconds": 0.2,
    "mode": "auto",
    "problem": None,
    "webhook_problem": None,
    "paused": None,
    "supervisor_reachable": True,
    "gateway_reachable": True,
    "pools": {},
    "engines": {"a": ENGINE},
}


def test_a_guard_without_a_problem_is_well() -> None:
    assert is_well(WELL)
    assert "PROBLEM" not in status_text(WELL)


@pytest.mark.parametrize("field", ["problem", "webhook_problem"])
def test_what_keeps_guard_or_webhook_from_its_work_is_a_problem(field: str) -> None:
    hindered = WELL | {field: "guard state: disk full"}
    assert not is_well(hindered)
    assert "PROBLEM: guard state: disk full" in status_text(hindered)


def test_a_paused_blind_or_empty_guard_is_not_well() -> None:
    assert not is_well(WELL | {"paused": {"owner": "a", "reason": "b"}})
    assert not is_well(WELL | {"gateway_reachable": False})
    assert not is_well(WELL | {"engines": {}})
    assert not is_well(WELL | {"engines": {"a": ENGINE | {"blind": ["steps"]}}})
