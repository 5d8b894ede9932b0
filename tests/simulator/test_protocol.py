"""Request bodies, tokens, wire frames."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.servers import simulated_engine_wire as wire
from sre.simulator.protocol import ApiError, Call, chat_text, parse_call, parse_json
from sre.simulator.text import answer, answer_tokens, block_hashes, count_tokens, decode, encode


def call(body: dict[str, Any], *, chat: bool = False, priority: str | None = None) -> Call:
    return parse_call(body, chat=chat, model="m", max_model_len=100, priority=priority)


def test_a_completion_as_short_as_possible() -> None:
    assert call({"prompt": "hello"}) == Call(False, [b"hello"], 16, 1, False, False, False, False, 0)


def test_chat_takes_the_rest_of_the_context() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    parsed = call({"messages": messages}, chat=True)
    assert parsed.prompts == [b"user: hi\nassistant: "]
    assert parsed.max_tokens == 100 - count_tokens(chat_text(messages).encode())
    assert call({"messages": messages, "max_tokens": 9, "max_completion_tokens": 7}, chat=True).max_tokens == 7


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [([1, 2, 3], [3]), ([[1, 2], [3]], [2, 1]), (["a", "b"], [b"a", b"b"]), ("\ud800", [b"?"])],
)
def test_forms_of_prompts(prompt: Any, expected: list[bytes | int]) -> None:
    assert call({"prompt": prompt}).prompts == expected


def test_the_header_wins_over_the_body() -> None:
    assert call({"prompt": "x", "priority": 3}).priority == 3
    assert call({"prompt": "x", "priority": 3}, priority="-2").priority == -2
    assert call({"prompt": "x", "priority": 3}, priority="abc").priority == 3


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x", "max_tokens": True},
        {"prompt": "x", "n": 1.5},
        {"prompt": {"a": 1}},
        {"prompt": [[]]},
        {"prompt": [1, "a"]},
        {"prompt": "x", "stream": "yes"},
        {"prompt": "x", "stream_options": []},
        {"prompt": "x", "frequency_penalty": float("nan")},
        {"prompt": "x", "top_p": 0},
        {"prompt": "x" * 500},
        {"prompt": "x" * 396, "max_tokens": 5},
        {"prompt": "x", "n": 10**6},
    ],
)
def test_what_vllm_refuses_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        call(body)
    assert caught.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["model", "prompt", "messages", "max_tokens", "n", "stream", "stream_options", "priority", "ignore_eos",
     "frequency_penalty", "temperature", "top_p", "max_completion_tokens"]
)  # fmt: skip


@given(st.dictionaries(FIELDS, JSON, max_size=6), st.booleans())
def test_any_body_is_a_call_or_an_error_answer(body: dict[str, Any], chat: bool) -> None:
    refusal = None
    try:
        parsed = call(body, chat=chat)
    except ApiError as error:
        refusal = error
    if refusal is None:
        assert parsed.max_tokens >= 1
        assert parsed.n >= 1
        assert parsed.prompts
    else:
        assert refusal.status in (400, 404)
        json.dumps(refusal.body)


@given(st.binary(max_size=50))
def test_any_bytes_are_an_object_or_an_error_answer(text: bytes) -> None:
    try:
        found: object = parse_json(text)
    except ApiError as error:
        found = error.body
    assert isinstance(found, dict)


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(ApiError):
        parse_json(b"[" * 200_000)


@given(st.text())
def test_tokens_give_the_text_back(text: str) -> None:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    assert decode(encode(text)) == text
    assert len(encode(text)) == count_tokens(data)


@given(st.lists(st.integers(min_value=0), max_size=5))
def test_any_tokens_have_a_text(tokens: list[int]) -> None:
    assert isinstance(decode(tokens), str)


def test_blocks_are_the_same_only_after_the_same_beginning() -> None:
    first = block_hashes(b"a" * 64 + b"b" * 64 + b"c", 16)
    assert len(first) == 2
    assert block_hashes(b"a" * 64 + b"x" * 64, 16)[0] == first[0]
    assert block_hashes(b"x" * 64 + b"b" * 64, 16)[1] != first[1]


@given(st.integers(0, 10**6), st.integers(0, 200), st.integers(0, 200))
def test_an_answer_is_the_same_however_it_is_cut(offset: int, first: int, second: int) -> None:
    whole = answer(offset, 0, first + second)
    assert answer(offset, 0, first) + answer(offset, first, second) == whole
    assert whole.isascii()
    assert len(whole.split()) == first + second


def test_answers_end_at_the_limit_or_by_themselves() -> None:
    chance = random.Random(1)
    assert answer_tokens(50, ignore_eos=True, chance=chance) == (50, False)
    lengths = [answer_tokens(100, ignore_eos=False, chance=chance) for _ in range(1000)]
    assert all(1 <= tokens <= 100 and (tokens < 100 or not stops) for tokens, stops in lengths)
    assert {stops for _, stops in lengths} == {True, False}


MESSAGES = st.lists(st.tuples(st.text(max_size=5), st.integers(), st.floats(allow_nan=False)), max_size=4)


@given(st.lists(MESSAGES, max_size=4), st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_frames_arrive_whole_however_the_bytes_are_cut(batches: list[list[wire.Message]], cuts: list[int]) -> None:
    stream = b"".join(wire.pack(batch) for batch in batches)
    unpacker = wire.Unpacker()
    received: list[wire.Message] = []
    for cut in [*cuts, len(stream)]:
        received += unpacker.feed(stream[:cut])
        stream = stream[cut:]
    assert received == [message for batch in batches for message in batch]
