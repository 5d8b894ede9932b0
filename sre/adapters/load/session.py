"""The HTTP client as the load generator needs it: no limits, no retries, no redirects, honest stamps."""

from __future__ import annotations

import asyncio
import functools
import resource
import ssl
import time
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler

from sre.adapters.load.wire import Target
from sre.errors import ConfigError
from sre.gate.records import RequestRecord

READ_BUFFER_BYTES = 1 << 20
"""A client that stops reading because its own buffer is full would be measured as a slow server."""
IDLE_SECONDS = 3.0
"""A connection idle for longer is not used again: vLLM's server closes it after 5 s, maybe just as we send."""
SPARE_FILES = 64
"""Open files of a process beside its connections (our estimate)."""


class Body(payload.BytesPayload):
    """A request body that notes when it is handed to the socket; aiohttp sends the headers together with it."""

    def __init__(self, body: bytes, record: RequestRecord) -> None:
        super().__init__(body, content_type="application/json")
        self.record = record

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self.record.sent_at = time.monotonic()
        await super().write_with_length(writer, content_length)


class Arrivals(ResponseHandler):
    """
    A connection that notes when bytes came, before anything is done with them, and hands a body on at once.

    aiohttp would wake the reading task for each piece: its stamp would be as late as the loop is behind, and a quarter
    of the client's time would go into waking.
    """

    arrived_at = 0.0
    """Of the latest bytes."""
    sink: Callable[[float], None] | None = None
    """Called after bytes were parsed, with the moment they came, and when the connection is gone."""

    def data_received(self, data: bytes) -> None:
        if not data:
            # aiohttp's own call, from within a read of ours: it parses on where it had paused.
            super().data_received(data)
            return
        self.arrived_at = at = time.monotonic()
        super().data_received(data)
        if self.sink is not None:
            self.sink(at)

    @property
    def reading_paused(self) -> bool:
        """Its buffer is full: an answer larger than READ_BUFFER_BYTES came at once."""
        return bool(self._reading_paused)

    def resume_reading(self, *arguments: Any, **options: Any) -> None:
        # aiohttp calls it with every read; where nothing is paused, half of a piece's cost would be nothing.
        if self._reading_paused:
            super().resume_reading(*arguments, **options)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.sink is not None:
            self.sink(time.monotonic())


async def read_body(response: aiohttp.ClientResponse, take: Callable[[bytes, float], None]) -> None:
    """
    Hand the body to ``take``, each piece with the moment it came, until its end.

    Raises:
        aiohttp.ClientError, OSError: The connection broke; what came before was handed over.
    """
    content, connection = response.content, response.connection
    protocol = None if connection is None else connection.protocol
    if not isinstance(protocol, Arrivals):
        # All of it came with the head: the connection is free for others already.
        while data := await content.readany():
            take(data, time.monotonic())
        return
    ended = asyncio.get_running_loop().create_future()

    def sink(at: float) -> None:
        try:
            paused = protocol.reading_paused
            data = content.read_nowait()
            if data:
                take(data, at)
            while paused and (data := content.read_nowait()):  # what was parsed on
                take(data, at)
            if content.at_eof() and not ended.done():
                ended.set_result(None)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to who awaits the body, not to the loop
            if not ended.done():
                ended.set_exception(error)

    protocol.sink = sink
    try:
        sink(protocol.arrived_at)
        await ended
    finally:
        protocol.sink = None


class Connector(aiohttp.TCPConnector):
    """Its connections are ``Arrivals``. Notes how long opening one took: not the client's lateness."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = functools.partial(Arrivals, loop=self._loop)

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        began = time.monotonic()
        try:
            return await super()._create_connection(req, traces, timeout)
        finally:
            body = req.body
            if isinstance(body, Body):
                body.record.connect_seconds = time.monotonic() - began


def tls_context(ca_file: str | None) -> ssl.SSLContext | bool:
    """
    Return what checks the server's certificate: the system's authorities, and those in ``ca_file``.

    Raises:
        ConfigError: The file cannot be read, or holds no certificate.
    """
    if ca_file is None:
        return True
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "not readable" if not isinstance(error, ssl.SSLError) else "holds no certificate"
        raise ConfigError(
            [f"gate.target.tls_ca_file: {ca_file}: {reason}; name a file with certificates in PEM form"]
        ) from None
    return context


def open_session(target: Target) -> aiohttp.ClientSession:
    """
    Return a session for ``target``; deadlines are the caller's.

    Raises:
        ConfigError: As ``tls_context``.
    """
    connector = Connector(limit=0, ssl=tls_context(target.ca_file), keepalive_timeout=IDLE_SECONDS, ttl_dns_cache=300)
    return aiohttp.ClientSession(
        connector=connector,
        headers=target.headers(),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        read_bufsize=READ_BUFFER_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        max_line_size=65536,
        max_field_size=65536,
    )


def room_for_connections(wanted: int) -> tuple[int, str]:
    """
    Raise this process's limit on open files for ``wanted`` connections, as far as the system lets it.

    Returns the connections possible, and a sentence if they are fewer ("" otherwise).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < need:
        soft = need if hard == resource.RLIM_INFINITY else min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted, ""
    possible = max(1, soft - SPARE_FILES)
    return possible, (
        f"a load process may have {soft} open files: at most {possible} requests in flight instead of {wanted}; "
        "raise it with ulimit -n"
    )
