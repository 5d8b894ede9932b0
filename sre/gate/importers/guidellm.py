"""guidellm's JSON report: ``benchmarks[]``, each with its requests; times in seconds of the wall clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sre.gate.importers.common import (
    SENT_TOLERANCE,
    ImportedRuns,
    ImportedStage,
    failure,
    json_of,
    refuse,
    stage,
    succeed,
    take,
)
from sre.gate.importers.cut_off import settled
from sre.gate.records import Cause, Outcome, RequestRecord
from sre.gate.stages import Arrivals

TOOL = "guidellm"
EXPECTED = "guidellm's JSON report (--output kind=json)"
FORMAT = 2
"""``metadata.version``, as guidellm 0.8 writes it."""
OPEN_LOOP = frozenset({"constant", "poisson", "async"})

CANNOT_TELL = (
    "guidellm: stamps are of the wall clock: a clock that was set during the run shows as lateness.",
    "guidellm: gaps between single chunks are not recorded: the longest gap is not known.",
    "guidellm: requests that its client did not get to send leave no record.",
)
CLOSED_LOOP = (
    "guidellm ran {kind!r}, a closed loop: it sends less while the server is slow, so that latency hides the wait, and"
    " there is no rate to hold."
)


@dataclass(frozen=True, slots=True)
class _Timings:
    request_start: float | None = None
    targeted_start: float | None = None
    first_request_iteration: float | None = None
    first_token_iteration: float | None = None
    first_output_token_iteration: float | None = None
    last_token_iteration: float | None = None
    request_end: float | None = None
    resolve_end: float | None = None
    token_iterations: int = 0


@dataclass(frozen=True, slots=True)
class _Info:
    timings: _Timings
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    info: _Info
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Requests:
    successful: Sequence[_Request] | None = ()
    errored: Sequence[_Request] | None = ()
    incomplete: Sequence[_Request] | None = ()


@dataclass(frozen=True, slots=True)
class _Strategy:
    type_: str
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class _Backend:
    model: str | None = None


@dataclass(frozen=True, slots=True)
class _Config:
    strategy: _Strategy
    backend: _Backend = field(default_factory=_Backend)
    sample_size: int | None = None


@dataclass(frozen=True, slots=True)
class _Totals:
    total: int | None = None


@dataclass(frozen=True, slots=True)
class _Metrics:
    request_totals: _Totals = field(default_factory=_Totals)


@dataclass(frozen=True, slots=True)
class _Benchmark:
    config: _Config
    requests: _Requests
    metrics: _Metrics = field(default_factory=_Metrics)
    start_time: float = 0.0
    warmup_duration: float = 0.0
    cooldown_duration: float = 0.0
    end_time: float = 0.0


def read(text: str, where: str, request_class: str) -> ImportedRuns:
    """Every benchmark of the report. ConfigError: not such a report, another format version, no requests in it."""
    document = json_of(text, where, EXPECTED)
    version = document.get("metadata", {}).get("version") if isinstance(document.get("metadata"), dict) else None
    if version != FORMAT:
        refuse(f"{where}: format version {version!r}, this release of sre reads {FORMAT}; expected {EXPECTED}")
    found = document.get("benchmarks")
    if not isinstance(found, list) or not found:
        refuse(f"{where}: it holds no benchmark; expected {EXPECTED}")
    read = [take(_Benchmark, each, f"{where}: benchmarks[{index}]", EXPECTED) for index, each in enumerate(found)]
    models = sorted({each.config.backend.model or "" for each in read})
    if len(models) > 1:
        refuse(f"{where}: benchmarks of {len(models)} models ({', '.join(models)}); give one model per file")
    notes: list[str] = []
    stages = tuple(
        _stage(each, raw, f"{where}: benchmarks[{index}]", request_class, notes)
        for index, (each, raw) in enumerate(zip(read, found, strict=True))
    )
    closed = dict.fromkeys(each.config.strategy.type_ for each in read if each.config.strategy.type_ not in OPEN_LOOP)
    told = (*CANNOT_TELL, *(CLOSED_LOOP.format(kind=kind) for kind in closed))
    strategies = ", ".join(dict.fromkeys(each.config.strategy.type_ for each in read))
    return ImportedRuns(TOOL, models[0], stages, told, tuple(notes), conditions=(("strategy", strategies),))


def _stage(
    benchmark: _Benchmark, raw: Mapping[str, Any], where: str, request_class: str, notes: list[str]
) -> ImportedStage:
    lists = benchmark.requests
    found = [
        *((request, "ok") for request in lists.successful or ()),
        *((request, "failed") for request in lists.errored or ()),
        *((request, "cancelled") for request in lists.incomplete or ()),
    ]
    if not found:
        refuse(f"{where}: it holds no single requests; run guidellm without --metrics sample size 0")
    held = len(found)
    total = max(benchmark.metrics.request_totals.total or 0, held)
    records = [_record(request, kind, request_class) for request, kind in found]
    unsent = sum(record is None for record in records)
    sent = [record for record in records if record is not None]
    measured = _measured(benchmark, sent)
    if len(measured) < len(sent):
        notes.append(f"{where}: {len(sent) - len(measured)} requests of warm-up and cool-down are left out")
    measured, late, overdue = settled(measured)
    if late:
        notes.append(f"{where}: the last {late} requests are left out: some of them were cut off by the end of the run")
    if overdue:
        notes.append(f"{where}: {overdue} requests had no answer at its end, after longer than any answer took: failed")
    if unsent:
        notes.append(f"{where}: {unsent} requests were never sent")
    if not measured:
        refuse(f"{where}: none of its {held} requests was sent in the measured time, and early enough to be answered")
    left_out = held - len(measured)
    rate = benchmark.config.strategy.rate
    kind = benchmark.config.strategy.type_
    return stage(
        measured,
        request_class=request_class,
        rate_rps=rate if rate is not None and rate > 0 and kind in OPEN_LOOP else None,
        arrivals=Arrivals.CONSTANT if kind == "constant" else Arrivals.POISSON,
        planned=max(total, _asked(raw, rate, kind)) - left_out + unsent,
        wall_started_at=benchmark.start_time,
        max_tokens=max((record.output_tokens or 0 for record in measured), default=0),
    )


def _asked(raw: Mapping[str, Any], rate: float | None, kind: str) -> int:
    """Requests asked for, by count or by rate and time, whichever is less; 0: not said. Random arrivals have room."""
    constraints = raw["config"].get("constraints")
    asked: list[float] = []
    for each in constraints.values() if isinstance(constraints, dict) else ():
        arguments = each.get("args") if isinstance(each, dict) else None
        for name, value in arguments.items() if isinstance(arguments, dict) else ():
            if not isinstance(value, (int, float)) or not 0 < value < 1e9:
                continue  # one per strategy, in lists: which is this one's is not said
            if name == "count":
                asked.append(value)
            elif name == "seconds" and rate and kind in OPEN_LOOP:
                asked.append(rate * value - SENT_TOLERANCE * math.sqrt(rate * value))
    return max(int(min(asked)), 0) if asked else 0


def _measured(benchmark: _Benchmark, records: list[RequestRecord]) -> list[RequestRecord]:
    """Those due after the warm-up and before the cool-down, where the report has such."""
    first = benchmark.start_time + benchmark.warmup_duration if benchmark.warmup_duration > 0 else None
    last = benchmark.end_time - benchmark.cooldown_duration if benchmark.cooldown_duration > 0 else None
    return [
        record
        for record in records
        if (first is None or record.intended_at >= first) and (last is None or record.intended_at <= last)
    ]


def _record(request: _Request, kind: str, request_class: str) -> RequestRecord | None:
    times = request.info.timings
    sent = times.request_start
    if sent is None:
        return None
    due = sent if times.targeted_start is None else min(times.targeted_start, sent)
    record = RequestRecord(0, request_class, due, sent)
    record.first_chunk_at = times.first_request_iteration
    record.ended_at = times.resolve_end if times.request_end is None else times.request_end
    record.prompt_tokens, record.output_tokens = request.prompt_tokens, request.output_tokens
    record.cached_tokens = request.cached_tokens
    if kind == "cancelled":
        record.cause, record.outcome = Cause.CANCELLED, Outcome.NEUTRAL
    elif kind == "failed":
        failure(record, request.info.error or "")
    else:
        first = times.first_output_token_iteration
        record.first_content_at = times.first_token_iteration if first is None else first
        record.last_content_at = times.last_token_iteration
        record.chunks = times.token_iterations
        if record.first_content_at is not None and record.last_content_at is not None:
            record.gap_seconds_sum = max(record.last_content_at - record.first_content_at, 0.0)
        succeed(record)
    return record
