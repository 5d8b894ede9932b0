"""
What a finished request says about its engine.

Status 200 is no success: a completion succeeded only if the answer was complete and carried a valid finish_reason for
every choice (the outcome filter's verdict). What the client or the gateway itself did says nothing about the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from sre.actions.types import Outcome
from sre.adapters.envoy.line import LogLine
from sre.stack.gateway_routes import BATCH_PATHS, BATCH_ROUTE

JUDGED_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", *BATCH_PATHS})
"""Paths whose answers the outcome filter understands."""
ENGINE_FREE_PATHS = frozenset({"/health", "/version", "/v1/models", "/tokenize", "/detokenize"})
"""Paths that answer without an engine step, through a total hang: their 2xx is no success."""
CLIENT_LEFT = frozenset({"DC", "DR"})
ENGINE_CUT = frozenset({"UPE", "UC", "UR", "LR"})
"""The connection to the engine broke."""
GATEWAY_REFUSED = {
    "UO": "concurrency_limit", "UH": "no_healthy_upstream", "NR": "no_route", "NC": "no_route", "RL": "rate_limited",
}  # fmt: skip
"""Envoy's flags for refusals before an engine was asked."""
UNJUDGED = "unjudged"
"""The outcome filter was not trusted when the request ended."""
REFUSED_STATUS = {413: "body_too_large", 429: "rate_limited", 431: "headers_too_large", 408: "request_timeout"}


@dataclass(frozen=True, slots=True)
class Judgement:
    """
    Verdict on one request.

    Attributes:
        outcome: What it says about the engine.
        detail: Named reason; of a refusal of ours the one that the client saw in ``x-sre-reason``.
        client_abort: The client left before the answer was complete.
        refused: The gateway answered by itself: the request belongs to no engine, even if one was chosen for it.
    """

    outcome: Outcome
    detail: str
    client_abort: bool = False
    refused: bool = False


CLIENT_ABORT = Judgement(Outcome.NEUTRAL, "client_abort", client_abort=True)


def _neutral(detail: str) -> Judgement:
    return Judgement(Outcome.NEUTRAL, detail)


def _refused(reason: str) -> Judgement:
    return Judgement(Outcome.NEUTRAL, reason, refused=True)


def _failure(detail: str) -> Judgement:
    return Judgement(Outcome.FAILURE, detail)


def is_completion(line: LogLine) -> bool:
    """Whether the request is one that the outcome filter judges."""
    return line.path.partition("?")[0] in JUDGED_PATHS


def shows_progress(line: LogLine) -> bool:
    """Whether the bytes sent so far come from engine steps: refusals and lists of models flow through a total hang."""
    return line.status == 200 and is_completion(line)


def judge(line: LogLine, *, filter_works: bool = True) -> Judgement:
    """
    Return the verdict on the request whose end ``line`` reports.

    Args:
        filter_works: False: the outcome filter reported errors of its own. Its silence about a whole document is then
            no consent; so that the failures do not stand alone, no completion is judged at all.
    """
    verdict = _judge(line)
    if not filter_works and verdict.outcome is not Outcome.NEUTRAL and is_completion(line):
        return _neutral(UNJUDGED)
    return verdict


def _judge(line: LogLine) -> Judgement:
    path = line.path.partition("?")[0]
    if line.route is not None and line.route != BATCH_ROUTE:
        return _refused(line.route.partition("@")[0])
    for flag, reason in GATEWAY_REFUSED.items():
        if flag in line.flags:
            return _refused(reason)
    if line.flags & CLIENT_LEFT:
        return _client_left(line, path)
    if "UF" in line.flags:
        return _failure("connect_failure")
    if line.upstream is None:
        return _refused(REFUSED_STATUS.get(line.status, "bad_request"))
    if "UT" in line.flags:
        return _failure("timeout")
    if "SI" in line.flags:
        return _neutral("client_stalled")  # an engine that stalls is found earlier, by the wait between two chunks
    if line.status >= 500:
        if line.end == "queue_full":
            return _neutral("queue_full")
        return _failure("cut" if line.flags & ENGINE_CUT else f"http_{line.status}")
    if line.status >= 400:
        return _neutral(f"http_{line.status}")
    if line.flags & ENGINE_CUT and (line.end is None or path not in JUDGED_PATHS):
        return _failure("cut")
    if path in JUDGED_PATHS:
        return _completion(line)
    if path in ENGINE_FREE_PATHS:
        return _neutral("engine_free")
    return Judgement(Outcome.SUCCESS, "ok")


def _completion(line: LogLine) -> Judgement:
    if line.end is None or line.end == "ok":
        return Judgement(Outcome.SUCCESS, "ok")
    if line.end == "opaque":
        return _neutral("opaque")  # not seen is neither good nor bad
    return _failure(line.end)


def _client_left(line: LogLine, path: str) -> Judgement:
    """A client that left after the whole answer, or because of an error event, does not hide what the engine did."""
    if line.upstream is None:
        return CLIENT_ABORT
    if line.status >= 500:
        return _neutral("queue_full") if line.end == "queue_full" else _failure(f"http_{line.status}")
    if path in JUDGED_PATHS and line.status == 200 and line.end is not None and line.end != "opaque":
        return _completion(line)
    return CLIENT_ABORT
