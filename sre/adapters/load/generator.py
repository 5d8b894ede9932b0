"""``HttpLoad``: the gate's load generator (``sre.control.gate_ports.LoadGenerator``)."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from sre.adapters.load.calibration import calibrate
from sre.adapters.load.connections import header_problem
from sre.adapters.load.merge import Merge
from sre.adapters.load.process import LoadProcess
from sre.adapters.load.wire import Go, News, Ready, StageOrder, Stop, Target
from sre.clock import Clock
from sre.errors import ConfigError, NotReady
from sre.gate.arrivals import TraceEntry
from sre.gate.prompts import PromptScale
from sre.gate.result import Smoke
from sre.gate.schedule import arrival_rps, schedule
from sre.gate.stages import Calibration, RequestClass, StageLoad, StagePlan, Watch

WATCH_SECONDS = 0.25
LEAD_SECONDS = 0.15
"""From the order to go to moment 0, so that every process has it in time."""
READY_SECONDS = 60.0
STOP_SECONDS = 5.0
"""A stage that was given up has this long to report what was in flight."""
SILENT_SECONDS = 15.0
"""After everything must be over."""
CPU_SECONDS_PER_REQUEST = 0.00025
CPU_SECONDS_PER_TOKEN = 0.000015
"""Measured on a 2-core machine; each token a chunk. See tests/benchmarks/bench_gate_load.py."""
BUSY_RATIO = 0.6
"""A process is not planned to use more of a core."""


class HttpLoad:
    """
    Open-loop load on one server. Use as an async context manager, or ``close`` it.

    Args:
        url: Base of an OpenAI-compatible server, with or without a trailing ``/v1``.
        model: Served name; None: the first that ``smoke`` finds, which must then come before ``run``.
        api: "completions" or "chat".
        ca_file: Further authorities for TLS.
        max_in_flight: Of all processes together.
        processes: 0: as many as the rate needs, at most one per core.
        trace: For stages that replay.
        classes: What will be sent: ``smoke`` tries one of each.
        start: Starts a process of this name.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None,
        api: str = "completions",
        api_key: str | None = None,
        ca_file: str | None = None,
        clock: Clock,
        request_timeout_seconds: float = 60.0,
        max_in_flight: int = 10_000,
        processes: int = 0,
        seed: int = 1,
        trace: Sequence[TraceEntry] = (),
        classes: Sequence[RequestClass] = (),
        start: Callable[[str], Awaitable[LoadProcess]] = LoadProcess.start,
    ) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        self._target = Target(base, api, model or "", api_key, ca_file)
        self._clock = clock
        self._request_timeout_seconds = request_timeout_seconds
        self._max_in_flight, self._wanted_processes = max_in_flight, processes
        self._seed = seed
        self._trace, self._classes = tuple(trace), tuple(classes)
        self._start = start
        self._processes: list[LoadProcess] = []
        self._scale: PromptScale | None = None
        self._smoke: Smoke | None = None
        self._partial: StageLoad | None = None
        self._stages = 0
        self._notes: tuple[str, ...] = ()
        """Of the first requests; told with every stage."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of its processes now."""
        return tuple(process.pid for process in self._processes)

    @property
    def model(self) -> str:
        """Served name in use; "" before ``smoke`` found one."""
        return self._target.model

    # ---- LoadGenerator ---------------------------------------------------------------------------------------------

    async def smoke(self) -> Smoke:
        """See ``sre.control.gate_ports.LoadGenerator``."""
        from sre.adapters.load.probe import Probe

        async with Probe(self._target, self._clock, self._request_timeout_seconds, self._classes) as probe:
            self._smoke = await probe.smoke()
            self._target, self._scale, self._notes = probe.target, probe.scale, probe.notes
        return self._smoke

    async def calibrate(self, rate_rps: float, seconds: float, limit_seconds: float) -> Calibration:
        """See ``sre.control.gate_ports.LoadGenerator``."""
        return await calibrate(self._run_on, rate_rps, seconds, limit_seconds, seed=self._seed)

    async def run(
        self,
        plan: StagePlan,
        *,
        watch: Watch,
        ttft_limit_seconds: float | None = None,
        drain_seconds: float,
    ) -> StageLoad:
        """
        See ``sre.control.gate_ports.LoadGenerator``.

        ``planned`` counts the whole schedule. A stage that ran to its end has a record for each; one that was given up
        has them for what was due by then. What was still in flight after ``drain_seconds`` is a TIMEOUT: it was
        offered and not answered.

        Raises:
            ExitedEarly, NotReady: A load process died or hangs. The stage does not count.
            Unreachable, Rejected, MalformedResponse: From sizing prompts, before anything is sent.
            ConfigError: A class has a header that cannot be sent.
        """
        _check_headers(plan)
        if self._scale is None:
            await self._learn()
        assert self._scale is not None
        load = await self._run_on(self._target, self._scale, plan, watch, ttft_limit_seconds, drain_seconds)
        return replace(load, notes=(*self._notes, *load.notes))

    def partial(self) -> StageLoad | None:
        """What the stage had that was cancelled last; None if none was."""
        return self._partial

    async def close(self) -> None:
        """End processes and connections. Idempotent."""
        processes, self._processes = self._processes, []
        await asyncio.gather(*(process.end() for process in processes))

    # ---- a stage ---------------------------------------------------------------------------------------------------

    async def _learn(self) -> None:
        from sre.adapters.load.probe import Probe

        async with Probe(self._target, self._clock, self._request_timeout_seconds) as probe:
            await probe.learn()
            self._target, self._scale, self._notes = probe.target, probe.scale, probe.notes

    async def _run_on(
        self,
        target: Target,
        scale: PromptScale,
        plan: StagePlan,
        watch: Watch,
        ttft_limit_seconds: float | None,
        drain_seconds: float,
    ) -> StageLoad:
        self._partial = None
        whole = schedule(plan, self._trace)
        parts = self._parts(plan)
        await self._start_processes(parts)
        used = self._processes[:parts]
        self._stages += 1
        salt = f"sre-gate-{os.urandom(4).hex()}-{self._stages}"
        words = {tokens: scale.words(tokens) for tokens in {one.prompt_tokens for one in whole}}
        order = StageOrder(
            target=target, plan=plan, trace=self._trace, part=0, parts=parts, words=words, salt=salt,
            max_in_flight=0, request_timeout_seconds=self._request_timeout_seconds, drain_seconds=drain_seconds,
            ttft_limit_seconds=ttft_limit_seconds,
        )  # fmt: skip
        try:
            async with asyncio.timeout(READY_SECONDS):
                notes = await self._prepare(used, order)
        except TimeoutError:
            await self._kill()
            raise NotReady(
                f"load processes: not ready for stage {plan.name} within {READY_SECONDS:g} s; the machine is too busy"
            ) from None
        except BaseException:
            await self._kill()
            raise
        started_at = self._clock.monotonic() + LEAD_SECONDS
        merge = Merge(plan, len(whole), parts, started_at)
        stage = _Stage(merge, used, self._clock, started_at + plan.duration_seconds + drain_seconds + SILENT_SECONDS)
        wall, cpu = self._clock.wall() + LEAD_SECONDS, time.process_time()
        aborted: str | None = None
        ended = False
        try:
            stage.start(started_at)
            try:
                aborted = await stage.watched(watch)
            except asyncio.CancelledError:
                await stage.stopped()
                self._partial = stage.result(cpu, "cancelled", wall, notes)
                ended = True
                raise
            ended = True
            return stage.result(cpu, aborted, wall, notes)
        finally:
            await stage.close()
            if not ended:
                await self._kill()

    async def _prepare(self, used: Sequence[LoadProcess], order: StageOrder) -> list[str]:
        share, rest = divmod(self._max_in_flight, len(used))
        for part, process in enumerate(used):
            process.send(replace(order, part=part, max_in_flight=max(1, share + (part < rest))))
        notes: list[str] = []
        for process in used:
            ready = await process.receive()
            assert isinstance(ready, Ready), ready
            notes += [note for note in ready.notes if note not in notes]
        return notes

    def _parts(self, plan: StagePlan) -> int:
        if self._wanted_processes:
            return self._wanted_processes
        rate = arrival_rps(plan)
        tokens = max((one.max_tokens for one in plan.classes), default=1)
        busy = rate * (CPU_SECONDS_PER_REQUEST + tokens * CPU_SECONDS_PER_TOKEN)
        return max(1, min(math.ceil(busy / BUSY_RATIO), len(os.sched_getaffinity(0))))

    async def _start_processes(self, count: int) -> None:
        if not all(process.alive for process in self._processes):
            await self._kill()
        missing = range(len(self._processes), count)
        starts = [asyncio.create_task(self._start_one(f"load process {number + 1} of {count}")) for number in missing]
        if not starts:
            return
        try:
            await asyncio.gather(*starts)
        except BaseException:  # cancelled, too: what came up without the others must not live on
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)
            await self._kill()
            raise

    async def _start_one(self, name: str) -> None:
        self._processes.append(await self._start(name))

    async def _kill(self) -> None:
        processes, self._processes = self._processes, []
        await asyncio.gather(*(process.end(now=True) for process in processes))


