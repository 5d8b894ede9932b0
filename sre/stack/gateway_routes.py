"""
Routes: which path, which pool, and the refusals.

Order of a decision: path allowed → information paths → body readable → model known → breaker of the pool → offline
shedding → engine. Each route that refuses is named after its reason; the access log shows the name.

The share that a breaker refuses is a runtime key; why, and when to come back, stands in its route. One route per pool
with the reason rewritten costs every request less than one route per reason (measured: 6 % of the gateway's CPU), and
a rewrite takes 5 ms.
"""

from __future__ import annotations

import json
import re

from sre.actions.types import PoolDesired, RejectReason
from sre.stack.gateway_names import (
    RATE_LIMIT_KEY,
    REASON_HEADER,
    REJECTED_HEADER,
    ROUTES,
    SHED_OFFLINE_KEY,
    Document,
    GatewayPlan,
    complete,
    pool_cluster,
    reject_key,
)

METADATA = "llm"
"""Namespace of what was read from the request body."""
INFORMATION_PATHS = frozenset({"/health", "/version", "/v1/models"})
"""GETs that no engine step is needed for: they pass an open breaker and say nothing about an engine."""
BATCH_PATHS = {"/v1/batch/completions": "/v1/completions", "/v1/batch/chat/completions": "/v1/chat/completions"}
"""Offline forms of the API: the same engine route, always counted as offline."""
BATCH_ROUTE = "batch"
"""Name of the routes that take "batch/" out of the path before the engine sees it."""
OFFLINE_RETRY_AFTER_SECONDS = 30
RATE_LIMIT_FILTER = "envoy.filters.http.local_ratelimit"
RATE_LIMIT_TYPE = "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"

MESSAGES = {
    RejectReason.HANG: "the engine is not making progress",
    RejectReason.ENGINE_DEAD: "the engine is not running",
    RejectReason.GPU_MEMORY: "GPU memory is nearly exhausted",
    RejectReason.GPU_TEMPERATURE: "the GPU is too hot",
    RejectReason.FAILED_BATCHES: "batches keep failing",
    RejectReason.ERROR_RATIO: "too many requests fail",
    RejectReason.RULE: "a protection rule fired",
    RejectReason.MANUAL: "an operator closed the service",
    RejectReason.RAMP: "the service is coming back and admits part of the traffic",
    RejectReason.LATCHED: "the service waits for an operator",
}


