"""HTTP/1.1 responses from bytes, however they were cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.adapters.load.response import MOST_HEAD_BYTES, ResponseReader

OK = b"HTTP/1.1 200 OK\r\n"


def read(raw: bytes, *cuts: int) -> tuple[ResponseReader, bytes]:
    reader, body = ResponseReader(), b""
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        body += reader.feed(raw[start:end])
    return reader, body


def test_answers_without_a_body_count_against_none_that_comes_later() -> None:
    refused = b"HTTP/1.1 503 Service Unavailable\r\nx-sre-reason: hang\r\ncontent-length: 0\r\n\r\n"
    reader = ResponseReader()
    for _ in range(MOST_HEAD_BYTES // len(refused) + 2):
        assert reader.feed(refused) == b""
        assert (reader.status, reader.complete, reader.reusable) == (503, True, True)
        reader.renew()
    reader.feed(OK + b"content-length: 2\r\n\r\n")  # the head of a stream comes before its body
    assert (reader.problem, reader.feed(b"hi"), reader.complete) == (None, b"hi", True)


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """Bytes of a response, the body in it, and whether its end is known from itself."""
    parts = draw(st.lists(st.binary(max_size=30), max_size=5))
    body = b"".join(parts)
    raw = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"]))
    raw += OK + draw(st.sampled_from([b"", b"X-Odd:\r\n", b"date: today\r\nServer: a: b\r\n"]))
    form = draw(st.sampled_from(["chunked", "sized", "until close"]))
    if form == "chunked":
        raw += b"Transfer-Encoding: Chunked\r\n\r\n"
        for part in parts:
            if part:
                size = draw(st.sampled_from([b"%x", b"%X", b"00%x", b"%x;name=value"]))
                raw += size % len(part) + b"\r\n" + part + b"\r\n"
        raw += b"0\r\n" + draw(st.sampled_from([b"", b"X-Sum: 5\r\n", b"A: b\r\nC: d\r\n"])) + b"\r\n"
    elif form == "sized":
        raw += b"content-length: %d\r\n\r\n" % len(body) + body
    else:
        raw += b"\r\n" + body
    return raw, body, form != "until close"


@given(responses(), st.lists(st.integers(0, 500), max_size=8), st.binary(max_size=3))
def test_any_cut_gives_the_same_body(response: tuple[bytes, bytes, bool], cuts: list[int], beyond: bytes) -> None:
    raw, body, ends = response
    reader, found = read(raw + beyond if ends else raw, *cuts)
    assert (reader.status, found, reader.complete) == (200, body, ends)
    assert reader.reusable is ends
    assert reader.ends_with_connection is not ends
    if ends:  # an empty line between messages is nobody's fault
        assert reader.unasked or not beyond.strip(b"\r\n")
    else:
        assert not reader.unasked


@given(responses(), st.data())
def test_what_broke_off_is_not_complete(response: tuple[bytes, bytes, bool], data: st.DataObject) -> None:
    raw, body, _ = response
    reader, found = read(raw[: data.draw(st.integers(0, len(raw) - 1))])
    assert not reader.complete
    assert body.startswith(found)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=3))
def test_noise_is_refused_or_waited_on_and_never_an_answer(noise: bytes, cuts: list[int]) -> None:
    for head in (b"", OK, OK + b"Transfer-Encoding: chunked\r\n\r\n", OK + b"Content-Length: "):
        whole, cut = read(head + noise), read(head + noise, *cuts)
        assert (whole[0].status, whole[0].problem, whole[1]) == (cut[0].status, cut[0].problem, cut[1])
        assert not (whole[0].problem and whole[0].complete)


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"\x16\x03\x01",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        OK + b"no colon\r\n\r\n",
        OK + b"A: b\r\n folded\r\n\r\n",
        OK + b"A : b\r\n\r\n",
        OK + b"A: b\nC: d\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 5, 6\r\n\r\n",
        OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"Content-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * (MOST_HEAD_BYTES + 1),
        OK + b"A: " + b"b" * MOST_HEAD_BYTES,
        OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * MOST_HEAD_BYTES,
    ],
)
def test_what_is_no_response_says_why(raw: bytes) -> None:
    for cuts in ((), range(0, len(raw), 1 if len(raw) < 3000 else 1000)):
        reader, _ = read(raw, *cuts)
        assert reader.problem is not None
        assert not reader.complete
        assert not reader.reusable


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (OK + b"Content-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", True),
    ],
)
def test_whether_the_connection_may_be_used_again(head: bytes, reusable: bool) -> None:
    reader, body = read(head)
    assert (reader.complete, reader.reusable, body) == (True, reusable, b"")


@given(st.lists(responses(), min_size=2, max_size=4), st.lists(st.integers(0, 500), max_size=3))
def test_a_reader_that_is_renewed_reads_as_a_new_one_does(
    found: list[tuple[bytes, bytes, bool]], cuts: list[int]
) -> None:  # fmt: skip
    """As a kept connection has it: one parser for all of its responses."""
    kept = ResponseReader()
    for raw, body, ends in found:
        fresh, _ = read(raw, *cuts)
        edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
        assert b"".join(kept.feed(raw[start:end]) for start, end in itertools.pairwise(edges)) == body
        for name in (
            "status",
            "headers",
            "began",
            "complete",
            "reusable",
            "unasked",
            "problem",
            "ends_with_connection",
        ):
            assert getattr(kept, name) == getattr(fresh, name), name
        if not ends:
            return
        kept.renew()


def test_headers_by_lower_name_and_several_of_one_together() -> None:
    reader, _ = read(OK + b"X-A:  1 \r\nx-a: 2\r\nContent-Length: 1\r\n\r\n")
    assert reader.headers == {"x-a": "1, 2", "content-length": "1"}
    assert not reader.complete
