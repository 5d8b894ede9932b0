"""Listening behind a gate, with as many connections as there are open files for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator

from sre.servers.gate import Gate
from sre.servers.quiet import condense_accept_errors

BACKLOG = 512
"""Connections that the kernel holds until they are accepted."""
ACCEPTED_AT_ONCE = 32
"""
asyncio accepts so many before the gate hears of the first, and each takes an open file that the gate did not count.
"""
OWN_FILES = 192
"""Open files kept for all but the webhook's connections: the store, engines, deliveries, /metrics, what is accepted."""
WANTED_FILES = 8192
"""Enough for the most connections that can be set, and the rest."""


def most_open_files() -> int:
    """Return the limit of open files that this process could have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_number(soft), _number(hard))


def raise_open_files(wanted: int = WANTED_FILES) -> int:
    """Raise the soft limit of open files towards the hard one; return the one in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = min(wanted, _number(hard))
    if _number(soft) < target:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _number(limit: int) -> int:
    return WANTED_FILES if limit == resource.RLIM_INFINITY else limit


def room_for(connections: int, open_files: int) -> int:
    """Return how many of ``connections`` can be held within ``open_files``."""
    return max(0, min(connections, open_files - OWN_FILES))


@contextlib.asynccontextmanager
async def listening(
    gate: Gate, host: str, port: int, *, tls: ssl.SSLContext | None = None, handshake_seconds: float | None = None
) -> AsyncIterator[int]:
    """
    Listen until the end of the context; yields the port. Connections that are there stay.

    Raises:
        OSError: The port cannot be had.
    """
    condense_accept_errors()
    server = await asyncio.get_running_loop().create_server(
        gate,
        host,
        port,
        ssl=tls,
        ssl_handshake_timeout=handshake_seconds if tls is not None else None,
        backlog=ACCEPTED_AT_ONCE,
    )
    try:
        for shown in server.sockets:
            # asyncio has one number for what it accepts at once and for what the kernel holds: here they differ.
            with socket.socket(fileno=os.dup(shown.fileno())) as same:
                same.listen(BACKLOG)
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
