"""
A process of the load generator: ``python -m sre.adapters.load.worker``.

Takes orders on stdin and answers on stdout (``wire``). It ends when stdin does, so never outlives who started it. A
process of its own, whatever the rate: drawing a progress line or scraping metrics beside it must not delay a request.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import warnings
from typing import Any

from sre.adapters.load.connections import Connections
from sre.adapters.load.sender import Sender
from sre.adapters.load.session import room_for_connections
from sre.adapters.load.wire import Go, News, Ready, StageOrder, Stop, Target, frame, read_message
from sre.gate.schedule import PlannedRequest, schedule, thinned

GC_THRESHOLDS = (5_000, 20, 1_000)
"""Collections of young objects take well under a millisecond; those of all objects, tens, so a stage goes without."""


class Worker:
    """One stage after the other; the connections to a target are kept between them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        self._reader, self._writer = reader, writer
        self._clients: dict[Target, Connections] = {}
        self._sender: Sender | None = None
        self._stage: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Until stdin ends. A stage that fails in us ends the process: its log says why."""
        reading = asyncio.create_task(read_message(self._reader))
        try:
            while True:
                waiting: set[asyncio.Task[Any]] = {reading}
                if self._stage is not None:
                    waiting.add(self._stage)
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if self._stage is not None and self._stage.done():
                    stage, self._stage, self._sender = self._stage, None, None
                    stage.result()
                    gc.unfreeze()
                if reading.done():
                    try:
                        message = reading.result()
                    except EOFError:
                        return
                    reading = asyncio.create_task(read_message(self._reader))
                    await self._take(message)
        finally:
            reading.cancel()
            for client in self._clients.values():
                await client.close()

    async def _take(self, message: object) -> None:
        if isinstance(message, StageOrder):
            await self._prepare(message)
        elif isinstance(message, Go) and self._sender is not None:
            self._stage = asyncio.create_task(self._sender.run(message.started_at))
        elif isinstance(message, Stop) and self._sender is not None:
            self._sender.stop()

    async def _prepare(self, order: StageOrder) -> None:
        share: list[PlannedRequest] = list(thinned(schedule(order.plan, order.trace), order.part, order.parts))
        room, note = room_for_connections(order.max_in_flight)
        for target in [one for one in self._clients if one != order.target]:
            await self._clients.pop(target).close()
        client = self._clients.get(order.target)
        if client is None:
            client = self._clients[order.target] = Connections(order.target)
        self._sender = Sender(order, share, client, room, self._say)
        gc.collect()
        gc.freeze()
        self._say(Ready(len(share), (note,) if note else ()))

    def _say(self, message: Ready | News) -> None:
        self._writer.write(frame(message))


async def _main(output: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(output, "wb", buffering=0))
    await Worker(reader, writer).serve()


def main() -> None:
    """Run until stdin ends."""
    # A Ctrl-C of the terminal is for who started us; that one says how to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not end up among our messages
    warnings.simplefilter("ignore", ResourceWarning)
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        import uvloop
    except ImportError:
        asyncio.run(_main(output))
    else:
        uvloop.run(_main(output))


if __name__ == "__main__":
    main()
