"""Close what earlier runs left open. Runs at start of the stack, before each run, and by ``sre chaos recover``."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from sre.watchdog.journal import FILE_NAME, Journal, JournalUnreadable, JournalUnwritable, Story, check_folder
from sre.watchdog.revert import Outcome, revert

KEEP_CLOSED_RUNS = 100
DISCARDED_SUFFIX = ".discarded"


@dataclass(frozen=True, slots=True)
class Run:
    """One run's folder. ``problem``: its journal cannot be read, and why."""

    run_id: str
    journal: Journal
    story: Story | None
    problem: str | None = None

    @property
    def open(self) -> bool:
        """Whether something may be left to revert."""
        return self.story is None or not self.story.finished


@dataclass(frozen=True, slots=True)
class Recovered:
    """What ``recover`` did about one open run."""

    run_id: str
    clean: bool
    outcome: Outcome | None
    problem: str | None = None


def runs(chaos_folder: Path) -> tuple[Run, ...]:
    """Every run, oldest first by name. No folder: none. Raises JournalUnwritable when the folder is not ours."""
    try:
        check_folder(chaos_folder)
        folders = sorted(p for p in chaos_folder.iterdir() if p.is_dir() and p.suffix != DISCARDED_SUFFIX)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise JournalUnwritable(f"{chaos_folder}: {error.strerror or error}") from error
    found = []
    for folder in folders:
        journal = Journal(folder / FILE_NAME)
        if not journal.path.exists():
            # Its writer died between the folder and the file: nothing was injected.
            with contextlib.suppress(OSError):
                folder.rmdir()
                continue
        try:
            found.append(Run(folder.name, journal, journal.read()))
        except JournalUnreadable as error:
            found.append(Run(folder.name, journal, None, str(error)))
    return tuple(found)


def recover(chaos_folder: Path) -> tuple[Recovered, ...]:
    """
    Revert and close every open run; return what was done, one entry per run that was open.

    The caller makes sure that no injector is at work (it holds the chaos lock). Idempotent.

    Raises:
        JournalUnwritable: The chaos folder is not ours or cannot be read.
    """
    done = []
    closed = []
    for run in runs(chaos_folder):
        if not run.open:
            closed.append(run)
            continue
        if run.problem is not None:
            done.append(Recovered(run.run_id, False, None, run.problem))
            continue
        try:
            outcome = revert(run.journal, by="recover", cause="unfinished_journal")
        except JournalUnreadable as error:
            done.append(Recovered(run.run_id, False, None, str(error)))
            continue
        problem = None if outcome.recorded else f"{run.journal.path}: reverted, but the journal cannot be written"
        done.append(Recovered(run.run_id, outcome.clean and outcome.recorded, outcome, problem))
    for run in closed[:-KEEP_CLOSED_RUNS]:
        shutil.rmtree(run.journal.path.parent, ignore_errors=True)
    return tuple(done)


def holds_run(chaos_folder: Path, run_id: str) -> bool:
    """Whether there is a run of this id that can be set aside."""
    return (chaos_folder / run_id / FILE_NAME).exists()


def discard(chaos_folder: Path, run_id: str) -> Path:
    """Set a run's folder aside after a person looked at it; return where it is now. Raises FileNotFoundError."""
    folder = chaos_folder / run_id
    if not holds_run(chaos_folder, run_id):
        raise FileNotFoundError(folder)
    return folder.rename(folder.with_name(run_id + DISCARDED_SUFFIX))
