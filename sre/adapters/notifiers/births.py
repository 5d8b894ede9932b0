"""The parent's side of a delivery worker: started by itself, or forked off a nursery."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from sre.notify.outcomes import Cause

log = logging.getLogger(__name__)

# -P: a file apprise.py in the working folder is not what we mean.
WORKER = (sys.executable, "-P", "-m", "sre.adapters.notifiers.worker")
NURSERY = (sys.executable, "-P", "-m", "sre.adapters.notifiers.nursery")

CAUSES = frozenset({None, *(cause.value for cause in Cause)})
LONGEST_ANSWER_BYTES = 64 * 1024
LONGEST_STDERR_CHARACTERS = 500

START_SECONDS = 10.0
"""A nursery that has not read Apprise in by then is not waited for."""
BIRTH_SECONDS = 2.0
"""A nursery that takes longer for a fork hangs, or the machine does."""
END_SECONDS = 5.0
"""A killed worker is gone by then, but for one that the kernel holds."""


class Worker(Protocol):
    """A process for one delivery."""

    async def ask(self, line: bytes) -> dict[str, Any] | None:
        """Hand the task over and return the answer; None when the worker ended or broke off instead."""
        ...

    async def end(self) -> str:
        """Kill the worker's process group, also when cancelled meanwhile; return what it said on stderr."""
        ...


async def _asked(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, line: bytes) -> dict[str, Any] | None:
    try:
        writer.write(line)
        await writer.drain()
        answer = json.loads(await reader.readline())
    except (OSError, ValueError):  # ValueError: nothing, half a line, or a line over the limit
        return None
    return answer if isinstance(answer, dict) and answer.get("cause") in CAUSES else None


class Executed:
    """A worker with an interpreter of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._stderr = asyncio.ensure_future(_read_start(process.stderr))

    @classmethod
    async def start(cls, environ: Mapping[str, str]) -> Executed:
        """Start a worker. Raises OSError."""
        return cls(
            await asyncio.create_subprocess_exec(
                *WORKER,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LONGEST_ANSWER_BYTES,
                start_new_session=True,
                env=dict(environ),
            )
        )

    async def ask(self, line: bytes) -> dict[str, Any] | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return await _asked(self._process.stdin, self._process.stdout, line)

    async def end(self) -> str:
        if self._process.returncode is None:
            # The worker never ends by itself while we hold its stdin, so the group is still its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.shield(self._process.wait())
        return (await self._stderr).strip()


class Born:
    """A worker that was forked. Its pid stays its own until the nursery is told that it is dead."""

    def __init__(self, nursery: Nursery, pid: int, line: socket.socket) -> None:
        self._nursery, self.pid, self._line = nursery, pid, line
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, line: bytes) -> dict[str, Any] | None:
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._line, limit=LONGEST_ANSWER_BYTES)
        return await _asked(self._writer, self._reader, line)

    async def end(self) -> str:
        self.kill()
        if self._reader is not None and self._writer is not None:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    while await self._reader.read(LONGEST_ANSWER_BYTES):
                        pass  # its end of the line closes when it is gone
            self._writer.close()
        else:
            self._line.close()
        self._nursery.bury(self.pid)
        return ""

    def kill(self) -> None:
        """Kill it and all it started; at once, without waiting."""
        for kill in (os.killpg, os.kill):  # it may not be the leader of its group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)


class Nursery:
    """A process that forks workers; started when the first is wanted, and again when it is gone."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Be ready for the first worker. Raises OSError."""
        async with self._turn:
            await self._ready()

    async def bear(self) -> Born:
        """Return a new worker. Raises OSError when there is none; then the nursery is a new one the next time."""
        # A fork that is under way is always heard of, or its answer would be taken for that to the next one.
        birth = asyncio.ensure_future(self._bear())
        try:
            return await asyncio.shield(birth)
        except asyncio.CancelledError:
            birth.add_done_callback(_unwanted)
            raise

    async def close(self) -> None:
        """End the nursery and wait for it. Workers under way end with their parents' side of their line."""
        async with self._turn:
            await self._end()

    def bury(self, pid: int) -> None:
        """Say that ``pid`` was killed and will not be named again."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(str(pid).encode())

    async def _bear(self) -> Born:
        async with self._turn:
            control = await self._ready()
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            try:
                async with asyncio.timeout(BIRTH_SECONDS):
                    with theirs:
                        socket.send_fds(control, [b"?"], [theirs.fileno()])
                    answer = await asyncio.get_running_loop().sock_recv(control, 64)
                return Born(self, int(answer), ours)
            except (OSError, ValueError) as error:  # TimeoutError is an OSError; ValueError: it ended
                ours.close()
                await self._end()
                raise OSError(f"the nursery of delivery workers does not answer: {error!r}") from error

    async def _ready(self) -> socket.socket:
        if self._process is not None and self._process.returncode is None and self._control is not None:
            return self._control
        await self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._control = ours
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *NURSERY,
                    str(os.getpid()),
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                    env=dict(self._environ),
                )
            async with asyncio.timeout(START_SECONDS):
                if await asyncio.get_running_loop().sock_recv(ours, 64) != b"ready":
                    raise OSError("the nursery of delivery workers ended at once")
        except BaseException:
            await self._end()
            raise
        return ours

    async def _end(self) -> None:
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is not None:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)  # Popen's own kill would take the exit status from asyncio
            await asyncio.shield(process.wait())


def _unwanted(birth: asyncio.Task[Born]) -> None:
    """End a worker that nobody waits for any more."""
    if not birth.cancelled() and birth.exception() is None:
        born = birth.result()
        born.kill()
        born._line.close()
        born._nursery.bury(born.pid)


async def _read_start(stream: asyncio.StreamReader | None) -> str:
    """Return the start of what a worker writes to stderr: a traceback of a broken installation."""
    assert stream is not None
    kept = b""
    while chunk := await stream.read(4096):
        kept = (kept + chunk)[: 4 * LONGEST_STDERR_CHARACTERS * 4]
    return kept.decode("utf-8", "replace")
