"""Names that the gateway's documents, its adapter and its tests share: clusters, runtime keys, headers, files."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sre.actions.types import EngineDesired, GatewayDesired, PoolDesired
from sre.settings.stack import StackSettings

Document = dict[str, Any]
"""A protobuf message in Envoy's JSON form."""

ROUTES = "gw_routes"
RUNTIME = "gw_runtime"
SHED_OFFLINE_KEY = "gw.shed.offline"
RATE_LIMIT_KEY = "gw.rl.enforced"
PROBE_HEADER = "x-sre-engine"
"""Header of a probe: the name of the cluster that holds only the engine to be probed."""
REASON_HEADER = "x-sre-reason"
REJECTED_HEADER = "x-sre-rejected"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where the gateway reaches an engine: an IP address, and the host name it came from if it was one."""

    host: str
    port: int
    hostname: str | None = None
    """Set for external engines known by name: ``host`` or ``host:port``, sent upstream as the Host header."""

    @property
    def key(self) -> str:
        """``host:port`` as Envoy prints it in logs and /clusters."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_ip(self) -> bool:
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """All that the documents are made from. An engine without an address is left out: its pool answers without it."""

    stack: StackSettings
    addresses: Mapping[str, EngineAddress]
    desired: GatewayDesired
    lua: str = ""
    """Source of the outcome filter."""
    socket_folder: str = "run"
    """Folder of Envoy's sockets and access log, relative to its working folder."""


def slug(name: str) -> str:
    """Return ``name`` as a cluster or stat name: unchanged where that is safe, else made unique by a hash."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:40]
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def pool_cluster(pool: str) -> str:
    """Name of the cluster with all engines of ``pool``."""
    return f"pool-{slug(pool)}"


def probe_cluster(engine: str) -> str:
    """Name of the cluster with only ``engine``."""
    return f"probe-{engine}"


def reject_key(pool: str) -> str:
    """Runtime key: percent of new requests to ``pool`` that are refused."""
    return f"gw.reject.{slug(pool)}"


def concurrency_key(pool: str) -> str:
    """Runtime key: requests of normal priority that may be open upstream in ``pool``."""
    return f"circuit_breakers.{pool_cluster(pool)}.default.max_requests"


def open_gateway(stack: StackSettings) -> GatewayDesired:
    """The gateway as it starts: everything admitted, every engine in rotation."""
    return GatewayDesired(
        pools=tuple(PoolDesired(p, 0, None, stack.gateway.retry_after_seconds) for p in stack.pools),
        engines=tuple(EngineDesired(e.name) for e in stack.engines),
    )


def complete(stack: StackSettings, desired: GatewayDesired) -> GatewayDesired:
    """
    Return ``desired`` in file order with what it does not mention at its default, and pools and engines that ``stack``
    does not have left out.
    """
    base = open_gateway(stack)
    pools = {p.pool: p for p in desired.pools}
    engines = {e.engine: e for e in desired.engines}
    return GatewayDesired(
        pools=tuple(pools.get(p.pool, p) for p in base.pools),
        engines=tuple(engines.get(e.engine, e) for e in base.engines),
        offline_shed_percent=desired.offline_shed_percent,
        max_concurrent_requests=desired.max_concurrent_requests,
        rate_limit_enforced=desired.rate_limit_enforced,
    )


def runtime_layer(stack: StackSettings, desired: GatewayDesired) -> dict[str, int]:
    """Return every runtime key of ours with its value; no key is left to a default."""
    layer: dict[str, int] = {}
    for pool in complete(stack, desired).pools:
        layer[reject_key(pool.pool)] = max(0, min(100, pool.reject_percent))
        limit = desired.max_concurrent_requests
        layer[concurrency_key(pool.pool)] = stack.gateway.max_concurrent_requests if limit is None else limit
    layer[SHED_OFFLINE_KEY] = max(0, min(100, desired.offline_shed_percent))
    layer[RATE_LIMIT_KEY] = 100 if desired.rate_limit_enforced else 0
    return layer


def version_of(document: Document) -> str:
    """Content hash of ``document``, reported back by Envoy as the version it runs."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def discovery(resources: list[Document]) -> Document:
    """Wrap ``resources`` as an xDS file with a version made of its content."""
    return {"version_info": version_of({"r": resources}), "resources": resources}


def eds_path(cluster: str) -> str:
    """Path of the endpoints file of ``cluster``."""
    return f"dyn/eds_{cluster}.json"


RDS_PATH = "dyn/rds.json"
RTDS_PATH = "dyn/rtds.json"
ACCESS_LOG = "access.log"
CDS_PATH = "dyn/cds.json"
LDS_PATH = "dyn/lds.json"
BOOTSTRAP_PATH = "bootstrap.json"
