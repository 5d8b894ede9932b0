"""Ask over HTTP whether a process is ready."""

from __future__ import annotations

import aiohttp

from sre.stack.processes import Readiness

TIMEOUT_SECONDS = 1.0
"""A start is polled; one slow answer only delays its notice."""


class HttpReadiness:
    """``GET path`` answered 200. Close it, or use it as an async context manager."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)

    async def __call__(self, readiness: Readiness) -> bool:
        """Whether it is ready; every failure to answer is a no."""
        connector: aiohttp.BaseConnector
        if readiness.unix_socket is not None:
            connector = aiohttp.UnixConnector(path=readiness.unix_socket, force_close=True)
            url = f"http://local{readiness.path}"
        else:
            connector = aiohttp.TCPConnector(force_close=True)
            host = f"[{readiness.host}]" if ":" in readiness.host else readiness.host
            url = f"http://{host}:{readiness.port}{readiness.path}"
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=self._timeout) as session,
                session.get(url, allow_redirects=False) as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False
