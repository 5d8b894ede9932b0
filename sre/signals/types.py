"""Readings and snapshots: one immutable view of the world per tick."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field


class Seen(enum.Enum):
    """Whether a value was seen, and if not, why."""

    OK = "ok"
    ABSENT = "absent"  # the source answered, the value is not in the answer
    INVALID = "invalid"  # NaN, infinite, out of range, unparsable
    UNREACHABLE = "unreachable"  # the source did not answer in time
    NEVER = "never"  # no answer awaited yet: the source was just added


@dataclass(frozen=True, slots=True)
class Reading:
    """
    One sample of one signal.

    Attributes:
        value: Finite number when ``seen`` is OK, else None. Never a stand-in zero.
        sampled_at: Monotonic seconds of the sample (of the last attempt when not OK).
    """

    value: float | None
    sampled_at: float
    seen: Seen = Seen.OK

    @staticmethod
    def of(value: float | None, at: float) -> Reading:
        """Reading of ``value``; None is ABSENT, NaN and infinities are INVALID."""
        if value is None:
            return Reading(None, at, Seen.ABSENT)
        if not math.isfinite(value):
            return Reading(None, at, Seen.INVALID)
        return Reading(value, at)

    @staticmethod
    def missing(at: float, why: Seen = Seen.ABSENT) -> Reading:
        return Reading(None, at, why)


NEVER = Reading(None, -math.inf, Seen.NEVER)


@dataclass(frozen=True, slots=True, order=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat, clock ticks since boot."""


class ProcessState(enum.Enum):
    """An engine process as its supervisor sees it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"  # on request
    CRASHED = "crashed"  # ended unasked, whatever its exit code; back-off runs
    FAILED = "failed"  # cannot be started; needs a person
    UNKNOWN = "unknown"  # supervisor not reachable, or engine external


@dataclass(frozen=True, slots=True)
class OutcomeCounts:
    """
    Cumulative verdicts on requests of one engine since the gateway log began. Only success and failure say something
    about the engine.
    """

    success: int = 0
    failure: int = 0
    neutral: int = 0
    consecutive_failures: int = 0
    """Failures since the last success; neutral outcomes change nothing."""
    client_aborts: int = 0


QUEUE_FULL = "on a different instance"
"""Part of the 503 with which vLLM refuses when its queue is full; that is backpressure, not a fault. The gateway's
outcome filter goes by the same words."""


class CanaryVerdict(enum.Enum):
    SUCCESS = "success"
    FAILURE = "failure"  # 5xx, transport, deadline, invalid finish_reason
    NEUTRAL = "neutral"  # 4xx, 429, queue-full 503: backpressure says nothing
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """Outcome of one tiny completion sent to one engine through the gateway's probe listener."""

    engine: str
    generation: int
    """Number the breaker gave the probe; results of an older number are ignored."""
    verdict: CanaryVerdict
    detail: str
    started_at: float
    finished_at: float
    first_token_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """One engine, seen from gateway, supervisor and its own /metrics."""

    name: str
    pool: str
    managed: bool
    """True when our supervisor started it."""
    process: ProcessState = ProcessState.UNKNOWN
    identity: ProcessIdentity | None = None
    ready_at: float | None = None
    """Monotonic seconds when this process became ready."""
    last_exit_asked: bool | None = None
    """Whether the end of the process before this one was asked for; None: not known, or there was none."""
    in_flight: Reading = NEVER
    """Requests the gateway has open on it; canaries of ours not counted."""
    steps_total: Reading = NEVER
    """vllm:iteration_tokens_total_count, the step heartbeat."""
    sent_bytes_total: Reading = NEVER
    """Answer bytes of this engine's requests seen in the access log, cumulative; lags up to 1 s."""
    signals: Mapping[str, Reading] = field(default_factory=dict)
    """Further values by catalogue name: kv_cache_usage_ratio, requests_waiting, requests_running …"""
    outcomes: OutcomeCounts | None = None
    paused: bool = False
    """A deliberate pause or sleep, own or read from /is_paused or engine_sleep_state."""
    canary: CanaryResult | None = None
    """The latest finished or pending canary."""
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuDetails:
    """
    What a GPU says beyond the readings that rules use. None, and an empty tuple: it does not say, never zero.

    Attributes:
        sampled_at: Monotonic seconds.
        memory_used_bytes: The driver's reserve included.
        nvlink_received_bytes, nvlink_sent_bytes: Over all links, since the driver was loaded.
        ecc_uncorrected_errors: Since the driver was loaded.
        row_remap_failed: A broken memory row could not be replaced.
        throttled: (reason, whether it holds the clocks down now), for the reasons this card knows.
        xid_last: The last XID; 0: none so far.
        xid_events: (XID, events). Both XID fields outlive the process that reads, and what it reads.
    """

    sampled_at: float
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_temperature_celsius: float | None = None
    nvlink_received_bytes: int | None = None
    nvlink_sent_bytes: int | None = None
    ecc_uncorrected_errors: int | None = None
    row_remap_failed: bool | None = None
    throttled: tuple[tuple[str, bool], ...] = ()
    xid_last: int | None = None
    xid_events: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """One GPU. ``source`` is "nvml" or "sim"; ``injected`` when a chaos overlay changed a value."""

    index: int
    uuid: str
    source: str
    memory_used_ratio: Reading
    temperature_celsius: Reading
    utilization_ratio: Reading = NEVER
    power_watts: Reading = NEVER
    injected: bool = False
    processes: tuple[tuple[int, int], ...] = ()
    """(pid, used bytes) of accounted compute processes."""
    details: GpuDetails | None = None


@dataclass(frozen=True, slots=True)
class GatewaySeen:
    """The gateway. ``epoch`` changes when Envoy was restarted (its runtime is then back to what the files say)."""

    reachable: bool
    sampled_at: float
    epoch: str | None = None
    update_rejections: int = 0
    """Sum of xDS update_rejected and update_failure counters: > 0 growth means a file of ours was refused."""
    requests_active: Reading = NEVER


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything seen in one tick. Serializable to and from JSON (``sre.signals.codec``): traces replay."""

    at: float
    """Monotonic seconds."""
    wall: float
    engines: Mapping[str, EngineSeen]
    gpus: Mapping[int, GpuSeen] = field(default_factory=dict)
    gateway: GatewaySeen | None = None
    supervisor_reachable: bool = False
