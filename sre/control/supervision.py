"""What the supervisor needs of the world. ``sre.adapters`` implements it, ``sre.wiring`` hands it in."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from sre.signals.types import ProcessIdentity
from sre.stack.ledger import Ledger
from sre.stack.processes import ExitStatus, ForeignOrphan, Found, Member, ProcessSpec, Readiness


class Running(Protocol):
    """One process that we started or took over."""

    @property
    def identity(self) -> ProcessIdentity: ...

    @property
    def adopted(self) -> bool:
        """Whether an earlier supervisor started it."""
        ...

    def signal(self, number: signal.Signals) -> bool:
        """Signal this process alone; False when it has ended."""
        ...

    async def wait(self) -> ExitStatus:
        """Return how it ended, when it has ended. May be cancelled and called again."""
        ...

    def close(self) -> None:
        """Let go of it: nothing happens to the process."""
        ...


class Host(Protocol):
    """The machine's processes."""

    def boot_id(self) -> str: ...

    def spawn(self, spec: ProcessSpec, launch_id: str) -> Running:
        """Start it in its own session. Raises ProcessError or ConfigError with a sentence."""
        ...

    def adopt(self, identity: ProcessIdentity) -> Running | None:
        """Take over a running process; None when it is gone."""
        ...

    def alive(self, identity: ProcessIdentity) -> bool: ...

    def families(
        self, leaders: Mapping[str, tuple[ProcessIdentity, Sequence[ProcessIdentity]]]
    ) -> Mapping[str, tuple[Member, ...]]:
        """Living members per name of ``leaders`` (leader, members known so far)."""
        ...

    def marked(self) -> Sequence[Found]:
        """Living processes that carry this stack's marks, oldest first."""
        ...

    def foreign_orphans(self, ours: Iterable[ProcessIdentity] = ()) -> Sequence[ForeignOrphan]: ...

    async def end_family(
        self, leader: ProcessIdentity, known: Iterable[ProcessIdentity] = (), *, term_seconds: float = 0.0
    ) -> Sequence[Member]:
        """End the leader, its session and their descendants; return those that cannot be ended. ``term_seconds`` > 0:
        SIGTERM and so long to obey it before SIGKILL."""
        ...


class LedgerStore(Protocol):
    """The ledger on disk."""

    def load(self) -> Ledger | None:
        """None when there is none. Raises StateError when it cannot be trusted."""
        ...

    def save(self, ledger: Ledger) -> None:
        """Raises StateError when the disk refuses."""
        ...


class ReadinessProbe(Protocol):
    """Asks a process whether it is ready."""

    async def __call__(self, readiness: Readiness) -> bool:
        """Never raises; bounded to about a second."""
        ...


class GatewayDrain(Protocol):
    """What a stop asks of the gateway."""

    async def drain(self) -> None:
        """Take no new connections, let open requests finish. Raises DependencyError."""
        ...

    async def requests_active(self) -> int | None:
        """Requests open at the gateway; None when it does not say. Never raises."""
        ...


class LogFiles(Protocol):
    """The log files of the processes."""

    def rotate(self, path: str) -> None:
        """Rotate the file if it is too large. Never raises."""
        ...

    def tail(self, path: str, lines: int) -> Sequence[str]:
        """The last lines; empty when there are none."""
        ...


class Say(Protocol):
    """Tells a person what happens: one line, without a final newline."""

    def __call__(self, name: str, text: str) -> None: ...
