"""Prompts of a wanted length, new to every cache."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.adapters.load.bodies import Bodies, request_document
from sre.adapters.load.wire import Target
from sre.gate import prompts
from sre.gate.prompts import PromptScale, filler, nonce, prompt, scale_by_chars, scale_from
from sre.gate.schedule import PlannedRequest
from sre.gate.stages import RequestClass
from sre.simulator.text import block_hashes, count_tokens


@given(st.integers(16, 40_000))
def test_the_simulated_engines_prompts_are_within_two_percent(tokens: int) -> None:
    counts = [(words, count_tokens(prompt("s", "base", 1, words).encode())) for words in (24, 512)]
    scale = scale_from(counts[0], counts[1], "tokenize")
    made = count_tokens(prompt("s", "base", 1, scale.words(tokens)).encode())
    assert made == pytest.approx(tokens, rel=prompts.TOLERANCE_RATIO, abs=3)


def test_without_any_count_four_characters_are_a_token() -> None:
    scale = scale_by_chars()
    assert len(prompt("s", "base", 1, scale.words(1000))) == pytest.approx(4000, rel=0.02)
    assert scale.method == "chars"


def test_no_prompt_is_shorter_than_its_nonce() -> None:
    assert scale_by_chars().words(1) == 0
    assert PromptScale(30, 1.0, "usage").words(10) == 0


@pytest.mark.parametrize(("first", "second"), [((10, 50), (20, 50)), ((10, 50), (20, 40)), ((10, 50), (10, 60))])
def test_counts_that_do_not_grow_are_refused(first: tuple[int, int], second: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="words count"):
        scale_from(first, second, "usage")


@given(st.integers(0, 500), st.integers(0, 500))
def test_more_words_only_add_to_the_filler(few: int, more: int) -> None:
    assert filler(few + more).startswith(filler(few))
    assert len(filler(few).split()) == few


def test_prompts_share_no_block_with_any_other() -> None:
    texts = [prompt(salt, stream, index, 100) for salt in "ab" for stream in ("base", "long") for index in range(200)]
    first_blocks = {block_hashes(text.encode(), 16)[0] for text in texts}
    assert len(first_blocks) == len(texts)


def test_nonces_have_one_length_and_come_again_for_the_same_request() -> None:
    assert {len(nonce("s", "base", index)) for index in range(500)} == {prompts.NONCES * 5}
    assert nonce("s", "base", 3) == nonce("s", "base", 3)
    assert {len(word) for word in prompts.NONCE_WORDS} == {5}
    assert len(set(prompts.NONCE_WORDS)) == 64


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_body_is_the_document_with_the_prompt_in_it(api: str) -> None:
    target = Target("http://h", api, "modèl \\u0000", usage=True)
    kind = RequestClass("short", 1.0, 64, 8)
    planned = PlannedRequest(5, 0.1, kind, 64, 8, "base", 4)
    body = json.loads(Bodies(target, {64: 30}, "salt").body(planned))
    text = prompt("salt", "base", 4, 30)
    assert body == request_document(target, text, max_tokens=8, stream=True, fixed_length=True)
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["messages"][0]["content"] if api == "chat" else body["prompt"]) == text


def test_fields_that_a_server_refuses_are_left_out() -> None:
    target = Target("http://h", "chat", "m", usage=False)
    body = request_document(target, "x", max_tokens=8, stream=True, fixed_length=False)
    assert "ignore_eos" not in body
    assert "stream_options" not in body


def test_the_key_is_not_shown() -> None:
    assert "hush" not in repr(Target("http://h", "chat", "m", api_key="hush"))
