"""What the gate's runner needs of the world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sre.gate.result import Smoke
from sre.gate.stages import Calibration, StageLoad, StagePlan, StageSignals, Watch


class LoadGenerator(Protocol):
    """
    Sends a stage's requests to one server, open loop: never slower because the server is.

    One instance per target URL; a session of connections is kept between stages.
    """

    async def smoke(self) -> Smoke:
        """
        Ask for the model, size a prompt, get one whole and one streamed answer.

        Raises:
            Unreachable: no connection, DNS, TLS; the sentence names the cause and what to do.
            Rejected: it answers, and no: unknown model (with the served names), 401, wrong path.
            MalformedResponse: it is no OpenAI-compatible server.
        """
        ...

    async def calibrate(self, rate_rps: float, seconds: float, limit_seconds: float) -> Calibration:
        """Measure this client at ``rate_rps`` against a loopback stub in a child process."""
        ...

    async def run(
        self, plan: StagePlan, *, watch: Watch, ttft_limit_seconds: float | None = None, drain_seconds: float
    ) -> StageLoad:
        """
        Send the stage, wait at most ``drain_seconds`` after its schedule for what is in flight, hand back every record.

        Given up (by ``watch``, or because this task is cancelled): nothing new is sent; what is in flight is ended and
        marked CANCELLED. On cancellation the records so far are kept and handed back by ``partial``.

        Args:
            ttft_limit_seconds: ``LiveCounts.over_limit`` counts against it; None: it stays 0.
        """
        ...

    def partial(self) -> StageLoad | None:
        """What the stage had that was cancelled last; None if none was."""
        ...

    async def close(self) -> None:
        """End processes and connections. Idempotent."""
        ...


class SignalReader(Protocol):
    """Reads gateway, engine and host around a stage."""

    def around(self) -> AbstractAsyncContextManager[Callable[[], StageSignals]]:
        """
        Read before, sample gauges during, read after; the callable gives the result once the block is left.

        Never raises for what cannot be seen: it stands in ``unseen``.
        """
        ...

    async def describe(self) -> Sequence[tuple[str, str]]:
        """Name and value pairs for the fingerprint: server version and flags, GPUs, client host."""
        ...
