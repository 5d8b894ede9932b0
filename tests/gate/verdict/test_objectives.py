"""Bounds without a baseline: what fails, what holds, what cannot be told."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.gate.judge import judge
from sre.gate.judging import JudgePolicy
from sre.gate.percentiles import distribution, nearest_rank, thinned
from sre.gate.result import RunResult, StageResult
from sre.gate.self_checks import Check
from sre.gate.stages import StageKind
from sre.gate.summary import ClassSummary
from sre.gate.verdict import CellVerdict, Reason, Verdict
from sre.settings.gate import ObjectiveSettings
from tests.gate.verdict.simulated import BUSY_CLIENT, Model, stage_result


def stage_of(
    times: Sequence[float], *, name: str = "100qps", rate_rps: float = 100.0, causes: dict[str, int] | None = None,
    keep_sample: bool = True, tokens: int | None = 16,
) -> StageResult:  # fmt: skip
    """A stage whose TTFT and e2e are these times."""
    base = stage_result(random.Random(1), Model(requests=1), name=name, rate_rps=rate_rps)
    assert base.summary is not None
    ordered = sorted(times)
    failed = sum(map(math.isinf, ordered))
    ok = len(ordered) - failed
    seen = distribution(ordered)
    kind = ClassSummary(
        "short", len(ordered), ok, failed, causes or {"ok": ok, "timeout": failed}, seen, seen, seen, seen, 64 * ok,
        None if tokens is None else tokens * ok, None,
    )  # fmt: skip
    kinds = {"short": kind, "all": replace(kind, request_class="all")}
    sample = {label: thinned(ordered) for label in kinds} if keep_sample else {}
    completed = rate_rps * ok / len(ordered) if ordered else 0.0
    summary = replace(
        base.summary, planned=len(ordered), sent=len(ordered), ok=ok, failed=failed, offered_rps=rate_rps,
        completed_rps=completed, classes=kinds, ttft_sample_seconds=sample, e2e_sample_seconds=sample,
        output_tokens_per_second=None if tokens is None else tokens * completed,
    )  # fmt: skip
    return replace(base, summary=summary)


def run_of(*stages: StageResult, number: int = 0) -> RunResult:
    return RunResult(number, "candidate", stages, 1.7e9)


def judged(objective: ObjectiveSettings, *runs: RunResult, policy: JudgePolicy | None = None) -> list[CellVerdict]:
    return list(judge(runs, None, replace(policy or JudgePolicy(), objectives=(objective,))).cells)


def only(objective: ObjectiveSettings, *runs: RunResult) -> tuple[Verdict, Reason]:
    (cell,) = judged(objective, *runs)
    assert cell.kind == "objective"
    assert cell.detail
    return cell.verdict, cell.reason


P99 = ObjectiveSettings(ttft_p99_seconds=1.0)
MISSED = (Verdict.FAIL, Reason.OBJECTIVE_MISSED)
HELD = (Verdict.PASS, Reason.WITHIN_OBJECTIVES)
TOO_FEW = (Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)


def test_a_bound_that_all_requests_keep_holds_from_the_floor_on() -> None:
    assert only(P99, run_of(stage_of([0.1] * 299))) == HELD
    assert only(P99, run_of(stage_of([0.1] * 298))) == TOO_FEW


def test_bounds_do_not_hold_for_answers_without_text_and_are_missed_by_them_all_the_same() -> None:
    def silent(seconds: float, count: int) -> RunResult:
        stage = stage_of([seconds] * 299)
        assert stage.summary is not None
        kinds = {name: replace(kind, wordless=count) for name, kind in stage.summary.classes.items()}
        return run_of(replace(stage, summary=replace(stage.summary, classes=kinds)))

    assert only(P99, silent(0.1, 149)) == HELD
    assert only(P99, silent(0.1, 150)) == (Verdict.INCONCLUSIVE, Reason.WITHOUT_TEXT)
    assert only(ObjectiveSettings(failed_ratio=0.05), silent(0.1, 299)) == (Verdict.INCONCLUSIVE, Reason.WITHOUT_TEXT)
    assert only(P99, silent(2.0, 299)) == MISSED


def test_runs_are_taken_together() -> None:
    assert only(P99, *(run_of(stage_of([0.1] * 100), number=n) for n in range(3))) == HELD


def test_more_over_the_bound_than_one_in_a_hundred_fails() -> None:
    assert only(P99, run_of(stage_of([0.1] * 985 + [2.0] * 15))) == MISSED
    assert only(P99, run_of(stage_of([0.1] * 985 + [math.inf] * 15))) == MISSED


def test_just_within_is_too_close_to_tell() -> None:
    assert only(P99, run_of(stage_of([0.1] * 992 + [2.0] * 8))) == TOO_FEW
    assert only(P99, run_of(stage_of([0.1] * 9920 + [2.0] * 80))) == HELD


def test_one_in_a_hundred_is_the_last_that_may_be_over() -> None:
    assert only(P99, run_of(stage_of([0.1] * 396 + [2.0] * 4))) == TOO_FEW
    assert only(P99, run_of(stage_of([0.1] * 395 + [2.0] * 5))) == MISSED


def test_from_the_floor_on_it_fails_as_measured() -> None:
    assert only(P99, run_of(stage_of([0.1] * 296 + [2.0] * 3))) == MISSED
    assert only(P99, run_of(stage_of([0.1] * 295 + [2.0] * 3))) == TOO_FEW


def test_a_share_that_may_be_all_or_nothing_is_counted_and_not_estimated() -> None:
    for ratio, failed, answer in ((0.0, 0, HELD), (0.0, 1, MISSED), (1.0, 9, HELD)):
        run = run_of(stage_of([0.1] * (9 - failed) + [math.inf] * failed))
        assert only(ObjectiveSettings(failed_ratio=ratio), run) == answer


def test_below_the_floor_it_fails_only_beyond_chance() -> None:
    assert only(P99, run_of(stage_of([0.1] * 99 + [2.0]))) == TOO_FEW
    assert only(P99, run_of(stage_of([0.1] * 90 + [2.0] * 10))) == MISSED


def test_a_lower_percentile_takes_fewer_requests() -> None:
    assert only(ObjectiveSettings(ttft_p95_seconds=1.0), run_of(stage_of([0.1] * 60))) == HELD


@pytest.mark.parametrize("metric", ["ttft_p99_seconds", "tpot_p99_seconds", "e2e_p99_seconds", "e2e_p95_seconds"])
def test_every_time_is_bounded(metric: str) -> None:
    slow, quick = run_of(stage_of([2.0] * 400)), run_of(stage_of([0.5] * 400))
    assert only(ObjectiveSettings(**{metric: 1.0}), slow) == MISSED  # type: ignore[arg-type]
    assert only(ObjectiveSettings(**{metric: 1.0}), quick) == HELD  # type: ignore[arg-type]


@given(st.integers(300, 6000), st.floats(0, 0.05), st.booleans(), st.integers(0, 2**32))
def test_percentiles_and_thinned_samples_bound_what_all_requests_would_say(
    count: int, share: float, keep_sample: bool, seed: int
) -> None:
    choose = random.Random(seed)
    times = [2.0 if choose.random() < share else 0.1 + choose.random() for _ in range(count)]
    p99 = nearest_rank(sorted(times), 0.99)
    assert p99 is not None
    verdict, _ = only(ObjectiveSettings(e2e_p99_seconds=1.5), run_of(stage_of(times, keep_sample=keep_sample)))
    if verdict is Verdict.FAIL:
        assert p99 > 1.5
    if verdict is Verdict.PASS:
        assert p99 <= 1.5
    if p99 > 1.5:
        assert verdict is Verdict.FAIL


@pytest.mark.parametrize(("over", "answer"), [(38, HELD), (39, TOO_FEW), (50, TOO_FEW), (51, MISSED)])
def test_a_sample_that_is_whole_counts_exactly(over: int, answer: tuple[Verdict, Reason]) -> None:
    """38 of 1,000 over a P95 are fewer than one in twenty beyond chance (p 0.043), 39 are not (p 0.060)."""
    run = run_of(stage_of([0.1] * (1000 - over) + [2.0] * over))
    (cell,) = judged(ObjectiveSettings(e2e_p95_seconds=1.0), run)
    assert (cell.verdict, cell.reason) == answer
    assert cell.detail.startswith(f"{over} of 1000 requests")


def test_without_a_sample_percentiles_alone_tell_less_and_nothing_wrong() -> None:
    few = stage_of([0.1] * 962 + [2.0] * 38, keep_sample=False)
    assert only(ObjectiveSettings(e2e_p95_seconds=1.0), run_of(few)) == TOO_FEW
    assert few.summary is not None
    odd = replace(few, summary=replace(few.summary, e2e_sample_seconds={"all": (0.1,) * 1200}))
    assert only(ObjectiveSettings(e2e_p95_seconds=1.0), run_of(odd)) == TOO_FEW, "more than there were"


def test_failed_ratio() -> None:
    bound = ObjectiveSettings(failed_ratio=0.01)
    assert only(bound, run_of(stage_of([0.1] * 1000))) == HELD
    assert only(bound, run_of(stage_of([0.1] * 980 + [math.inf] * 20))) == MISSED
    assert only(bound, run_of(stage_of([0.1] * 20))) == TOO_FEW
    none = ObjectiveSettings(failed_ratio=0.0)
    assert only(none, run_of(stage_of([0.1] * 20))) == HELD
    assert only(none, run_of(stage_of([0.1] * 2000 + [math.inf]))) == MISSED


def test_too_few_requests_have_a_remedy_that_fits_the_figure() -> None:
    for objective, instead in ((P99, "judge a lower percentile"), (ObjectiveSettings(failed_ratio=0.01), "allow a")):
        (cell,) = judged(objective, run_of(stage_of([0.1] * 38)))
        assert (cell.verdict, cell.reason) == TOO_FEW
        assert f": at least 299 are needed; send more (--seconds, gate.load.stage_seconds), or {instead}" in cell.detail


def test_what_the_failed_came_to_is_said() -> None:
    causes = {"ok": 900, "timeout": 20, "server_error": 70, "cancelled": 3, "shed_by_client": 0}
    (cell,) = judged(
        ObjectiveSettings(failed_ratio=0.01), run_of(stage_of([0.1] * 910 + [math.inf] * 90, causes=causes))
    )
    assert "requests (9.00%) failed (70 server_error, 20 timeout), bound 1.00%" in cell.detail


def test_throughput_is_judged_against_the_arrivals_not_the_plan() -> None:
    bound = ObjectiveSettings(throughput_ratio=0.95)
    assert only(bound, run_of(stage_of([0.1] * 3000))) == HELD
    assert only(bound, run_of(stage_of([0.1] * 2400 + [math.inf] * 600))) == MISSED
    assert only(bound, run_of(stage_of([0.1] * 94 + [math.inf] * 6))) == TOO_FEW


def test_output_tokens_per_second() -> None:
    assert only(ObjectiveSettings(output_tokens_per_second=1000), run_of(stage_of([0.1] * 300))) == HELD
    assert only(ObjectiveSettings(output_tokens_per_second=2000), run_of(stage_of([0.1] * 300))) == MISSED
    silent = run_of(stage_of([0.1] * 300, tokens=None))
    assert only(ObjectiveSettings(output_tokens_per_second=1), silent) == (
        Verdict.INCONCLUSIVE,
        Reason.NOT_MEASURED,
    )
    dead = run_of(stage_of([math.inf] * 300, tokens=None))
    assert only(ObjectiveSettings(output_tokens_per_second=1), dead) == MISSED


def test_it_holds_at_every_stage_up_to_its_rate_or_at_the_one_it_names() -> None:
    run = run_of(
        stage_of([0.1] * 400),
        stage_of([2.0] * 400, name="500qps", rate_rps=500),
        replace(
            stage_of([2.0] * 400, name="300qps", rate_rps=300),
            plan=replace(stage_of([1.0], name="300qps", rate_rps=300).plan, kind=StageKind.KNEE),
        ),
    )
    assert [str(cell.cell) for cell in judged(P99, run)] == [
        "100qps/all/ttft_p99_seconds",
        "500qps/all/ttft_p99_seconds",
    ]
    (first,) = judged(P99.model_copy(update={"max_qps": 100.0}), run)
    assert (first.cell.stage, first.verdict) == ("100qps", Verdict.PASS)
    (named,) = judged(P99.model_copy(update={"stage": "500qps", "request_class": "short"}), run)
    assert (str(named.cell), named.verdict) == ("500qps/short/ttft_p99_seconds", Verdict.FAIL)


def test_a_stage_or_class_that_is_not_there_is_not_measured() -> None:
    run = run_of(stage_of([0.1] * 400))
    for change, word in (({"stage": "7qps"}, "7qps"), ({"request_class": "long"}, "long")):
        (cell,) = judged(P99.model_copy(update=change), run)
        assert (cell.verdict, cell.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_MEASURED)
        assert word in cell.detail


def test_a_stage_given_up_fails_and_so_do_those_after_it() -> None:
    run = run_of(
        replace(stage_of([0.1] * 60), aborted="error_share"),
        replace(stage_of([0.1], name="500qps", rate_rps=500), summary=None, skipped="an earlier stage was given up"),
    )
    cells = judged(P99, run)
    assert [cell.cell.stage for cell in cells] == ["100qps", "500qps"]
    for cell in cells:
        assert (cell.verdict, cell.reason) == (Verdict.FAIL, Reason.STAGE_GIVEN_UP)
        assert cell.detail == "stage 100qps of run 1 was given up: too many requests fail"


@pytest.mark.parametrize("reason", ["deadline", "interrupted"])
def test_a_stage_given_up_for_no_fault_of_the_server_is_not_measured(reason: str) -> None:
    run = run_of(replace(stage_of([0.1] * 400), aborted=reason))
    assert only(P99, run) == (Verdict.INCONCLUSIVE, Reason.NOT_MEASURED)


def test_a_stage_without_a_request_has_too_few_whatever_the_clients_loop_did() -> None:
    """At 0.01 requests/s a stage of two seconds has none: nobody was late, and the remedy is another stage."""
    empty = stage_of([])
    assert empty.summary is not None
    late = replace(empty, summary=replace(empty.summary, loop_lag_p99_seconds=0.5))
    for metric, bound in (("failed_ratio", 0.01), ("ttft_p99_seconds", 1.0), ("throughput_ratio", 0.9)):
        (cell,) = judged(ObjectiveSettings(**{metric: bound}), run_of(late))
        assert (cell.verdict, cell.reason) == (Verdict.INCONCLUSIVE, Reason.TOO_FEW_SAMPLES)
        assert "run 1: no request of class all became due in stage 100qps: longer stages (--seconds" in cell.detail


def test_a_skipped_stage_never_passes() -> None:
    run = run_of(replace(stage_of([0.1] * 400), summary=None, skipped="the deadline had come"))
    assert only(P99, run) == (Verdict.INCONCLUSIVE, Reason.NOT_MEASURED)


def test_a_late_client_passes_and_fails_nothing() -> None:
    for times in ([0.1] * 400, [9.0] * 400):
        stage = stage_of(times)
        assert stage.summary is not None
        late = replace(stage, summary=replace(stage.summary, lag_p99_seconds=0.021))
        assert only(P99, run_of(late)) == (Verdict.INCONCLUSIVE, Reason.CLIENT_LIMITED)
        shed = replace(stage, summary=replace(stage.summary, shed=1))
        assert only(P99, run_of(shed)) == (Verdict.INCONCLUSIVE, Reason.CLIENT_LIMITED)
        odd = replace(stage, summary=replace(stage.summary, lag_p99_seconds=math.nan))
        assert only(P99, run_of(odd)) == (Verdict.INCONCLUSIVE, Reason.CLIENT_LIMITED)


@pytest.mark.parametrize(
    ("cause", "verdict"),
    [
        ("server_error", Verdict.FAIL),
        ("error_event", Verdict.FAIL),
        ("timeout", Verdict.INCONCLUSIVE),
        ("connect", Verdict.INCONCLUSIVE),
        ("refused", Verdict.INCONCLUSIVE),
    ],
)
def test_a_busy_client_excuses_no_error_that_the_server_said(cause: str, verdict: Verdict) -> None:
    run = run_of(stage_of([0.1] * 300 + [math.inf] * 100, causes={"ok": 300, cause: 100}))
    policy = JudgePolicy(objectives=(ObjectiveSettings(failed_ratio=0.01, ttft_p99_seconds=0.15),))
    whole = judge([run], None, policy, calibration=BUSY_CLIENT)
    assert whole.verdict is verdict
    by_metric = {cell.cell.metric: cell.verdict for cell in whole.cells}
    assert by_metric == {"failed_ratio": verdict, "ttft_p99_seconds": Verdict.INCONCLUSIVE}


def test_figures_that_contradict_each_other_prove_nothing() -> None:
    broken = Check("sums", False, "400 due, 399 accounted for")
    run = run_of(replace(stage_of([9.0] * 400), checks=(broken,)))
    assert only(P99, run) == (Verdict.INCONCLUSIVE, Reason.SELF_CHECK_FAILED)
    errors = stage_of([0.1] * 300 + [math.inf] * 100, causes={"ok": 300, "server_error": 100})
    failed = only(ObjectiveSettings(failed_ratio=0.01), run_of(replace(errors, checks=(broken,))))
    assert failed == (Verdict.INCONCLUSIVE, Reason.SELF_CHECK_FAILED), "nor do errors that it counts"
    unknown = Check("littles_law", None, "too little load")
    assert only(P99, run_of(replace(stage_of([9.0] * 400), checks=(unknown,)))) == MISSED
