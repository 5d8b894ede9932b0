"""One line of the gateway's access log."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sre.stack.gateway_listeners import LOG_FIELDS
from sre.stack.gateway_routes import BATCH_ROUTE

FIELDS = tuple(name for name, _ in LOG_FIELDS)
NO_FLAGS: frozenset[str] = frozenset()


class LogLine(NamedTuple):
    """
    A request as the log shows it; None and 0 stand for what was not known yet.

    Attributes:
        kind: DownstreamStart, DownstreamPeriodic, DownstreamEnd, UpstreamEnd.
        started_text: When the request began, as Envoy writes it (ISO 8601, UTC, milliseconds).
        route: Name of the route, for those that answer by themselves the reason, with ``@cluster`` for a pool's.
        end: The outcome filter's word; None for a good document, and for an answer that was cut.
        flags: Envoy's response flags.
        path: With query, as the client sent it.
    """

    kind: str
    request_id: str
    started_text: str
    duration_seconds: float
    client: str
    cluster: str | None
    upstream: str | None
    route: str | None
    max_tokens: int | None
    end: str | None
    status: int
    flags: frozenset[str]
    bytes_sent: int
    attempts: int
    path: str

    @property
    def started(self) -> float:
        """Unix seconds; 0 when the text is no time."""
        try:
            return datetime.fromisoformat(self.started_text).timestamp()
        except ValueError:
            return 0.0


def parse(raw: bytes) -> LogLine:
    """
    Return the parsed line.

    Raises:
        ValueError: Torn, or not a line of our log.
    """
    fields = raw.decode("utf-8", "replace").split("\t", len(FIELDS) - 1)
    if len(fields) != len(FIELDS):
        raise ValueError("not a line of the gateway's log")
    kind, request_id, started, duration, client, cluster, upstream, route = fields[:8]
    if route == BATCH_ROUTE:
        fields[-1] = fields[-1].replace("/v1/", "/v1/batch/", 1)
    max_tokens, end, status, flags, sent, attempts, path = fields[8:]
    if not kind.startswith(("Downstream", "Upstream")) or request_id == "-":
        raise ValueError("not a request")
    return LogLine(
        kind,
        request_id,
        started,
        _number(duration) / 1000,
        client,
        _text(cluster),
        _text(upstream),
        _text(route),
        _client_number(max_tokens),
        _text(end),
        int(_number(status)),
        NO_FLAGS if flags == "-" else frozenset(flags.split(",")),
        int(_number(sent)),
        int(_number(attempts)),
        path,
    )


def _text(value: str) -> str | None:
    return None if value == "-" else value


def _number(value: str) -> float:
    return 0.0 if value == "-" else float(value)


def _client_number(value: str) -> int | None:
    """A number out of a client's body; one that makes no sense must not hide the request."""
    try:
        return int(float(value))
    except (ValueError, OverflowError):
        return None
