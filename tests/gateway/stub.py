"""An upstream that answers as it is told: the request itself names the behaviour."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

from aiohttp import web

CHUNK = (
    'data: {"id":"cmpl-1","object":"text_completion","model":"m","choices":[{"index":0,"text":"x",'
    '"finish_reason":null}]}\n\n'
)
FINAL = 'data: {"id":"cmpl-1","choices":[{"index":0,"text":"","finish_reason":"%s"}]}\n\n'
DONE = "data: [DONE]\n\n"
QUEUE_FULL = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)


class StubEngine:
    """
    One engine on loopback. ``mode`` (or the body's ``user`` field) chooses what completions do.

    Attributes:
        seen: Headers and bodies of the requests that arrived, oldest first.
        release: Set it to let answers that wait (modes ``hold`` and ``hang``) go on.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.mode = "ok"
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.release = asyncio.Event()
        self.open = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        self.release.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.open += 1
        try:
            return await self._answer(request)
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            body = {}
        self.seen.append((request.path, {k.lower(): v for k, v in request.headers.items()}, body))
        if request.method == "GET":
            return web.json_response({"object": "list", "data": [{"id": "from-engine"}]})
        mode = str(body.get("user") or self.mode)
        if mode.isdigit():
            return web.json_response({"error": {"message": "as told"}}, status=int(mode))
        if mode == "queue_full":
            return web.json_response({"error": {"message": QUEUE_FULL, "code": 503}}, status=503)
        if mode == "hang":
            await self.release.wait()
        if mode == "reset":
            assert request.transport is not None
            request.transport.abort()
        if mode.startswith("cut") and not body.get("stream"):
            return await self._half(request, mode)
        if not body.get("stream"):
            return self._whole(mode)
        return await self._stream(request, mode)

    def _whole(self, mode: str) -> web.Response:
        if mode == "empty":
            return web.Response()
        if mode == "html":
            return web.Response(text="<html>It works!</html>", content_type="text/html")
        choices: list[dict[str, Any]] = [{"index": 0, "text": "x", "finish_reason": "length"}]
        if mode == "abort":
            choices[0]["finish_reason"] = "abort"
        elif mode == "no_finish":
            choices[0]["finish_reason"] = None
        elif mode == "partial":
            choices.append({"index": 1, "text": "x", "finish_reason": None})
        answer = {"id": "cmpl-1", "choices": choices, "error": None}
        if mode == "opaque":  # although nobody asked for it
            packed = gzip.compress(json.dumps(answer).encode())
            return web.Response(body=packed, headers={"content-encoding": "gzip", "content-type": "application/json"})
        return web.json_response(answer)

    async def _half(self, request: web.Request, mode: str) -> web.StreamResponse:
        """A document whose connection breaks after its finish_reason, but before its end."""
        response = web.StreamResponse(headers={"content-type": "application/json"})
        if mode == "cut":
            response.content_length = 1000
        await response.prepare(request)
        await response.write(b'{"choices": [{"index": 0, "finish_reason": "stop"}')
        await asyncio.sleep(0.02)
        assert request.transport is not None
        request.transport.abort()
        return response

    async def _stream(self, request: web.Request, mode: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for _ in range(3):
            await response.write(CHUNK.encode())
        if mode == "hold":
            await self.release.wait()
        if mode == "cut":
            assert request.transport is not None
            request.transport.abort()
            return response
        if mode == "error":
            await response.write(b'data: {"error":{"message":"EngineCore died","code":500}}\n\n')
        elif mode == "abort":
            await response.write((FINAL % "abort").encode())
        elif mode == "partial":
            await response.write(CHUNK.replace('"index":0', '"index":1').encode())
            await response.write((FINAL % "stop").encode())
        elif mode != "no_finish":
            await response.write((FINAL % "stop").encode())
        await response.write(DONE.encode())
        await response.write_eof()
        return response
