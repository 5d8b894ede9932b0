"""
Where notifications arrive when nobody has to be woken: a real SMTP server and a real HTTP endpoint, on loopback.

Used by the demo, by drills and by tests. Both run in a thread of their own and may be asked from any thread.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
import json
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from aiosmtpd.smtp import SMTP, Envelope, Session

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
LONGEST_SMS_REQUEST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ReceivedMail:
    sender: str
    recipients: tuple[str, ...]
    subject: str
    text: str
    """The plain part; the HTML part where there is no other."""
    received_monotonic: float


@dataclass(frozen=True, slots=True)
class ReceivedSms:
    text: str
    document: dict[str, Any]
    """The whole request body."""
    received_monotonic: float


class _Received(Generic[T]):
    """What came in, for any thread."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._changed = threading.Condition()

    def add(self, item: T) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def all(self) -> tuple[T, ...]:
        with self._changed:
            return tuple(self._items)

    def wait_for(self, predicate: Callable[[tuple[T, ...]], bool], timeout_seconds: float) -> bool:
        """Return whether ``predicate`` became true of what came in, in time."""
        with self._changed:
            return self._changed.wait_for(lambda: predicate(tuple(self._items)), timeout_seconds)


class MailSink:
    """
    An SMTP server on loopback that accepts every message and keeps it in memory.

    ``with MailSink() as sink: … sink.mails()``. Needs the ``demo`` extra (aiosmtpd).
    """

    def __init__(self, port: int = 0) -> None:
        self._wanted_port = port
        self._received: _Received[ReceivedMail] = _Received()
        self._sessions: weakref.WeakSet[SMTP] = weakref.WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        # Not aiosmtpd's Controller: it cannot listen on a port that the system chooses.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mail-sink", daemon=True)
        self._thread.start()
        try:
            self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        except BaseException:
            self.stop()
            raise

    def smtp_options(self) -> dict[str, Any]:
        """Further arguments of aiosmtpd's SMTP: a subclass may demand a login, limit the size …"""
        return {}

    async def _listen(self) -> asyncio.Server:
        from aiosmtpd.smtp import SMTP

        def protocol() -> SMTP:
            session = SMTP(self, hostname="sre-sink", loop=self._loop, **self.smtp_options())
            self._sessions.add(session)
            return session

        return await asyncio.get_running_loop().create_server(protocol, LOOPBACK, self._wanted_port)

    def stop(self) -> None:
        """Stop listening and cut what is connected."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for session in list(self._sessions):
            if session.transport is not None:
                session.transport.abort()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # lets transports that were closed say so

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def channel_url(self) -> str:
        """What a channel of kind email needs to reach this server."""
        return f"mailto://{LOOPBACK}:{self.port}?from=sre@localhost&to=oncall@localhost&mode=insecure&format=text"

    def mails(self) -> tuple[ReceivedMail, ...]:
        return self._received.all()

    def wait_for(self, predicate: Callable[[tuple[ReceivedMail, ...]], bool], timeout_seconds: float) -> bool:
        """Return whether ``predicate`` became true of the mails received, in time."""
        return self._received.wait_for(predicate, timeout_seconds)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Called by aiosmtpd with a whole message."""
        content = envelope.content or b""
        raw = content if isinstance(content, bytes) else content.encode()
        message = email.message_from_bytes(raw, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        body = message.get_body(("plain", "html"))
        self._received.add(
            ReceivedMail(
                sender=envelope.mail_from or "",
                recipients=tuple(envelope.rcpt_tos),
                subject=str(message["Subject"] or ""),
                text="" if body is None else str(body.get_content()),
                received_monotonic=time.monotonic(),
            )
        )
        return "250 OK"


class SmsSink:
    """
    An HTTP endpoint on loopback that stands for an SMS provider: accepts any POST and keeps its text in memory.

    ``with SmsSink() as sink: … sink.messages()``.
    """

    def __init__(self, port: int = 0) -> None:
        self._wanted_port = port
        self._received: _Received[ReceivedSms] = _Received()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def answer(self, document: dict[str, Any]) -> int:
        """Return the HTTP status for a request; what is answered 200 is kept."""
        return 200

    def start(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        sink = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 60.0

            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length") or 0), LONGEST_SMS_REQUEST_BYTES)
                raw = self.rfile.read(length)
                try:
                    document = json.loads(raw)
                except ValueError:
                    document = {"message": raw.decode("utf-8", "replace")}
                status = sink.answer(document)
                if status == 200:
                    text = str(document.get("message", ""))
                    sink._received.add(ReceivedSms(text, document, time.monotonic()))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Stay silent: who wants to know reads ``messages``."""

        self._server = ThreadingHTTPServer((LOOPBACK, self._wanted_port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.server_address[1])

    @property
    def channel_url(self) -> str:
        """What a channel of kind sms needs to reach this endpoint."""
        return f"json://{LOOPBACK}:{self.port}/sms"

    def messages(self) -> tuple[ReceivedSms, ...]:
        return self._received.all()

    def wait_for(self, predicate: Callable[[tuple[ReceivedSms, ...]], bool], timeout_seconds: float) -> bool:
        """Return whether ``predicate`` became true of the messages received, in time."""
        return self._received.wait_for(predicate, timeout_seconds)
