"""No figure of a late client counts, wherever it stands: runs, comparisons, a baseline, knee, long-tail test."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from sre.errors import ConfigError, Refused
from sre.gate.cells import measure
from sre.gate.fingerprint import build, differences_allowed
from sre.gate.judge import compare, judge
from sre.gate.objectives import breaks_objective
from sre.gate.result import RunResult, StageResult
from sre.gate.self_checks import Check
from sre.gate.stages import RequestClass
from sre.gate.verdict import Reason, Verdict
from sre.settings.gate import ObjectiveSettings
from tests.gate.verdict.simulated import BUSY_CLIENT, COMPARISON_ONLY, DEFAULTS, Model, stage_result
from tests.gate.verdict.test_baseline import accepted, result
from tests.gate.verdict.test_judge import runs
from tests.gate.verdict.test_objectives import run_of, stage_of

HERE = build([("client_host", "a"), ("seed", "1")])
THERE = build([("client_host", "b"), ("seed", "1")])


def with_late_loop(found: list[RunResult], seconds: float) -> list[RunResult]:
    """The same runs, but the client's event loop was late in the last of them."""
    (stage,) = found[-1].stages
    assert stage.summary is not None
    late = replace(stage, summary=replace(stage.summary, loop_lag_p99_seconds=seconds))
    return [*found[:-1], replace(found[-1], stages=(late,))]


@pytest.mark.parametrize("seconds", [0.05, math.nan, math.inf])
def test_a_late_event_loop_is_a_late_client_though_it_sent_on_time(seconds: float) -> None:
    late = with_late_loop(runs(1), seconds)
    for verdict in (
        judge(late, runs(2), DEFAULTS),
        judge(runs(2), late, COMPARISON_ONLY),
        compare(late, late, DEFAULTS),
    ):
        assert verdict.verdict is Verdict.INCONCLUSIVE
        assert Reason.CLIENT_LIMITED in verdict.reasons
    assert judge(with_late_loop(runs(1), 0.019), runs(2), DEFAULTS).verdict is Verdict.PASS


def test_no_baseline_is_made_of_a_stage_in_which_the_client_was_late() -> None:
    with pytest.raises(Refused, match="100qps of run 5: the client was 50 ms late"):
        accepted(result(runs=with_late_loop(runs(1), 0.05)))
    assert accepted(result(runs=with_late_loop(runs(1), 0.05)), client_lag_p99_seconds=0.06).runs


def test_a_run_that_was_cut_short_or_contradicts_itself_does_not_pass_a_comparison() -> None:
    assert compare(runs(1), runs(2), COMPARISON_ONLY).verdict is Verdict.PASS
    cut = compare(runs(1), runs(2), COMPARISON_ONLY, interrupted="run-2: killed")
    assert (cut.verdict, cut.summary) == (Verdict.INCONCLUSIVE, "cut short: run-2: killed")
    wrong = compare(runs(1), runs(2), COMPARISON_ONLY, checks=[Check("sums", False, "3 lost")])
    assert wrong.reasons == (Reason.SELF_CHECK_FAILED,)


def test_what_was_asked_for_and_not_seen_takes_the_pass_and_nothing_else() -> None:
    unseen = "long-tail test of the target: not run"
    verdict = judge(runs(1), runs(2), DEFAULTS, unseen=unseen)
    assert (verdict.verdict, verdict.reasons, verdict.summary) == (
        Verdict.INCONCLUSIVE,
        (Reason.NOT_MEASURED,),
        unseen,
    )
    assert judge(runs(1, slowness=1.4), runs(2), DEFAULTS, unseen=unseen).verdict is Verdict.FAIL


def test_a_client_that_was_the_limit_is_told_before_what_else_is_open() -> None:
    said = "this machine cannot send 1000 requests per second on time: its send lag is 45 ms (P99)"
    verdict = judge(runs(1), runs(2), DEFAULTS, calibration=BUSY_CLIENT, unseen="long-tail test: not run")
    assert (verdict.verdict, verdict.reasons, verdict.summary) == (
        Verdict.INCONCLUSIVE,
        (Reason.CLIENT_LIMITED,),
        said,
    )
    nothing_to_judge = judge([], None, replace(DEFAULTS, objectives=()), calibration=BUSY_CLIENT)
    assert nothing_to_judge.reasons == (Reason.CLIENT_LIMITED, Reason.NO_BASELINE)


