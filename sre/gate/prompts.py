"""
Prompts of a wanted length, without any tokenizer: words whose count of tokens the server itself tells.

A prompt is a nonce, then always the same filler. The nonce comes first, so that a server's prefix cache, which goes by
whole blocks from the start, finds nothing of an earlier prompt.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

CHARS_PER_TOKEN = 4.0
"""Of English text; used only where the server tells nothing (our estimate)."""
TOLERANCE_RATIO = 0.02
NONCE_WORDS = (
    " able", " area", " army", " baby", " back", " ball", " band", " bank", " base", " bear", " beat", " bill",
    " bird", " blue", " boat", " body", " book", " born", " call", " camp", " card", " care", " case", " cell",
    " city", " club", " cold", " cost", " dark", " data", " date", " dead", " deal", " deep", " door", " draw",
    " east", " easy", " edge", " face", " fact", " fall", " farm", " fast", " fear", " feel", " file", " fire",
    " fish", " food", " foot", " form", " free", " game", " girl", " give", " goal", " gold", " good", " hair",
    " half", " hall", " hand", " hard",
)  # fmt: skip
"""64 of one length: six bits each. Common words, so that a nonce has the same number of tokens as any other."""
NONCES = 10
"""Words in a nonce: 60 bits, within the first block of 16 tokens."""
_PAIRS = [first + second for first in NONCE_WORDS for second in NONCE_WORDS]
FILLER_WORDS = (
    " the", " time", " of", " day", " when", " all", " the", " people", " in", " the", " town", " came", " out",
    " to", " see", " what", " was", " new", " at", " the", " market", " and", " then", " went", " home", " again",
)  # fmt: skip
_FILLER = "".join(FILLER_WORDS)
_STARTS = [len("".join(FILLER_WORDS[:count])) for count in range(len(FILLER_WORDS) + 1)]


@dataclass(frozen=True, slots=True)
class PromptScale:
    """
    How many tokens a prompt has: ``fixed_tokens`` (nonce, chat template) and ``tokens_per_word`` of filler.

    Attributes:
        method: Who told: "tokenize", "usage", "chars".
    """

    fixed_tokens: float
    tokens_per_word: float
    method: str

    def words(self, tokens: int) -> int:
        """Words of filler for a prompt of ``tokens`` in all; 0 when nonce and template alone are as long."""
        return max(0, round((tokens - self.fixed_tokens) / self.tokens_per_word))

    def tokens(self, words: int) -> float:
        """Tokens of a prompt with ``words`` of filler."""
        return self.fixed_tokens + self.tokens_per_word * words


def scale_from(first: tuple[int, float], second: tuple[int, float], method: str) -> PromptScale:
    """
    Return the line through two prompts that the server counted, each (words of filler, tokens).

    Raises:
        ValueError: More words had no more tokens: the counts cannot be relied on.
    """
    (few, few_tokens), (many, many_tokens) = sorted((first, second))
    if many <= few or many_tokens <= few_tokens:
        raise ValueError(f"{few} words count {few_tokens} tokens and {many} words count {many_tokens}")
    slope = (many_tokens - few_tokens) / (many - few)
    return PromptScale(few_tokens - slope * few, slope, method)


def scale_by_chars() -> PromptScale:
    """The scale where the server counts nothing: four characters are a token."""
    nonce_chars = NONCES * len(NONCE_WORDS[0])
    return PromptScale(nonce_chars / CHARS_PER_TOKEN, len(_FILLER) / len(FILLER_WORDS) / CHARS_PER_TOKEN, "chars")


def nonce(salt: str, stream: str, index: int) -> str:
    """
    Return the words that begin a prompt.

    Args:
        salt: Of this pass over this stage: equal seeds must not find each other's prompts in a cache.
        stream, index: Which request of it.
    """
    digest = int.from_bytes(hashlib.blake2b(f"{salt}/{stream}/{index}".encode(), digest_size=8).digest(), "big")
    return "".join([_PAIRS[(digest >> (12 * place)) & 4095] for place in range(NONCES // 2)])


def filler(words: int) -> str:
    """Return ``words`` words, the same for every call."""
    rounds, rest = divmod(words, len(FILLER_WORDS))
    return _FILLER * rounds + _FILLER[: _STARTS[rest]]


def prompt(salt: str, stream: str, index: int, words: int) -> str:
    """Return a whole prompt; plain ASCII that JSON need not escape."""
    return nonce(salt, stream, index) + filler(words)
