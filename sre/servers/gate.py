"""
A gate in front of an HTTP server: bounds on connections, on headers in bytes and time, whoever knocks.

The server behind sees a connection only as bytes that passed. Who has not shown credentials can be turned out when the
gate is full, longest waiting first: a flood of half-open connections keeps nobody out.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections import Counter
from collections.abc import Callable
from typing import cast

HEADERS_END = b"\r\n\r\n"
MOST_HEADER_BYTES = 32 * 1024
IDLE_SECONDS = 120.0
"""A connection kept alive for the next request is closed after this; Alertmanager opens another one."""

_REFUSED = b"HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n%s"


class Phase(enum.Enum):
    """Where a connection stands."""

    IDLE = "idle"  # between requests
    HEADERS = "headers"
    UNPROVEN = "unproven"  # the server has the headers, and no credentials yet
    PROVEN = "proven"


def _answer(status: int, reason: str, sentence: str, header: str = "") -> bytes:
    body = (sentence + "\n").encode()
    return _REFUSED % (status, reason.encode(), len(body), header.encode(), body)


class Gate:
    """
    Makes protocols for ``loop.create_server``.

    Args:
        inner: Makes the protocol of the server behind.
        name: The server behind, as refusals begin.
        refused: Told the name of each refusal: too_many_connections, slow_headers, too_large_headers.
    """

    def __init__(
        self,
        inner: Callable[[], asyncio.BaseProtocol],
        *,
        most_connections: int,
        header_seconds: float,
        name: str = "webhook",
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self._inner, self._most, self.header_seconds, self.refused = inner, most_connections, header_seconds, refused
        self._open: dict[asyncio.BaseTransport, Passage] = {}

    def __call__(self) -> asyncio.Protocol:
        return Passage(self, cast(asyncio.Protocol, self._inner()))

    @property
    def connections(self) -> int:
        return len(self._open)

    def enter(self, transport: asyncio.Transport, passage: Passage) -> bool:
        """Return whether there is room; if not, make some."""
        if len(self._open) >= self._most:
            waiting = [one for one in self._open.values() if one.phase is not Phase.PROVEN]
            if not waiting:
                return False
            # Between requests first; then of the peer that has the most, whoever has waited longest.
            held = Counter(one.peer for one in waiting)
            min(waiting, key=lambda one: (one.phase is not Phase.IDLE, -held[one.peer], one.since)).turn_out()
        self._open[transport] = passage
        return True

    def leave(self, transport: asyncio.BaseTransport) -> None:
        self._open.pop(transport, None)

    def proven(self, transport: asyncio.BaseTransport | None) -> None:
        """Who is on this connection has shown credentials."""
        self._move(transport, Phase.PROVEN)

    def answered(self, transport: asyncio.BaseTransport | None) -> None:
        """The request on this connection is answered; the next may come."""
        self._move(transport, Phase.IDLE)

    def _move(self, transport: asyncio.BaseTransport | None, phase: Phase) -> None:
        passage = self._open.get(transport) if transport is not None else None
        if passage is not None:
            passage.move(phase)

    def close(self) -> None:
        """Cut every connection."""
        for passage in list(self._open.values()):
            passage.turn_out()


class Passage(asyncio.Protocol):
    """One connection: passes bytes on, once it is known that they are bounded."""

    def __init__(self, gate: Gate, inner: asyncio.Protocol) -> None:
        self._gate, self._inner = gate, inner
        self._transport: asyncio.Transport | None = None
        self._entered = False
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._tail = b""
        self.phase = Phase.IDLE
        self.since = 0.0
        self.peer = ""
        """Address of who is at the other end."""

    # ---- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        if not self._gate.enter(self._transport, self):
            self._gate.refused("too_many_connections")
            sentence = f"{self._gate.name}: too many connections; come again"
            self._transport.write(_answer(503, "Service Unavailable", sentence, "Retry-After: 1\r\n"))
            self._transport.close()
            return
        self._entered = True
        self._inner.connection_made(transport)
        # Whoever connects is expected to speak.
        self._begin_headers()

    def data_received(self, data: bytes) -> None:
        if not self._entered or self._transport is None or self._transport.is_closing():
            return
        if self.phase is Phase.IDLE:
            self._begin_headers()
        if self.phase is Phase.HEADERS:
            seen = self._tail + data
            end = seen.find(HEADERS_END)
            headers = self._header_bytes + (len(data) if end < 0 else end + len(HEADERS_END) - len(self._tail))
            if headers > MOST_HEADER_BYTES:
                self._refuse(
                    "too_large_headers", 431, "Request Header Fields Too Large",
                    f"{self._gate.name}: more than {MOST_HEADER_BYTES} bytes of headers",
                )  # fmt: skip
                return
            self._header_bytes, self._tail = headers, seen[-(len(HEADERS_END) - 1) :]
            if end >= 0:
                self.move(Phase.UNPROVEN)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._entered else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._transport is not None:
            self._gate.leave(self._transport)
        if self._entered:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._entered:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._entered:
            self._inner.resume_writing()

    # ---- the gate's side ---------------------------------------------------------------------------------------------

    def move(self, phase: Phase) -> None:
        """Go to ``phase``."""
        self._stop_timer()
        self.phase, self.since = phase, asyncio.get_running_loop().time()
        if phase is Phase.IDLE:
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.turn_out)

    def turn_out(self) -> None:
        """Cut the connection now: the room is needed, or the time is over."""
        self._stop_timer()
        if self._transport is not None:
            self._gate.leave(self._transport)
            self._transport.abort()

    def _begin_headers(self) -> None:
        self.move(Phase.HEADERS)
        self._header_bytes, self._tail = 0, b""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._gate.header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self._header_bytes == 0:
            # Opened in stock, as clients do: an answer to nothing would confuse them.
            self.turn_out()
            return
        # No 4xx: should it be Alertmanager on a bad day, it must come again.
        sentence = f"{self._gate.name}: no whole headers within {self._gate.header_seconds:g} s; come again"
        self._refuse("slow_headers", 503, "Service Unavailable", sentence)

    def _refuse(self, name: str, status: int, reason: str, sentence: str) -> None:
        """Answer in the server's place and close: it never saw a request."""
        self._stop_timer()
        self._gate.refused(name)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_answer(status, reason, sentence))
            self._transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """
    Return what speaks TLS 1.2 and later with this certificate.

    Raises:
        OSError, ssl.SSLError: The files cannot be read, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context
