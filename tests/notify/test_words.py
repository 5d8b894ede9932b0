"""What a provider says, as logs and lists show it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from sre.adapters.notifiers.process import LONGEST_SHOWN, AppriseSender
from sre.adapters.notifiers.worker import LONGEST_DETAIL
from sre.notify.delivery import DeliveryResult
from sre.notify.forms import Rendered, Tone
from sre.settings.notify import ChannelSettings

pytestmark = pytest.mark.integration

SECRET = "S3cretPassw0rdOfHook"


@contextlib.asynccontextmanager
async def answering(status: str, body: bytes) -> AsyncIterator[int]:
    """A server with one answer to everything; yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().splitlines() if b"content-length" in line)
        await reader.readexactly(length)
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield int(server.sockets[0].getsockname()[1])


async def refused(status: str, body: bytes) -> DeliveryResult:
    async with answering(status, body) as port:
        url = f"json://user:{SECRET}@127.0.0.1:{port}/in"
        channel = ChannelSettings(name="hook", kind="webhook", url="env:HOOK", timeout_seconds=30)
        return await AppriseSender({**os.environ, "HOOK": url})(channel, Rendered("title", "body", Tone.INFO))


async def test_words_stay_on_one_line_and_forge_none_of_ours() -> None:
    forged = "no\r\n2027-01-15 08:00:00,000 INFO sre.guard: all is well\n    9  sent \x1b[2K\u202e"
    detail = (await refused("403 Forbidden", forged.encode())).detail
    assert detail.isprintable()
    assert detail.startswith("HTTP 403: no 2027-01-15 08:00:00,000 INFO sre.guard: all is well 9 sent ?[2K")


async def test_words_are_short_and_no_cut_shows_half_a_secret() -> None:
    """The worker cuts what it hands on: half a secret at that cut is not known as one, and must not be shown."""
    before = LONGEST_DETAIL - len("HTTP 500: ") - len(SECRET) // 2
    detail = (await refused("500 Oops", b"E" * before + SECRET.encode() + b"E" * 100_000)).detail
    assert len(detail) == LONGEST_SHOWN
    assert detail.endswith("E...")
    assert SECRET[:6] not in detail


async def test_a_redirect_says_what_it_is() -> None:
    assert (await refused("302 Found", b"")).detail == "HTTP 302: a redirect, which is not followed"
    assert (await refused("502 Bad Gateway", b"")).detail == "HTTP 502"
