"""
The load generator's HTTP client on aiohttp's public API alone: what ours is checked and measured against.

Its stamps are those of a task that is woken for each piece.
"""

from __future__ import annotations

import asyncio
import time

import aiohttp

from sre.adapters.load.exchange import Headers, Receiver
from sre.adapters.load.wire import Target


class _Request:
    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abort(self) -> None:
        self._task.cancel()


class AiohttpClient:
    """An ``exchange.Client``."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers=target.headers(),
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=1 << 20,
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, request_id: str, headers: Headers, body: bytes, receiver: Receiver) -> _Request:
        task = asyncio.get_running_loop().create_task(self._post(request_id, headers, body, receiver))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return _Request(task)

    async def _post(self, request_id: str, headers: Headers, body: bytes, receiver: Receiver) -> None:
        has_head = False
        try:
            receiver.sent(time.monotonic())
            async with self._session.post(
                self._target.path_url, data=body, headers={"X-Request-Id": request_id, **dict(headers)},
                allow_redirects=False,
            ) as response:  # fmt: skip
                named = {name.lower(): value for name, value in response.headers.items()}
                receiver.head(response.status, named, time.monotonic())
                has_head = True
                while data := await response.content.readany():
                    receiver.body(data, time.monotonic())
                receiver.ended(time.monotonic(), None)
        except aiohttp.ClientConnectorError as error:
            receiver.not_connected(error.os_error)
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            if has_head:
                receiver.ended(time.monotonic(), f"the connection broke: {reason}")
            elif isinstance(error, aiohttp.ClientConnectionError | OSError):
                receiver.lost(reason)
            else:
                receiver.not_http(reason)
        except Exception as error:  # noqa: BLE001 - nobody awaits this task
            receiver.crashed(error)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
