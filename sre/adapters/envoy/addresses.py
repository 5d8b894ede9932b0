"""Where the engines are: what ``prepare`` wrote, and host names that are looked up again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from sre.adapters.envoy.files import (
    ADDRESSES,
    addresses_from_document,
    addresses_to_document,
    read_document,
    write_document,
)
from sre.clock import Clock
from sre.errors import ConfigError, StateError
from sre.settings.stack import StackSettings
from sre.stack.gateway_names import EngineAddress

LOOKUP_SECONDS = 30.0
"""Gut feeling: between two look-ups of an external engine's name."""


def resolve(host: str) -> str | None:
    """Return an IP address of ``host`` (itself if it is one), or None when the name is unknown. May block on DNS."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
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

    Raises:
        ConfigError: An external engine's url cannot be used.
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
        named = engine.kind == "external" and not EngineAddress(host, port).is_ip
        addresses[engine.name] = EngineAddress(ip, port, _host_header(host, port) if named else None)
    return addresses, problems


def _host_header(host: str, port: int) -> str:
    return host if port == 80 else f"{host}:{port}"


class AddressBook:
    """
    Addresses by engine name, as the gateway's folder has them.

    External engines known by name are looked up again every 30 s, in a thread, so that slow DNS delays nothing; a
    look-up that fails keeps the old address.
    """

    def __init__(self, folder: Path, stack: StackSettings, clock: Clock) -> None:
        self._path = folder / ADDRESSES
        self._clock = clock
        self._names = {
            e.name: where
            for e in stack.engines
            if e.url is not None and not EngineAddress(*(where := external_address(e.name, e.url))).is_ip
        }
        self._mtime = -1
        self._looked_up_at = clock.monotonic()
        self._lookup: asyncio.Task[None] | None = None
        self.current: dict[str, EngineAddress] = {}

    def reload(self) -> bool:
        """Read the file again if it was replaced; return whether the addresses changed."""
        try:
            mtime = self._path.stat().st_mtime_ns
        except OSError:
            return False
        if mtime == self._mtime:
            return False
        addresses = addresses_from_document(read_document(self._path))
        if addresses is None:
            return False
        self._mtime = mtime
        changed = addresses != self.current
        self.current = addresses
        return changed

    def look_up_when_due(self) -> None:
        """Start a look-up of the external names in the background, if one is due. Needs a running loop."""
        now = self._clock.monotonic()
        if not self._names or self._lookup is not None or now - self._looked_up_at < LOOKUP_SECONDS:
            return
        self._looked_up_at = now
        self._lookup = asyncio.get_running_loop().create_task(self._look_up())

    async def _look_up(self) -> None:
        try:
            found: dict[str, EngineAddress] = {}
            for name, (host, port) in self._names.items():
                ip = await asyncio.to_thread(resolve, host)
                if ip is not None:
                    found[name] = EngineAddress(ip, port, _host_header(host, port))
            # Read now: while DNS was asked, the supervisor may have given other engines new ports.
            addresses = addresses_from_document(read_document(self._path))
            if addresses is not None and addresses != addresses | found:
                write_document(self._path, addresses_to_document(addresses | found))
        except StateError:
            pass  # the next look-up tries again; until then the old address stays
        finally:
            self._lookup = None

    async def close(self) -> None:
        """End a look-up that is under way."""
        if self._lookup is not None:
            self._lookup.cancel()
            await asyncio.gather(self._lookup, return_exceptions=True)
