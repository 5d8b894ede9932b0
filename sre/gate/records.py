"""
What the load generator saw of one request.

All times are seconds of CLOCK_MONOTONIC, as floats, in one process tree (comparable between our processes of one boot).
Latency is counted from ``intended_at``, the moment of the schedule, never from when the client got round to sending:
a client or server that stalls would otherwise hide the stall from every request it held back.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Outcome(enum.Enum):
    """The gateway's classes: neutral does not count for a breaker. The gate's view is ``RequestRecord.failed``."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


class Cause(enum.Enum):
    """Why a request ended as it did; one word, the same in JSONL, reports and metrics."""

    OK = "ok"  # finished with a legal finish_reason; a stream also with [DONE]
    CONNECT = "connect"  # no connection: refused, DNS, TLS
    TRANSPORT = "transport"  # connection lost before a complete head
    SERVER_ERROR = "server_error"  # HTTP 5xx other than a deliberate refusal
    REFUSED = "refused"  # by our gateway (x-sre-reason) or a full engine queue: neutral, yet failed for the gate
    RATE_LIMITED = "rate_limited"  # 429 of somebody else
    CLIENT_ERROR = "client_error"  # any other 4xx: the request was wrong
    REDIRECT = "redirect"  # 3xx: not followed, the URL is wrong
    ERROR_EVENT = "error_event"  # 200, then an error object in the stream or body
    TRUNCATED = "truncated"  # the stream ended without [DONE], or the body before its end
    NO_FINISH = "no_finish"  # complete, but a choice has no legal finish_reason (abort counts here)
    NO_CONTENT = "no_content"  # complete, but no content came where tokens without text do not explain it
    MALFORMED = "malformed"  # not the JSON / SSE of an OpenAI-compatible server
    TOO_MANY_TOKENS = "too_many_tokens"  # usage says more than max_tokens: not to be believed
    TIMEOUT = "timeout"  # over the request's deadline
    SHED_BY_CLIENT = "shed_by_client"  # never sent: the client's own in-flight limit; makes the gate inconclusive
    CANCELLED = "cancelled"  # we ended it: abort of the stage or Ctrl-C; neither ok nor failed, counted apart


NOT_FAILED = frozenset({Cause.OK, Cause.CANCELLED, Cause.SHED_BY_CLIENT})
"""Everything else was offered to the server and got no usable answer: infinitely slow."""


@dataclass(slots=True)
class RequestRecord:
    """
    One request.

    Attributes:
        number: Position in the stage's schedule, from 0; unique within a stage and run.
        request_class: Name of its class in the mix, ``short``.
        intended_at: When the schedule wanted it sent.
        sent_at: When its first byte was handed to the socket; None: never sent.
        head_at: Status line and headers complete.
        first_chunk_at: First event of a stream, whatever is in it (a role chunk, too); None without streaming.
        first_reasoning_at: First reasoning token, where the server keeps it apart from content.
        first_content_at: First content token (text, tool call; reasoning only if nothing else came): TTFT. Of an
            answer whose tokens have no text (see ``answer.Answer``), the finish: chunks is 0 then.
        last_content_at: Last content token.
        ended_at: Everything read, or given up.
        chunks: Events with content. Not tokens: a server may send several tokens in one.
        reasoning_chunks: Events with reasoning beside them; 0 where reasoning stood for content.
        max_gap_seconds: Longest wait between two content chunks; None with fewer than two.
        gap_seconds_sum: Sum over the gaps between content chunks.
        status: HTTP status; None: no head came.
        outcome, cause: What it came to.
        finish_reason: Of the first choice, as sent.
        prompt_tokens, output_tokens, cached_tokens: From the server's ``usage``; None: it sent none.
        asked_prompt_tokens: What the mix wanted.
        max_tokens: What we allowed.
        detail: First words of an error, printable, at most 200 characters; never prompt or answer text.
        connect_seconds: Spent on opening a connection before sending; 0 where one was open. The network's and the
            server's time, not the client's lateness.
        sent_again: The kept connection that it was sent on was stale; ``sent_at`` is of the first time.
    """

    number: int
    request_class: str
    intended_at: float
    sent_at: float | None = None
    head_at: float | None = None
    first_chunk_at: float | None = None
    first_reasoning_at: float | None = None
    first_content_at: float | None = None
    last_content_at: float | None = None
    ended_at: float | None = None
    chunks: int = 0
    max_gap_seconds: float | None = None
    gap_seconds_sum: float = 0.0
    status: int | None = None
    outcome: Outcome = Outcome.NEUTRAL
    cause: Cause = Cause.CANCELLED
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    asked_prompt_tokens: int | None = None
    max_tokens: int | None = None
    detail: str = ""
    connect_seconds: float = 0.0
    sent_again: bool = False
    reasoning_chunks: int = 0

    @property
    def failed(self) -> bool:
        """Offered to the server and not usably answered. A refusal is one: the user did not get an answer."""
        return self.cause not in NOT_FAILED

    @property
    def wordless(self) -> bool:
        """Answered with tokens and no text. Records of other tools have no status, and need not tell."""
        return self.cause is Cause.OK and not self.chunks and self.status == 200

    @property
    def events(self) -> int | None:
        """
        Events of an answered stream that carried tokens. None: no stream of our own, or ``wordless``, which has a note
        of its own.
        """
        if self.cause is not Cause.OK or self.status != 200 or self.first_chunk_at is None or not self.chunks:
            return None
        return self.chunks + self.reasoning_chunks

    @property
    def token_events(self) -> int | None:
        """``events`` of a stream whose ``usage`` came; None: not known."""
        return self.events if self.output_tokens else None

    @property
    def lag_seconds(self) -> float | None:
        """Intended to sent, but for the opening of a connection; >= 0: the client's own lateness. None: never sent."""
        return None if self.sent_at is None else max(0.0, self.sent_at - self.intended_at - self.connect_seconds)

    @property
    def ttft_seconds(self) -> float:
        """Intended to first content token; infinite if failed or none came."""
        return self._since(self.first_content_at)

    @property
    def e2e_seconds(self) -> float:
        """Intended to end; infinite if failed."""
        return self._since(self.ended_at)

    @property
    def tpot_seconds(self) -> float | None:
        """
        Mean time per output token after the first: (last content - first token) / (output tokens - 1).

        The first token is one of reasoning where there is any: ``usage`` counts those, too. Infinite if failed; None
        where it has no meaning (one token, one chunk, no usage).
        """
        if self.failed:
            return math.inf
        if self.first_content_at is None or self.last_content_at is None or not self.output_tokens:
            return None
        if self.output_tokens < 2 or self.chunks < 2:
            return None
        first = self.first_content_at
        if self.first_reasoning_at is not None:
            first = min(first, self.first_reasoning_at)
        return (self.last_content_at - first) / (self.output_tokens - 1)

    def _since(self, moment: float | None) -> float:
        if self.cause is not Cause.OK or moment is None:
            return math.inf
        return moment - self.intended_at
