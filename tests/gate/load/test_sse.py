"""Server-sent events from bytes, however they were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.gate import sse
from sre.gate.sse import Event, SseParser, TooLong


def parse(*chunks: bytes) -> list[Event]:
    parser = SseParser()
    events: list[Event] = []
    for chunk in chunks:
        events += parser.feed(chunk)
    return events + parser.finish()


line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
texts = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12).map(str.encode)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Event]]:
    """A stream, and the events in it. Line ends differ from line to line."""
    out = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    events = []
    for _ in range(draw(st.integers(0, 4))):
        lines = [b"data: " + text for text in draw(st.lists(texts, min_size=1, max_size=3))]
        events.append((b"", b"\n".join(line[6:] for line in lines)))
        extra = draw(st.lists(st.sampled_from([b": comment", b"id: 4", b"retry: 10", b"odd", b":"]), max_size=2))
        for line in [*extra, *lines, b""]:
            end = draw(line_ends)
            if not line and end == b"\n" and out.endswith(b"\r"):
                end = b"\r"  # else it were the second half of the end before
            out += line + end
    return out, events


@given(streams(), st.lists(st.integers(0, 400), max_size=12))
def test_where_the_bytes_were_cut_changes_nothing(stream: tuple[bytes, list[Event]], cuts: list[int]) -> None:
    text, expected = stream
    places = sorted({min(cut, len(text)) for cut in cuts})
    chunks = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert parse(*chunks) == parse(text) == parse(*(bytes([byte]) for byte in text)) == expected


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_all_three_line_ends(end: bytes) -> None:
    stream = end.join([b"data: a", b"data: b", b"", b": c", b"event: error", b"data:d", b"", b""])
    assert parse(stream) == [(b"", b"a\nb"), (b"error", b"d")]


def test_the_form_that_most_streams_have_and_its_look_alikes() -> None:
    assert parse(b"data: 1\n\n", b"data: 2\n\ndata: 3\n\n") == [(b"", b"1"), (b"", b"2"), (b"", b"3")]
    assert parse(b"data: 0\n\n", b"data: a data: b\n\n") == [(b"", b"0"), (b"", b"a data: b")]
    assert parse(b"data: 0\n\n", b"data: 1\ndata: 2\n\n") == [(b"", b"0"), (b"", b"1\n2")]
    assert parse(b"data: 0\n\n", b"event: x\n\ndata: 1\n\n") == [(b"", b"0"), (b"", b"1")]
    assert parse(b"data: 0\n\n", b"data: 1\n\n\n\ndata: 2\n\n") == [(b"", b"0"), (b"", b"1"), (b"", b"2")]


def test_an_event_without_its_blank_line_is_none_but_for_the_end_mark() -> None:
    assert parse(b"data: 1") == []
    assert parse(b"data: 1\n") == []
    assert parse(b"data: 1\n\ndata: [DONE]") == [(b"", b"1"), (b"", b"[DONE]")]
    assert parse(b"data: [DONE]\n") == [(b"", b"[DONE]")]


def test_an_event_without_data_is_none_and_its_name_is_forgotten() -> None:
    assert parse(b"event: error\n\ndata: 1\n\n") == [(b"", b"1")]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_event_that_has_no_end_is_refused(end: bytes) -> None:
    tenth = b"data: " + b"x" * (sse.MOST_BYTES // 10) + end
    with pytest.raises(TooLong):
        parse(*[tenth] * 20)