def test_a_remark_stands_beside_every_verdict() -> None:
    verdict = judge(runs(1), runs(2), DEFAULTS, remark="nobody saw the schedule")
    assert verdict.summary.endswith("; nobody saw the schedule")


def test_a_condition_may_differ_only_if_somebody_declared_so() -> None:
    with pytest.raises(ConfigError, match=r"declare in gate\.baseline\.may_differ") as refused:
        compare(runs(1), runs(2), COMPARISON_ONLY, fingerprints=(HERE, THERE))
    assert "client_host was a, this run has b" in str(refused.value)
    lenient = replace(COMPARISON_ONLY, may_differ=("client_host",))
    assert compare(runs(1), runs(2), lenient, fingerprints=(HERE, THERE)).verdict is Verdict.PASS
    assert [one.name for one in differences_allowed(HERE, THERE, ("client_host", "seed"))] == ["client_host"]
    with pytest.raises(ConfigError, match="seed"):
        compare(runs(1), runs(2), lenient, fingerprints=(HERE, build([("client_host", "b"), ("seed", "2")])))


def test_a_baseline_takes_runs_of_another_host_only_if_that_may_differ() -> None:
    first = accepted(replace(result(1), fingerprint=HERE))
    second = replace(result(2, day=1), fingerprint=THERE)
    with pytest.raises(ConfigError, match="client_host"):
        accepted(second, existing=first)
    both = accepted(second, existing=first, may_differ=("client_host",))
    assert (len(both.runs), both.fingerprint) == (10, HERE)


def stages_of_a_pass(given_up_at: int) -> list[StageResult]:
    found = [
        stage_of([0.1] * 300, name=name, rate_rps=rate) for name, rate in (("10qps", 10), ("20qps", 20), ("40qps", 40))
    ]
    found[given_up_at] = replace(found[given_up_at], aborted="error_share")
    return found


@pytest.mark.parametrize(
    ("given_up_at", "objective", "breaks"),
    [
        (2, ObjectiveSettings(failed_ratio=0.01), True),
        (2, ObjectiveSettings(failed_ratio=0.01, max_qps=20), False),  # overload, beyond every bound
        (1, ObjectiveSettings(failed_ratio=0.01, max_qps=20), True),
        (0, ObjectiveSettings(ttft_p99_seconds=1, stage="20qps"), True),  # never reached
        (2, ObjectiveSettings(ttft_p99_seconds=1, stage="20qps"), False),
        (0, ObjectiveSettings(failed_ratio=0.01, stage="99qps"), False),
        (0, ObjectiveSettings(), False),
    ],
)
def test_a_stage_given_up_decides_only_what_is_bounded_there_or_above(
    given_up_at: int, objective: ObjectiveSettings, breaks: bool
) -> None:
    assert breaks_objective(stages_of_a_pass(given_up_at), [objective]) is breaks
    if breaks:
        verdict = judge([run_of(*stages_of_a_pass(given_up_at))], None, replace(DEFAULTS, objectives=(objective,)))
        assert verdict.verdict is Verdict.FAIL


def test_a_class_that_no_request_was_of_has_no_throughput() -> None:
    stage = stage_result(random.Random(1), Model())
    assert stage.summary is not None
    empty = replace(
        stage.summary.classes["short"], request_class="rare", planned=0, ok=0, failed=0, causes={}, output_tokens=None
    )
    kinds = {**stage.summary.classes, "rare": empty}
    plan = replace(stage.plan, classes=(*stage.plan.classes, RequestClass("rare", 1e-6, 1, 1)))
    run = run_of(replace(stage, plan=plan, summary=replace(stage.summary, classes=kinds)))
    values = measure(run).stages[0].classes["rare"].values
    assert (values["throughput_rps"], values["output_tokens_per_second"], values["failed_ratio"]) == (None, None, None)
