"""
An OpenAI-compatible server on loopback that misbehaves as told, and stamps what it did.

A script plays one exchange; a request chooses it by its header ``x-script``. Clients are judged against the stub's own
stamps (CLOCK_MONOTONIC, the same in every process), so that a busy machine fails no test that is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

SCRIPT_HEADER = "x-script"
DEFAULT = "default"
STUB_MODEL = "stub"


@dataclass
class Served:
    """
    One request, as the server saw it.

    Attributes:
        number: Of the client's schedule, from its request id; -1: not from a stage.
        written: Label → moment it was handed to the socket, for each event of that label.
    """

    number: int
    script: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    received_at: float
    client_port: int
    written: dict[str, list[float]] = field(default_factory=dict)
    ended_at: float | None = None

    @property
    def first_content_at(self) -> float:
        return self.written["content"][0]


class Cut(Exception):
    """The script broke the connection off."""


class Exchange:
    """What a script may do. Every sending method waits until the kernel has the bytes."""

    def __init__(self, stub: SseStub, served: Served, writer: asyncio.StreamWriter) -> None:
        self.stub, self.served, self._writer = stub, served, writer
        self._chunked = False
        self.closes = False

    @property
    def max_tokens(self) -> int:
        return int(self.served.body.get("max_tokens", 1))

    @property
    def is_chat(self) -> bool:
        return "messages" in self.served.body

    async def head(
        self, status: int = 200, *, content_type: str = "text/event-stream", chunked: bool = True, **headers: str
    ) -> None:
        """Status line and headers. Not chunked: the body ends with the connection."""
        self._chunked, self.closes = chunked, not chunked
        lines = [f"HTTP/1.1 {status} Scripted", f"Content-Type: {content_type}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines.append("Transfer-Encoding: chunked" if chunked else "Connection: close")
        await self.raw("\r\n".join([*lines, "", ""]).encode(), "head")

    async def raw(self, data: bytes, label: str = "raw") -> None:
        """Bytes as they are."""
        self.served.written.setdefault(label, []).append(time.monotonic())
        self._writer.write(data)
        await self._writer.drain()

    async def send(self, data: bytes, label: str = "raw") -> None:
        """Body bytes, in one HTTP chunk."""
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data, label)

    async def whole(self, status: int, document: Any, **headers: str) -> None:
        """A JSON answer with its length."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        kind = headers.pop("content_type", "application/json")
        lines = [f"HTTP/1.1 {status} Scripted", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.raw("\r\n".join([*lines, "", ""]).encode() + body, "content")

    async def event(self, document: Any, label: str) -> None:
        await self.send(event_bytes(document), label)

    async def text(self, text: str = " word", finish: str | None = None) -> None:
        """One event of content."""
        await self.event(content_document(text, finish, chat=self.is_chat), "content")

    async def delta(self, delta: Mapping[str, Any], label: str, finish: str | None = None) -> None:
        """One event of a chat."""
        choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish}
        await self.event({"object": "chat.completion.chunk", "choices": [choice]}, label)

    async def words(self, count: int, seconds_between: float = 0.0) -> None:
        """``count`` events of content, the last with finish_reason length."""
        for number in range(count):
            if number and seconds_between:
                await asyncio.sleep(seconds_between)
            await self.text(finish="length" if number == count - 1 else None)

    @property
    def prompt_words(self) -> int:
        """A word is a token here."""
        body = self.served.body
        texts = [one.get("content", "") for one in body["messages"]] if self.is_chat else [body.get("prompt", "")]
        return sum(len(str(text).split()) for text in texts)

    async def usage(self, output_tokens: int | None = None, prompt_tokens: int | None = None) -> None:
        """By default of as many tokens as asked for, and of the prompt as many as it has words."""
        prompt_tokens = self.prompt_words if prompt_tokens is None else prompt_tokens
        count = self.max_tokens if output_tokens is None else output_tokens
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": count, "total_tokens": prompt_tokens + count}
        await self.event({"object": "text_completion", "choices": [], "usage": usage}, "usage")

    async def done(self) -> None:
        await self.send(b"data: [DONE]\n\n", "done")

    async def end(self) -> None:
        """The body's end."""
        if self._chunked:
            await self.raw(b"0\r\n\r\n", "end")

    def cut(self) -> None:
        """Break the connection off."""
        raise Cut


