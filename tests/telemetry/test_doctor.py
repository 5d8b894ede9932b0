"""Doctor's judgement: facts in, findings out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sre.control.doctor import examine, exit_code
from sre.control.doctor_facts import (
    ChaosFacts,
    EngineFacts,
    EnvoyFacts,
    Facts,
    Finding,
    GpuFacts,
    Level,
    NotifyFacts,
    NotSeen,
    PortFacts,
    StackFacts,
    StateDirFacts,
    SystemFacts,
)
from sre.control.doctor_gpu import foreseen_memory_ratio
from sre.errors import ExitCode
from sre.settings.guard import DEFAULT_RULES
from sre.settings.stack import EngineSettings
from sre.signals.types import GpuSeen, Reading, Seen

SIM = EngineSettings(name="s", gpus=(0,))
VLLM = EngineSettings(name="v", kind="vllm", model="m", gpus=(0,))


def gpu(memory: float = 0.6, celsius: float = 50.0, *, source: str = "nvml", injected: bool = False) -> GpuSeen:
    return GpuSeen(0, "u", source, Reading.of(memory, 1.0), Reading.of(celsius, 1.0), injected=injected)


HEALTHY = Facts(
    system=SystemFacts((3, 12, 1), True, None, 65536, 65536, True, {"prometheus": "/usr/bin/prometheus"}),
    envoy=EnvoyFacts("/opt/envoy", "1.40.0"),
    engines=(EngineFacts("s", "sim"),),
    ports=PortFacts(("127.0.0.1:8080 (stack.gateway.port)",), ()),
    state_dir=StateDirFacts("/state", True, None, "ext4", 10 << 30),
    notify=NotifyFacts(("mail (email)",), (), "2.3.0"),
    stack=StackFacts("ready", frozenset({"s"})),
    chaos=ChaosFacts((), ()),
    gpu=GpuFacts("sim", None, ((gpu(source="sim"),),) * 3),
    engine_settings=(SIM,),
    rules=DEFAULT_RULES,
    sim_memory_ratio=0.6,
)


def findings(**changes: Any) -> list[Finding]:
    return [f for f in examine(replace(HEALTHY, **changes)) if f.level is not Level.OK]


def only(**changes: Any) -> Finding:
    (finding,) = findings(**changes)
    return finding


def test_a_healthy_machine_has_no_findings_and_exits_0() -> None:
    assert findings() == []
    assert exit_code(examine(HEALTHY)) is ExitCode.OK


def test_every_check_says_something_also_when_all_is_well() -> None:
    checks = {finding.check for finding in examine(HEALTHY)}
    assert checks >= {"python", "limits", "state-dir", "envoy", "ports", "engines", "gpu", "rules", "notify", "stack"}


def changed(**fields: Any) -> SystemFacts:
    assert isinstance(HEALTHY.system, SystemFacts)
    return replace(HEALTHY.system, **fields)


def folder(**fields: Any) -> StateDirFacts:
    assert isinstance(HEALTHY.state_dir, StateDirFacts)
    return replace(HEALTHY.state_dir, **fields)


@pytest.mark.parametrize(
    ("changes", "check", "level", "word"),
    [
        ({"system": changed(python=(3, 10, 9))}, "python", Level.PROBLEM, "3.10.9"),
        ({"system": changed(pidfd=False)}, "kernel", Level.PROBLEM, "pidfd"),
        ({"system": changed(inotify_problem="Too many open files")}, "inotify", Level.PROBLEM, "Too many"),
        ({"system": changed(nofile_soft=2048)}, "limits", Level.WARNING, "2048"),
        ({"system": changed(nofile_soft=512)}, "limits", Level.PROBLEM, "512"),
        ({"system": changed(clock_synchronized=False)}, "clock", Level.WARNING, "not synchronized"),
        ({"state_dir": folder(problem="No space left on device")}, "state-dir", Level.PROBLEM, "No space"),
        ({"state_dir": folder(filesystem="nfs4")}, "state-dir", Level.PROBLEM, "nfs4"),
        ({"state_dir": folder(filesystem="tmpfs")}, "state-dir", Level.WARNING, "reboot"),
        ({"state_dir": folder(free_bytes=500 << 20)}, "state-dir", Level.WARNING, "500 MiB"),
        ({"state_dir": folder(free_bytes=5 << 20)}, "state-dir", Level.PROBLEM, "5 MiB"),
        ({"envoy": EnvoyFacts(None, None, "envoy: not installed; do so")}, "envoy", Level.PROBLEM, "not installed"),
        ({"envoy": EnvoyFacts("/e", "1.30.1")}, "envoy", Level.WARNING, "1.30.1"),
        ({"envoy": EnvoyFacts("/e", None)}, "envoy", Level.WARNING, "version"),
        ({"ports": PortFacts((), ("p: taken; stop it",))}, "ports", Level.PROBLEM, "taken"),
        ({"engines": (EngineFacts("v", "vllm", ("v: no vLLM; install it",)),)}, "engines", Level.PROBLEM, "no vLLM"),
        ({"engines": (EngineFacts("x", "external", (), False),)}, "engines", Level.WARNING, "does not answer"),
        ({"notify": NotifyFacts((), (), "2.3.0")}, "notify", Level.WARNING, "nobody would be told"),
        ({"notify": NotifyFacts(("m",), ("n: E is not set; export it",), "2")}, "notify", Level.PROBLEM, "not set"),
        ({"notify": NotifyFacts(("m",), (), None)}, "notify", Level.PROBLEM, "Apprise"),
        ({"notify": NotifyFacts(("m",), (), "2", ("n",))}, "notify", Level.NOT_SEEN, "n: could not be checked"),
        ({"chaos": ChaosFacts((), (("r1", "gpu-hang", "dirty"),))}, "chaos", Level.PROBLEM, "gpu-hang"),
        ({"chaos": ChaosFacts((("r1", "gpu-hang"),), ())}, "chaos", Level.WARNING, "being injected"),
        ({"gpu": GpuFacts("sim", None, ((gpu(0.97, source="sim"),),) * 3)}, "rules", Level.WARNING, "not armed"),
    ],
)
def test_each_finding_has_its_level_and_a_remedy(changes: dict[str, Any], check: str, level: Level, word: str) -> None:
    finding = only(**changes)
    assert (finding.check, finding.level) == (check, level)
    assert word in finding.sentence
    assert finding.remedy
    expected = ExitCode.NO if level is Level.PROBLEM else ExitCode.OK
    assert exit_code([finding]) is expected


def test_an_orphaned_engine_is_a_problem() -> None:
    orphan = "pid 7 (VLLM::EngineCore) is an orphan; end it with kill 7"
    finding = only(stack=StackFacts("ready", frozenset({"s"}), (), (orphan,)))
    assert (finding.check, finding.level, finding.remedy) == ("orphans", Level.PROBLEM, "end it with kill 7")


def test_what_runs_without_a_supervisor_is_said() -> None:
    finding = only(stack=StackFacts(None, frozenset(), (("gateway", 12),)))
    assert "gateway (pid 12)" in finding.sentence


@pytest.mark.parametrize("essential", ["envoy", "ports", "state_dir"])
def test_something_essential_not_seen_is_no_answer(essential: str) -> None:
    found = examine(replace(HEALTHY, **{essential: NotSeen("no answer within 8 s")}))
    assert exit_code(found) is ExitCode.NO_ANSWER


@pytest.mark.parametrize("other", ["system", "notify", "stack", "chaos", "gpu"])
def test_something_else_not_seen_does_not_decide(other: str) -> None:
    found = examine(replace(HEALTHY, **{other: NotSeen("no answer within 8 s")}))
    assert Level.NOT_SEEN in {finding.level for finding in found}
    assert exit_code(found) is ExitCode.OK


def test_gpus_are_essential_where_an_engine_needs_them() -> None:
    found = examine(replace(HEALTHY, gpu=NotSeen("late"), engine_settings=(VLLM,)))
    assert exit_code(found) is ExitCode.NO_ANSWER


def test_a_problem_wins_over_what_was_not_seen() -> None:
    found = examine(replace(HEALTHY, ports=NotSeen("late"), envoy=EnvoyFacts(None, None, "envoy: none; get it")))
    assert exit_code(found) is ExitCode.NO


# GPUs and rules


def test_no_nvml_is_a_problem_only_where_an_engine_needs_it() -> None:
    missing = GpuFacts("none", "NVML: not found", ((),))
    cpu = VLLM.model_copy(update={"build": "cpu", "gpus": ()})
    assert findings(gpu=missing, engine_settings=(cpu,)) == []
    (finding, *_) = findings(gpu=missing, engine_settings=(VLLM,))
    assert (finding.check, finding.level) == ("gpu", Level.PROBLEM)


def test_a_gpu_that_is_not_there_is_a_problem() -> None:
    absent = Reading.missing(1.0)
    found = findings(gpu=GpuFacts("nvml", None, ((GpuSeen(0, "", "nvml", absent, absent),),)))
    assert (found[0].check, found[0].level) == ("gpu", Level.PROBLEM)


def test_a_lost_gpu_is_a_warning_and_its_rules_are_not_seen() -> None:
    lost = Reading.missing(1.0, Seen.UNREACHABLE)
    found = findings(gpu=GpuFacts("nvml", None, ((GpuSeen(0, "u", "nvml", lost, lost),),) * 3))
    assert [(f.check, f.level) for f in found] == [
        ("gpu", Level.WARNING),
        ("rules", Level.NOT_SEEN),
        ("rules", Level.NOT_SEEN),
    ]


def test_an_injected_fault_never_disarms_a_rule() -> None:
    hot = GpuFacts("sim", None, ((gpu(0.97, 92.0, source="sim", injected=True),),) * 3)
    assert {(f.check, f.level) for f in findings(gpu=hot)} == {("rules", Level.NOT_SEEN)}


def test_before_the_engine_serves_the_steady_state_is_foreseen() -> None:
    idle = GpuFacts("nvml", None, ((gpu(0.01),),) * 3)
    engine = VLLM.model_copy(update={"args": ("--gpu-memory-utilization", "0.96")})
    finding = only(gpu=idle, stack=StackFacts(None), engine_settings=(engine,), engines=(EngineFacts("v", "vllm"),))
    assert (finding.check, finding.level) == ("rules", Level.WARNING)
    assert "foreseen" in finding.sentence
    assert "not armed" in finding.sentence


@pytest.mark.parametrize(
    ("engines", "ratio"),
    [
        ((VLLM,), 0.95),
        ((VLLM.model_copy(update={"args": ("--gpu-memory-utilization=0.5",)}),), 0.53),
        ((VLLM.model_copy(update={"args": ("--gpu-memory-utilization", "0.4")}),) * 2, 0.86),
        ((VLLM.model_copy(update={"args": ("--gpu-memory-utilization", "lots")}),), 0.95),
        ((VLLM.model_copy(update={"args": ("--gpu-memory-utilization",)}),), 0.95),
        ((VLLM, VLLM), 1.0),
        ((SIM,), 0.6),
        ((SIM, SIM), 0.6),
        ((VLLM.model_copy(update={"build": "cpu"}),), None),
        ((EngineSettings(name="x", kind="external", url="http://x"),), None),
        ((), None),
    ],
)
def test_foreseen_memory(engines: tuple[EngineSettings, ...], ratio: float | None) -> None:
    assert foreseen_memory_ratio(engines, 0.6) == (None if ratio is None else pytest.approx(ratio))
