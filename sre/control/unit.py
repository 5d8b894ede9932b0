"""One process kept running: start, readiness, crash, back-off, restart, stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sre.clock import Clock
from sre.control.supervision import Host, LogFiles, ReadinessProbe, Running, Say
from sre.control.waiting import wait_first
from sre.errors import ConfigError, ProcessError
from sre.settings.stack import RestartSettings
from sre.signals.types import ProcessIdentity, ProcessState
from sre.stack.ledger import LedgerEntry
from sre.stack.processes import ExitStatus, Member, ProcessSpec, Role
from sre.stack.restart import RunHistory, after_crash, after_request

HANG_TERM_SECONDS = 2.0
"""From SIGTERM to SIGKILL when a hung process is replaced: it cannot obey anyway."""

LEFTOVER_TERM_SECONDS = 1.0
"""From SIGTERM to SIGKILL for what a process leaves behind."""

HURRY_SECONDS = 2.0
"""From SIGTERM to SIGKILL when a person is in a hurry."""

UNKILLABLE_CHECK_SECONDS = 1.0
"""How often a process that cannot be killed is looked at again."""

LOG_LINES_OF_FAILED_START = 5


@dataclass(frozen=True, slots=True)
class Services:
    """What every unit uses."""

    host: Host
    probe: ReadinessProbe
    clock: Clock
    policy: RestartSettings
    logs: LogFiles
    say: Say
    record: Callable[[], None]
    """Write the ledger: a launch, an end or a new state is to be remembered."""
    changed: Callable[[], None]
    """Some unit's state changed."""


