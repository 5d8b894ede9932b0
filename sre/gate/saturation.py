"""
Whether a stage saturated the service, by what the client saw of it alone.

First the slope of the requests in flight, second answered over sent, never achieved over nominal: a Poisson count of
arrivals varies by itself. Judged only after enough answers and enough service times; else it is not known.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sre.gate.records import Cause, RequestRecord
from sre.gate.stages import Arrivals, InFlightSample, StageLoad

SAMPLES = 40
"""Of the in-flight curve: the standard error below is calibrated on so many (more of them, correlated, shrink it)."""
LEAST_SAMPLES = 10
WINDOW_SHARE = 0.7
"""The slope is taken over the last 70 % of the schedule: the beginning always fills up."""
LEVEL_FACTOR = 3.0
REQUESTS_SHARE = 0.02
SLOPE_OVER_ERROR = 6.0
"""Growth over max(3 sqrt(mean level), 2 % of the requests), at more than six standard errors: simulated at Poisson
arrivals this fires at 0 % up to the capacity, 40 % at 1.02 and 100 % at 1.05 times it."""
RATIO_SIGMAS = 3.0
LEAST_COMPLETED = 20
LEAST_SERVICE_TIMES = 5.0
FIRST_ANSWERS = 20
"""The service time is the median of the first so many requests: later ones hold queueing, which must not count."""

TURNED_AWAY = frozenset({Cause.REFUSED, Cause.RATE_LIMITED, Cause.TIMEOUT})
"""The server could not take it, or not in time. Other failures say that it is broken, not that it is full."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Least squares over the in-flight curve: requests per second, its standard error, mean level, samples, length."""

    per_second: float
    error: float
    level: float
    samples: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Saturation:
    """``saturated`` None: too little to tell. ``sign``: by what, or why not to tell."""

    saturated: bool | None
    sign: str


def schedule_seconds(load: StageLoad) -> float:
    """Length of the schedule as far as it was sent: less than planned where the stage was given up."""
    return max(0.0, min(load.schedule_ended_at, load.stopped_at) - load.started_at)


def service_seconds(records: Sequence[RequestRecord]) -> float | None:
    """Time of an answer on an unloaded server: the median over the first answers. None: none came."""
    first = [record.e2e_seconds for record in records if record.cause is Cause.OK][:FIRST_ANSWERS]
    return statistics.median(first) if first else None


def steady_from(load: StageLoad) -> float:
    """Monotonic moment from which rates are counted: several service times in, at most half the schedule."""
    service = service_seconds(load.records)
    seconds = schedule_seconds(load)
    return load.started_at + min(3 * service if service is not None else 0.0, 0.5 * seconds)


def in_flight_slope(load: StageLoad) -> Slope:
    """Over the last 70 % of the schedule, thinned to 40 samples."""
    end = min(load.schedule_ended_at, load.stopped_at)
    start = load.started_at + (1 - WINDOW_SHARE) * (end - load.started_at)
    window = thin([sample for sample in load.in_flight if start <= sample.at <= end], SAMPLES)
    n = len(window)
    level = statistics.fmean(sample.in_flight for sample in window) if window else 0.0
    seconds = window[-1].at - window[0].at if window else 0.0
    if n < 3 or seconds <= 0:
        return Slope(0.0, math.inf, level, n, seconds)
    middle = statistics.fmean(sample.at for sample in window)
    square = sum((sample.at - middle) ** 2 for sample in window)
    per_second = sum((sample.at - middle) * (sample.in_flight - level) for sample in window) / square
    rest = sum((sample.in_flight - level - per_second * (sample.at - middle)) ** 2 for sample in window)
    return Slope(per_second, math.sqrt(rest / (n - 2) / square), level, n, seconds)


