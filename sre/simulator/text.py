"""Tokens and text of the simulated model: a token is up to four bytes of UTF-8; answers are words in a fixed order."""

from __future__ import annotations

import random

BYTES_PER_TOKEN = 4
WORDS = (
    "simulated", "answer", "of", "no", "model", "words", "follow", "one", "another", "without", "meaning", "so", "that",
    "streams", "can", "be", "counted", "and", "faults", "seen", "by", "those", "who", "watch", "the", "engine", "step",
    "after", "step", "until", "it", "ends",
)  # fmt: skip
_CYCLE = tuple(f" {word}" for word in WORDS)
MEAN_ANSWER_TOKENS = 200
"""Answers that may stop by themselves are about this long (gut feeling)."""


def encode(text: str) -> list[int]:
    """Tokens of ``text``; reversible, without any table: a one, then the bytes, as a number."""
    data = text.encode()
    return [
        int.from_bytes(b"\x01" + data[at : at + BYTES_PER_TOKEN], "big") for at in range(0, len(data), BYTES_PER_TOKEN)
    ]


def decode(tokens: list[int]) -> str:
    """Text of tokens; numbers that ``encode`` never gives become U+FFFD."""
    parts = []
    for token in tokens:
        data = token.to_bytes(max(1, (token.bit_length() + 7) // 8), "big")
        parts.append(data[1:] if data[:1] == b"\x01" and 2 <= len(data) <= BYTES_PER_TOKEN + 1 else b"\xef\xbf\xbd")
    return b"".join(parts).decode(errors="replace")


def count_tokens(data: bytes) -> int:
    """Tokens of encoded text, without making them."""
    return -(-len(data) // BYTES_PER_TOKEN)


def block_hashes(data: bytes, block_tokens: int) -> tuple[int, ...]:
    """One hash per full block of a prompt, each covering all that is before: equal only for equal beginnings."""
    size = block_tokens * BYTES_PER_TOKEN
    value = 0
    hashes = []
    for at in range(0, len(data) - size + 1, size):
        value = hash((value, data[at : at + size]))
        hashes.append(value)
    return tuple(hashes)


def answer(offset: int, start: int, count: int) -> str:
    """Tokens ``start`` to ``start + count`` of the answer that begins at word ``offset``: one word per token."""
    at = (offset + start) % len(_CYCLE)
    if at + count <= len(_CYCLE):
        return "".join(_CYCLE[at : at + count])
    rounds = (at + count) // len(_CYCLE) + 1
    return "".join((_CYCLE * rounds)[at : at + count])


def answer_tokens(limit: int, *, ignore_eos: bool, chance: random.Random) -> tuple[int, bool]:
    """Length of an answer of at most ``limit`` tokens, and whether it stops by itself."""
    if ignore_eos:
        return limit, False
    natural = 1 + int(chance.expovariate(1 / MEAN_ANSWER_TOKENS))
    return (natural, True) if natural < limit else (limit, False)
