"""
One line per request: what the load generator saw, for other tools and for a second look.

The first line holds schema, plan and stage; each further line one request. Stamps are seconds since moment 0 of the
stage's schedule (``started_at`` of its load), rounded to the microsecond. Prompts and answers are never written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sre.errors import StateError
from sre.gate.records import RequestRecord
from sre.gate.report import codec, document
from sre.gate.stages import StageLoad, StagePlan
from sre.printable import one_line

SCHEMA = "sre/gate-requests"
MAJOR, MINOR = 1, 1
VERSION = f"{MAJOR}.{MINOR}"

STAMPS = (
    "intended_at", "sent_at", "head_at", "first_chunk_at", "first_reasoning_at", "first_content_at", "last_content_at",
    "ended_at",
)  # fmt: skip
DURATIONS = ("max_gap_seconds", "gap_seconds_sum")
PLAIN = (
    "chunks", "status", "finish_reason", "prompt_tokens", "output_tokens", "cached_tokens", "asked_prompt_tokens",
    "max_tokens", "sent_again", "reasoning_chunks",
)  # fmt: skip
LONGEST_DETAIL = 200


@dataclass(frozen=True, slots=True)
class RequestLog:
    """
    A file of requests, read back. Stamps of ``records`` count from 0, the start of the stage.

    Attributes:
        planned: Requests of the schedule; there are fewer records where the stage was given up.
        notes: What is wrong with the file and could be passed over: a last line cut off.
    """

    plan: StagePlan
    planned: int
    wall_started_at: float
    aborted: str
    records: tuple[RequestRecord, ...]
    notes: tuple[str, ...] = ()


def lines(load: StageLoad) -> Iterator[str]:
    """The file of one stage, line by line, each with its line end."""
    yield header_line(load)
    for record in load.records:
        yield request_line(record, load.started_at)


def header_line(load: StageLoad) -> str:
    """First line: schema, plan, and what the records do not say."""
    return _dump({
        "schema": SCHEMA,
        "schema_version": VERSION,
        "plan": document.hide_headers(codec.encode(load.plan)),
        "planned": load.planned,
        "wall_started_at": load.wall_started_at,
        "aborted": load.aborted or "",
    })  # fmt: skip


def request_line(record: RequestRecord, started_at: float) -> str:
    """One request; ``started_at`` is moment 0 of its stage."""
    line: dict[str, Any] = {"number": record.number, "class": record.request_class}
    for name in STAMPS:
        stamp = getattr(record, name)
        line[name] = None if stamp is None else round(stamp - started_at, 6)
    for name in DURATIONS:
        seconds = getattr(record, name)
        line[name] = None if seconds is None else round(seconds, 6)
    line |= {name: getattr(record, name) for name in PLAIN}
    line["outcome"], line["cause"] = record.outcome.value, record.cause.value
    line["detail"] = one_line(record.detail)[:LONGEST_DETAIL]
    return _dump(line)


def parse(text_lines: Iterable[str], where: str = "requests.jsonl") -> RequestLog:
    """
    Read a file, given line by line.

    A last line that is cut off (a process killed, a full disk) is left out and told in ``notes``.

    Raises:
        StateError: another kind of file, a newer major version, a damaged line before the last.
    """
    numbered = enumerate((line for line in text_lines if line.strip()), start=1)
    first = next(numbered, None)
    if first is None:
        raise StateError(f"{where}: the file is empty; the run that wrote it did not get to its end")
    header = document.parse(first[1], where)
    document.check_version(header, SCHEMA, MAJOR, where, "a file of requests that a gate run wrote")
    records: list[RequestRecord] = []
    notes: list[str] = []
    damaged: StateError | None = None
    for number, line in numbered:
        if damaged is not None:
            raise damaged
        try:
            records.append(parse_request_line(line))
        except codec.Unreadable as problem:
            damaged = StateError(f"{where}: line {number}: {problem}; the file is damaged")
            if not line.endswith("\n"):
                notes.append(f"{where}: the last line is cut off and left out ({len(records)} requests are whole)")
    if damaged is not None and not notes:
        raise damaged
    try:
        return RequestLog(
            plan=codec.decode(StagePlan, header.get("plan"), "plan"),
            planned=codec.decode(int, header.get("planned"), "planned"),
            wall_started_at=codec.decode(float, header.get("wall_started_at"), "wall_started_at"),
            aborted=codec.decode(str, header.get("aborted", ""), "aborted"),
            records=tuple(records),
            notes=tuple(notes),
        )
    except codec.Unreadable as problem:
        raise StateError(f"{where}: line 1: {problem}; the file is damaged") from None


def parse_request_line(line: str) -> RequestRecord:
    """
    One request.

    Raises:
        codec.Unreadable: cut off, or not such a line.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise codec.Unreadable("", "not JSON") from None
    if not isinstance(found, dict):
        raise codec.Unreadable("", "not an object")
    if "class" in found:
        found["request_class"] = found.pop("class")
    return codec.decode(RequestRecord, found)


def _dump(line: dict[str, Any]) -> str:
    return json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n"
