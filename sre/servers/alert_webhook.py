"""
Where Alertmanager posts: POST /api/v1/alerts, GET /healthz, GET and POST /ack.

What an answer means to Alertmanager decides which one is given. 2xx: it is on disk. 5xx: come again; for everything
that may pass (a full disk, too much at once, a body that took too long). 4xx is never repeated, so it is given only to
who may not post, and for what can never be stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl

import aiohttp
from aiohttp import web

from sre.errors import StateError
from sre.notify.alerts import Payload, PayloadError, Refusal, parse
from sre.servers.gate import Gate
from sre.servers.listening import listening
from sre.servers.quiet import HttpLog

log = logging.getLogger("sre.webhook")

PATH = "/api/v1/alerts"
RETRY_AFTER_SECONDS = 5
BODIES_AT_ONCE = 4
"""Bodies held in memory at once, each of the largest size; smaller ones count for what they are."""
PARSED_HERE_BYTES = 32 * 1024
"""Larger bodies are parsed in a thread: a millisecond for so many bytes."""
LINGER_SECONDS = 2.0
"""A refused body is read and thrown away for so long, so that the refusal is read before the connection breaks."""
LONGEST_FORM_BYTES = 4096
LOG_AGAIN_SECONDS = 60.0
SHUTDOWN_SECONDS = 3.0
"""Requests under way at the end may finish for so long."""

OUTCOMES = (
    "accepted",
    "unauthorized",
    "too_large",
    "encoded",
    "refused",
    "busy",
    "slow",
    "unstored",
    "too_many_connections",
    "slow_headers",
    "too_large_headers",
    "malformed",
    "broken_off",
)
"""How a request can end, as it is counted."""


_BROKEN = (ConnectionError, web.RequestPayloadError, aiohttp.ClientError)
"""What reading a body raises when its sender is gone or breaks HTTP."""


class TakenIn(Protocol):
    """What a notification came to."""

    @property
    def alerts(self) -> int: ...


class Intake(Protocol):
    """Takes notifications in."""

    @property
    def problem(self) -> str | None:
        """Why nothing can be written now."""
        ...

    def lost(self, cause: str, sentence: str) -> None:
        """A notification of somebody who may post was refused for good: a person must know. ``cause`` is one of few."""
        ...

    def turned_away(self) -> None:
        """A post came whose credentials open nothing."""
        ...

    async def take(self, payload: Payload) -> TakenIn:
        """Return when it is on disk. Raises StateError when it is not; it may be sent again."""
        ...


class AckAnswer(Protocol):
    """What somebody who used a link is shown."""

    @property
    def heading(self) -> str: ...

    @property
    def sentence(self) -> str: ...

    @property
    def known(self) -> bool:
        """Whether there is such an incident here."""
        ...


class Acknowledger(Protocol):
    """Checks a signed link and acknowledges an incident."""

    def check(self, incident_id: str, token: str) -> str | None:
        """Why the link opens nothing; None when it is good."""
        ...

    async def acknowledge(self, incident_id: str, token: str, by: str) -> AckAnswer:
        """Return what became of it. Raises StateError when it cannot be written now."""
        ...


class Door(Protocol):
    """Knows who may post."""

    async def fits(self, authorization: str) -> bool:
        """Whether an Authorization header opens the webhook. Raises StateError when that is not known now."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes: int
    seconds: float
    """For the headers, and again for the body."""
    connections: int


