"""Each step of an SMTP session refused by a real server, delivered by real workers: the right class each time."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from sre.adapters.notifiers.process import AppriseSender
from sre.notify.delivery import Cause, DeliveryResult, Verdict
from sre.notify.forms import render
from sre.settings.notify import ChannelSettings
from tests.store.samples import message

pytestmark = pytest.mark.integration

WELL = {"": "220 hello", "EHLO": "250 mail", "HELO": "250 mail", "MAIL": "250 ok", "RCPT": "250 ok", "DATA": "354 go",
        ".": "250 taken", "QUIT": "221 bye", "RSET": "250 ok"}  # fmt: skip


def serve(listener: socket.socket, script: Mapping[str, str]) -> None:
    """Answer each connection by ``script``: verb → reply; "" is the greeting, "." the end of the mail."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, connection.makefile("rwb") as stream:
            try:
                data = False
                stream.write(script[""].encode() + b"\r\n")
                stream.flush()
                for line in stream:
                    verb = line.strip().split(b" ")[0].decode().upper()
                    if data and verb != ".":
                        continue
                    reply = script.get(verb, "502 what")
                    data = verb == "DATA" and reply.startswith("354")
                    stream.write(reply.encode() + b"\r\n")
                    stream.flush()
                    if verb == "QUIT":
                        break
            except OSError:
                continue


@contextmanager
def smtp(**refused: str) -> Iterator[str]:
    """A server that refuses at some step; its URL."""
    names = {"greeting": "", "end": "."}
    script = WELL | {names.get(verb, verb): reply for verb, reply in refused.items()}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, script))
        thread.start()
        try:
            yield f"mailto://127.0.0.1:{listener.getsockname()[1]}?from=sre@example.org&to=ops@example.org"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


CASES: list[tuple[dict[str, str], Cause | None]] = [
    ({}, None),
    ({"greeting": "554 5.7.1 not from there"}, Cause.TURNED_AWAY),
    ({"greeting": "421 4.3.2 shutting down"}, Cause.TRY_LATER),
    ({"EHLO": "550 5.7.1 no", "HELO": "550 5.7.1 no"}, Cause.TURNED_AWAY),
    ({"EHLO": "502 no", "HELO": "421 busy"}, Cause.TRY_LATER),
    ({"MAIL": "553 5.1.8 sender's domain not found"}, Cause.TURNED_AWAY),
    ({"RCPT": "550 5.1.1 no such user"}, Cause.RECIPIENT),
    ({"RCPT": "550 no such user"}, Cause.RECIPIENT),
    ({"RCPT": "554 5.7.1 client blocked by a list"}, Cause.TURNED_AWAY),
    ({"RCPT": "552 5.2.2 mailbox full"}, Cause.QUOTA),
    ({"RCPT": "450 4.7.1 greylisted"}, Cause.TRY_LATER),
    ({"DATA": "554 5.5.1 no valid recipients"}, Cause.REFUSED),
    ({"end": "554 5.7.1 spam"}, Cause.REFUSED),
    ({"end": "451 4.3.0 disk"}, Cause.TRY_LATER),
]


async def test_each_step_that_refuses_has_its_class() -> None:
    with ExitStack() as stack:
        urls = [stack.enter_context(smtp(**refused)) for refused, _ in CASES]
        environ = {**os.environ, **{f"URL_{n}": url for n, url in enumerate(urls)}}
        async with AppriseSender(environ) as sender:
            busy = asyncio.Semaphore(6)

            async def send(number: int) -> DeliveryResult:
                async with busy:
                    channel = ChannelSettings(
                        name=f"n{number}", kind="email", url=f"env:URL_{number}", timeout_seconds=30
                    )
                    return await sender(channel, render(message(), "email"))

            results = await asyncio.gather(*(send(number) for number in range(len(CASES))))
    for (refused, cause), result in zip(CASES, results, strict=True):
        assert result.cause is cause, f"{refused}: {result}"
        for reply in list(refused.values())[-1:]:
            assert reply.partition(" ")[0] in result.detail
    assert results[0].verdict is Verdict.DELIVERED
