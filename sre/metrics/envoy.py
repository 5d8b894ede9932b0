"""
Envoy's own statistics as ``/stats/prometheus`` of its admin socket shows them: the few that tell how the gateway does.

Names and labels checked against Envoy 1.40.0 with our own configuration. Counters keep Envoy's names, so most lack
``_total``. A response class or histogram appears with its first request. Times are whole milliseconds.
"""

from __future__ import annotations

from functools import partial

from sre.metrics.types import Exporter, Kind, Metric, Unit

CLUSTER = "envoy_cluster_name"
"""Ours are called ``pool-<model>`` and ``probe-<engine>``."""
CONNECTION_MANAGER = "envoy_http_conn_manager_prefix"
RESPONSE_CODE_CLASS = "envoy_response_code_class"
RATE_LIMIT = "envoy_local_http_ratelimit_prefix"

MILLISECONDS = (
    0.5, 1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000, 600000, 1800000, 3600000,
)  # fmt: skip

_counter = partial(Metric, kind=Kind.COUNTER, exporter=Exporter.ENVOY, bare=True)
_gauge = partial(Metric, kind=Kind.GAUGE, exporter=Exporter.ENVOY)
_histogram = partial(Metric, kind=Kind.HISTOGRAM, exporter=Exporter.ENVOY, buckets=MILLISECONDS)

# Towards the engines
UPSTREAM_REQUESTS = _counter(
    "envoy_cluster_upstream_rq_total", help="Requests sent to the cluster.", labels=(CLUSTER,), unit=Unit.REQUESTS
)
UPSTREAM_RESPONSES = _counter(
    "envoy_cluster_upstream_rq_xx", help="Answers by class: 2, 4, 5.", labels=(CLUSTER, RESPONSE_CODE_CLASS),
    late=True, unit=Unit.REQUESTS,
)  # fmt: skip
UPSTREAM_ACTIVE = _gauge(
    "envoy_cluster_upstream_rq_active", help="Requests under way.", labels=(CLUSTER,), unit=Unit.REQUESTS
)
UPSTREAM_PENDING = _gauge(
    "envoy_cluster_upstream_rq_pending_active", help="Requests that wait for a connection.", labels=(CLUSTER,),
    unit=Unit.REQUESTS,
)  # fmt: skip
UPSTREAM_PENDING_OVERFLOW = _counter(
    "envoy_cluster_upstream_rq_pending_overflow", help="Requests refused: limits of the cluster.", labels=(CLUSTER,),
    unit=Unit.REQUESTS,
)  # fmt: skip
UPSTREAM_TIMEOUTS = _counter(
    "envoy_cluster_upstream_rq_timeout", help="Requests without an answer in time.", labels=(CLUSTER,),
    unit=Unit.REQUESTS,
)  # fmt: skip
UPSTREAM_RESETS = _counter(
    "envoy_cluster_upstream_rq_rx_reset", help="Requests reset by the engine.", labels=(CLUSTER,), unit=Unit.REQUESTS
)
UPSTREAM_CONNECT_FAILURES = _counter(
    "envoy_cluster_upstream_cx_connect_fail", help="Connections that failed.", labels=(CLUSTER,)
)
UPSTREAM_TIME = _histogram(
    "envoy_cluster_upstream_rq_time",
    help="Request to end of the answer.",
    labels=(CLUSTER,),
    late=True,
    unit=Unit.MILLISECONDS,
)
MEMBERS_HEALTHY = _gauge("envoy_cluster_membership_healthy", help="Engines in rotation.", labels=(CLUSTER,))
MEMBERS = _gauge("envoy_cluster_membership_total", help="Engines of the cluster.", labels=(CLUSTER,))
CONCURRENCY_LIMIT_REACHED = _gauge(
    "envoy_cluster_circuit_breakers_default_rq_open", help="1 while the concurrency limit is reached.",
    labels=(CLUSTER,), unit=Unit.STATE,
)  # fmt: skip

# Towards the clients
DOWNSTREAM_REQUESTS = _counter(
    "envoy_http_downstream_rq_total", help="Requests received.", labels=(CONNECTION_MANAGER,), unit=Unit.REQUESTS
)
DOWNSTREAM_RESPONSES = _counter(
    "envoy_http_downstream_rq_xx", help="Answers by class: 1 to 5.", labels=(CONNECTION_MANAGER, RESPONSE_CODE_CLASS),
    unit=Unit.REQUESTS, values=("1", "2", "3", "4", "5"),
)  # fmt: skip
DOWNSTREAM_ACTIVE = _gauge(
    "envoy_http_downstream_rq_active", help="Requests under way.", labels=(CONNECTION_MANAGER,), unit=Unit.REQUESTS
)
DOWNSTREAM_CONNECTIONS = _gauge(
    "envoy_http_downstream_cx_active", help="Connections of clients.", labels=(CONNECTION_MANAGER,)
)
DOWNSTREAM_TIME = _histogram(
    "envoy_http_downstream_rq_time", help="Request to end of the answer.", labels=(CONNECTION_MANAGER,),
    late=True, unit=Unit.MILLISECONDS,
)  # fmt: skip
RATE_LIMITED = _counter(
    "envoy_http_local_rate_limit_rate_limited", help="Requests over the rate.", labels=(RATE_LIMIT,),
    unit=Unit.REQUESTS, optional=True,
)  # fmt: skip

# Envoy itself
SERVER_LIVE = _gauge("envoy_server_live", help="1 while it takes traffic.", unit=Unit.STATE)
SERVER_UPTIME = _gauge("envoy_server_uptime", help="Since its start.", unit=Unit.SECONDS)
SERVER_MEMORY = _gauge("envoy_server_memory_allocated", help="Memory in use.", unit=Unit.BYTES)
SERVER_CONNECTIONS = _gauge("envoy_server_total_connections", help="Connections of old and new process.")
LUA_ERRORS = _counter(
    "envoy_http_lua_errors", help="Failures of our filter script.", labels=(CONNECTION_MANAGER,), optional=True
)

ENVOY_METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
