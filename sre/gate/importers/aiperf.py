"""``aiperf profile``'s ``profile_export.jsonl``: a line per request, stamps in nanoseconds of the wall clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sre.gate.importers.common import ImportedRuns, failure, json_of, number, refuse, stage, succeed, take
from sre.gate.records import Cause, Outcome, RequestRecord
from sre.gate.stages import Arrivals

TOOL = "aiperf"
EXPECTED = "aiperf's profile_export.jsonl"

CANNOT_TELL = (
    "aiperf: a request counts as due when its client issued it; slots that a late client dropped left no trace.",
    "aiperf: stamps are of the wall clock: a clock that was set during the run shows as lateness.",
    "aiperf: the rate asked for is not in this file; the stage is called after what was sent, or after --rate.",
)
NO_USAGE = (
    "aiperf: no answer came with the server's own token counts: errors inside a stream are invisible in this file."
)
UNSEEN = "aiperf recorded no token counts of the server: errors inside a stream are invisible"
MEASURED = "profiling"


@dataclass(frozen=True, slots=True)
class _Metadata:
    credit_issued_ns: int
    request_start_ns: int
    request_end_ns: int
    benchmark_phase: str
    was_cancelled: bool = False
    phase_name: str = MEASURED


@dataclass(frozen=True, slots=True)
class _Line:
    metadata: _Metadata
    metrics: Mapping[str, Any]
    error: Any


def read(text: str, where: str, request_class: str, rate_rps: float | None = None) -> ImportedRuns:
    """The measured phases, a stage each, without warm-up. ConfigError: damaged, cut off, nothing measured."""
    # Not splitlines: an error's message may hold a separator that JSON need not escape.
    lines = [
        _line(line, f"{where}: line {number}") for number, line in enumerate(text.split("\n"), start=1) if line.strip()
    ]
    measured = [line for line in lines if line.metadata.benchmark_phase == MEASURED]
    if not measured:
        refuse(f"{where}: {len(lines)} requests, none of them measured (phase {MEASURED!r}); expected {EXPECTED}")
    notes = []
    if len(measured) < len(lines):
        notes.append(f"{where}: {len(lines) - len(measured)} requests of the warm-up are left out")
    counted = any("usage_completion_tokens" in line.metrics for line in measured)
    phases: dict[str, list[_Line]] = {}
    for line in measured:
        phases.setdefault(line.metadata.phase_name, []).append(line)
    stages = []
    broken = 0
    for found in phases.values():
        first = min(line.metadata.credit_issued_ns for line in found)
        records = [_record(line, first, request_class, where, counted) for line in found]
        broken += sum(record.cause is Cause.ERROR_EVENT for record in records)
        stages.append(
            stage(
                records,
                request_class=request_class,
                rate_rps=rate_rps,
                arrivals=Arrivals.REPLAY,
                planned=len(records),
                wall_started_at=first / 1e9,
                max_tokens=max((record.output_tokens or 0 for record in records), default=0),
            )
        )
    if broken:
        notes.append(f"{where}: {broken} answers ended without token counts and count as broken inside the stream")
    told = CANNOT_TELL if counted else (*CANNOT_TELL, NO_USAGE)
    return ImportedRuns(TOOL, "", tuple(stages), told, tuple(notes), unseen="" if counted else UNSEEN)


def _line(line: str, where: str) -> _Line:
    found = json_of(line, where, EXPECTED, one_line=True)
    if not isinstance(found, dict) or "metadata" not in found:
        refuse(f"{where}: no metadata; expected {EXPECTED}")
    metadata = take(_Metadata, found["metadata"], f"{where}: metadata", EXPECTED)
    metrics = found.get("metrics") or {}
    if not isinstance(metrics, dict):
        refuse(f"{where}: metrics is not an object; expected {EXPECTED}")
    return _Line(metadata, metrics, found.get("error"))


_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "tokens": 1.0}


def _value(line: _Line, name: str, where: str) -> float | None:
    found = line.metrics.get(name)
    if not isinstance(found, dict):
        return None
    unit = found.get("unit")
    if unit not in _UNITS:
        refuse(f"{where}: {name}: unit {unit!r} is none of {', '.join(_UNITS)}; expected {EXPECTED}")
    value = number(found, "value", f"{where}: {name}", EXPECTED)
    return None if value is None else value * _UNITS[unit]


def _record(line: _Line, zero_ns: int, request_class: str, where: str, counted: bool) -> RequestRecord:
    """Stamps count from ``zero_ns``: a float of nanoseconds since 1970 has lost its microseconds."""
    known = line.metadata
    sent = max(known.request_start_ns - zero_ns, known.credit_issued_ns - zero_ns) / 1e9
    record = RequestRecord(0, request_class, (known.credit_issued_ns - zero_ns) / 1e9, sent)
    record.ended_at = (known.request_end_ns - zero_ns) / 1e9
    tokens = _value(line, "usage_completion_tokens", where)
    prompt = _value(line, "usage_prompt_tokens", where)
    record.output_tokens = None if tokens is None else int(tokens)
    record.prompt_tokens = None if prompt is None else int(prompt)
    if line.error is not None:
        failure(record, _said(line.error), fallback=Cause.TRANSPORT)
        return record
    if known.was_cancelled:
        return record  # neither ok nor failed, as a fresh record is
    first = _value(line, "time_to_first_output_token", where)
    first = _value(line, "time_to_first_token", where) if first is None else first
    latency = _value(line, "request_latency", where)
    if latency is not None:
        record.ended_at = sent + latency
    if first is not None:
        record.first_chunk_at = record.first_content_at = sent + first
        gaps = _gaps(line)
        record.chunks = len(gaps) + 1
        record.gap_seconds_sum = sum(gaps)
        record.max_gap_seconds = max(gaps, default=None)
        record.last_content_at = record.first_content_at + record.gap_seconds_sum
    elif latency is not None:
        # Without --streaming the answer comes whole.
        record.first_content_at = record.last_content_at = record.ended_at
    succeed(record)
    if record.cause is Cause.OK and counted and tokens is None:
        record.cause, record.outcome = Cause.ERROR_EVENT, Outcome.FAILURE
    return record


def _gaps(line: _Line) -> Sequence[float]:
    found = line.metrics.get("inter_chunk_latency")
    values = found.get("value") if isinstance(found, dict) else None
    if not isinstance(values, list):
        return ()
    return [float(value) / 1e3 for value in values if isinstance(value, (int, float)) and 0 <= value < 1e12]


def _said(error: Any) -> str:
    """Type and code; of the message only what tells the kind of failure is looked at."""
    if not isinstance(error, dict):
        return str(error)
    code = error.get("code")
    if isinstance(code, int) and 300 <= code < 600:
        return f"HTTP {code}"
    return f"{error.get('message', '')} {error.get('type', '')}"
