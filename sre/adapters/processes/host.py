"""Start processes in sessions of their own, take over running ones, and end whole families."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sre.adapters.processes import proc
from sre.adapters.processes.pidfd import PidFd, wait_ended
from sre.errors import BinaryNotFound, ProcessError
from sre.settings.secrets import resolve_secret
from sre.signals.types import ProcessIdentity
from sre.stack.processes import (
    FINGERPRINT_MARK,
    LAUNCH_MARK,
    MARKS,
    PROCESS_MARK,
    STACK_MARK,
    ExitStatus,
    ForeignOrphan,
    Found,
    Member,
    ProcessSpec,
)

ENGINE_TITLE = "VLLM::"
"""vLLM's engine core and workers (and those of the simulated engine) title themselves ``VLLM::…``."""

KILL_SECONDS = 5.0
"""A killed process that still is there after this is held by the kernel (state D)."""

SCANS = 5
"""Families are looked at again after a kill, since a member may have forked meanwhile; so often at the most."""


class RunningProcess:
    """One process that we started or took over."""

    def __init__(self, held: PidFd, child: subprocess.Popen[bytes] | None) -> None:
        self._held = held
        self._child = child

    @property
    def identity(self) -> ProcessIdentity:
        return self._held.identity

    @property
    def adopted(self) -> bool:
        """Whether an earlier supervisor started it."""
        return self._child is None

    def signal(self, number: signal.Signals) -> bool:
        """Signal this process alone; False when it has ended."""
        return self._held.send(number)

    async def wait(self) -> ExitStatus:
        """Return how it ended, when it has ended."""
        await self._held.wait()
        return self.exit_status() or ExitStatus(None)

    def exit_status(self) -> ExitStatus | None:
        """How it ended; None while it runs."""
        if not self._held.ended:
            return None
        # The pidfd is readable only once the process is a zombie or gone, so this wait returns at once.
        return ExitStatus(None if self._child is None else self._child.wait())

    def close(self) -> None:
        """Let go of it: nothing happens to the process."""
        if self._held.ended and self._child is not None:
            self._child.wait()
        self._held.close()


