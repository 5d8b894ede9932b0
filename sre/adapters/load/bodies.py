"""Request bodies: everything but the nonce is made once per kind of request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sre.adapters.load.wire import Target
from sre.gate.prompts import filler, nonce
from sre.gate.schedule import PlannedRequest

KEPT = 64
"""Kinds of requests whose bodies are kept; a trace may have thousands."""
_MARK = "\x00"
_MARK_BYTES = json.dumps(_MARK)[1:-1].encode()


def request_document(target: Target, text: str, *, max_tokens: int, stream: bool, fixed_length: bool) -> dict[str, Any]:
    """The JSON body that asks ``target`` about ``text``."""
    document: dict[str, Any] = {"model": target.model}
    if target.api == "chat":
        document["messages"] = [{"role": "user", "content": text}]
    else:
        document["prompt"] = text
    document |= {"max_tokens": max_tokens, "temperature": 0.0}
    if fixed_length:
        document["ignore_eos"] = True
    if stream:
        document["stream"] = True
        if target.usage:
            document["stream_options"] = {"include_usage": True}
    return document


class Bodies:
    """
    Makes bodies of one stage.

    Args:
        words: Prompt tokens wanted → words of filler.
        salt: See ``sre.gate.prompts.nonce``.
    """

    def __init__(self, target: Target, words: Mapping[int, int], salt: str) -> None:
        self._target, self._words, self._salt = target, words, salt
        self._halves = lru_cache(maxsize=KEPT)(self._make_halves)

    def body(self, planned: PlannedRequest) -> bytes:
        """Return the body of ``planned``."""
        head, tail = self._halves(planned.prompt_tokens, planned.max_tokens, planned.request_class.fixed_length)
        return head + nonce(self._salt, planned.stream, planned.index).encode() + tail

    def _make_halves(self, prompt_tokens: int, max_tokens: int, fixed_length: bool) -> tuple[bytes, bytes]:
        text = _MARK + filler(self._words[prompt_tokens])
        document = request_document(self._target, text, max_tokens=max_tokens, stream=True, fixed_length=fixed_length)
        head, _, tail = json.dumps(document, separators=(",", ":")).encode().rpartition(_MARK_BYTES)
        return head, tail
