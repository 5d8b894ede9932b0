"""A process of the load generator, seen from who started it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from typing import IO, Any

from sre.adapters.load.wire import frame, read_message
from sre.errors import ExitedEarly, ProcessError
from sre.printable import one_line

END_SECONDS = 2.0
"""A process has this long to end by itself; then it is killed."""
LOG_BYTES = 4096


class LoadProcess:
    """
    One worker, started by ``start``.

    Raises:
        ExitedEarly: From ``send`` and ``receive``: it is gone; the sentence says which, how, and its last words.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: IO[bytes], name: str) -> None:
        self._process, self._log, self.name = process, log, name

    @staticmethod
    async def start(name: str) -> LoadProcess:
        """
        Args:
            name: For messages: ``load process 2 of 4``.

        Raises:
            ProcessError: It cannot be started.
        """
        with contextlib.ExitStack() as unused:
            try:
                log = unused.enter_context(tempfile.TemporaryFile(prefix="sre-load-"))
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "sre.adapters.load.worker",
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise ProcessError(
                    f"{name}: cannot be started: {error.strerror}; free memory, processes, open files or the disk of "
                    "TMPDIR"
                ) from error
            unused.pop_all()  # closed by end
        return LoadProcess(process, log, name)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def send(self, message: object) -> None:
        """Hand over ``message``; it is small, so nothing waits."""
        assert self._process.stdin is not None
        # One that is gone is noticed by ``receive``, which knows how it ended.
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(frame(message))

    async def receive(self) -> Any:
        """Return the next message."""
        assert self._process.stdout is not None
        try:
            return await read_message(self._process.stdout)
        except EOFError:
            raise ExitedEarly(await self._obituary()) from None

    async def _obituary(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        code = self._process.returncode
        how = "closed its pipe" if code is None else f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        self._log.seek(0)
        words = one_line(self._log.read()[-LOG_BYTES:].decode("utf-8", "replace"))[-300:]
        said = f"; it said: {words}" if words else ""
        return (
            f"{self.name} (pid {self.pid}): ended in the middle of a stage ({how}); its requests are lost, so the "
            f"stage does not count: run again, with fewer gate.load.processes if memory is short{said}"
        )

    async def end(self, *, now: bool = False) -> None:
        """End it, by force if ``now`` or if it takes longer than END_SECONDS. Idempotent."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            if not now and self.alive:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(END_SECONDS):
                        await self._process.wait()
        finally:
            if self.alive:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await asyncio.shield(self._process.wait())
            self._log.close()
