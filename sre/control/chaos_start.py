"""Before a fault: who may inject, what is left from earlier, whom it hits and how exactly."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sre.chaos.admission import Cancelled, Request, refusals
from sre.chaos.plan import Plan, make_plan
from sre.chaos.ports import Target, World
from sre.clock import Clock
from sre.errors import LeftChanged, StateError
from sre.watchdog.journal import LEVER_NAME, JournalUnwritable
from sre.watchdog.recover import Recovered, recover

LOCK_NAME = "lock"


@dataclass(frozen=True, slots=True)
class Policy:
    """Durations of a run; ``lease_seconds`` and ``max_hold_seconds`` come from section ``chaos`` of sre.yaml."""

    lease_seconds: float = 1.0
    max_hold_seconds: float = 600.0
    ready_timeout_seconds: float = 10.0
    """For the watchdog to say READY; later than that, nothing is injected."""
    steady_timeout_seconds: float = 20.0
    """For the engine to serve again after the revert; 0: not looked at."""


@dataclass(frozen=True, slots=True)
class Places:
    """Files of the stack."""

    folder: Path
    """Of the journals."""
    gpu_overlay: Path
    engine_faults: Path


async def prepare(
    request: Request, world: World, places: Places, policy: Policy, value: float | None, clock: Clock
) -> tuple[Target, Plan]:
    """
    Return the target and the exact plan; changes nothing (``--dry-run`` shows it).

    Raises:
        Cancelled: With every reason not to inject.
    """
    if (lever := places.folder / LEVER_NAME).exists():
        raise Cancelled(f"{lever}: the safety lever is set; remove the file to allow faults")
    target = await world.target(request.engine)
    found = refusals(
        request,
        target,
        guard_answers=await world.guard_answers(),
        max_hold_seconds=policy.max_hold_seconds,
        gpus_shown=await world.gpus_shown() if request.fault.deed == "gpu_overlay" else (),
    )
    if found:
        raise Cancelled(*found)
    plan = make_plan(
        request.fault,
        run_id=run_id(request.fault.name, clock),
        engine=target.engine,
        cores=target.cores,
        gpus=target.gpus if request.gpus is None else request.gpus,
        value=value,
        hold_seconds=request.hold_seconds,
        lease_seconds=policy.lease_seconds,
        gpu_overlay=places.gpu_overlay,
        engine_faults=places.engine_faults,
    )
    return target, plan


def run_id(fault: str, clock: Clock) -> str:
    """A name that sorts by time: ``20260131T235959Z-gpu-hang-1f2e``."""
    began = datetime.fromtimestamp(clock.wall(), tz=UTC)
    return f"{began:%Y%m%dT%H%M%SZ}-{fault}-{secrets.token_hex(2)}"


@contextmanager
def chaos_lock(folder: Path) -> Iterator[None]:
    """One injector per stack. Raises Cancelled while another one is at work."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateError(f"{folder}: {error.strerror or error}; nothing was injected") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip() or "unknown"
            raise Cancelled(
                f"{folder}: another fault is in force (injector pid {holder}), and one at a time is the limit; end it"
                " with sre chaos revert"
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except OSError as error:
            raise StateError(f"{folder}: {error.strerror or error}; nothing was injected") from error
        yield
    finally:
        os.close(descriptor)


def recover_or_refuse(folder: Path) -> Sequence[Recovered]:
    """
    Close what earlier runs left open.

    Raises:
        LeftChanged: One of them is not proven reverted: nothing new may be injected.
        StateError: The folder cannot be trusted.
    """
    try:
        done = recover(folder)
    except JournalUnwritable as error:
        raise StateError(f"{error}; nothing was injected") from error
    left = [describe_left(item) for item in done if not item.clean]
    if left:
        raise LeftChanged("; ".join(left))
    return done


def describe_left(item: Recovered) -> str:
    """A sentence about a run that is not proven reverted."""
    what = item.problem
    if what is None and item.outcome is not None:
        what = ", ".join(f"{o.step.name} ({o.detail or o.result.value})" for o in item.outcome.outcomes if not o.proven)
    return (
        f"chaos run {item.run_id}: not proven reverted: {what}; set it right, then run sre chaos recover"
        f" (or, after a look, sre chaos recover --discard {item.run_id})"
    )
