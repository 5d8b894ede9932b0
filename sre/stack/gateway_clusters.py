"""Clusters (pools and single engines) and their endpoints."""

from __future__ import annotations

from sre.actions.types import EngineDesired
from sre.settings.stack import EngineSettings, StackSettings
from sre.stack.gateway_names import (
    Document,
    EngineAddress,
    GatewayPlan,
    complete,
    eds_path,
    pool_cluster,
    probe_cluster,
)

UPSTREAM_IDLE_SECONDS = 3.0
"""Idle connections to engines are closed by us first: vLLM's server closes after 5 s, and a request sent at that moment
would be lost."""


def _cluster(name: str, stack: StackSettings) -> Document:
    gateway = stack.gateway
    limit = gateway.max_concurrent_requests
    return {
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {
            "service_name": name,
            "eds_config": {"path_config_source": {"path": eds_path(name)}, "resource_api_version": "V3"},
        },
        "connect_timeout": f"{gateway.connect_timeout_seconds}s",
        "circuit_breakers": {
            "thresholds": [
                {
                    "priority": priority, "max_requests": limit, "max_connections": 65536,
                    "max_pending_requests": 65536, "max_retries": 64, "track_remaining": True,
                }
                for priority in ("DEFAULT", "HIGH")
            ]
        },
        "common_lb_config": {
            # An engine taken out stays out, even if it was the last one: the answer is then 503 no_healthy_upstream.
            "healthy_panic_threshold": {"value": 0},
            # Default 1 s: an ejected engine would be used for that long.
            "update_merge_window": "0s",
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"idle_timeout": f"{UPSTREAM_IDLE_SECONDS}s"},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
        "ignore_health_on_host_removal": True,
    }  # fmt: skip


def _outlier_detection(engines: int) -> Document:
    """Ejection of an engine that fails several times in a row; the last one of a pool is never ejected."""
    return {
        "interval": "1s", "base_ejection_time": "3s", "max_ejection_time": "12s",
        "max_ejection_percent": 100 * (engines - 1) // engines,
        "consecutive_5xx": 5, "enforcing_consecutive_5xx": 100,
        "consecutive_gateway_failure": 5, "enforcing_consecutive_gateway_failure": 0,
        "consecutive_local_origin_failure": 3, "enforcing_consecutive_local_origin_failure": 100,
        "split_external_local_origin_errors": True, "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0, "enforcing_failure_percentage": 0,
        "enforcing_failure_percentage_local_origin": 0,
        "successful_active_health_check_uneject_host": False,
    }  # fmt: skip


def clusters(stack: StackSettings) -> list[Document]:
    """
    Return one cluster per pool and one per engine (for probes).

    No active health checks: /health answers 200 through a hang, and a slow answer of a busy engine would take it out.
    Dead engines are found by failing connections, hung ones by the guard.
    """
    out = []
    for pool, engines in stack.pools.items():
        cluster = _cluster(pool_cluster(pool), stack)
        cluster["lb_policy"] = "LEAST_REQUEST"
        if len(engines) > 1:
            cluster["outlier_detection"] = _outlier_detection(len(engines))
        out.append(cluster)
    out.extend(_cluster(probe_cluster(e.name), stack) for e in stack.engines)
    return out


def _endpoint(address: EngineAddress) -> Document:
    endpoint: Document = {"address": {"socket_address": {"address": address.host, "port_value": address.port}}}
    if address.hostname is not None:
        endpoint["hostname"] = address.hostname
    return endpoint


def _lb_endpoint(settings: EngineSettings, address: EngineAddress, desired: EngineDesired) -> Document:
    percent = max(0, min(100, desired.weight_percent))
    endpoint: Document = {
        "endpoint": _endpoint(address),
        "load_balancing_weight": max(1, settings.weight * percent),
    }
    if desired.draining or percent == 0:
        endpoint["health_status"] = "DRAINING"
    return endpoint


def _assignment(cluster: str, endpoints: list[Document]) -> Document:
    return {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": cluster,
        "endpoints": [{"lb_endpoints": endpoints}] if endpoints else [],
    }


def assignments(plan: GatewayPlan) -> dict[str, Document]:
    """Return the endpoints of every cluster, by cluster name."""
    wanted = {e.engine: e for e in complete(plan.stack, plan.desired).engines}
    out = {}
    for pool, engines in plan.stack.pools.items():
        name = pool_cluster(pool)
        out[name] = _assignment(
            name,
            [_lb_endpoint(e, plan.addresses[e.name], wanted[e.name]) for e in engines if e.name in plan.addresses],
        )
    for engine in plan.stack.engines:
        name = probe_cluster(engine.name)
        address = plan.addresses.get(engine.name)
        out[name] = _assignment(name, [] if address is None else [{"endpoint": _endpoint(address)}])
    return out