def error_body(message: str, kind: str, code: str) -> str:
    """An error in OpenAI's form."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def header(key: str, value: str) -> Document:
    return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _refuse(
    status: int,
    message: str,
    kind: str,
    code: str,
    reason: str,
    retry_after_seconds: int | None = None,
    pool: str | None = None,
) -> Document:
    """A route's answer of our own; marked so that nobody takes it for the engine's."""
    headers = [header("content-type", "application/json"), header(REASON_HEADER, reason), header(REJECTED_HEADER, "1")]
    if retry_after_seconds is not None:
        headers.append(header("retry-after", str(retry_after_seconds)))
    return {
        "name": reason if pool is None else f"{reason}@{pool_cluster(pool)}",
        "direct_response": {"status": status, "body": {"inline_string": error_body(message, kind, code)}},
        "response_headers_to_add": headers,
        # A refusal takes no token from the bucket. (Switching the filter off would come too late: that is decided
        # before the body is read, this after.)
        "typed_per_filter_config": {
            RATE_LIMIT_FILTER: {
                "@type": RATE_LIMIT_TYPE,
                "stat_prefix": "gw_rl",
                "token_bucket": {"max_tokens": 1, "fill_interval": "1s"},
                "filter_enabled": _share("gw.rl.refused", 0),
            }
        },
    }


def _not_allowed(paths: tuple[str, ...]) -> list[Document]:
    """
    Conditions that hold together for every path that is not in ``paths``, with or without a query.

    For an allowed path the first that fails ends the search: the first paths in the list are the cheapest, and each is
    cheaper than a regular expression over all of them.
    """
    return [
        {"name": ":path", "string_match": match, "invert_match": True}
        for path in paths
        for match in ({"exact": path}, {"prefix": f"{path}?"})
    ]


def _model(value: Document, *, invert: bool = False) -> Document:
    return {"filter": METADATA, "path": [{"key": "model"}], "value": value, "invert": invert}


def _share(key: str, default: int = 0) -> Document:
    return {"default_value": {"numerator": default, "denominator": "HUNDRED"}, "runtime_key": key}


def _route_action(plan: GatewayPlan, pool: str, *, high: bool = False, rewrite: str | None = None) -> Document:
    gateway = plan.stack.gateway
    engines = plan.stack.pools[pool]
    retry: Document = {
        "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": gateway.retries,
        "per_try_idle_timeout": f"{gateway.first_byte_timeout_seconds}s",
        "host_selection_retry_max_attempts": 5,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
    }
    if len(engines) == 1 or gateway.retries == 0:
        # Nobody else could answer.
        retry = {"per_try_idle_timeout": f"{gateway.first_byte_timeout_seconds}s"}
    action: Document = {"cluster": pool_cluster(pool), "timeout": "0s", "retry_policy": retry}
    if any(plan.addresses[e.name].hostname for e in engines if e.name in plan.addresses):
        action["auto_host_rewrite"] = True
    if high:
        action["priority"] = "HIGH"
    if rewrite is not None:
        action["prefix_rewrite"] = rewrite
    return action


def _pool_routes(plan: GatewayPlan, desired: PoolDesired, models: list[Document]) -> list[Document]:
    pool = desired.pool
    match: Document = {"prefix": "/"}
    if models:
        match["dynamic_metadata"] = models
    routes: list[Document] = []
    reason = desired.reason or RejectReason.MANUAL
    refusal = _refuse(
        503,
        f"{MESSAGES[reason]}; new requests are refused, try again later",
        "service_unavailable",
        "circuit_open" if reason is not RejectReason.RAMP else "circuit_half_open",
        reason.value,
        desired.retry_after_seconds,
        pool,
    )
    routes.append({"match": {**match, "runtime_fraction": _share(reject_key(pool))}, **refusal})
    shed = _refuse(
        503,
        "offline traffic is shed",
        "overloaded_error",
        "shed_offline",
        "shed_offline",
        OFFLINE_RETRY_AFTER_SECONDS,
        pool,
    )
    share = _share(SHED_OFFLINE_KEY)
    if plan.stack.gateway.trust_client_priority:
        offline = {"name": "x-request-type", "string_match": {"exact": "offline", "ignore_case": True}}
        routes.append({"match": {**match, "headers": [offline], "runtime_fraction": share}, **shed})
    for path, rewrite in BATCH_PATHS.items():
        if path in plan.stack.gateway.allowed_paths:
            batch = {k: v for k, v in match.items() if k != "prefix"} | {"path": path}
            routes.append({"match": {**batch, "runtime_fraction": share}, **shed})
            action = _route_action(plan, pool, rewrite=rewrite)
            routes.append({"name": BATCH_ROUTE, "match": batch, "route": action})
    if plan.stack.gateway.trust_client_priority:
        vip = {"name": "x-priority", "string_match": {"exact": "high", "ignore_case": True}}
        routes.append({"match": {**match, "headers": [vip]}, "route": _route_action(plan, pool, high=True)})
    routes.append({"match": match, "route": _route_action(plan, pool)})
    return routes


def _information_routes(plan: GatewayPlan) -> list[Document]:
    """With one pool its engine answers; with several, the gateway lists the models itself."""
    pools = list(plan.stack.pools)
    get = {"name": ":method", "string_match": {"exact": "GET"}}
    paths = sorted(INFORMATION_PATHS & set(plan.stack.gateway.allowed_paths))
    routes: list[Document] = []
    if len(pools) > 1 and "/v1/models" in paths:
        models = [{"id": p, "object": "model", "created": 0, "owned_by": "sre"} for p in pools]
        routes.append(
            {
                "name": "models",
                "match": {"path": "/v1/models", "headers": [get]},
                "direct_response": {
                    "status": 200,
                    "body": {"inline_string": json.dumps({"object": "list", "data": models})},
                },
                "response_headers_to_add": [header("content-type", "application/json")],
            }
        )
    if paths:
        regex = "|".join(re.escape(p) for p in paths)
        match = {"safe_regex": {"regex": regex}, "headers": [get]}
        routes.append({"match": match, "route": _route_action(plan, pools[0])})
    return routes


def route_configuration(plan: GatewayPlan) -> Document:
    """Return the routes of the public listener for ``plan``."""
    gateway = plan.stack.gateway
    pools = complete(plan.stack, plan.desired).pools
    present = {"present_match": True}
    routes: list[Document] = [
        {
            "match": {"prefix": "/", "headers": _not_allowed(gateway.allowed_paths)},
            **_refuse(404, "no such path on this gateway", "not_found_error", "path_not_found", "path_not_allowed"),
        },
        *_information_routes(plan),
        {
            "match": {
                "prefix": "/",
                "dynamic_metadata": [{"filter": METADATA, "path": [{"key": "bad"}], "value": present}],
            },
            **_refuse(
                400,
                "the request body is not JSON, or content-type is not application/json",
                "invalid_request_error",
                "invalid_json",
                "invalid_json",
            ),
        },
    ]
    unknown = _refuse(
        404,
        f"no such model; this gateway serves: {', '.join(p.pool for p in pools)}",
        "invalid_request_error",
        "model_not_found",
        "model_not_found",
    )
    if len(pools) == 1:
        other = [_model(present), _model({"string_match": {"exact": pools[0].pool}}, invert=True)]
        routes.append({"match": {"prefix": "/", "dynamic_metadata": other}, **unknown})
        routes.extend(_pool_routes(plan, pools[0], []))
    else:
        for pool in pools:
            routes.extend(_pool_routes(plan, pool, [_model({"string_match": {"exact": pool.pool}})]))
        routes.append({"match": {"prefix": "/", "dynamic_metadata": [_model(present)]}, **unknown})
        missing = _refuse(
            400,
            f'the body names no model; write "model": one of {", ".join(p.pool for p in pools)}',
            "invalid_request_error",
            "model_required",
            "model_required",
        )
        routes.append({"match": {"prefix": "/"}, **missing})
    host: Document = {
        "name": "all",
        "domains": ["*"],
        "routes": routes,
        "request_body_buffer_limit": gateway.max_body_bytes,
    }
    if gateway.rate_limit_requests_per_second is not None:
        host["typed_per_filter_config"] = {RATE_LIMIT_FILTER: _bucket(plan)}
    return {"@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "name": ROUTES,
            "virtual_hosts": [host]}  # fmt: skip


def _bucket(plan: GatewayPlan) -> Document:
    """One token bucket for all requests; Envoy fills it at most every 50 ms, so slow rates fill one token at a time."""
    gateway = plan.stack.gateway
    rate = gateway.rate_limit_requests_per_second or 1.0
    tokens = max(1, round(rate * 0.05))
    return {
        "@type": RATE_LIMIT_TYPE,
        "stat_prefix": "gw_rl",
        "token_bucket": {
            "max_tokens": max(tokens, gateway.rate_limit_burst),
            "tokens_per_fill": tokens,
            "fill_interval": f"{tokens / rate:.6f}s",
        },
        "filter_enabled": _share("gw.rl.enabled", 100),
        "filter_enforced": _share(RATE_LIMIT_KEY, 100),
        "response_headers_to_add": [],
    }
