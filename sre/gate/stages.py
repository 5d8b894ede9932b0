"""
A stage: a rate held for a time, and what came of it.

A *run* is one pass over all stages of the staircase; the run, not the request, is the unit of every comparison.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sre.gate.records import RequestRecord

SILENT = "no answer in time"
"""A reason in ``StageSignals.unseen``, or the end of one: a page took the request and said nothing in its time."""


class StageKind(enum.Enum):
    """What a stage is for."""

    WARM_UP = "warm_up"  # not measured
    STAIRCASE = "staircase"
    KNEE = "knee"  # between the last good and the first saturated step
    SHORTS = "shorts"  # long-tail test, arm A: shorts alone
    MIXED = "mixed"  # arm B: the same shorts, and longs beside them


class Arrivals(enum.Enum):
    """How requests are spread over a stage."""

    POISSON = "poisson"
    CONSTANT = "constant"
    REPLAY = "replay"  # offsets and sizes from a trace file


@dataclass(frozen=True, slots=True)
class RequestClass:
    """
    One kind of request in the mix.

    Attributes:
        name: Label of its figures.
        share: Of the arrivals, 0 < share <= 1; the shares of a mix sum to 1.
        prompt_tokens: Length wanted, > 0; the generator sizes prompts by the server's own count.
        max_tokens: Answer length asked for, > 0; sent with ``ignore_eos`` so that work repeats, if ``fixed_length``.
        fixed_length: Ask for exactly ``max_tokens`` (vLLM's ``ignore_eos``); off where that field is refused.
        headers: Extra request headers, e.g. the gateway's priority class.
    """

    name: str
    share: float
    prompt_tokens: int
    max_tokens: int
    fixed_length: bool = True
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StagePlan:
    """
    What to send.

    Attributes:
        name: Stable over runs: ``100qps``; the stage part of a cell's name.
        rate_rps: Mean arrivals per second, > 0.
        duration_seconds: Length of the schedule; the drain comes after it.
        classes: The mix.
        extra_classes: Sent besides, on schedules of their own at ``rate_rps * share``: the longs of arm B, so that the
            shorts' schedule is the same to the microsecond in both arms.
        seed: Of schedule, class choice and prompts.
        run: Number of the pass, from 0.
        side: "candidate", or "A"/"B" in an interleaved comparison.
        arm: Name of the scheduling policy under test in the long-tail test; "" elsewhere.
    """

    name: str
    kind: StageKind
    rate_rps: float
    duration_seconds: float
    classes: tuple[RequestClass, ...]
    seed: int
    arrivals: Arrivals = Arrivals.POISSON
    extra_classes: tuple[RequestClass, ...] = ()
    run: int = 0
    side: str = "candidate"
    arm: str = ""


@dataclass(frozen=True, slots=True)
class InFlightSample:
    """Requests sent and not ended at ``at`` (monotonic seconds)."""

    at: float
    in_flight: int


@dataclass(frozen=True, slots=True)
class LiveCounts:
    """Where a stage stands, for the progress line and for the decision to give it up. Counts since the stage began."""

    at: float
    started_at: float
    planned: int
    due: int
    """Intended by now."""
    sent: int
    in_flight: int
    ok: int
    failed: int
    shed: int
    over_limit: int
    """Ended, or still running for longer than, the TTFT/e2e limit the stage was given; see ``LoadGenerator.run``."""
    ttft_p50_seconds: float | None = None
    ttft_p99_seconds: float | None = None
    e2e_p99_seconds: float | None = None
    lag_p99_seconds: float | None = None


Watch = Callable[[LiveCounts], str | None]
"""Called about four times a second while a stage runs; a reason gives the stage up. Feeds the progress line, too."""


@dataclass(frozen=True, slots=True)
class ClientCost:
    """What the client itself took: rules it out, or in, as the limit."""

    cpu_seconds: float
    """User and system, of all its processes, during the stage."""
    processes: int
    loop_lag_p99_seconds: float
    """Lateness of the event loop's own timer."""
    lag_p50_seconds: float
    lag_p99_seconds: float
    lag_max_seconds: float
    """Intended to sent."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """
    What the generator hands back. ``records`` holds every planned request that became due, in order of ``number``.

    Attributes:
        started_at: Monotonic; moment 0 of the schedule.
        stopped_at: When the last request ended or was given up.
        in_flight: About 10 samples a second, ``started_at`` to the end of the schedule and through the drain.
        aborted: Reason given by the watcher, a value of ``AbortReason``; None: ran to its end.
    """

    plan: StagePlan
    planned: int
    started_at: float
    schedule_ended_at: float
    stopped_at: float
    records: Sequence[RequestRecord]
    in_flight: Sequence[InFlightSample]
    client: ClientCost
    aborted: str | None = None
    wall_started_at: float = 0.0
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """
    What this client can do on this machine, measured against a loopback stub in a process of its own.

    Attributes:
        rate_rps: Rate tried: the top of the plan.
        ttft_floor_p50_seconds, ttft_floor_p99_seconds: TTFT measured minus the stub's true one: the client's own share.
        lag_p99_seconds: Send lag at that rate.
        cpu_seconds_per_1000_requests: Of the client.
        client_limited: Over its limits; ``reason`` says which.
    """

    rate_rps: float
    requests: int
    ttft_floor_p50_seconds: float
    ttft_floor_p99_seconds: float
    lag_p99_seconds: float
    cpu_seconds_per_1000_requests: float
    processes: int
    client_limited: bool
    reason: str = ""


class Resource(enum.Enum):
    """What can bind (requirement F1's three axes, and what lies beside them)."""

    COMPUTE = "compute"
    GPU_MEMORY_BANDWIDTH = "gpu_memory_bandwidth"
    STORAGE = "storage"
    NETWORK = "network"
    CPU = "cpu"
    ENGINE_BUSY = "engine_busy"  # share of time in which the engine takes steps: where a device tells nothing finer
    KV_CACHE = "kv_cache"  # occupancy
    BATCH_SLOTS = "batch_slots"  # occupancy: running / max_num_seqs


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """
    Use of one resource over a stage.

    Attributes:
        utilization: Mean share of its capacity, 0..1 (above 1 is possible where the capacity is nominal).
        occupancy: It counts how full something is, not how busy: a limit, never a service demand.
        amount, unit, capacity: What the share was made of, e.g. 812.0, "MB/s", 3500.0; capacity None: it came as such.
        source: Metric or file it rests on.
    """

    resource: Resource
    utilization: float
    occupancy: bool
    source: str
    amount: float | None = None
    unit: str = ""
    capacity: float | None = None


@dataclass(frozen=True, slots=True)
class StageSignals:
    """
    Gateway, engine and host during one stage, as differences between two reads around it.

    Attributes:
        seconds: Between the reads.
        uses: One per resource that could be seen.
        unseen: Resource or signal → why it could not be seen.
        engine: Name → value: means of the engine's own histograms (``queue_seconds_mean``, ``prefill_seconds_mean``,
            ``decode_seconds_mean``, ``ttft_seconds_mean``, ``e2e_seconds_mean``), gauges' means (``running_mean``,
            ``waiting_mean``, ``kv_usage_mean``, ``kv_usage_max``), counters' differences (``preemptions``,
            ``generation_tokens``, ``prompt_tokens``, ``prefix_queries``, ``prefix_hits``, ``requests_finished``).
        gateway: Name → value: ``requests``, ``refused``, ``failures``, … where an sre gateway is behind the URL.
        host: Name → value: ``cpu_ratio``, ``iowait_ratio``, ``disk_read_bytes_per_second``,
            ``network_bytes_per_second`` …
    """

    seconds: float
    uses: Sequence[ResourceUse] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)
    engine: Mapping[str, float] = field(default_factory=dict)
    gateway: Mapping[str, float] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)
