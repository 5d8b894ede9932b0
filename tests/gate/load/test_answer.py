"""What an answer says, and what its end is called."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.gate.answer import PLAIN_TOKENS, WORDLESS_TOKENS, Answer
from sre.gate.ending import MOST_DETAIL, Ending, moved_base, of_answer, of_status
from sre.gate.records import Cause, Outcome
from tests.support.sse_stub import content_document, event_bytes

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 20, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16}}


def read(*parts: bytes, first: float = 1.0) -> Answer:
    """Each part comes a second after the one before."""
    found = Answer()
    at = first
    for part in parts:
        found.feed(part, at)
        at += 1
    found.end(at)
    return found


def ending(found: Answer, cut: str | None = None, max_tokens: int = 4) -> Ending:
    return of_answer(found, cut=cut, max_tokens=max_tokens, content_type="text/event-stream")


def text(words: str, finish: str | None = None, *, chat: bool = False) -> bytes:
    return event_bytes(content_document(words, finish, chat=chat))


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event_bytes({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


@pytest.mark.parametrize("chat", [False, True])
def test_a_whole_stream(chat: bool) -> None:
    found = read(
        text(" a", chat=chat), text(" b", "length", chat=chat), event_bytes({"choices": [], "usage": USAGE}), DONE
    )
    assert (found.first_event_at, found.first_content_at, found.last_content_at, found.done_at) == (1, 1, 2, 4)
    assert (found.chunks, found.max_gap_seconds, found.gap_seconds_sum) == (2, 1, 1)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (20, 2, 16)
    assert found.finish_reason == "length"
    assert ending(found) == Ending(Cause.OK)
    assert ending(found).outcome is Outcome.SUCCESS


def test_role_reasoning_and_content_are_kept_apart() -> None:
    found = read(
        delta(role="assistant", content=""), delta(reasoning_content="hm"), delta(content=""), delta(content="x"),
        delta("stop"), DONE,
    )  # fmt: skip
    assert (found.first_event_at, found.first_reasoning_at, found.first_content_at, found.chunks) == (1, 2, 4, 1)


def test_reasoning_alone_stands_for_content() -> None:
    found = read(delta(reasoning="hm"), delta("stop", reasoning="so"), DONE)
    assert (found.first_content_at, found.last_content_at, found.chunks) == (1, 2, 2)
    assert not found.said_anything
    assert ending(found).cause is Cause.OK


@pytest.mark.parametrize(
    "fields",
    [{"tool_calls": [{"index": 0, "function": {"name": "f"}}]}, {"function_call": {"name": "f"}}, {"refusal": "no"}],
)
def test_tool_calls_and_refusals_are_content(fields: dict[str, Any]) -> None:
    found = read(delta("tool_calls", **fields), DONE)
    assert ending(found).cause is Cause.OK
    assert found.first_content_at == 1


@pytest.mark.parametrize(
    ("parts", "cause", "detail"),
    [
        ([text(" a"), event_bytes({"error": {"message": "boom"}}), DONE], Cause.ERROR_EVENT, "boom"),
        ([text(" a"), event_bytes({"error": "boom"})], Cause.ERROR_EVENT, "boom"),
        ([event_bytes({"object": "error", "message": "boom"}), DONE], Cause.ERROR_EVENT, "boom"),
        ([b'event: error\ndata: {"message": "boom"}\n\n', DONE], Cause.ERROR_EVENT, "boom"),
        ([b'{"error": {"message": "boom"}}'], Cause.ERROR_EVENT, "boom"),
        ([text(" a", "stop")], Cause.TRUNCATED, "without [DONE]"),
        ([b": nothing but a comment\n\n"], Cause.MALFORMED, "no event"),
        ([], Cause.TRUNCATED, "without [DONE]"),
        ([text(" a"), DONE], Cause.NO_FINISH, "no finish_reason"),
        ([text(" a", "abort"), DONE], Cause.NO_FINISH, "abort"),
        ([text("", "stop"), DONE], Cause.NO_CONTENT, ""),
        ([b"data: not json\n\n", text(" a", "stop"), DONE], Cause.MALFORMED, "not JSON"),
        ([b"data: [1]\n\n", DONE], Cause.MALFORMED, "no JSON object"),
        ([b'data: {"choices": 5}\n\n', DONE], Cause.MALFORMED, "choices"),
        ([b'data: {"choices": [5]}\n\n', DONE], Cause.MALFORMED, "choice"),
        ([b'data: {"usage": 5}\n\n', DONE], Cause.MALFORMED, "usage"),
        ([b'data: {"a": 1} {"b": 2}\n\n', DONE], Cause.MALFORMED, "not JSON"),
        ([b"data: \xff\n\n", DONE], Cause.MALFORMED, "not JSON"),
        ([b"<html>"], Cause.MALFORMED, "no event"),
        ([b'{"choices": ['], Cause.MALFORMED, "not JSON"),
        ([b"{" * 100_000], Cause.MALFORMED, "not JSON"),
        (
            [text(" a", "stop"), event_bytes({"usage": {"completion_tokens": 5}}), DONE],
            Cause.TOO_MANY_TOKENS,
            "5 tokens",
        ),
    ],
)
def test_what_is_no_whole_answer_fails_and_says_how(parts: list[bytes], cause: Cause, detail: str) -> None:
    found = ending(read(*parts))
    assert found.cause is cause
    assert found.outcome is Outcome.FAILURE
    assert detail in found.detail


def test_a_broken_connection_is_truncated_unless_all_was_said() -> None:
    assert ending(read(text(" a")), cut="reset").cause is Cause.TRUNCATED
    assert ending(read(b'{"choices": ['), cut="reset").cause is Cause.TRUNCATED
    assert ending(read(text(" a", "stop"), DONE), cut="reset").cause is Cause.OK


def test_a_few_tokens_without_text_are_an_answer_that_was_told_by_its_end() -> None:
    def wordless(tokens: int, finish: str = "length", chunks: int = 2) -> Answer:
        usage = event_bytes({"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 9}})
        return read(*[text("")] * chunks, text("", finish), usage, DONE)

    few = wordless(WORDLESS_TOKENS)
    assert ending(few) == Ending(Cause.OK)
    assert (few.first_event_at, few.first_content_at, few.last_content_at, few.chunks) == (1, 3, 3, 0)
    assert not few.said_anything
    # More of them are no half character, none are no answer, and a wrong finish stays wrong.
    assert ending(wordless(WORDLESS_TOKENS + 1), max_tokens=9).cause is Cause.NO_CONTENT
    forced = Answer(None)
    for part in (text("", "length"), event_bytes({"choices": [], "usage": {"completion_tokens": 99}}), DONE):
        forced.feed(part, 1.0)
    assert ending(forced, max_tokens=99) == Ending(Cause.OK)
    assert ending(wordless(0)).cause is Cause.NO_CONTENT
    assert ending(wordless(2, "abort")).cause is Cause.NO_FINISH
    assert ending(read(text("", "stop"), DONE)).cause is Cause.NO_CONTENT


def test_one_document_where_a_stream_was_asked_for() -> None:
    document = {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}], "usage": USAGE}
    raw = json.dumps(document).encode()
    found = read(b" \r\n", raw[:20], raw[20:])
    assert (found.first_event_at, found.first_content_at, found.chunks, found.output_tokens) == (None, 4, 1, 2)
    assert ending(found).cause is Cause.OK


def test_what_comes_after_the_end_mark_counts_for_nothing() -> None:
    found = read(text(" a", "stop"), DONE, text(" b"), event_bytes({"error": "late"}))
    assert (found.chunks, found.error) == (1, None)


def test_the_last_usage_counts_and_null_is_none() -> None:
    running = [event_bytes({"usage": {"completion_tokens": n, "prompt_tokens": 3}}) for n in (1, 2)]
    found = read(*running, event_bytes({"usage": None}), DONE)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (3, 2, None)
    odd = read(event_bytes({"usage": {"completion_tokens": -1, "prompt_tokens": True}}), DONE)
    assert (odd.prompt_tokens, odd.output_tokens) == (None, None)


def vllm_chunk(words: str, model: str, *, chat: bool, finish: str | None, tail: dict[str, Any]) -> bytes:
    """A chunk in the order of vLLM's fields."""
    choice: dict[str, Any] = {"index": 0}
    choice |= {"delta": {"content": words}} if chat else {"text": words}
    choice |= {"logprobs": None, "finish_reason": finish, "stop_reason": None, "token_ids": None}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": model, "choices": [choice]}
    return json.dumps(head | tail, separators=(",", ":"), ensure_ascii=False).encode()


