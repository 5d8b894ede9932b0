"""The guard's side of reading GPUs: never blocks, never raises, and outlives calls that do not return."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from sre.adapters.gpu.card_names import CardNames
from sre.adapters.gpu.child_process import Child, ChildFailed, Killed
from sre.adapters.gpu.protocol import SOURCE_NONE, ChildOptions
from sre.adapters.gpu.xid_totals import XidTotals
from sre.clock import Clock
from sre.signals.types import NEVER, GpuSeen, Reading, Seen

REAP_AT_CLOSE_SECONDS = 2.0
REAP_POLL_SECONDS = 0.01


class ChildGpuReader:
    """
    ``GpuReader`` through a child process.

    A read that takes longer than ``patience_seconds`` goes on in the background, and ``read`` returns the values before
    with their old ``sampled_at``. After ``deadline_seconds`` the child is given up: SIGKILL, not waited for (in state D
    it cannot die), every reading UNREACHABLE at once, and after a growing back-off another child is tried, in the
    background too, until one has answered. Of killed children that the kernel does not let go, at most ``max_stuck``
    are tolerated; then no more are started.

    Attributes:
        problem: Why the GPUs are not seen now; None when they are.
        replaced: Children given up so far.
        source: What is read: nvml, sim or none; before it is known what was asked for.
    """

    def __init__(
        self,
        options: ChildOptions,
        clock: Clock,
        *,
        deadline_seconds: float,
        patience_seconds: float = 0.5,
        start_deadline_seconds: float = 15.0,
        initial_backoff_seconds: float = 1.0,
        max_backoff_seconds: float = 30.0,
        max_stuck: int = 3,
        expected_gpus: Iterable[int] = (),
        environ: Mapping[str, str] | None = None,
        killed: Killed | None = None,
    ) -> None:
        """
        Args:
            deadline_seconds: For one read of all GPUs.
            start_deadline_seconds: For a child to start and open NVML: seconds where persistence mode is off.
            expected_gpus: Indices that engines use: missing ones are reported as not seen.
            environ: Environment of the child; None is ours.
        """
        self._options = options
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._patience_seconds = patience_seconds
        self._start_deadline_seconds = start_deadline_seconds
        self._initial_backoff_seconds = initial_backoff_seconds
        self._max_backoff_seconds = max_backoff_seconds
        self._max_stuck = max_stuck
        self._expected = frozenset(expected_gpus)
        self._environ = environ
        self._killed = Killed() if killed is None else killed
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._task_started_at = 0.0
        self._failing = False
        self._backoff_seconds = initial_backoff_seconds
        self._retry_at = 0.0
        self._closed = False
        self.source = "sim" if options.backend == "sim" else "nvml"
        self.problem: str | None = None
        self.replaced = 0
        self._uuids = CardNames()
        self._known: frozenset[int] = frozenset()
        self._xids: dict[str, XidTotals] = {}
        self._gpus: tuple[GpuSeen, ...] = self._all(NEVER)

    @property
    def stuck(self) -> int:
        """Killed children that are not gone yet."""
        return self._killed.reap()

    async def read(self) -> Sequence[GpuSeen]:
        """All GPUs, by index."""
        now = self._clock.monotonic()
        stuck = self._killed.reap()
        if self._task is None and not self._closed and not (self._failing and now < self._retry_at):
            if stuck >= self._max_stuck:
                self.problem = (
                    f"{stuck} killed GPU reader processes cannot end, the driver holds them (state D); no further one "
                    "is started: drain the node and reboot it"
                )
            elif self.source != SOURCE_NONE or self._expected:
                self._task_started_at = now
                self._task = asyncio.create_task(self._cycle(), name="read gpus")
        if self._failing:
            return self._all(Reading.missing(now, Seen.UNREACHABLE))
        if self._task is not None:
            left = self._patience_seconds - (now - self._task_started_at)
            if left > 0:
                await asyncio.wait({self._task}, timeout=left)
        return self._gpus

    async def close(self) -> None:
        """End the child. Returns when it is gone, or after 2 s: a child in state D goes when the driver lets it."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop_child()
        for _ in range(int(REAP_AT_CLOSE_SECONDS / REAP_POLL_SECONDS)):
            if not self._killed.reap():
                break
            await asyncio.sleep(REAP_POLL_SECONDS)
        await asyncio.sleep(0)  # lets the loop close the pipe of the child

    async def _cycle(self) -> None:
        """One read, with a new child if there is none; its result stands in ``_gpus``."""
        try:
            if self._child is None:
                self._child = Child(self._options, self._environ)
                await self._child.hello(self._start_deadline_seconds)
                self.source = self._child.source
            gpus = await self._child.read(self._deadline_seconds)
        except ChildFailed as failure:
            self._give_up(str(failure))
        else:
            self._failing = False
            self._backoff_seconds = self._initial_backoff_seconds
            self.problem = None
            self._uuids.seen({gpu.index: gpu.uuid for gpu in gpus})
            self._known = frozenset(gpu.index for gpu in gpus)
            for gpu in gpus:
                self._xids[self._uuids.card(gpu.index)] = self._xids_of(gpu.index).seen(gpu.details)
            seen = {gpu.index: self._remembered(gpu) for gpu in gpus}
            absent = Reading.missing(self._clock.monotonic())
            self._gpus = tuple(
                seen.get(index) or self._one(index, absent) for index in sorted(self._expected | seen.keys())
            )
        finally:
            self._task = None

    def _give_up(self, problem: str) -> None:
        """Kill the child, report everything as unreachable, and try again after the back-off."""
        if self._child is not None and self._child.source == SOURCE_NONE:
            self.source = SOURCE_NONE
        elif self._child is not None:
            self.replaced += 1
        self._drop_child()
        self.problem = problem
        self._failing = True
        self._retry_at = self._clock.monotonic() + self._backoff_seconds
        self._backoff_seconds = min(self._backoff_seconds * 2, self._max_backoff_seconds)
        self._gpus = self._all(Reading.missing(self._clock.monotonic(), Seen.UNREACHABLE))

    def _drop_child(self) -> None:
        if self._child is not None:
            self._xids = {card: totals.process_ended() for card, totals in self._xids.items()}
            self._child.kill()
            self._killed.add(self._child.process)
            self._child = None

    def _all(self, reading: Reading) -> tuple[GpuSeen, ...]:
        """Every GPU we know of or expect, with ``reading`` in all its fields."""
        return tuple(self._one(index, reading) for index in sorted(self._expected | self._known))

    def _one(self, index: int, reading: Reading) -> GpuSeen:
        source = "nvml" if self.source == SOURCE_NONE else self.source
        return self._remembered(GpuSeen(index, "", source, reading, reading, reading, reading))

    def _xids_of(self, index: int) -> XidTotals:
        return self._xids.get(self._uuids.card(index), XidTotals())

    def _remembered(self, gpu: GpuSeen) -> GpuSeen:
        """A GPU that cannot be read is still that card, and has had its XIDs: just then they are wanted."""
        at = gpu.memory_used_ratio.sampled_at
        details = self._xids_of(gpu.index).put(gpu.details, at)
        return dataclasses.replace(gpu, uuid=self._uuids.of(gpu.index), details=details)


class NoGpuReader:
    """``guard.gpu_reader: none``: there is nothing to see."""

    source = SOURCE_NONE
    problem: str | None = None
    replaced = 0
    stuck = 0

    async def read(self) -> Sequence[GpuSeen]:
        return ()

    async def close(self) -> None:
        pass
