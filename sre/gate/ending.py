"""
How a request ended: its cause, and the class that the gateway gives such an end.

Status 200 is no success: a stream must end with [DONE], every choice with a legal finish_reason, and content must have
come. The gateway cannot see all of that; where it cannot (no content, too many tokens), the class is the one that it
would give if it could. What our client or a gateway of ours refused says nothing about the server: neutral.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from sre.gate.answer import Answer
from sre.gate.records import Cause, Outcome
from sre.printable import one_line
from sre.signals.types import QUEUE_FULL

MOST_DETAIL = 200
"""Characters."""

_NEUTRAL = frozenset(
    {
        Cause.REFUSED, Cause.RATE_LIMITED, Cause.CLIENT_ERROR, Cause.REDIRECT, Cause.SHED_BY_CLIENT, Cause.CANCELLED,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ending:
    """What a request came to. ``detail`` is empty for a success."""

    cause: Cause
    detail: str = ""

    @property
    def outcome(self) -> Outcome:
        return outcome_of(self.cause)


def outcome_of(cause: Cause) -> Outcome:
    """Return the gateway's class of ``cause``."""
    if cause is Cause.OK:
        return Outcome.SUCCESS
    return Outcome.NEUTRAL if cause in _NEUTRAL else Outcome.FAILURE


def short(text: str) -> str:
    """Return ``text`` as a detail: on one printable line, cut."""
    line = one_line(text[: 2 * MOST_DETAIL])
    return line if len(line) <= MOST_DETAIL else line[: MOST_DETAIL - 1] + "…"


def of_status(status: int, reason: str | None, body: bytes, location: str | None = None) -> Ending:
    """
    Return the end of a request whose status is not 200.

    Args:
        reason: Header x-sre-reason, where a gateway of ours refused.
        body: Its first kilobytes, for the message.
        location: Header Location: where a redirect points.
    """
    message = _message(body)
    text = short(f"HTTP {status}: {message}" if message else f"HTTP {status}")
    if reason:
        return Ending(Cause.REFUSED, short(f"HTTP {status}, {reason}"))
    if status >= 500:
        return Ending(Cause.REFUSED if QUEUE_FULL in message else Cause.SERVER_ERROR, text)
    if status == 429:
        return Ending(Cause.RATE_LIMITED, text)
    if status >= 400:
        return Ending(Cause.CLIENT_ERROR, text)
    if status >= 300:
        place = bare_url(location) if location else ""
        return Ending(Cause.REDIRECT, short(f"HTTP {status} to {place}") if place else text)
    return Ending(Cause.MALFORMED, text)


def bare_url(url: str) -> str:
    """``url`` as it may be shown: without credentials, query and fragment, where tokens are. "": it is none."""
    try:
        parts = urlsplit(url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    except ValueError:
        return ""


def moved_base(asked: str, base: str, location: str) -> str:
    """
    The base URL that a redirect of ``asked``, a URL below ``base``, points to. "": it points to something else, or
    back to the same base.
    """
    try:
        place = bare_url(urljoin(asked, location)).rstrip("/")
    except ValueError:
        return ""
    found = place.removesuffix(asked.removeprefix(base))
    return found if found not in (place, bare_url(base)) else ""


def of_answer(answer: Answer, *, cut: str | None, max_tokens: int | None, content_type: str) -> Ending:
    """
    Return the end of a request that was answered with 200; one document where a stream was asked for is fine.

    Args:
        answer: Already ended.
        cut: How the connection broke before the body's end; None: it did not.
        max_tokens: What was allowed; None: not limited.
        content_type: For the message about an answer that cannot be read.
    """
    if answer.error is not None:
        return Ending(Cause.ERROR_EVENT, short(answer.error))
    if answer.malformed is not None and (cut is None or answer.done):
        return Ending(Cause.MALFORMED, short(f"{answer.malformed} ({content_type or 'no content type'})"))
    if not answer.done:
        if cut is None and answer.received and answer.first_event_at is None:
            return Ending(Cause.MALFORMED, short(f"no event came, of an answer of {content_type or 'no content type'}"))
        return Ending(Cause.TRUNCATED, short(cut or "the stream ended without [DONE]"))
    if not answer.finished:
        how = f"finish_reason {answer.finish_reason}" if answer.finish_reason else "no finish_reason"
        return Ending(Cause.NO_FINISH, short(how))
    if answer.first_content_at is None:
        return Ending(Cause.NO_CONTENT, "complete, and without a word")
    if max_tokens is not None and answer.output_tokens is not None and answer.output_tokens > max_tokens:
        return Ending(Cause.TOO_MANY_TOKENS, f"usage says {answer.output_tokens} tokens; {max_tokens} were allowed")
    return Ending(Cause.OK)


def _message(body: bytes) -> str:
    """What an error body says; text that is no JSON only by its first words."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return one_line(body[:MOST_DETAIL].decode("utf-8", "replace"))
    if isinstance(found, Mapping):
        error = found.get("error", found)
        if isinstance(error, Mapping):
            for key in ("message", "detail"):
                if error.get(key):
                    return str(error[key])
        elif error:
            return str(error)
    return ""
