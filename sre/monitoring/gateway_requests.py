"""
Requests as the gateway saw them: judged by their answer, or refused before an engine was asked.

To a user a refusal is a failure, unless it is his own fault or an agreed limit: an open breaker, too many requests at
once and no engine in rotation count; rate limits, offline work that is shed and requests that are wrong do not. Nor
does what the client gave up, or vLLM's own full queue (``VllmAdmissionRejections`` tells of that).
"""

from __future__ import annotations

from dataclasses import dataclass

from sre.metrics import own
from sre.monitoring.levels import POOL
from sre.monitoring.promql import Expr, Selection, among, either, or_zero, relabelled, sum_by


@dataclass(frozen=True, slots=True)
class GatewayRequests:
    """``bad`` of the ``judged`` requests; both have the same series."""

    bad: Expr
    judged: Expr


def gateway_requests(selection: Selection, window: str, function: str = "rate", by: str = POOL) -> GatewayRequests:
    """Requests per second (``rate``) or in the window (``increase``), by pool, in a label called ``by``."""
    taken = selection.rate if function == "rate" else selection.increase
    # Of no pool is what asked for a model that nobody serves: no objective is about it.
    known = f'{POOL}!=""'
    refused = taken(own.REJECTED, window, known, among(own.REASON, *own.REFUSED_FOR_OUR_REASONS))

    def counted(*outcome: str) -> Expr:
        # Two metrics whose series differ in their labels: "or" keeps all of both.
        every = either(taken(own.REQUESTS, window, known, among(own.OUTCOME, *outcome)), refused)
        return sum_by(every if by == POOL else relabelled(every, by, POOL), by)

    judged = counted("success", "failure")
    return GatewayRequests(or_zero(counted("failure"), judged), judged)
