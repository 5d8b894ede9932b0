"""The public listener and the probe listener: limits, filters, local replies, access log."""

from __future__ import annotations

from sre.stack.gateway_names import (
    ACCESS_LOG,
    PROBE_HEADER,
    REASON_HEADER,
    REJECTED_HEADER,
    ROUTES,
    Document,
    GatewayPlan,
)
from sre.stack.gateway_routes import METADATA, RATE_LIMIT_FILTER, RATE_LIMIT_TYPE, header

HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
FILE_LOG = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog"
MAX_HEADERS = 100
MAX_HEADER_KIB = 64
MAX_HELD_BYTES = 1 << 20
PERIODIC_LOG_SECONDS = 0.5
"""An open request is written to the access log this often."""
INTERNAL_HEADERS = (
    "x-request-id",  # a reused id would merge two requests in the registry
    "x-vllm-priority",  # would steer the engine's scheduler
    "x-data-parallel-rank",
    "accept-encoding",  # a compressed answer cannot be judged
)
"""Removed from what clients send."""
PRIORITY_HEADERS = ("x-priority", "x-request-type")


def _json_filter() -> Document:
    def rule(key: str, kind: str, to: str | None = None, **more: Document) -> Document:
        present: Document = {"metadata_namespace": METADATA, "key": to or key}
        if kind != "PROTOBUF_VALUE":
            present["type"] = kind
        return {"selectors": [{"key": key}], "on_present": present, **more}

    bad: Document = {"metadata_namespace": METADATA, "key": "bad", "value": "1"}
    return {
        "name": "json",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata",
            "request_rules": {
                # The regular expression is tried only for what is not in the list.
                "allow_content_types": ["application/json", "application/json; charset=utf-8"],
                "allow_content_types_regex": {"regex": r"application/(?:[\w.-]+\+)?json(?:\s*;.*)?"},
                "allow_empty_content_type": True,
                "rules": [
                    rule("model", "PROTOBUF_VALUE", on_error=bad),
                    # Numbers only: a client's text in the log could forge a line. Each rule costs 2 % of the CPU.
                    rule("max_tokens", "NUMBER"),
                    rule("max_completion_tokens", "NUMBER", to="max_tokens"),
                ],
            },
        },
    }


def _lua_filter(lua: str) -> Document:
    return {
        "name": "outcome",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": lua},
        },
    }


def _router(log_path: str | None = None) -> Document:
    """With a log: each failed try on an engine is written to it, since a retry hides it from the request's own line."""
    router: Document = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        "suppress_envoy_headers": True,
    }
    if log_path is not None:
        server_error = {"op": "GE", "value": {"default_value": 500, "runtime_key": "gw.log.status"}}
        failed = {"or_filter": {"filters": [
            {"status_code_filter": {"comparison": server_error}},
            {"response_flag_filter": {"flags": ["UF", "UC", "UT", "UR", "LR", "UPE"]}},
        ]}}  # fmt: skip
        router["upstream_log"] = [_access_log(log_path, failed)]
    return {"name": "router", "typed_config": router}


def _rate_limit_filter() -> Document:
    return {"name": RATE_LIMIT_FILTER, "typed_config": {"@type": RATE_LIMIT_TYPE, "stat_prefix": "gw_rl"}}


def _local_replies(retry_after_seconds: int) -> Document:
    """What Envoy itself answers, in OpenAI's form and with a named reason."""
    retry = header("retry-after", str(retry_after_seconds))

    def mapper(condition: Document, reason: str, kind: str, message: str, *headers: Document) -> Document:
        return {
            "filter": condition,
            "headers_to_add": [header(REASON_HEADER, reason), *headers],
            "body_format_override": {
                "content_type": "application/json",
                "json_format": {"error": {"message": message, "type": kind, "param": None, "code": reason}},
            },
        }

    def flags(*names: str) -> Document:
        return {"response_flag_filter": {"flags": list(names)}}

    def status(code: int) -> Document:
        return {
            "status_code_filter": {
                "comparison": {"op": "EQ", "value": {"default_value": code, "runtime_key": f"gw.reply.{code}"}}
            }
        }

    ours = header(REJECTED_HEADER, "1")
    overloaded, invalid, upstream = "overloaded_error", "invalid_request_error", "upstream_error"
    return {
        "mappers": [
            mapper(flags("UO"), "concurrency_limit", overloaded, "too many requests at once", ours, retry),
            mapper(flags("UH"), "no_healthy_upstream", upstream, "no engine of this model is in rotation", ours, retry),
            mapper(flags("NC", "NR"), "no_route", upstream, "the gateway has no engine for this request", ours, retry),
            mapper(flags("UF"), "connect_failure", upstream, "the engine does not accept connections", retry),
            mapper(flags("UT", "SI"), "timeout", upstream, "no answer in time", retry),
            mapper(flags("UC", "UR", "URX", "LH", "UPE", "LR"), "engine_failure", upstream, "the engine failed", retry),
            mapper(status(413), "body_too_large", invalid, "the request body is too large", ours),
            mapper(status(429), "rate_limited", "rate_limit_error", "too many requests", ours, retry),
            mapper(status(431), "headers_too_large", invalid, "the request headers are too large or too many", ours),
            mapper(status(408), "request_timeout", invalid, "the request did not arrive in time", ours),
            mapper(flags("DPE"), "bad_request", invalid, "the request is not valid HTTP", ours),
        ]
    }  # fmt: skip


