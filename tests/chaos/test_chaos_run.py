"""One run, from request to report, on stand-in targets."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sre.adapters.clock import SystemClock
from sre.chaos.admission import Cancelled
from sre.chaos.plan import Plan, PlannedStep
from sre.chaos.report import Ending, Report, Stamp, Verdict
from sre.control.chaos_run import Point, rehearse, run_fault
from sre.control.chaos_start import Places, Policy
from sre.control.chaos_status import RunState, active_faults, end_all, recover_at_start, survey
from sre.errors import ConfigError, ExitCode, LeftChanged, StateError
from sre.signals.types import ProcessIdentity
from sre.watchdog.journal import Journal
from sre.watchdog.recover import runs
from tests.chaos.records import planned, text
from tests.chaos.standin import StandInWorld, places, request, sleepers, stopped, target

pytestmark = pytest.mark.integration

QUICK = Policy(steady_timeout_seconds=1.0)


@pytest.fixture
def core() -> Iterator[ProcessIdentity]:
    with sleepers() as (process,):
        yield process


@pytest.fixture
def world(core: ProcessIdentity) -> StandInWorld:
    return StandInWorld((core,))


async def run(
    world: StandInWorld, where: Places, fault: str = "gpu-hang", hold_seconds: float = 0.2, **changes: object
) -> Report:
    return await run_fault(request(fault, hold_seconds, **changes), world, where, clock=SystemClock(), policy=QUICK)


@asynccontextmanager
async def in_force(
    world: StandInWorld, where: Places, abort: asyncio.Event | None = None
) -> AsyncIterator[asyncio.Task[Report]]:
    """A run whose fault is held; cancelled at the end if it still is."""
    effective = asyncio.Event()

    def on_point(point: Point) -> None:
        if point is Point.EFFECTIVE:
            effective.set()

    task = asyncio.create_task(
        run_fault(
            request("gpu-hang", 60.0), world, where, clock=SystemClock(), policy=QUICK, on_point=on_point, abort=abort
        )
    )
    waiter = asyncio.create_task(effective.wait())
    await asyncio.wait({task, waiter}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert effective.is_set()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, waiter, return_exceptions=True)


def only_journal(where: Places) -> Journal:
    (found,) = runs(where.folder)
    return found.journal


async def test_stamps_are_in_order_and_the_report_says_what_was_not_shown(world: StandInWorld, short_dir: Path) -> None:
    stamps: list[Stamp] = []
    report = await run_fault(
        request("gpu-hang", 0.2), world, places(short_dir), clock=SystemClock(), policy=QUICK, on_stamp=stamps.append
    )
    assert report.verdict is Verdict.PASS
    assert report.exit_code is ExitCode.OK
    assert [s.name for s in stamps] == ["t0_requested", "t1_effective", "t9_reverted"]
    assert stamps[0].monotonic <= stamps[1].monotonic <= stamps[2].monotonic - 0.2
    document = json.loads(json.dumps(report.document()))
    assert document["fidelity"]["does_not_reproduce"]
    assert [r["record"] for r in only_journal(places(short_dir)).read().records] == [
        "planned", "armed", "injecting", "injected", "effective", "reverting", "reverted", "closed",
    ]  # fmt: skip


async def test_fault_without_effect_is_invalid(world: StandInWorld, short_dir: Path) -> None:
    world.effective = False
    report = await run(world, places(short_dir))
    assert (report.verdict, report.exit_code) == (Verdict.INVALID, ExitCode.NO_ANSWER)
    assert not any(stopped(core) for core in world.cores)


async def test_engine_that_does_not_come_back_is_a_failure(world: StandInWorld, short_dir: Path) -> None:
    world.serves_again = False
    report = await run(world, places(short_dir))
    assert (report.verdict, report.exit_code) == (Verdict.FAIL, ExitCode.NO)


async def test_kill_waits_for_a_successor_and_undoes_nothing(world: StandInWorld, short_dir: Path) -> None:
    report = await run(world, places(short_dir), "engine-kill")
    assert (report.verdict, report.ending) == (Verdict.PASS, Ending.SUCCESSOR)
    assert not world.alive(world.cores[0])
    assert [step.result for step in report.steps] == ["one_way"]
    assert [stamp.name for stamp in report.stamps] == ["t0_requested", "t1_effective"]


async def test_kill_without_a_successor_is_a_failure(world: StandInWorld, short_dir: Path) -> None:
    world.serves_again = False
    report = await run(world, places(short_dir), "engine-kill")
    assert (report.verdict, report.ending) == (Verdict.FAIL, Ending.NO_SUCCESSOR)


async def test_fault_file_carries_expiry_boot_and_run_and_is_gone_afterwards(
    world: StandInWorld, short_dir: Path
) -> None:
    where = places(short_dir)
    seen = {}

    def look(point: Point) -> None:
        if point is Point.EFFECTIVE:
            seen.update(json.loads(where.gpu_overlay.read_text()))

    began = time.monotonic()
    report = await run_fault(
        request("gpu-temperature", 0.2, value=95.0), world, where, clock=SystemClock(), policy=QUICK, on_point=look
    )
    assert report.verdict is Verdict.PASS
    assert seen["gpus"] == {"0": {"temperature_celsius": 95.0}}
    assert seen["run_id"] == report.run_id
    assert began < seen["expires_monotonic"] < began + 30
    assert seen["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert list(where.gpu_overlay.parent.iterdir()) == []


async def test_overlay_that_was_removed_meanwhile_is_a_good_end(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)
    report = await run_fault(
        request("gpu-memory", 0.1), world, where, clock=SystemClock(), policy=QUICK,
        on_point=lambda point: where.gpu_overlay.unlink() if point is Point.EFFECTIVE else None,
    )  # fmt: skip
    assert report.verdict is Verdict.PASS
    assert [step.result for step in report.steps] == ["already_reverted"]


async def test_two_injections_at_once_are_one_too_many(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)
    async with in_force(world, where):
        with pytest.raises(Cancelled, match="one at a time"):
            await run(world, where)
        assert stopped(world.cores[0])


async def test_cancelled_coroutine_reverts_before_it_ends(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)
    async with in_force(world, where) as task:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not stopped(world.cores[0])
        assert only_journal(where).read().finished


async def test_abort_event_ends_the_fault(world: StandInWorld, short_dir: Path) -> None:
    abort = asyncio.Event()
    async with in_force(world, places(short_dir), abort) as task:
        abort.set()
        report = await task
    assert (report.verdict, report.exit_code) == (Verdict.ABORTED, ExitCode.ABORTED)
    assert not stopped(world.cores[0])


async def test_revert_from_outside_ends_the_fault(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)
    async with in_force(world, where) as task:
        (active,) = survey(where.folder)
        assert active.state is RunState.ACTIVE
        assert active_faults(where.folder) == {"gpu-hang": 1}
        done = await end_all(where.folder, SystemClock())
        assert [item.clean for item in done] == [True]
        report = await task
    assert report.verdict is Verdict.ABORTED
    assert not stopped(world.cores[0])
    assert active_faults(where.folder) == {}
    assert survey(where.folder)[0].state is RunState.REVERTED


async def test_safety_lever_ends_what_runs_and_refuses_what_starts(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)
    async with in_force(world, where) as task:
        (where.folder / "STOP").touch()
        assert (await task).verdict is Verdict.ABORTED
    with pytest.raises(Cancelled, match="safety lever"):
        await run(world, where)


async def test_a_rehearsal_refuses_what_a_run_would_and_changes_nothing(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)

    async def rehearsed(fault: str = "gpu-hang", **changes: object) -> Plan:
        return await rehearse(request(fault, **changes), world, where, QUICK, SystemClock())

    assert (await rehearsed()).fault == "gpu-hang"
    assert list(where.folder.iterdir()) == []
    with pytest.raises(Cancelled, match="reads no GPU 7"):
        await rehearsed("gpu-temperature", gpus=(7,))
    world.obstructed = "stopped already"
    for attempt in (rehearsed, lambda: run(world, where)):
        with pytest.raises(Cancelled, match="stopped already"):
            await attempt()
    world.obstructed = None
    async with in_force(world, where):
        with pytest.raises(Cancelled, match="in force, and one at a time"):
            await rehearsed()
    (where.folder / "STOP").touch()
    with pytest.raises(Cancelled, match="safety lever"):
        await rehearsed()


async def test_target_replaced_between_plan_and_deed_is_left_alone(world: StandInWorld, short_dir: Path) -> None:
    with sleepers() as (other,):
        world.targets = [target(world.cores), target((other,))]
        with pytest.raises(Cancelled, match="replaced"):
            await run(world, places(short_dir))
        assert world.injected == []
        assert not stopped(other)


async def test_deed_that_fails_halfway_is_undone(world: StandInWorld, short_dir: Path) -> None:
    with sleepers() as (other,):
        world.cores = (*world.cores, other)

        def break_second(step: PlannedStep) -> None:
            if world.injected:
                raise PermissionError(1, "Operation not permitted")

        world.on_inject = break_second
        with pytest.raises(Cancelled, match="not permitted"):
            await run(world, places(short_dir))
        assert not any(stopped(core) for core in world.cores)
        assert only_journal(places(short_dir)).read().finished


async def test_error_in_a_callback_does_not_leave_the_fault(world: StandInWorld, short_dir: Path) -> None:
    def explode(point: Point) -> None:
        if point is Point.EFFECTIVE:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await run_fault(
            request("gpu-hang"), world, places(short_dir), clock=SystemClock(), policy=QUICK, on_point=explode
        )
    assert not stopped(world.cores[0])
    assert only_journal(places(short_dir)).read().finished


async def test_journal_removed_meanwhile_does_not_keep_the_injector_from_reverting(
    world: StandInWorld, short_dir: Path
) -> None:
    where = places(short_dir)
    report = await run_fault(
        request("gpu-hang", 0.1), world, where, clock=SystemClock(), policy=QUICK,
        on_point=lambda point: shutil.rmtree(where.folder) if point is Point.EFFECTIVE else None,
    )  # fmt: skip
    assert report.verdict is Verdict.PASS
    assert not stopped(world.cores[0])


async def test_journal_that_cannot_be_written_any_more_ends_the_fault(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)

    def break_journal(point: Point) -> None:
        if point is Point.RECORDED:
            path = only_journal(where).path
            path.rename(path.with_name("aside"))
            path.mkdir()

    with pytest.raises(StateError, match="reverted"):
        await run_fault(request("gpu-hang"), world, where, clock=SystemClock(), policy=QUICK, on_point=break_journal)
    assert not stopped(world.cores[0])


async def test_unfinished_journal_is_recovered_before_the_next_run(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)
    leave_behind(where, text(planned(short_dir), {"record": "injecting", "step": 0}))
    report = await run(world, where)
    assert report.verdict is Verdict.PASS
    assert all(not found.open for found in runs(where.folder))


def test_start_of_the_stack_closes_what_was_left_and_says_what_it_cannot(short_dir: Path) -> None:
    where = places(short_dir)
    assert recover_at_start(short_dir / "nothing-there") == []
    leave_behind(where, text(planned(short_dir, run_id="left-behind"), {"record": "injecting", "step": 0}))
    assert recover_at_start(where.folder) == ["chaos run left-behind: reverted and closed"]
    (where.folder / "left-behind" / "journal.jsonl").write_bytes(b"garbage\nmore\n")
    (said,) = recover_at_start(where.folder)
    assert "--discard left-behind" in said


async def test_start_of_the_stack_leaves_a_running_fault_alone(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)
    async with in_force(world, where):
        (said,) = recover_at_start(where.folder)
        assert "another fault is in force" in said
        assert stopped(world.cores[0])


async def test_unreadable_journal_refuses_new_runs(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)
    leave_behind(where, b"garbage\nmore\n")
    with pytest.raises(LeftChanged, match="left-behind") as caught:
        await run(world, where)
    assert caught.value.exit_code is ExitCode.LEFT_CHANGED
    assert world.injected == []


async def test_revert_that_cannot_be_proven_is_dirty_and_names_the_step(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)

    def make_unremovable(point: Point) -> None:
        if point is Point.EFFECTIVE:  # a folder in the file's place: it can be neither read, removed nor emptied
            where.gpu_overlay.unlink()
            where.gpu_overlay.mkdir()

    report = await run_fault(
        request("gpu-temperature", 0.1), world, where, clock=SystemClock(), policy=QUICK, on_point=make_unremovable
    )
    assert (report.verdict, report.exit_code) == (Verdict.DIRTY, ExitCode.LEFT_CHANGED)
    assert "GPU overlay of GPU 0" in (report.problem or "")
    assert survey(where.folder)[0].state is RunState.DIRTY
    with pytest.raises(LeftChanged):
        await run(world, where)
    where.gpu_overlay.rmdir()
    assert (await run(world, where)).verdict is Verdict.PASS


def test_full_disk_injects_nothing(core: ProcessIdentity, short_dir: Path) -> None:
    where = places(short_dir)
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.injector", "full-disk", str(short_dir), "1", str(core.pid)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == ExitCode.COULD_NOT_RUN
    assert "without a journal nothing is injected" in done.stdout
    assert "injecting" not in done.stdout.split()
    assert not stopped(core)
    assert runs(where.folder) == ()


async def test_folder_of_another_mode_injects_nothing(world: StandInWorld, short_dir: Path) -> None:
    where = places(short_dir)
    where.folder.chmod(0o777)
    with pytest.raises(StateError, match="chmod go-w"):
        await run(world, where)
    assert world.injected == []


async def test_value_out_of_range_is_a_usage_error(world: StandInWorld, short_dir: Path) -> None:
    for fault, value in (("gpu-temperature", 1000.0), ("gpu-hang", 1.0), ("batch-failure", 1.5)):
        with pytest.raises(ConfigError, match="--value"):
            await run(world, places(short_dir), fault, value=value)


def leave_behind(where: Places, data: bytes) -> None:
    folder = where.folder / "left-behind"
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(data)
