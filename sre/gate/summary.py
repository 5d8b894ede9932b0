"""A stage's records, reduced to what is judged and shown."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sre.gate import saturation
from sre.gate.records import NOT_FAILED, Cause, RequestRecord
from sre.gate.stages import InFlightSample, StageLoad


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
        wordless: Of ``ok``: tokens and no text.
        events_per_token: Events with tokens in them over the tokens that ``usage`` claims for the same answers. 1: each
            came alone; less: packed together, or claimed and not sent; more: sent again, or not counted. None: not
            known.
        events_per_answer: Mean of the streams, events with tokens in them: the length where ``usage`` tells none. None:
            no stream of our own.
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
    wordless: int = 0
    events_per_token: float | None = None
    events_per_answer: float | None = None


@dataclass(frozen=True, slots=True)
class StageSummary:
    """
    One stage of one run.

    Attributes:
        offered_rps: Intended arrivals / schedule length.
        completed_rps: Successful answers / time, in a window that begins several service times in.
        steady_offered_rps: Intended arrivals / time in that same window: what ``completed_rps`` answers. Over a short
            stage chance makes it differ from ``offered_rps`` (by 1/sqrt(n) for n arrivals). None: not known.
        classes: One per class, and one named ``all``.
        in_flight: (seconds since the stage began, in flight), at most 200 points.
        in_flight_slope_per_second, in_flight_slope_error: Least squares over the last 70 % of the schedule.
        saturated: None: too little to tell. ``sign`` says by what, or why not to tell.
        lag_p99_seconds, lag_max_seconds: Of the client: intended to sent, but for the opening of connections.
        loop_lag_p99_seconds: Of the client: by how much its event loop was late for its own timer. None: not known.
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
    loop_lag_p99_seconds: float | None = None
    steady_offered_rps: float | None = None

    @property
    def client_late_seconds(self) -> float:
        """
        The client's lateness, P99, by the worse of two signs. A late loop reads late as well as it sends late, and what
        it loses while a connection is being opened does not show as lag.
        """
        if not self.planned:  # a loop that had nothing to send was late for nothing
            return 0.0
        lags = [self.lag_p99_seconds, self.loop_lag_p99_seconds or 0.0]
        return math.inf if any(map(math.isnan, lags)) else max(lags)


POINTS = 200
ALL = "all"
"""Name of the class that holds every request."""
USAGE_RATIO = 0.99
"""Of a stage's answers that must come with ``usage``: what rests on tokens would else be the figure of a part."""
MOST_CAUSES = 3
NO_FAILURE = frozenset(cause.value for cause in NOT_FAILED)


def causes_of(kinds: Sequence[ClassSummary]) -> str:
    """`` (503 timeout, 2 server_error)``: what the failed ones came to, the most frequent first; "" if none failed."""
    found: Counter[str] = Counter()
    for kind in kinds:
        found.update({name: count for name, count in kind.causes.items() if count and name not in NO_FAILURE})
    return f" ({', '.join(f'{count} {name}' for name, count in found.most_common(MOST_CAUSES))})" if found else ""


def summarize(load: StageLoad) -> StageSummary:
    """Reduce one stage. Rates count from the schedule, never from the pace the client kept."""
    from sre.gate.percentiles import thinned  # it speaks in our Distribution

    records = load.records
    slope = saturation.in_flight_slope(load)
    judged = saturation.judge(load, slope)
    seconds = saturation.schedule_seconds(load)
    by_class: dict[str, list[RequestRecord]] = {ALL: list(records)}
    for kind in (*load.plan.classes, *load.plan.extra_classes):
        by_class[kind.name] = []
    for record in records:
        by_class.setdefault(record.request_class, []).append(record)
    causes = Counter(record.cause for record in records)
    start, end = saturation.steady_from(load), min(load.schedule_ended_at, load.stopped_at)
    steady = max(end - start, 1e-9)
    finished = [r for r in records if r.cause is Cause.OK and r.ended_at is not None and start <= r.ended_at < end]
    tokens = [record.output_tokens for record in finished if record.output_tokens is not None]
    in_schedule = [sample.in_flight for sample in load.in_flight if start <= sample.at <= end]
    arrived = sum(1 for record in records if start <= record.intended_at < end)
    sent = sum(1 for record in records if record.sent_at is not None)
    return StageSummary(
        planned=load.planned,
        sent=sent,
        ok=causes[Cause.OK],
        failed=sum(1 for record in records if record.failed),
        cancelled=causes[Cause.CANCELLED],
        shed=causes[Cause.SHED_BY_CLIENT],
        offered_rps=len(records) / seconds if seconds > 0 else 0.0,
        completed_rps=len(finished) / steady,
        output_tokens_per_second=sum(tokens) / steady if len(tokens) >= USAGE_RATIO * len(finished) else None,
        classes={name: _class(name, found) for name, found in by_class.items()},
        in_flight=_points(load.in_flight, load.started_at),
        in_flight_mean=statistics.fmean(in_schedule) if in_schedule else 0.0,
        in_flight_max=max((sample.in_flight for sample in load.in_flight), default=0),
        in_flight_slope_per_second=slope.per_second,
        in_flight_slope_error=slope.error if math.isfinite(slope.error) else 0.0,
        saturated=judged.saturated,
        sign=judged.sign,
        lag_p50_seconds=load.client.lag_p50_seconds,
        lag_p99_seconds=load.client.lag_p99_seconds,
        lag_max_seconds=load.client.lag_max_seconds,
        client_cpu_seconds_per_1000=1000 * load.client.cpu_seconds / sent if sent else 0.0,
        duration_seconds=seconds,
        drain_seconds=max(0.0, load.stopped_at - end),
        ttft_sample_seconds={name: thinned(sorted(_times(found, _ttft))) for name, found in by_class.items()},
        e2e_sample_seconds={name: thinned(sorted(_times(found, _e2e))) for name, found in by_class.items()},
        loop_lag_p99_seconds=load.client.loop_lag_p99_seconds,
        steady_offered_rps=arrived / steady,
    )


