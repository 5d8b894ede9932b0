"""A load generator and a server in memory, in virtual time: gate runs of hours in milliseconds."""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from sre.errors import Unreachable
from sre.gate.percentiles import nearest_rank
from sre.gate.records import Cause, Outcome, RequestRecord
from sre.gate.result import Smoke
from sre.gate.schedule import schedule
from sre.gate.stages import (
    Calibration,
    ClientCost,
    InFlightSample,
    LiveCounts,
    StageLoad,
    StagePlan,
    StageSignals,
    Watch,
)
from sre.testing.clock import ManualClock

LOOK_SECONDS = 0.5
SAMPLE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Behaviour:
    """
    How the fake's server does over one stage: one queue, first come first served.

    Attributes:
        capacity_rps: Requests it takes per second at the most.
        service_seconds: Of an answer on the idle server; the first token comes at 40 % of it.
        noise: Sigma of a lognormal factor on the service time.
        failed_ratio: Of the requests, answered at once with ``cause``.
        dies_after_seconds: Of the stage; from then on there is no connection, and ``smoke`` raises Unreachable.
        long_penalty_seconds: What every request of the mix waits longer while there are extra classes.
        lag_seconds: Of the client.
        longest_prompt_tokens: It cuts longer prompts, and its usage says so. None: it reads them all.
    """

    capacity_rps: float = 1e9
    service_seconds: float = 0.05
    noise: float = 0.0
    failed_ratio: float = 0.0
    cause: Cause = Cause.SERVER_ERROR
    dies_after_seconds: float = math.inf
    long_penalty_seconds: float = 0.0
    lag_seconds: float = 0.0
    longest_prompt_tokens: int | None = None


