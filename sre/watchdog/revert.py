"""Undo what a journal says was begun. The injector, the watchdog and ``recover`` all come through here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sre.watchdog.journal import Journal, JournalUnreadable, JournalUnwritable, Plan, Step, Story
from sre.watchdog.processes import Handle, boot_id
from sre.watchdog.verbs import REVERT_VERBS, Result, Verb

LOCK_TIMEOUT_SECONDS = 0.5
"""A stopped injector may hold the journal's lock; after this long we go on without it."""
POLL_SECONDS = 0.02

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of one step. ``proven``: the world was looked at, and the fault is not there."""

    step: Step
    result: Result
    detail: str
    proven: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run. ``outcomes`` are in the order of undoing: last deed first."""

    clean: bool
    outcomes: tuple[StepOutcome, ...]
    by: str
    cause: str
    recorded: bool = True
    """False: all is reverted, but the journal could not be written; the next ``recover`` closes it."""

    @property
    def unproven(self) -> tuple[str, ...]:
        """Names of the steps that may still be in effect."""
        return tuple(o.step.name for o in self.outcomes if not o.proven)


def open_handles(plan: Plan) -> dict[int, Handle]:
    """A pidfd per step with a process target that still is the one planned. The caller closes them."""
    handles: dict[int, Handle] = {}
    for step in plan.steps:
        handle = Handle.open(step.target) if step.target is not None else None
        if handle is not None:
            handles[step.index] = handle
    return handles


def revert(
    journal: Journal,
    *,
    by: str,
    cause: str,
    plan: Plan | None = None,
    handles: Mapping[int, Handle] | None = None,
    verbs: Mapping[str, Verb] = REVERT_VERBS,
) -> Outcome:
    """
    Undo every step that may have been done, last first, each within its deadline, all of them whatever fails.

    Safe to call any number of times and from several processes: who comes second finds the journal closed and only
    looks whether that is true.

    Args:
        journal: Of the run.
        by: Who reverts: injector, watchdog, recover.
        cause: Named reason.
        plan: The run as the caller knows it: all of it is undone when the journal was removed or damaged meanwhile.
        handles: pidfds opened before the fault; without them they are opened now, by pid and start time.

    Raises:
        JournalUnreadable: Nobody knows what to undo.
    """
    with journal.locked(LOCK_TIMEOUT_SECONDS):
        try:
            story = journal.read()
        except JournalUnreadable:
            if plan is None:
                raise
            story = Story(plan, begun=frozenset(range(len(plan.steps))))
        if story.plan is None:
            return Outcome(True, (), by, cause, _append(journal, "closed", outcome="never_injected", by=by))
        check_verbs(story.plan, verbs)
        if story.finished:
            seen = tuple(_look(step, story, verbs) for step in reversed(story.plan.steps))
            if all(o.proven for o in seen):
                return Outcome(True, seen, by, "already_closed")
        recorded = _append(journal, "reverting", by=by, cause=cause)
        opened = open_handles(story.plan) if handles is None else {}
        try:
            outcomes = []
            for step in reversed(story.plan.steps):
                outcome = _undo(step, story, (handles or opened).get(step.index), verbs)
                outcomes.append(outcome)
                recorded &= _append(
                    journal, "reverted", step=step.index, name=step.name, result=outcome.result.value,
                    detail=outcome.detail, proven=outcome.proven,
                )  # fmt: skip
        finally:
            for handle in opened.values():
                handle.close()
        unproven = [o.step.name for o in outcomes if not o.proven]
        if unproven:
            recorded &= _append(journal, "dirty", steps=unproven, by=by)
        else:
            never = all(o.result is Result.NOT_INJECTED for o in outcomes)
            recorded &= _append(journal, "closed", outcome="never_injected" if never else "reverted", by=by)
        return Outcome(not unproven, tuple(outcomes), by, cause, recorded)


def check_verbs(plan: Plan, verbs: Mapping[str, Verb] = REVERT_VERBS) -> None:
    """Raise JournalUnreadable when a step names a verb that this version does not have."""
    for step in plan.steps:
        for name in (step.revert_verb, step.fallback_verb):
            if name is not None and name not in verbs:
                raise JournalUnreadable(f"step {step.name!r}: no revert verb {name!r} in this version")


def standing(plan: Plan, verbs: Mapping[str, Verb] = REVERT_VERBS) -> tuple[str, ...]:
    """Names of the steps whose fault is in effect, or cannot be seen, now."""
    return tuple(s.name for s in plan.steps if not _proven(verbs[s.revert_verb], s))


def _look(step: Step, story: Story, verbs: Mapping[str, Verb]) -> StepOutcome:
    result = Result.ALREADY if step.index in story.begun else Result.NOT_INJECTED
    return StepOutcome(step, result, "", _proven(verbs[step.revert_verb], step))


def _undo(step: Step, story: Story, handle: Handle | None, verbs: Mapping[str, Verb]) -> StepOutcome:
    if step.index not in story.begun and _proven(verbs[step.revert_verb], step):
        return StepOutcome(step, Result.NOT_INJECTED, "", True)
    assert story.plan is not None, "steps come from a plan"
    give_up = time.monotonic() + step.deadline_seconds
    said: list[str] = []
    for name in filter(None, (step.revert_verb, step.fallback_verb)):
        verb = verbs[name]
        if not verb.survives_reboot and story.plan.boot_id != boot_id():
            return StepOutcome(step, Result.OTHER_BOOT, "", True)
        try:
            result = _bounded(partial(verb.run, step, handle), give_up - time.monotonic())
        except (OSError, TimeoutError, KeyError, ValueError) as error:
            said.append(f"{name}: {error or type(error).__name__}")
            give_up = time.monotonic() + step.deadline_seconds  # the second way gets its own time
            continue
        while not _proven(verb, step):
            if time.monotonic() >= give_up:
                said.append(f"{name}: done, but the fault is still seen after {step.deadline_seconds:g} s")
                give_up = time.monotonic() + step.deadline_seconds
                break
            time.sleep(POLL_SECONDS)
        else:
            return StepOutcome(step, result, "; ".join(said), True)
    return StepOutcome(step, Result.FAILED, "; ".join(said), False)


def _proven(verb: Verb, step: Step) -> bool:
    try:
        return _bounded(partial(verb.verify, step), step.deadline_seconds)
    except (OSError, TimeoutError, KeyError, ValueError):
        return False


def _bounded(call: Callable[[], T], seconds: float) -> T:
    """Run ``call`` for ``seconds`` at most: a dead disk must not keep the other steps from being undone."""
    box: list[T] = []
    failed: list[Exception] = []

    def target() -> None:
        try:
            box.append(call())
        except Exception as error:  # noqa: BLE001 - carried over to the calling thread, which raises it
            failed.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(max(seconds, 0.0))
    if failed:
        raise failed[0]
    if not box:
        raise TimeoutError(f"no end after {seconds:.1f} s")
    return box[0]


def _append(journal: Journal, record: str, **fields: object) -> bool:
    # Undoing goes first: a full disk must not stop it.
    try:
        journal.append(record, **fields)
    except JournalUnwritable:
        return False
    return True
