"""One process's share of a stage: send on time whatever comes back, stamp what comes back, end what takes too long."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Mapping, Sequence

from sre.adapters.load.bodies import Bodies
from sre.adapters.load.connections import CLIENTS_FAULT
from sre.adapters.load.exchange import Client, Running
from sre.adapters.load.wire import News, Row, StageOrder, row_of
from sre.gate.answer import WORDLESS_TOKENS, Answer
from sre.gate.ending import Ending, of_answer, of_status, short
from sre.gate.records import Cause, RequestRecord
from sre.gate.schedule import PlannedRequest
from sre.stack.gateway_names import REASON_HEADER

PULSE_SECONDS = 0.025
"""How often deadlines are looked at and the loop's own lateness is measured."""
SAMPLE_SECONDS = 0.1
NEWS_SECONDS = 0.25
ROUNDING_SECONDS = 0.0005
"""uvloop's timers count whole milliseconds: without it, two of five would fire early, and be set again."""
BURST = 16
"""Requests started in one go when behind; then answers are read, too."""
ERROR_BODY_BYTES = 16 * 1024
GIVEN_UP = Ending(Cause.CANCELLED, "the stage was given up")


class Flight:
    """A request that was started and has not ended (an ``exchange.Receiver``)."""

    __slots__ = ("_error_body", "_headers", "_landed", "_sender", "answer", "body", "record", "running")

    def __init__(self, sender: Sender, record: RequestRecord, *, fixed_length: bool) -> None:
        self._sender, self.record = sender, record
        self.answer = Answer(None if fixed_length else WORDLESS_TOKENS)
        self.body: Callable[[bytes, float], None] = self.answer.feed
        self.running: Running | None = None
        self._error_body = b""
        self._headers: Mapping[str, str] = {}
        self._landed = False

    def connected(self, seconds: float) -> None:
        if self.record.sent_at is None:
            self.record.connect_seconds = seconds

    def sent(self, at: float) -> None:
        if self.record.sent_at is None:  # what comes after the first time is no lateness of ours
            self.record.sent_at = at

    def sent_again(self) -> None:
        self.record.sent_again = True

    def head(self, status: int, headers: Mapping[str, str], at: float) -> None:
        self.record.head_at, self.record.status, self._headers = at, status, headers
        if status != 200:
            self.body = self._take_error

    def ended(self, at: float, cut: str | None) -> None:
        if self.record.status == 200:
            self.answer.end(at)
            self.land(self._judged(cut), at)
        else:
            self.land(self._refused(), at)

    def not_connected(self, error: OSError) -> None:
        cause = Cause.SHED_BY_CLIENT if error.errno in CLIENTS_FAULT else Cause.CONNECT
        self.land(Ending(cause, short(str(error) or type(error).__name__)), time.monotonic())

    def lost(self, reason: str) -> None:
        self.land(Ending(Cause.TRANSPORT, short(reason)), time.monotonic())

    def not_http(self, reason: str) -> None:
        self.land(Ending(Cause.MALFORMED, short(reason)), time.monotonic())

    def crashed(self, error: BaseException) -> None:
        self._sender.crashed(error)

    def give_up(self, ending: Ending, at: float) -> None:
        """End it now. Where everything was said and only the connection's end was awaited, it is a whole answer."""
        if self.running is not None:
            self.running.abort()
        self.land(self._judged(None) if self.answer.done else ending, at)

    def land(self, ending: Ending, at: float) -> None:
        if not self._landed:
            self._landed = True
            self.running = None  # it knows us: else each request is garbage in a circle
            done_at = self.answer.done_at if ending.cause is Cause.OK else None
            self._sender.landed(self, ending, at if done_at is None else done_at)

    def _take_error(self, data: bytes, at: float) -> None:
        self._error_body = (self._error_body + data)[:ERROR_BODY_BYTES]
        if len(self._error_body) >= ERROR_BODY_BYTES:
            self.give_up(self._refused(), at)

    def _refused(self) -> Ending:
        assert self.record.status is not None
        found = self._headers
        return of_status(self.record.status, found.get(REASON_HEADER), self._error_body, found.get("location"))

    def _judged(self, cut: str | None) -> Ending:
        kind = self._headers.get("content-type", "")
        return of_answer(self.answer, cut=cut, max_tokens=self.record.max_tokens, content_type=kind)