def judge(load: StageLoad, slope: Slope | None = None) -> Saturation:
    """Say whether the stage saturated the service."""
    slope = slope or in_flight_slope(load)
    seconds = schedule_seconds(load)
    completed = sum(1 for record in load.records if record.cause is Cause.OK)
    turned_away = sum(1 for record in load.records if record.cause in TURNED_AWAY)
    if completed + turned_away < LEAST_COMPLETED:
        return Saturation(None, f"only {completed} answers; {LEAST_COMPLETED} are needed to tell")
    if any(record.cause is Cause.SHED_BY_CLIENT for record in load.records) and not _grows(load, slope):
        return Saturation(
            None, "the client held requests back; raise gate.load.max_in_flight, or open files: ulimit -n"
        )
    service = service_seconds(load.records)
    if service is not None and seconds < LEAST_SERVICE_TIMES * service:
        return Saturation(
            None,
            f"{seconds:.1f} s are less than {LEAST_SERVICE_TIMES:g} service times of {service:.2f} s; "
            f"stage_seconds: {math.ceil(LEAST_SERVICE_TIMES * service)} would tell",
        )
    if slope.samples >= LEAST_SAMPLES and (sign := _grows(load, slope)):
        return Saturation(True, sign)
    ratio = _answered(load)
    if ratio is not None:
        return Saturation(True, ratio)
    if slope.samples < LEAST_SAMPLES:
        return Saturation(None, f"only {slope.samples} samples of the requests in flight")
    return Saturation(False, "in flight level, answered as sent")


def blur_ratio(level: float, requests: int) -> float:
    """
    By what share of its rate a stage may lie above the capacity without its queue being told from chance.

    Args:
        level: Mean of the requests in flight.
        requests: Of the stage.
    """
    if requests <= 0:
        return math.inf
    return max(LEVEL_FACTOR * math.sqrt(max(0.0, level)), REQUESTS_SHARE * requests) / (WINDOW_SHARE * requests)


def _grows(load: StageLoad, slope: Slope) -> str:
    growth = slope.per_second * slope.seconds
    limit = max(LEVEL_FACTOR * math.sqrt(slope.level), REQUESTS_SHARE * load.planned)
    if growth - _excess(load) <= limit:
        return ""
    # An exact line has no error at all: dividing by it would be no evidence less.
    if growth > limit and slope.per_second > SLOPE_OVER_ERROR * slope.error:
        return f"in flight grew by {growth:.0f} in {slope.seconds:.1f} s ({slope.per_second:.1f}/s)"
    return ""


def _excess(load: StageLoad) -> float:
    """
    By how many more arrivals than at its rate chance filled the window of the slope: a queue that they explain says
    nothing about the rate. 0 where there were fewer, or where arrivals are not left to chance.
    """
    if load.plan.arrivals is not Arrivals.POISSON:
        return 0.0
    end = min(load.schedule_ended_at, load.stopped_at)
    start = load.started_at + (1 - WINDOW_SHARE) * (end - load.started_at)
    arrived = sum(1 for record in load.records if start <= record.intended_at < end)
    rate = load.plan.rate_rps * (1 + sum(kind.share for kind in load.plan.extra_classes))
    return max(0.0, arrived - rate * (end - start))


def _answered(load: StageLoad) -> str | None:
    """The sentence if fewer were answered than sent, beyond chance; both counted from several service times in."""
    start, end = steady_from(load), min(load.schedule_ended_at, load.stopped_at)
    sent = answered = 0
    for record in load.records:
        if record.cause is Cause.CANCELLED:
            counts = record.sent_at is not None and start <= record.sent_at < end
        elif record.cause is Cause.OK or record.cause in TURNED_AWAY:
            counts = record.sent_at is not None and start <= record.sent_at < end
            answered += record.cause is Cause.OK and record.ended_at is not None and start <= record.ended_at < end
        else:
            counts = False
        sent += counts
    if sent < LEAST_COMPLETED or answered >= sent * (1 - RATIO_SIGMAS / math.sqrt(sent)):
        return None
    return f"answered {answered} of {sent} sent ({answered / sent:.0%}) from {start - load.started_at:.1f} s on"


def thin(samples: Sequence[InFlightSample], most: int) -> Sequence[InFlightSample]:
    """At most ``most`` of them, evenly spread, first and last included."""
    if len(samples) <= most:
        return samples
    step = (len(samples) - 1) / (most - 1)
    return [samples[round(index * step)] for index in range(most)]
