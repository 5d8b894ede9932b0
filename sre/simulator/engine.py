"""
The simulated engine core: scheduler, pause and sleep, faults. Pure; the process around it passes time in and waits.

Two times: ``now`` is real (CLOCK_MONOTONIC) seconds; a step's simulated seconds become real ones by ``time_scale``.
"""

from __future__ import annotations

import enum
import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from sre.simulator.cost import CostModel
from sre.simulator.faults import ALL_BATCHES, NO_FAULTS, Faults
from sre.simulator.scheduler import Finish, Limits, Request, Scheduler, Step

JITTER_RATIO = 0.02
"""Standard deviation of a step's duration, of its mean."""


class PauseMode(enum.Enum):
    """What /pause does with running requests."""

    ABORT = "abort"  # end them
    WAIT = "wait"  # let them finish first
    KEEP = "keep"  # freeze them


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that got its last token, or was ended."""

    id: int
    finish: Finish
    token: bool
    """Whether a token came with it."""
    preemptions: int


@dataclass(slots=True)
class Report:
    """What a step, or a command, has to tell the API server."""

    at: float
    tokens: list[int] = field(default_factory=list)
    """Requests that got one token and go on."""
    first: list[tuple[int, float, int]] = field(default_factory=list)
    """Requests whose first token this was: id, when first scheduled, cached prompt tokens."""
    ended: list[Ended] = field(default_factory=list)
    preempted: int = 0
    stepped: bool = False
    """The state below is new."""
    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_usage_ratio: float = 0.0
    prefix_queries: int = 0
    """Tokens looked up in this step."""
    prefix_hits: int = 0


class Engine:
    """
    State of the engine core.

    Args:
        seed: Jitter and injected errors repeat with the same seed and the same load.
        time_scale: Simulated seconds per real second.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        cost: CostModel | None = None,
        seed: int = 0,
        time_scale: float = 1.0,
        jitter: bool = True,
    ) -> None:
        self._scheduler = Scheduler(limits, cost or CostModel())
        self._random = random.Random(seed)
        self._time_scale = time_scale
        self._jitter = JITTER_RATIO if jitter else 0.0
        self._requests: dict[int, Request] = {}
        self._held: list[tuple[float, int, Request]] = []  # heap: not before, id; held back by a fault
        self._new_while_paused: dict[int, Request] = {}
        self._faults = NO_FAULTS
        self._failing_batches = 0
        self._reported = (0, 0)
        self.paused = False
        self.pausing = False
        """``PauseMode.WAIT``: paused as soon as nothing runs."""
        self.sleep_level: int | None = None

    @property
    def stopped(self) -> bool:
        """Whether no step is taken by intent."""
        return self.paused or self.sleep_level is not None

    @property
    def unfinished(self) -> int:
        """Requests that have not ended, held ones included."""
        return len(self._requests)

    @property
    def batch(self) -> int:
        """Requests in the running batch."""
        return len(self._scheduler.running)

    @property
    def kv_usage_ratio(self) -> float:
        return self._scheduler.cache.usage_ratio

    def set_faults(self, faults: Faults) -> None:
        """Act out ``faults`` from now on; the same run again changes nothing."""
        if faults != self._faults:
            if faults.run_id != self._faults.run_id or faults.batch_failures != self._faults.batch_failures:
                self._failing_batches = faults.batch_failures
            self._faults = faults

    def add(self, request: Request, now: float) -> None:
        """Accept a request."""
        self._requests[request.id] = request
        if self._faults.active(now):
            if self._random.random() < self._faults.error_ratio:
                request.finish, request.output_tokens = Finish.ERROR, 1
            if self._faults.delay_seconds:
                heapq.heappush(self._held, (now + self._faults.delay_seconds, request.id, request))
                return
        self._enqueue(request)

    def abort(self, ids: Iterable[int]) -> None:
        """Drop requests whose client went away or that the API server ended itself: nothing is reported."""
        for key in ids:
            request = self._requests.pop(key, None)
            if request is not None:
                self._drop(request)

    def abort_all(self, now: float) -> Report:
        """End every request with finish_reason abort."""
        report = Report(now)
        for request in list(self._requests.values()):
            self._drop(request)
            report.ended.append(Ended(request.id, Finish.ABORT, False, request.preemptions))
        self._requests.clear()
        self._held.clear()
        return report

    def pause(self, mode: PauseMode, now: float) -> Report:
        """Stop taking steps; with ``WAIT`` once nothing runs (``pausing`` is then True until it is so)."""
        report = Report(now)
        if mode is PauseMode.ABORT:
            report = self.abort_all(now)
        if mode is PauseMode.WAIT and not self._scheduler.idle:
            self.pausing = True
        else:
            self.paused = True
        return report

    def resume(self) -> None:
        """Take steps again."""
        self.paused = self.pausing = False
        self._go_on()

    def sleep(self, level: int) -> None:
        """Put to sleep: 1 offloads the weights, 2 discards them, 0 only stops; no step until ``wake_up``."""
        self.sleep_level = level

    def wake_up(self) -> None:
        self.sleep_level = None
        self._go_on()

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        self._scheduler.cache.forget()

    def next_due(self) -> float | None:
        """When (real seconds) a request that a fault holds back may be scheduled; None if there is none."""
        return self._held[0][0] if self._held else None

    def begin_step(self, now: float) -> tuple[Step, float] | None:
        """The next step and its duration in real seconds; None when there is nothing to do."""
        while self._held and self._held[0][0] <= now:
            request = heapq.heappop(self._held)[-1]
            if request.live:
                self._enqueue(request)
        if self.stopped:
            return None
        step = self._scheduler.begin_step(now)
        if step is None:
            if self.pausing and self._scheduler.idle:
                self.pausing, self.paused = False, True
            return None
        factor = 1.0 + max(-0.5, min(1.0, self._random.gauss(0.0, self._jitter))) if self._jitter else 1.0
        return step, step.seconds * factor / self._time_scale

    def finish_step(self, step: Step, now: float) -> Report:
        """What the step brought."""
        scheduler = self._scheduler
        report = Report(now, preempted=step.preempted, stepped=True)
        fails = self._failing_batches != 0 and self._faults.active(now)
        if fails:
            if self._failing_batches != ALL_BATCHES:
                self._failing_batches -= 1
            for request, _ in step.scheduled:
                if scheduler.abort(request):
                    del self._requests[request.id]
                    report.ended.append(Ended(request.id, Finish.ERROR, False, request.preemptions))
        else:
            for progress in scheduler.finish_step(step):
                request = progress.request
                if progress.first:
                    report.first.append((request.id, request.scheduled_at or now, request.cached))
                if progress.finished is None:
                    report.tokens.append(request.id)
                else:
                    del self._requests[request.id]
                    report.ended.append(Ended(request.id, progress.finished, True, request.preemptions))
        if self.pausing and scheduler.idle:
            self.pausing, self.paused = False, True
        return self._with_state(report)

    def state(self, now: float) -> Report:
        """The gauges without a step: what is due when requests were dropped and no step follows."""
        return self._with_state(Report(now, stepped=True))

    def _with_state(self, report: Report) -> Report:
        scheduler = self._scheduler
        report.running = len(scheduler.running)
        report.waiting = scheduler.waiting
        report.deferred = sum(1 for entry in self._held if entry[-1].live)
        report.kv_usage_ratio = scheduler.cache.usage_ratio
        queries, hits = scheduler.prefix_queries, scheduler.prefix_hits
        report.prefix_queries, report.prefix_hits = queries - self._reported[0], hits - self._reported[1]
        self._reported = (queries, hits)
        return report

    def _go_on(self) -> None:
        if not self.stopped and not self.pausing:
            for request in self._new_while_paused.values():
                self._scheduler.add(request)
            self._new_while_paused.clear()

    def _enqueue(self, request: Request) -> None:
        if self.stopped or self.pausing:
            self._new_while_paused[request.id] = request
        else:
            self._scheduler.add(request)

    def _drop(self, request: Request) -> None:
        if request.entered:
            self._scheduler.abort(request)
        else:
            request.live = False
            self._new_while_paused.pop(request.id, None)
