"""How a run ended: verdict, stamps, and a report that says both what was and what was not shown."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sre.chaos.catalogue import Fidelity
from sre.chaos.ports import Evidence
from sre.errors import ExitCode


class Verdict(enum.Enum):
    """Worst first: the worst that applies is the verdict."""

    DIRTY = "DIRTY"  # not proven reverted
    FAIL = "FAIL"  # reverted, but what should have come back did not
    INVALID = "INVALID"  # the fault took no effect that could be seen
    ABORTED = "ABORTED"  # stopped while it ran, and reverted
    PASS = "PASS"  # took effect, was held, is reverted

    @property
    def exit_code(self) -> ExitCode:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Verdict.DIRTY: ExitCode.LEFT_CHANGED,
    Verdict.FAIL: ExitCode.NO,
    Verdict.INVALID: ExitCode.NO_ANSWER,
    Verdict.ABORTED: ExitCode.ABORTED,
    Verdict.PASS: ExitCode.OK,
}


class Ending(enum.Enum):
    """Why the fault ended: the ``cause`` in the journal."""

    HELD = "hold_over"
    TARGET_ABSENT = "target_absent"  # someone replaced the process: the fault is gone with it
    SUCCESSOR = "successor_serves"
    NO_SUCCESSOR = "no_successor"
    EFFECT_NOT_SEEN = "effect_not_seen"
    TARGET_CHANGED = "target_changed"  # between plan and deed: cancelled, no verdict
    INJECT_FAILED = "inject_failed"  # cancelled, no verdict
    ABORT = "abort_requested"
    STOP_FILE = "stop_file"
    WATCHDOG_GONE = "watchdog_gone"
    WATCHDOG_SILENT = "watchdog_silent"
    WATCHDOG_REVERTED = "watchdog_reverted"
    WATCHDOG_DIRTY = "watchdog_dirty"


ABORTS = frozenset(
    (
        Ending.ABORT,
        Ending.STOP_FILE,
        Ending.WATCHDOG_GONE,
        Ending.WATCHDOG_SILENT,
        Ending.WATCHDOG_REVERTED,
        Ending.WATCHDOG_DIRTY,
    )
)

STAMP_REQUESTED = "t0_requested"
STAMP_EFFECTIVE = "t1_effective"
STAMP_REVERTED = "t9_reverted"


@dataclass(frozen=True, slots=True)
class Stamp:
    """One moment of the run. Later parts of a drill add t2 … t8 on the same clock."""

    name: str
    monotonic: float
    wall: float
    source: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class UndoneStep:
    """What became of one step."""

    name: str
    result: str
    detail: str
    proven: bool


@dataclass(frozen=True, slots=True)
class Report:
    """A run that began. ``problem``: one sentence when the verdict is not PASS."""

    run_id: str
    fault: str
    engine: str
    verdict: Verdict
    ending: Ending
    problem: str | None
    stamps: tuple[Stamp, ...]
    effect: Evidence | None
    after: Evidence | None
    """Successor or steady state; None: not looked at."""
    steps: tuple[UndoneStep, ...]
    journal: str
    fidelity: Fidelity

    @property
    def exit_code(self) -> ExitCode:
        return self.verdict.exit_code

    def document(self) -> dict[str, Any]:
        """For ``--output json``."""

        def evidence(found: Evidence | None) -> Mapping[str, Any] | None:
            if found is None:
                return None
            return {"seen": found.seen, "monotonic": found.at, "source": found.source, "detail": found.detail}

        return {
            "schema": 1,
            "run_id": self.run_id,
            "fault": self.fault,
            "engine": self.engine,
            "verdict": self.verdict.value,
            "ending": self.ending.value,
            "problem": self.problem,
            "stamps": [
                {
                    "name": s.name,
                    "monotonic": s.monotonic,
                    "wall": s.wall,
                    "source": s.source,
                    "detail": s.detail,
                }
                for s in self.stamps
            ],
            "effect": evidence(self.effect),
            "after": evidence(self.after),
            "steps": [{"name": s.name, "result": s.result, "detail": s.detail, "proven": s.proven} for s in self.steps],
            "journal": self.journal,
            "fidelity": self.fidelity.model_dump(mode="json"),
        }


def judge(
    *, ending: Ending, clean: bool, effect: Evidence | None, after: Evidence | None, verify_effect: bool
) -> Verdict:
    """
    Return the verdict; the worst that applies.

    Args:
        clean: The revert was seen, not only asked for.
        effect: None when the run ended before it was looked for.
        after: Successor or steady state; None when not looked at.
    """
    if not clean:
        return Verdict.DIRTY
    if ending is Ending.NO_SUCCESSOR or (after is not None and not after.seen):
        return Verdict.FAIL
    if ending is Ending.EFFECT_NOT_SEEN:
        return Verdict.INVALID
    if ending in ABORTS:
        return Verdict.ABORTED
    if effect is None or (verify_effect and not effect.seen):
        return Verdict.INVALID
    return Verdict.PASS
