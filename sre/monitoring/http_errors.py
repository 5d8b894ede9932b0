"""
Failed requests as vLLM's HTTP side counts them.

``http_requests_total`` has no model, groups the status, and counts what vLLM shed at admission as 5xx like any failure.
The sheds are subtracted, and the model that the instance serves now is put on: after a change of the model, failures
from before it count for the new one. Probes are GETs; 4xx are the client's.
"""

from __future__ import annotations

from dataclasses import dataclass

from sre.metrics import vllm
from sre.monitoring.levels import INSTANCE, LEVELS, NODE
from sre.monitoring.promql import (
    Expr,
    Selection,
    among,
    at_least,
    either_on,
    minus,
    on_each,
    or_zero,
    present_by,
    sum_by,
    with_node,
)

ENGINE = LEVELS["engine"]
_INSTANCE = (NODE, INSTANCE)


@dataclass(frozen=True, slots=True)
class HttpRequests:
    """``errors`` of the requests ``served``, by node, instance and model_name; never negative."""

    errors: Expr
    served: Expr


def engine_http(selection: Selection, window: str, function: str = "rate") -> HttpRequests:
    """Requests per second (``rate``) or in the window (``increase``)."""
    rate = selection.rate if function == "rate" else selection.increase

    def counted(*status: str) -> Expr:
        return sum_by(with_node(rate(vllm.HTTP_REQUESTS, window, among("status", *status), method="POST")), *_INSTANCE)

    judged = counted("2xx", "5xx")
    errors, served = or_zero(counted("5xx"), judged), judged
    if selection.supports(vllm.ADMISSION_REJECTIONS):
        shed = or_zero(sum_by(with_node(rate(vllm.ADMISSION_REJECTIONS, window)), *_INSTANCE), judged)
        errors, served = at_least(minus(errors, shed), 0), at_least(minus(served, shed), 0)
    # The model that the instance has now: one that it had earlier in the window would get the same failures once more.
    # Where it has none, that of the window: the model of an engine that died a minute ago is still known.
    now = present_by(with_node(selection.gauge(vllm.REQUESTS_RUNNING)), *ENGINE)
    seen = selection.over_time("count_over_time", vllm.REQUESTS_RUNNING, window)
    models = either_on(now, present_by(with_node(seen), *ENGINE), *_INSTANCE)
    return HttpRequests(on_each(models, errors, *_INSTANCE), on_each(models, served, *_INSTANCE))
