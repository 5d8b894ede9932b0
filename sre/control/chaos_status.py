"""What runs, ran, or was left behind; and ending it from outside the injector."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sre.chaos.admission import Cancelled
from sre.clock import Clock
from sre.control.chaos_start import chaos_lock, describe_left
from sre.errors import StateError
from sre.watchdog.journal import STOP_NAME, JournalUnwritable
from sre.watchdog.processes import boot_id, state
from sre.watchdog.recover import Recovered, Run, recover, runs

STOP_MARGIN_SECONDS = 5.0
STEP_MARGIN_SECONDS = 4.0


class RunState(enum.Enum):
    """How a run stands."""

    ACTIVE = "active"  # its injector lives; the fault is, or may be, in force
    UNFINISHED = "unfinished"  # its injector is gone and the journal not closed: recover it
    DIRTY = "dirty"  # a revert was tried and could not be proven
    UNREADABLE = "unreadable"  # nobody knows what is left
    REVERTED = "reverted"
    NEVER_INJECTED = "never_injected"

    @property
    def left(self) -> bool:
        """Whether something of it may be left in the world, with nobody at work on it."""
        return self in (RunState.UNFINISHED, RunState.DIRTY, RunState.UNREADABLE)


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run."""

    run_id: str
    state: RunState
    fault: str
    engine: str
    started_wall: float | None
    value: float | None
    hold_seconds: float | None
    steps: tuple[str, ...]
    injector_pid: int | None
    detail: str

    def document(self) -> dict[str, object]:
        """For ``--output json``."""
        return {
            "run_id": self.run_id,
            "state": self.state.value,
            "fault": self.fault,
            "engine": self.engine,
            "started_wall": self.started_wall,
            "value": self.value,
            "hold_seconds": self.hold_seconds,
            "steps": list(self.steps),
            "injector_pid": self.injector_pid,
            "detail": self.detail,
        }


def survey(folder: Path) -> tuple[RunStatus, ...]:
    """Every run that is known, the latest first; unknown start times last. Raises StateError."""
    try:
        found = [_status(run) for run in runs(folder)]
    except JournalUnwritable as error:
        raise StateError(str(error)) from error
    return tuple(sorted(found, key=lambda status: -(status.started_wall or 0.0)))


def active_faults(folder: Path) -> Mapping[str, int]:
    """Number of faults that are, or may be, in force, by fault name: for the exporter. Raises StateError."""
    return Counter(s.fault for s in survey(folder) if s.state is RunState.ACTIVE or s.state.left)


async def end_all(folder: Path, clock: Clock) -> Sequence[Recovered]:
    """
    End the fault in force, whoever placed it, and close everything left open; return what was open and how it ended.

    A living injector and its watchdog are asked by the stop file; what they do not close in time is closed here.

    Raises:
        StateError: The folder cannot be trusted.
    """
    asked: dict[str, int] = {}
    give_up = clock.monotonic() + STOP_MARGIN_SECONDS
    while True:
        try:
            with chaos_lock(folder):
                done = await asyncio.to_thread(_recover, folder)
                break
        except Cancelled:
            pass  # someone is at work, so there is somebody to ask
        for status in survey(folder):
            if status.state is RunState.ACTIVE and status.run_id not in asked:
                asked[status.run_id] = len(status.steps)
                give_up += STEP_MARGIN_SECONDS * len(status.steps)
                (folder / status.run_id / STOP_NAME).touch()
        closed = asked and not any(run.open for run in runs(folder) if run.run_id in asked)
        if closed or clock.monotonic() >= give_up:
            # A stopped injector keeps its lock for ever; what is open by now is closed without it, as verbs may be run
            # twice.
            done = await asyncio.to_thread(_recover, folder)
            break
        await clock.sleep(0.1)
    ended = asked.keys() - {item.run_id for item in done}
    return (*(Recovered(run_id, True, None) for run_id in sorted(ended)), *done)


def recover_at_start(folder: Path) -> list[str]:
    """
    Close what killed injectors left open, before the stack starts; return sentences about it. Raises nothing: a stack
    starts all the same, but no new fault is injected while something is left.
    """
    if not folder.is_dir():
        return []
    try:
        with chaos_lock(folder):
            done = _recover(folder)
    except (Cancelled, StateError) as error:
        return [str(error)]
    return [f"chaos run {i.run_id}: reverted and closed" if i.clean else describe_left(i) for i in done]


def _recover(folder: Path) -> Sequence[Recovered]:
    try:
        return recover(folder)
    except JournalUnwritable as error:
        raise StateError(str(error)) from error


def _status(run: Run) -> RunStatus:
    story = run.story
    if story is None:
        return RunStatus(
            run.run_id, RunState.UNREADABLE, "unknown", "unknown", None, None, None, (), None, run.problem or ""
        )
    plan = story.plan
    if plan is None:
        kind = RunState.UNFINISHED if run.open else RunState.NEVER_INJECTED
        return RunStatus(run.run_id, kind, "unknown", "unknown", None, None, None, (), None, "no plan in the journal")
    closed = story.last("closed")
    if not run.open:
        never = closed is not None and closed.get("outcome") == "never_injected"
        kind = RunState.NEVER_INJECTED if never else RunState.REVERTED
    elif story.dirty:
        kind = RunState.DIRTY
    elif plan.boot_id == boot_id() and state(plan.injector) is not None:
        kind = RunState.ACTIVE
    else:
        kind = RunState.UNFINISHED
    reverting = story.last("reverting")
    detail = "" if reverting is None else f"{reverting.get('cause')}, by {reverting.get('by')}"
    if kind is RunState.DIRTY:
        dirty = story.last("dirty")
        detail = "not proven reverted: " + ", ".join(map(str, (dirty or {}).get("steps", ())))
    elif kind is RunState.ACTIVE and state(plan.injector) == "T":
        detail = "its injector is stopped"
    raw = plan.raw
    return RunStatus(
        run_id=plan.run_id,
        state=kind,
        fault=str(raw.get("fault", "unknown")),
        engine=str(raw.get("engine", "unknown")),
        started_wall=raw.get("wall"),
        value=raw.get("value"),
        hold_seconds=raw.get("hold_seconds"),
        steps=tuple(step.name for step in plan.steps),
        injector_pid=plan.injector.pid,
        detail=detail,
    )
