"""The gateway's folder: written by rename, so that Envoy never reads half a file."""

from __future__ import annotations

import contextlib
import json
import os
from importlib.resources import files
from pathlib import Path

from sre.actions.types import EngineDesired, GatewayDesired, PoolDesired, RejectReason
from sre.errors import StateError
from sre.stack.gateway_names import Document, EngineAddress

DESIRED = "desired.json"
"""What the guard last asked for: survives restarts of Envoy, guard and supervisor."""
ADDRESSES = "engines.json"
"""Where the engines listen, as the supervisor last said."""


def outcome_lua() -> str:
    """Source of the outcome filter."""
    return files("sre.stack").joinpath("outcome.lua").read_text(encoding="utf-8")


def write_document(path: Path, document: Document) -> None:
    """
    Replace ``path`` by ``document`` atomically; mode 0600.

    Raises:
        StateError: The file cannot be written (disk full, no permission).
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, sort_keys=True)
            file.write("\n")
        os.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StateError(
            f"gateway file {path}: cannot be written: {error.strerror or error}; free the disk or fix its permissions"
        ) from error


def read_document(path: Path) -> Document | None:
    """Return the JSON object in ``path``; None when there is none that can be read."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def desired_to_document(desired: GatewayDesired) -> Document:
    """JSON form of ``desired``; the inverse of ``desired_from_document``."""
    return {
        "pools": [
            {
                "pool": p.pool,
                "reject_percent": p.reject_percent,
                "reason": None if p.reason is None else p.reason.value,
                "retry_after_seconds": p.retry_after_seconds,
            }
            for p in desired.pools
        ],
        "engines": [
            {"engine": e.engine, "weight_percent": e.weight_percent, "draining": e.draining} for e in desired.engines
        ],
        "offline_shed_percent": desired.offline_shed_percent,
        "max_concurrent_requests": desired.max_concurrent_requests,
        "rate_limit_enforced": desired.rate_limit_enforced,
    }


def desired_from_document(document: Document | None) -> GatewayDesired | None:
    """Return the desired state in ``document``; None when it is not one."""
    if document is None:
        return None
    try:
        limit = document["max_concurrent_requests"]
        return GatewayDesired(
            pools=tuple(
                PoolDesired(
                    str(p["pool"]),
                    int(p["reject_percent"]),
                    None if p["reason"] is None else RejectReason(p["reason"]),
                    int(p["retry_after_seconds"]),
                )
                for p in document["pools"]
            ),
            engines=tuple(
                EngineDesired(str(e["engine"]), int(e["weight_percent"]), bool(e["draining"]))
                for e in document["engines"]
            ),
            offline_shed_percent=int(document["offline_shed_percent"]),
            max_concurrent_requests=None if limit is None else int(limit),
            rate_limit_enforced=bool(document["rate_limit_enforced"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def addresses_to_document(addresses: dict[str, EngineAddress]) -> Document:
    """JSON form of ``addresses``."""
    return {n: {"host": a.host, "port": a.port, "hostname": a.hostname} for n, a in addresses.items()}


def addresses_from_document(document: Document | None) -> dict[str, EngineAddress] | None:
    """Return the addresses in ``document``; None when it holds none."""
    if document is None:
        return None
    try:
        return {n: EngineAddress(str(a["host"]), int(a["port"]), a["hostname"]) for n, a in document.items()}
    except (KeyError, TypeError, ValueError):
        return None
