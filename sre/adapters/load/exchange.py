"""What the sender wants of an HTTP client, and what it is told in return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Headers = tuple[tuple[str, str], ...]


class Receiver(Protocol):
    """
    Told what becomes of one request; moments are monotonic.

    ``ended``, ``not_connected``, ``lost``, ``not_http`` or ``crashed`` comes last, and exactly one of them, unless the
    request was aborted.
    """

    def connected(self, seconds: float) -> None:
        """A connection was opened for it, which took so long."""

    def sent(self, at: float) -> None:
        """Its bytes are handed to the socket."""

    def sent_again(self) -> None:
        """The kept connection that it was sent on was stale. ``connected`` and ``sent`` come once more."""

    def head(self, status: int, headers: Mapping[str, str], at: float) -> None:
        """Status line and headers are there; names in lower case."""

    def body(self, data: bytes, at: float) -> None:
        """Bytes of the body, which came at ``at``. May abort the request."""

    def ended(self, at: float, cut: str | None) -> None:
        """The response is over. ``cut``: how the connection broke before its end."""

    def not_connected(self, error: OSError) -> None:
        """No connection: refused, DNS, TLS."""

    def lost(self, reason: str) -> None:
        """The connection went before there was a head."""

    def not_http(self, reason: str) -> None:
        """What came is no HTTP."""

    def crashed(self, error: BaseException) -> None:
        """A mistake in this program."""


class Running(Protocol):
    """A request under way."""

    def abort(self) -> None:
        """End it; nothing more is told. Idempotent, also after its end."""


class Client(Protocol):
    """Sends at once, whatever else is under way: no queue, no limit, no redirect, no deadline, no second try."""

    def post(self, request_id: str, headers: Headers, body: bytes, receiver: Receiver) -> Running:
        """
        Send a POST of ``body`` to the target.

        Args:
            request_id: Value of X-Request-Id.
            headers: Besides the target's; they override those.
        """
        ...

    async def close(self) -> None:
        """End all connections."""