class Sender:
    """
    Sends ``share`` once.

    Args:
        report: Takes news about four times a second; the last comes from ``run``'s end.
    """

    def __init__(
        self,
        order: StageOrder,
        share: Sequence[PlannedRequest],
        client: Client,
        max_in_flight: int,
        report: Callable[[News], None],
    ) -> None:
        self._order, self._share, self._client = order, share, client
        self._max_in_flight, self._report = max_in_flight, report
        self._bodies = Bodies(order.target, order.words, order.salt)
        self._flights: dict[int, Flight] = {}  # in order of intended time
        self._rows: list[Row] = []
        self._samples: list[tuple[int, int]] = []
        self._loop_lags: list[float] = []
        self._started_at = 0.0
        self._next = 0
        self._sampled = 0
        self._sent = 0
        self._over_limit_ended = 0
        self._stopping = False
        self._fault: BaseException | None = None
        self._sent_all = asyncio.Event()
        self._empty = asyncio.Event()
        self._timer: asyncio.Handle | None = None

    async def run(self, started_at: float) -> None:
        """
        Send, wait for what is in flight as long as the order allows, report the end.

        Raises whatever went wrong in this program itself; the stage then does not count.
        """
        self._started_at = started_at
        cpu = _cpu_seconds()
        self._pace()
        pulse = asyncio.get_running_loop().create_task(self._pulse())
        try:
            await self._sent_all.wait()
            if not self._stopping:
                await self._drain()
            await self._wait_empty(None)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            pulse.cancel()
            await asyncio.wait({pulse})
        if not pulse.cancelled() and (error := pulse.exception()) is not None:
            raise error
        if self._fault is not None:
            raise self._fault
        self._sample(time.monotonic() + SAMPLE_SECONDS)
        self._tell(last=True, cpu_seconds=_cpu_seconds() - cpu)

    def stop(self) -> None:
        """Send nothing new and end what is in flight; ``run`` then returns soon."""
        if self._stopping:
            return
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        now = time.monotonic()
        while self._next < len(self._share) and self._due_at(self._share[self._next]) <= now:
            record = self._record(self._share[self._next])
            self._next += 1
            self._ended(record, Ending(Cause.CANCELLED, "due, and not yet sent when the stage was given up"), now)
        self._give_up_all(GIVEN_UP)
        self._sent_all.set()

    def crashed(self, error: BaseException) -> None:
        """Something is wrong with this program: ``run`` raises it."""
        self._fault = self._fault or error
        self._sent_all.set()
        self._empty.set()

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _pace(self) -> None:
        """Send what is due, and come back when the next is. No task, so that a request costs one timer."""
        loop = asyncio.get_running_loop()
        try:
            for _ in range(BURST):
                if self._next == len(self._share):
                    end = self._started_at + self._order.plan.duration_seconds
                    self._timer = loop.call_later(max(0.0, end - time.monotonic()), self._sent_all.set)
                    return
                planned = self._share[self._next]
                wait = self._due_at(planned) - time.monotonic()
                if wait > 0:
                    self._timer = loop.call_later(wait + ROUNDING_SECONDS, self._pace)
                    return
                self._next += 1
                if len(self._flights) < self._max_in_flight:
                    self._start(planned)
                else:
                    ending = Ending(Cause.SHED_BY_CLIENT, f"{self._max_in_flight} requests in flight already")
                    self._ended(self._record(planned), ending, time.monotonic())
        except Exception as error:  # noqa: BLE001 - the loop would log it, and the stage wait for ever
            self.crashed(error)
            return
        self._timer = loop.call_soon(self._pace)

    def _due_at(self, planned: PlannedRequest) -> float:
        return self._started_at + planned.offset_seconds

    def _record(self, planned: PlannedRequest) -> RequestRecord:
        return RequestRecord(
            number=planned.number,
            request_class=planned.request_class.name,
            intended_at=self._due_at(planned),
            asked_prompt_tokens=planned.prompt_tokens,
            max_tokens=planned.max_tokens,
        )

    def _start(self, planned: PlannedRequest) -> None:
        flight = Flight(self, self._record(planned), fixed_length=planned.request_class.fixed_length)
        self._flights[planned.number] = flight
        self._sent += 1
        flight.running = self._client.post(
            f"{self._order.salt}-{planned.number}", planned.request_class.headers, self._bodies.body(planned), flight
        )

    def landed(self, flight: Flight, ending: Ending, at: float) -> None:
        """Take in how ``flight`` ended, once."""
        del self._flights[flight.record.number]
        self._ended(flight.record, ending, at, flight.answer)
        if not self._flights:
            self._empty.set()

    def _ended(self, record: RequestRecord, ending: Ending, at: float, answer: Answer | None = None) -> None:
        record.cause, record.outcome, record.detail = ending.cause, ending.outcome, ending.detail
        record.ended_at = at
        if answer is not None:
            record.first_chunk_at = answer.first_event_at
            record.first_reasoning_at = answer.first_reasoning_at
            record.first_content_at = answer.first_content_at
            record.last_content_at = answer.last_content_at
            record.chunks, record.reasoning_chunks = answer.chunks, answer.reasoning_chunks
            record.max_gap_seconds = answer.max_gap_seconds
            record.gap_seconds_sum = answer.gap_seconds_sum
            record.finish_reason = answer.finish_reason
            if ending.cause is Cause.OK:  # what failed served nobody: its tokens are not counted
                record.prompt_tokens = answer.prompt_tokens
                record.output_tokens = answer.output_tokens
                record.cached_tokens = answer.cached_tokens
        limit = self._order.ttft_limit_seconds
        if limit is not None and ending.cause not in (Cause.SHED_BY_CLIENT, Cause.CANCELLED):
            self._over_limit_ended += record.ttft_seconds > limit
        self._rows.append(row_of(record))

    # ---- watching --------------------------------------------------------------------------------------------------

    async def _pulse(self) -> None:
        began = time.monotonic()
        beat = news = 0
        while True:
            beat += 1
            due = began + beat * PULSE_SECONDS
            await asyncio.sleep(max(0.0, due - time.monotonic()) + ROUNDING_SECONDS)
            now = time.monotonic()
            self._loop_lags.append(max(0.0, now - due))
            beat = max(beat, int((now - began) / PULSE_SECONDS))  # beats missed are one lateness, not many
            self._end_overdue(now)
            self._sample(now)
            if now - began >= news * NEWS_SECONDS:
                news = int((now - began) / NEWS_SECONDS) + 1
                self._tell()

    def _sample(self, until: float) -> None:
        """Note how many are in flight at each tenth of a second until then; one that was missed has what is now."""
        while self._started_at + self._sampled * SAMPLE_SECONDS <= until:
            self._samples.append((self._sampled, len(self._flights)))
            self._sampled += 1

    def _end_overdue(self, now: float) -> None:
        seconds = self._order.request_timeout_seconds
        while self._flights:
            flight = next(iter(self._flights.values()))  # the oldest
            if flight.record.intended_at + seconds > now:
                return
            flight.give_up(Ending(Cause.TIMEOUT, f"no whole answer within {seconds:g} s"), now)

    def _tell(self, *, last: bool = False, cpu_seconds: float = 0.0) -> None:
        now = time.monotonic()
        rows, self._rows = self._rows, []
        samples, self._samples = self._samples, []
        due = self._next
        while due < len(self._share) and self._due_at(self._share[due]) <= now:
            due += 1
        self._report(
            News(
                rows=rows,
                samples=samples,
                due=due,
                sent=self._sent,
                in_flight=len(self._flights),
                over_limit=self._over_limit_ended + self._over_limit_running(now),
                last=last,
                stopped_at=now,
                cpu_seconds=cpu_seconds,
                loop_lags=self._loop_lags if last else (),
            )
        )

    def _over_limit_running(self, now: float) -> int:
        limit = self._order.ttft_limit_seconds
        if limit is None:
            return 0
        count = 0
        for flight in self._flights.values():
            if now - flight.record.intended_at <= limit:
                break
            first = flight.answer.first_content_at if flight.answer.said_anything else None
            count += first is None or first - flight.record.intended_at > limit
        return count

    # ---- ending ----------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        seconds = self._order.drain_seconds
        await self._wait_empty(self._started_at + self._order.plan.duration_seconds + seconds)
        # Not CANCELLED: these were offered, had their time, and no answer came.
        self._give_up_all(Ending(Cause.TIMEOUT, f"no whole answer {seconds:g} s after the stage's last arrival"))

    async def _wait_empty(self, until: float | None) -> None:
        while self._flights and self._fault is None:
            self._empty.clear()
            try:
                async with asyncio.timeout(None if until is None else max(0.0, until - time.monotonic())):
                    await self._empty.wait()
            except TimeoutError:
                return

    def _give_up_all(self, ending: Ending) -> None:
        now = time.monotonic()
        for flight in list(self._flights.values()):
            flight.give_up(ending, now)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