class ProcessHost:
    """
    The processes of one stack on this machine.

    Args:
        stack_id: Marks everything that this stack starts, in its environment.
        environ: Environment that children inherit.
        cwd: Working folder of children.
    """

    def __init__(self, stack_id: str, environ: Mapping[str, str], cwd: Path) -> None:
        self._stack_id = stack_id
        self._environ = {name: value for name, value in environ.items() if name not in MARKS}
        self._cwd = cwd

    def boot_id(self) -> str:
        """Identity of this boot."""
        return proc.boot_id()

    def spawn(self, spec: ProcessSpec, launch_id: str) -> RunningProcess:
        """
        Start ``spec`` in its own session, its output appended to its log file.

        The child writes the file itself, so nothing it depends on dies with us.

        Raises:
            BinaryNotFound: The program is missing or may not be executed.
            ProcessError: Any other reason why it cannot be started.
            ConfigError: A secret cannot be resolved.
        """
        command = spec.command
        if command is None:
            raise ProcessError(f"{spec.name}: someone else runs it; sre does not start it")
        marks = {
            STACK_MARK: self._stack_id,
            PROCESS_MARK: spec.name,
            LAUNCH_MARK: launch_id,
            FINGERPRINT_MARK: spec.fingerprint,
        }
        secrets = {
            name: resolve_secret(reference, f"{spec.name}: {name}", self._environ)
            for name, reference in command.secret_env.items()
        }
        env = {**command.env_defaults, **self._environ, **command.env, **secrets, **marks}
        log_path = Path(spec.log_path)
        try:
            log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ProcessError(f"{spec.name}: cannot write {log_path}: {error.strerror}") from error
        try:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            os.write(log, f"--- {stamp} sre starts {spec.name}: {' '.join(command.argv)}\n".encode())
            child = subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd=command.cwd or self._cwd,
                start_new_session=True,
                restore_signals=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            why = "is missing" if isinstance(error, FileNotFoundError) else "may not be executed"
            what = error.filename or command.argv[0]
            raise BinaryNotFound(
                f"{spec.name}: {what} {why}; install it or correct its path", argv=command.argv
            ) from error
        except OSError as error:
            raise ProcessError(f"{spec.name}: cannot be started: {error.strerror}", argv=command.argv) from error
        finally:
            os.close(log)
        # It is our child and not yet reaped: its number cannot be given away before we hold it.
        stat = proc.read_stat(child.pid)
        if stat is None:  # /proc is not mounted or hides it
            child.kill()
            child.wait()
            raise ProcessError(f"{spec.name}: /proc/{child.pid} is not readable; sre needs /proc")
        return RunningProcess(PidFd(stat.identity, os.pidfd_open(child.pid)), child)

    def adopt(self, identity: ProcessIdentity) -> RunningProcess | None:
        """Take over a process that an earlier supervisor started; None when it is gone."""
        held = PidFd.open(identity)
        return None if held is None else RunningProcess(held, None)

    def alive(self, identity: ProcessIdentity) -> bool:
        """Whether exactly this process lives."""
        return proc.is_alive(identity)

    def owner(self, identity: ProcessIdentity) -> int | None:
        """Uid of a process; None when it is gone."""
        return proc.owner_of(identity.pid)

    def families(
        self, leaders: Mapping[str, tuple[ProcessIdentity, Sequence[ProcessIdentity]]]
    ) -> dict[str, tuple[Member, ...]]:
        """Return the living members per name of ``leaders`` (leader, members known so far), in one look at /proc."""
        table = proc.process_table()
        return {
            name: tuple(_member(stat) for stat in proc.members_of(leader, table, known))
            for name, (leader, known) in leaders.items()
        }

    def marked(self) -> list[Found]:
        """Return the living processes that carry this stack's mark, oldest first; this process itself left out."""
        found = []
        uid = os.geteuid()
        for stat in proc.process_table().values():
            if stat.pid == os.getpid() or proc.owner_of(stat.pid) != uid:
                continue
            marks = proc.environment(stat.pid, MARKS)
            if marks.get(STACK_MARK) == self._stack_id and PROCESS_MARK in marks:
                found.append(
                    Found(
                        stat.identity,
                        marks[PROCESS_MARK],
                        marks.get(LAUNCH_MARK, ""),
                        marks.get(FINGERPRINT_MARK, ""),
                        stat.session == stat.pid,
                        proc.command_line(stat.pid),
                    )
                )
        return sorted(found, key=lambda one: (one.identity.start_ticks, one.identity.pid))

    def foreign_orphans(self, ours: Iterable[ProcessIdentity] = ()) -> list[ForeignOrphan]:
        """
        Return engine processes of this user whose parent is dead and that this stack did not start.

        Args:
            ours: Processes known to be ours by the ledger.
        """
        table = proc.process_table()
        known = set(ours) | {found.identity for found in self.marked()}
        uid = os.geteuid()
        return [
            ForeignOrphan(stat.identity, _title(stat))
            for stat in table.values()
            if stat.identity not in known
            and _title(stat).startswith(ENGINE_TITLE)
            and proc.is_orphan(stat, table)
            and proc.owner_of(stat.pid) == uid
        ]

    async def end_family(
        self, leader: ProcessIdentity, known: Iterable[ProcessIdentity] = (), *, term_seconds: float = 0.0
    ) -> tuple[Member, ...]:
        """
        End ``leader``, its session and their descendants; return what could not be ended (state D).

        Args:
            known: Members seen earlier; they are ended too, wherever they moved.
            term_seconds: > 0: SIGTERM to all first, and this long to obey it.
        """
        table = proc.process_table()
        return await self._end(
            lambda: proc.members_of(leader, proc.process_table(), known),
            proc.members_of(leader, table, known),
            term_seconds,
        )

    async def _end(
        self, look: Callable[[], list[proc.Stat]], first: list[proc.Stat], term_seconds: float
    ) -> tuple[Member, ...]:
        if first and term_seconds > 0:
            await _signal_all(first, signal.SIGTERM, term_seconds)
        for _ in range(SCANS):
            left = look()
            if not left:
                return ()
            if not await _signal_all(left, signal.SIGKILL, KILL_SECONDS):
                break
        return tuple(_member(stat) for stat in look())


async def _signal_all(stats: Sequence[proc.Stat], number: signal.Signals, wait_seconds: float) -> bool:
    """Signal all of them, wait for their end; whether all ended in time."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(one) for stat in stats if (one := PidFd.open(stat.identity)) is not None]
        for one in held:
            with contextlib.suppress(PermissionError):  # not ours to signal: counts as a survivor
                one.send(number)
        return await wait_ended(held, wait_seconds)


def _title(stat: proc.Stat) -> str:
    first = next(iter(proc.command_line(stat.pid)), "")
    return first if first.startswith(ENGINE_TITLE) else stat.comm


def _member(stat: proc.Stat) -> Member:
    return Member(stat.identity, _title(stat), stat.state)