def _check_headers(plan: StagePlan) -> None:
    problems = [
        f"gate.load.mix: class {kind.name}, header {name!r}: {problem}"
        for kind in (*plan.classes, *plan.extra_classes)
        for name, value in kind.headers
        if (problem := header_problem(name, value)) is not None
    ]
    if problems:
        raise ConfigError(problems)


class _Stage:
    """A stage under way in its processes."""

    def __init__(self, merge: Merge, processes: Sequence[LoadProcess], clock: Clock, latest: float) -> None:
        self._merge, self._processes, self._clock, self._latest = merge, processes, clock, latest
        self._readers: list[asyncio.Task[None]] = []

    def start(self, started_at: float) -> None:
        for process in self._processes:
            process.send(Go(started_at))
        self._readers = [asyncio.create_task(self._read(part, process)) for part, process in enumerate(self._processes)]

    async def _read(self, part: int, process: LoadProcess) -> None:
        while True:
            news = await process.receive()
            assert isinstance(news, News), news
            self._merge.add(part, news)
            if news.last:
                return

    async def watched(self, watch: Watch) -> str | None:
        """Return when the stage is over: the reason if ``watch`` gave it up."""
        while True:
            over = await self._wait(WATCH_SECONDS)
            reason = watch(self._merge.live(self._clock.monotonic()))
            if over:
                return None
            if reason is not None:
                await self.stopped()
                return reason

    async def stopped(self) -> None:
        """Give the stage up and take in what its processes report."""
        for process in self._processes:
            process.send(Stop())
        deadline = self._clock.monotonic() + STOP_SECONDS
        while not await self._wait(WATCH_SECONDS):
            if self._clock.monotonic() > deadline:
                raise NotReady(f"load processes: do not stop within {STOP_SECONDS:g} s; their requests are lost")

    async def _wait(self, seconds: float) -> bool:
        """Whether the stage is over, after at most ``seconds``. A process that died raises ExitedEarly."""
        waiting = [reader for reader in self._readers if not reader.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for reader in self._readers:
            if reader.done():
                reader.result()
        if self._clock.monotonic() > self._latest:
            raise NotReady("load processes: silent after the stage's end; their requests are lost: run again")
        return self._merge.complete

    def result(self, cpu: float, aborted: str | None, wall: float, notes: Sequence[str]) -> StageLoad:
        return self._merge.result(
            now=self._clock.monotonic(), own_cpu_seconds=time.process_time() - cpu, aborted=aborted,
            wall_started_at=wall, notes=notes,
        )  # fmt: skip

    async def close(self) -> None:
        """Stop listening."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
