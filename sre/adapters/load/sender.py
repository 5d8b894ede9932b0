"""One process's share of a stage: send on time whatever comes back, stamp what comes back, end what takes too long."""

from __future__ import annotations

import asyncio
import errno
import resource
import time
from collections.abc import Callable, Sequence

import aiohttp
from yarl import URL

from sre.adapters.load.bodies import Bodies
from sre.adapters.load.session import Arrivals, Body, read_body
from sre.adapters.load.wire import News, Row, StageOrder, row_of
from sre.gate.answer import Answer
from sre.gate.ending import Ending, of_answer, of_status, short
from sre.gate.records import Cause, RequestRecord
from sre.gate.schedule import PlannedRequest

PULSE_SECONDS = 0.025
"""How often deadlines are looked at and the loop's own lateness is measured."""
SAMPLE_SECONDS = 0.1
NEWS_SECONDS = 0.25
ROUNDING_SECONDS = 0.0005
"""uvloop's timers count whole milliseconds: without it, two of five would fire early, and be set again."""
BURST = 16
"""Requests started in one go when behind; then answers are read, too."""
ERROR_BODY_BYTES = 16 * 1024
REASON_HEADER = "x-sre-reason"
_CLIENTS_FAULT = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Errors of connecting that say that this machine has no more to give."""


class Flight:
    """A request that was started and has not ended."""

    __slots__ = ("answer", "content_type", "given_up", "planned", "record", "task")

    def __init__(self, planned: PlannedRequest, record: RequestRecord) -> None:
        self.planned, self.record = planned, record
        self.answer = Answer()
        self.content_type = ""
        self.given_up: Ending | None = None
        self.task: asyncio.Task[None] | None = None


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
        session: aiohttp.ClientSession,
        max_in_flight: int,
        report: Callable[[News], None],
    ) -> None:
        self._order, self._share, self._session = order, share, session
        self._max_in_flight, self._report = max_in_flight, report
        self._url = URL(order.target.path_url)
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
        self._empty = asyncio.Event()
        self._pacing: asyncio.Task[None] | None = None

    async def run(self, started_at: float) -> None:
        """Send, wait for what is in flight as long as the order allows, report the end."""
        self._started_at = started_at
        loop = asyncio.get_running_loop()
        cpu = _cpu_seconds()
        self._pacing = loop.create_task(self._pace())
        pulse = loop.create_task(self._pulse())
        try:
            await asyncio.wait({self._pacing})
            if not self._stopping:
                self._pacing.result()
                await self._drain()
            await self._wait_empty(None)
        finally:
            pulse.cancel()
            await asyncio.wait({pulse})
        if not pulse.cancelled() and (error := pulse.exception()) is not None:
            raise error
        self._sample(time.monotonic() + SAMPLE_SECONDS)
        self._tell(last=True, cpu_seconds=_cpu_seconds() - cpu)

    def stop(self) -> None:
        """Send nothing new and end what is in flight; ``run`` then returns soon."""
        if self._stopping:
            return
        self._stopping = True
        if self._pacing is not None:
            self._pacing.cancel()
        now = time.monotonic()
        while self._next < len(self._share) and self._due_at(self._share[self._next]) <= now:
            record = self._record(self._share[self._next])
            self._next += 1
            self._ended(record, Ending(Cause.CANCELLED, "due, and not yet sent when the stage was given up"), now)
        self._give_up_all(Ending(Cause.CANCELLED, "the stage was given up"))

    # ---- sending ---------------------------------------------------------------------------------------------------

    async def _pace(self) -> None:
        in_a_row = 0
        while self._next < len(self._share):
            planned = self._share[self._next]
            due = self._due_at(planned)
            while (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait + ROUNDING_SECONDS)
                in_a_row = 0
            self._next += 1
            if len(self._flights) < self._max_in_flight:
                self._start(planned)
            else:
                ending = Ending(Cause.SHED_BY_CLIENT, f"{self._max_in_flight} requests in flight already")
                self._ended(self._record(planned), ending, time.monotonic())
            in_a_row += 1
            if in_a_row == BURST:
                in_a_row = 0
                await asyncio.sleep(0)
        end = self._started_at + self._order.plan.duration_seconds
        await asyncio.sleep(max(0.0, end - time.monotonic()))

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
        flight = Flight(planned, self._record(planned))
        self._flights[planned.number] = flight
        self._sent += 1
        flight.task = asyncio.get_running_loop().create_task(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        try:
            ending = await self._exchange(flight)
        except asyncio.CancelledError:
            ending = flight.given_up or Ending(Cause.CANCELLED, "the stage was given up")
            if flight.answer.done:
                # Everything was said; only the connection's end was still awaited.
                ending = self._judged(flight, None)
        except aiohttp.ClientConnectorError as error:
            fault = error.os_error.errno in _CLIENTS_FAULT
            ending = Ending(Cause.SHED_BY_CLIENT if fault else Cause.CONNECT, short(str(error)))
        except (aiohttp.ClientConnectionError, OSError) as error:
            ending = Ending(Cause.TRANSPORT, short(str(error) or type(error).__name__))
        except (aiohttp.ClientError, ValueError) as error:
            ending = Ending(Cause.MALFORMED, short(str(error) or type(error).__name__))
        self._land(flight, ending)

    async def _exchange(self, flight: Flight) -> Ending:
        record, answer = flight.record, flight.answer
        headers = {"X-Request-Id": f"{self._order.salt}-{record.number}"}
        headers.update(flight.planned.request_class.headers)
        body = Body(self._bodies.body(flight.planned), record)
        async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
            connection = response.connection
            arrived = connection.protocol if connection is not None else None
            record.head_at = arrived.arrived_at if isinstance(arrived, Arrivals) else time.monotonic()
            record.status = response.status
            if response.status != 200:
                text = await _beginning(response)
                return of_status(response.status, response.headers.get(REASON_HEADER), text)
            flight.content_type = response.headers.get("Content-Type", "")
            cut = None
            try:
                await read_body(response, answer.feed)
            except (aiohttp.ClientError, OSError) as error:
                cut = f"the connection broke: {str(error) or type(error).__name__}"
            answer.end(time.monotonic())
            return self._judged(flight, cut)

    def _judged(self, flight: Flight, cut: str | None) -> Ending:
        return of_answer(flight.answer, cut=cut, max_tokens=flight.record.max_tokens, content_type=flight.content_type)

    def _ended(self, record: RequestRecord, ending: Ending, at: float, answer: Answer | None = None) -> None:
        record.cause, record.outcome, record.detail = ending.cause, ending.outcome, ending.detail
        record.ended_at = at
        if answer is not None:
            record.first_chunk_at = answer.first_event_at
            record.first_reasoning_at = answer.first_reasoning_at
            record.first_content_at = answer.first_content_at
            record.last_content_at = answer.last_content_at
            record.chunks = answer.chunks
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
        for flight in self._flights.values():  # the oldest first; giving up only asks their tasks to end
            if flight.record.intended_at + seconds > now:
                break
            self._give_up(flight, Ending(Cause.TIMEOUT, f"no whole answer within {seconds:g} s"))

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
        while self._flights:
            self._empty.clear()
            try:
                async with asyncio.timeout(None if until is None else max(0.0, until - time.monotonic())):
                    await self._empty.wait()
            except TimeoutError:
                return

    def _give_up_all(self, ending: Ending) -> None:
        for flight in list(self._flights.values()):
            self._give_up(flight, ending)

    def _give_up(self, flight: Flight, ending: Ending) -> None:
        if flight.given_up is None and flight.task is not None:
            flight.given_up = ending
            flight.task.cancel()
            flight.task.add_done_callback(lambda _: self._gone(flight))

    def _gone(self, flight: Flight) -> None:
        """A task that is cancelled before its first step never gets to write its record."""
        if flight.record.number in self._flights and flight.given_up is not None:
            self._land(flight, flight.given_up)

    def _land(self, flight: Flight, ending: Ending) -> None:
        done_at = flight.answer.done_at if ending.cause is Cause.OK else None
        del self._flights[flight.record.number]
        self._ended(flight.record, ending, time.monotonic() if done_at is None else done_at, flight.answer)
        if not self._flights:
            self._empty.set()


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """The first kilobytes of a body; what breaks off is enough."""
    text = b""
    try:
        while len(text) < ERROR_BODY_BYTES and (data := await response.content.readany()):
            text += data
    except (aiohttp.ClientError, OSError):
        pass
    return text[:ERROR_BODY_BYTES]


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
