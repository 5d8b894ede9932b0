"""Envoy's admin interface on its Unix socket."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp

from sre.errors import MalformedResponse, Rejected, Unreachable

ADMIN_TIMEOUT_SECONDS = 2.0
"""Gut feeling: answers take 1–5 ms; a gateway that needs 2 s is not reachable."""


class AdminClient:
    """Calls the admin socket. Every method raises Unreachable within the timeout when Envoy does not answer."""

    def __init__(self, socket_path: Path, timeout_seconds: float = ADMIN_TIMEOUT_SECONDS) -> None:
        self._path = socket_path
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None
        self.system = f"gateway admin {socket_path}"

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No keep-alive: after a restart of Envoy the next call reaches the new process.
            connector = aiohttp.UnixConnector(path=str(self._path), force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(self, method: str, path: str) -> bytes:
        """Return the body of the answer. Raises Rejected unless the status is 200."""
        try:
            async with self._client().request(method, f"http://envoy{path}") as response:
                body = await response.read()
                if response.status != 200:
                    raise Rejected(self.system, f"{path} was answered {response.status}; see the gateway's log")
                return body
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unreachable(
                self.system, f"no answer ({type(error).__name__}); is the gateway running? see: sre status"
            ) from error

    async def json(self, path: str) -> dict[str, Any]:
        """Return the JSON object at ``path``. Raises MalformedResponse when it is none."""
        body = await self.request("GET", path)
        try:
            document = json.loads(body)
        except ValueError as error:
            raise self._malformed(path) from error
        if not isinstance(document, dict):
            raise self._malformed(path)
        return document

    def _malformed(self, path: str) -> MalformedResponse:
        return MalformedResponse(self.system, f"{path} has another form than expected; is this Envoy 1.31 or later?")

    async def runtime(self) -> dict[str, str]:
        """Return the final value of every runtime key. Raises MalformedResponse when they are not there."""
        document = await self.json("/runtime")
        try:
            return {key: str(entry["final_value"]) for key, entry in document["entries"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise self._malformed("/runtime") from error

    async def clear_overrides(self, keys: list[str]) -> None:
        """Remove ``keys`` from the admin layer, which would win over ours."""
        await self.request("POST", "/runtime_modify?" + urlencode(dict.fromkeys(keys, "")))

    async def stats(self, pattern: str) -> dict[str, str]:
        """Return stats whose name matches the regular expression ``pattern``; texts come unquoted."""
        body = await self.request("GET", f"/stats?filter={quote(pattern)}")
        pairs = (line.partition(": ") for line in body.decode("utf-8", "replace").splitlines())
        return {name: value.strip().strip('"') for name, _, value in pairs if name}

    async def hosts(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return the host statuses of every cluster. Raises MalformedResponse when they have no names."""
        clusters = await self.json("/clusters?format=json")
        try:
            return {c["name"]: c.get("host_statuses", []) for c in clusters.get("cluster_statuses", [])}
        except (KeyError, TypeError, AttributeError) as error:
            raise self._malformed("/clusters") from error

    def peer(self) -> str:
        """
        Return who listens on the admin socket: pid and, where /proc shows it, start time. Changes with every restart.

        Raises:
            Unreachable: Nobody listens.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            try:
                connection.connect(str(self._path))
                raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            except OSError as error:
                raise Unreachable(
                    self.system, f"nobody listens ({error.strerror or error}); is the gateway running? see: sre status"
                ) from error
        pid = struct.unpack("3i", raw)[0]
        return f"{pid}:{_start_ticks(pid)}"


def _start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat, or 0 when it cannot be read (another pid namespace)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def socket_name(host_status: Mapping[str, Any]) -> str:
    """``host:port`` of a host status, in the form of ``EngineAddress.key``."""
    address = host_status.get("address", {}).get("socket_address", {})
    host, port = str(address.get("address", "")), address.get("port_value", 0)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def rename_log(path: Path, backups: int) -> None:
    """Shift ``path`` to ``path.1``, that to ``path.2`` …; the oldest beyond ``backups`` is removed. Raises OSError."""
    if backups == 0:
        path.unlink(missing_ok=True)
        return
    for number in range(backups, 1, -1):
        older = path.with_name(f"{path.name}.{number - 1}")
        if older.exists():
            os.replace(older, path.with_name(f"{path.name}.{number}"))
    os.replace(path, path.with_name(f"{path.name}.1"))
