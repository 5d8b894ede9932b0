"""
The closed set of revert verbs. A journal names them; it never carries code or a shell line.

Each verb may be run any number of times, by several processes, before or after the deed it undoes.
"""

from __future__ import annotations

import enum
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sre.watchdog.journal import Step
from sre.watchdog.processes import Handle, state


class Result(enum.Enum):
    """How the undoing of one step ended."""

    REVERTED = "reverted"
    TARGET_ABSENT = "target_absent"  # the process is gone, and the fault with it
    ALREADY = "already_reverted"  # expired or removed before us
    FOREIGN = "foreign"  # what is there now carries another tag: not ours, left alone
    NOT_INJECTED = "not_injected"  # the journal shows that the deed was never begun
    OTHER_BOOT = "gone_with_boot"  # processes do not survive a reboot
    ONE_WAY = "one_way"  # a deed that nothing undoes; its successor is checked elsewhere
    FAILED = "failed"


class Verb(Protocol):
    """One way to undo."""

    @property
    def survives_reboot(self) -> bool:
        """Whether the fault outlives a reboot, so that it must be undone even then."""
        ...

    def run(self, step: Step, handle: Handle | None) -> Result:
        """Undo. Raises OSError when that is impossible."""
        ...

    def verify(self, step: Step) -> bool:
        """Whether the fault is proven gone, by looking at the world and not at what ``run`` said. Raises OSError when
        that cannot be seen."""
        ...


@dataclass(frozen=True, slots=True)
class SignalCont:
    """SIGCONT to the step's target, through the pidfd that was opened before the fault."""

    survives_reboot: bool = False

    def run(self, step: Step, handle: Handle | None) -> Result:
        if handle is None or not handle.send(signal.SIGCONT):
            return Result.TARGET_ABSENT
        return Result.REVERTED

    def verify(self, step: Step) -> bool:
        return step.target is None or state(step.target) != "T"


@dataclass(frozen=True, slots=True)
class RemoveTaggedFile:
    """Remove ``path`` if its ``run_id`` is the step's tag, and ``temporary``, which is ours by its name."""

    survives_reboot: bool = True

    def run(self, step: Step, handle: Handle | None) -> Result:
        Path(step.revert_args["temporary"]).unlink(missing_ok=True)
        path = Path(step.revert_args["path"])
        tag = tag_of(path)
        if tag is None:
            return Result.ALREADY
        if tag != step.tag:
            return Result.FOREIGN
        path.unlink(missing_ok=True)
        return Result.REVERTED

    def verify(self, step: Step) -> bool:
        return tag_of(Path(step.revert_args["path"])) != step.tag


@dataclass(frozen=True, slots=True)
class BlankTaggedFile:
    """Empty ``path`` in place: the second way, for a folder in which nothing can be removed. Readers ignore it."""

    survives_reboot: bool = True

    def run(self, step: Step, handle: Handle | None) -> Result:
        path = Path(step.revert_args["path"])
        if tag_of(path) != step.tag:
            return Result.ALREADY
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC))
        return Result.REVERTED

    def verify(self, step: Step) -> bool:
        return tag_of(Path(step.revert_args["path"])) != step.tag


@dataclass(frozen=True, slots=True)
class Nothing:
    """For one-way deeds."""

    survives_reboot: bool = False

    def run(self, step: Step, handle: Handle | None) -> Result:
        return Result.ONE_WAY

    def verify(self, step: Step) -> bool:
        return True


REVERT_VERBS: Mapping[str, Verb] = {
    "signal_cont": SignalCont(),
    "remove_tagged_file": RemoveTaggedFile(),
    "blank_tagged_file": BlankTaggedFile(),
    "nothing": Nothing(),
}


def tag_of(path: Path) -> str | None:
    """
    The ``run_id`` in a fault file; None when there is no file, "" when what it holds has none.

    Raises:
        OSError: The file cannot be read: not seeing it is no proof that it is gone.
    """
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return ""
    tag = data.get("run_id") if isinstance(data, dict) else None
    return tag if isinstance(tag, str) else ""