class FakeLoad:
    """
    ``LoadGenerator`` whose server behaves as ``script`` says, stage by stage.

    Args:
        script: Called with each plan; one behaviour for all, or a function of the plan.
        on_look: Called at every look of a stage, with its plan and the seconds since it began: to stop a run within.
    """

    def __init__(
        self,
        clock: ManualClock,
        script: Behaviour | Callable[[StagePlan], Behaviour] | None = None,
        *,
        model: str = "fake",
        max_model_len: int | None = 40_000,
        client_limited: bool = False,
        max_in_flight: int = 10_000,
        on_look: Callable[[StagePlan, float], None] | None = None,
        note: str = "",
    ) -> None:
        fixed = script if isinstance(script, Behaviour) else Behaviour()
        self._script = script if callable(script) else lambda _: fixed
        self._clock = clock
        self._model, self._max_model_len = model, max_model_len
        self._client_limited = client_limited
        self._max_in_flight = max_in_flight
        self._on_look = on_look
        self._note = note
        self._partial: StageLoad | None = None
        self.plans: list[StagePlan] = []
        """Every stage that was begun, in order."""
        self.gone = False
        """The server is not there: smoke raises Unreachable, requests find no connection."""
        self.closed = 0

    async def smoke(self) -> Smoke:
        if self.gone:
            raise Unreachable("http://fake", "connection refused; is it running?")
        return Smoke(True, "answers", self._model, self._max_model_len, True, True, "tokenize", "fake 1")

    async def calibrate(self, rate_rps: float, seconds: float, limit_seconds: float) -> Calibration:
        await self._clock.sleep(seconds)
        slow = 2 * limit_seconds if self._client_limited else limit_seconds / 10
        reason = f"its own lag P99 is {slow:g} s" if self._client_limited else ""
        return Calibration(rate_rps, round(rate_rps * seconds), slow, slow, slow, 0.3, 1, self._client_limited, reason)

    async def run(
        self,
        plan: StagePlan,
        *,
        watch: Watch,
        ttft_limit_seconds: float | None = None,
        drain_seconds: float,
    ) -> StageLoad:
        self.plans.append(plan)
        started = self._clock.monotonic()
        wall = self._clock.wall()
        records = self._records(plan, started)
        scheduled_end = started + plan.duration_seconds
        last = max((r.ended_at or scheduled_end for r in records), default=scheduled_end)
        end = max(scheduled_end, min(last, scheduled_end + drain_seconds))
        aborted: str | None = None
        timeline = _Timeline(records, started, ttft_limit_seconds)
        try:
            while (now := self._clock.monotonic()) < end:
                if self._on_look is not None:
                    self._on_look(plan, now - started)
                aborted = watch(timeline.at(now))
                if aborted is not None:
                    break
                await self._clock.sleep(min(LOOK_SECONDS, end - now) or LOOK_SECONDS)
        except asyncio.CancelledError:
            now = self._clock.monotonic()
            self._partial = _ended(plan, records, started, scheduled_end, now, wall, "interrupted")
            raise
        load = _ended(plan, records, started, scheduled_end, self._clock.monotonic(), wall, aborted)
        return dataclasses.replace(load, notes=(self._note,) if self._note else ())

    def partial(self) -> StageLoad | None:
        return self._partial

    async def close(self) -> None:
        self.closed += 1

    def _records(self, plan: StagePlan, started: float) -> list[RequestRecord]:
        """What would come of every request if nobody interfered."""
        does = self._script(plan)
        chance = random.Random(f"fake/{plan.seed}/{plan.side}/{plan.arm}")
        names = {kind.name for kind in plan.classes}
        free_at, records = started, []
        open_until: list[float] = []
        for one in schedule(plan):
            at = started + one.offset_seconds
            record = RequestRecord(
                one.number,
                one.request_class.name,
                at,
                asked_prompt_tokens=one.prompt_tokens,
                max_tokens=one.max_tokens,
            )
            records.append(record)
            open_until = [moment for moment in open_until if moment > at] if len(open_until) > 50 else open_until
            if len(open_until) >= self._max_in_flight:
                record.cause = Cause.SHED_BY_CLIENT
                continue
            record.sent_at = at + does.lag_seconds
            if self.gone or one.offset_seconds >= does.dies_after_seconds:
                _fail(record, Cause.CONNECT, record.sent_at + 0.001)
                continue
            if chance.random() < does.failed_ratio:
                _fail(record, does.cause, record.sent_at + 0.002)
                continue
            service = does.service_seconds * math.exp(chance.gauss(0, does.noise))
            if plan.extra_classes and record.request_class in names:
                service += does.long_penalty_seconds
            begin = max(record.sent_at, free_at)
            free_at = begin + 1 / does.capacity_rps
            read = min(one.prompt_tokens, does.longest_prompt_tokens or one.prompt_tokens)
            _answer(record, begin, service, read, one.max_tokens)
            open_until.append(record.ended_at or at)
            if record.ended_at is not None and record.ended_at >= started + does.dies_after_seconds:
                _fail(record, Cause.TRANSPORT, started + does.dies_after_seconds)
        if does.dies_after_seconds <= plan.duration_seconds:
            self.gone = True
        return records


class FakeSignals:
    """``SignalReader`` that sees nothing, or what ``signals`` says."""

    def __init__(self, signals: StageSignals | None = None, described: Sequence[tuple[str, str]] = ()) -> None:
        self._signals = signals or StageSignals(0.0, unseen={"engine": "a fake shows nothing"})
        self._described = tuple(described)

    def around(self) -> AbstractAsyncContextManager[Callable[[], StageSignals]]:
        return self._around()

    async def describe(self) -> Sequence[tuple[str, str]]:
        return self._described

    @asynccontextmanager
    async def _around(self) -> AsyncIterator[Callable[[], StageSignals]]:
        yield lambda: self._signals


def _answer(record: RequestRecord, begin: float, service: float, prompt_tokens: int, max_tokens: int) -> None:
    first = begin + 0.4 * service
    end = begin + service
    record.head_at, record.first_chunk_at, record.first_content_at = first, first, first
    record.last_content_at, record.ended_at = end, end
    record.chunks = max_tokens
    record.gap_seconds_sum = end - first
    record.max_gap_seconds = (end - first) / (max_tokens - 1) if max_tokens > 1 else None
    record.status, record.outcome, record.cause, record.finish_reason = 200, Outcome.SUCCESS, Cause.OK, "length"
    record.prompt_tokens, record.output_tokens, record.cached_tokens = prompt_tokens, max_tokens, 0


