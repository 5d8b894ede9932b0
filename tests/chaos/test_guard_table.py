"""The injector dies, hangs or runs away, or its watchdog does: the fault is lifted, and the journal closed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sre.adapters.processes.proc import process_table
from sre.signals.types import ProcessIdentity
from sre.watchdog.journal import Journal, Story
from sre.watchdog.recover import recover, runs
from tests.chaos.injector import RUNAWAY_TTL_SECONDS
from tests.chaos.standin import end, sleepers, stopped
from tests.conftest import WaitUntil

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
LEASE_SECONDS = 1.0
REVERT_WITHIN_SECONDS = LEASE_SECONDS + 1.0


class Injector:
    """One injector process, in a group of its own, with its targets."""

    def __init__(self, mode: str, root: Path, cores: Sequence[ProcessIdentity], hold_seconds: float) -> None:
        (root / "chaos").mkdir(mode=0o700, exist_ok=True)
        self.root, self.cores = root, cores
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.injector", mode, str(root), str(hold_seconds)]
            + [str(core.pid) for core in cores],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def reach(self, point: str) -> None:
        """Return when the injector has reached ``point``."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line.strip())
            if line.strip() == point:
                return
        pytest.fail(f"the injector ended before {point}: {seen}")

    def rest(self) -> list[str]:
        """What it still says until it ends."""
        assert self.process.stdout is not None
        lines = [line.strip() for line in self.process.stdout]
        self.process.wait(60)
        return lines

    @property
    def story(self) -> Story:
        (run,) = runs(self.root / "chaos")
        return Journal(run.journal.path).read()

    def watchdog_pid(self) -> int:
        armed = self.story.last("armed")
        assert armed is not None
        return int(armed["watchdog"]["pid"])


Start = Callable[..., Injector]


@pytest.fixture
def cores() -> Iterator[tuple[ProcessIdentity, ...]]:
    with sleepers(2) as processes:
        yield processes


@pytest.fixture
def start(short_dir: Path, cores: tuple[ProcessIdentity, ...]) -> Iterator[Start]:
    started: list[Injector] = []

    def begin(mode: str = "run", hold_seconds: float = 60.0) -> Injector:
        started.append(Injector(mode, short_dir, cores, hold_seconds))
        return started[-1]

    yield begin
    for injector in started:
        children = [s.pid for s in process_table().values() if s.parent == injector.process.pid]
        for pid in (injector.process.pid, *children):
            end(pid)
        injector.process.wait()
        assert injector.process.stdout is not None
        injector.process.stdout.close()


@pytest.fixture
def effective(start: Start, cores: tuple[ProcessIdentity, ...]) -> Injector:
    """An injector whose fault is in force: all targets are stopped."""
    injector = start()
    injector.reach("effective")
    assert all(stopped(core) for core in cores)
    return injector


def lifted_within(injector: Injector, seconds: float, wait_until: WaitUntil) -> None:
    began = time.monotonic()
    wait_until(lambda: not any(stopped(c) for c in injector.cores), seconds, what="targets run again", interval=0.01)
    print(f"reverted after {time.monotonic() - began:.2f} s")
    wait_until(lambda: injector.story.finished, 5.0, what="journal closed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_injector_told_to_end_reverts_first_and_says_aborted(
    effective: Injector, number: signal.Signals, wait_until: WaitUntil
) -> None:
    effective.process.send_signal(number)
    lifted_within(effective, REVERT_WITHIN_SECONDS, wait_until)
    assert effective.rest()[-1] == "ABORTED abort_requested"
    assert effective.process.returncode == 6
    reverting = effective.story.last("reverting")
    assert reverting is not None
    assert reverting["by"] == "injector"


def test_killed_injector_is_replaced_by_its_watchdog(effective: Injector, wait_until: WaitUntil) -> None:
    effective.process.kill()
    lifted_within(effective, REVERT_WITHIN_SECONDS, wait_until)
    reverting = effective.story.last("reverting")
    assert reverting is not None
    assert (reverting["by"], reverting["cause"]) == ("watchdog", "injector_gone")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_signal_to_the_injectors_group_does_not_reach_the_watchdog(
    effective: Injector, number: signal.Signals, wait_until: WaitUntil
) -> None:
    os.killpg(effective.process.pid, number)
    lifted_within(effective, REVERT_WITHIN_SECONDS, wait_until)


def test_stopped_injector_loses_its_lease(effective: Injector, wait_until: WaitUntil) -> None:
    effective.process.send_signal(signal.SIGSTOP)
    lifted_within(effective, REVERT_WITHIN_SECONDS, wait_until)
    reverting = effective.story.last("reverting")
    assert reverting is not None
    assert (reverting["by"], reverting["cause"]) == ("watchdog", "lease_expired")
    # Continued, it finds the fault lifted, and ends.
    effective.process.send_signal(signal.SIGCONT)
    assert effective.rest()[-1] == "ABORTED watchdog_reverted"


def test_injector_stopped_just_before_the_deed_cannot_leave_a_fault_later(
    start: Start, cores: tuple[ProcessIdentity, ...], wait_until: WaitUntil
) -> None:
    injector = start("stop:injecting:1")
    injector.reach("injecting")
    wait_until(lambda: injector.story.finished, REVERT_WITHIN_SECONDS + 2.0, what="watchdog closed the run")
    injector.process.send_signal(signal.SIGCONT)
    injector.rest()
    assert injector.process.returncode == 6
    assert not any(stopped(core) for core in cores)
    assert injector.story.finished


