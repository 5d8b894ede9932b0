"""Servers that answer as exporters and a Prometheus do, or should not."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from sre.metrics.exposition import Series

DATA = Path(__file__).parent / "data"
VLLM = (DATA / "vllm-0.32.metrics.txt").read_bytes()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answers(body: bytes, *, status: int = 200, **headers: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=body, status=status, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )

    return handle


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """``handler`` for every path; gives the base URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(app)
    await server.start_server(ssl=tls)
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


def prometheus(series: dict[str, list[Series]], **overrides: Any) -> Handler:
    """A Prometheus as far as we ask it. ``overrides``: answers by path with _ for /, None for 404."""

    async def handle(request: web.Request) -> web.StreamResponse:
        path = request.path.partition("/api/v1/")[2]
        if path.replace("/", "_") in overrides:
            answer = overrides[path.replace("/", "_")]
            return web.Response(status=404) if answer is None else web.json_response(answer)
        if path == "query":
            name = request.query["query"]
            found = [Series({}, 1.0)] if name == "vector(1)" else series.get(name, [])
            result = [{"metric": {"__name__": name, **one.labels}, "value": [1.5, str(one.value)]} for one in found]
            data: Any = {"resultType": "vector", "result": result}
        elif path == "label/__name__/values":
            data = sorted(series)
        elif path == "metadata":
            data = {
                "a_total": [{"type": "counter"}],
                "b": [{"type": "gauge"}, {"type": "counter"}],
                "c": [{"type": "unknown"}],
            }
        elif path == "targets":
            labels = {"job": "node", "instance": "h:9100"}
            data = {"activeTargets": [{"health": "down", "labels": labels, "lastError": "refused"}, {"health": "up"}]}
        else:
            return web.Response(status=404)
        return web.json_response({"status": "success", "data": data})

    return handle
