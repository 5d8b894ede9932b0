"""
What every import shares: the stage it becomes, and the rules of what may be taken from somebody else's file.

Prompts, answers, tracebacks, paths and headers are never taken. Where a tool does not say when a request was due, that
is said, and no lateness is claimed.
"""

from __future__ import annotations

import heapq
import http
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from sre.errors import ConfigError
from sre.gate.importers.cut_off import all_ended
from sre.gate.percentiles import nearest_rank
from sre.gate.records import Cause, Outcome, RequestRecord
from sre.gate.report import codec
from sre.gate.self_checks import Check
from sre.gate.stages import (
    Arrivals,
    ClientCost,
    InFlightSample,
    RequestClass,
    StageKind,
    StageLoad,
    StagePlan,
)

T = TypeVar("T")

SAMPLES_PER_SECOND = 10
MOST_SAMPLES = 5_000
SENT_TOLERANCE = 3.0
"""A Poisson count of n varies by its root; a rate off by more than three of these was not kept."""


@dataclass(frozen=True, slots=True)
class ImportedStage:
    """
    One benchmark of the file.

    Attributes:
        load: As if our generator had made it; moment 0 is the first request due. What it cannot know of the client
            (CPU, loop) is 0.
        checks: Of what the file holds, e.g. whether the rate asked for was sent.
    """

    load: StageLoad
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedRuns:
    """
    One file.

    Attributes:
        tool: ``vllm bench``, ``aiperf``, ``guidellm``.
        model: As the file names it; "" if it does not.
        stages: In the file's order. The n-th of a name is of run n.
        cannot_tell: What this format leaves open, a sentence each: to be shown beside every verdict made of it.
        notes: What was found in this file: requests left out, tokens missing.
        unseen: What no verdict on this file rests on, in a few words that stand beside it; "" if nothing that weighs.
        conditions: Name and value of how the load was made: what must be equal for two files to be compared.
    """

    tool: str
    model: str
    stages: tuple[ImportedStage, ...]
    cannot_tell: tuple[str, ...]
    notes: tuple[str, ...] = ()
    unseen: str = ""
    conditions: tuple[tuple[str, str], ...] = ()


def refuse(problem: str) -> NoReturn:
    raise ConfigError([problem])


def take(kind: type[T], document: Any, where: str, expected: str) -> T:
    """Read ``document`` as ``kind``; ConfigError names the file, the place and what was expected."""
    try:
        return codec.decode(kind, document)
    except codec.Unreadable as problem:
        refuse(f"{where}: {problem}; expected {expected}")


def json_of(text: str, where: str, expected: str, *, one_line: bool = False) -> Any:
    """
    One JSON document. NaN and infinity pass: these tools write them among figures that are not read here.

    Args:
        one_line: It is a line of a file, and ``where`` names that line.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{where}, column {error.colno}" if one_line else f"{where}: line {error.lineno}, column {error.colno}"
        refuse(f"{place}: not JSON ({error.msg}); the file is damaged or cut off; expected {expected}")
    except (ValueError, RecursionError) as error:
        refuse(f"{where}: not JSON that can be read ({type(error).__name__}); expected {expected}")


def stage(
    records: Sequence[RequestRecord],
    *,
    request_class: str,
    rate_rps: float | None,
    arrivals: Arrivals,
    planned: int,
    wall_started_at: float = 0.0,
    max_tokens: int = 0,
    notes: Sequence[str] = (),
) -> ImportedStage:
    """
    Return the stage that ``records`` (at least one, any order, any zero) make.

    Args:
        rate_rps: Asked for; None: the file does not say, or as fast as possible. The stage is called after it.
        planned: Requests asked for.
    """
    ordered = sorted(records, key=lambda record: record.intended_at)
    zero = ordered[0].intended_at
    for number, record in enumerate(ordered):
        record.number = number
        _shift(record, zero)
    span = ordered[-1].intended_at
    count = len(ordered)
    seconds = span * count / (count - 1) if count > 1 and span > 0 else 1.0
    measured = count / seconds
    stopped = max(max(record.ended_at or record.sent_at or record.intended_at for record in ordered), seconds)
    named = f"{rate_rps:g}qps" if rate_rps is not None else "imported"
    prompt = sorted(record.prompt_tokens or 1 for record in ordered)[count // 2]
    plan = StagePlan(
        name=named,
        kind=StageKind.STAIRCASE,
        rate_rps=rate_rps or measured,
        duration_seconds=seconds,
        classes=(RequestClass(request_class, 1.0, max(prompt, 1), max(max_tokens, 1)),),
        seed=0,
        arrivals=arrivals,
    )
    lags = sorted(record.lag_seconds or 0.0 for record in ordered)
    cost = ClientCost(
        cpu_seconds=0.0,
        processes=0,
        loop_lag_p99_seconds=0.0,
        lag_p50_seconds=nearest_rank(lags, 0.5) or 0.0,
        lag_p99_seconds=nearest_rank(lags, 0.99) or 0.0,
        lag_max_seconds=lags[-1],
    )
    checks = [] if rate_rps is None else [_rate_kept(named, rate_rps, measured, count)]
    if count < planned:
        detail = f"{named}: {count} of {planned} requests left a record; what became of the others is not known"
        checks.append(Check("all_requests_recorded", False, detail))
    if (unknown := all_ended(named, ordered)) is not None:
        checks.append(unknown)
    load = StageLoad(
        plan=plan,
        planned=max(planned, count),
        started_at=0.0,
        schedule_ended_at=seconds,
        stopped_at=stopped,
        records=ordered,
        in_flight=_in_flight(ordered, stopped),
        client=cost,
        wall_started_at=wall_started_at,
        notes=tuple(notes),
    )
    return ImportedStage(load, tuple(checks))


def failure(record: RequestRecord, text: str, *, fallback: Cause = Cause.TRANSPORT) -> None:
    """Mark ``record`` failed for what the tool's ``text`` says. Of the text only a kind of error is kept."""
    record.cause, record.status, record.detail = _cause(text, fallback)
    neutral = (Cause.CLIENT_ERROR, Cause.RATE_LIMITED, Cause.REDIRECT)
    record.outcome = Outcome.NEUTRAL if record.cause in neutral else Outcome.FAILURE


