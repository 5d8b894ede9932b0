"""
The supervisor's API on a Unix socket (mode 0600: whoever may open it may act).

GET /                         this list
GET /status                   every process, the phase, notes for a person (``sre.stack.status.StackReport``)
GET /engines                  {"engines": [EngineStatus…]}: what the guard needs
POST /engines/NAME/restart    {"expected": {"pid", "start_ticks"}, "reason"} → {"restarted": bool}; false when another
                              process than ``expected`` runs by now: a repeated or late call changes nothing
POST /shutdown                {"drain": true, "drain_timeout_seconds": null} → 202; again: hurry

Errors are {"error": sentence}: 400 not understood, 404 no such engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from aiohttp import web

from sre.actions.ports import EngineStatus
from sre.signals.types import ProcessIdentity
from sre.stack.ledger import identity_from_json
from sre.stack.status import StackReport, engine_status_to_json, stack_report_to_json

MAX_BODY_BYTES = 16 * 1024
REASON = re.compile(r"[\x20-\x7e]{1,200}")
"""Reasons end up in logs and on terminals: printable, on one line."""


class SupervisorDesk(Protocol):
    """What the API asks of the supervisor."""

    async def report(self) -> StackReport: ...
    def engines(self) -> Sequence[EngineStatus]: ...
    def restart(self, name: str, expected: ProcessIdentity, reason: str) -> bool: ...
    def request_stop(self, *, drain: bool = True, drain_timeout_seconds: float | None = None) -> None: ...


def supervisor_app(desk: SupervisorDesk) -> web.Application:
    """Return the application that serves ``desk``."""

    async def index(_: web.Request) -> web.Response:
        return web.Response(text=(__doc__ or "").strip() + "\n")

    async def status(_: web.Request) -> web.Response:
        return _answer(stack_report_to_json(await desk.report()))

    async def engines(_: web.Request) -> web.Response:
        return _answer({"engines": [engine_status_to_json(engine) for engine in desk.engines()]})

    async def restart(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if all(engine.name != name for engine in desk.engines()):
            return _answer({"error": f"no engine {name!r}; see GET /engines"}, 404)
        try:
            body = await _body(request)
            expected = identity_from_json(body["expected"])
            reason = body["reason"]
            if expected is None or not isinstance(reason, str) or not REASON.fullmatch(reason):
                raise ValueError("reason must be a line of text, expected a process")
        except (KeyError, TypeError, ValueError) as error:
            sentence = f'write {{"expected": {{"pid": N, "start_ticks": N}}, "reason": "…"}} ({error})'
            return _answer({"error": sentence}, 400)
        try:
            return _answer({"restarted": desk.restart(name, expected, reason)})
        except KeyError:
            return _answer({"error": f"engine {name} is external: someone else runs it, sre does not restart it"}, 400)

    async def shutdown(request: web.Request) -> web.Response:
        try:
            body = await _body(request)
            timeout = body.get("drain_timeout_seconds")
            if timeout is not None and not (type(timeout) in (int, float) and 0 <= timeout < float("inf")):
                raise ValueError("drain_timeout_seconds must be seconds, or null")
            drain = body.get("drain", True)
            if not isinstance(drain, bool):
                raise ValueError("drain must be true or false")
        except ValueError as error:
            return _answer({"error": str(error)}, 400)
        desk.request_stop(drain=drain, drain_timeout_seconds=timeout)
        return _answer({"stopping": True}, 202)

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_routes(
        [
            web.get("/", index),
            web.get("/status", status),
            web.get("/engines", engines),
            web.post("/engines/{name}/restart", restart),
            web.post("/shutdown", shutdown),
        ]
    )
    return app


def _answer(data: Any, status: int = 200) -> web.Response:
    return web.json_response(data, status=status)


async def _body(request: web.Request) -> dict[str, Any]:
    text = await request.text()
    try:
        data = json.loads(text or "{}")
    except RecursionError as error:
        raise ValueError("the body is not JSON") from error
    if not isinstance(data, dict):
        raise ValueError("the body must be a JSON object")
    return data
