"""Hold on to a process so that a signal can never reach another one that got its number."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Iterable
from types import TracebackType

from sre.adapters.processes.proc import read_stat
from sre.signals.types import ProcessIdentity


class PidFd:
    """
    An open pidfd of one process. It stays that process' even when the number is given away.

    Close it, or use it as a context manager.
    """

    def __init__(self, identity: ProcessIdentity, descriptor: int) -> None:
        self.identity = identity
        self._descriptor = descriptor

    @classmethod
    def open(cls, identity: ProcessIdentity) -> PidFd | None:
        """Open exactly this process; None when it is gone, a zombie included."""
        try:
            descriptor = os.pidfd_open(identity.pid)
        except OSError:
            return None
        # Opened first, compared second: from here on the number cannot change hands unnoticed.
        stat = read_stat(identity.pid)
        if stat is None or stat.gone or stat.identity != identity:
            os.close(descriptor)
            return None
        return cls(identity, descriptor)

    @property
    def ended(self) -> bool:
        """Whether the process has ended (it may still be a zombie)."""
        return self._descriptor < 0 or bool(select.select([self._descriptor], [], [], 0)[0])

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process has ended."""
        if self._descriptor < 0:
            return False
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            return False
        return True

    async def wait(self) -> None:
        """Return when the process has ended."""
        if self.ended:
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        # Several may wait on one process, but a loop knows one reader per descriptor: each waits on its own copy.
        descriptor = os.dup(self._descriptor)

        def on_end() -> None:
            if not ended.done():
                ended.set_result(None)

        loop.add_reader(descriptor, on_end)
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Give the descriptor back; the process is not touched."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> PidFd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def wait_ended(held: Iterable[PidFd], timeout_seconds: float) -> bool:
    """Wait until all have ended; False when ``timeout_seconds`` pass first."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            for one in held:
                await one.wait()
            return True
    return all(one.ended for one in held)
