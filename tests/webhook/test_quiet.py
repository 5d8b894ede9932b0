"""What anybody can send fills no log and takes no open file that others need."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.http_exceptions import BadHttpMessage

from sre.errors import ConfigError
from sre.servers.alert_webhook import PATH
from sre.servers.exporter import MOST_CONNECTIONS, Metrics, serve_metrics
from sre.servers.guard_api import serve_unix
from sre.servers.listening import OWN_FILES, room_for
from sre.servers.quiet import AGAIN_SECONDS, MOST_KEYS, AcceptErrors, HttpLog, Seldom
from sre.servers.supervisor_api import supervisor_app
from sre.settings.webhook import WebhookSettings
from sre.testing.clock import ManualClock
from sre.wiring.guard_webhook import connections_of
from tests.conftest import unused_port
from tests.webhook.live import BEARER, receiver
from tests.webhook.scenes import body, one

MALFORMED = b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n"


# ---- lines -----------------------------------------------------------------------------------------------------------


def test_a_line_is_due_once_a_minute_and_says_how_many_were_left_out() -> None:
    clock = ManualClock()
    often = Seldom(clock.monotonic)
    assert [often.due("a") for _ in range(4)] == ["", None, None, None]
    assert often.due("b") == ""
    clock.advance(AGAIN_SECONDS)
    assert often.due("a") == " (and 3 more like it since the last such line)"
    clock.advance(AGAIN_SECONDS)
    assert often.due("a") == ""


def test_keys_are_bounded() -> None:
    often = Seldom(ManualClock().monotonic)
    said = [often.due(number) for number in range(10 * MOST_KEYS)]
    assert len([line for line in said if line is not None]) == MOST_KEYS + 1


def test_a_malformed_request_is_one_line_and_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[None] = []
    log = HttpLog("webhook", malformed=lambda: counted.append(None), now=ManualClock().monotonic)
    for _ in range(5):
        log.exception("Error handling request from %s", "::1", exc_info=BadHttpMessage("no\nline\x1b[2J" + "x" * 1000))
    (record,) = caplog.records
    assert record.exc_info is None
    assert "\n" not in record.getMessage()
    assert "\x1b" not in record.getMessage()
    assert len(record.getMessage()) < 300
    assert len(counted) == 5


def test_mistakes_of_ours_keep_their_traceback_and_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    log = HttpLog("metrics", now=ManualClock().monotonic)
    for value in (0, "", 0, ""):
        try:
            [][value]  # type: ignore[call-overload]
        except (IndexError, TypeError):
            log.exception("Error handling request from %s", "::1")
    assert [type(r.exc_info[1]) for r in caplog.records if r.exc_info] == [IndexError, TypeError]


async def test_connections_that_cannot_be_accepted_are_one_line_and_all_else_is_as_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before: list[dict[str, Any]] = []
    clock = ManualClock()
    handler = AcceptErrors(lambda _, context: before.append(context), clock.monotonic)
    loop = asyncio.get_running_loop()
    lost = {"message": "socket.accept() out of system resource", "socket": None}
    for _ in range(100):
        handler(loop, {**lost, "exception": OSError(errno.EMFILE, "Too many open files")})
    (record,) = caplog.records
    assert "Too many open files; raise the limit" in record.getMessage()
    assert before == []
    other = {"message": "Task exception was never retrieved", "exception": OSError(errno.EMFILE, "x")}
    handler(loop, other)
    assert before == [other]


# ---- servers ---------------------------------------------------------------------------------------------------------


async def raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    try:
        async with asyncio.timeout(30):
            return await reader.read(200)
    finally:
        writer.close()


@pytest.mark.integration
async def test_requests_that_are_not_http_are_one_line_of_each_server(
    tmp_path: Path, short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port, socket = unused_port(), short_dir / "s.sock"
    async with (
        receiver(tmp_path) as webhook,
        serve_metrics(Metrics(), "127.0.0.1", port),
        serve_unix(supervisor_app(None), socket),  # type: ignore[arg-type]
    ):
        for _ in range(5):
            assert b" 400 " in await webhook.raw(MALFORMED)
            assert b" 400 " in await raw(*await asyncio.open_connection("127.0.0.1", port), MALFORMED)
            assert b" 400 " in await raw(*await asyncio.open_unix_connection(str(socket)), MALFORMED)
        assert webhook.counts.requests["malformed"] == 5
    lines = [r for r in caplog.records if r.levelno >= logging.WARNING and "not HTTP" in r.getMessage()]
    assert sorted(line.getMessage().partition(":")[0] for line in lines) == ["metrics", "s.sock", "webhook"]
    assert not [r for r in caplog.records if r.exc_info]
    assert not [r for r in caplog.records if r.name == "aiohttp.server"]


@pytest.mark.integration
async def test_connections_that_wait_do_not_keep_a_scrape_out() -> None:
    port = unused_port()
    async with serve_metrics(Metrics(), "127.0.0.1", port):
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS + 5)]
        asked = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        assert b" 503 " in await raw(*await asyncio.open_connection("127.0.0.1", port), asked)
        async with asyncio.timeout(30):
            assert await waiting[0][0].read() == b"", "who waited longest made room"
        for _, writer in waiting:
            writer.close()


# ---- open files ------------------------------------------------------------------------------------------------------


def test_connections_are_bounded_by_the_open_files_that_are_left() -> None:
    assert room_for(64, OWN_FILES + 64) == 64
    assert room_for(2000, 1024) == 1024 - OWN_FILES
    assert room_for(64, 40) == 0
    assert connections_of(WebhookSettings(max_connections=2000), 1024) == 1024 - OWN_FILES
    with pytest.raises(ConfigError, match="ulimit -n 256"):
        connections_of(WebhookSettings(max_connections=64), 40)


FLOOD = """
import asyncio, resource, sys
from pathlib import Path
from tests.webhook.live import LIMITS, receiver

async def main():
    async with receiver(Path(sys.argv[1]), limits=type(LIMITS)(LIMITS.body_bytes, 60.0, 64)) as webhook:
        print(webhook.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        print(dict(webhook.counts.requests), flush=True)

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
asyncio.run(main())
"""


@pytest.mark.integration
async def test_a_flood_of_idle_connections_within_the_limit_keeps_no_post_out(tmp_path: Path) -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FLOOD, str(tmp_path),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        port = int(await server.stdout.readline())
        # All at once for who wakes up: asyncio accepts as many as it may before the gate hears of the first.
        server.send_signal(signal.SIGSTOP)
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(400)]
        server.send_signal(signal.SIGCONT)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            url = f"http://127.0.0.1:{port}{PATH}"
            async with session.post(url, data=body(one()), headers=BEARER) as answer:
                assert answer.status == 200
        for _, writer in opened:
            writer.close()
        _, said = await asyncio.wait_for(server.communicate(b""), 60)
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
    assert b"not accepted" not in said
    assert b"out of system resource" not in said