def test_injector_stopped_before_the_deed_and_killed_after_it(
    start: Start, cores: tuple[ProcessIdentity, ...], wait_until: WaitUntil
) -> None:
    # It continues, does the deed with the watchdog's revert already over, and dies at that instant.
    injector = start("stop-die:injecting:1")
    injector.reach("injecting")
    wait_until(lambda: injector.story.finished, REVERT_WITHIN_SECONDS + 2.0, what="watchdog closed the run")
    injector.process.send_signal(signal.SIGCONT)
    injector.process.wait(60)
    assert injector.process.returncode == -signal.SIGKILL
    lifted_within(injector, REVERT_WITHIN_SECONDS, wait_until)


def test_runaway_injector_is_ended_by_the_hard_limit(
    start: Start, cores: tuple[ProcessIdentity, ...], wait_until: WaitUntil
) -> None:
    injector = start("runaway")
    injector.reach("effective")
    lifted_within(injector, RUNAWAY_TTL_SECONDS + 1.0, wait_until)
    reverting = injector.story.last("reverting")
    assert reverting is not None
    assert (reverting["by"], reverting["cause"]) == ("watchdog", "ttl_expired")


def test_injector_reverts_when_its_watchdog_is_killed(effective: Injector, wait_until: WaitUntil) -> None:
    os.kill(effective.watchdog_pid(), signal.SIGKILL)
    lifted_within(effective, REVERT_WITHIN_SECONDS, wait_until)
    assert effective.rest()[-1] == "ABORTED watchdog_gone"
    assert effective.process.returncode == 6


def test_injector_reverts_when_its_watchdog_is_stopped(effective: Injector, wait_until: WaitUntil) -> None:
    os.kill(effective.watchdog_pid(), signal.SIGSTOP)
    lifted_within(effective, REVERT_WITHIN_SECONDS, wait_until)
    assert effective.rest()[-1] == "ABORTED watchdog_silent"
    assert effective.process.returncode == 6


def test_watchdog_told_to_end_reverts_first(effective: Injector, wait_until: WaitUntil) -> None:
    os.kill(effective.watchdog_pid(), signal.SIGTERM)
    lifted_within(effective, REVERT_WITHIN_SECONDS, wait_until)
    assert effective.rest()[-1] == "ABORTED watchdog_reverted"


def test_hang_up_of_the_watchdog_changes_nothing(effective: Injector, wait_until: WaitUntil) -> None:
    watchdog = effective.watchdog_pid()
    os.kill(watchdog, signal.SIGHUP)
    effective.process.kill()
    lifted_within(effective, REVERT_WITHIN_SECONDS, wait_until)


def test_second_signal_hurries_and_skips_nothing(effective: Injector, wait_until: WaitUntil) -> None:
    effective.process.send_signal(signal.SIGINT)
    effective.process.send_signal(signal.SIGTERM)
    lifted_within(effective, REVERT_WITHIN_SECONDS, wait_until)
    assert effective.rest()[-1] == "ABORTED abort_requested"


def test_hold_ends_by_itself_and_passes(start: Start, cores: tuple[ProcessIdentity, ...]) -> None:
    injector = start(hold_seconds=0.3)
    assert injector.rest()[-1] == "PASS hold_over"
    assert injector.process.returncode == 0
    assert not any(stopped(core) for core in cores)
    assert injector.story.finished


def test_target_ended_by_someone_else_ends_the_run_well(effective: Injector, wait_until: WaitUntil) -> None:
    for core in effective.cores:
        end(core.pid)
    assert effective.rest()[-1] == "PASS target_absent"
    results = {r["result"] for r in effective.story.records if r["record"] == "reverted"}
    assert results == {"target_absent"}


def test_removed_journal_does_not_keep_the_fault(effective: Injector, wait_until: WaitUntil) -> None:
    shutil.rmtree(effective.root / "chaos")
    effective.process.kill()
    wait_until(lambda: not any(stopped(c) for c in effective.cores), REVERT_WITHIN_SECONDS, what="targets run again")


BOUNDARIES = [
    "journaled:1",
    "watchdog_started:1",
    "armed:1",
    "injecting:1",
    "injected:1",
    "injecting:2",
    "injected:2",
    "recorded:1",
    "effective:1",
    "hold_over:1",
    "reverted:1",
    "released:1",
]


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_injector_and_watchdog_killed_at_a_step_boundary_then_recover_converges(
    start: Start, cores: tuple[ProcessIdentity, ...], boundary: str
) -> None:
    injector = start(f"die-both:{boundary}", hold_seconds=0.1)
    injector.process.wait(20)
    assert injector.process.returncode == -signal.SIGKILL
    done = recover(injector.root / "chaos")
    assert all(item.clean for item in done)
    assert not any(stopped(core) for core in cores)
    assert injector.story.finished
    assert recover(injector.root / "chaos") == ()


@pytest.mark.parametrize(
    "boundary",
    ["journaled:1", "watchdog_started:1", "injecting:1", "injected:1", "injected:2", "hold_over:1", "reverted:1"],
)
def test_injector_killed_at_a_step_boundary_leaves_no_fault(
    start: Start, cores: tuple[ProcessIdentity, ...], boundary: str, wait_until: WaitUntil
) -> None:
    injector = start(f"die:{boundary}", hold_seconds=0.1)
    injector.process.wait(20)
    assert injector.process.returncode == -signal.SIGKILL
    if boundary == "journaled:1":  # no watchdog yet, and no fault
        assert all(item.clean for item in recover(injector.root / "chaos"))
    lifted_within(injector, REVERT_WITHIN_SECONDS, wait_until)