def counted(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Those offered to the server: what we cancelled or never sent says nothing about it."""
    return [record for record in records if record.cause is Cause.OK or record.failed]


def _class(name: str, records: Sequence[RequestRecord]) -> ClassSummary:
    from sre.gate.percentiles import distribution

    offered = counted(records)
    ok = [record for record in offered if record.cause is Cause.OK]
    told = sum(1 for record in ok if record.output_tokens is not None)
    # Of some of the answers only, it would be a figure of those that happened to tell.
    tpot = (
        _where_told([(record.failed, record.tpot_seconds) for record in offered])
        if told >= USAGE_RATIO * len(ok)
        else []
    )
    gaps = _where_told([(record.failed, record.max_gap_seconds) for record in offered])
    return ClassSummary(
        request_class=name,
        planned=len(records),
        ok=len(ok),
        failed=sum(1 for record in offered if record.failed),
        causes=dict(sorted(Counter(record.cause.value for record in records).items())),
        ttft=distribution([record.ttft_seconds for record in offered]),
        e2e=distribution([record.e2e_seconds for record in offered]),
        tpot=distribution(tpot),
        max_gap=distribution(gaps),
        prompt_tokens=_sum(record.prompt_tokens for record in records if record.cause is Cause.OK),
        output_tokens=_sum(record.output_tokens for record in records if record.cause is Cause.OK),
        cached_tokens=_sum(record.cached_tokens for record in records if record.cause is Cause.OK),
        wordless=sum(1 for record in ok if record.wordless),
        events_per_token=events_per_token(ok),
        events_per_answer=_mean(record.events for record in ok),
    )


def events_per_token(records: Iterable[RequestRecord]) -> float | None:
    """Of the streams among ``records`` whose ``usage`` came; None: there is none."""
    events = tokens = 0
    for record in records:
        if (count := record.token_events) is not None:
            events, tokens = events + count, tokens + (record.output_tokens or 0)
    return events / tokens if tokens else None


def _where_told(times: Sequence[tuple[bool, float | None]]) -> list[float]:
    """
    The values of a time that not every answer has (no usage, one token, no stream), failures as infinite.

    None at all where no answer has one: failures alone would be the whole distribution, and one of them in a thousand
    its P99.
    """
    answered = [value for failed, value in times if not failed]
    if answered and all(value is None for value in answered):
        return []
    return [math.inf if failed or value is None else value for failed, value in times if failed or value is not None]


def _sum(values: Iterable[int | None]) -> int | None:
    """Of what was told; None where nothing was."""
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _mean(values: Iterable[int | None]) -> float | None:
    """Of what was told; None where nothing was."""
    told = [value for value in values if value is not None]
    return statistics.fmean(told) if told else None


def _times(records: Sequence[RequestRecord], time_of: Callable[[RequestRecord], float]) -> list[float]:
    return [time_of(record) for record in counted(records)]


def _ttft(record: RequestRecord) -> float:
    return record.ttft_seconds


def _e2e(record: RequestRecord) -> float:
    return record.e2e_seconds


def _points(curve: Sequence[InFlightSample], started_at: float) -> tuple[tuple[float, int], ...]:
    return tuple((round(s.at - started_at, 4), s.in_flight) for s in saturation.thin(curve, POINTS))
