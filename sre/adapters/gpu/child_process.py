"""One child process of the reader, and the ones that were killed and may not be gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from sre.adapters.gpu.protocol import ChildOptions, decode_gpus, encode_options
from sre.signals.types import GpuSeen

MAX_LINE_BYTES = 1 << 20


class ChildFailed(Exception):
    """The child did not do its part. The text is a sentence for the operator."""


class Child:
    """
    A child, started at once; ``hello`` before anything else. Its pipes never block the event loop; it is killed, never
    waited for.

    Raises:
        ChildFailed: From the constructor: it cannot be started. From every coroutine: no answer in time, an ended
            child, or an odd answer.
    """

    def __init__(self, options: ChildOptions, environ: Mapping[str, str] | None) -> None:
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sre.adapters.gpu.child", str(os.getpid()), encode_options(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environ,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise ChildFailed(f"the process that reads the GPUs cannot be started: {error}") from error
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self._lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        self._transport: asyncio.ReadTransport | None = None
        self._reads = 0
        self.source = ""
        """nvml, sim or none; known after ``hello``."""

    async def hello(self, deadline_seconds: float) -> None:
        """Wait until the child has opened its source. A source that does not work is ChildFailed with its reason."""
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._lines), self.process.stdout
        )
        data = _object(await self._line(deadline_seconds, "opening the GPU library did not return"))
        self.source = str(data.get("hello", ""))
        if data.get("problem") is not None:
            raise ChildFailed(str(data["problem"]))

    async def read(self, deadline_seconds: float) -> Sequence[GpuSeen]:
        """Ask for all GPUs once."""
        assert self.process.stdin is not None
        self._reads += 1
        try:
            written = self.process.stdin.write(json.dumps({"read": self._reads}).encode() + b"\n")
        except OSError as error:
            raise ChildFailed(f"the process that reads the GPUs ended: {error.strerror}") from error
        if written is None:
            raise ChildFailed("the process that reads the GPUs does not take requests")
        line = await self._line(deadline_seconds, "a GPU call did not return")
        try:
            return decode_gpus(line, self._reads)
        except ValueError as error:
            problem = _object(line).get("problem")
            raise ChildFailed(f"odd answer of the GPU reader: {error}" if problem is None else str(problem)) from error

    async def _line(self, deadline_seconds: float, late: str) -> bytes:
        try:
            async with asyncio.timeout(deadline_seconds):
                line = await self._lines.readline()
        except TimeoutError as error:
            raise ChildFailed(f"{late} within {deadline_seconds:g} s; look at dmesg for Xid errors") from error
        except ValueError as error:
            raise ChildFailed(f"odd answer of the GPU reader: {error}") from error
        if not line.endswith(b"\n"):
            raise ChildFailed("the process that reads the GPUs ended")
        return line

    def kill(self) -> None:
        """Send SIGKILL and close the pipes. The process is not waited for: inside a driver call it may not die yet."""
        self.process.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if self._transport is None:
            self.process.stdout.close()
        else:
            self._transport.close()  # closes stdout, in the loop's next turn


def _object(line: bytes) -> Mapping[str, object]:
    try:
        data = json.loads(line)
    except ValueError:
        return {"problem": f"odd answer of the GPU reader: {line[:80]!r}"}
    return data if isinstance(data, dict) else {"problem": f"odd answer of the GPU reader: {line[:80]!r}"}


class Pollable(Protocol):
    """The part of Popen that reaping needs."""

    def poll(self) -> int | None: ...


class Killed:
    """Killed processes that were not seen to end. ``reap`` collects those that did, without ever waiting."""

    def __init__(self) -> None:
        self._processes: list[Pollable] = []

    def add(self, process: Pollable) -> None:
        self._processes.append(process)

    def reap(self) -> int:
        """Return how many are still there."""
        self._processes = [process for process in self._processes if process.poll() is None]
        return len(self._processes)
