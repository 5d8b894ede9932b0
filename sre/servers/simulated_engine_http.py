"""HTTP side of the simulated engine: vLLM's routes, status codes and headers."""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import hdrs, web

from sre.metrics import vllm
from sre.servers.simulated_engine_client import EngineClient, Generation
from sre.servers.simulated_engine_metrics import CONTENT_TYPE, EngineMetrics
from sre.servers.simulated_engine_render import DONE, Chunks, compact, error_event, whole_answer
from sre.simulator.engine import PauseMode
from sre.simulator.protocol import (
    BAD_REQUEST,
    INVALID,
    ApiError,
    chat_text,
    generation_failed,
    parse_call,
    parse_json,
)
from sre.simulator.scheduler import Finish
from sre.simulator.text import decode, encode

VERSION = "0.32.0+sre.sim"
"""Version of vLLM that is imitated, marked as an imitation."""
OWNER = "sre-simulator"
LABEL = {"x-sre-simulated": "engine"}
"""On every answer."""
LARGEST_BODY_BYTES = 64 << 20
GUARDED_PREFIXES = ("/v1", "/v2", "/inference", "/cohere")
"""As in vLLM: --api-key guards only these."""
KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Clients may invent methods; label values are bounded."""
REQUEST_ID = "X-Request-Id"
PRIORITY = "X-Vllm-Priority"
LOAD_FORMAT = "endpoint-load-metrics-format"


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """What of the command line concerns HTTP."""

    served_model: str
    root: str
    """Path or name of the model, ``root`` in /v1/models."""
    max_model_len: int
    api_key: str | None = None
    dev_mode: bool = False
    request_id_headers: bool = False
    track_load: bool = False


@dataclass(slots=True)
class Exchange:
    """One request, and what its metrics need."""

    request: web.BaseRequest
    began: float
    first_byte: float | None = None
    headers: dict[str, str] = field(default_factory=dict)


Handler = Callable[[Exchange], Awaitable[web.StreamResponse]]


class EngineApi:
    """Routes of one engine. ``handle`` is the request handler of ``aiohttp.web.Server``."""

    def __init__(self, options: HttpOptions, client: EngineClient, metrics: EngineMetrics) -> None:
        self._options = options
        self._client = client
        self._metrics = metrics
        self._created = int(time.time())
        self._load = 0
        routes: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._server_load},
            "/metrics": {"GET": self._render_metrics},
            "/v1/models": {"GET": self._models},
            "/v1/completions": {"POST": self._completions},
            "/v1/chat/completions": {"POST": self._chat},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
        }
        if options.dev_mode:
            routes |= {
                "/pause": {"POST": self._pause},
                "/resume": {"POST": self._resume},
                "/is_paused": {"GET": self._is_paused},
                "/sleep": {"POST": self._sleep},
                "/wake_up": {"POST": self._wake_up},
                "/is_sleeping": {"GET": self._is_sleeping},
                "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
                "/abort_requests": {"POST": self._abort_requests},
            }
        self._routes = routes

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        exchange = Exchange(request, time.monotonic(), headers=dict(LABEL))
        path = request.path
        methods = self._routes.get(path)
        handler = methods.get(request.method) if methods else None
        if self._options.request_id_headers:
            exchange.headers[REQUEST_ID] = request.headers.get(REQUEST_ID) or os.urandom(16).hex()
        if not self._authorized(request):
            return self._json(exchange, {"error": "Unauthorized"}, 401)
        if methods is None:
            response: web.StreamResponse = self._json(exchange, {"detail": "Not Found"}, 404)
        elif handler is None:
            exchange.headers["allow"] = ", ".join(methods)
            response = self._json(exchange, {"detail": "Method Not Allowed"}, 405)
        else:
            try:
                response = await handler(exchange)
            except ApiError as error:
                response = self._json(exchange, error.body, error.status)
        if path not in vllm.HTTP_NOT_COUNTED:
            first = exchange.first_byte or time.monotonic()
            label = path if handler is not None else vllm.HTTP_UNKNOWN_HANDLER
            received = request.content_length or 0
            sent = len(response.body) if isinstance(response, web.Response) and isinstance(response.body, bytes) else 0
            method = request.method if request.method in KNOWN_METHODS else "other"
            self._metrics.http(label, method, response.status, first - exchange.began, received, sent)
        return response

    # completions

    async def _completions(self, exchange: Exchange) -> web.StreamResponse:
        return await self._generate(exchange, chat=False)

    async def _chat(self, exchange: Exchange) -> web.StreamResponse:
        return await self._generate(exchange, chat=True)

    async def _generate(self, exchange: Exchange, *, chat: bool) -> web.StreamResponse:
        request, options = exchange.request, self._options
        body = await self._body(exchange)
        call = parse_call(
            body,
            chat=chat,
            model=options.served_model,
            max_model_len=options.max_model_len,
            priority=request.headers.get(PRIORITY),
        )
        wanted = request.headers.get(REQUEST_ID) or os.urandom(8).hex()
        generation = self._client.submit(call, f"{'chatcmpl' if chat else 'cmpl'}-{wanted}")
        created = int(time.time())
        self._load += 1
        try:
            if call.stream:
                chunks = Chunks(call, generation, created=created, model=options.served_model)
                return await self._stream(exchange, generation, chunks)
            while not generation.done:
                await generation.changed()
            if generation.error is not None:
                raise generation.error
            if any(sequence.finish is Finish.ERROR for sequence in generation.sequences):
                raise generation_failed()
            answer = whole_answer(call, generation, created=created, model=options.served_model)
            if request.headers.get(LOAD_FORMAT) == "json":
                exchange.headers["endpoint-load-metrics"] = self._load_header()
            return self._bytes(exchange, answer)
        finally:
            self._load -= 1
            self._client.drop(generation)

    async def _stream(self, exchange: Exchange, generation: Generation, chunks: Chunks) -> web.StreamResponse:
        response = web.StreamResponse(headers=exchange.headers)
        response.headers[hdrs.CONTENT_TYPE] = "text/event-stream; charset=utf-8"
        await response.prepare(exchange.request)
        exchange.first_byte = time.monotonic()
        try:
            while True:
                await generation.changed()
                if generation.error is not None:
                    await response.write(error_event(generation.error))
                    break
                if any(sequence.finish is Finish.ERROR for sequence in generation.dirty):
                    await response.write(error_event(generation_failed()))
                    break
                if generation.done and self._cut_by_shutdown(generation):
                    await response.write(DONE)  # as vLLM: nothing says that the answer is not whole
                    break
                news = chunks.news()
                if generation.done:
                    await response.write(news + chunks.last())
                    break
                await response.write(news)
            await response.write_eof()
        except ConnectionError:
            pass  # the client is gone: the caller drops the generation
        return response

    def _cut_by_shutdown(self, generation: Generation) -> bool:
        return self._client.stopping and any(sequence.finish is Finish.ABORT for sequence in generation.sequences)

    # everything else

    async def _health(self, exchange: Exchange) -> web.StreamResponse:
        """200 as long as the core's socket is open: nothing about whether it moves."""
        dead = self._client.dead and not self._client.stopping
        return web.Response(status=503 if dead else 200, headers=exchange.headers)

    async def _version(self, exchange: Exchange) -> web.StreamResponse:
        return self._json(exchange, {"version": VERSION})

    async def _server_load(self, exchange: Exchange) -> web.StreamResponse:
        return self._json(exchange, {"server_load": self._load if self._options.track_load else 0})

    async def _render_metrics(self, exchange: Exchange) -> web.StreamResponse:
        response = web.Response(body=self._metrics.render(), headers=exchange.headers)
        response.headers[hdrs.CONTENT_TYPE] = CONTENT_TYPE
        return response

    async def _models(self, exchange: Exchange) -> web.StreamResponse:
        options = self._options
        permission = {
            "id": "modelperm-sre-simulator", "object": "model_permission", "created": self._created,
            "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
            "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*",
            "group": None, "is_blocking": False,
        }  # fmt: skip
        model = {
            "id": options.served_model, "object": "model", "created": self._created, "owned_by": OWNER,
            "root": options.root, "parent": None, "max_model_len": options.max_model_len, "permission": [permission],
        }  # fmt: skip
        return self._json(exchange, {"object": "list", "data": [model]})

    async def _tokenize(self, exchange: Exchange) -> web.StreamResponse:
        body = await self._body(exchange)
        text = chat_text(body["messages"]) if isinstance(body.get("messages"), list) else body.get("prompt")
        if not isinstance(text, str):
            raise ApiError(400, "1 validation error:\n  Field required", INVALID, "body.prompt")
        tokens = encode(text)
        document = {"count": len(tokens), "max_model_len": self._options.max_model_len, "tokens": tokens}
        return self._json(exchange, document | {"token_strs": None})

    async def _detokenize(self, exchange: Exchange) -> web.StreamResponse:
        tokens = (await self._body(exchange)).get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
            raise ApiError(400, "1 validation error:\n  Field required", INVALID, "body.tokens")
        return self._json(exchange, {"prompt": decode(tokens)})

    # VLLM_SERVER_DEV_MODE=1

    async def _pause(self, exchange: Exchange) -> web.StreamResponse:
        mode = exchange.request.query.get("mode", PauseMode.ABORT.value)
        if mode not in {known.value for known in PauseMode}:
            text = "1 validation error:\n  Input should be 'abort', 'wait' or 'keep'"
            raise ApiError(400, text, INVALID, "query.mode")
        await self._client.call("pause", mode)
        return self._json(exchange, {"status": "paused"})

    async def _resume(self, exchange: Exchange) -> web.StreamResponse:
        await self._client.call("resume")
        return self._json(exchange, {"status": "resumed"})

    async def _is_paused(self, exchange: Exchange) -> web.StreamResponse:
        return self._json(exchange, {"is_paused": await self._client.call("is_paused")})

    async def _sleep(self, exchange: Exchange) -> web.StreamResponse:
        level = exchange.request.query.get("level", "1")
        if level not in ("0", "1", "2"):
            raise ApiError(400, f"level must be 0, 1 or 2, got {level}.", BAD_REQUEST, "level")
        began = time.monotonic()
        await self._client.call("sleep", int(level))
        self._metrics.set_sleep(int(level))
        self._metrics.sleep_operation("sleep", time.monotonic() - began)
        return self._json(exchange, {"status": "sleeping", "level": int(level)})

    async def _wake_up(self, exchange: Exchange) -> web.StreamResponse:
        began = time.monotonic()
        await self._client.call("wake_up")
        self._metrics.set_sleep(None)
        self._metrics.sleep_operation("wake", time.monotonic() - began)
        return self._json(exchange, {"status": "awake", "tags": None})

    async def _is_sleeping(self, exchange: Exchange) -> web.StreamResponse:
        return self._json(exchange, {"is_sleeping": await self._client.call("is_sleeping")})

    async def _reset_prefix_cache(self, exchange: Exchange) -> web.StreamResponse:
        return self._json(exchange, {"success": await self._client.call("reset_prefix_cache")})

    async def _abort_requests(self, exchange: Exchange) -> web.StreamResponse:
        try:
            body = parse_json(await exchange.request.read())
        except ApiError as error:
            raise ApiError(400, "Invalid JSON format", INVALID) from error
        ids = body.get("request_ids")
        if ids is not None and not (isinstance(ids, list) and all(isinstance(key, str) for key in ids)):
            raise ApiError(400, "request_ids must be a list of strings", BAD_REQUEST, "request_ids")
        return self._json(exchange, {"status": "aborted", "aborted": self._client.abort(ids or None)})

    # common

    async def _body(self, exchange: Exchange) -> dict[str, Any]:
        request = exchange.request
        if request.content_type != "application/json" or hdrs.CONTENT_TYPE not in request.headers:
            text = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
            raise ApiError(400, text, INVALID)
        try:
            return parse_json(await request.read())
        except web.HTTPRequestEntityTooLarge as error:
            raise ApiError(413, f"The body is larger than {LARGEST_BODY_BYTES} bytes.", INVALID) from error

    def _authorized(self, request: web.BaseRequest) -> bool:
        key = self._options.api_key
        if key is None or not request.path.startswith(GUARDED_PREFIXES):
            return True
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), key.encode())

    def _load_header(self) -> str:
        totals = self._client.totals
        named = {"num_requests_waiting": float(totals.waiting), "kv_cache_usage_perc": totals.kv_usage_ratio}
        inside = ", ".join(f'"{name}": {value}' for name, value in named.items())
        return f'JSON {{"named_metrics": {{{inside}}}}}'

    def _json(self, exchange: Exchange, document: dict[str, Any], status: int = 200) -> web.Response:
        return self._bytes(exchange, compact(document), status)

    def _bytes(self, exchange: Exchange, body: bytes, status: int = 200) -> web.Response:
        response = web.Response(body=body, status=status, headers=exchange.headers)
        response.headers[hdrs.CONTENT_TYPE] = "application/json"
        return response


def make_server(api: EngineApi) -> web.Server:
    """The HTTP server; a client that goes away cancels its handler."""

    def with_large_bodies(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=LARGEST_BODY_BYTES)

    return web.Server(
        api.handle,
        request_factory=with_large_bodies,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=75.0,
    )
