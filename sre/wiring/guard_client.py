"""Asking the guard, from a command: one request over its socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from sre.errors import ConfigError, MalformedResponse, Rejected, Unreachable

TIMEOUT_SECONDS = 5.0


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("guard", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_SECONDS)
        self.sock.connect(str(self._path))


def ask(guard_socket: Path, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """
    Return the guard's answer as data.

    Raises:
        Unreachable: No guard answers there.
        ConfigError: The guard says that the order makes no sense.
        Rejected: It could not be done now.
        MalformedResponse: Something else answers.
    """
    system = f"guard {guard_socket}"
    connection = _UnixConnection(guard_socket)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        status, text = response.status, response.read()
    except TimeoutError as error:
        raise Unreachable(system, f"no answer in {TIMEOUT_SECONDS:g} s; see its log") from error
    except PermissionError as error:
        raise Unreachable(system, "belongs to another user; run as that user, or give --state-dir") from error
    except (OSError, HTTPException) as error:
        raise Unreachable(system, "no guard answers; is the stack up? see sre status, start it with sre up") from error
    finally:
        connection.close()
    try:
        data = json.loads(text)
    except ValueError as error:
        raise MalformedResponse(system, f"answered {status} without JSON") from error
    if status == 200:
        return data
    problem = str(data.get("error", f"answered {status}")) if isinstance(data, dict) else f"answered {status}"
    if status in (400, 404):
        raise ConfigError([problem])
    raise Rejected(system, problem, retryable=True)
