"""Providers that misbehave: an SMTP server that refuses, an endpoint that answers 500, a server that says nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sre.servers.sinks import LOOPBACK, MailSink, SmsSink


class RefusingMailSink(MailSink):
    """
    Refuses the first ``times`` messages in the given way, then accepts.

    Args:
        how: 451 (temporary, after the data), 550 (no such recipient) or 535 (login refused, always).
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
        if self.how == 550 and self._refuse():
            return "550 5.1.1 no such user here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.how == 451 and self._refuse():
            return "451 4.3.0 try again later"
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
def silent_server() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server((LOOPBACK, 0), backlog=64) as server:
        yield server.getsockname()[1]
