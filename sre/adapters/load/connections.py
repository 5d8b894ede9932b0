"""
The HTTP client of the load generator: asyncio transports, llhttp, and nothing between them and the answer.

A general client costs twice what everything else of a request does (tests/benchmarks/bench_gate_load.py has the ratio),
and wakes a task for each piece of a body, so that its stamps are as late as the loop is behind. Here bytes are
stamped as they come and read in place; a request on an open connection takes no task, timer or future.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import socket
import ssl
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import cast

from yarl import URL

import sre
from sre.adapters.load.exchange import Headers, Receiver, Running
from sre.adapters.load.response import ResponseReader
from sre.adapters.load.session import IDLE_SECONDS, tls_context
from sre.adapters.load.wire import Target

ADDRESS_SECONDS = 30.0
"""A name's addresses are asked for again after this long."""
STALE_SECONDS = 1.0
"""A kept connection that goes within so long, and without a byte, was closed before the request reached the server."""
CLIENTS_FAULT = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Errors of connecting that say that this machine has no more to give."""
_OURS = frozenset({"x-request-id", "content-length", "transfer-encoding", "connection"})
"""Headers that a class of requests cannot set."""


def header_problem(name: str, value: str) -> str | None:
    """Why this cannot be sent as a header; None: it can."""
    if not name or not all(char.isascii() and (char.isalnum() or char in "!#$%&'*+-.^_`|~") for char in name):
        return "its name may have letters, digits and hyphens only"
    if any(char in "\r\n\0" for char in value) or not all(ord(char) < 256 for char in value):
        return "its value may not have line breaks or characters beyond Latin-1"
    return None


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    __slots__ = (
        "_again", "_again_until", "_connections", "_reader", "_receiver", "_transport", "idle_since", "is_open",
    )  # fmt: skip

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._reader = ResponseReader()
        self._receiver: Receiver | None = None
        self._again: Callable[[], None] | None = None
        self._again_until = 0.0
        self.is_open = False
        self.idle_since = 0.0

    def post(
        self, request: bytes, receiver: Receiver, again: Callable[[], None] | None = None, again_seconds: float = 0.0
    ) -> None:
        """
        Send; the connection is open and idle.

        Args:
            again: Called, and the receiver told nothing, if the connection goes before a byte of an answer came.
            again_seconds: For so long.
        """
        assert self._transport is not None
        if self._reader.complete:  # a parser of its own for each would be garbage in a circle
            self._reader.renew()
        self._receiver, self._again = receiver, again
        at = time.monotonic()
        self._again_until = at + again_seconds
        receiver.sent(at)
        self._transport.write(request)

    def serves(self, receiver: Receiver) -> bool:
        return self._receiver is receiver

    def abort(self) -> None:
        """Close it at once; nothing more is told."""
        self._receiver, self._again, self.is_open = None, None, False
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = cast(asyncio.Transport, transport), True
        self._connections.opened(self)

    def data_received(self, data: bytes) -> None:
        at = time.monotonic()
        receiver = self._receiver
        if receiver is None:
            self.abort()  # nobody asked
            return
        self._again = None
        reader = self._reader
        try:
            headless = reader.status is None
            body = reader.feed(data)
            if headless and reader.status is not None:
                receiver.head(reader.status, reader.headers, at)
            if body:
                receiver.body(body, at)
            if (reader.complete or reader.problem is not None) and self._receiver is receiver:  # else: aborted
                self._finished(reader, at, receiver)
        except Exception as error:  # noqa: BLE001 - a mistake of ours; the loop would only log it
            self.abort()
            receiver.crashed(error)

    def _finished(self, reader: ResponseReader, at: float, receiver: Receiver) -> None:
        self._receiver = None
        assert self._transport is not None
        if reader.reusable and not reader.unasked and not self._transport.get_write_buffer_size():
            self._connections.idle(self, at)
        else:
            self.abort()
        if reader.problem is None:
            receiver.ended(at, None)
        elif reader.status is None or (reader.status == 200 and not reader.began):
            receiver.not_http(reader.problem)
        else:
            receiver.ended(at, f"the connection broke: {reader.problem}")

    def connection_lost(self, exc: Exception | None) -> None:
        at = time.monotonic()
        self._transport, self.is_open = None, False
        self._connections.lost(self)
        receiver, self._receiver = self._receiver, None
        again, self._again = self._again, None
        if receiver is None:
            return
        if again is not None and at <= self._again_until:
            again()
            return
        how = "closed by the server" if exc is None else str(exc) or type(exc).__name__
        try:
            if self._reader.status is None:
                receiver.lost(f"the connection broke before an answer: {how}")
            elif exc is None and self._reader.ends_with_connection:
                receiver.ended(at, None)
            else:
                receiver.ended(at, f"the connection broke: {how}")
        except Exception as error:  # noqa: BLE001 - as above
            receiver.crashed(error)


class _Request:
    """A request under way: it has its connection, or a task that opens one."""

    __slots__ = ("_receiver", "connection", "task")

    def __init__(self, receiver: Receiver, connection: Connection | None = None) -> None:
        self._receiver, self.connection = receiver, connection
        self.task: asyncio.Task[None] | None = None

    def abort(self) -> None:
        if self.connection is not None:
            if self.connection.serves(self._receiver):  # else it is over, and the connection somebody else's
                self.connection.abort()
        elif self.task is not None:
            self.task.cancel()


class Connections:
    """
    All connections to one target (an ``exchange.Client``). An idle one is used again, the latest first.

    A server may close an idle connection while a request is on its way to it. No answer of the server's is lost then:
    as any client does, the request is sent again, once, on a connection of its own; its latency counts on.

    Args:
        stale_seconds: See STALE_SECONDS. A server that goes later than this may have worked on it.

    Raises:
        ConfigError: As ``session.tls_context``.
        ValueError: Its URL is none.
    """

    def __init__(self, target: Target, stale_seconds: float = STALE_SECONDS) -> None:
        self._stale_seconds = stale_seconds
        url = URL(target.path_url)
        if url.raw_host is None or url.port is None:
            raise ValueError(f"{target.url}: no host")
        self._host, self._port = url.raw_host, url.port
        self._ssl = tls_context(target.ca_file) if url.scheme == "https" else None
        self._first_line = f"POST {url.raw_path_qs} HTTP/1.1\r\n"
        self._headers = {"Host": _authority(url), "User-Agent": f"sre-gate/{sre.__version__}", **target.headers()}
        if url.user is not None and target.api_key is None:
            word = base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {word}"
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses: list[str] = []
        self._addresses_until = 0.0
        self._asking: asyncio.Task[list[str]] | None = None
        self._turn = 0
        self._head = lru_cache(maxsize=256)(self._make_head)

    def post(self, request_id: str, headers: Headers, body: bytes, receiver: Receiver) -> Running:
        """See ``exchange.Client``."""
        request = b"%sX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s" % (
            self._head(headers), request_id.encode("latin-1"), len(body), body,
        )  # fmt: skip
        connection = self._take_idle()
        if connection is not None:
            running = _Request(receiver, connection)
            again = partial(self._send_again, running, request, receiver)
            connection.post(request, receiver, again, self._stale_seconds)
            return running
        opening = _Request(receiver)
        self._start(opening, request, receiver)
        return opening

    async def close(self) -> None:
        """See ``exchange.Client``."""
        for task in self._tasks:
            task.cancel()
        if self._asking is not None:
            self._asking.cancel()
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports tell of their end in the loop's next turn

    # ---- told by connections ---------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._all.add(connection)

    def idle(self, connection: Connection, at: float) -> None:
        connection.idle_since = at
        self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        self._all.discard(connection)

    def _send_again(self, running: _Request, request: bytes, receiver: Receiver) -> None:
        running.connection = None
        receiver.sent_again()
        self._start(running, request, receiver)

    # ---- opening ---------------------------------------------------------------------------------------------------

    def _take_idle(self) -> Connection | None:
        oldest = time.monotonic() - IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                if connection.idle_since >= oldest:
                    return connection
                # The others have been idle for longer still.
                for one in (connection, *self._idle):
                    one.abort()
                self._idle.clear()
        return None

    def _start(self, opening: _Request, request: bytes, receiver: Receiver) -> None:
        task = opening.task = asyncio.get_running_loop().create_task(self._open(opening, request, receiver))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, opening: _Request, request: bytes, receiver: Receiver) -> None:
        began = time.monotonic()
        try:
            connection = opening.connection = await self._connect()
            receiver.connected(time.monotonic() - began)
            if connection.is_open:
                connection.post(request, receiver)
            else:
                receiver.lost("the connection broke before an answer: closed by the server")
        except OSError as error:
            receiver.connected(time.monotonic() - began)
            receiver.not_connected(error)
        except Exception as error:  # noqa: BLE001 - a mistake of ours; nobody awaits this task
            receiver.crashed(error)

    async def _connect(self) -> Connection:
        if not self._addresses or time.monotonic() > self._addresses_until:
            await self._ask()
        # Each begins with another, so that a name with several addresses has all of them loaded.
        self._turn += 1
        first = self._turn % len(self._addresses)
        trouble: OSError | None = None
        for address in self._addresses[first:] + self._addresses[:first]:
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self), address, self._port, ssl=self._ssl,
                    server_hostname=None if self._ssl is None else self._host,
                )  # fmt: skip
            except OSError as error:
                if error.errno in CLIENTS_FAULT or isinstance(error, ssl.SSLError):
                    raise
                trouble = error
                if address in self._addresses and len(self._addresses) > 1:
                    self._addresses.remove(address)
            else:
                return connection
        self._addresses_until = 0.0
        assert trouble is not None
        raise trouble

    async def _ask(self) -> None:
        """Have the host's addresses; one question for all who wait."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._resolve())
            # Whoever asked may have been cancelled, and an error is then nobody's.
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._addresses = list(await asyncio.shield(self._asking))
        self._addresses_until = time.monotonic() + ADDRESS_SECONDS

    async def _resolve(self) -> list[str]:
        found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        names = [
            f"{where[0]}%{where[3]}" if family == socket.AF_INET6 and len(where) == 4 and where[3] else str(where[0])
            for family, _, _, _, where in found
        ]
        return list(dict.fromkeys(names))

    def _make_head(self, headers: Headers) -> bytes:
        merged = {name.lower(): (name, value) for name, value in self._headers.items()}
        merged |= {name.lower(): (name, value) for name, value in headers if name.lower() not in _OURS}
        for name, value in merged.values():
            if (problem := header_problem(name, value)) is not None:
                raise ValueError(f"header {name!r}: {problem}")
        lines = [f"{name}: {value}\r\n" for name, value in merged.values()]
        return (self._first_line + "".join(lines)).encode("latin-1")


def _authority(url: URL) -> str:
    """Value of the Host header."""
    host = url.host_subcomponent or ""
    return host if url.is_default_port() else f"{host}:{url.port}"
