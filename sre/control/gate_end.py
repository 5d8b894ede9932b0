"""The end of a gate run: verdict, diagnosis, reports. Runs in a thread: it computes and writes, and awaits nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from sre.control.gate_state import GateState
from sre.control.gate_world import Folder
from sre.errors import ExitCode, StateError
from sre.gate.judge import judge
from sre.gate.judging import JudgePolicy
from sre.gate.plan import SIDE_B
from sre.gate.result import GateResult
from sre.gate.verdict import GateVerdict, Verdict


@dataclass(frozen=True, slots=True)
class Ended:
    """
    What a run came to.

    Attributes:
        by_person: Ctrl-C or a signal ended it.
        unwritten: Why not everything could be written down; "" if it could.
    """

    result: GateResult
    folder: Folder
    by_person: bool = False
    unwritten: str = ""

    def exit_code(self, *, inconclusive_passes: bool) -> ExitCode:
        """
        Exit code of the command.

        A stop by a person comes first, then a disk that refused; what is measured after either is no answer to rely on.
        """
        if self.by_person:
            return ExitCode.ABORTED
        if self.unwritten:
            return ExitCode.COULD_NOT_RUN
        verdict = self.result.verdict.verdict
        if verdict is Verdict.FAIL:
            return ExitCode.NO
        if verdict is Verdict.INCONCLUSIVE and not inconclusive_passes:
            return ExitCode.NO_ANSWER
        return ExitCode.OK


def finish(state: GateState, folder: Folder, wall_ended_at: float, says: Callable[[str], None]) -> Ended:
    """Judge, explain and write down what there is; never raises for a disk that refuses: the answer then says so."""
    result = diagnosed(state, wall_ended_at)
    unwritten = state.unwritten
    try:
        folder.save(result)
        for name, text in state.order.render(result):
            folder.save_report(name, text)
    except StateError as error:
        unwritten = unwritten or str(error)
        says(f"not every report could be written: {error}")
        if not state.interrupted:
            state.interrupted = unwritten
            result = diagnosed(state, wall_ended_at)
    return Ended(result, folder, state.by_person, unwritten)


def diagnosed(state: GateState, wall_ended_at: float) -> GateResult:
    """The whole result: verdict, what binds, where the time goes."""
    bare = state.result(wall_ended_at, interrupted=state.interrupted, verdict=judged(state))
    stages = state.measured()
    if not stages:
        omitted = {**bare.omitted, "bottleneck": "no stage was measured", "latency_budget": "no stage was measured"}
        return dataclasses.replace(bare, omitted=omitted)
    return bare


def judged(state: GateState) -> GateVerdict:
    """By objectives and baseline; interleaved: the target against the runs of the other side."""
    order = state.order
    policy = JudgePolicy.of(order.settings)
    candidate = [run for run in state.runs if run.side != SIDE_B]
    interleaved = order.against is not None
    return judge(
        candidate,
        [run for run in state.runs if run.side == SIDE_B] if interleaved else order.baseline,
        policy,
        calibration=state.calibration,
        checks=state.checks(),
        interrupted=state.interrupted,
    )
