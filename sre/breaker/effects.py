"""What a decision asks the loop to do, in this order: commit, gateway, contexts, restart, canaries."""

from __future__ import annotations

from dataclasses import dataclass

from sre.signals.types import ProcessIdentity


@dataclass(frozen=True, slots=True)
class StartCanary:
    """Ask ``engine`` for one token; the result carries ``number``."""

    engine: str
    number: int
    first_token_timeout_seconds: float
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class SaveContexts:
    """Write the contexts of all requests in flight to the incident's folder. Repeated until it is recorded as done."""

    incident_id: str
    engine: str


@dataclass(frozen=True, slots=True)
class RestartEngine:
    """Take evidence, then restart ``engine`` if it still is ``expected``. Repeated until it is recorded as done."""

    engine: str
    expected: ProcessIdentity
    reason: str
    incident_id: str


@dataclass(frozen=True, slots=True)
class CloseIncident:
    """Mark the incident's folder as resolved."""

    incident_id: str
    engine: str


Effect = StartCanary | SaveContexts | RestartEngine | CloseIncident
