"""What a supervised process is: its command, how it is known to be ready, how long it may take to stop."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sre.signals.types import ProcessIdentity


class Role(enum.Enum):
    """What a process is for. Starts and stops follow this: the gateway starts first and stops last."""

    GATEWAY = "gateway"
    ENGINE = "engine"
    GUARD = "guard"


GATEWAY_NAME = "gateway"
GUARD_NAME = "guard"

# Environment of everything we start: with these a process is recognised even when the ledger is lost.
STACK_MARK = "SRE_STACK_ID"
PROCESS_MARK = "SRE_PROCESS"
LAUNCH_MARK = "SRE_LAUNCH_ID"
FINGERPRINT_MARK = "SRE_FINGERPRINT"
MARKS = (STACK_MARK, PROCESS_MARK, LAUNCH_MARK, FINGERPRINT_MARK)


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Set whatever the operator's environment says."""
    env_defaults: Mapping[str, str] = field(default_factory=dict)
    """Set only where the operator's environment says nothing."""
    secret_env: Mapping[str, str] = field(default_factory=dict)
    """Variable -> secret reference (env:NAME, file:PATH); resolved at the start, never recorded."""
    cwd: str | None = None
    """Working folder; None: that of ``sre up``."""

    def fingerprint(self, *further: str) -> str:
        """
        Return a short hash of all that decides how the process behaves: a running process with another one is not
        what the configuration asks for. Secrets count by reference, not by value.
        """
        document = [
            self.argv,
            self.cwd,
            sorted(self.env.items()),
            sorted(self.env_defaults.items()),
            sorted(self.secret_env.items()),
            further,
        ]
        return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Readiness:
    """``GET path`` answers 200 when the process is ready: over TCP, or over a Unix socket when one is given."""

    path: str
    host: str = "127.0.0.1"
    port: int = 0
    unix_socket: str | None = None

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.unix_socket or f'http://{self.host}:{self.port}'} {self.path}"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process that the supervisor keeps running; ``command`` is None for an engine that someone else runs."""

    name: str
    role: Role
    kind: str
    """sim, vllm, external, envoy, guard."""
    command: Command | None
    readiness: Readiness
    fingerprint: str = ""
    ready_timeout_seconds: float = 60.0
    stop_timeout_seconds: float = 15.0
    drain_timeout_seconds: float = 0.0
    log_path: str = ""
    host: str = ""
    port: int = 0
    pool: str = ""
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """A living process of a supervised process' family."""

    identity: ProcessIdentity
    name: str
    state: str
    """R S D T Z …: D cannot be killed until the kernel lets go."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended. ``code`` is None when it was not our child: the kernel tells only its parent."""

    code: int | None
    """Exit code; negative: minus the number of the signal that ended it."""

    def describe(self) -> str:
        """``exit code 0``, ``signal 9``, ``ended`` (code not known)."""
        if self.code is None:
            return "ended, exit code unknown (started by an earlier sre up)"
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Found:
    """A process found by the marks in its environment."""

    identity: ProcessIdentity
    name: str
    launch_id: str
    fingerprint: str
    leader: bool
    """Whether it leads its own session, as everything that we start does."""
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForeignOrphan:
    """An engine process whose parent died and that this stack did not start."""

    identity: ProcessIdentity
    name: str

    def describe(self) -> str:
        """One sentence that says what to do."""
        pid = self.identity.pid
        return (
            f"pid {pid} ({self.name}) is an engine process whose parent is dead, and this stack did not start it:"
            f" it may hold GPU memory; look with ps -fp {pid}, end it with kill {pid} (then kill -9 {pid})"
        )
