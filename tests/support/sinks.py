"""Providers that misbehave: an SMTP server that refuses, an endpoint that answers 500, a server that says nothing."""

from __future__ import annotations

import asyncio
import email
import email.policy
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any
from urllib.parse import urlencode

from sre.servers.sinks import LOOPBACK, MailSink, SmsSink
from tests.support.providers import Certificate


class RefusingMailSink(MailSink):
    """
    Refuses the first ``times`` messages in the given way, then accepts.

    Args:
        how: 451 or 554 (after the data), 421 (instead of a recipient), 550 (no such recipient) or 535 (login
            refused, always).
    """

    def __init__(self, how: int, times: int = 10**9) -> None:
        super().__init__()
        self.how = how
        self.left = times
        self.refused = 0

    def smtp_options(self) -> dict[str, Any]:
        if self.how != 535:
            return {}
        from aiosmtpd.smtp import AuthResult

        def authenticate(*_: object) -> AuthResult:
            self.refused += 1
            return AuthResult(success=False, handled=False)

        return {"auth_required": True, "auth_require_tls": False, "authenticator": authenticate}

    @property
    def channel_url(self) -> str:
        if self.how == 535:
            return super().channel_url.replace("mailto://", "mailto://user:S3cretPassw0rd@")
        return super().channel_url

    def _refuse(self) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        self.refused += 1
        return True

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: list[str]) -> str:
        if self.how in (421, 550) and self._refuse():
            return "550 5.1.1 no such user here" if self.how == 550 else "421 4.3.2 shutting down"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.how in (451, 554) and self._refuse():
            return f"{self.how} not now" if self.how == 451 else "554 5.7.1 looks like spam"
        return await super().handle_DATA(server, session, envelope)


class WholeMailSink(MailSink):
    """
    Keeps whole messages, and speaks TLS when it is given a certificate.

    Args:
        tls: starttls | ssl; None: no TLS.
        host: What the channel's URL calls this server.
        refused: A recipient that it does not know.
    """

    def __init__(
        self, certificate: Certificate | None = None, tls: str | None = None, host: str = "localhost", refused: str = ""
    ) -> None:
        super().__init__()
        self.whole: list[EmailMessage] = []
        self._certificate, self._tls, self._host, self._refused = certificate, tls, host, refused

    def smtp_options(self) -> dict[str, Any]:
        if self._tls != "starttls" or self._certificate is None:
            return {}
        return {"tls_context": self._certificate.context(), "require_starttls": True}

    async def _listen(self) -> asyncio.Server:
        if self._tls != "ssl" or self._certificate is None:
            return await super()._listen()
        from aiosmtpd.smtp import SMTP

        def protocol() -> SMTP:
            session = SMTP(self, hostname="sre-sink", loop=self._loop)
            self._sessions.add(session)
            return session

        loop = asyncio.get_running_loop()
        return await loop.create_server(protocol, LOOPBACK, 0, ssl=self._certificate.context())

    def url(self, mode: str | None = None, **options: str) -> str:
        query = {"from": "sre@example.org", "to": "oncall@example.org", "mode": mode or self._tls or "insecure"}
        scheme = "mailto" if query["mode"] == "insecure" else "mailtos"
        return f"{scheme}://{self._host}:{self.port}?{urlencode({**query, **options})}"

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: list[str]) -> str:
        if address == self._refused:
            return "550 5.1.1 no such user here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self.whole.append(message)
        return await super().handle_DATA(server, session, envelope)


class FailingSmsSink(SmsSink):
    """Answers 500 to the first ``times`` messages."""

    def __init__(self, times: int = 10**9) -> None:
        super().__init__()
        self.left = times
        self.refused = 0

    def answer(self, document: dict[str, Any]) -> int:
        if self.left <= 0:
            return 200
        self.left -= 1
        self.refused += 1
        return 500


@contextmanager
def hang_up_server() -> Iterator[int]:
    """A port where each connection is closed at once."""
    with socket.create_server((LOOPBACK, 0), backlog=64) as server:

        def close_each() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=close_each, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=60)


@contextmanager
def silent_server() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server((LOOPBACK, 0), backlog=64) as server:
        yield server.getsockname()[1]