LOG_FIELDS = (
    ("type", "%ACCESS_LOG_TYPE%"),
    ("id", "%REQ(X-REQUEST-ID)%"),
    ("started", "%START_TIME%"),
    ("duration_ms", "%DURATION%"),
    ("client", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("cluster", "%UPSTREAM_CLUSTER%"),
    ("upstream", "%UPSTREAM_HOST%"),
    ("route", "%ROUTE_NAME%"),
    ("max_tokens", f"%DYNAMIC_METADATA({METADATA}:max_tokens)%"),
    ("end", "%DYNAMIC_METADATA(llm_resp:end)%"),
    ("status", "%RESPONSE_CODE%"),
    ("flags", "%RESPONSE_FLAGS%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("attempts", "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"),
    ("path", "%REQ(:PATH)%"),
)
"""Fields of a line, separated by tabs; ``-`` is none. Only the path is the client's own text, so it stands last.
Plain text and few fields: Envoy's JSON form costs every request 10 % of the gateway's CPU, a field up to 1 %."""


START_FIELDS = frozenset({"type", "id", "started", "client", "path"})
"""What is known when a request begins; the other fields of its first line are left out to save the work."""


def _access_log(path: str, condition: Document, fields: frozenset[str] | None = None) -> Document:
    operators = (operator if fields is None or name in fields else "-" for name, operator in LOG_FIELDS)
    log_format = {"text_format_source": {"inline_string": "\t".join(operators) + "\n"}}
    config = {"@type": FILE_LOG, "path": path, "log_format": log_format}
    return {"name": "file", "filter": condition, "typed_config": config}


def _request_logs(path: str) -> list[Document]:
    """A short line when a request begins, full ones while it is open and when it ends."""

    def kinds(*names: str) -> Document:
        return {"log_type_filter": {"types": list(names)}}

    return [
        _access_log(path, kinds("DownstreamStart"), START_FIELDS),
        _access_log(path, kinds("DownstreamPeriodic", "DownstreamEnd")),
    ]


def _connection_manager(name: str, filters: list[Document]) -> Document:
    return {
        "@type": HCM,
        "stat_prefix": name,
        "generate_request_id": True,
        # No path is normalized: only exact ones pass, and they reach the engine as they are.
        "http_filters": filters,
        "server_name": "sre-gateway",
        "delayed_close_timeout": "1s",
    }


def _public(plan: GatewayPlan) -> Document:
    gateway = plan.stack.gateway
    log_path = f"{plan.socket_folder}/{ACCESS_LOG}"
    retries = gateway.retries > 0 and any(len(engines) > 1 for engines in plan.stack.pools.values())
    filters = [_json_filter(), _lua_filter(plan.lua), _router(log_path if retries else None)]
    if gateway.rate_limit_requests_per_second is not None:
        filters.insert(1, _rate_limit_filter())
    strip = INTERNAL_HEADERS + (() if gateway.trust_client_priority else PRIORITY_HEADERS)
    manager = _connection_manager("gw", filters) | {
        "use_remote_address": True,
        "skip_xff_append": True,
        "always_set_request_id_in_response": True,
        "request_timeout": f"{gateway.request_body_timeout_seconds}s",
        "request_headers_timeout": f"{gateway.request_header_timeout_seconds}s",
        "stream_idle_timeout": f"{gateway.stream_idle_timeout_seconds}s",
        "max_request_headers_kb": MAX_HEADER_KIB,
        "common_http_protocol_options": {"idle_timeout": "900s", "max_headers_count": MAX_HEADERS},
        # Before routing, and before our own request id is made.
        "early_header_mutation_extensions": [
            {
                "name": "strip",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3"
                    ".HeaderMutation",
                    "mutations": [{"remove": name} for name in strip],
                },
            }
        ],
        "access_log_options": {
            "flush_access_log_on_new_request": True,
            "access_log_flush_interval": f"{PERIODIC_LOG_SECONDS}s",
        },
        "access_log": _request_logs(log_path),
        "local_reply_config": _local_replies(gateway.retry_after_seconds),
        "rds": {
            "route_config_name": ROUTES,
            "config_source": {"path_config_source": {"path": "dyn/rds.json"}, "resource_api_version": "V3"},
        },
    }
    return {
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": "gw",
        "address": {"socket_address": {"address": gateway.host, "port_value": gateway.port}},
        # What is held of an answer that its client reads slowly. Request bodies have their own limit in the routes; the
        # larger of the two holds for them.
        "per_connection_buffer_limit_bytes": min(MAX_HELD_BYTES, gateway.max_body_bytes),
        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
    }


def _probe(plan: GatewayPlan) -> Document:
    """
    The guard's own way to one engine: same filters, no breaker, no access log, so that probes never count as traffic.
    """
    route = {
        "match": {"prefix": "/"},
        "route": {"cluster_header": PROBE_HEADER, "timeout": "0s", "auto_host_rewrite": True},
        "request_headers_to_remove": [PROBE_HEADER],
    }
    manager = _connection_manager("probe", [_json_filter(), _lua_filter(plan.lua), _router()]) | {
        "route_config": {
            "name": "probe_routes",
            "virtual_hosts": [{"name": "probe", "domains": ["*"], "routes": [route]}],
        }
    }
    return {
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": "probe",
        "address": {"pipe": {"path": f"{plan.socket_folder}/probe.sock", "mode": 0o600}},
        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
    }


def listeners(plan: GatewayPlan) -> list[Document]:
    """Return the listeners: the public one, and the guard's on a Unix socket."""
    return [_public(plan), _probe(plan)]
