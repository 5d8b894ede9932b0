"""A stage's records, reduced to what is judged and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Distribution:
    """
    Of one time, over the requests of a class.

    Attributes:
        count: Values, infinite ones (failed) included.
        infinite: Of these, failed.
        p50, p90, p95, p99, p999: Nearest rank, failures as infinitely slow; None: no value at all.
        successes_p99: The same among successes only: never judged, shown beside it.
        p99_upper: Upper end of an exact 95 % interval of P99; None below 299 values: then P99 can fail but never pass.
    """

    count: int
    infinite: int
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    successes_p99: float | None
    p99_lower: float | None = None
    p99_upper: float | None = None


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """
    One class of the mix over one stage.

    Attributes:
        causes: Cause value → count; sums to ``planned``.
        ttft, e2e, tpot, max_gap: Seconds; ``max_gap`` is the longest wait between two chunks of one answer.
    """

    request_class: str
    planned: int
    ok: int
    failed: int
    causes: Mapping[str, int]
    ttft: Distribution
    e2e: Distribution
    tpot: Distribution
    max_gap: Distribution
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class StageSummary:
    """
    One stage of one run.

    Attributes:
        offered_rps: Intended arrivals / schedule length.
        completed_rps: Successful answers / time, in a window that begins several service times in.
        classes: One per class, and one named ``all``.
        in_flight: (seconds since the stage began, in flight), at most 200 points.
        in_flight_slope_per_second, in_flight_slope_error: Least squares over the last 70 % of the schedule.
        saturated: None: too little to tell. ``sign`` says by what, or why not to tell.
        lag_p99_seconds, lag_max_seconds: Of the client.
        client_cpu_seconds_per_1000: Of the client.
        ttft_sample_seconds, e2e_sample_seconds: Class → sorted (infinite: failed), thinned to 2,000 at most by
            rank, for plots and later comparison.
    """

    planned: int
    sent: int
    ok: int
    failed: int
    cancelled: int
    shed: int
    offered_rps: float
    completed_rps: float
    output_tokens_per_second: float | None
    classes: Mapping[str, ClassSummary]
    in_flight: Sequence[tuple[float, int]]
    in_flight_mean: float
    in_flight_max: int
    in_flight_slope_per_second: float
    in_flight_slope_error: float
    saturated: bool | None
    sign: str
    lag_p50_seconds: float
    lag_p99_seconds: float
    lag_max_seconds: float
    client_cpu_seconds_per_1000: float
    duration_seconds: float
    drain_seconds: float
    ttft_sample_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    e2e_sample_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
