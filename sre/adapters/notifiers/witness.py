"""
What one delivery saw of its provider: every HTTP answer, every error, and what a plugin of ours says itself.

Apprise's plugins tell only yes or no and put the reason into log text. Here the reason is seen where it arises: as
the documented ``response`` hook of requests, and as the exception.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import requests
import requests.sessions
import urllib3.exceptions

from sre.notify import answers
from sre.notify.outcomes import Cause, Outcome

LONGEST_BODY = 2_000
"""Bytes kept of an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer. ``body`` is its beginning."""

    status: int
    body: str
    retry_after_seconds: float | None


@dataclass(slots=True)
class Witness:
    """Sees one delivery."""

    answers: list[Answer] = field(default_factory=list)
    errors: list[Outcome] = field(default_factory=list)
    """Requests that got no answer."""
    told: Outcome | None = None
    """What a plugin of ours says; it knows its provider best."""

    def saw(self, response: requests.Response, *_: Any, **__: Any) -> None:
        self.answers.append(
            Answer(
                response.status_code,
                response.content[:LONGEST_BODY].decode("utf-8", "replace"),
                answers.retry_after(response.headers.get("Retry-After"), time.time()),
            )
        )

    def outcome(self, scheme: str) -> Outcome | None:
        """
        Return why it was not delivered; None when nothing that was seen says so.

        Args:
            scheme: Of the channel's URL: whose codes the answers hold.
        """
        if self.told is not None:
            return self.told
        if self.errors:
            return self.errors[-1]
        refusals = [found for answer in self.answers if (found := _refusal(scheme, answer)) is not None]
        return refusals[-1] if refusals else None

    def refused_after_all(self, scheme: str) -> bool:
        """Whether the provider said no where its plugin heard yes: an error code in an answer of 200."""
        return bool(self.answers) and _refusal(scheme, self.answers[-1]) is not None


WITNESS = Witness()
"""A delivery worker makes one delivery."""


def watch_requests() -> None:
    """Let every session that is opened from now on be seen by WITNESS."""
    requests.sessions.Session = WatchedSession  # type: ignore[misc]


class WatchedSession(requests.sessions.Session):
    """A session that tells what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks["response"].append(WITNESS.saw)

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        try:
            return super().send(request, **kwargs)
        except requests.RequestException as error:
            WITNESS.errors.append(request_outcome(error))
            raise


def request_outcome(error: requests.RequestException) -> Outcome:
    """Return what a request without an answer means: was it surely not sent, or can it have arrived?"""
    root = _root(error)
    text = f"{type(root).__name__}: {root}"
    if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.MissingSchema):
        return Outcome(Cause.BAD_URL, str(error))
    if isinstance(error, requests.TooManyRedirects):
        return Outcome(Cause.TURNED_AWAY, "it redirects without end; write the final address into the channel's URL")
    found = connection_cause(error)
    if found is not None:
        return Outcome(found, text)
    tunnel = isinstance(error, requests.exceptions.ProxyError) and "Tunnel" in text  # the proxy itself said no
    if isinstance(error, requests.ConnectTimeout) or tunnel:
        return Outcome(Cause.UNREACHABLE, text)
    if isinstance(error, requests.ReadTimeout):
        return Outcome(Cause.OUTCOME_UNKNOWN, "no answer in time; it may have arrived")
    return Outcome(Cause.OUTCOME_UNKNOWN, f"cut off while it was sent or answered, it may have arrived: {text}")


def connection_cause(error: BaseException) -> Cause | None:
    """Return why no connection came about; None when one did, or nothing says."""
    chain = list(_chain(error))
    if any(isinstance(one, urllib3.exceptions.ProtocolError | http.client.RemoteDisconnected) for one in chain):
        return None  # it broke while it was used; urllib3 calls that a failure of the proxy where there is one
    for one in chain:
        if isinstance(one, socket.gaierror | urllib3.exceptions.NameResolutionError):
            return Cause.NO_ADDRESS
        if isinstance(one, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return Cause.UNREACHABLE  # it hung up in the handshake
        if isinstance(one, ssl.SSLError | ssl.CertificateError) and "timed out" not in str(one):
            return Cause.TLS
        if isinstance(one, TimeoutError) and "handshake" in str(one):
            return Cause.UNREACHABLE
        if isinstance(one, ConnectionRefusedError | urllib3.exceptions.NewConnectionError):
            return Cause.UNREACHABLE
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and all it was made of; the libraries put a cause into arguments and attributes too."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]


def _root(error: BaseException) -> BaseException:
    """Return the innermost error, whose text an operator understands."""
    found = [
        one for one in _chain(error) if isinstance(one, OSError) and not isinstance(one, requests.RequestException)
    ]
    return found[-1] if found else error


def _refusal(scheme: str, answer: Answer) -> Outcome | None:
    cause = _cause(scheme, answer)
    if cause is not None:
        redirect = "a redirect, which is not followed" if 300 <= answer.status < 400 else ""
        words = ": ".join(filter(None, (f"HTTP {answer.status}", redirect, answer.body.strip())))
        return Outcome(cause, words, answer.retry_after_seconds)
    name = answers.provider_code_field(scheme)
    if name is None:
        return None
    refused = answers.chat_cause(scheme, _document(answer).get(name), answer.body)
    return None if refused is None else Outcome(refused, answer.body.strip(), answer.retry_after_seconds)


def _cause(scheme: str, answer: Answer) -> Cause | None:
    """Return why the status says no; None where it says yes."""
    if scheme == "sns":
        return answers.aws_cause(answer.status, _aws_code(answer.body), answer.body)
    if scheme == "twilio":
        return answers.twilio_cause(answer.status, str(_document(answer).get("code", "")))
    return answers.http_cause(answer.status)


def _document(answer: Answer) -> Mapping[str, Any]:
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _aws_code(body: str) -> str:
    _, found, rest = body.partition("<Code>")
    return rest.partition("</Code>")[0].strip() if found else ""
