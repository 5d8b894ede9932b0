"""What becomes a baseline, what does not, and the document it is kept in."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.errors import ConfigError, ExitCode, Refused, StateError
from sre.gate.baseline import Baseline, accept, dumps, from_document, from_result, loads, to_document
from sre.gate.fingerprint import ABSENT, Difference, build, differences
from sre.gate.judge import judge
from sre.gate.result import GateResult, RunResult
from sre.gate.stages import Calibration
from sre.gate.verdict import GateVerdict, Reason, Verdict
from tests.gate.verdict.simulated import BUSY_CLIENT, DEFAULTS, FIT_CLIENT, Model, lognormal_runs
from tests.gate.verdict.test_objectives import run_of, stage_of

DAY = 86_400.0
HERE = build([("gpus", "1x L4"), ("seed", "1")], [("server", "vllm 0.32.0")])
PASSED = GateVerdict(Verdict.PASS, (Reason.WITHIN_OBJECTIVES, Reason.NO_BASELINE), (), "4 of 4 cells hold")


def result(
    seed: int = 1, *, runs: Sequence[RunResult] | None = None, verdict: GateVerdict = PASSED, day: int = 0,
    calibration: Calibration | None = FIT_CLIENT, interrupted: str = "",
) -> GateResult:  # fmt: skip
    found = runs if runs is not None else lognormal_runs(random.Random(seed), Model())
    found = [replace(run, wall_started_at=1_700_000_000 + day * DAY) for run in found]
    return GateResult(
        id=f"run-{seed}-{day}", url="http://127.0.0.1:8000", model="m", tool_version="0.1", wall_started_at=0.0,
        wall_ended_at=1.0, fingerprint=HERE, smoke=None, calibration=calibration, runs=found, knee=None,
        long_tail=None, verdict=verdict, bottleneck=None, latency_budget=None, interrupted=interrupted,
    )  # fmt: skip


def accepted(found: GateResult, **options: Any) -> Baseline:
    return accept(found, name="default", accepted_at=1.7e9, **options)


def test_a_passed_run_becomes_a_baseline_that_later_runs_are_judged_by() -> None:
    made = accepted(result(), note="first\x1b[31m release")
    assert (made.name, len(made.runs), made.days) == ("default", 5, ("2023-11-14",))
    (taken,) = made.acceptances
    assert (taken.run_id, taken.runs, taken.forced) == ("run-1-0", 5, False)
    assert taken.note == "first?[31m release"
    assert taken.subject == (("server", "vllm 0.32.0"),)
    verdict = judge(result(2).runs, made, DEFAULTS, fingerprint=HERE)
    assert verdict.verdict is Verdict.PASS
    assert Reason.NO_BASELINE not in verdict.reasons


def test_an_inconclusive_run_for_want_of_a_baseline_may_be_one() -> None:
    unsure = GateVerdict(Verdict.INCONCLUSIVE, (Reason.NO_BASELINE,), (), "nothing was judged")
    assert len(accepted(result(verdict=unsure)).runs) == 5


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (result(verdict=GateVerdict(Verdict.FAIL, (Reason.OBJECTIVE_MISSED,), (), "P99 too high")), "P99 too high"),
        (result(verdict=GateVerdict(Verdict.FAIL, (Reason.REGRESSION,), (), "slower")), "another gate.baseline.name"),
        (result(interrupted="stopped by a person"), "stopped by a person"),
        (result(calibration=BUSY_CLIENT), "client was the limit"),
        (result(verdict=GateVerdict(Verdict.INCONCLUSIVE, (Reason.CLIENT_LIMITED,), (), "late")), "in doubt"),
        (result(verdict=GateVerdict(Verdict.INCONCLUSIVE, (Reason.SELF_CHECK_FAILED,), (), "sums")), "in doubt"),
        (result(runs=[]), "no run"),
    ],
    ids=["failed", "slower", "interrupted", "client", "client later", "check", "empty"],
)  # fmt: skip
def test_what_must_not_be_a_yardstick_is_refused_even_by_force(found: GateResult, word: str) -> None:
    for force in (False, True):
        with pytest.raises(Refused, match=word) as caught:
            accepted(found, force=force)
        assert caught.value.exit_code is ExitCode.NO


def test_a_run_whose_client_held_requests_back_is_refused() -> None:
    stage = stage_of([0.1] * 400)
    assert stage.summary is not None
    shed = replace(stage, summary=replace(stage.summary, shed=3))
    with pytest.raises(Refused, match="held back 3 requests"):
        accepted(result(runs=[run_of(shed)] * 5))


def test_fewer_than_five_runs_only_by_force_and_it_stays_visible() -> None:
    few = result(runs=result().runs[:3])
    with pytest.raises(Refused, match="3 runs"):
        accepted(few)
    made = accepted(few, force=True)
    assert made.acceptances[0].forced
    assert not accepted(result(), force=True).acceptances[0].forced


def test_runs_of_other_days_are_added_each_with_its_day() -> None:
    made = accepted(result(1))
    for day in (1, 2):
        made = accepted(result(1, day=day, runs=result(day).runs[:2]), existing=made)
    assert made.days == ("2023-11-14", "2023-11-15", "2023-11-16")
    assert [run.day for run in made.runs].count("2023-11-15") == 2
    assert [one.run_id for one in made.acceptances] == ["run-1-0", "run-1-1", "run-1-2"]
    assert "of one day" not in judge(result(3).runs, made, DEFAULTS).summary


def test_copies_of_a_run_are_no_further_runs_whatever_they_are_called() -> None:
    """Imported twice, one file is two gate runs."""
    made, copy = accepted(result(1)), replace(result(1), id="copy", url="imported: vllm bench")
    with pytest.raises(Refused, match="run 1 of copy has the times of run 1 of run-1-0, request by request"):
        accepted(copy, existing=made)
    first, *rest = result(1).runs[:4]
    runs = [replace(run, number=number) for number, run in enumerate((first, first, *rest))]
    twice = replace(result(runs=runs), url="imported: vllm bench")
    with pytest.raises(Refused, match="run 2 of run-1-0 has the times of run 1"):
        accepted(twice)
    assert len(accepted(replace(result(2), url="imported: vllm bench"), existing=made).runs) == 10


def test_the_same_run_is_not_added_twice_nor_more_than_the_test_takes() -> None:
    made = accepted(result(1))
    with pytest.raises(Refused, match="in it already"):
        accepted(result(1), existing=made)
    full = replace(made, runs=tuple(made.runs) * 20)
    with pytest.raises(Refused, match="more than 100"):
        accepted(result(2), existing=full)


def test_runs_of_another_environment_are_not_added() -> None:
    made = replace(accepted(result(1)), fingerprint=build([("gpus", "1x H100"), ("seed", "1")]))
    with pytest.raises(ConfigError, match="gpus was 1x H100, this run has 1x L4"):
        accepted(result(2), existing=made)


def test_of_an_interleaved_run_the_target_is_taken() -> None:
    runs = [replace(run, side=side) for run in result().runs for side in ("A", "B")]
    assert len(from_result(result(runs=runs), name="x").runs) == 5


def test_the_document_comes_back_as_it_was() -> None:
    times = [0.1 + n / 1000 for n in range(2990)] + [math.inf] * 10
    made = accepted(result(runs=[run_of(stage_of(times), number=n) for n in range(5)]))
    text = dumps(made)
    assert loads(text, "f") == made
    assert from_document(to_document(made), "f") == made
    assert json.loads(text)["schema"] == "sre/gate-baseline"
    assert "Infinity" not in text
    kept = made.runs[0].stages[0].classes
    assert kept["short"].values["ttft_p99_seconds"] == times[2969]
    assert len(kept["short"].e2e_sample_seconds) == 200
    assert kept["short"].e2e_sample_seconds[-1] == math.inf
    assert kept["all"].e2e_sample_seconds == (), "the same as short's"
    assert len(text) < 40_000, "meant to be committed"
    assert text.count("\n") < 60


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not JSON"),
        ("{", "cut off"),
        ("[]", "no baseline"),
        ('{"schema": "sre/gate-result"}', "no baseline"),
        ('{"schema": "sre/gate-baseline", "schema_version": "2.0"}', "not 1.x"),
        ('{"schema": "sre/gate-baseline", "schema_version": "1.0"}', "name: is missing"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_damaged_document_says_where_and_what_to_do(text: str, word: str) -> None:
    with pytest.raises(StateError, match=word) as caught:
        loads(text, "default.json")
    assert "default.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_that_is_in_it_twice_is_damage() -> None:
    """A line of the file is a run, and a merge may double it: copies would make five runs of one, without noise."""
    document = to_document(accepted(result()))
    document["runs"][1] = document["runs"][0]
    with pytest.raises(StateError, match=r"f: run 1 of run-1-0 is in it 2 times; restore the file"):
        from_document(document, "f")


def test_a_baseline_without_runs_is_none() -> None:
    document = to_document(accepted(result())) | {"runs": []}
    with pytest.raises(StateError, match="holds no run"):
        from_document(document, "f")


@given(st.data())
def test_any_value_in_any_place_is_read_or_refused_never_crashes(data: st.DataObject) -> None:
    document: Any = json.loads(dumps(accepted(result(runs=[run_of(stage_of([0.1] * 3))] * 5))))
    node, path = document, []
    while isinstance(node, (dict, list)) and node:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        path.append((node, key))
        node = node[key]
        if data.draw(st.booleans()):
            break
    place, key = path[-1]
    place[key] = data.draw(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([]))
    try:
        found = from_document(document, "f")
    except StateError:
        return
    judge(result().runs, found, DEFAULTS)


def test_differences_are_named_and_the_subject_may_differ() -> None:
    ours = build([("b", "1"), ("a", "x\ny")], [("server", "1")])
    theirs = build([("a", "x y"), ("c", "2")], [("server", "2")])
    assert ours.fields == (("a", "x y"), ("b", "1"))
    assert differences(theirs, ours) == (Difference("b", ABSENT, "1"), Difference("c", "2", ABSENT))
    assert differences(ours, replace(ours, subject=())) == ()
    with pytest.raises(ValueError, match="a comes twice"):
        build([("a", "1"), ("a", "2")])