def _fail(record: RequestRecord, cause: Cause, at: float) -> None:
    record.head_at = record.first_chunk_at = record.first_content_at = record.last_content_at = None
    record.prompt_tokens = record.output_tokens = record.cached_tokens = None
    record.chunks, record.finish_reason = 0, None
    record.status = 500 if cause is Cause.SERVER_ERROR else None
    record.outcome, record.cause, record.ended_at, record.detail = Outcome.FAILURE, cause, at, cause.value


class _Timeline:
    """Counts at any moment of a stage whose every moment is known beforehand."""

    def __init__(self, records: Sequence[RequestRecord], started: float, limit: float | None) -> None:
        self._started = started
        self._planned = len(records)
        self._due = sorted(r.intended_at for r in records)
        self._sent = sorted(r.sent_at for r in records if r.sent_at is not None)
        self._ended = sorted(r.ended_at for r in records if r.sent_at is not None and r.ended_at is not None)
        self._ok = sorted(r.ended_at for r in records if r.cause is Cause.OK and r.ended_at is not None)
        self._failed = sorted(r.ended_at for r in records if r.failed and r.ended_at is not None)
        self._shed = sorted(r.intended_at for r in records if r.cause is Cause.SHED_BY_CLIENT)
        late = (r.intended_at + limit for r in records if limit is not None and _slower(r, limit))
        self._over = sorted(late)

    def at(self, now: float) -> LiveCounts:
        sent, ended = bisect.bisect_right(self._sent, now), bisect.bisect_right(self._ended, now)
        return LiveCounts(
            at=now,
            started_at=self._started,
            planned=self._planned,
            due=bisect.bisect_right(self._due, now),
            sent=sent,
            in_flight=sent - ended,
            ok=bisect.bisect_right(self._ok, now),
            failed=bisect.bisect_right(self._failed, now),
            shed=bisect.bisect_right(self._shed, now),
            over_limit=bisect.bisect_right(self._over, now),
        )


def _slower(record: RequestRecord, limit: float) -> bool:
    return (record.first_content_at or math.inf) - record.intended_at > limit


def _ended(
    plan: StagePlan,
    records: Sequence[RequestRecord],
    started: float,
    scheduled_end: float,
    now: float,
    wall: float,
    aborted: str | None,
) -> StageLoad:
    """What is seen of the stage if it ends at ``now``: what is not due is not in it, what is not ended is cancelled."""
    due = [record for record in records if record.intended_at <= now]
    curve = _curve(due, started, now)
    for record in due:
        if record.ended_at is not None and record.ended_at > now:
            timed_out = aborted is None
            _fail(record, Cause.TIMEOUT if timed_out else Cause.CANCELLED, now)
            record.outcome = Outcome.FAILURE if timed_out else Outcome.NEUTRAL
    lags = sorted(record.lag_seconds or 0.0 for record in due)
    cost = ClientCost(
        0.0003 * len(due),
        1,
        0.001,
        nearest_rank(lags, 0.5) or 0.0,
        nearest_rank(lags, 0.99) or 0.0,
        max(lags, default=0.0),
    )
    end = min(scheduled_end, now)
    return StageLoad(plan, len(records), started, end, now, due, curve, cost, aborted, wall)


def _curve(records: Sequence[RequestRecord], started: float, until: float) -> list[InFlightSample]:
    events = sorted(
        [(r.sent_at, 1) for r in records if r.sent_at is not None]
        + [(r.ended_at or until, -1) for r in records if r.sent_at is not None]
    )
    samples, level, position = [], 0, 0
    for index in range(int((until - started) / SAMPLE_SECONDS) + 1):
        at = started + index * SAMPLE_SECONDS
        while position < len(events) and events[position][0] <= at:
            level += events[position][1]
            position += 1
        samples.append(InFlightSample(at, level))
    return samples
