"""The whole verdict: order of the questions, reasons, and that worse never turns FAIL into PASS."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sre.errors import ConfigError, ExitCode
from sre.gate.baseline import Acceptance, Baseline
from sre.gate.cells import METRICS, highest_held, measure, named_cells
from sre.gate.fingerprint import Fingerprint, build
from sre.gate.judge import compare, judge
from sre.gate.judging import JudgePolicy
from sre.gate.result import RunResult
from sre.gate.self_checks import Check
from sre.gate.verdict import Cell, Reason, Verdict
from sre.settings.gate import GatedCellSettings, GateSettings, ObjectiveSettings
from tests.gate.verdict.simulated import BUSY_CLIENT, COMPARISON_ONLY, DEFAULTS, FIT_CLIENT, Model, lognormal_runs
from tests.gate.verdict.test_objectives import run_of, stage_of

HERE = build([("gpus", "1x L4"), ("seed", "1")])
ONE_CELL = replace(COMPARISON_ONLY, cells=(GatedCellSettings(metric="ttft_p99_seconds"),))


def runs(seed: int = 1, **model: float) -> list[RunResult]:
    return lognormal_runs(random.Random(seed), Model(**model))  # type: ignore[arg-type]


def baseline_of(found: Sequence[RunResult], fingerprint: Fingerprint = HERE, days: int = 2) -> Baseline:
    measured = [measure(run, run_id="r", day=f"2026-01-0{1 + n % days}") for n, run in enumerate(found)]
    return Baseline("default", "m", "0.1", fingerprint, measured, (Acceptance("r", 1.7e9, len(measured)),))


def test_the_policy_is_that_of_the_settings() -> None:
    assert DEFAULTS.first_class == GateSettings().load.mix[0].name
    assert len(DEFAULTS.cells) == 3
    assert DEFAULTS.objectives[0].failed_ratio == 0.01
    assert set(METRICS) == set(GatedCellSettings.model_json_schema()["properties"]["metric"]["enum"])


def test_equal_builds_pass() -> None:
    verdict = judge(runs(1), baseline_of(runs(2)), DEFAULTS, calibration=FIT_CLIENT, fingerprint=HERE)
    assert verdict.verdict is Verdict.PASS
    assert set(verdict.reasons) == {Reason.WITHIN_OBJECTIVES, Reason.NO_REGRESSION}
    assert verdict.baseline_name == "default"
    compared = [cell for cell in verdict.cells if cell.kind == "baseline"]
    assert [cell.cell.metric for cell in compared] == ["ttft_p99_seconds", "e2e_p99_seconds", "throughput_rps"]
    for cell in compared:
        assert cell.p_value is not None
        assert cell.p_adjusted is not None
        assert cell.p_value <= cell.p_adjusted
        assert cell.power_ratio is not None
        assert cell.power_ratio >= 0.8
        assert len(cell.candidate) == len(cell.baseline) == 5


def test_a_slower_build_fails_and_says_by_how_much() -> None:
    verdict = judge(runs(1, slowness=1.4), baseline_of(runs(2)), DEFAULTS, fingerprint=HERE)
    assert (verdict.verdict, verdict.reasons) == (Verdict.FAIL, (Reason.REGRESSION,))
    cell = next(cell for cell in verdict.cells if cell.verdict is Verdict.FAIL)
    assert cell.effect_ratio == pytest.approx(0.4, abs=0.15)
    assert "worse" in verdict.summary
    assert str(cell.cell) in verdict.summary


def test_a_faster_build_passes() -> None:
    assert judge(runs(1, slowness=0.7), runs(2), COMPARISON_ONLY).verdict is Verdict.PASS


def test_less_throughput_fails() -> None:
    only = replace(COMPARISON_ONLY, cells=(GatedCellSettings(metric="throughput_rps"),))
    assert judge(runs(1, failed_ratio=0.3), runs(2), only).verdict is Verdict.FAIL
    assert judge(runs(1), runs(2, failed_ratio=0.3), only).verdict is Verdict.PASS


def test_failures_are_infinitely_slow() -> None:
    verdict = judge(runs(1, failed_ratio=0.05), runs(2), ONE_CELL)
    assert verdict.verdict is Verdict.FAIL
    assert verdict.cells[0].candidate == (math.inf,) * 5
    assert verdict.cells[0].effect_ratio == math.inf


def test_where_both_sides_fail_nothing_can_be_told() -> None:
    verdict = judge(runs(1, failed_ratio=0.05), runs(2, failed_ratio=0.05), ONE_CELL)
    assert (verdict.verdict, verdict.reasons) == (Verdict.INCONCLUSIVE, (Reason.NOISY,))


def test_a_difference_too_small_to_matter_is_none() -> None:
    quiet = Model(requests=200_000, run_variation=0.001)
    choose = random.Random(3)
    ours = lognormal_runs(choose, replace(quiet, slowness=1.04))
    verdict = judge(ours, lognormal_runs(choose, quiet), ONE_CELL)
    (cell,) = verdict.cells
    assert cell.p_adjusted == pytest.approx(1 / 252)
    assert cell.verdict is Verdict.PASS


def test_noisy_runs_pass_nothing_and_say_what_would_do() -> None:
    for variation in (0.15, 2.0):
        verdict = judge(runs(1, run_variation=variation), runs(2, run_variation=variation), ONE_CELL)
        assert (verdict.verdict, verdict.reasons) == (Verdict.INCONCLUSIVE, (Reason.NOISY,))
    assert "no number of runs" in verdict.summary
    verdict = judge(runs(1, run_variation=0.15), runs(2, run_variation=0.15), ONE_CELL)
    assert "runs on each side would do" in verdict.summary


def test_too_few_runs_on_either_side() -> None:
    for ours, theirs in ((4, 5), (5, 4), (1, 1)):
        verdict = judge(runs(1)[:ours], runs(2)[:theirs], ONE_CELL)
        assert (verdict.verdict, verdict.reasons) == (Verdict.INCONCLUSIVE, (Reason.TOO_FEW_RUNS,))


def test_too_many_cells_for_the_runs() -> None:
    cells = tuple(GatedCellSettings(stage="100qps", metric=metric) for metric in METRICS)  # type: ignore[arg-type]
    verdict = judge(runs(1), runs(2), replace(COMPARISON_ONLY, cells=cells * 2, significance=0.01))
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert Reason.TOO_FEW_RUNS in verdict.reasons
    assert len(verdict.cells) == len(METRICS), "each cell once"


def test_too_few_requests_for_the_percentile() -> None:
    verdict = judge(runs(1, requests=250), runs(2, requests=250), ONE_CELL)
    assert (verdict.verdict, verdict.reasons) == (Verdict.INCONCLUSIVE, (Reason.TOO_FEW_SAMPLES,))
    median = replace(COMPARISON_ONLY, cells=(GatedCellSettings(metric="ttft_p50_seconds"),))
    assert judge(runs(1, requests=250), runs(2, requests=250), median).verdict is Verdict.PASS


def test_no_baseline_is_said_and_does_not_fail() -> None:
    verdict = judge(runs(1), None, DEFAULTS)
    assert verdict.verdict is Verdict.PASS
    assert Reason.NO_BASELINE in verdict.reasons
    assert "no baseline" in verdict.summary


def test_no_baseline_and_no_objective_is_no_pass() -> None:
    verdict = judge(runs(1), None, COMPARISON_ONLY)
    assert (verdict.verdict, verdict.reasons) == (Verdict.INCONCLUSIVE, (Reason.NO_BASELINE,))


def test_nothing_run_is_no_pass() -> None:
    assert judge([], None, DEFAULTS).verdict is Verdict.INCONCLUSIVE
    assert judge([], runs(2), DEFAULTS).verdict is Verdict.INCONCLUSIVE
    assert judge(runs(1), [], DEFAULTS).verdict is Verdict.INCONCLUSIVE


def test_a_required_baseline_that_is_missing_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="baseline accept") as caught:
        judge(runs(1), None, replace(DEFAULTS, baseline_required=True))
    assert caught.value.exit_code is ExitCode.USAGE


def test_another_environment_is_not_compared_and_each_difference_is_named() -> None:
    other = build([("gpus", "1x H100"), ("kernel", "6.1"), ("seed", "1")])
    with pytest.raises(ConfigError) as caught:
        judge(runs(1), baseline_of(runs(2)), DEFAULTS, fingerprint=other)
    assert len(caught.value.problems) == 2
    assert "gpus was 1x L4, this run has 1x H100" in caught.value.problems[0]
    assert "kernel was (not recorded), this run has 6.1" in caught.value.problems[1]
    with pytest.raises(ConfigError):
        compare(baseline_of(runs(1)), baseline_of(runs(2), other), DEFAULTS)


def test_a_client_that_was_the_limit_neither_passes_nor_fails() -> None:
    for slowness in (1.0, 2.0):
        verdict = judge(runs(1, slowness=slowness), runs(2), DEFAULTS, calibration=BUSY_CLIENT)
        assert (verdict.verdict, verdict.reasons) == (Verdict.INCONCLUSIVE, (Reason.CLIENT_LIMITED,))
        assert "45 ms" in verdict.summary
        late = judge(runs(1, slowness=slowness, lag_p99_seconds=0.05), runs(2), DEFAULTS, calibration=FIT_CLIENT)
        assert (late.verdict, set(late.reasons)) == (Verdict.INCONCLUSIVE, {Reason.CLIENT_LIMITED})
        reference = judge(runs(1, slowness=slowness), runs(2, lag_p99_seconds=0.05), ONE_CELL)
        assert (reference.verdict, reference.reasons) == (Verdict.INCONCLUSIVE, (Reason.CLIENT_LIMITED,))
        both = compare(runs(2), runs(1, slowness=slowness), DEFAULTS, calibrations=(None, BUSY_CLIENT))
        assert (both.verdict, both.reasons) == (Verdict.INCONCLUSIVE, (Reason.CLIENT_LIMITED,))


def test_a_failed_self_check_of_the_whole_run() -> None:
    checks = (Check("clock", False, "request 3: stamps out of order"),)
    verdict = judge(runs(1, slowness=2), runs(2), DEFAULTS, checks=checks)
    assert (verdict.verdict, verdict.reasons) == (Verdict.INCONCLUSIVE, (Reason.SELF_CHECK_FAILED,))


def test_an_interrupted_run_never_passes_but_may_have_failed_already() -> None:
    cut = judge(runs(1), runs(2), DEFAULTS, interrupted="stopped by a person")
    assert (cut.verdict, cut.reasons[0]) == (Verdict.INCONCLUSIVE, Reason.INTERRUPTED)
    failed = judge(runs(1, failed_ratio=0.2), None, DEFAULTS, interrupted="stopped by a person")
    assert failed.verdict is Verdict.FAIL
    assert Reason.INTERRUPTED in failed.reasons


def test_a_stage_given_up_fails_its_cells() -> None:
    ours = runs(1)
    ours[3] = replace(ours[3], stages=(replace(ours[3].stages[0], aborted="over_limit"),))
    verdict = judge(ours, runs(2), ONE_CELL)
    assert (verdict.verdict, verdict.reasons) == (Verdict.FAIL, (Reason.STAGE_GIVEN_UP,))
    theirs = judge(runs(2), ours, ONE_CELL)
    assert (theirs.verdict, theirs.reasons) == (Verdict.INCONCLUSIVE, (Reason.NOT_MEASURED,))


def test_a_run_without_the_stage_is_no_pass() -> None:
    ours = runs(1)
    ours[4] = replace(ours[4], stages=())
    verdict = judge(ours, runs(2), ONE_CELL)
    assert (verdict.verdict, verdict.reasons) == (Verdict.INCONCLUSIVE, (Reason.TOO_FEW_RUNS,))
    assert "no stage 100qps" in verdict.summary


@pytest.mark.parametrize(("kinds", "said"), [(1, ""), (2, " (and 1 more figure)"), (3, " (and 2 more figures)")])
def test_further_figures_are_counted_in_brackets(kinds: int, said: str) -> None:
    metrics = ("ttft_p99_seconds", "ttft_p95_seconds", "ttft_p50_seconds")[:kinds]
    policy = replace(COMPARISON_ONLY, cells=tuple(GatedCellSettings.model_validate({"metric": one}) for one in metrics))
    summary = judge(runs(1, slowness=2), baseline_of(runs(2), days=1), policy).summary
    told, _, remark = summary.partition("; the baseline is of one day")
    assert remark
    assert told.endswith(said)
    assert ("more figure" in told) == bool(said)


def test_a_baseline_of_one_day_is_remarked() -> None:
    assert "of one day" in judge(runs(1), baseline_of(runs(2), days=1), DEFAULTS).summary
    assert "of one day" not in judge(runs(1), baseline_of(runs(2)), DEFAULTS).summary


@pytest.mark.parametrize(
    ("slowness", "days", "said"),
    [
        (1.12, 1, "a difference of this size may be the day's: compare in turns (sre gate run --against), or add runs"),
        (1.6, 1, "the baseline is of one day: add runs of others"),
        (1.12, 2, ""),
    ],
)
def test_a_fail_against_one_day_says_that_it_may_be_the_days(slowness: float, days: int, said: str) -> None:
    quiet = {"run_variation": 0.005, "requests": 20_000}
    verdict = judge(runs(1, slowness=slowness, **quiet), baseline_of(runs(2, **quiet), days=days), ONE_CELL)
    assert (verdict.verdict, verdict.reasons) == (Verdict.FAIL, (Reason.REGRESSION,))
    assert said in verdict.summary
    assert ("of one day" in verdict.summary) == (days == 1)


def with_pieces(found: Sequence[RunResult], events_per_token: float) -> list[RunResult]:
    made = []
    for run in found:
        (stage,) = run.stages
        assert stage.summary is not None
        classes = {
            name: replace(kind, events_per_token=events_per_token) for name, kind in stage.summary.classes.items()
        }
        made.append(replace(run, stages=(replace(stage, summary=replace(stage.summary, classes=classes)),)))
    return made


def test_the_same_runs_on_both_sides_are_a_remark_beside_the_verdict() -> None:
    (remark,) = judge(runs(1), baseline_of(runs(1)), DEFAULTS).remarks
    assert remark.startswith("5 of the 5 runs have the times of a run of the reference, to the last bit")


def test_far_other_pieces_of_a_stream_are_a_remark_beside_the_verdict() -> None:
    same, packed = with_pieces(runs(1), 1.0), with_pieces(runs(1), 0.2)
    theirs = baseline_of(with_pieces(runs(2), 1.0))
    assert judge(same, theirs, DEFAULTS).remarks == ()
    verdict = judge(packed, theirs, DEFAULTS)
    assert verdict.verdict is Verdict.PASS
    (remark,) = verdict.remarks
    assert remark.startswith("100qps/short: 0.2 content events per token of usage, in the reference 1")
    assert compare(theirs, packed, DEFAULTS).remarks == (remark,)


def test_a_server_that_turns_slow_in_mid_run_is_told_from_noise() -> None:
    turned = [*runs(1)[:3], *runs(1, slowness=3.0)[3:]]
    for ours, theirs, who in ((turned, runs(2), ""), (runs(2), turned, "in the reference, ")):
        verdict = judge(ours, theirs, ONE_CELL)
        assert (verdict.verdict, verdict.reasons[0]) == (Verdict.INCONCLUSIVE, Reason.NOISY)
        assert f"; {who}all runs from the 4th on differ from those before (median " in verdict.summary
        assert "would do" not in verdict.summary


def test_open_cells_mean_the_highest_stage_the_reference_held_and_the_first_class() -> None:
    stages = [stage_of([0.1] * 9, name=f"{rate}qps", rate_rps=rate) for rate in (100, 500, 1000)]
    assert stages[2].summary is not None
    stages[2] = replace(stages[2], summary=replace(stages[2].summary, saturated=True))
    reference = [measure(run_of(*stages))]
    assert highest_held(reference) == "500qps"
    wanted = (GatedCellSettings(), GatedCellSettings(stage="500qps"), GatedCellSettings(request_class="long"))
    assert named_cells(wanted, reference, "short") == (
        Cell("500qps", "short", "ttft_p99_seconds"),
        Cell("500qps", "long", "ttft_p99_seconds"),
    )
    assert named_cells((GatedCellSettings(stage="100qps"),), reference, "short")[0].stage == "100qps", "as it says"
    for change in ({"aborted": "deadline"}, {"skipped": "not begun"}):
        cut = measure(run_of(stages[0], replace(stages[1], **change)))  # type: ignore[arg-type]
        assert highest_held([*reference, cut]) == "100qps", "no run held it that did not end it"
    assert highest_held([measure(run_of(stages[2]))]) == "1000qps"
    assert highest_held([]) == ""


def test_compare_takes_baselines_and_runs() -> None:
    fast, slow = baseline_of(runs(1)), baseline_of(runs(2, slowness=1.5))
    assert compare(fast, slow, DEFAULTS).verdict is Verdict.FAIL
    assert compare(slow, fast, DEFAULTS).verdict is Verdict.PASS
    assert compare(runs(1), runs(2, slowness=1.5), DEFAULTS).verdict is Verdict.FAIL
    assert compare(fast, runs(3), DEFAULTS, fingerprints=(HERE, HERE)).verdict is Verdict.PASS


POLICY = JudgePolicy(
    objectives=(ObjectiveSettings(failed_ratio=0.02, ttft_p99_seconds=0.3, throughput_ratio=0.9),),
    cells=DEFAULTS.cells,
)


@st.composite
def sides(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """Times per run: of the reference, of a candidate, and of the same candidate made worse here and there."""
    choose = random.Random(draw(st.integers(0, 2**32)))
    noise = draw(st.sampled_from([0.005, 0.05, 0.2]))
    slowness = draw(st.sampled_from([0.9, 1.0, 1.1, 1.3, 2.0]))
    failed = draw(st.sampled_from([0.0, 0.005, 0.03]))
    requests = draw(st.sampled_from([80, 320]))

    def times(factor: float) -> list[float]:
        run = factor * math.exp(choose.gauss(0, noise))
        return [
            math.inf if choose.random() < failed else 0.1 * run * choose.lognormvariate(0, 0.3) for _ in range(requests)
        ]

    reference = [times(1.0) for _ in range(5)]
    candidate = [times(slowness) for _ in range(5)]
    stretch = draw(st.sampled_from([1.0, 1.02, 1.5]))
    break_share = draw(st.sampled_from([0.0, 0.01, 0.3]))
    touched = draw(st.sets(st.integers(0, 4), min_size=1))
    worse = [
        [math.inf if choose.random() < break_share else value * stretch for value in run] if n in touched else run
        for n, run in enumerate(candidate)
    ]
    return reference, candidate, worse


def gate(reference: list[list[float]], candidate: list[list[float]]) -> Verdict:
    ours = [run_of(stage_of(run), number=n) for n, run in enumerate(candidate)]
    theirs = [run_of(stage_of(run), number=n) for n, run in enumerate(reference)]
    return judge(ours, theirs, POLICY).verdict


@settings(max_examples=40)
@given(sides())
def test_more_errors_or_slower_answers_never_turn_a_fail_into_a_pass(
    found: tuple[list[list[float]], list[list[float]], list[list[float]]],
) -> None:
    reference, candidate, worse = found
    before, after = gate(reference, candidate), gate(reference, worse)
    if before is Verdict.FAIL:
        assert after is Verdict.FAIL


def test_the_property_above_sees_all_three_verdicts() -> None:
    """Else it could not fail."""
    choose = random.Random(4)

    def times(requests: int, slowness: float, noise: float = 0.01) -> list[list[float]]:
        return [
            [0.1 * slowness * run * choose.lognormvariate(0, 0.3) for _ in range(requests)]
            for run in (math.exp(choose.gauss(0, noise)) for _ in range(5))
        ]

    assert gate(times(1500, 1.0), times(1500, 1.0)) is Verdict.PASS
    assert gate(times(320, 1.0), times(320, 2.0)) is Verdict.FAIL
    assert gate(times(80, 1.0), times(80, 1.0)) is Verdict.INCONCLUSIVE
