"""The yardstick of a comparison: how many cells share it, what noise takes from it, what is no reference at all."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sre.gate.cells import MeasuredClass, MeasuredRun, MeasuredStage, measure
from sre.gate.compare import judge_cells
from sre.gate.judging import JudgePolicy
from sre.gate.same_work import other_pieces, unknown_length
from sre.gate.statistics import power, variation_ratio
from sre.gate.verdict import Cell, CellVerdict, Reason, Verdict
from sre.settings.gate import GatedCellSettings
from tests.gate.verdict.simulated import COMPARISON_ONLY, Model, lognormal_runs

STEADY = (1.0, 1.01, 1.02, 1.03, 1.04)
BARELY_SLOWER = (1.005, 1.2, 1.2, 1.2, 1.2)
"""Against STEADY: 21 of 25 pairs, p 0.048; enough for one cell, and for no more."""


def side(**values: Sequence[float | None]) -> list[MeasuredRun]:
    """Metric → its value in each run."""
    count = len(next(iter(values.values())))
    return [
        MeasuredRun(
            number,
            [
                MeasuredStage(
                    "100qps", 100.0, False, 0.001, 0, "", "", (),
                    {"short": MeasuredClass({name: found[number] for name, found in values.items()},
                                            dict.fromkeys(values, 2000))},
                )
            ],
        )
        for number in range(count)
    ]  # fmt: skip


def policy_of(*metrics: str) -> JudgePolicy:
    cells = tuple(GatedCellSettings(metric=metric) for metric in metrics)  # type: ignore[arg-type]
    return replace(COMPARISON_ONLY, cells=cells)


def judged(candidate: list[MeasuredRun], reference: list[MeasuredRun], *metrics: str) -> tuple[CellVerdict, ...]:
    return judge_cells(candidate, reference, policy_of(*metrics))


def test_a_cell_that_cannot_be_compared_makes_no_other_easier_to_fail() -> None:
    (alone,) = judged(side(ttft_p50_seconds=BARELY_SLOWER), side(ttft_p50_seconds=STEADY), "ttft_p50_seconds")
    assert (alone.verdict, alone.reason) == (Verdict.FAIL, Reason.REGRESSION)
    assert alone.p_adjusted == alone.p_value == pytest.approx(0.0476, abs=1e-4)
    beside, blind = judged(
        side(ttft_p50_seconds=BARELY_SLOWER, e2e_p50_seconds=[None] * 5),
        side(ttft_p50_seconds=STEADY, e2e_p50_seconds=STEADY),
        "ttft_p50_seconds",
        "e2e_p50_seconds",
    )
    assert (blind.verdict, blind.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_MEASURED)
    assert beside.verdict is not Verdict.FAIL
    assert beside.p_adjusted == pytest.approx(2 * 0.0476, abs=1e-4)


def test_a_reference_that_served_nothing_lets_nothing_pass() -> None:
    for ours in ([5.0] * 5, [0.0] * 5):
        (cell,) = judged(side(throughput_rps=ours), side(throughput_rps=[0.0] * 5), "throughput_rps")
        assert (cell.verdict, cell.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_MEASURED)
        assert cell.detail == "in the reference: nothing was served"


def test_no_failure_on_either_side_is_a_figure_like_any_other() -> None:
    (cell,) = judged(side(failed_ratio=[0.0] * 5), side(failed_ratio=[0.0] * 5), "failed_ratio")
    assert (cell.verdict, cell.effect_ratio) == (Verdict.PASS, 0.0)


def test_the_power_is_that_of_both_sides_noise_together_and_of_all_cells() -> None:
    noisy = (0.8, 0.9, 1.0, 1.1, 1.2)
    metrics = ("ttft_p50_seconds", "e2e_p50_seconds")
    for names, significance in ((metrics[:1], 0.05), (metrics, 0.025)):
        cell = judged(
            side(**dict.fromkeys(names, noisy)), side(**dict.fromkeys(names, [1.0] * 5)), *names
        )[0]  # fmt: skip
        assert cell.variation_ratio == pytest.approx(variation_ratio(noisy)), "that of the noisier side is shown"
        assert cell.power_ratio == power(
            5, 5, variation=variation_ratio(noisy) / math.sqrt(2), regression_ratio=0.2, minimum_effect_ratio=0.05,
            significance=significance,
        )  # fmt: skip


def test_what_a_pass_rules_out_does_not_pass_when_it_is_seen() -> None:
    """One lucky run of five keeps it from being significant among three cells, and hardly takes from the power."""
    metrics = ("ttft_p50_seconds", "e2e_p50_seconds", "failed_ratio")
    rest = {"e2e_p50_seconds": STEADY, "failed_ratio": [0.0] * 5}
    for times, verdict in ((1.19, Verdict.PASS), (1.21, Verdict.INCONCLUSIVE)):
        ours = (1.015, *(times * value for value in STEADY[1:]))
        cell = judged(side(ttft_p50_seconds=ours, **rest), side(ttft_p50_seconds=STEADY, **rest), *metrics)[0]
        assert cell.power_ratio is not None
        assert cell.power_ratio >= 0.8
        assert cell.verdict is verdict, cell.detail
    assert cell.reason is Reason.NOISY
    assert "as much as a PASS rules out (20%)" in cell.detail


def test_a_run_without_a_value_takes_the_pass_from_all_others() -> None:
    ours, theirs = side(ttft_p50_seconds=[*STEADY, 1.0, None]), side(ttft_p50_seconds=STEADY)
    (cell,) = judged(ours, theirs, "ttft_p50_seconds")
    assert (cell.verdict, cell.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_MEASURED)
    assert cell.detail.startswith("run 7: no value of ttft_p50_seconds")
    (whole,) = judged(theirs, ours, "ttft_p50_seconds")
    assert whole.verdict is Verdict.PASS, "of a reference six values are as good as seven"


def test_without_any_value_it_is_said_that_nothing_was_measured() -> None:
    for ours, theirs, whose in (([None] * 5, STEADY, ""), (STEADY, [None] * 5, "in the reference: ")):
        (cell,) = judged(side(ttft_p50_seconds=ours), side(ttft_p50_seconds=theirs), "ttft_p50_seconds")
        assert (cell.verdict, cell.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_MEASURED)
        assert cell.detail.startswith(f"{whose}run 1: no value of ttft_p50_seconds")


def test_a_build_whose_answers_are_shorter_is_not_passed_for_being_faster() -> None:
    """Fewer tokens are less work: that such a build is no slower says nothing."""
    theirs = side(e2e_p50_seconds=STEADY, tokens_per_answer=[32.0] * 5)
    (cell,) = judged(side(e2e_p50_seconds=STEADY, tokens_per_answer=[16.0] * 5), theirs, "e2e_p50_seconds")
    assert (cell.verdict, cell.reason) == (Verdict.INCONCLUSIVE, Reason.LESS_WORK)
    assert "its answers had 16 tokens, those of the reference 32" in cell.detail
    (cell,) = judged(side(e2e_p50_seconds=STEADY, tokens_per_answer=[None] * 5), theirs, "e2e_p50_seconds")
    assert (cell.verdict, cell.reason) == (Verdict.INCONCLUSIVE, Reason.LESS_WORK)
    for tokens in (31.0, 32.0, 64.0):  # hardly fewer, as many, more
        (cell,) = judged(side(e2e_p50_seconds=STEADY, tokens_per_answer=[tokens] * 5), theirs, "e2e_p50_seconds")
        assert cell.verdict is Verdict.PASS


def test_shorter_answers_excuse_no_regression_and_may_be_declared_to_make_no_difference() -> None:
    theirs = side(e2e_p50_seconds=STEADY, tokens_per_answer=[32.0] * 5)
    slower = side(e2e_p50_seconds=[2 * value for value in STEADY], tokens_per_answer=[16.0] * 5)
    (cell,) = judged(slower, theirs, "e2e_p50_seconds")
    assert (cell.verdict, cell.reason) == (Verdict.FAIL, Reason.REGRESSION)
    declared = replace(policy_of("e2e_p50_seconds"), may_differ=("answer_length",))
    (cell,) = judge_cells(side(e2e_p50_seconds=STEADY, tokens_per_answer=[16.0] * 5), theirs, declared)
    assert cell.verdict is Verdict.PASS


def test_a_reference_that_does_not_tell_the_length_of_its_answers_is_compared_without() -> None:
    (cell,) = judged(
        side(e2e_p50_seconds=STEADY, tokens_per_answer=[16.0] * 5), side(e2e_p50_seconds=STEADY), "e2e_p50_seconds"
    )
    assert cell.verdict is Verdict.PASS


def test_a_build_that_cuts_the_prompts_is_not_passed_for_being_faster() -> None:
    def read(tokens: float | None, times: float = 1.0) -> list[MeasuredRun]:
        return side(ttft_p50_seconds=[times * value for value in STEADY], prompt_tokens_per_answer=[tokens] * 5)

    for ours, passes in ((64.0, False), (None, False), (250.0, True), (256.0, True), (300.0, True)):
        (cell,) = judged(read(ours), read(256.0), "ttft_p50_seconds")
        assert cell.reason is (Reason.NO_REGRESSION if passes else Reason.LESS_WORK), cell.detail
    assert judged(read(64.0), read(None), "ttft_p50_seconds")[0].verdict is Verdict.PASS
    (cell,) = judged(read(64.0), read(256.0), "ttft_p50_seconds")
    assert "its prompts had 64 tokens by its usage, those of the reference 256" in cell.detail
    declared = replace(policy_of("ttft_p50_seconds"), may_differ=("prompt_tokens",))
    assert judge_cells(read(64.0), read(256.0), declared)[0].verdict is Verdict.PASS
    (cell,) = judged(read(64.0, times=2), read(256.0), "ttft_p50_seconds")
    assert (cell.verdict, cell.reason) == (Verdict.FAIL, Reason.REGRESSION)


def with_class(runs: list[MeasuredRun], name: str, **values: float | None) -> list[MeasuredRun]:
    """``runs``, whose stages have one more class of these values."""
    kind = MeasuredClass(values, dict.fromkeys((*values, "failed_ratio"), 500))
    return [
        replace(run, stages=[replace(stage, classes={**stage.classes, name: kind}) for stage in run.stages])
        for run in runs
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ({"tokens_per_answer": 5.0}, {"tokens_per_answer": 32.0}, "its answers had 5 tokens"),
        ({"prompt_tokens_per_answer": 500.0}, {"prompt_tokens_per_answer": 8000.0}, "its prompts had 500 tokens"),
        ({"cached_ratio": 0.9}, {"cached_ratio": 0.0}, "90% of its prompts' tokens came from the server's cache"),
        ({"failed_ratio": 0.5}, {"failed_ratio": 0.0}, "50% of its requests failed, of the reference's 0%"),
        ({"failed_ratio": 1.0, "tokens_per_answer": None}, {"tokens_per_answer": 32.0, "failed_ratio": 1.0}, ""),
        ({"tokens_per_answer": 32.0}, {"tokens_per_answer": 32.0}, ""),
        ({"failed_ratio": 0.01}, {"failed_ratio": 0.0}, ""),
    ],
)
def test_less_work_of_another_class_of_the_stage_spares_the_judged_one(
    ours: dict[str, float | None], theirs: dict[str, float | None], why: str
) -> None:
    candidate = with_class(side(ttft_p50_seconds=STEADY), "chat", **ours)
    reference = with_class(side(ttft_p50_seconds=STEADY), "chat", **theirs)
    (cell,) = judged(candidate, reference, "ttft_p50_seconds")
    assert cell.reason is (Reason.LESS_WORK if why else Reason.NO_REGRESSION), cell.detail
    if why:
        assert f"class chat, of the same stage: {why}" in cell.detail


@pytest.mark.parametrize(
    ("ours", "theirs", "less"),
    [(1.0, 16.0, True), (7.9, 16.0, True), (8.0, 16.0, False), (16.0, 16.0, False), (32.0, 16.0, False),
     (None, 16.0, False), (1.0, None, False)],
)  # fmt: skip
def test_where_no_side_counts_tokens_answers_of_far_fewer_events_are_not_as_long(
    ours: float | None, theirs: float | None, less: bool
) -> None:
    def of(events: float | None, tokens: float | None = None) -> list[MeasuredRun]:
        return side(
            ttft_p50_seconds=STEADY, events_per_answer=[events] * 5, tokens_per_answer=[tokens] * 5,
            wordless_ratio=[0.0] * 5, prompt_tokens_per_answer=[None] * 5,
        )  # fmt: skip

    (cell,) = judged(of(ours), of(theirs), "ttft_p50_seconds")
    assert cell.reason is (Reason.LESS_WORK if less else Reason.NO_REGRESSION), cell.detail
    (counted,) = judged(of(ours, 16.0), of(theirs, 16.0), "ttft_p50_seconds")
    assert counted.verdict is Verdict.PASS, "with a count on both sides events are pieces, and no length"
    cells = [Cell("100qps", "short", "ttft_p50_seconds")]
    (remark,) = unknown_length(of(ours), of(theirs), cells, ())
    assert remark == (
        "100qps/short: the length of prompts and answers is not told by the candidate and the reference (usage in "
        "tokens): whether both did the same work is not known"
    )
    assert unknown_length(of(ours), of(theirs), cells, ("prompt_tokens", "answer_length")) == ()
    (remark,) = unknown_length(of(ours, 16.0), of(theirs, 16.0), cells, ())
    assert "the length of prompts is not told by the candidate and the reference (" in remark
    (remark,) = unknown_length(of(ours, 16.0), of(theirs), cells, ("prompt_tokens",))
    assert "the length of answers is not told by the reference (" in remark


def test_a_baseline_of_a_version_that_kept_no_length_of_prompts_is_told_from_a_server_that_tells_none() -> None:
    told = side(
        ttft_p50_seconds=STEADY, wordless_ratio=[0.0] * 5, tokens_per_answer=[16.0] * 5,
        prompt_tokens_per_answer=[64.0] * 5,
    )  # fmt: skip
    older = side(ttft_p50_seconds=STEADY, wordless_ratio=[0.0] * 5, tokens_per_answer=[16.0] * 5)
    silent = side(
        ttft_p50_seconds=STEADY, wordless_ratio=[0.0] * 5, tokens_per_answer=[None] * 5,
        prompt_tokens_per_answer=[None] * 5,
    )  # fmt: skip
    cells = [Cell("100qps", "short", "ttft_p50_seconds")]
    remedy = "whether both did the same work is not known; accept a new baseline to have prompts compared"
    assert unknown_length(told, older, cells, ()) == (
        f"100qps/short: the length of prompts is not kept in the reference, made by an older sre: {remedy}",
    )
    assert unknown_length(silent, older, cells, ()) == (
        "100qps/short: the length of prompts and answers is not told by the candidate (usage in tokens); the length "
        f"of prompts is not kept in the reference, made by an older sre: {remedy}",
    )
    assert unknown_length(told, older, cells, ("prompt_tokens",)) == unknown_length(told, told, cells, ()) == ()


def test_tokens_per_answer_are_those_that_the_server_counted() -> None:
    (run,) = lognormal_runs(random.Random(1), Model(), 1)
    values = measure(run).stages[0].classes["short"].values
    assert (values["tokens_per_answer"], values["prompt_tokens_per_answer"]) == (16, 64)
    untold = replace(run.stages[0].summary, output_tokens_per_second=None)  # type: ignore[type-var]
    quiet = replace(run, stages=(replace(run.stages[0], summary=untold),))
    assert measure(quiet).stages[0].classes["short"].values["tokens_per_answer"] is None


def test_one_value_is_one_run_and_no_run_at_all_is_no_stage() -> None:
    (cell,) = judged(side(ttft_p50_seconds=[1.0, *[None] * 4]), side(ttft_p50_seconds=STEADY), "ttft_p50_seconds")
    assert cell.detail.startswith("1 run has a value (run 2: no value of ttft_p50_seconds")
    (cell,) = judged(side(ttft_p50_seconds=STEADY), [], "ttft_p50_seconds")
    assert (cell.verdict, cell.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_MEASURED)
    assert cell.detail == "in the reference: there is no run, and so no stage to compare at"


def test_answers_without_text_pass_nothing_on_either_side_and_excuse_no_regression() -> None:
    def told(share: float | None, slowness: float = 1.0) -> list[MeasuredRun]:
        return side(ttft_p50_seconds=[slowness * value for value in STEADY], wordless_ratio=[share] * 5)

    for ours, theirs, whose in ((told(0.6), told(0.0), ""), (told(0.0), told(1.0), "in the reference: ")):
        (cell,) = judged(ours, theirs, "ttft_p50_seconds")
        assert (cell.verdict, cell.reason) == (Verdict.INCONCLUSIVE, Reason.WITHOUT_TEXT)
        assert f"; {whose}{'60%' if not whose else '100%'} of the answers had tokens and no text" in cell.detail
    for few in (None, 0.0, 0.17, 0.5):
        (cell,) = judged(told(few), told(few), "ttft_p50_seconds")
        assert cell.verdict is Verdict.PASS
    (cell,) = judged(told(1.0, slowness=2), told(0.0), "ttft_p50_seconds")
    assert (cell.verdict, cell.reason) == (Verdict.FAIL, Reason.REGRESSION)


@pytest.mark.parametrize(
    ("ours", "theirs", "passes"),
    [
        (0.95, 0.0, False),
        (0.95, 0.95, True),
        (0.1, 0.0, True),  # hides no regression of the size that a PASS rules out
        (0.0, 0.95, True),  # more work, and no slower
        (0.95, None, False),
        (None, 0.95, True),
        (None, None, True),
    ],
)
def test_a_build_that_has_the_prompts_in_its_cache_is_not_passed_for_being_faster(
    ours: float | None, theirs: float | None, passes: bool
) -> None:
    candidate = side(ttft_p50_seconds=STEADY, cached_ratio=[ours] * 5)
    reference = side(ttft_p50_seconds=STEADY, cached_ratio=[theirs] * 5)
    (cell,) = judged(candidate, reference, "ttft_p50_seconds")
    if passes:
        assert cell.verdict is Verdict.PASS
        return
    assert (cell.verdict, cell.reason) == (Verdict.INCONCLUSIVE, Reason.LESS_WORK)
    assert "95% of its prompts' tokens came from the server's cache" in cell.detail
    declared = replace(policy_of("ttft_p50_seconds"), may_differ=("cached_prompts",))
    (cell,) = judge_cells(candidate, reference, declared)
    assert cell.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [(1.0, 1.0, False), (0.6, 1.0, False), (0.4, 1.0, True), (1.0, 0.4, True), (None, 1.0, False), (1.0, None, False)],
)
def test_far_other_pieces_of_a_stream_are_told_once_per_stage_and_decide_nothing(
    ours: float | None, theirs: float | None, told: bool
) -> None:
    """A server that claims what it does not send looks like one that packs tokens together under load."""

    def of(pieces: float | None) -> list[MeasuredRun]:
        return side(ttft_p50_seconds=STEADY, e2e_p50_seconds=STEADY, events_per_token=[pieces] * 5)

    cells = [Cell("100qps", "short", metric) for metric in ("ttft_p50_seconds", "e2e_p50_seconds")]
    remarks = other_pieces(of(ours), of(theirs), cells)
    assert [one.partition(":")[0] for one in remarks] == (["100qps/short"] if told else [])
    if told:
        assert f" {ours:.2g} content events per token of usage, in the reference {theirs:.2g}" in remarks[0]
    (cell,) = judged(of(ours), of(theirs), "ttft_p50_seconds")
    assert cell.verdict is Verdict.PASS


def test_shares_of_cached_prompts_and_of_answers_without_text_are_those_of_the_class() -> None:
    (run,) = lognormal_runs(random.Random(1), Model(requests=1000), 1)
    summary = run.stages[0].summary
    assert summary is not None
    kind = replace(summary.classes["short"], cached_tokens=16_000, prompt_tokens=64_000, wordless=250)
    stage = replace(run.stages[0], summary=replace(summary, classes={"short": kind}))
    values = measure(replace(run, stages=(stage,))).stages[0].classes["short"].values
    assert (values["cached_ratio"], values["wordless_ratio"]) == (0.25, 0.25)
