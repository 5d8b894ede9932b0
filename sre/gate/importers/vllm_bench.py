"""
``vllm bench serve --save-result --save-detailed``: arrays side by side, one entry per request, times in seconds.

``--append-result`` puts several documents into one file, one after another: one run each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sre.gate.importers.common import ImportedRuns, ImportedStage, failure, refuse, stage, succeed, take
from sre.gate.records import RequestRecord
from sre.gate.stages import Arrivals

TOOL = "vllm bench"
EXPECTED = "the result of `vllm bench serve --save-result --save-detailed`"

CANNOT_TELL = (
    "vllm bench: errors inside a stream are invisible: an answer that broke off after its head counts as answered.",
    "vllm bench: the time a request was due is not recorded, only when it was handed to the client's queue:"
    " lateness of its schedule is not seen, and latency counts from there.",
    "vllm bench: gaps between chunks include empty chunks, and its end of a request is its last chunk.",
)
UNSEEN = "vllm bench records neither its own lateness nor errors inside a stream"
ROLE_CHUNK = (
    "vllm bench over the chat API: its first token may be the role chunk, which holds no content; where there is one"
    " chunk more than tokens, the next one's arrival is taken."
)
CLOSED_LOOP = (
    "vllm bench ran with --max-concurrency: a closed loop sends less while the server is slow; the wait for a place is"
    " counted as latency here, and as the client's lateness."
)
AS_FAST = "vllm bench ran without --request-rate: all at once; there is no rate to hold and no knee to find."


@dataclass(frozen=True, slots=True)
class _Document:
    """What is read of one; everything else, generated texts above all, is dropped."""

    num_prompts: int
    start_times: Sequence[float]
    ttfts: Sequence[float]
    itls: Sequence[Sequence[float]]
    errors: Sequence[str]
    output_lens: Sequence[int]
    input_lens: Sequence[int]
    model_id: str = ""
    backend: str = ""
    latencies: Sequence[float] = ()
    queue_times: Sequence[float] = ()
    max_concurrency: int | None = None
    request_rate: float = field(default=math.inf)
    burstiness: float = 1.0


def read(text: str, where: str, request_class: str) -> ImportedRuns:
    """Every document of the file. ConfigError: not such a file, without details, cut off, runs of different kinds."""
    documents = [_document(found, f"{where}: document {index}") for index, found in enumerate(_split(text, where), 1)]
    first = documents[0]
    for index, other in enumerate(documents[1:], start=2):
        for name in ("model_id", "backend", "burstiness", "max_concurrency"):
            if getattr(other, name) != getattr(first, name):
                refuse(
                    f"{where}: document {index}: {name} is {getattr(other, name)!r}, of document 1"
                    f" {getattr(first, name)!r}; give runs of one kind per file"
                )
    told = list(CANNOT_TELL)
    told += [ROLE_CHUNK] if _chat(first) else []
    told += [CLOSED_LOOP] if first.max_concurrency else []
    told += [AS_FAST] if any(math.isinf(found.request_rate) for found in documents) else []
    stages = tuple(_stage(found, request_class) for found in documents)
    conditions = (("backend", first.backend), ("max_concurrency", str(first.max_concurrency or "none")))
    return ImportedRuns(TOOL, first.model_id, stages, tuple(told), unseen=UNSEEN, conditions=conditions)


def _split(text: str, where: str) -> list[Any]:
    decoder = json.JSONDecoder()
    found: list[Any] = []
    at = 0
    text = text.strip()
    while at < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            whole = f" ({len(found)} before it are whole)" if found else ""
            refuse(
                f"{where}: document {len(found) + 1} is damaged or cut off{whole}: {_why(error)}; expected {EXPECTED}"
            )
        found.append(document)
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def _why(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__


def _document(found: Any, where: str) -> _Document:
    if isinstance(found, dict) and "start_times" not in found and "num_prompts" in found:
        refuse(f"{where}: it holds no single requests; run vllm bench with --save-detailed")
    read = take(_Document, found, where, EXPECTED)
    count = len(read.start_times)
    for name in ("ttfts", "itls", "errors", "output_lens", "input_lens", "latencies", "queue_times"):
        held = len(getattr(read, name))
        if held != count and not (held == 0 and name in ("latencies", "queue_times")):
            refuse(f"{where}: {name} holds {held} entries, start_times {count}; the file is damaged")
    times = [
        *read.start_times,
        *read.ttfts,
        *read.latencies,
        *read.queue_times,
        *(gap for gaps in read.itls for gap in gaps),
    ]
    if not all(math.isfinite(value) for value in times):
        refuse(f"{where}: a time that is no number; the file is damaged")
    if not count:
        refuse(f"{where}: it holds no request; expected {EXPECTED}")
    return read


def _chat(document: _Document) -> bool:
    return "chat" in document.backend


def _stage(document: _Document, request_class: str) -> ImportedStage:
    records = [_record(document, index, request_class) for index in range(len(document.start_times))]
    return stage(
        records,
        request_class=request_class,
        rate_rps=document.request_rate if math.isfinite(document.request_rate) and document.request_rate > 0 else None,
        arrivals=Arrivals.CONSTANT if document.burstiness > 100 else Arrivals.POISSON,
        planned=document.num_prompts,
        max_tokens=max(document.output_lens),
    )


def _record(document: _Document, index: int, request_class: str) -> RequestRecord:
    sent = document.start_times[index]
    queued = document.queue_times[index] if document.queue_times else 0.0
    record = RequestRecord(0, request_class, sent - max(queued, 0.0), sent)
    record.prompt_tokens = document.input_lens[index]
    gaps = document.itls[index]
    latency = document.latencies[index] if document.latencies else 0.0
    if document.errors[index]:
        record.ended_at = sent + latency if latency > 0 else None
        failure(record, document.errors[index])
        return record
    first = document.ttfts[index]
    record.output_tokens = document.output_lens[index]
    record.first_chunk_at = sent + first
    last = sent + first + sum(gaps)
    record.ended_at = max(sent + latency, last)
    if record.output_tokens > 0:
        # With the role chunk there are as many gaps as tokens: the first content came one gap later.
        role = _chat(document) and len(gaps) >= record.output_tokens
        record.first_content_at = sent + first + (gaps[0] if role else 0.0)
        record.last_content_at = last
        between = gaps[1:] if role else gaps
        record.chunks = len(between) + 1
        record.gap_seconds_sum = sum(between)
        record.max_gap_seconds = max(between, default=None)
    succeed(record)
    return record