class AlertWebhook:
    """
    The application and what it is bounded by.

    Args:
        counted: Told the outcome of each request.
    """

    def __init__(
        self,
        intake: Intake,
        door: Door,
        limits: Limits,
        *,
        counted: Callable[[str], None] = lambda _: None,
        acknowledger: Acknowledger | None = None,
    ) -> None:
        self._intake, self._door, self._limits = intake, door, limits
        self._counted, self._acknowledger = counted, acknowledger
        self._room = BODIES_AT_ONCE * limits.body_bytes
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="webhook-parse")
        self._gate: Gate | None = None
        self._silent_until: dict[Refusal, float] = {}

    @property
    def connections(self) -> int:
        """Held now."""
        return 0 if self._gate is None else self._gate.connections

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._explain])
        app.router.add_post(PATH, self._post)
        app.router.add_get("/healthz", self._healthy)
        if self._acknowledger is not None:
            app.router.add_get("/ack", self._ack_page)
            app.router.add_post("/ack", self._ack)
        return app

    @contextlib.asynccontextmanager
    async def serve(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        """
        Listen; yields the port.

        Raises:
            OSError: The port cannot be had.
        """
        # Compressed bodies are refused before they are unpacked: what is small on the wire is then small here.
        runner = web.AppRunner(
            self.app(),
            access_log=None,
            handle_signals=False,
            auto_decompress=False,
            lingering_time=LINGER_SECONDS,
            shutdown_timeout=SHUTDOWN_SECONDS,
            logger=HttpLog("webhook", malformed=lambda: self._counted("malformed")),
        )
        await runner.setup()
        assert runner.server is not None
        gate = Gate(
            runner.server,
            most_connections=self._limits.connections,
            header_seconds=self._limits.seconds,
            refused=self._counted,
        )
        self._gate = gate
        try:
            async with listening(gate, host, port, tls=tls, handshake_seconds=self._limits.seconds) as bound:
                yield bound
        finally:
            await runner.cleanup()
            gate.close()
            self._parser.shutdown(wait=False, cancel_futures=True)

    # ---- requests ----------------------------------------------------------------------------------------------------

    @web.middleware
    async def _explain(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Every answer is said in a sentence; only who was accepted keeps the connection."""
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = _say(error.status, f"webhook: {error.reason}; post alerts to {PATH}")
            with contextlib.suppress(StateError):
                if request.method == "POST" and await self._door.fits(request.headers.get("Authorization", "")):
                    self._intake.lost("wrong_path", f"they are not posted to {PATH}")
        except Exception:
            # What is our mistake may work next time, and must not lose an alert.
            log.exception("webhook: a request failed")
            self._counted("unstored")
            response = _later("webhook: failed; see the log")
        if response.status != 200:
            response.force_close()
        elif self._gate is not None:
            self._gate.answered(request.transport)
        return response

    async def _post(self, request: web.Request) -> web.StreamResponse:
        try:
            fits = await self._door.fits(request.headers.get("Authorization", ""))
        except StateError as error:
            self._counted("unstored")
            return _later(f"webhook: cannot tell who may post: {error}")
        if not fits:
            self._counted("unauthorized")
            self._intake.turned_away()
            response = _say(401, "webhook: wrong or no credentials; see webhook.token in sre.yaml")
            response.headers["WWW-Authenticate"] = 'Bearer realm="sre", Basic realm="sre"'
            return response
        if self._gate is not None:
            self._gate.proven(request.transport)
        if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
            self._counted("encoded")
            self._intake.lost("encoded", "they are compressed")
            return _say(415, "webhook: compressed bodies are not taken; send without Content-Encoding")
        try:
            body = await self._body(request)
        except _TooLarge:
            self._counted("too_large")
            too_large = (
                f"more than {self._limits.body_bytes} bytes; raise webhook.max_body_bytes, or set max_alerts at"
                " Alertmanager"
            )
            self._intake.lost("too_large", too_large)
            return _say(413, f"webhook: {too_large}")
        except _NoRoom:
            self._counted("busy")
            return _later("webhook: too many bodies at once; come again")
        except _BROKEN:
            self._counted("broken_off")
            return _later("webhook: the body broke off; come again")
        except TimeoutError:
            self._counted("slow")
            return _later(f"webhook: no whole body within {self._limits.seconds:g} s; come again")
        try:
            payload = await self._parsed(body)
        except PayloadError as error:
            self._counted("refused")
            self._log_refusal(error)
            self._intake.lost(error.refusal.value, str(error))
            return _say(400, f"webhook: {error.refusal.value}: {error}")
        finally:
            self._room += len(body)
            del body
        try:
            taken = await self._intake.take(payload)
        except StateError as error:
            self._counted("unstored")
            return _later(f"webhook: not stored: {error}")
        self._counted("accepted")
        return web.json_response({"alerts": taken.alerts, "unreadable": len(payload.bad)})

    def _log_refusal(self, error: PayloadError) -> None:
        """Once a minute per reason: who repeats himself fills no disk."""
        now = asyncio.get_running_loop().time()
        if now >= self._silent_until.get(error.refusal, 0.0):
            self._silent_until[error.refusal] = now + LOG_AGAIN_SECONDS
            log.error("webhook: a notification is refused and lost (%s): %s", error.refusal.value, error)

    async def _parsed(self, body: bytes) -> Payload:
        if len(body) <= PARSED_HERE_BYTES:
            return parse(body)
        return await asyncio.get_running_loop().run_in_executor(self._parser, parse, body)

    async def _body(self, request: web.Request) -> bytes:
        """The body; its size is taken from the room, to be given back. Raises _TooLarge, _NoRoom, TimeoutError."""
        limit = self._limits.body_bytes
        length = request.content_length
        if length is not None and length > limit:
            raise _TooLarge
        parts: list[bytes] = []
        held = size = 0
        try:
            held = self._reserve(length or 0)
            async with asyncio.timeout(self._limits.seconds):
                while part := await request.content.readany():
                    size += len(part)
                    if size > limit:
                        raise _TooLarge
                    held += self._reserve(max(0, size - held))
                    parts.append(part)
        except BaseException:
            self._room += held
            raise
        self._room += held - size
        return b"".join(parts)

    def _reserve(self, size: int) -> int:
        if size > self._room:
            raise _NoRoom
        self._room -= size
        return size

    async def _healthy(self, request: web.Request) -> web.StreamResponse:
        fine = self._intake.problem is None
        return _say(200, "ok") if fine else _later("webhook: nothing can be stored now; see the guard's log")

    # ---- acknowledging -----------------------------------------------------------------------------------------------

    async def _ack_page(self, request: web.Request) -> web.StreamResponse:
        """Shows a button and changes nothing: mail scanners and previews follow links."""
        identifier, token = request.query.get("incident", ""), request.query.get("t", "")
        problem = self._acknowledger.check(identifier, token) if self._acknowledger is not None else "no"
        if problem is not None:
            return _page(403, "Not acknowledged", f"<p>{html.escape(problem)}</p>")
        form = (
            f"<p>Acknowledge <b>{html.escape(identifier)}</b>: nobody else is called, and you take care of it.</p>"
            f'<form method="post" action="/ack"><input type="hidden" name="incident" value="{html.escape(identifier)}">'
            f'<input type="hidden" name="t" value="{html.escape(token)}">'
            '<p><label>Your name <input name="by" maxlength="80" required></label>'
            " <button>Acknowledge</button></p></form>"
        )
        return _page(200, "Acknowledge", form)

    async def _ack(self, request: web.Request) -> web.StreamResponse:
        if self._acknowledger is None:
            return _say(404, "webhook: no acknowledging here")
        if (request.content_length or 0) > LONGEST_FORM_BYTES:
            return _page(413, "Not acknowledged", "<p>The form is too large.</p>")
        try:
            async with asyncio.timeout(self._limits.seconds):
                raw = bytearray()
                while part := await request.content.readany():
                    raw += part
                    if len(raw) > LONGEST_FORM_BYTES:
                        return _page(413, "Not acknowledged", "<p>The form is too large.</p>")
        except (TimeoutError, *_BROKEN):
            return _later("webhook: no whole form in time")
        fields = _form(bytes(raw))
        identifier, token = fields.get("incident", ""), fields.get("t", "")
        problem = self._acknowledger.check(identifier, token)
        if problem is not None:
            return _page(403, "Not acknowledged", f"<p>{html.escape(problem)}</p>")
        try:
            said = await self._acknowledger.acknowledge(identifier, token, fields.get("by", "").strip()[:80] or "link")
        except StateError as error:
            return _page(503, "Not acknowledged", f"<p>{html.escape(str(error))}. Try again in a moment.</p>")
        return _page(200 if said.known else 404, said.heading, f"<p>{html.escape(said.sentence)}</p>")


class _TooLarge(Exception):
    pass


class _NoRoom(Exception):
    pass


def _form(raw: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(raw.decode("utf-8", "replace"), max_num_fields=10))
    except ValueError:
        return {}


def _say(status: int, sentence: str) -> web.Response:
    data: Any = {"ok" if status == 200 else "error": sentence}
    return web.json_response(data, status=status, dumps=lambda d: json.dumps(d, sort_keys=True))


def _later(sentence: str) -> web.Response:
    response = _say(503, sentence)
    response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def _page(status: int, title: str, body: str) -> web.Response:
    text = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title></head><body><h1>{title}</h1>{body}</body></html>"
    )
    response = web.Response(status=status, text=text, content_type="text/html")
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Content-Security-Policy"] = "default-src 'none'; form-action 'self'; frame-ancestors 'none'"
    return response
