"""From a fault and its target to exact steps, each with its undoing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sre.chaos.catalogue import Fault
from sre.chaos.durations import format_duration
from sre.signals.types import ProcessIdentity

STEP_DEADLINE_SECONDS = 2.0
"""For undoing one step and seeing that it is undone."""
SLACK_SECONDS = 2.0
"""From READY to the deed, and from the end of the hold to the first undoing: scheduling on a busy machine."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One deed and its undoing, in the words of the watchdog's journal."""

    name: str
    verb: str
    args: Mapping[str, Any]
    revert_verb: str
    revert_args: Mapping[str, Any]
    fallback_verb: str | None
    tag: str
    """Written into every file of ours: what carries another tag is never removed."""
    state_before: str
    target: ProcessIdentity | None = None
    deadline_seconds: float = STEP_DEADLINE_SECONDS

    def record(self) -> dict[str, Any]:
        """As it stands in the journal."""
        target = None if self.target is None else {"pid": self.target.pid, "start_ticks": self.target.start_ticks}
        return {
            "name": self.name,
            "verb": self.verb,
            "args": dict(self.args),
            "revert_verb": self.revert_verb,
            "revert_args": dict(self.revert_args),
            "fallback_verb": self.fallback_verb,
            "deadline_seconds": self.deadline_seconds,
            "tag": self.tag,
            "state_before": self.state_before,
            "target": target,
        }

    def describe(self) -> tuple[str, str]:
        """What is done, and how it is undone: for ``--dry-run``."""
        match self.verb:
            case "signal_stop" | "signal_kill":
                assert self.target is not None, "signals have a target"
                number = "SIGSTOP" if self.verb == "signal_stop" else "SIGKILL"
                who = f"pid {self.target.pid} (start ticks {self.target.start_ticks})"
                undo = f"SIGCONT to {who}, through a pidfd" if self.verb == "signal_stop" else "none: one-way"
                return f"{number} to {who}: {self.name}", undo
            case _:
                content = json.dumps(self.args["content"], ensure_ascii=False)
                return (
                    f"write {self.args['path']}: {content}",
                    f"remove {self.args['path']} if its run_id is {self.tag}",
                )


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, ready to be journaled."""

    run_id: str
    fault: str
    engine: str
    hold_seconds: float
    effect_timeout_seconds: float
    lease_seconds: float
    value: float | None
    gpus: tuple[int, ...]
    steps: tuple[PlannedStep, ...] = field(default_factory=tuple)

    @property
    def revert_seconds(self) -> float:
        """The longest that undoing all steps may take: each has its first way and its fallback."""
        return sum(2 * step.deadline_seconds for step in self.steps)

    @property
    def active_seconds(self) -> float:
        """The longest that the fault may be in force: fault files expire then, whoever is still alive."""
        return SLACK_SECONDS + self.effect_timeout_seconds + self.hold_seconds

    @property
    def ttl_seconds(self) -> float:
        """When the watchdog reverts whatever the injector says: more than effect + hold + undoing need."""
        return self.active_seconds + self.revert_seconds + SLACK_SECONDS

    def describe(self) -> list[str]:
        """Lines for ``--dry-run``."""
        lines = [
            f"fault {self.fault} on engine {self.engine}, held {format_duration(self.hold_seconds)};"
            f" reverted {format_duration(self.lease_seconds)} after the injector's last sign of life,"
            f" and {format_duration(self.ttl_seconds)} after the start at the latest"
        ]
        for number, step in enumerate(self.steps, 1):
            do, undo = step.describe()
            lines += [f"{number}. inject: {do}", f"   revert: {undo}"]
        return lines


def make_plan(
    fault: Fault,
    *,
    run_id: str,
    engine: str,
    cores: tuple[ProcessIdentity, ...],
    gpus: tuple[int, ...],
    value: float | None,
    hold_seconds: float,
    lease_seconds: float,
    gpu_overlay: Path,
    engine_faults: Path,
) -> Plan:
    """
    Return the plan.

    Args:
        cores: Engine-core processes; each is one step.
        gpus: Indices the overlay covers.
        value: In the unit of ``fault.value``; None for faults without one.
        gpu_overlay: The overlay file.
        engine_faults: Folder of the engines' fault files.
    """
    steps: tuple[PlannedStep, ...]
    match fault.deed:
        case "stop_core":
            steps = tuple(_signal(core, engine, run_id, "signal_stop", "signal_cont") for core in cores)
        case "kill_core":
            steps = tuple(_signal(core, engine, run_id, "signal_kill", "nothing") for core in cores)
        case "gpu_overlay":
            assert fault.value is not None, "checked by Fault"
            readings = {str(gpu): {fault.value.key: value} for gpu in gpus}
            name = f"GPU overlay of {', '.join(f'GPU {g}' for g in gpus)}"
            steps = (_file(name, gpu_overlay, {"gpus": readings}, run_id),)
        case "engine_faults":
            assert fault.value is not None, "checked by Fault"
            content = {"faults": {fault.value.key: value}}
            steps = (_file(f"fault file of engine {engine}", engine_faults / f"{engine}.json", content, run_id),)
    return Plan(
        run_id=run_id,
        fault=fault.name,
        engine=engine,
        hold_seconds=hold_seconds,
        effect_timeout_seconds=fault.effect_timeout_seconds,
        lease_seconds=lease_seconds,
        value=value,
        gpus=gpus,
        steps=steps,
    )


def _signal(core: ProcessIdentity, engine: str, run_id: str, verb: str, revert_verb: str) -> PlannedStep:
    return PlannedStep(
        name=f"VLLM::EngineCore {core.pid} of engine {engine}",
        verb=verb,
        args={},
        revert_verb=revert_verb,
        revert_args={},
        fallback_verb=None,
        tag=run_id,
        state_before="running",
        target=core,
    )


def _file(name: str, path: Path, content: Mapping[str, Any], run_id: str) -> PlannedStep:
    return PlannedStep(
        name=name,
        verb="write_tagged_file",
        args={"path": str(path), "content": {"run_id": run_id, **content}},
        revert_verb="remove_tagged_file",
        revert_args={"path": str(path), "temporary": str(path.with_name(f".{path.name}.{run_id}"))},
        fallback_verb="blank_tagged_file",
        tag=run_id,
        state_before="absent",
    )