def succeed(record: RequestRecord) -> None:
    """Mark ``record`` answered, if content came; a success without content is none."""
    if record.first_content_at is None:
        record.cause, record.outcome = Cause.NO_CONTENT, Outcome.FAILURE
    else:
        record.cause, record.outcome = Cause.OK, Outcome.SUCCESS


_PHRASES = {status.phrase.lower(): status.value for status in http.HTTPStatus}
_STATUS = re.compile(r"(?i)\b(?:status(?:[ _]code)?|http|error|code)\W{0,4}([345]\d\d)\b")
_CLASS = re.compile(r"\b([A-Z][A-Za-z]{2,60}(?:Error|Exception|Timeout))\b")
_BY_WORD = (
    (("never received a valid chunk", "no responses with actual content"), Cause.NO_CONTENT),
    (("streaming response returned an error",), Cause.ERROR_EVENT),
    (("timeout", "timed out"), Cause.TIMEOUT),
    (("connectorerror", "connecterror", "connection refused", "cannot connect", "name or service"), Cause.CONNECT),
    (("payloaderror", "incompleteread", "incomplete chunked"), Cause.TRUNCATED),
    (("jsondecodeerror",), Cause.MALFORMED),
)


def _cause(text: str, fallback: Cause) -> tuple[Cause, int | None, str]:
    status = _PHRASES.get(text.strip().lower())
    if status is None and (found := _STATUS.search(text)):
        status = int(found[1])
    if status is not None:
        return _of_status(status), status, f"HTTP {status}"
    lowered = text.lower()
    names = _CLASS.findall(text)
    said = names[-1] if names else ""
    for words, cause in _BY_WORD:
        if any(word in lowered for word in words):
            return cause, None, said
    return fallback, None, said


def _of_status(status: int) -> Cause:
    if status == 429:
        return Cause.RATE_LIMITED
    return Cause.SERVER_ERROR if status >= 500 else Cause.CLIENT_ERROR if status >= 400 else Cause.REDIRECT


def _rate_kept(name: str, asked: float, sent: float, count: int) -> Check:
    room = SENT_TOLERANCE / math.sqrt(count)
    detail = f"{name}: asked for {asked:g} requests per second, sent {sent:.4g} (allowed: {room:.1%} less)"
    return Check("rate_kept", sent >= asked * (1 - room), detail)


def _shift(record: RequestRecord, zero: float) -> None:
    record.intended_at -= zero
    for name in ("sent_at", "head_at", "first_chunk_at", "first_content_at", "last_content_at", "ended_at"):
        stamp = getattr(record, name)
        if stamp is not None:
            setattr(record, name, stamp - zero)


def _in_flight(ordered: Sequence[RequestRecord], until: float) -> list[InFlightSample]:
    """Counted from the stamps; a request without an end counts up to the last one's."""
    sent = sorted(record.sent_at for record in ordered if record.sent_at is not None)
    ended: list[float] = [until if r.ended_at is None else r.ended_at for r in ordered if r.sent_at is not None]
    heapq.heapify(ended)
    steps = min(max(int(until * SAMPLES_PER_SECOND), 1), MOST_SAMPLES)
    samples, at_sent, at_ended = [], 0, 0
    for step in range(steps + 1):
        now = until * step / steps
        while at_sent < len(sent) and sent[at_sent] <= now:
            at_sent += 1
        while ended and ended[0] <= now:
            heapq.heappop(ended)
            at_ended += 1
        samples.append(InFlightSample(now, max(at_sent - at_ended, 0)))
    return samples


def number(found: Mapping[str, Any], name: str, where: str, expected: str) -> float | None:
    """A finite number of a mapping, or None where it is absent."""
    value = found.get(name)
    if value is None:
        return None
    read = take(float, value, f"{where}: {name}", expected)
    if not math.isfinite(read):
        refuse(f"{where}: {name}: {read} is no time; expected {expected}")
    return read
