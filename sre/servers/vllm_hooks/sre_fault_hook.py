"""
Middleware that lets a real vLLM act out injected faults: ``--middleware sre_fault_hook.FaultHook``.

It reads the file named by SRE_FAULT_FILE::

    {"boot_id": …, "expires_monotonic": …, "run_id": …,
     "faults": {"error_ratio": 0.3, "batch_failures": 3, "delay_seconds": 0.0}}

and does nothing while there is none, or when it is expired or of another boot: faults end by themselves. What it cannot
do: fail inside the engine. Requests it fails never reach the scheduler, so vLLM's own metrics do not count them.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

FAULT_FILE_VARIABLE = "SRE_FAULT_FILE"
FAULT_HEADER = b"x-sre-fault"
GENERATION_PATHS = frozenset(
    ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
)
LOOK_SECONDS = 0.05
"""The file is looked at this often at most."""
BATCH_SECONDS = 0.05
"""Requests that arrive within this time of the first one count as one batch: the middleware cannot see vLLM's own."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]


class Faults:
    """The faults in force, and what was already acted out of them."""

    def __init__(self, path: str | None, boot_id: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._boot_id = boot_id
        self._monotonic = monotonic
        self._looked_at = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self.run_id = ""
        self._expires = float("-inf")
        self._error_ratio = 0.0
        self._owed = 0.0
        self._batches = 0
        self._batch_began = float("-inf")
        self._delay_seconds = 0.0

    def delay_seconds(self) -> float:
        """How long to hold the next request."""
        return self._delay_seconds if self._active() else 0.0

    def fails(self) -> bool:
        """Whether the next request fails. Counts: call it once per request."""
        if not self._active():
            return False
        now = self._monotonic()
        if now - self._batch_began <= BATCH_SECONDS:
            return True
        if self._batches:
            self._batches -= self._batches > 0
            self._batch_began = now
            return True
        # An exact share, evenly spread, the first request included: a probe sees the fault at once.
        if self._error_ratio == 0.0:
            return False
        self._owed += self._error_ratio
        if self._owed >= 1.0 - 1e-9:
            self._owed -= 1.0
            return True
        return False

    def _active(self) -> bool:
        now = self._monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._look()
        return now < self._expires

    def _look(self) -> None:
        if self._path is None:
            return
        try:
            seen = os.stat(self._path)
            stamp = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
            if stamp == self._stamp:
                return
            with open(self._path, encoding="utf-8") as file:
                data = json.load(file)
            faults = data["faults"]
            run_id = str(data["run_id"])
            ratio = min(max(float(faults.get("error_ratio", 0.0)), 0.0), 1.0)
            batches = int(faults.get("batch_failures", 0))
            delay_seconds = max(float(faults.get("delay_seconds", 0.0)), 0.0)
            expires = float(data["expires_monotonic"])
            if data["boot_id"] != self._boot_id:
                self._clear()
            else:
                if run_id != self.run_id:  # the same run written again (a longer lease) has acted out its part
                    self._clear()
                    self._owed, self._batches = 1.0 - ratio, batches
                self.run_id, self._expires = run_id, expires
                self._error_ratio, self._delay_seconds = ratio, delay_seconds
            self._stamp = stamp
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # No file, or none that can be read: no fault. Never an error of the engine's.
            self._clear()
            self._stamp = None

    def _clear(self) -> None:
        self.run_id = ""
        self._expires = self._batch_began = float("-inf")
        self._error_ratio = self._owed = self._delay_seconds = 0.0
        self._batches = 0


class FaultHook:
    """Pure ASGI middleware."""

    def __init__(self, app: Asgi, faults: Faults | None = None) -> None:
        self.app = app
        self.faults = faults or Faults(os.environ.get(FAULT_FILE_VARIABLE), _boot_id())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in GENERATION_PATHS:
            await self.app(scope, receive, send)
            return
        delay_seconds = self.faults.delay_seconds()
        if delay_seconds:
            await asyncio.sleep(delay_seconds)
        if not self.faults.fails():
            await self.app(scope, receive, send)
            return
        body = json.dumps(
            {"error": {"message": "injected fault", "type": "InternalServerError", "param": None, "code": 500}}
        ).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (FAULT_HEADER, self.faults.run_id.encode("latin-1", "replace")),
        ]
        await send({"type": "http.response.start", "status": 500, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
