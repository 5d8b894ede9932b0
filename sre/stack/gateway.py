"""
The serving spec as Envoy documents.

What never changes while Envoy runs is in ``bootstrap`` and ``lds``; what the guard changes is in ``rtds`` (admission),
``eds_*`` (rotation) and ``rds`` (retry-after). A listener change would cut streams; a cluster change would make Envoy
count concurrency from zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sre.stack.gateway_clusters import assignments, clusters
from sre.stack.gateway_listeners import listeners
from sre.stack.gateway_names import (
    BOOTSTRAP_PATH,
    CDS_PATH,
    LDS_PATH,
    RDS_PATH,
    RTDS_PATH,
    RUNTIME,
    Document,
    GatewayPlan,
    discovery,
    eds_path,
    runtime_layer,
)
from sre.stack.gateway_routes import route_configuration

OWNER_ONLY = 0o600
"""Mode of Envoy's sockets; the JSON form writes it in decimal."""


@dataclass(frozen=True, slots=True)
class RenderedGateway:
    """
    Files of the gateway's folder, path → document.

    Attributes:
        fixed: Read once, when Envoy starts.
        dynamic: Watched by Envoy; the guard rewrites them.
    """

    fixed: Mapping[str, Document]
    dynamic: Mapping[str, Document]


def bootstrap(plan: GatewayPlan) -> Document:
    """Return what Envoy reads first: admin socket, runtime layers, where the other files are."""

    def source(path: str) -> Document:
        return {"path_config_source": {"path": path}, "resource_api_version": "V3"}

    return {
        "node": {"id": f"sre-{plan.stack.name}", "cluster": f"sre-{plan.stack.name}"},
        "admin": {"address": {"pipe": {"path": f"{plan.socket_folder}/admin.sock", "mode": OWNER_ONLY}}},
        "layered_runtime": {
            "layers": [
                {"name": "guard", "rtds_layer": {"name": RUNTIME, "rtds_config": source(RTDS_PATH)}},
                # Last wins: what a person sets on the admin socket. The guard finds and clears it for its own keys.
                {"name": "admin", "admin_layer": {}},
            ]
        },
        "dynamic_resources": {"lds_config": source(LDS_PATH), "cds_config": source(CDS_PATH)},
    }


def render(plan: GatewayPlan) -> RenderedGateway:
    """Return every file of the gateway for ``plan``. Same plan, same bytes."""
    dynamic = {
        RTDS_PATH: discovery(
            [
                {
                    "@type": "type.googleapis.com/envoy.service.runtime.v3.Runtime",
                    "name": RUNTIME,
                    "layer": runtime_layer(plan.stack, plan.desired),
                }
            ]
        ),
        RDS_PATH: discovery([route_configuration(plan)]),
    }
    for cluster, assignment in assignments(plan).items():
        dynamic[eds_path(cluster)] = discovery([assignment])
    return RenderedGateway(
        fixed={
            BOOTSTRAP_PATH: bootstrap(plan),
            CDS_PATH: discovery(clusters(plan.stack)),
            LDS_PATH: discovery(listeners(plan)),
        },
        dynamic=dynamic,
    )


def envoy_argv(binary: str) -> list[str]:
    """
    Return the command line of the gateway, to be run in the gateway's folder.

    One worker: the token bucket and the least-request choice then see all traffic. Warnings and errors go to stderr.
    """
    return [
        binary, "-c", BOOTSTRAP_PATH, "--concurrency", "1", "--disable-hot-restart",
        "--file-flush-interval-msec", "100", "--drain-time-s", "3600", "--log-level", "warning",
    ]  # fmt: skip
