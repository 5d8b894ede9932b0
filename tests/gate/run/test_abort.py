"""When a stage is given up, in which order, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from sre.gate.abort import AbortReason, Limits, applies, decide, explain, limits_of
from sre.gate.plan import knee_stage, staircase
from sre.gate.stages import LiveCounts
from sre.settings.gate import LoadSettings, ObjectiveSettings


def counts(**values: Any) -> LiveCounts:
    base: dict[str, Any] = {
        "at": 10.0, "started_at": 0.0, "planned": 1000, "due": 500, "sent": 500, "in_flight": 10, "ok": 490,
        "failed": 0, "shed": 0, "over_limit": 0,
    }  # fmt: skip
    return LiveCounts(**(base | values))


def test_a_stage_that_does_well_goes_on() -> None:
    assert decide(counts(), Limits(0.01, 1.0, 100.0, 10_000)) is None


@pytest.mark.parametrize(
    ("ok", "failed", "given_up"),
    [
        (0, 49, False),  # too few to speak of a share
        (0, 50, True),
        (490, 10, False),  # 2 % of 500 is above 1 %, and may be chance
        (940, 60, True),
    ],
)
def test_failures_beyond_chance_give_a_stage_up(ok: int, failed: int, given_up: bool) -> None:
    found = decide(counts(ok=ok, failed=failed), Limits(0.01))
    assert (found is AbortReason.ERROR_SHARE) is given_up


def test_the_p99_objective_is_counted_exactly() -> None:
    limits = Limits(ttft_limit_seconds=1.0)
    assert decide(counts(planned=1050, over_limit=10), limits) is None
    assert decide(counts(planned=1050, over_limit=11), limits) is AbortReason.OVER_LIMIT
    assert decide(counts(planned=1050, over_limit=11), Limits()) is None


def test_the_client_gives_up_before_it_would_hold_requests_back() -> None:
    limits = Limits(max_in_flight=1000)
    assert decide(counts(in_flight=949), limits) is None
    assert decide(counts(in_flight=950), limits) is AbortReason.IN_FLIGHT_CAP
    assert decide(counts(shed=1), limits) is AbortReason.IN_FLIGHT_CAP


def test_the_order_of_reasons() -> None:
    everything = counts(ok=0, failed=500, over_limit=1000, shed=1, at=1000.0)
    limits = Limits(0.01, 1.0, 100.0, 10)
    assert decide(everything, limits) is AbortReason.ERROR_SHARE
    assert decide(counts(over_limit=1000, shed=1, at=1000.0), limits) is AbortReason.OVER_LIMIT
    assert decide(counts(shed=1, at=1000.0), limits) is AbortReason.IN_FLIGHT_CAP
    assert decide(counts(at=1000.0, in_flight=1), limits) is AbortReason.DEADLINE


def test_objectives_bind_the_stages_they_are_about_and_none_of_the_search() -> None:
    load = LoadSettings()
    low, _, high = staircase(load, 0)
    objectives = [
        ObjectiveSettings(max_qps=500, failed_ratio=0.01, ttft_p99_seconds=2.0),
        ObjectiveSettings(stage="100qps", ttft_p99_seconds=1.0),
        ObjectiveSettings(request_class="another", failed_ratio=0.001),
    ]
    assert limits_of(low, objectives, 5.0) == Limits(0.01, 1.0, 5.0)
    assert limits_of(high, objectives, 5.0) == Limits(0.5, None, 5.0)
    assert limits_of(knee_stage(load, 100, 0), objectives, 5.0) == Limits(0.5, None, 5.0)
    assert applies(ObjectiveSettings(request_class="short"), low)


def test_the_objective_of_one_class_does_not_give_up_a_stage_of_several() -> None:
    """What fails may be of the other class, and that is not known before the stage is over."""
    mix = [{"name": "short", "share": 0.5}, {"name": "long", "share": 0.5}]
    stage = staircase(LoadSettings.model_validate({"mix": mix}), 0)[0]
    strict = ObjectiveSettings(request_class="short", failed_ratio=0.001, ttft_p99_seconds=0.1)
    assert limits_of(stage, [strict], 5.0) == Limits(0.5, None, 5.0)


def test_a_stage_that_is_named_is_bound_above_the_highest_rate_too() -> None:
    _, _, high = staircase(LoadSettings(), 0)
    named = ObjectiveSettings(stage=high.name, max_qps=high.rate_rps / 2, failed_ratio=0.01)
    assert limits_of(high, [named], 5.0) == Limits(0.01, None, 5.0)


def test_a_stage_at_exactly_the_highest_rate_is_bound() -> None:
    low, _, _ = staircase(LoadSettings(), 0)
    assert applies(ObjectiveSettings(max_qps=low.rate_rps, failed_ratio=0.01), low)


def test_every_reason_has_a_sentence() -> None:
    assert all(explain(reason.value) != reason.value for reason in AbortReason)
    assert explain("something else") == "something else"
