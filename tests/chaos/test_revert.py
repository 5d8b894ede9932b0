"""Undoing: all steps, last first, whatever fails; nothing of a stranger's is touched."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sre.watchdog.journal import FILE_NAME, Journal, JournalUnreadable, Step
from sre.watchdog.processes import Handle, Identity
from sre.watchdog.recover import discard, recover, runs
from sre.watchdog.revert import revert
from sre.watchdog.verbs import REVERT_VERBS, Result, Verb
from tests.chaos.records import overlay_step, place, planned, signal_step, text
from tests.chaos.standin import sleepers, stopped


def journal_of(folder: Path, *records: Mapping[str, Any], run_id: str = "run-1") -> Journal:
    folder.joinpath(run_id).mkdir(mode=0o700)
    journal = Journal(folder / run_id / FILE_NAME)
    journal.path.write_bytes(text(*records))
    return journal


def begun(*steps: int) -> list[dict[str, Any]]:
    return [{"record": "injecting", "step": step} for step in steps]


@dataclass
class Recorder:
    """A verb that notes its calls, and fails where told."""

    failing: frozenset[int] = frozenset()
    hanging: frozenset[int] = frozenset()
    calls: list[int] = field(default_factory=list)
    lifted: set[int] = field(default_factory=set)
    survives_reboot: bool = True

    def run(self, step: Step, handle: Handle | None) -> Result:
        self.calls.append(step.index)
        if step.index in self.failing:
            raise OSError(5, "broken disk")
        if step.index in self.hanging:
            threading.Event().wait(30)
        self.lifted.add(step.index)
        return Result.REVERTED

    def verify(self, step: Step) -> bool:
        return step.index in self.lifted


def verbs(first: Verb, fallback: Verb | None = None) -> Mapping[str, Verb]:
    return {**REVERT_VERBS, "remove_tagged_file": first, "blank_tagged_file": fallback or first}


def test_steps_are_undone_last_first(short_dir: Path) -> None:
    recorder = Recorder()
    journal = journal_of(short_dir, planned(short_dir, 3), *begun(0, 1, 2))
    outcome = revert(journal, by="test", cause="test", verbs=verbs(recorder))
    assert outcome.clean
    assert recorder.calls == [2, 1, 0]


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_one_failing_revert_does_not_keep_the_others_from_being_tried(short_dir: Path, broken: int) -> None:
    recorder = Recorder(failing=frozenset((broken,)))
    journal = journal_of(short_dir, planned(short_dir, 3), *begun(0, 1, 2))
    outcome = revert(journal, by="test", cause="test", verbs=verbs(recorder))
    assert not outcome.clean
    assert recorder.lifted == {0, 1, 2} - {broken}
    assert outcome.unproven == (f"file {broken}",)
    dirty = journal.read().last("dirty")
    assert dirty is not None
    assert dirty["steps"] == [f"file {broken}"]
    assert not journal.read().finished


def test_hanging_revert_ends_at_its_deadline_and_the_others_go_on(short_dir: Path) -> None:
    steps = [{**overlay_step(short_dir, i), "deadline_seconds": 0.05} for i in range(2)]
    recorder = Recorder(hanging=frozenset((1,)))
    journal = journal_of(short_dir, planned(short_dir, steps), *begun(0, 1))
    outcome = revert(journal, by="test", cause="test", verbs=verbs(recorder))
    assert outcome.unproven == ("file 1",)
    assert recorder.lifted == {0}


def test_second_way_is_taken_when_the_first_fails(short_dir: Path) -> None:
    first, second = Recorder(failing=frozenset((0,))), Recorder()
    journal = journal_of(short_dir, planned(short_dir), *begun(0))
    outcome = revert(journal, by="test", cause="test", verbs=verbs(first, second))
    assert outcome.clean
    assert second.calls == [0]
    assert "broken disk" in outcome.outcomes[0].detail


def test_revert_that_says_done_and_is_not_is_dirty(short_dir: Path) -> None:
    class Liar(Recorder):
        def verify(self, step: Step) -> bool:
            return False

    steps = [{**overlay_step(short_dir), "deadline_seconds": 0.05}]
    journal = journal_of(short_dir, planned(short_dir, steps), *begun(0))
    outcome = revert(journal, by="test", cause="test", verbs=verbs(Liar()))
    assert not outcome.clean
    assert "still seen" in outcome.outcomes[0].detail


def test_step_that_was_not_begun_is_not_undone(short_dir: Path) -> None:
    step = overlay_step(short_dir)
    journal = journal_of(short_dir, planned(short_dir, [step]))
    outcome = revert(journal, by="test", cause="test")
    assert [o.result for o in outcome.outcomes] == [Result.NOT_INJECTED]
    closed = journal.read().last("closed")
    assert closed is not None
    assert closed["outcome"] == "never_injected"


def test_our_file_is_removed_and_its_half_written_twin(short_dir: Path) -> None:
    step = overlay_step(short_dir)
    place(step)
    Path(step["revert_args"]["temporary"]).write_text("{")
    journal = journal_of(short_dir, planned(short_dir, [step]), *begun(0))
    outcome = revert(journal, by="test", cause="test")
    assert [o.result for o in outcome.outcomes] == [Result.REVERTED]
    assert sorted(p.name for p in short_dir.iterdir()) == ["run-1"]


@pytest.mark.parametrize("content", ['{"run_id": "another"}', "half a {", "[]", ""])
def test_file_that_does_not_carry_our_tag_is_left_alone(short_dir: Path, content: str) -> None:
    step = overlay_step(short_dir)
    path = Path(step["args"]["path"])
    path.write_text(content)
    journal = journal_of(short_dir, planned(short_dir, [step]), *begun(0))
    outcome = revert(journal, by="test", cause="test")
    assert outcome.clean
    assert [o.result for o in outcome.outcomes] == [Result.FOREIGN]
    assert path.read_text() == content


def test_file_that_is_gone_already_is_a_good_end(short_dir: Path) -> None:
    journal = journal_of(short_dir, planned(short_dir), *begun(0))
    outcome = revert(journal, by="test", cause="test")
    assert [o.result for o in outcome.outcomes] == [Result.ALREADY]


def test_file_that_cannot_be_read_is_not_taken_for_gone(short_dir: Path) -> None:
    step = {**overlay_step(short_dir), "deadline_seconds": 0.05}
    Path(step["args"]["path"]).mkdir()  # reading a folder fails, whoever asks
    journal = journal_of(short_dir, planned(short_dir, [step]), *begun(0))
    assert not revert(journal, by="test", cause="test").clean


def test_second_revert_finds_the_journal_closed(short_dir: Path) -> None:
    step = overlay_step(short_dir)
    place(step)
    journal = journal_of(short_dir, planned(short_dir, [step]), *begun(0))
    revert(journal, by="first", cause="test")
    size = journal.path.stat().st_size
    assert revert(journal, by="second", cause="test").cause == "already_closed"
    assert journal.path.stat().st_size == size


def test_fault_placed_after_the_closing_is_lifted_all_the_same(short_dir: Path) -> None:
    step = overlay_step(short_dir)
    journal = journal_of(short_dir, planned(short_dir, [step]), *begun(0), {"record": "closed"})
    place(step)
    assert revert(journal, by="test", cause="test").clean
    assert not Path(step["args"]["path"]).exists()


def test_unknown_verb_is_refused_as_unreadable(short_dir: Path) -> None:
    step = {**overlay_step(short_dir), "revert_verb": "run_shell"}
    journal = journal_of(short_dir, planned(short_dir, [step]), *begun(0))
    with pytest.raises(JournalUnreadable, match="run_shell"):
        revert(journal, by="test", cause="test")


def test_process_of_another_boot_is_gone_but_a_file_is_not(short_dir: Path) -> None:
    step = overlay_step(short_dir)
    place(step)
    steps = [step, signal_step(1, 1)]
    journal = journal_of(short_dir, planned(short_dir, steps, boot_id="another"), *begun(0, 1))
    outcome = revert(journal, by="test", cause="test")
    assert [o.result for o in outcome.outcomes] == [Result.OTHER_BOOT, Result.REVERTED]
    assert not Path(step["args"]["path"]).exists()


def test_process_that_took_over_the_pid_is_never_signalled(short_dir: Path) -> None:
    with sleepers() as (stranger,):
        earlier = signal_step(stranger.pid, stranger.start_ticks - 1)
        assert Handle.open(Identity(stranger.pid, stranger.start_ticks - 1)) is None
        handle = Handle.open(Identity(stranger.pid, stranger.start_ticks))
        assert handle is not None
        handle.send(signal.SIGSTOP)
        while not stopped(stranger):
            pass
        journal = journal_of(short_dir, planned(short_dir, [earlier]), *begun(0))
        outcome = revert(journal, by="test", cause="test")
        assert [o.result for o in outcome.outcomes] == [Result.TARGET_ABSENT]
        assert stopped(stranger), "a SIGCONT reached a process that is not ours"
        handle.close()


def test_dead_target_is_a_good_end(short_dir: Path) -> None:
    with sleepers() as (core,):
        step = signal_step(core.pid, core.start_ticks)
    journal = journal_of(short_dir, planned(short_dir, [step]), *begun(0))
    outcome = revert(journal, by="test", cause="test")
    assert outcome.clean
    assert [o.result for o in outcome.outcomes] == [Result.TARGET_ABSENT]


def test_revert_goes_on_when_the_journal_cannot_be_written(short_dir: Path) -> None:
    step = overlay_step(short_dir)
    place(step)
    journal = journal_of(short_dir, planned(short_dir, [step]), *begun(0))

    class FullDisk(Journal):
        def append(self, record: str, **fields: Any) -> None:
            Journal(Path("/dev/full")).append(record, **fields)

    outcome = revert(FullDisk(journal.path), by="test", cause="test")
    assert outcome.clean
    assert not outcome.recorded
    assert not Path(step["args"]["path"]).exists()
    assert all(item.clean for item in recover(short_dir))


def test_unreadable_journal_stays_open_until_a_person_discards_it(short_dir: Path) -> None:
    journal = journal_of(short_dir, planned(short_dir))
    journal.path.write_bytes(b"garbage\nmore\n")
    for _ in range(2):
        (item,) = recover(short_dir)
        assert not item.clean
        assert item.problem is not None
    discard(short_dir, "run-1")
    assert recover(short_dir) == ()
    assert runs(short_dir) == ()
    assert (short_dir / "run-1.discarded" / FILE_NAME).exists()


def test_folder_without_a_journal_is_swept(short_dir: Path) -> None:
    (short_dir / "run-1").mkdir()
    assert recover(short_dir) == ()
    assert not (short_dir / "run-1").exists()


@settings(max_examples=150, deadline=None)
@given(
    cut=st.integers(0, 10_000),
    in_force=st.tuples(st.booleans(), st.booleans()),
    strange=st.tuples(st.booleans(), st.booleans()),
)
def test_after_any_prefix_of_a_run_recover_converges(
    cut: int, in_force: tuple[bool, bool], strange: tuple[bool, bool]
) -> None:
    """Whatever the writer got done, in the journal (cut at any byte) and in the world: recover closes it, once."""
    with tempfile.TemporaryDirectory(prefix="sre-") as name:
        _check_prefix(Path(name), cut / 10_000, in_force, strange)


def _check_prefix(folder: Path, share: float, in_force: tuple[bool, bool], strange: tuple[bool, bool]) -> None:
    steps = [overlay_step(folder, index) for index in range(2)]
    records = [
        planned(folder, steps),
        {"record": "armed", "watchdog": {"pid": 1, "start_ticks": 1}},
        {"record": "injecting", "step": 0},
        {"record": "injected", "step": 0},
        {"record": "injecting", "step": 1},
        {"record": "injected", "step": 1},
        {"record": "effective"},
        {"record": "reverting", "by": "injector", "cause": "hold_over"},
        {"record": "reverted", "step": 1},
        {"record": "dirty", "steps": ["file 0"]},
        {"record": "reverting", "by": "watchdog", "cause": "injector_gone"},
        {"record": "closed", "outcome": "reverted"},
    ]
    whole = text(*records)
    cut = round(len(whole) * share)
    complete = whole[:cut].count(b"\n")
    for index, step in enumerate(steps):
        announced = complete > 2 + 2 * index  # no deed without its record on disk
        if announced and complete < len(records) and in_force[index]:
            place(step)
        elif strange[index]:
            Path(step["args"]["path"]).write_text(json.dumps({"run_id": "stranger"}))
    strangers = {p for p in folder.glob("fault-*.json") if "stranger" in p.read_text()}
    folder.joinpath("run-1").mkdir()
    journal = Journal(folder / "run-1" / FILE_NAME)
    journal.path.write_bytes(whole[:cut])

    assert all(item.clean for item in recover(folder))
    assert set(folder.glob("fault-*.json")) == strangers
    assert journal.read().finished
    assert recover(folder) == ()