Script = Callable[[Exchange], Awaitable[None]]


def event_bytes(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def content_document(text: str, finish: str | None, *, chat: bool = False) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    return {"object": "chat.completion.chunk" if chat else "text_completion", "choices": [choice]}


async def good(exchange: Exchange) -> None:
    """As many tokens as asked for, at once, usage, [DONE]."""
    await exchange.head()
    await exchange.words(exchange.max_tokens)
    await exchange.usage()
    await exchange.done()
    await exchange.end()


class SseStub:
    """
    ``async with SseStub({"slow": script}) as stub: … stub.url``.

    Args:
        scripts: By name; "default" plays where none is asked for.
        tokenize: Serve /tokenize (a token per word); off: 404.
        counts: Report usage in whole answers.
        models: What /v1/models lists.
        prefix: Of every path.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script] | None = None,
        *,
        tokenize: bool = True,
        counts: bool = True,
        models: tuple[str, ...] = (STUB_MODEL,),
        tls: ssl.SSLContext | None = None,
        prefix: str = "",
    ) -> None:
        self._tls, self._prefix = tls, prefix
        self.scripts: dict[str, Script] = {DEFAULT: good, **(scripts or {})}
        self.served: list[Served] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.models, self._tokenize, self._counts = models, tokenize, counts
        self._running = asyncio.Event()
        self._running.set()
        self._asked = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=2048, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def stage(self) -> dict[int, Served]:
        """What was served of stages, by number in the schedule."""
        return {one.number: one for one in self.served if one.number >= 0}

    async def first_request(self) -> None:
        """Return when a stage's first request is there."""
        await self._asked.wait()

    def forget(self) -> None:
        """Begin anew with what was served."""
        self.served.clear()
        self.most_in_flight = 0
        self._asked.clear()

    async def freeze(self, seconds: float) -> None:
        """Take requests, and answer none, for so long."""
        self._running.clear()
        await asyncio.sleep(seconds)
        self._running.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, Cut):
                while await self._serve(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # a connection task that ends cancelled is reported by start_server
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; False: the connection ends."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        received_at = time.monotonic()
        method, path, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        known = path.startswith(f"{self._prefix}/")
        path = path.removeprefix(self._prefix)
        if not known or method == "GET" or path not in ("/v1/completions", "/v1/chat/completions"):
            await self._answer(path if known else "", body, writer)
            return True
        name = headers.get("x-request-id", "").rpartition("-")[2]
        script = headers.get(SCRIPT_HEADER, DEFAULT)
        client_port: int = writer.get_extra_info("peername")[1]
        served = Served(
            int(name) if name.isdigit() else -1, script, json.loads(body), headers, received_at, client_port
        )
        self.served.append(served)
        if served.number >= 0:
            self._asked.set()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        exchange = Exchange(self, served, writer)
        try:
            await self._running.wait()
            if served.body.get("stream"):
                await self.scripts[script](exchange)
            else:
                await exchange.whole(200, self._whole(served.body))
        finally:
            self.in_flight -= 1
            served.ended_at = time.monotonic()
        return not exchange.closes

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= {"text": " word"} if "prompt" in body else {"message": {"role": "assistant", "content": "word"}}
        out: dict[str, Any] = {"object": "text_completion", "choices": [choice]}
        if self._counts:
            out["usage"] = {"prompt_tokens": len(text.split()), "completion_tokens": 1}
        return out

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        status, document = 404, {"detail": "Not Found"}
        if path == "/v1/models":
            status, document = 200, {"object": "list", "data": [{"id": name} for name in self.models]}
        elif path == "/tokenize" and self._tokenize:
            asked = json.loads(body)
            text = asked["prompt"] if "prompt" in asked else asked["messages"][0]["content"]
            status, document = 200, {"count": len(text.split())}
        raw = json.dumps(document).encode()
        head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
        writer.write(head.encode() + raw)
        await writer.drain()
