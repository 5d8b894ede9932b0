"""The end of a gate run: verdict, diagnosis, reports. Runs in a thread: it computes and writes, and awaits nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from sre.control.gate_state import GateState
from sre.control.gate_world import Folder, Order
from sre.errors import ExitCode, StateError
from sre.gate.bottleneck import attribute
from sre.gate.cells import measure
from sre.gate.compare import Beside
from sre.gate.judge import judge
from sre.gate.judging import JudgePolicy
from sre.gate.latency_budget import budget_table
from sre.gate.long_tail import judged_metric
from sre.gate.plan import SIDE_B
from sre.gate.result import GateResult, RunResult
from sre.gate.stages import StageKind
from sre.gate.verdict import Cell, GateVerdict, Verdict

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Ended:
    """
    What a run came to.

    Attributes:
        by_person: Ctrl-C or a signal ended it.
        broken: What on our own side kept it from its end, or from being written down: a full disk, a load process that
            died; "" if nothing did.
    """

    result: GateResult
    folder: Folder
    by_person: bool = False
    broken: str = ""

    def exit_code(self, *, inconclusive_passes: bool) -> ExitCode:
        """
        Exit code of the command.

        A stop by a person comes first, then trouble of our own: what is measured after either is no answer to rely on.
        """
        if self.by_person:
            return ExitCode.ABORTED
        if self.broken:
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
    broken = state.broken
    try:
        folder.save(result)
        for name, text in state.order.render(result):
            folder.save_report(name, text)
    except StateError as error:
        broken = broken or str(error)
        says(f"not every report could be written: {error}")
        if not state.interrupted:
            state.interrupted = broken
            result = diagnosed(state, wall_ended_at)
            # A report may be too large where this is not: then the file says what the command says.
            with contextlib.suppress(StateError):
                folder.save(result)
    return Ended(result, folder, state.by_person, broken)


def diagnosed(state: GateState, wall_ended_at: float) -> GateResult:
    """The whole result: verdict, what binds, where the time goes."""
    bare = state.result(wall_ended_at, interrupted=state.interrupted, verdict=judged(state))
    stages = state.measured()
    if not stages:
        omitted = {**bare.omitted, "bottleneck": "no stage was measured", "latency_budget": "no stage was measured"}
        return dataclasses.replace(bare, omitted=omitted)
    settings = state.order.settings
    # Of an interleaved comparison the target alone: two servers are not one curve.
    ours = [stage for stage in stages if stage.plan.side != SIDE_B]
    return dataclasses.replace(
        bare,
        bottleneck=attribute(
            ours,
            state.knee,
            calibration=state.calibration,
            client_lag_p99_seconds=settings.client_lag_p99_seconds,
        ),
        latency_budget=budget_table(ours, settings.budget),
    )


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
        unseen=state.unseen(),
        beside=_beside_longs(state, policy) if interleaved else (),
        remark=_one_server(order),
    )


def _one_server(order: Order) -> str:
    """What is to be said beside a comparison of a server with itself; "": there are two, or nobody can tell."""
    if order.against is None or _place(order.target.url) != _place(order.against.url):
        return ""
    return "both sides are the same server: this shows how alike its runs are, and nothing of a new build"


def _place(url: str) -> tuple[str, int | None, str]:
    """Host, port and path."""
    parts = urlsplit(url)
    return _host(parts.hostname or ""), parts.port or DEFAULT_PORTS.get(parts.scheme), parts.path.rstrip("/")


def _host(name: str) -> str:
    """
    One spelling of a host: a server that listens on localhost mostly does so on 127.0.0.1 and ::1. Other addresses of
    the loopback net are others: two servers may share a port there.
    """
    name = name.rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return "localhost" if str(address) in ("127.0.0.1", "::1") else str(address)


def _beside_longs(state: GateState, policy: JudgePolicy) -> tuple[Beside, ...]:
    """The shorts beside longs, of both sides; empty where that test was not run."""
    mixed = [stage for stage in state.long_tail_stages if stage.plan.kind is StageKind.MIXED]
    if not mixed:
        return ()
    ours, theirs = (
        [measure(RunResult(stage.plan.run, arm, (stage,), 0.0)) for stage in mixed if stage.plan.arm == arm]
        for arm in ("", SIDE_B)
    )
    first = mixed[0].plan
    return (Beside(Cell(first.name, policy.first_class, judged_metric(first)), ours, theirs),)
