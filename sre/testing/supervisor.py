"""A supervisor in memory: engines that restart at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sre.actions.ports import EngineStatus
from sre.clock import Clock
from sre.errors import Rejected, Unreachable
from sre.signals.types import ProcessIdentity, ProcessState


class FakeSupervisor:
    """
    ``sre.actions.ports.Supervisor`` for tests.

    ``restarts`` lists what was asked and done, in order. With ``reachable`` False every call raises Unreachable.
    """

    def __init__(self, clock: Clock, engines: Sequence[str | EngineStatus] = ("sim-0",), pool: str = "sim-7b") -> None:
        self._clock = clock
        self._pids = iter(range(1000, 1_000_000))
        self.reachable = True
        self.restarts: list[tuple[str, ProcessIdentity, str]] = []
        self.statuses: dict[str, EngineStatus] = {}
        for number, engine in enumerate(engines):
            if isinstance(engine, EngineStatus):
                self.statuses[engine.name] = engine
                continue
            self.statuses[engine] = EngineStatus(
                name=engine,
                kind="sim",
                pool=pool,
                host="127.0.0.1",
                port=9000 + number,
                process=ProcessState.READY,
                identity=self._new_identity(),
                ready_at=clock.monotonic(),
                restarts=0,
                last_exit=None,
                next_start_at=None,
                log_path=f"/nowhere/{engine}.log",
            )

    async def engines(self) -> Sequence[EngineStatus]:
        """All engines."""
        self._answer()
        return list(self.statuses.values())

    async def restart(self, engine: str, expected: ProcessIdentity, reason: str) -> bool:
        """Replace the process at once."""
        self._answer()
        if engine not in self.statuses:
            raise Rejected("supervisor", f"no engine {engine!r}")
        status = self.statuses[engine]
        if status.identity is None or status.identity != expected:
            return False
        self.restarts.append((engine, expected, reason))
        self.statuses[engine] = replace(
            status,
            identity=self._new_identity(),
            process=ProcessState.READY,
            ready_at=self._clock.monotonic(),
            restarts=status.restarts + 1,
            last_exit=f"restarted after 1 s: {reason}",
            last_exit_asked=True,
        )
        return True

    def kill(self, engine: str, *, exit_code: int = 0) -> None:
        """Let the process of ``engine`` die unasked."""
        self.statuses[engine] = replace(
            self.statuses[engine],
            identity=None,
            process=ProcessState.CRASHED,
            ready_at=None,
            last_exit=f"exit code {exit_code} after 1 s (unasked)",
            last_exit_asked=False,
        )

    def _answer(self) -> None:
        if not self.reachable:
            raise Unreachable("supervisor", "is not running; start it with sre up")

    def _new_identity(self) -> ProcessIdentity:
        pid = next(self._pids)
        return ProcessIdentity(pid, pid * 10)
