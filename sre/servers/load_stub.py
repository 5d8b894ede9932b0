"""
A fast stand-in for an engine: ``python -m sre.servers.load_stub``; prints its port, ends with its stdin.

Serves streamed completions at a steady pace at next to no cost, and tells afterwards when it wrote each first token
(``GET /stamps``): what a client adds to a TTFT is then known. Speaks only as much HTTP as our own
client does; loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from typing import cast

MOST_STAMPS = 1_000_000
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"\r\nx-request-id: *([^\r\n]+)", re.IGNORECASE)
_MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
    b"x-sre-simulated: stub\r\n\r\n"
)


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(text: str, finish: str | None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    document = {"id": "cmpl-stub", "object": "text_completion", "created": 0, "model": "stub", "choices": [choice]}
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


TOKEN = _chunked(_event(" token", None))
LAST_TOKEN = _chunked(_event(" token", "length"))


def _tail(tokens: int) -> bytes:
    usage = {"prompt_tokens": 256, "total_tokens": 256 + tokens, "completion_tokens": tokens}
    document = {"id": "cmpl-stub", "object": "text_completion", "created": 0, "model": "stub", "choices": []}
    event = b"data: " + json.dumps(document | {"usage": usage}, separators=(",", ":")).encode() + b"\n\n"
    return _chunked(event + b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Stub:
    """What all connections share."""

    def __init__(self, first_token_seconds: float, token_seconds: float) -> None:
        self.first_token_seconds, self.token_seconds = first_token_seconds, token_seconds
        self.stamps: dict[bytes, tuple[float, float]] = {}
        self._tails: dict[int, bytes] = {}

    def tail(self, tokens: int) -> bytes:
        if tokens not in self._tails:
            self._tails[tokens] = _tail(tokens)
        return self._tails[tokens]

    def document(self) -> bytes:
        return json.dumps(
            {
                name.decode("latin-1"): {"received_at": received, "first_token_at": first}
                for name, (received, first) in self.stamps.items()
            }
        ).encode()


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._left = self._tokens = 0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._name = b""
        self._received = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end]
        found = _LENGTH.search(head)
        size = end + 4 + (int(found[1]) if found else 0)
        if len(self._buffer) < size:
            return
        body, self._buffer = self._buffer[end + 4 : size], self._buffer[size:]
        assert self._transport is not None
        if head.startswith(b"GET /stamps "):
            answer = self._stub.document()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
            return
        if not head.startswith(b"POST /v1/completions "):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        name = _REQUEST_ID.search(head)
        # The limit comes after the prompt in what our client sends.
        wanted = _MAX_TOKENS.search(body, max(0, len(body) - 256))
        self._name = name[1] if name else b""
        self._received = time.monotonic()
        self._left = self._tokens = max(1, int(wanted[1])) if wanted else 1
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._stub.first_token_seconds
        self._timer = loop.call_at(self._due, self._token)

    def _token(self) -> None:
        assert self._transport is not None
        self._left -= 1
        first = self._left == self._tokens - 1
        if first and self._name and len(self._stub.stamps) < MOST_STAMPS:
            self._stub.stamps[self._name] = (self._received, time.monotonic())
        out = (_HEAD if first else b"") + (TOKEN if self._left else LAST_TOKEN + self._stub.tail(self._tokens))
        self._transport.write(out)
        if self._left:
            self._due += self._stub.token_seconds
            self._timer = asyncio.get_running_loop().call_at(self._due, self._token)


async def serve(stub: Stub, port: int) -> None:
    """Listen, print the port, and serve until stdin ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(stub), "127.0.0.1", port, backlog=4096)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await reader.read()


def main() -> None:
    """Run the stub."""
    parser = argparse.ArgumentParser(description="fast stand-in for an engine")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first-token-seconds", type=float, default=0.02)
    parser.add_argument("--token-seconds", type=float, default=0.005)
    options = parser.parse_args()
    stub = Stub(options.first_token_seconds, options.token_seconds)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(stub, options.port))
    else:
        uvloop.run(serve(stub, options.port))


if __name__ == "__main__":
    main()