class Unit:
    """
    Keeps one process running.

    ``run`` is its life; everything else may be called from the same loop at any time.
    """

    def __init__(self, spec: ProcessSpec, services: Services) -> None:
        self.spec = spec
        self.state = ProcessState.STOPPED
        self.started_at: float | None = None
        self.ready_at: float | None = None
        self.next_start_at: float | None = None
        self.last_exit: str | None = None
        self.last_exit_asked: bool | None = None
        self.problem: str | None = None
        self.history = RunHistory()
        self.ever_ready = False
        self.members: tuple[ProcessIdentity, ...] = ()
        self._services = services
        self._process: Running | None = None
        self._identity: ProcessIdentity | None = None
        self._launch_id = ""
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stopping = False
        self._restart_reason: str | None = None
        self._survivors: tuple[Member, ...] = ()

    # What it is.

    @property
    def identity(self) -> ProcessIdentity | None:
        """The process that runs now."""
        return None if self._process is None else self._process.identity

    @property
    def adopted(self) -> bool:
        """Whether an earlier supervisor started what runs now."""
        return self._process is not None and self._process.adopted

    def entry(self) -> LedgerEntry | None:
        """What the ledger is to remember; None before the first launch and after a clean end."""
        if not self._launch_id:
            return None
        return LedgerEntry(
            name=self.spec.name,
            role=self.spec.role,
            launch_id=self._launch_id,
            fingerprint=self.spec.fingerprint,
            identity=self._identity,
            members=self.members,
            started_at=self.started_at or 0.0,
            ready_at=self.ready_at,
            restarts=self.history.restarts,
            crashes_in_a_row=self.history.crashes_in_a_row,
            last_exit=self.last_exit,
            last_exit_asked=self.last_exit_asked,
        )

    @property
    def family(self) -> tuple[ProcessIdentity, tuple[ProcessIdentity, ...]] | None:
        """Leader (alive or not) and known members of the present launch."""
        return None if self._identity is None else (self._identity, self.members)

    # What can be asked of it.

    def adopt(self, process: Running, launch_id: str, entry: LedgerEntry | None) -> None:
        """Begin with a process that runs already. Call before ``run``."""
        self._process = process
        self._identity = process.identity
        self._launch_id = launch_id
        self.started_at = self._services.clock.monotonic() if entry is None else entry.started_at
        if entry is not None:
            self.ready_at = entry.ready_at
            self.members = entry.members
            self.history = RunHistory(entry.crashes_in_a_row, entry.restarts)
            self.last_exit, self.last_exit_asked = entry.last_exit, entry.last_exit_asked
        self.ever_ready = self.ready_at is not None
        self._enter(ProcessState.READY if self.ever_ready else ProcessState.STARTING)

    def succeed(self, entry: LedgerEntry, end: str, *, asked: bool) -> None:
        """Begin after a process that ended (or was ended) before ``run``. Call before ``run``."""
        self.history = RunHistory(entry.crashes_in_a_row, entry.restarts + 1)
        self.last_exit, self.last_exit_asked = end, asked

    def remember(self, leader: ProcessIdentity, members: Sequence[ProcessIdentity]) -> None:
        """Know of an earlier launch that could not be ended: nothing is started before it is gone."""
        self._launch_id, self._identity, self.members = "unknown", leader, tuple(members)

    def request_restart(self, expected: ProcessIdentity, reason: str) -> bool:
        """Replace the process if it is ``expected`` and runs; a repeated call changes nothing. Does not wait."""
        if self._stopping or self.identity != expected or self.state is ProcessState.CRASHED:
            return False
        if self._restart_reason is None:
            self._restart_reason = reason
            self._wake.set()
        return True

    def request_stop(self) -> None:
        """End the process and ``run``."""
        self._stopping = True
        self._wake.set()

    def hurry(self) -> None:
        """Shorten every wait of a stop."""
        self._hurry.set()

    # Its life.

    async def run(self) -> None:
        """
        Keep it running until ``request_stop``; returns when nothing of it is left (or cannot be ended). Cancelled, it
        leaves the process alone: a broken supervisor must not take the service with it.
        """
        while not self._stopping:
            try:
                if self._process is None:
                    await self._start()
                else:
                    await self._attend(self._process)
            except Exception as error:  # noqa: BLE001 one process' trouble must not end the care for the others
                self.problem = f"{self.spec.name}: internal error: {type(error).__name__}: {error}; trying again"
                self._services.say(self.spec.name, self.problem)
                await self._pause_until(self._services.clock.monotonic() + UNKILLABLE_CHECK_SECONDS)
        await self._stop()

    async def _start(self) -> None:
        """Start it, or set when to try again. Returns early on a stop."""
        services, name = self._services, self.spec.name
        if self.next_start_at is not None and not await self._pause_until(self.next_start_at):
            return
        if not await self._clear_remains():
            self.next_start_at = services.clock.monotonic() + UNKILLABLE_CHECK_SECONDS
            return
        self.next_start_at = None
        self._launch_id, self._identity, self.members = uuid.uuid4().hex, None, ()
        self.started_at, self.ready_at = services.clock.monotonic(), None
        services.record()  # the intent: whoever comes after us then knows what to look for
        try:
            process = services.host.spawn(self.spec, self._launch_id)
        except (ProcessError, ConfigError) as error:
            self._launch_id = ""
            self.problem = str(error)
            decision = after_crash(
                self.history, now=services.clock.monotonic(), ran_seconds=0.0, policy=services.policy
            )
            self.history, self.next_start_at = decision.history, decision.start_at
            self._enter(ProcessState.FAILED)
            services.say(name, f"cannot be started: {error}; trying again in {decision.delay_seconds:.3g} s")
            services.record()
            return
        self._process, self._identity, self.problem = process, process.identity, None
        self._enter(ProcessState.STARTING)
        services.record()
        services.say(name, f"starting (pid {process.identity.pid})")

    async def _attend(self, process: Running) -> None:
        """Watch a running process until it ended, by itself or by us."""
        clock = self._services.clock
        ended = asyncio.create_task(process.wait())
        try:
            while True:
                if self.state is ProcessState.STARTING and await self._services.probe(self.spec.readiness):
                    if not ended.done():
                        self._on_ready()
                    await asyncio.sleep(0)
                if ended.done():
                    return await self._on_exit(process, ended.result())
                if self._stopping:
                    return None
                if self._restart_reason is not None:
                    return await self._on_restart(process)
                starting = self.state is ProcessState.STARTING
                waited = clock.monotonic() - (self.started_at or 0.0)
                if starting and waited > self.spec.ready_timeout_seconds:
                    return await self._on_not_ready(process)
                await self._wait_for(ended, timeout_seconds=_poll_seconds(waited) if starting else None)
        finally:
            ended.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ended

    def _on_ready(self) -> None:
        self.ready_at = self._services.clock.monotonic()
        self.ever_ready = True
        took = self.ready_at - (self.started_at or self.ready_at)
        self._note_members()
        self._enter(ProcessState.READY)
        self._services.record()
        self._services.say(self.spec.name, f"ready after {took:.1f} s")

    async def _on_exit(self, process: Running, status: ExitStatus) -> None:
        """Any end that nobody asked for is a crash, exit code 0 too: so does a dead vLLM engine exit."""
        self.last_exit = f"{status.describe()} after {self._ran():.0f} s (unasked)"
        self.last_exit_asked = False
        await self._crashed(process, self.last_exit)

    async def _on_not_ready(self, process: Running) -> None:
        timeout = self.spec.ready_timeout_seconds
        self.last_exit = f"not ready within {timeout:g} s ({self.spec.readiness.where}); ended by sre"
        self.last_exit_asked = False
        await self._end(process, self.spec.stop_timeout_seconds)
        await self._crashed(process, self.last_exit)

    async def _crashed(self, process: Running, what: str) -> None:
        services = self._services
        was_ready = self.ready_at is not None
        decision = after_crash(
            self.history,
            now=services.clock.monotonic(),
            ran_seconds=self._ran(),
            policy=services.policy,
            first_at_once=self.spec.role is Role.GATEWAY,
        )
        self.history, self.next_start_at = decision.history, decision.start_at
        self._restart_reason = None
        self._forget(process)
        self._enter(ProcessState.CRASHED)
        when = "at once" if decision.delay_seconds == 0 else f"in {decision.delay_seconds:.3g} s"
        services.say(self.spec.name, f"{what}; starting again {when}; log: {self.spec.log_path}")
        if not was_ready:
            for line in services.logs.tail(self.spec.log_path, LOG_LINES_OF_FAILED_START):
                services.say(self.spec.name, f"  | {line}")
        services.record()
        await self._clear_remains()

    async def _on_restart(self, process: Running) -> None:
        reason = self._restart_reason or ""
        hung = "hang" in reason
        self._services.say(self.spec.name, f"restarting (pid {process.identity.pid}): {reason}")
        self._enter(ProcessState.DRAINING)
        await self._end(process, HANG_TERM_SECONDS if hung else self.spec.stop_timeout_seconds)
        self.last_exit = f"restarted after {self._ran():.0f} s: {reason}"
        self.last_exit_asked = True
        self.history = after_request(self.history)
        self.next_start_at = None
        self._restart_reason = None
        self._forget(process)
        self._enter(ProcessState.STARTING)
        self._services.record()

    async def _stop(self) -> None:
        """End what runs; nothing of it is left afterwards, or the state is FAILED with the reason."""
        if self._process is not None:
            self._services.say(self.spec.name, f"stopping (pid {self._process.identity.pid})")
            self._enter(ProcessState.DRAINING)
            process = self._process
            await self._end(process, self.spec.stop_timeout_seconds)
            self.last_exit = f"stopped after {self._ran():.0f} s"
            self.last_exit_asked = True
            self._forget(process)
        if await self._clear_remains():
            self._launch_id, self._identity, self.members = "", None, ()
            self.next_start_at = None
            self._enter(ProcessState.STOPPED)
        self._services.record()

    async def _end(self, process: Running, term_seconds: float) -> None:
        """SIGTERM to the process alone (it knows how to end its children), SIGKILL to the family when time is up."""
        self._note_members()
        if self._hurry.is_set():
            term_seconds = min(term_seconds, HURRY_SECONDS)
        process.signal(signal.SIGTERM)
        ended = asyncio.create_task(process.wait())
        clock = self._services.clock
        try:
            hurrying = self._hurry.is_set()
            await wait_first(clock, term_seconds, ended, *(() if hurrying else (self._hurry.wait(),)))
            if not ended.done() and not hurrying and self._hurry.is_set():
                await wait_first(clock, min(term_seconds, HURRY_SECONDS), ended)
            obeyed = ended.done()
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
        if not obeyed:
            self._services.say(self.spec.name, f"did not obey SIGTERM within {term_seconds:g} s; killing its family")
        self._survivors = tuple(
            await self._services.host.end_family(
                process.identity, self.members, term_seconds=LEFTOVER_TERM_SECONDS if obeyed else 0.0
            )
        )

    async def _clear_remains(self) -> bool:
        """
        End whatever earlier launches of this process left behind; True when nothing is left.

        What cannot be killed makes the state FAILED: a second engine must not start on a GPU that the first holds.
        """
        host, survivors = self._services.host, list[Member]()
        if self._identity is not None:
            survivors += await host.end_family(self._identity, self.members, term_seconds=LEFTOVER_TERM_SECONDS)
        for found in host.marked():
            if found.name == self.spec.name and host.alive(found.identity):
                self._services.say(self.spec.name, f"ending pid {found.identity.pid}, left behind by an earlier run")
                survivors += await host.end_family(found.identity, term_seconds=LEFTOVER_TERM_SECONDS)
        self._survivors = tuple({member.identity: member for member in survivors}.values())
        if not self._survivors:
            return True
        pids = ", ".join(f"{member.identity.pid} ({member.name}, state {member.state})" for member in self._survivors)
        on_gpus = f" and holds GPU {', '.join(map(str, self.spec.gpus))}" if self.spec.gpus else ""
        problem = (
            f"{self.spec.name}: pid {pids} cannot be killed{on_gpus}: the kernel holds it; nothing is started in its"
            " place until it is gone; look at dmesg, reset the GPU or reboot"
        )
        if problem != self.problem:
            self._services.say(self.spec.name, problem)
        self.problem = problem
        self._enter(ProcessState.FAILED)
        return False

    def _note_members(self) -> None:
        family = self.family
        if family is not None:
            seen = self._services.host.families({self.spec.name: family})[self.spec.name]
            self.members = tuple(member.identity for member in seen if member.identity != family[0])

    def _forget(self, process: Running) -> None:
        process.close()
        self._process, self.ready_at = None, None

    def _ran(self) -> float:
        return self._services.clock.monotonic() - (self.started_at or self._services.clock.monotonic())

    def _enter(self, state: ProcessState) -> None:
        self.state = state
        self._services.changed()

    async def _pause_until(self, at: float) -> bool:
        """Wait until ``at``; False when a stop came first."""
        clock = self._services.clock
        while (remaining := at - clock.monotonic()) > 0 and not self._stopping:
            self._wake.clear()
            await wait_first(clock, remaining, self._wake.wait())
        return not self._stopping

    async def _wait_for(self, ended: asyncio.Task[ExitStatus], timeout_seconds: float | None) -> None:
        """Return when the process ended, something is asked of us, or time is up."""
        await wait_first(self._services.clock, timeout_seconds, ended, self._wake.wait())
        self._wake.clear()


def _poll_seconds(waited_seconds: float) -> float:
    """How long to wait before the next readiness check: short while most processes start, longer for model loads."""
    return 0.05 if waited_seconds < 10 else 0.25 if waited_seconds < 60 else 1.0
