"""The runner on a fake server in virtual time: order, giving up, interruption, what is on disk at any moment."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sre.errors import Aborted, ConfigError, ExitCode, ExitedEarly, StateError, Unreachable
from sre.gate.records import Cause
from sre.gate.report import tables
from sre.gate.result import Smoke, StageResult
from sre.gate.stages import StageKind, StagePlan
from sre.gate.verdict import Reason, Verdict
from sre.settings.gate import GateSettings
from sre.testing.load import Behaviour, FakeLoad
from tests.gate.run.scene import Heard, MemoryFolder, Scene, gate_settings


async def test_stages_run_in_order_and_every_pass_repeats_them() -> None:
    scene = Scene()
    ended = await scene.run()
    assert [(plan.kind, plan.name, plan.run) for plan in scene.load.plans] == [
        (StageKind.WARM_UP, "warm-up", 0),
        *[(StageKind.STAIRCASE, name, run) for run in (0, 1) for name in ("20qps", "40qps", "80qps")],
    ]
    assert ended.result.verdict.verdict is Verdict.PASS
    assert ended.exit_code(inconclusive_passes=False) is ExitCode.OK
    assert [run.number for run in ended.result.runs] == [0, 1]
    assert set(scene.folder.reports) == {"junit.xml", "summary.md", "report.html"}
    assert scene.heard.begun[0] == "1/7 warm-up"
    assert ended.result.interrupted == ""
    assert {check.name: check.ok for check in ended.result.checks} == dict.fromkeys(
        ("littles_law", "sums", "clock", "token_rates"), True
    )


async def test_warm_up_is_no_faster_than_the_first_stage_and_is_not_kept() -> None:
    scene = Scene()
    await scene.run()
    assert scene.load.plans[0].rate_rps == scene.load.plans[1].rate_rps
    assert all(plan.kind is not StageKind.WARM_UP for plan in scene.folder.records)


async def test_after_every_stage_the_folder_holds_a_result_marked_as_killed() -> None:
    scene = Scene()
    ended = await scene.run()
    assert len(scene.folder.saved) == 1 + 6 + 1
    assert [saved.interrupted for saved in scene.folder.saved] == ["killed, or still running"] * 7 + [""]
    assert [sum(len(run.stages) for run in saved.runs) for saved in scene.folder.saved[:7]] == [0, 1, 2, 3, 4, 5, 6]
    assert {saved.verdict.verdict for saved in scene.folder.saved[:7]} == {Verdict.INCONCLUSIVE}
    assert scene.folder.saved[-1] == ended.result


async def test_a_server_that_is_not_there_leaves_no_folder() -> None:
    scene = Scene()
    scene.load.gone = True
    with pytest.raises(Unreachable, match="connection refused"):
        await scene.run()
    assert scene.folders_made == 0


async def test_a_policy_server_that_is_not_there_is_told_before_any_load() -> None:
    policies = {"enabled": True, "policies": [{"name": "chunked", "url": "http://chunked"}]}
    scene = Scene(settings=gate_settings(long_tail=policies), policies={"chunked": Behaviour()})
    arm = scene.order.policies["chunked"].generator
    assert isinstance(arm, FakeLoad)
    arm.gone = True
    with pytest.raises(
        Unreachable, match=r"^gate\.long_tail\.policies chunked: .*connection refused; start it.*--no-long-"
    ):
        await scene.run()
    assert (scene.folders_made, scene.load.plans) == (0, [])


def against_beside_longs(**long_tail: Any) -> GateSettings:
    long_tail = {"enabled": True, "runs": 5, "seconds": 30, **long_tail}
    return gate_settings(load={"stages_qps": [20], "stage_seconds": 30}, baseline={"runs": 5}, long_tail=long_tail)


async def test_two_servers_are_compared_beside_long_prompts_too() -> None:
    """Equal without longs, slower with them: the staircase alone would pass it."""
    slower = Behaviour(long_penalty_seconds=0.3, noise=0.05)
    equal = Behaviour(long_penalty_seconds=0.1, noise=0.05)
    for ours, verdict in ((slower, Verdict.FAIL), (equal, Verdict.PASS)):
        scene = Scene(ours, against=equal, settings=against_beside_longs())
        ended = await scene.run()
        assert ended.result.verdict.verdict is verdict, ended.result.verdict.summary
        cells = {str(cell.cell): cell for cell in ended.result.verdict.cells if cell.kind == "baseline"}
        assert cells["20qps-mixed/short/ttft_p99_seconds"].verdict is verdict
        assert cells["20qps/short/ttft_p99_seconds"].verdict is Verdict.PASS
        assert scene.against is not None
        for load in (scene.load, scene.against):
            kinds = [plan.kind for plan in load.plans if plan.kind in (StageKind.SHORTS, StageKind.MIXED)]
            assert kinds == [StageKind.SHORTS, StageKind.MIXED, StageKind.MIXED, StageKind.SHORTS] * 2 + kinds[:2]
        assert ended.result.long_tail is not None
        assert [arm.policy for arm in ended.result.long_tail.arms] == ["", "B"]
        assert "side B: P99 of the shorts' TTFT" in ended.result.long_tail.detail
        assert "20qps-mixed" in scene.folder.reports["junit.xml"]


@pytest.mark.parametrize(
    ("target", "other", "same"),
    [
        ("http://127.0.0.1:8000", "http://localhost:8000", True),
        ("http://GPU:80", "http://gpu", True),
        ("http://gpu:8000", "http://gpu:8001", False),
        ("http://gpu/a", "http://gpu/b", False),
        ("http://[::1]:8000", "http://localhost.:8000/", True),
        ("http://[0:0::1]:8000", "http://[::ffff:127.0.0.1]:8000", True),
        ("http://127.0.0.1:8000", "http://127.0.0.2:8000", False),
        ("http://127.0.0.2:8000", "http://127.0.0.2:8000", True),
        ("http://127.example.com:8000", "http://localhost:8000", False),
        ("http://[fd00::1]:8000", "http://[fd00:0::1]:8000", True),
    ],
)
async def test_a_server_compared_with_itself_is_told_beside_the_verdict(target: str, other: str, same: bool) -> None:
    scene = Scene(Behaviour(noise=0.05), against=Behaviour(noise=0.05), settings=gate_settings(baseline={"runs": 5}))
    assert scene.order.against is not None
    scene.order = replace(
        scene.order, target=replace(scene.order.target, url=target), against=replace(scene.order.against, url=other)
    )
    verdict = (await scene.run()).result.verdict
    assert ("both sides are the same server" in verdict.summary) is same


async def test_a_server_that_cuts_the_longs_is_not_passed_for_what_the_shorts_gain() -> None:
    ours = Behaviour(long_penalty_seconds=0.01, noise=0.05, longest_prompt_tokens=500)
    scene = Scene(ours, against=Behaviour(long_penalty_seconds=0.1, noise=0.05), settings=against_beside_longs())
    verdict = (await scene.run()).result.verdict
    cells = {str(cell.cell): cell for cell in verdict.cells if cell.kind == "baseline"}
    beside = cells["20qps-mixed/short/ttft_p99_seconds"]
    assert (verdict.verdict, beside.reason) == (Verdict.INCONCLUSIVE, Reason.LESS_WORK)
    assert "of the same stage: its prompts had 500 tokens by its usage, those of the reference 32768" in beside.detail
    assert cells["20qps/short/ttft_p99_seconds"].verdict is Verdict.PASS, "without longs nothing was cut"


async def test_too_few_passes_beside_long_prompts_pass_nothing() -> None:
    ended = await Scene(Behaviour(), against=Behaviour(), settings=against_beside_longs(runs=3)).run()
    assert (ended.result.verdict.verdict, ended.result.verdict.reasons[0]) == (
        Verdict.INCONCLUSIVE, Reason.TOO_FEW_RUNS,
    )  # fmt: skip


async def test_another_side_that_has_no_room_for_long_prompts_takes_the_pass() -> None:
    scene = Scene(Behaviour(), against=Behaviour(), settings=against_beside_longs(), against_max_model_len=8192)
    ended = await scene.run()
    assert ended.result.verdict.verdict is Verdict.INCONCLUSIVE
    assert any("long-tail test of side B is left out: max_model_len 8192" in one for one in scene.heard.sentences)
    (cell,) = (cell for cell in ended.result.verdict.cells if cell.cell.stage == "20qps-mixed")
    assert (cell.verdict, cell.detail) == (Verdict.INCONCLUSIVE, "in the reference: there is no run")


async def test_stopped_while_the_server_is_asked_nothing_is_left() -> None:
    scene = Scene()
    asked = asyncio.Event()

    async def never() -> Smoke:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    scene.load.smoke = never  # type: ignore[method-assign]
    task = asyncio.create_task(scene.run())
    await asked.wait()
    scene.stop.set()
    with pytest.raises(Aborted, match="before anything was measured"):
        await task
    assert scene.folders_made == 0


async def test_a_load_process_that_dies_ends_the_run_and_keeps_what_there_is() -> None:
    def dies(plan: StagePlan, seconds: float) -> None:
        if plan.rate_rps == 40 and seconds > 10:
            raise ExitedEarly("load process 7: ended with exit code -9")

    scene = Scene(on_look=dies)
    ended = await scene.run()
    assert ended.exit_code(inconclusive_passes=True) is ExitCode.COULD_NOT_RUN
    assert ended.result.interrupted == ended.broken == "load process 7: ended with exit code -9"
    assert ended.result.runs[0].stages[0].summary is not None
    assert ended.result.verdict.verdict is Verdict.INCONCLUSIVE


async def test_a_stage_with_too_many_failures_is_given_up_and_what_follows_is_skipped() -> None:
    def does(plan: StagePlan) -> Behaviour:
        return Behaviour(failed_ratio=0.3 if plan.rate_rps > 30 and plan.kind is StageKind.STAIRCASE else 0)

    scene = Scene(does)
    ended = await scene.run()
    first, second, third = ended.result.runs[0].stages
    assert (first.aborted, second.aborted, third.skipped) == (
        "",
        "error_share",
        "an earlier stage was given up: too many requests fail",
    )
    assert second.summary is not None
    assert second.summary.cancelled + second.summary.ok + second.summary.failed < 40 * 30
    assert [run.number for run in ended.result.runs] == [0]  # no further pass can change the verdict
    assert ended.result.verdict.verdict is Verdict.FAIL
    assert Reason.STAGE_GIVEN_UP in ended.result.verdict.reasons
    failed = second.summary.failed
    assert f"given up: too many requests fail ({failed} server_error)" in ended.result.verdict.summary
    assert ended.exit_code(inconclusive_passes=True) is ExitCode.NO


async def test_over_the_p99_objective_by_count_the_stage_ends_before_its_time() -> None:
    settings = gate_settings(objectives=[{"ttft_p99_seconds": 0.1}])
    scene = Scene(Behaviour(service_seconds=0.5), settings=settings)
    ended = await scene.run()
    assert ended.result.runs[0].stages[0].aborted == "over_limit"
    assert ended.result.verdict.verdict is Verdict.FAIL


async def test_a_server_that_dies_fails_the_gate_and_says_so() -> None:
    def does(plan: StagePlan) -> Behaviour:
        dies = plan.kind is StageKind.STAIRCASE and plan.rate_rps == 40
        return Behaviour(dies_after_seconds=10 if dies else 1e9)

    scene = Scene(does)
    ended = await scene.run()
    stages = ended.result.runs[0].stages
    assert [stage.aborted or stage.skipped for stage in stages] == [
        "",
        "server_gone",
        "an earlier stage was given up: the server takes no connections any more",
    ]
    assert "the server takes no connections any more: http://fake: connection refused" in ended.result.interrupted
    assert ended.result.verdict.verdict is Verdict.FAIL
    assert ended.exit_code(inconclusive_passes=True) is ExitCode.NO
    assert scene.folder.reports


async def test_stopped_by_a_person_the_stage_is_kept_in_part_and_reports_are_written() -> None:
    scene = Scene(on_look=lambda plan, seconds: scene.stop.set() if plan.rate_rps == 40 and seconds > 10 else None)
    ended = await scene.run()
    assert ended.exit_code(inconclusive_passes=True) is ExitCode.ABORTED
    assert ended.result.interrupted == "stopped by a person"
    first, second, third = ended.result.runs[0].stages
    assert second.aborted == "interrupted"
    assert second.summary is not None
    assert 0 < second.summary.ok < 40 * 30
    assert third.skipped == "an earlier stage was given up: stopped by a person"
    assert ended.result.verdict.verdict is Verdict.INCONCLUSIVE
    assert Reason.INTERRUPTED in ended.result.verdict.reasons
    assert [plan.name for plan in scene.folder.records] == ["20qps", "40qps"]
    assert set(scene.folder.reports) == {"junit.xml", "summary.md", "report.html"}
    assert first.aborted == ""


class StopsWhenAllIsMeasured(Heard):
    """A person who stops the run after its last stage."""

    def __init__(self, stop: asyncio.Event, stages: int) -> None:
        super().__init__()
        self._stop, self._left = stop, stages

    def ended(self, stage: StageResult) -> None:
        super().ended(stage)
        self._left -= 1
        if not self._left:
            self._stop.set()


@pytest.mark.parametrize(("stages", "code"), [(7, ExitCode.OK), (6, ExitCode.ABORTED)])
async def test_the_exit_code_says_what_gate_json_says_whenever_it_is_stopped(stages: int, code: ExitCode) -> None:
    scene = Scene()
    scene.heard = StopsWhenAllIsMeasured(scene.stop, stages)
    ended = await scene.run()
    assert ended.exit_code(inconclusive_passes=False) is code
    assert (ended.result.interrupted == "") is (code is ExitCode.OK)
    assert (ended.result.verdict.verdict is Verdict.PASS) is (code is ExitCode.OK)


async def test_the_deadline_ends_the_run_without_a_pass() -> None:
    scene = Scene(settings=gate_settings(deadline_seconds=100))
    ended = await scene.run()
    assert "deadline" in ended.result.interrupted
    assert ended.result.verdict.verdict is Verdict.INCONCLUSIVE
    assert ended.exit_code(inconclusive_passes=False) is ExitCode.NO_ANSWER
    assert ended.exit_code(inconclusive_passes=True) is ExitCode.OK  # asked for, and it says so


@pytest.mark.parametrize("full_after", range(0, 18))
async def test_a_full_disk_ends_the_run_whatever_write_it_hits(full_after: int) -> None:
    small = gate_settings(load={"stage_seconds": 2})
    scene = Scene(full_after=full_after, settings=small)
    ended = await scene.run()
    writes = 1 + 6 * 2 + 1 + 3
    if full_after >= writes:
        assert ended.broken == ""
        return
    assert "No space left" in ended.broken
    assert ended.exit_code(inconclusive_passes=True) is ExitCode.COULD_NOT_RUN
    assert "No space left" in ended.result.interrupted
    assert ended.result.verdict.verdict is not Verdict.PASS
    assert any("No space left" in sentence for sentence in scene.heard.sentences)
    assert all(saved.interrupted for saved in scene.folder.saved[:-1])


class _NoReports(MemoryFolder):
    """Results are small enough for the disk, reports are not."""

    def save_report(self, name: str, text: str) -> None:
        raise StateError(f"{self.path / name}: File too large; free space on its disk")


async def test_where_a_report_is_refused_the_result_on_disk_says_what_the_command_says() -> None:
    scene = Scene(settings=gate_settings(load={"stage_seconds": 2}))
    scene.folder = _NoReports()
    ended = await scene.run()
    assert "File too large" in ended.result.interrupted
    assert scene.folder.saved[-1] == ended.result


async def test_a_client_that_is_the_limit_never_passes() -> None:
    scene = Scene(client_limited=True)
    ended = await scene.run()
    assert ended.result.verdict.verdict is Verdict.INCONCLUSIVE
    assert Reason.CLIENT_LIMITED in ended.result.verdict.reasons
    assert any("this client is the limit" in sentence for sentence in scene.heard.sentences)


async def test_what_the_load_processes_say_is_told_once_and_kept() -> None:
    said = "a load process may have 64 open files: at most 32 requests in flight instead of 99; raise it with ulimit -n"
    scene = Scene(settings=gate_settings(load={"stages_qps": [20, 40]}, baseline={"runs": 2}), note=said)
    ended = await scene.run()
    assert scene.heard.sentences.count(said) == 1
    (note,) = ended.result.notes
    assert note.startswith(f"{said} (first at ")


async def test_the_knee_is_found_between_the_steps_once_after_the_last_pass() -> None:
    settings = gate_settings(knee={"enabled": True, "resolution_ratio": 0.1})
    scene = Scene(Behaviour(capacity_rps=57), settings=settings)
    ended = await scene.run()
    knee = ended.result.knee
    assert knee is not None
    assert knee.reason == "resolved"
    assert knee.estimate_rps == pytest.approx(57, rel=0.1)
    kinds = [plan.kind for plan in scene.load.plans]
    assert kinds == sorted(kinds, key=[StageKind.WARM_UP, StageKind.STAIRCASE, StageKind.KNEE].index)
    assert len(ended.result.knee_stages) == kinds.count(StageKind.KNEE) > 0


async def test_interleaved_sides_alternate_and_see_the_same_schedule() -> None:
    settings = gate_settings(
        load={"stages_qps": [20], "stage_seconds": 30}, baseline={"runs": 5}, knee={"enabled": True}
    )
    scene = Scene(Behaviour(noise=0.1), against=Behaviour(noise=0.1), settings=settings)
    ended = await scene.run()
    assert [run.side for run in ended.result.runs] == list("ABBAABBAAB")
    assert scene.against is not None
    ours = [plan.seed for plan in scene.load.plans if plan.kind is StageKind.STAIRCASE]
    theirs = [plan.seed for plan in scene.against.plans if plan.kind is StageKind.STAIRCASE]
    assert ours == theirs
    assert len(set(ours)) == 5
    assert ended.result.verdict.verdict is not Verdict.FAIL
    assert ended.result.omitted["knee"].startswith("an interleaved comparison")


async def test_interleaved_a_slower_target_fails() -> None:
    settings = gate_settings(load={"stages_qps": [20], "stage_seconds": 30}, baseline={"runs": 5})
    scene = Scene(Behaviour(service_seconds=0.08, noise=0.1), against=Behaviour(noise=0.1), settings=settings)
    ended = await scene.run()
    assert ended.result.verdict.verdict is Verdict.FAIL
    assert Reason.REGRESSION in ended.result.verdict.reasons


async def test_long_tail_compares_the_same_shorts_with_and_without_longs() -> None:
    settings = gate_settings(
        load={"stages_qps": [20]}, baseline={"runs": 1}, long_tail={"enabled": True, "runs": 5, "seconds": 20}
    )
    scene = Scene(Behaviour(long_penalty_seconds=0.3, noise=0.05), settings=settings)
    ended = await scene.run()
    test = ended.result.long_tail
    assert test is not None
    (arm,) = test.arms
    assert arm.effect_ratio is not None
    assert arm.effect_ratio > 1
    assert arm.p_value == pytest.approx(1 / 252)
    assert arm.long_requests == pytest.approx(5 * 20 * 20 / 9, rel=0.3)
    pairs = [plan for plan in scene.load.plans if plan.kind in (StageKind.SHORTS, StageKind.MIXED)]
    assert [plan.kind for plan in pairs[:4]] == [
        StageKind.SHORTS, StageKind.MIXED, StageKind.MIXED, StageKind.SHORTS
    ]  # fmt: skip
    assert len({(plan.run, plan.seed, plan.rate_rps) for plan in pairs}) == 5


async def test_a_context_that_is_too_short_leaves_the_arm_out_with_a_reason() -> None:
    settings = gate_settings(load={"stages_qps": [20]}, baseline={"runs": 1}, long_tail={"enabled": True})
    scene = Scene(settings=settings, max_model_len=8192)
    ended = await scene.run()
    assert ended.result.long_tail is not None
    (arm,) = ended.result.long_tail.arms
    assert arm.skipped.endswith("try --long-tokens 8176")
    assert (ended.result.verdict.verdict, ended.result.verdict.reasons[0]) == (
        Verdict.INCONCLUSIVE,
        Reason.NOT_MEASURED,
    )
    assert all(plan.kind is not StageKind.MIXED for plan in scene.load.plans)


async def test_the_policy_that_spares_the_shorts_is_named() -> None:
    settings = gate_settings(
        load={"stages_qps": [20]},
        baseline={"runs": 1},
        long_tail={
            "enabled": True, "runs": 5, "seconds": 20, "policies": [{"name": "chunked", "url": "http://chunked"}],
        },
    )  # fmt: skip
    scene = Scene(
        Behaviour(long_penalty_seconds=0.3, noise=0.05),
        settings=settings,
        policies={"chunked": Behaviour(long_penalty_seconds=0.02, noise=0.05)},
    )
    ended = await scene.run()
    assert ended.result.long_tail is not None
    assert ended.result.long_tail.best_policy == "chunked"


async def test_a_target_that_spares_the_shorts_most_is_named_too() -> None:
    slower = Behaviour(long_penalty_seconds=0.3, noise=0.05)
    ended = await Scene(Behaviour(noise=0.05), against=slower, settings=against_beside_longs()).run()
    assert "Best policy for the short ones: the target." in tables.long_tail(ended.result).text[0]


async def test_a_baseline_of_another_environment_is_refused_before_any_load() -> None:
    from sre.gate.baseline import from_result

    first = await Scene().run()
    baseline = from_result(first.result, name="default")
    scene = Scene(baseline=baseline, described=(("client_host", "another"),))
    with pytest.raises(ConfigError, match="client_host"):
        await scene.run()
    assert (scene.folders_made, scene.load.plans) == (0, [])


async def test_refusals_at_overload_count_as_saturation() -> None:
    def does(plan: StagePlan) -> Behaviour:
        return Behaviour(failed_ratio=0.4 if plan.rate_rps > 50 else 0, cause=Cause.REFUSED)

    settings = gate_settings(
        objectives=[{"max_qps": 40, "failed_ratio": 0.01}], knee={"enabled": True}, baseline={"runs": 1}
    )
    ended = await Scene(does, settings=settings).run()
    assert ended.result.knee is not None
    assert ended.result.knee.estimate_rps == pytest.approx(50, rel=0.05)


async def test_a_service_that_sheds_above_its_bounds_is_still_measured_five_times() -> None:
    """Giving up beyond every objective decides nothing: comparing the stages below takes all the runs."""

    def does(plan: StagePlan) -> Behaviour:
        return Behaviour(failed_ratio=0.8 if plan.rate_rps > 50 else 0, cause=Cause.REFUSED)

    settings = gate_settings(objectives=[{"max_qps": 40, "failed_ratio": 0.01}], baseline={"runs": 5})
    ended = await Scene(does, settings=settings).run()
    assert [run.stages[2].aborted for run in ended.result.runs] == ["error_share"] * 5
    assert ended.result.verdict.verdict is Verdict.PASS


async def test_a_reference_that_fails_does_not_end_the_comparison_of_the_target() -> None:
    settings = gate_settings(load={"stages_qps": [20]}, baseline={"runs": 3})
    ended = await Scene(Behaviour(), against=Behaviour(failed_ratio=0.5), settings=settings).run()
    assert [run.side for run in ended.result.runs] == list("ABBAAB")
    assert ended.result.verdict.verdict is Verdict.INCONCLUSIVE


async def test_a_knee_of_a_client_that_cannot_keep_up_is_none_to_rely_on() -> None:
    settings = gate_settings(knee={"enabled": True, "resolution_ratio": 0.1})
    ended = await Scene(Behaviour(capacity_rps=57), settings=settings, client_limited=True).run()
    assert ended.result.knee is not None
    assert ended.result.knee.reason == "client_limited"


async def test_a_long_tail_test_of_a_late_client_takes_the_pass() -> None:
    def does(plan: StagePlan) -> Behaviour:
        return Behaviour(lag_seconds=0.05 if plan.kind is StageKind.MIXED else 0.0, noise=0.05)

    settings = gate_settings(
        load={"stages_qps": [20]}, baseline={"runs": 1}, long_tail={"enabled": True, "runs": 2, "seconds": 20}
    )
    ended = await Scene(does, settings=settings).run()
    assert ended.result.verdict.verdict is Verdict.INCONCLUSIVE
    assert "long-tail test of the target: 20qps-mixed, run 1: the client was 50 ms late" in ended.result.verdict.summary


async def test_what_may_differ_from_the_baseline_is_said() -> None:
    from sre.gate.baseline import from_result

    first = await Scene().run()
    baseline = from_result(first.result, name="default")
    settings = gate_settings(baseline={"runs": 2, "may_differ": ["client_host"]})
    ended = await Scene(baseline=baseline, described=(("client_host", "another"),), settings=settings).run()
    assert ended.result.notes[0] == (
        "baseline default: client_host was test, this run has another: declared to make no difference"
    )


async def test_two_servers_under_other_conditions_are_compared_and_the_difference_is_said() -> None:
    settings = gate_settings(load={"stages_qps": [20]}, baseline={"runs": 1})
    scene = Scene(Behaviour(), against=Behaviour(), settings=settings, described=(("gpus", "1 x H200"),))
    ended = await scene.run()
    assert "the two servers differ in gpus: http://fake 1 x H200, http://other (not recorded)" in ended.result.notes
