"""
An injector in a process of its own, to be killed, stopped and hung by tests.

``python -m tests.chaos.injector MODE ROOT HOLD_SECONDS PID…`` stops the processes PID… as fault gpu-hang, with the
signal handling of ``sre chaos inject``, and prints each point it reaches. MODE is one of:

run                 as a person would
runaway             beats for ever, and never reverts
full-disk           files of more than 200 bytes cannot be written
die:POINT:N         SIGKILL to itself when it reaches POINT for the Nth time
die-both:POINT:N    SIGKILL to its watchdog first, then to itself
stop:POINT:N        SIGSTOP to itself
stop-die:POINT:N    SIGSTOP to itself; continued, it does the next deed and dies at once
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sre.adapters.clock import SystemClock
from sre.adapters.processes.proc import process_table
from sre.chaos.plan import make_plan
from sre.chaos.report import Report
from sre.cli.chaos import drive
from sre.control.chaos_run import Point, run_fault
from sre.control.chaos_start import Policy
from sre.errors import SreError
from sre.signals.types import ProcessIdentity
from sre.watchdog.journal import Journal
from sre.watchdog.lease import Bond, Lease
from sre.watchdog.processes import boot_id, own_identity
from tests.chaos.standin import FAULTS, StandInWorld, identity_of, places, request

RUNAWAY_TTL_SECONDS = 2.0


def die(*, watchdog_too: bool) -> None:
    if watchdog_too:
        for stat in process_table().values():
            if stat.parent == os.getpid():
                os.kill(stat.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def run_away(root: Path, cores: tuple[ProcessIdentity, ...]) -> int:
    """What a run does, in short, by an injector that never stops beating."""
    plan = make_plan(
        FAULTS["gpu-hang"], run_id="runaway", engine="sim-0", cores=cores, gpus=(), value=None, hold_seconds=1,
        lease_seconds=1, gpu_overlay=root, engine_faults=root,
    )  # fmt: skip
    journal = Journal.create(root / "chaos", plan.run_id)
    me = own_identity()
    journal.append(
        "planned", schema=1, run_id=plan.run_id, fault=plan.fault, engine=plan.engine, boot_id=boot_id(),
        lease_seconds=1, ttl_seconds=RUNAWAY_TTL_SECONDS, stop_files=[],
        injector={"pid": me.pid, "start_ticks": me.start_ticks}, steps=[step.record() for step in plan.steps],
    )  # fmt: skip
    lease = Lease.start(journal, plan.lease_seconds)
    while lease.listen() is Bond.STARTING:
        time.sleep(0.01)
    for index, step in enumerate(plan.steps):
        journal.append("injecting", step=index)
        StandInWorld(cores).inject(step, 0.0)
    print(Point.EFFECTIVE.value, flush=True)
    while True:
        lease.beat()
        time.sleep(lease.beat_seconds)


def main() -> int:
    mode, root, hold_seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    cores = tuple(identity_of(int(pid)) for pid in sys.argv[4:])
    if mode == "runaway":
        return run_away(root, cores)
    if mode == "full-disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
    kind, where, count = (*mode.split(":"), "", "")[:3]
    reached = 0
    doomed = False

    def on_point(point: Point) -> None:
        nonlocal reached, doomed
        print(point.value, flush=True)
        if doomed and point is Point.INJECTED:
            die(watchdog_too=False)
        reached += point.value == where
        if kind in ("die", "die-both") and point.value == where and reached == int(count):
            die(watchdog_too=kind == "die-both")
        if kind in ("stop", "stop-die") and point.value == where and reached == int(count):
            doomed = kind == "stop-die"
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        report = inject(on_point, cores, root, hold_seconds)
    except SreError as error:
        print(f"# {error}", flush=True)
        return int(error.exit_code)
    print(report.verdict.value, report.ending.value, flush=True)
    return int(report.exit_code)


def inject(
    on_point: Callable[[Point], None], cores: tuple[ProcessIdentity, ...], root: Path, hold_seconds: float
) -> Report:
    return drive(
        lambda abort, hurry: run_fault(
            request("gpu-hang", hold_seconds), StandInWorld(cores), places(root), clock=SystemClock(),
            policy=Policy(steady_timeout_seconds=0), on_point=on_point, abort=abort, hurry=hurry,
        ),
        lambda line: print(f"# {line}", flush=True),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
