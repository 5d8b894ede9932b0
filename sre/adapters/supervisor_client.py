"""Client of the supervisor's socket."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from sre.actions.ports import EngineStatus
from sre.errors import MalformedResponse, Rejected, Unreachable
from sre.signals.types import ProcessIdentity
from sre.stack.ledger import identity_to_json
from sre.stack.status import StackReport, engine_status_from_json, stack_report_from_json

TIMEOUT_SECONDS = 2.0
"""The supervisor answers from memory; slower means it is stuck."""


class SupervisorClient:
    """
    ``sre.actions.ports.Supervisor`` over the supervisor's Unix socket.

    Every method raises Unreachable when nobody answers in time, Rejected when the answer is no, MalformedResponse when
    it cannot be read. Needs no closing: each call makes its own connection, so a restarted supervisor is found at once.
    """

    def __init__(self, socket: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._socket = socket
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self.system = f"supervisor {socket}"

    async def engines(self) -> Sequence[EngineStatus]:
        """All engines, external ones too."""
        data = await self._call("GET", "/engines")
        try:
            return [engine_status_from_json(engine) for engine in data["engines"]]
        except (KeyError, TypeError, ValueError) as error:
            raise self._malformed("/engines", error) from error

    async def restart(self, engine: str, expected: ProcessIdentity, reason: str) -> bool:
        """Begin to replace the process of ``engine`` if it still is ``expected``; False when another one runs."""
        body = {"expected": identity_to_json(expected), "reason": reason}
        data = await self._call("POST", f"/engines/{engine}/restart", body)
        if not isinstance(data.get("restarted"), bool):
            raise self._malformed("restart", ValueError("no restarted in it"))
        return bool(data["restarted"])

    async def status(self) -> StackReport:
        """All of the stack."""
        data = await self._call("GET", "/status")
        try:
            return stack_report_from_json(data)
        except (KeyError, TypeError, ValueError) as error:
            raise self._malformed("/status", error) from error

    async def shutdown(self, *, drain: bool = True, drain_timeout_seconds: float | None = None) -> None:
        """Ask it to stop the stack; returns at once. Called again, it hurries."""
        await self._call("POST", "/shutdown", {"drain": drain, "drain_timeout_seconds": drain_timeout_seconds})

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        connector = aiohttp.UnixConnector(path=str(self._socket), force_close=True)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=self._timeout) as session,
                session.request(method, f"http://supervisor{path}", json=body) as response,
            ):
                raw, status = await response.read(), response.status
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unreachable(self.system, _why(error)) from error
        try:
            data = json.loads(raw)
        except ValueError as error:
            raise self._malformed(path, error) from error
        if not isinstance(data, dict):
            raise self._malformed(path, ValueError("not an object"))
        if status >= 400:
            raise Rejected(self.system, str(data.get("error", f"status {status}")))
        return data

    def _malformed(self, what: str, error: Exception) -> MalformedResponse:
        return MalformedResponse(
            self.system, f"{what}: cannot be read ({error}); are sre up and this sre of one version?"
        )


def _why(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, PermissionError):
        return "may not be opened by you; ask as the user who ran sre up"
    if isinstance(cause, TimeoutError):
        return "did not answer in time; look at its log, supervisor.log in the state folder"
    return "is not running; start it with sre up"
