"""One answer of an OpenAI-compatible server, read while it comes: what was said when, and how it ended."""

from __future__ import annotations

import json
import re
from typing import Any

from sre.gate.sse import Event, SseParser, TooLong

GOOD_FINISH = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})
"""As at the gateway. Whatever else a server writes there (abort, error) means that the answer is not whole."""
MOST_BYTES = 16 << 20
"""Of an answer that is one JSON document."""
_BLANK = b" \t\r\n"
_DONE = b"[DONE]"
_DECODE = json.JSONDecoder().raw_decode
_STRING = rb'"[ !#-\[\]-~]*+(?:\\["\\/bfnrt][ !#-\[\]-~]*+)*+"'
_WORDS = rb'(?!"")(' + _STRING + rb")"
_NULLS = rb'(?:,"[a-z_]+":null)*+'
PLAIN_TOKENS = re.compile(
    rb'(?:data: \{"id":' + _STRING + rb',"object":' + _STRING + rb',"created":(?:0|[1-9][0-9]*+),"model":' + _STRING
    + rb',"choices":\[\{"index":0,(?:"text":' + _WORDS + rb'|"delta":\{"content":' + _WORDS + rb"\})"
    + rb',"logprobs":null,"finish_reason":null' + _NULLS + rb"\}\]" + _NULLS + rb"\}\n\n)++"
)  # fmt: skip
"""
Events that carry words and nothing else, in the order of vLLM's fields: most of a stream, known without JSON.
A client has 20,000 of these to read each second. No line feed can stand within one: they are counted by those.
"""
_SAME_BUT_FOR_WORDS = re.compile(rb'(?:[ !#-\[\]-~]|\\["\\/bfnrt])++')
"""Of an event whose other bytes are those of one before it in its stream, what stands between the quotes."""
WORDLESS_TOKENS = 4
"""
An answer of at most so many tokens may be without a word: a character has up to four bytes, and each may be a token.
The server did what was asked.
"""


class _Track:
    """Events of one kind: the first, the last, and the waits between."""

    __slots__ = ("count", "first_at", "gap_sum", "last_at", "max_gap")

    def __init__(self) -> None:
        self.count = 0
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.max_gap: float | None = None
        self.gap_sum = 0.0

    def add(self, at: float, count: int = 1) -> None:
        """``count`` events came at once."""
        if self.last_at is None:
            self.first_at = at
        else:
            gap = at - self.last_at
            self.gap_sum += gap
            if self.max_gap is None or gap > self.max_gap:
                self.max_gap = gap
        self.last_at = at
        if count > 1 and self.max_gap is None:
            self.max_gap = 0.0
        self.count += count


