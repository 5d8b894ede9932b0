"""
The guard's API on a Unix socket (mode 0600: whoever may open it may act).

GET /status · GET /explain/ENGINE · GET /journal?after=SEQ&limit=N · GET /trace
POST /order {verb, target, owner, reason, expires_seconds?}
POST /acknowledge {incident, by, note?}
POST /canary {id, seconds} · GET /canary/ID
POST /pause {owner, reason, expires_seconds?} · POST /resume
Errors are {"error": sentence}: 400 the order makes no sense, 503 it could not be done, read or written down now.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from sre.errors import SreError, StateError
from sre.servers.quiet import HttpLog, condense_accept_errors

MAX_ORDER_BYTES = 64 * 1024


class GuardDesk(Protocol):
    """What the API asks of the guard; values are JSON-able."""

    def status(self) -> dict[str, Any]: ...
    def explain(self, engine: str) -> dict[str, Any] | None: ...
    def trace(self) -> list[dict[str, Any]]: ...
    async def journal(self, after: int, limit: int) -> Sequence[Mapping[str, Any]]: ...
    async def order(self, order: Mapping[str, Any]) -> dict[str, Any]: ...
    async def pause(self, order: Mapping[str, Any] | None) -> dict[str, Any]: ...
    async def acknowledge(self, order: Mapping[str, Any]) -> dict[str, Any]: ...
    def canary(self, order: Mapping[str, Any]) -> dict[str, Any]: ...
    def canary_report(self, identifier: str) -> dict[str, Any] | None: ...


Handler = Callable[[web.Request], Any]


def _answer(data: Any, status: int = 200) -> web.Response:
    return web.json_response(data, status=status, dumps=lambda d: json.dumps(d, sort_keys=True))


async def _order(request: web.Request) -> Mapping[str, Any]:
    try:
        order = json.loads(await request.text() or "{}")
    except ValueError as error:
        raise ValueError(f"the order is not JSON: {error}") from error
    if not isinstance(order, dict):
        raise ValueError("the order must be a JSON object")
    return order


def guard_app(desk: GuardDesk) -> web.Application:
    """Return the application that serves ``desk``."""

    @web.middleware
    async def explain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
        except ValueError as error:
            return _answer({"error": str(error)}, 400)
        except (StateError, SreError) as error:
            return _answer({"error": str(error)}, 503)
        return response

    async def status(_: web.Request) -> web.Response:
        return _answer(desk.status())

    async def explain(request: web.Request) -> web.Response:
        found = desk.explain(request.match_info["engine"])
        if found is None:
            return _answer({"error": f"no engine {request.match_info['engine']!r}; see sre breaker status"}, 404)
        return _answer(found)

    async def journal(request: web.Request) -> web.Response:
        after, limit = int(request.query.get("after", "0")), int(request.query.get("limit", "500"))
        return _answer(await desk.journal(after, min(max(1, limit), 5000)))

    async def trace(_: web.Request) -> web.Response:
        return _answer(desk.trace())

    async def order(request: web.Request) -> web.Response:
        return _answer(await desk.order(await _order(request)))

    async def pause(request: web.Request) -> web.Response:
        return _answer(await desk.pause(await _order(request)))

    async def acknowledge(request: web.Request) -> web.Response:
        return _answer(await desk.acknowledge(await _order(request)))

    async def canary(request: web.Request) -> web.Response:
        return _answer(desk.canary(await _order(request)))

    async def canary_report(request: web.Request) -> web.Response:
        found = desk.canary_report(request.match_info["id"])
        if found is None:
            return _answer({"error": f"no canary {request.match_info['id']!r}"}, 404)
        return _answer(found)

    async def resume(_: web.Request) -> web.Response:
        return _answer(await desk.pause(None))

    app = web.Application(middlewares=[explain_errors], client_max_size=MAX_ORDER_BYTES)
    app.add_routes(
        [
            web.get("/status", status),
            web.get("/explain/{engine}", explain),
            web.get("/journal", journal),
            web.get("/trace", trace),
            web.post("/order", order),
            web.post("/acknowledge", acknowledge),
            web.post("/canary", canary),
            web.get("/canary/{id}", canary_report),
            web.post("/pause", pause),
            web.post("/resume", resume),
        ]
    )
    return app


@contextlib.asynccontextmanager
async def serve_unix(app: web.Application, socket: Path) -> AsyncIterator[None]:
    """Serve ``app`` on ``socket``, mode 0600. A stale socket file is replaced: the caller holds the lock."""
    condense_accept_errors()
    runner = web.AppRunner(app, access_log=None, handle_signals=False, logger=HttpLog(socket.name))
    await runner.setup()
    try:
        socket.unlink(missing_ok=True)
        await web.UnixSite(runner, str(socket)).start()
        # The folder is 0700, so nobody could have come in between.
        socket.chmod(0o600)
        yield
    finally:
        socket.unlink(missing_ok=True)
        await runner.cleanup()
