"""Desired state and effects, as values."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class RejectReason(enum.Enum):
    """Why the gateway refuses: value of ``x-sre-reason``, of the metric label and of the journal."""

    HANG = "hang"
    ENGINE_DEAD = "engine_dead"
    GPU_MEMORY = "gpu_memory"
    GPU_TEMPERATURE = "gpu_temperature"
    FAILED_BATCHES = "failed_batches"
    ERROR_RATIO = "error_ratio"
    RULE = "rule"  # a rule of the user's own
    MANUAL = "manual"
    RAMP = "ramp"  # share not yet admitted while traffic comes back
    LATCHED = "latched"  # opened too often; waits for a person


@dataclass(frozen=True, slots=True)
class PoolDesired:
    """Admission of one pool (= one served model name)."""

    pool: str
    reject_percent: int
    """0 admits all, 100 refuses all new requests; running ones are never touched."""
    reason: RejectReason | None = None
    retry_after_seconds: int = 5


@dataclass(frozen=True, slots=True)
class EngineDesired:
    """Rotation of one engine inside its pool."""

    engine: str
    weight_percent: int = 100
    """Of its configured weight; the ramp lowers it."""
    draining: bool = False
    """No new requests; running ones finish."""


@dataclass(frozen=True, slots=True)
class GatewayDesired:
    """All the guard wants of the gateway: applied as a whole, idempotent, level-triggered."""

    pools: tuple[PoolDesired, ...]
    engines: tuple[EngineDesired, ...]
    offline_shed_percent: int = 0
    max_concurrent_requests: int | None = None
    rate_limit_enforced: bool = True


class Outcome(enum.Enum):
    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class InFlightRequest:
    """A request that is open at the gateway. No prompt text."""

    request_id: str
    path: str
    model: str | None
    engine: str | None
    client: str
    started_wall: float
    age_seconds: float
    max_tokens: int | None
    stream: bool | None
    bytes_sent: int
    chunks_sent: int | None = None


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that ended, with the verdict on its engine."""

    request_id: str
    path: str
    model: str | None
    engine: str | None
    client: str
    started_wall: float
    duration_seconds: float
    status: int
    outcome: Outcome
    detail: str
    """Named reason: ok, cut, error, no_finish, partial, finish_abort, opaque, timeout, connect_failure, client_abort,
    queue_full, http_404 …; of a refusal of ours what the client saw as x-sre-reason: hang, shed_offline …"""
    attempts: int = 1
    bytes_sent: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """One notification in channel-neutral form; ``sre.notify`` renders it per channel."""

    incident_id: str
    event: str
    """
    open | escalate | acknowledge | resolve | blind | digest | test. What is told as "blind" is a notice: no end of it
    is ever told. All else that opens something has an end under the same incident id.
    """
    severity: str
    scope: str
    """What is affected, e.g. engine sim-0 (pool sim-7b)."""
    reason: str
    """Named reason, e.g. hang."""
    summary: str
    at_wall: float
    facts: tuple[tuple[str, str], ...] = field(default_factory=tuple)
    """
    Further lines (name, value) for long forms: what was seen, what was done, what to do next. Names that have a place
    of their own, and are said in each language, are in ``sre.actions.facts``.
    """
