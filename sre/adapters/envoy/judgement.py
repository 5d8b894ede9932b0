"""
What a finished request says about its engine.

Status 200 is no success: a completion succeeded only if the answer carried a valid finish_reason for every choice (the
outcome filter's verdict). What the client or the gateway itself did says nothing about the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from sre.actions.types import Outcome
from sre.adapters.envoy.line import LogLine
from sre.stack.gateway_routes import BATCH_PATHS

JUDGED_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", *BATCH_PATHS})
"""Paths whose answers the outcome filter understands."""
ENGINE_FREE_PATHS = frozenset({"/health", "/version", "/v1/models", "/tokenize", "/detokenize"})
"""Paths that answer without an engine step, through a total hang: their 2xx is no success."""
CLIENT_LEFT = frozenset({"DC", "DR"})
CLIENT_FAULT = frozenset({"DPE", "DI", "FI", "OM", "DO", "SI", "DT"})
"""The client or an injected fault: slow, malformed, idle."""
NO_ENGINE = frozenset({"UO", "UH", "NR", "NC", "RL", "RLSE", "UAEX", "NFCF"})
"""The gateway refused before an engine was asked."""
ENGINE_CUT = frozenset({"UPE", "UC", "UR", "LR"})
"""The connection to the engine broke."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """
    Verdict on one request.

    Attributes:
        outcome: What it says about the engine.
        detail: Named reason.
        client_abort: The client left before the answer was complete.
    """

    outcome: Outcome
    detail: str
    client_abort: bool = False


def _neutral(detail: str) -> Judgement:
    return Judgement(Outcome.NEUTRAL, detail)


def _failure(detail: str) -> Judgement:
    return Judgement(Outcome.FAILURE, detail)


def judge(line: LogLine) -> Judgement:
    """Return the verdict on the request whose end ``line`` reports."""
    status, flags, path, end = line.status, line.flags, line.path.partition("?")[0], line.end
    if line.detail == "direct_response" or flags & NO_ENGINE or (status == 429 and line.upstream is None):
        return _neutral("rejected_by_us")
    if flags & CLIENT_LEFT:
        return _client_left(status, path, end)
    if flags & CLIENT_FAULT or (line.upstream is None and "UF" not in flags):
        return _neutral("bad_request" if status < 500 else "client_stalled")
    if "UF" in flags:
        return _failure("connect_failure")
    if "UT" in flags:
        return _failure("timeout")
    if status >= 500:
        if end == "queue_full":
            return _neutral("queue_full")
        return _failure("cut" if flags & ENGINE_CUT else f"http_{status}")
    if status >= 400:
        return _neutral(f"http_{status}")
    if path in JUDGED_PATHS:
        return _completion(end)
    if flags & ENGINE_CUT:
        return _failure("cut")
    if path in ENGINE_FREE_PATHS:
        return _neutral("engine_free")
    return Judgement(Outcome.SUCCESS, "ok")


def _completion(end: str | None) -> Judgement:
    if end == "ok":
        return Judgement(Outcome.SUCCESS, "ok")
    if end == "opaque":
        return _neutral("opaque")  # not seen is neither good nor bad
    return _failure(end or "cut")


def _client_left(status: int, path: str, end: str | None) -> Judgement:
    """A client that left after the whole answer, or because of an error event, does not hide what the engine did."""
    if status >= 500 or (path in JUDGED_PATHS and end not in (None, "opaque")):
        return _failure(f"http_{status}") if status >= 500 else _completion(end)
    return Judgement(Outcome.NEUTRAL, "client_abort", client_abort=True)
