"""Whatever bytes a server sends, in whatever pieces: one end with a cause, no exception, no empty success."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sre.adapters.load.connections import Connection, Connections
from sre.adapters.load.response import ResponseReader
from sre.adapters.load.sender import ERROR_BODY_BYTES, Flight, Sender
from sre.adapters.load.wire import Target
from sre.gate.answer import Answer
from sre.gate.ending import Ending
from sre.gate.records import Cause, RequestRecord
from tests.support.sse_stub import content_document, event_bytes

MAX_TOKENS = 4
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@dataclass
class Heard:
    """Stands for the sender: how requests ended, and what went wrong with us."""

    ended: list[tuple[Ending, Answer]] = field(default_factory=list)
    crashes: list[BaseException] = field(default_factory=list)

    def landed(self, flight: Flight, ending: Ending, at: float) -> None:
        self.ended.append((ending, flight.answer))

    def crashed(self, error: BaseException) -> None:
        self.crashes.append(error)


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: Any) -> None:
        return None

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0


def end_of(pieces: Sequence[bytes], broken: OSError | None = None) -> tuple[Cause, str, bool, int | None]:
    """Cause and detail of a request answered with ``pieces``; whether content was seen; tokens."""
    heard, wire = Heard(), Wire()
    connection = Connection(Connections(Target("http://127.0.0.1:1", "completions", "m")))
    flight = Flight(cast(Sender, heard), RequestRecord(0, "short", 0.0, max_tokens=MAX_TOKENS), fixed_length=False)
    connection.connection_made(wire)
    connection.post(b"POST", flight)
    for piece in pieces:
        if wire.aborted:
            break
        connection.data_received(piece)
    connection.connection_lost(broken)
    assert heard.crashes == []
    ((ending, answer),) = heard.ended
    return ending.cause, ending.detail, answer.chunks > 0, answer.output_tokens


def cut(raw: bytes, places: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(raw), *(place % (len(raw) + 1) for place in places)})
    return [raw[start:end] for start, end in itertools.pairwise(edges)]


EVENTS = [
    event_bytes(content_document(" word", None)),
    event_bytes(content_document(" wörd", "length")),
    event_bytes(content_document("", "stop")),
    event_bytes({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}),
    event_bytes({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9}}),
    event_bytes({"error": {"message": "out of memory"}}),
    b": comment\r\n\r\n",
    b"event: error\ndata: {}\n\n",
    b"data: [1, 2]\n\n",
    b"data: {\n\n",
    b"data: [DONE]\n\n",
    b"data: [DONE]",
    b"{}",
    b'{"choices": [{"index": 0, "text": "word", "finish_reason": "stop"}]}',
]


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """A whole answer, or one with a wound or two."""
    body = b"".join(draw(st.lists(st.sampled_from(EVENTS), max_size=6)))
    head = draw(
        st.sampled_from([OK, OK, OK, b"HTTP/1.1 503 x\r\n", b"HTTP/1.1 204 x\r\n", b"HTTP/1.1 100 x\r\n\r\n" + OK])
    )
    form = draw(st.sampled_from(["chunked", "sized", "until close"]))
    if form == "chunked":
        raw = head + b"Transfer-Encoding: chunked\r\n\r\n"
        raw += b"".join(
            b"%x\r\n%s\r\n" % (len(part), part) for part in cut(body, draw(st.lists(st.integers(0, 999)))) if part
        )
        raw += b"0\r\n\r\n"
    elif form == "sized":
        raw = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:
        raw = head + b"\r\n" + body
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, len(raw)))
        end = min(len(raw), start + draw(st.integers(0, 12)))
        raw = raw[:start] + draw(st.binary(max_size=4)) + raw[end:]
    return raw


places = st.lists(st.integers(0, 2000), max_size=6)


@settings(max_examples=400)
@given(answers() | st.binary(max_size=200), places)
def test_every_answer_ends_once_the_same_however_it_was_cut(raw: bytes, where: list[int]) -> None:
    whole = end_of([raw] if raw else [])
    assert end_of(cut(raw, where)) == whole
    assert end_of([raw[place : place + 1] for place in range(len(raw))]) == whole
    cause, detail, content, tokens = whole
    if cause is Cause.OK:
        # A stream with its [DONE], or one document with its finish; words, or tokens that may be without any.
        body = ResponseReader().feed(raw)
        assert b"[DONE]" in body or b'"finish_reason"' in body
        assert content or (tokens is not None and 0 < tokens <= MAX_TOKENS)
    else:
        assert detail


@given(answers(), st.integers(0, 2000))
def test_what_a_broken_connection_leaves_is_no_success_unless_all_was_said(raw: bytes, place: int) -> None:
    raw = raw[: place % (len(raw) + 1)]
    cause, _, _, _ = end_of([raw] if raw else [], ConnectionResetError("reset"))
    body = ResponseReader().feed(raw)
    assert cause is not Cause.OK or b"[DONE]" in body or body.rstrip().endswith(b"}")


@pytest.mark.parametrize("split", [ERROR_BODY_BYTES - 1, ERROR_BODY_BYTES, 0])
def test_a_long_error_is_read_alike_however_it_was_cut(split: int) -> None:
    """The words that tell a refusal from an error lie beyond what is read of it."""
    body = b'{"error": {"message": "%s on a different instance"}}' % (b"x" * ERROR_BODY_BYTES)
    raw = b"HTTP/1.1 503 x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    place = len(raw) - len(body) + split
    assert end_of([raw[:place], raw[place:]])[0] is Cause.SERVER_ERROR