class Answer:
    """
    Feed it the body's bytes with the moment each came; then ``end`` it.

    Content is text, a refusal in words, and tool calls. Reasoning is kept apart; only where nothing else came it stands
    for content. A role chunk and an empty text are neither. Where ``usage`` counts at most ``wordless_tokens`` and none
    had a text, the first content is the event with the finish_reason: nothing before it told a reader anything. Errors
    never raise: they are what the answer came to.

    Args:
        wordless_tokens: None: any number. One that was asked to go on after its end (ignore_eos) says the end again and
            again, and that has no text.

    Attributes:
        first_event_at: Of a stream; None for one document.
        done: [DONE] came, or the document is whole JSON.
        done_at: When.
        finish_reason: Of the first choice, as sent.
        error: Message of an error object; None: there was none.
        malformed: What is wrong with the form; None: nothing.
        prompt_tokens, output_tokens, cached_tokens: Of the last ``usage`` that was no null; None: not told.
    """

    __slots__ = (
        "_after_words", "_before_words", "_between_events", "_body", "_content", "_document", "_finish", "_finish_at",
        "_parser", "_reasoning", "_undecided", "_wordless_tokens", "cached_tokens", "done", "done_at", "error",
        "finish_reason", "first_event_at", "malformed", "output_tokens", "prompt_tokens", "received",
    )  # fmt: skip

    def __init__(self, wordless_tokens: int | None = WORDLESS_TOKENS) -> None:
        self._wordless_tokens = wordless_tokens
        self._parser = SseParser()
        self._undecided = True
        self._between_events = True
        self._before_words: bytes | None = None
        self._after_words = b""
        self._document = False
        self._body = bytearray()
        self._content = _Track()
        self._reasoning = _Track()
        self._finish: dict[int, bool] = {}
        self._finish_at: float | None = None
        self.received = False
        self.first_event_at: float | None = None
        self.done = False
        self.done_at: float | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.malformed: str | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None

    # ---- what came -------------------------------------------------------------------------------------------------

    @property
    def _counted(self) -> _Track:
        return self._content if self._content.count else self._reasoning

    @property
    def chunks(self) -> int:
        """Events with content. A document is one."""
        return self._counted.count

    @property
    def reasoning_chunks(self) -> int:
        """Events with reasoning beside those."""
        return self._reasoning.count if self._content.count else 0

    @property
    def first_content_at(self) -> float | None:
        at = self._counted.first_at
        return self._wordless_at if at is None else at

    @property
    def last_content_at(self) -> float | None:
        at = self._counted.last_at
        return self._wordless_at if at is None else at

    @property
    def _wordless_at(self) -> float | None:
        if not self.output_tokens or not self.finished:
            return None
        most = self._wordless_tokens
        return self._finish_at if most is None or self.output_tokens <= most else None

    @property
    def first_reasoning_at(self) -> float | None:
        return self._reasoning.first_at

    @property
    def said_anything(self) -> bool:
        """A content token came already; reasoning does not count while content may still come."""
        return self._content.count > 0

    @property
    def max_gap_seconds(self) -> float | None:
        return self._counted.max_gap

    @property
    def gap_seconds_sum(self) -> float:
        return self._counted.gap_sum

    @property
    def finished(self) -> bool:
        """Every choice ended with a legal reason, and there was one."""
        return bool(self._finish) and all(self._finish.values())

    # ---- reading ---------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, at: float) -> None:
        """Take bytes that came at monotonic ``at``."""
        before, after = self._before_words, self._after_words
        if (
            before is not None
            and self._between_events
            and data.startswith(before)
            and data.endswith(after)
            and _SAME_BUT_FOR_WORDS.fullmatch(data, len(before), len(data) - len(after)) is not None
        ):
            self._content.add(at)
            return
        if self._between_events and (plain := PLAIN_TOKENS.match(data)) is not None:
            end = plain.end()
            if self.first_event_at is None:
                self.first_event_at = at
                self._undecided, self.received = False, True
                self._parser.pass_over()
            self._finish.setdefault(0, False)
            count = data.count(b"\n\n", 0, end)
            self._content.add(at, count)
            if end == len(data):
                if count == 1:  # the rest of the stream has its words at the same place
                    first, last = plain.span(plain.lastindex or 0)
                    self._before_words, self._after_words = data[: first + 1], data[last - 1 :]
                return
            data = data[end:]
        self.received = True
        if self._undecided:
            self._between_events = False
            data = bytes(self._body) + data if self._body else data
            start = data.lstrip(_BLANK)
            if not start:
                self._body = bytearray(data[-1:])  # blanks say nothing, however many
                return
            self._undecided = False
            self._document = start[0] in b"{["
            self._body = bytearray()
        if self._document:
            if len(self._body) + len(data) > MOST_BYTES:
                self.malformed = self.malformed or f"a document of more than {MOST_BYTES} bytes"
                return
            self._body += data
            return
        try:
            events = self._parser.feed(data)
        except TooLong as error:
            self.malformed = self.malformed or str(error)
            return
        for event in events:
            self._event(event, at)
        self._between_events = not self.done and self._parser.between_events

    def end(self, at: float) -> None:
        """The body is over; it ended at monotonic ``at``."""
        if self._document:
            self._whole(at)
            return
        for event in self._parser.finish():
            self._event(event, at)

    def _event(self, event: Event, at: float) -> None:
        name, data = event
        if self.done:
            return
        if self.first_event_at is None:
            self.first_event_at = at
        if data == _DONE:
            self.done, self.done_at = True, at
            return
        found = self._parsed(data, "an event")
        if found is None:
            return
        if name == b"error" and self.error is None:
            self.error = _error_text(found.get("error", found))
        self._object(found, at, "delta")

    def _whole(self, at: float) -> None:
        found = self._parsed(bytes(self._body), "the document")
        if found is not None:
            self.done, self.done_at = True, at
            self._object(found, at, "message")

    def _parsed(self, data: bytes, what: str) -> dict[str, Any] | None:
        try:
            text = data.decode().strip()
            found, end = _DECODE(text)
            if end != len(text):
                raise ValueError("more than one value")
        except (ValueError, RecursionError):
            self.malformed = self.malformed or f"{what} is not JSON"
            return None
        if not isinstance(found, dict):
            self.malformed = self.malformed or f"{what} is no JSON object"
            return None
        return found

    def _object(self, found: dict[str, Any], at: float, inner: str) -> None:
        error = found.get("error")
        if error is None and found.get("object") == "error":
            error = found
        if error is not None and self.error is None:
            self.error = _error_text(error)
        usage = found.get("usage")
        if usage is not None:
            self._usage(usage)
        choices = found.get("choices")
        if choices is None:
            return
        if not isinstance(choices, list):
            self.malformed = self.malformed or "choices is no list"
            return
        content = reasoning = False
        for choice in choices:
            if not isinstance(choice, dict):
                self.malformed = self.malformed or "a choice is no object"
                continue
            part = choice.get(inner)
            if choice.get("text"):
                content = True
            elif isinstance(part, dict):
                if part.get("content") or part.get("tool_calls") or part.get("function_call") or part.get("refusal"):
                    content = True
                if part.get("reasoning_content") or part.get("reasoning"):
                    reasoning = True
            self._finish_of(choice, at)
        if reasoning:
            self._reasoning.add(at)
        if content:
            self._content.add(at)

    def _finish_of(self, choice: dict[str, Any], at: float) -> None:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self._finish[index], self._finish_at = reason in GOOD_FINISH, at
            if self.finish_reason is None:
                self.finish_reason = reason[:40]
        else:
            self._finish.setdefault(index, False)

    def _usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            self.malformed = self.malformed or "usage is no object"
            return
        self.prompt_tokens = _count(usage.get("prompt_tokens"))
        self.output_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        self.cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _error_text(error: Any) -> str:
    """The message of an error object, in whichever of the forms in use; never empty."""
    if isinstance(error, dict):
        for key in ("message", "detail", "type", "code"):
            if error.get(key):
                return str(error[key])
    return str(error) if error else "an error without a message"
