"""A machine in memory: processes that live, die and resist as told."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping, Sequence

from sre.errors import BinaryNotFound, StateError
from sre.signals.types import ProcessIdentity
from sre.stack.ledger import Ledger
from sre.stack.processes import (
    Command,
    ExitStatus,
    ForeignOrphan,
    Found,
    Member,
    ProcessSpec,
    Readiness,
    Role,
)


def spec(name: str = "sim-0", role: Role = Role.ENGINE, **changes: object) -> ProcessSpec:
    """A process to be run."""
    values: dict[str, object] = {
        "name": name,
        "role": role,
        "kind": "sim",
        "command": Command(("run", name)),
        "readiness": Readiness("/health", "127.0.0.1", 9000),
        "fingerprint": f"print-of-{name}",
        "ready_timeout_seconds": 60.0,
        "stop_timeout_seconds": 10.0,
        "drain_timeout_seconds": 30.0,
        "log_path": f"/nowhere/{name}.log",
    }
    return ProcessSpec(**(values | changes))  # type: ignore[arg-type]


class FakeProcess:
    """One process in memory."""

    def __init__(self, host: FakeHost, name: str, identity: ProcessIdentity, *, adopted: bool = False) -> None:
        self.host, self.name, self.adopted = host, name, adopted
        self._identity = identity
        self.signals: list[signal.Signals] = []
        self.closed = False

    @property
    def identity(self) -> ProcessIdentity:
        return self._identity

    def signal(self, number: signal.Signals) -> bool:
        self.signals.append(number)
        self.host.events.append(f"{self.name}: {number.name}")
        if number is signal.SIGTERM and self.identity not in self.host.deaf:
            self.host.die(self.identity, 0)
        return True

    async def wait(self) -> ExitStatus:
        await self.host.ended[self.identity].wait()
        return ExitStatus(None if self.adopted else self.host.codes[self.identity])

    def close(self) -> None:
        self.closed = True


class FakeHost:
    """
    ``deaf`` processes ignore SIGTERM, ``unkillable`` ones SIGKILL too. ``events`` lists what was done, in order.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.ended: dict[ProcessIdentity, asyncio.Event] = {}
        self.codes: dict[ProcessIdentity, int] = {}
        self.names: dict[ProcessIdentity, str] = {}
        self.launches: list[tuple[str, str]] = []
        self.deaf: set[ProcessIdentity] = set()
        self.unkillable: set[ProcessIdentity] = set()
        self.left_behind: list[Found] = []
        self.orphans: list[ForeignOrphan] = []
        self.missing: set[str] = set()
        self.processes: dict[str, FakeProcess] = {}
        self._pids = iter(range(100, 100_000))

    def boot_id(self) -> str:
        return "boot"

    def create(self, name: str) -> ProcessIdentity:
        """A living process that nobody watches."""
        pid = next(self._pids)
        identity = ProcessIdentity(pid, pid * 7)
        self.ended[identity], self.names[identity] = asyncio.Event(), name
        return identity

    def die(self, identity: ProcessIdentity, code: int) -> None:
        """Let it end by itself."""
        self.codes[identity] = code
        self.ended[identity].set()

    def spawn(self, spec: ProcessSpec, launch_id: str) -> FakeProcess:
        if spec.name in self.missing:
            raise BinaryNotFound(f"{spec.name}: it is missing; install it")
        identity = self.create(spec.name)
        self.events.append(f"{spec.name}: start")
        self.launches.append((spec.name, launch_id))
        self.processes[spec.name] = FakeProcess(self, spec.name, identity)
        return self.processes[spec.name]

    def adopt(self, identity: ProcessIdentity) -> FakeProcess | None:
        if not self.alive(identity):
            return None
        name = self.names[identity]
        self.processes[name] = FakeProcess(self, name, identity, adopted=True)
        return self.processes[name]

    def alive(self, identity: ProcessIdentity) -> bool:
        return identity in self.ended and not self.ended[identity].is_set()

    def families(
        self, leaders: Mapping[str, tuple[ProcessIdentity, Sequence[ProcessIdentity]]]
    ) -> dict[str, tuple[Member, ...]]:
        return {
            name: tuple(Member(one, self.names[one], "S") for one in (leader, *known) if self.alive(one))
            for name, (leader, known) in leaders.items()
        }

    def marked(self) -> list[Found]:
        return [found for found in self.left_behind if self.alive(found.identity)]

    def foreign_orphans(self, ours: Iterable[ProcessIdentity] = ()) -> list[ForeignOrphan]:
        return self.orphans

    async def end_family(
        self, leader: ProcessIdentity, known: Iterable[ProcessIdentity] = (), *, term_seconds: float = 0.0
    ) -> list[Member]:
        survivors = []
        for one in (leader, *known):
            if not self.alive(one):
                continue
            if one in self.unkillable:
                survivors.append(Member(one, self.names[one], "D"))
            else:
                self.events.append(f"{self.names[one]}: ended")
                self.die(one, -9)
        return survivors


class FakeLedgers:
    """Ledgers in memory; ``saved`` holds all of them. ``broken``: it cannot be read. ``full``: not written."""

    def __init__(self, host: FakeHost, ledger: Ledger | None = None) -> None:
        self._host = host
        self.saved: list[Ledger] = [] if ledger is None else [ledger]
        self.broken = False
        self.full = False

    def load(self) -> Ledger | None:
        if self.broken:
            raise StateError("ledger: it was cut")
        return self.saved[-1] if self.saved else None

    def save(self, ledger: Ledger) -> None:
        if self.full:
            raise StateError("ledger: no space left on device")
        names = {entry.name: "running" if entry.identity else "intended" for entry in ledger.entries}
        self._host.events.append(f"ledger: {names}")
        self.saved.append(ledger)


class FakeProbe:
    """Ready unless told otherwise."""

    def __init__(self) -> None:
        self.unready: set[str] = set()
        self.asked = 0

    async def __call__(self, readiness: Readiness) -> bool:
        self.asked += 1
        await asyncio.sleep(0)
        return readiness.path not in self.unready


class FakeGatewayDrain:
    """Counts down one open request per question."""

    def __init__(self, host: FakeHost, active: list[int | None]) -> None:
        self._host, self.active = host, active
        self.broken = False
        self.asked = 0

    async def drain(self) -> None:
        if self.broken:
            raise RuntimeError("a bug")
        self._host.events.append("gateway: drain")

    async def requests_active(self) -> int | None:
        self.asked += 1
        return self.active.pop(0) if len(self.active) > 1 else self.active[0]


class NoLogs:
    """No log files."""

    def rotate(self, path: str) -> None:
        return None

    def tail(self, path: str, lines: int) -> list[str]:
        return ["the last line"]
