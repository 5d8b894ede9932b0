"""Faults, plans, refusals, verdicts: the pure part."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sre.chaos.admission import refusals
from sre.chaos.catalogue import find_fault, load_faults, parse_fault
from sre.chaos.durations import format_duration, parse_duration
from sre.chaos.plan import Plan, make_plan
from sre.chaos.ports import Evidence
from sre.chaos.report import ABORTS, Ending, Verdict, judge
from sre.errors import ConfigError
from sre.signals.types import ProcessIdentity
from sre.watchdog.journal import Step
from sre.watchdog.verbs import REVERT_VERBS
from tests.chaos.standin import FAULTS, request, target

CORES = (ProcessIdentity(11, 100), ProcessIdentity(12, 200))


def plan_of(fault: str, value: float | None = None, hold_seconds: float = 30.0) -> Plan:
    return make_plan(
        FAULTS[fault], run_id="run-1", engine="sim-0", cores=CORES, gpus=(0, 1), value=value, hold_seconds=hold_seconds,
        lease_seconds=1.0, gpu_overlay=Path("/s/run/gpu-overlay.json"), engine_faults=Path("/s/run/engine-faults"),
    )  # fmt: skip


def test_the_catalogue_holds_the_promised_faults() -> None:
    names = {"gpu-hang", "gpu-temperature", "gpu-memory", "error-burst", "batch-failure", "engine-kill"}
    assert set(load_faults()) == names


def test_every_fault_file_is_named_after_its_fault() -> None:
    folder = Path(__file__).resolve().parents[2] / "chaos"
    for file in folder.glob("*.yml"):
        assert yaml.safe_load(file.read_text())["name"] == file.stem


def test_unknown_fault_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gpu-hang'"):
        find_fault(FAULTS, "gpu-hnag")


def test_description_with_several_errors_names_them_all() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_fault("name: gpu-hang\nsummry: x\ndeed: explode\n", "gpu-hang.yml")
    assert len(caught.value.problems) > 3
    assert all(problem.startswith("gpu-hang.yml: ") for problem in caught.value.problems)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_step_can_be_read_and_undone_by_the_watchdog(fault: str) -> None:
    plan = plan_of(fault, value=1.0)
    assert plan.steps
    for index, step in enumerate(plan.steps):
        parsed = Step.parse(index, step.record())
        assert parsed.revert_verb in REVERT_VERBS
        assert parsed.fallback_verb is None or parsed.fallback_verb in REVERT_VERBS
        assert parsed.tag == "run-1"


def test_each_core_of_a_data_parallel_engine_is_a_step() -> None:
    assert [step.target for step in plan_of("gpu-hang").steps] == list(CORES)


@pytest.mark.parametrize("fault", FAULTS)
@given(hold_seconds=st.floats(0.01, 3600))
def test_hard_limit_leaves_time_for_effect_hold_and_revert(fault: str, hold_seconds: float) -> None:
    plan = plan_of(fault, 1.0, hold_seconds)
    assert plan.ttl_seconds > plan.effect_timeout_seconds + plan.hold_seconds + plan.revert_seconds
    assert plan.effect_timeout_seconds + plan.hold_seconds < plan.active_seconds < plan.ttl_seconds


def test_dry_run_shows_inject_and_revert_of_each_step() -> None:
    assert plan_of("gpu-hang").describe() == [
        "fault gpu-hang on engine sim-0, held 30s; reverted 1s after the injector's last sign of life, and 52s after"
        " the start at the latest",
        "1. inject: SIGSTOP to pid 11 (start ticks 100): VLLM::EngineCore 11 of engine sim-0",
        "   revert: SIGCONT to pid 11 (start ticks 100), through a pidfd",
        "2. inject: SIGSTOP to pid 12 (start ticks 200): VLLM::EngineCore 12 of engine sim-0",
        "   revert: SIGCONT to pid 12 (start ticks 200), through a pidfd",
    ]
    assert plan_of("error-burst", 0.25).describe()[1:] == [
        '1. inject: write /s/run/engine-faults/sim-0.json: {"run_id": "run-1", "faults": {"error_ratio": 0.25}}',
        "   revert: remove /s/run/engine-faults/sim-0.json if its run_id is run-1",
    ]


@pytest.mark.parametrize(
    ("fault", "change", "asked", "said"),
    [
        ("gpu-hang", {"kind": "external"}, {}, "someone else's"),
        ("gpu-hang", {"kind": "vllm"}, {}, "--i-own sim-0"),
        ("gpu-hang", {"kind": "vllm"}, {"i_own": "sim-1"}, "--i-own sim-0"),
        ("gpu-hang", {"ready": False}, {}, "not ready"),
        ("gpu-hang", {"cores": ()}, {}, "no VLLM::EngineCore"),
        ("gpu-hang", {"others": 1}, {}, "--last-engine"),
        ("gpu-temperature", {"gpus": ()}, {}, "--gpu 0"),
        ("error-burst", {"kind": "vllm", "acts_faults": False}, {"i_own": "sim-0"}, "fault_hook: true"),
        ("gpu-hang", {}, {"hold_seconds": 601.0}, "max_hold_seconds"),
    ],
)
def test_refusal_says_what_to_do(fault: str, change: dict[str, object], asked: dict[str, object], said: str) -> None:
    wanted = dataclasses.replace(request(fault), **asked)
    found = refusals(wanted, target(CORES, **change), guard_answers=True, max_hold_seconds=600.0)
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("fault", "change", "asked", "guard"),
    [
        ("gpu-hang", {}, {}, True),
        ("gpu-hang", {}, {"without_guard": True}, False),
        ("gpu-hang", {"kind": "vllm"}, {"i_own": "sim-0"}, True),
        ("gpu-hang", {"others": 1}, {"last_engine": True}, True),
        ("gpu-hang", {"others": 1, "others_ready": 1}, {}, True),
        ("gpu-temperature", {"gpus": ()}, {"gpus": (0,)}, True),
        ("error-burst", {"kind": "vllm", "acts_faults": True}, {"i_own": "sim-0"}, True),
    ],
)
def test_what_is_allowed_is_not_refused(
    fault: str, change: dict[str, object], asked: dict[str, object], guard: bool
) -> None:
    wanted = dataclasses.replace(request(fault), **asked)
    assert refusals(wanted, target(CORES, **change), guard_answers=guard, max_hold_seconds=600.0) == ()


@pytest.mark.parametrize(
    ("shown", "asked", "said"),
    [
        ({0}, (7,), ("--gpu: the guard reads no GPU 7, so nothing would act on the fault; it reads 0",)),
        ({1, 2}, None, ("engines[].gpus: the guard reads no GPU 0, so nothing would act on the fault; it reads 1, 2",)),
        ({0, 1}, (1,), ()),
        ((), (7,), ()),
    ],
    ids=["asked for", "of the settings", "there", "none is told"],
)
def test_a_gpu_that_the_guard_does_not_read_is_refused(
    shown: Collection[int], asked: tuple[int, ...] | None, said: tuple[str, ...]
) -> None:
    wanted = dataclasses.replace(request("gpu-temperature"), gpus=asked)
    assert refusals(wanted, target(CORES), guard_answers=True, max_hold_seconds=600.0, gpus_shown=shown) == said


def test_fault_without_a_guard_is_refused() -> None:
    (found,) = refusals(request("gpu-hang"), target(CORES), guard_answers=False, max_hold_seconds=600.0)
    assert "--without-guard" in found


SEEN, UNSEEN = Evidence(True, 0.0, "test", ""), Evidence(False, 0.0, "test", "")
RANK = [Verdict.DIRTY, Verdict.FAIL, Verdict.INVALID, Verdict.ABORTED, Verdict.PASS]


def test_verdict_is_never_better_with_a_worse_or_missing_check() -> None:
    for ending, verify in itertools.product(Ending, (True, False)):
        best = judge(ending=ending, clean=True, effect=SEEN, after=SEEN, verify_effect=verify)
        for clean, effect, after in itertools.product((True, False), (SEEN, UNSEEN, None), (SEEN, UNSEEN)):
            worse = judge(ending=ending, clean=clean, effect=effect, after=after, verify_effect=verify)
            assert RANK.index(worse) <= RANK.index(best)


def test_no_proof_is_no_pass() -> None:
    for effect in (UNSEEN, None):
        verdict = judge(ending=Ending.HELD, clean=True, effect=effect, after=SEEN, verify_effect=True)
        assert verdict is Verdict.INVALID
    for ending in ABORTS:
        assert judge(ending=ending, clean=True, effect=SEEN, after=None, verify_effect=True) is Verdict.ABORTED


@pytest.mark.parametrize(
    ("written", "seconds"), [("500ms", 0.5), ("30s", 30.0), ("2m", 120.0), ("1.5h", 5400.0), (" 3 s ", 3.0)]
)
def test_durations_are_read(written: str, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize("written", ["30", "", "0s", "-1s", "1d", "1s2m", "infs", "nan s", "1e3s", "9" * 400 + "s"])
def test_what_is_not_a_duration_is_refused_with_a_hint(written: str) -> None:
    with pytest.raises(ValueError, match=r"30s|nothing"):
        parse_duration(written)


@given(st.integers(1, 10**7))
def test_formatted_duration_reads_back(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-5)
