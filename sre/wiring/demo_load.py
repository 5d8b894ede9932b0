"""The demo's client: keeps asking for streamed completions, as users do, and notes how each one ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp

from sre.control.demo import Stream

MAX_OPEN = 300
"""Requests open at once at the most: a client with a limit."""
MAX_TOTAL = 5000
"""The load ends by itself after so many."""
VALID_FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "function_call"})


class StreamingLoad:
    """
    Open-loop load: a new request every ``interval_seconds``, whatever became of those before.

    Only that shows a refusal at once: a client that waits for stalled answers asks nothing new.
    """

    def __init__(self, base_url: str, model: str, *, interval_seconds: float, max_tokens: int) -> None:
        self._url, self._model = f"{base_url}/v1/completions", model
        self._interval_seconds, self._max_tokens = interval_seconds, max_tokens
        self._streams: list[Stream] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def streams(self) -> Sequence[Stream]:
        """Requests so far, oldest first."""
        return self._streams

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load as long as the block lasts; what is open then is given up."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            driver = asyncio.create_task(self._drive(session))
            try:
                yield
            finally:
                driver.cancel()
                for stream in self._streams:
                    stream.given_up = stream.given_up or stream.ended_at is None
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(driver, *self._tasks, return_exceptions=True)

    async def _drive(self, session: aiohttp.ClientSession) -> None:
        due = time.monotonic()
        while len(self._streams) < MAX_TOTAL:
            if len(self._tasks) < MAX_OPEN:
                stream = Stream(time.monotonic())
                self._streams.append(stream)
                task = asyncio.create_task(self._ask(session, stream))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            due = max(due + self._interval_seconds, time.monotonic() - self._interval_seconds)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _ask(self, session: aiohttp.ClientSession, stream: Stream) -> None:
        number = len(self._streams)
        body = {
            "model": self._model,
            "prompt": f"Request {number}: what does an engine that hangs look like?",
            "max_tokens": self._max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            async with session.post(self._url, json=body) as answer:
                stream.status = answer.status
                stream.request_id = answer.headers.get("x-request-id")
                if answer.status == 200:
                    await self._read(answer, stream)
                else:
                    stream.refusal = answer.headers.get("x-sre-reason")
                    stream.retry_after = answer.headers.get("retry-after")
                    stream.error_type = _error_type(await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass  # cut: ``complete`` stays False
        finally:
            stream.ended_at = time.monotonic()

    async def _read(self, answer: aiohttp.ClientResponse, stream: Stream) -> None:
        finished = False
        async for line in answer.content:
            data = line.strip().removeprefix(b"data: ")
            if not data:
                continue
            if data == b"[DONE]":
                stream.complete = finished
                return
            if stream.first_token_at is None:
                stream.first_token_at = time.monotonic()
            finished = finished or _finish_reason(data) in VALID_FINISH_REASONS


def _finish_reason(data: bytes) -> str | None:
    try:
        reason = json.loads(data)["choices"][0]["finish_reason"]
    except (ValueError, LookupError, TypeError):
        return None
    return reason if isinstance(reason, str) else None


def _error_type(body: bytes) -> str | None:
    try:
        kind = json.loads(body)["error"]["type"]
    except (ValueError, LookupError, TypeError):
        return None
    return kind if isinstance(kind, str) else None