@given(
    words=st.text(max_size=8),
    model=st.text(max_size=8),
    chat=st.booleans(),
    finish=st.sampled_from([None, "stop", "abort"]),
    tail=st.sampled_from([{}, {"usage": None}, {"usage": USAGE}, {"error": None}, {"error": {"message": "x"}}]),
)
def test_chunks_known_by_their_form_say_what_json_says(
    words: str, model: str, chat: bool, finish: str | None, tail: dict[str, Any]
) -> None:
    raw = vllm_chunk(words, model, chat=chat, finish=finish, tail=tail)
    quick = read(text(" a"), b"data: " + raw + b"\n\n", DONE)
    slow = read(text(" a"), b"data: " + raw.replace(b'"id"', b' "id"', 1) + b"\n\n", DONE)
    for name in ("chunks", "first_content_at", "first_event_at", "error", "malformed", "output_tokens", "finished"):
        assert getattr(quick, name) == getattr(slow, name), name


@given(
    words=st.lists(st.text(max_size=4) | st.sampled_from(['","logprobs":null', "\\", '"', " a", ""]), max_size=4),
    finish=st.sampled_from([None, "stop"]),
    chat=st.booleans(),
    cut=st.integers(0, 60),
)
def test_events_that_differ_in_their_words_alone_say_what_json_says(
    words: list[str], finish: str | None, chat: bool, cut: int
) -> None:
    """After the first of a stream, the others are known by what they repeat of it."""
    raw = [b"data: " + vllm_chunk(one, "m", chat=chat, finish=None, tail={}) + b"\n\n" for one in (" first", *words)]
    raw.append(b"data: " + vllm_chunk(" end", "m", chat=chat, finish=finish, tail={}) + b"\n\n")
    raw += [raw[0], raw[0][: -1 - cut], raw[0][-1 - cut :], raw[0].replace(b'null,"stop', b'"x","stop'), DONE]
    quick = read(*raw)
    slow = read(*(one.replace(b'"id"', b' "id"', 1) for one in raw))
    for name in ("chunks", "first_content_at", "last_content_at", "max_gap_seconds", "malformed", "finished", "done"):
        assert getattr(quick, name) == getattr(slow, name), name


