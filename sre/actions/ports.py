"""Ports: what ``control`` needs of the world. Adapters implement them; ``wiring`` hands them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sre.actions.records import JournalEntry, OutboxMessage
from sre.actions.types import FinishedRequest, GatewayDesired, InFlightRequest, Message
from sre.signals.types import (
    CanaryResult,
    GatewaySeen,
    GpuSeen,
    OutcomeCounts,
    ProcessIdentity,
    ProcessState,
    Reading,
)


class Gateway(Protocol):
    """The data plane. Every method may raise DependencyError; none may block the loop."""

    async def apply(self, desired: GatewayDesired) -> bool:
        """Make the gateway match ``desired``; return whether anything was changed. Idempotent. Returns only after the
        gateway confirmed (not merely after a file was written). Survives an Envoy restart."""
        ...

    async def observe(self) -> GatewaySeen:
        """Reachability, epoch, refused updates."""
        ...

    async def in_flight_counts(self) -> Mapping[str, Reading]:
        """Requests open upstream per engine name, probes of ours excluded."""
        ...

    def poll_log(self) -> Sequence[FinishedRequest]:
        """Read what the access logs gained; return requests that ended since the last call. Never raises on odd lines:
        it counts them."""
        ...

    def in_flight(self) -> Sequence[InFlightRequest]:
        """Requests open now, from the access log, oldest first."""
        ...

    def outcomes(self) -> Mapping[str, OutcomeCounts]:
        """Cumulative verdicts per engine name, zeros included. Empty while the access log is missing although engines
        have requests: nothing is then known."""
        ...

    def sent_bytes(self) -> Mapping[str, Reading]:
        """Bytes of completions per engine name, cumulative, open ones included; answers that need no engine step and
        errors do not count. Readings are missing while the access log is."""
        ...

    async def probe(
        self, engine: str, generation: int, *, first_token_timeout_seconds: float, timeout_seconds: float
    ) -> CanaryResult:
        """Send a tiny completion to ``engine`` through the probe listener (same filters, no breaker). Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One scrape of an engine's /metrics, already reduced to what the guard reads."""

    steps_total: Reading
    signals: Mapping[str, Reading]
    asleep: bool = False


class EngineTelemetry(Protocol):
    """vLLM's own interfaces."""

    async def sample(self, engine: str) -> EngineSample:
        """Scrape; readings are UNREACHABLE when it does not answer. Never raises. Bounded in time and size."""
        ...

    async def is_paused(self, engine: str, *, timeout_seconds: float) -> bool:
        """True only if the engine itself says so (dev mode); no answer and 404 are False."""
        ...


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine as the supervisor knows it."""

    name: str
    kind: str
    pool: str
    host: str
    port: int
    process: ProcessState
    identity: ProcessIdentity | None
    ready_at: float | None
    """Monotonic (CLOCK_MONOTONIC, same in all processes of a boot)."""
    restarts: int
    last_exit: str | None
    """E.g. "exit code 0 after 812 s (unasked)"."""
    next_start_at: float | None
    log_path: str
    last_exit_asked: bool | None = None
    """Whether somebody asked for the last end (a stop, a restart, a changed configuration). False: it ended by itself.
    None: no end is known, as after the first start of a stack or a start after ``sre down``."""


class Supervisor(Protocol):
    """Client of the supervisor's socket. Raises DependencyError when it does not answer."""

    async def engines(self) -> Sequence[EngineStatus]: ...

    async def restart(self, engine: str, expected: ProcessIdentity, reason: str) -> bool:
        """Restart ``engine`` if its process still is ``expected``; False when it is another one already (a repeated
        or late call changes nothing)."""
        ...


class GpuReader(Protocol):
    """GPU facts. Never blocks longer than its deadline and never raises: what is not seen is a missing Reading."""

    async def read(self) -> Sequence[GpuSeen]: ...
    async def close(self) -> None: ...


class StateStore(Protocol):
    """
    State, journal and outbox in one file with one writer. All calls block (disk); a loop calls them in a thread.

    Every method raises StateError when the file cannot be trusted, read or written; nothing of the failed call is
    visible then.
    """

    def load_state(self) -> str | None:
        """The JSON text last committed; None only if none was ever committed."""
        ...

    def commit(
        self,
        *,
        state: str | None,
        journal: Sequence[JournalEntry] = (),
        outbox: Sequence[OutboxMessage] = (),
        told: Sequence[Message] = (),
    ) -> None:
        """
        Write all of it in one transaction, on disk when this returns. ``state`` None leaves the state as it is.

        Args:
            told: Messages that open, worsen or resolve an incident, whether or not a channel wants them.
        """
        ...

    def release_held(self, incident_id: str) -> int:
        """Let the held messages of this incident go now; return how many."""
        ...


class IncidentRecorder(Protocol):
    """Incident folders. All calls block (disk), are idempotent, and raise StateError when the disk refuses."""

    def open(self, incident_id: str, facts: Mapping[str, object]) -> Path:
        """Make the folder; a second call with the same id changes nothing."""
        ...

    def write_contexts(self, incident_id: str, requests: Sequence[InFlightRequest]) -> int:
        """Write the requests in flight; return how many are on disk. The first call wins."""
        ...

    def write_evidence(self, incident_id: str, name: str, text: str) -> Path:
        """Keep ``text`` (its end, if long; redacted). The first call per name wins."""
        ...

    def resolve(self, incident_id: str, *, at_wall: float, facts: Mapping[str, object] | None = None) -> None: ...
