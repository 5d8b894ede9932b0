"""What is sent, in which order, and how long it takes."""

from __future__ import annotations

import pytest

from sre.gate import environment, plan
from sre.gate.long_tail import judged_metric
from sre.gate.plan import Step, Trace
from sre.gate.result import Smoke
from sre.gate.schedule import BASE, schedule
from sre.gate.stages import Arrivals, StageKind
from sre.settings.gate import GateSettings, LoadSettings, LongTailSettings
from tests.gate.run.scene import gate_settings


def test_stages_carry_scaled_rates_and_their_names() -> None:
    stages = plan.staircase(LoadSettings(qps_scale=0.1), 2)
    assert [(one.name, one.rate_rps, one.run) for one in stages] == [
        ("10qps", 10.0, 2), ("50qps", 50.0, 2), ("100qps", 100.0, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(("rate", "name"), [(0.5, "0.5qps"), (1000.0, "1000qps"), (100 / 3, "33.3333qps")])
def test_names_are_short_and_stable(rate: float, name: str) -> None:
    assert plan.stage_name(rate) == name


def test_a_stage_has_the_same_seed_on_both_sides_and_another_in_every_run_and_at_every_rate() -> None:
    load = LoadSettings()
    assert [one.seed for one in plan.staircase(load, 0, "A")] == [one.seed for one in plan.staircase(load, 0, "B")]
    seeds = [one.seed for run in range(5) for one in plan.staircase(load, run)]
    assert len(set(seeds)) == len(seeds)
    assert seeds != [one.seed for run in range(5) for one in plan.staircase(LoadSettings(seed=2), run)]


@pytest.mark.parametrize(
    ("load", "seconds"),
    [
        (LoadSettings(), 2.0),  # 20 requests are sent in 0.2 s: the time decides
        (LoadSettings(stages_qps=(1, 2)), 20.0),  # and here the requests
        (LoadSettings(warm_up_seconds=0), 0.2),
        (LoadSettings(stages_qps=(0.01,), stage_seconds=7), 7.0),  # 20 requests would take half an hour
    ],
)
def test_warm_up_lasts_for_its_time_and_its_requests_at_the_first_rate(load: LoadSettings, seconds: float) -> None:
    stage = plan.warm_up(load)
    assert stage is not None
    assert (stage.rate_rps, stage.duration_seconds) == (load.stages_qps[0], seconds)


def test_no_warm_up_where_none_is_wanted() -> None:
    assert plan.warm_up(LoadSettings(warm_up_seconds=0, warm_up_requests=0)) is None


def test_interleaved_passes_go_abba() -> None:
    assert plan.sides(3, True) == ((0, "A"), (0, "B"), (1, "B"), (1, "A"), (2, "A"), (2, "B"))
    assert plan.sides(2, False) == ((0, "candidate"), (1, "candidate"))


def test_longs_come_beside_the_shorts_and_change_no_moment_of_theirs() -> None:
    load, long_tail = LoadSettings(stages_qps=(90,)), LongTailSettings(seconds=20)
    stages = plan.long_tail_stages(load, long_tail, 0, "")
    alone, mixed = schedule(stages[Step.SHORTS]), schedule(stages[Step.MIXED])
    shorts = [one.offset_seconds for one in mixed if one.stream == BASE]
    assert shorts == [one.offset_seconds for one in alone]
    longs = [one for one in mixed if one.stream != BASE]
    assert len(longs) == pytest.approx(10 * 20, rel=0.25)  # 90 / 9 a second: one in ten
    assert {one.prompt_tokens for one in longs} == {32_768}


def test_a_mix_that_has_a_class_called_long_keeps_it() -> None:
    load = LoadSettings.model_validate({"mix": [{"name": "long", "share": 1}]})
    mixed = plan.long_tail_stages(load, LongTailSettings(), 0, "")[Step.MIXED]
    assert [kind.name for kind in (*mixed.classes, *mixed.extra_classes)] == ["long", "long-2"]


@pytest.mark.parametrize(("qps", "metric"), [(20, "ttft_p99_seconds"), (10, "ttft_p95_seconds")])
def test_two_servers_are_compared_by_the_p99_of_the_shorts_only_where_chance_leaves_enough(
    qps: float, metric: str
) -> None:
    load = LoadSettings(stages_qps=(qps,))
    assert judged_metric(plan.long_tail_stages(load, LongTailSettings(seconds=30), 0, "")[Step.MIXED]) == metric


def test_every_second_run_of_the_long_tail_test_goes_backwards() -> None:
    order = plan.long_tail_order(2, ["", "fcfs"])
    assert order == (
        (0, "", Step.SHORTS), (0, "", Step.MIXED), (0, "fcfs", Step.SHORTS), (0, "fcfs", Step.MIXED),
        (1, "fcfs", Step.MIXED), (1, "fcfs", Step.SHORTS), (1, "", Step.MIXED), (1, "", Step.SHORTS),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("context", "says"),
    [
        (None, ""),
        (32_768 + 16, ""),
        (8192, "max_model_len 8192 is less than the 32784 tokens of a long request and its answer; try --long-tokens"
               " 8176"),
        (16, "max_model_len 16 is less than the 32784 tokens of a long request and its answer; its context is too short"
             " for any long prompt"),
    ],
)  # fmt: skip
def test_a_context_too_short_for_the_longs_is_told_with_what_fits(context: int | None, says: str) -> None:
    assert plan.long_tail_obstacle(LongTailSettings(), context) == says


def test_a_trace_is_one_stage_of_its_own_rate() -> None:
    (stage,) = plan.staircase(LoadSettings(), 0, trace=Trace(300, 60.0))
    assert (stage.name, stage.rate_rps, stage.arrivals) == ("trace", 5.0, Arrivals.REPLAY)


def test_the_client_is_calibrated_at_the_highest_rate_longs_included() -> None:
    assert plan.top_rate(GateSettings()) == 1000
    settings = gate_settings(load={"stages_qps": [90]}, long_tail={"enabled": True})
    assert plan.top_rate(settings) == pytest.approx(100)
    assert plan.top_rate(GateSettings(), Trace(300, 60.0)) == 5


def test_the_dry_run_counts_what_the_run_sends_at_the_most() -> None:
    settings = gate_settings(knee={"enabled": True, "max_stages": 5}, long_tail={"enabled": True, "runs": 2})
    plans = plan.plan_all(settings)
    kinds = [one.kind for one in plans]
    assert kinds.count(StageKind.STAIRCASE) == 2 * 3
    assert kinds.count(StageKind.SHORTS) == kinds.count(StageKind.MIXED) == 2
    total = plan.amount(plans, settings, knee=True)
    assert total.requests == sum(map(plan.planned_requests, plans)) + 5 * 80 * 30
    assert total.seconds == pytest.approx(2 + 10 * 30)
    assert total.longest_seconds == total.seconds + len(plans) * 10 + 5 * (30 + 10)


def test_the_fingerprint_knows_what_headers_say_and_keeps_keys_to_itself() -> None:
    """A priority class changes what is measured; a key does not, and must not be written down."""

    def conditions(**headers: str) -> str:
        load = {"mix": [{"name": "short", "headers": {key.replace("_", "-"): value for key, value in headers.items()}}]}
        smoke = Smoke(True, "", "m", None, True, True, "usage", "vllm")
        return dict(environment.fingerprint(GateSettings.model_validate({"load": load}), smoke, ()).fields)["mix.short"]

    assert conditions(x_priority="high") != conditions(x_priority="low")
    assert "s3cret" not in conditions(x_api_key="s3cret")
    assert "x-api-key: <hidden>" in conditions(x_api_key="s3cret")