@given(
    kinds=st.lists(st.sampled_from(["plain", "chat", "empty", "end", "comment", "usage"]), max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_events_read_at_once_say_what_they_say_one_by_one(kinds: list[str], cuts: list[int]) -> None:
    def event(kind: str) -> bytes:
        if kind in ("comment", "usage"):
            return b": hm\n\n" if kind == "comment" else event_bytes({"choices": [], "usage": USAGE})
        words = "" if kind == "empty" else ' \\ "wö\n'
        finish = "stop" if kind == "end" else None
        raw = vllm_chunk(words, "m", chat=kind == "chat", finish=finish, tail={})
        return b"data: " + raw + b"\n\n"

    def seen(found: Answer) -> tuple[Any, ...]:
        found.end(0.0)
        return (found.chunks, found.first_event_at, found.first_content_at, found.last_content_at, found.done,
                found.max_gap_seconds, found.gap_seconds_sum, found.finished, found.malformed, found.output_tokens,
                ending(found))  # fmt: skip

    stream = b"".join(event(kind) for kind in kinds) + DONE
    whole, pieces, slow = Answer(), Answer(), Answer()
    whole.feed(stream, 1.0)
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        pieces.feed(stream[start:end], 1.0)
    slow.feed(stream.replace(b'"id"', b' "id"'), 1.0)
    assert seen(whole) == seen(pieces) == seen(slow)


def test_the_usual_chunk_is_known_by_its_form() -> None:
    """Else the quick way is never taken, and nobody would notice."""
    for chat in (False, True):
        raw = vllm_chunk(' a "b"', "m", chat=chat, finish=None, tail={})
        assert PLAIN_TOKENS.fullmatch(3 * (b"data: " + raw + b"\n\n"))
    empty = vllm_chunk("", "m", chat=False, finish=None, tail={})
    assert not PLAIN_TOKENS.fullmatch(b"data: " + empty + b"\n\n")


@pytest.mark.parametrize(
    ("status", "reason", "body", "cause", "outcome"),
    [
        (500, None, b"", Cause.SERVER_ERROR, Outcome.FAILURE),
        (503, None, b'{"error": {"message": "busy, try later"}}', Cause.SERVER_ERROR, Outcome.FAILURE),
        (503, None, b'{"error": {"message": "later or on a different instance."}}', Cause.REFUSED, Outcome.NEUTRAL),
        (503, "hang", b"", Cause.REFUSED, Outcome.NEUTRAL),
        (429, "rate_limited", b"", Cause.REFUSED, Outcome.NEUTRAL),
        (429, None, b"", Cause.RATE_LIMITED, Outcome.NEUTRAL),
        (404, None, b'{"detail": "Not Found"}', Cause.CLIENT_ERROR, Outcome.NEUTRAL),
        (302, None, b"", Cause.REDIRECT, Outcome.NEUTRAL),
        (204, None, b"", Cause.MALFORMED, Outcome.FAILURE),
    ],
)
def test_other_statuses(status: int, reason: str | None, body: bytes, cause: Cause, outcome: Outcome) -> None:
    found = of_status(status, reason, body)
    assert (found.cause, found.outcome) == (cause, outcome)
    assert str(status) in found.detail


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("https://new:8443/v1/models", "HTTP 301 to https://new:8443/v1/models"),
        ("https://user:pass@new/v1/models?token=abc#x", "HTTP 301 to https://new/v1/models"),
        ("/v1/models/", "HTTP 301 to /v1/models/"),
        ("https://[bad/", "HTTP 301"),
        ("?token=abc", "HTTP 301"),
        (None, "HTTP 301"),
    ],
)
def test_a_redirect_says_where_it_points_without_what_may_be_secret(location: str | None, said: str) -> None:
    assert of_status(301, None, b"", location).detail == said


@pytest.mark.parametrize(
    ("location", "base"),
    [
        ("https://new:8443/v1/models", "https://new:8443"),
        ("https://new/llm/v1/models/?a=b", "https://new/llm"),
        ("//new/v1/models", "http://new"),
        ("/llm/v1/models", "http://old:1/llm"),
        ("/v1/models/", ""),
        ("https://login/?next=/v1/models", ""),
        ("https://[bad", ""),
        ("", ""),
    ],
)
def test_the_url_to_use_instead_of_a_redirected_one(location: str, base: str) -> None:
    assert moved_base("http://old:1/v1/models", "http://old:1", location) == base


def test_a_detail_is_short_and_on_one_printable_line() -> None:
    found = of_status(500, None, b"\x1b[31mboom\r\n" + b"x" * 1000)
    assert len(found.detail) <= MOST_DETAIL
    assert found.detail.isprintable()
    assert found.detail.startswith("HTTP 500: ?[31mboom x")
