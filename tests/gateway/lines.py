"""Lines of the gateway's access log, as Envoy writes them."""

from __future__ import annotations

from typing import Any

from sre.adapters.envoy.line import FIELDS

DEFAULTS = {
    "type": "DownstreamEnd", "id": "r-1", "started": "2027-01-15T08:00:00.500Z", "duration_ms": "120",
    "client": "127.0.0.1:5000", "cluster": "pool-m", "upstream": "127.0.0.1:9001", "route": "-", "max_tokens": "16",
    "end": "ok", "status": "200", "flags": "-", "bytes_sent": "400",
    "attempts": "1", "path": "/v1/completions",
}  # fmt: skip


def line(**fields: Any) -> bytes:
    """A line; by default the end of a good streamed completion on engine a (127.0.0.1:9001)."""
    unknown = set(fields) - set(FIELDS) - {"type"}
    assert not unknown, unknown
    values = DEFAULTS | {k: str(v) for k, v in fields.items()}
    return "\t".join(values[name] for name in FIELDS).encode()


def start(request: str = "r-1", **fields: Any) -> bytes:
    """The first line of a request: little is known yet."""
    unknown = dict.fromkeys(
        ("duration_ms", "cluster", "upstream", "max_tokens", "end", "status", "bytes_sent", "attempts"), "-",
    )  # fmt: skip
    return line(**({"type": "DownstreamStart", "id": request} | unknown | fields))


def progress(request: str = "r-1", **fields: Any) -> bytes:
    """A line in the middle of a stream."""
    return line(**({"type": "DownstreamPeriodic", "id": request, "end": "-"} | fields))
