"""
An hour of difficult but healthy traffic, in virtual time: the guard's decisions over the simulator's engine model.

The engine model is the one the simulated engine runs; the wire between them is tested elsewhere. Every kind of
traffic that looks like a fault to a simpler guard is in it. A trip here is a false one.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest

from sre.breaker.decide import Decision, decide
from sre.breaker.effects import StartCanary
from sre.breaker.memory import Memory
from sre.breaker.state import GuardState
from sre.signals.types import (
    CanaryResult,
    CanaryVerdict,
    EngineSeen,
    GpuSeen,
    OutcomeCounts,
    ProcessIdentity,
    ProcessState,
    Reading,
    Snapshot,
)
from sre.simulator.cost import CostModel
from sre.simulator.engine import Engine, PauseMode, Report
from sre.simulator.scheduler import Finish, Limits, Request
from tests.breaker.scenes import POLICY

HOUR_SECONDS = 3600


@dataclass
class Hour:
    """One engine, its gateway's counts, and a guard that looks once a second."""

    seed: int
    chunked: bool
    now: float = 0.0
    steps: int = 0
    in_flight: set[int] = field(default_factory=set)
    canaries: dict[int, int] = field(default_factory=dict)
    success: int = 0
    neutral: int = 0
    aborts: int = 0
    canary: CanaryResult | None = None
    state: GuardState = field(default_factory=GuardState)
    memory: Memory = field(default_factory=Memory)
    stale: tuple[int, float] | None = None
    """/metrics crawls: the sample (value, time) that is all there is."""
    decisions: list[Decision] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    longest_step: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        limits = Limits(
            max_num_seqs=64, max_num_batched_tokens=2048, kv_cache_tokens=400_000, chunked_prefill=self.chunked
        )
        self.engine = Engine(limits, cost=CostModel(step_seconds_at_batch_1=0.04), seed=self.seed)
        self.ids = iter(range(1, 10_000_000))
        self.due: list[tuple[float, int, object]] = []

    def at(self, when: float, what: object) -> None:
        heapq.heappush(self.due, (when, next(self.ids), what))

    def send(self, prompt: int, output: int, kind: str) -> int:
        number = next(self.ids)
        self.kinds.add(kind)
        self.engine.add(Request(number, prompt, output, Finish.LENGTH, arrived_at=self.now), self.now)
        self.in_flight.add(number)
        return number

    def abort(self, number: int) -> None:
        if number in self.in_flight:
            self.engine.abort([number])
            self.in_flight.discard(number)
            self.aborts += 1
            self.neutral += 1

    def take(self, report: Report) -> None:
        self.steps += 1 if report.stepped else 0
        for ended in report.ended:
            if ended.id in self.canaries:
                number = self.canaries.pop(ended.id)
                self.canary = CanaryResult("e0", number, CanaryVerdict.SUCCESS, "ok", self.now, self.now)
            elif ended.id in self.in_flight:
                self.in_flight.discard(ended.id)
                self.success += ended.finish is Finish.LENGTH

    def run_engine_until(self, end: float) -> None:
        """Take steps; one that began before ``end`` may end after it, as real ones do."""
        while self.now < end:
            while self.due and self.due[0][0] <= self.now:
                action = heapq.heappop(self.due)[2]
                assert callable(action)
                action()
            begun = self.engine.begin_step(self.now)
            if begun is None:
                upcoming = self.due[0][0] if self.due else end
                self.now = min(end, max(upcoming, self.now + 0.001))
                continue
            step, seconds = begun
            self.longest_step = max(self.longest_step, seconds)
            self.now += seconds
            self.take(self.engine.finish_step(step, self.now))

    def look(self, at: float) -> Decision:
        steps = Reading.of(float(self.steps), at)
        if self.stale is not None:
            steps = Reading.of(float(self.stale[0]), self.stale[1])
        seen = EngineSeen(
            name="e0",
            pool="m",
            managed=True,
            process=ProcessState.READY,
            identity=ProcessIdentity(1, 1),
            ready_at=0.0,
            in_flight=Reading.of(float(len(self.in_flight)), at),
            steps_total=steps,
            signals={"consecutive_failed_batches": Reading.of(0.0, at)},
            outcomes=OutcomeCounts(self.success, 0, self.neutral, 0, self.aborts),
            paused=self.engine.stopped,
            canary=self.canary,
            gpus=(0,),
        )
        # Memory close to the edge and a hot card: both legal.
        gpu = GpuSeen(
            0,
            "g",
            "sim",
            Reading.of(0.90 + 0.045 * self.random.random(), at),
            Reading.of(78 + 6 * self.random.random(), at),
        )
        snapshot = Snapshot(at=at, wall=1.8e9 + at, engines={"e0": seen}, gpus={0: gpu}, supervisor_reachable=True)
        decision = decide(self.state, self.memory, snapshot, POLICY)
        self.state, self.memory = decision.state, decision.memory
        for effect in decision.effects:
            if isinstance(effect, StartCanary):
                number = next(self.ids)
                self.canaries[number] = effect.number
                self.engine.add(Request(number, 4, 1, arrived_at=self.now), self.now)
        self.decisions.append(decision)
        return decision

    def plan_minute(self, minute: int) -> None:
        """One kind of trouble a minute, over a base of chat traffic."""
        start = minute * 60.0
        for second in range(60):
            for _ in range(self.random.randrange(0, 3)):
                self.at(
                    start + second + self.random.random(),
                    lambda: self.send(self.random.randrange(20, 800), self.random.randrange(4, 120), "chat"),
                )
        kind = minute % 8
        if kind == 0:  # long prompts: 32k tokens
            for n in range(6):
                self.at(start + 5 + 8 * n, lambda: self.send(32_000, 16, "prefill 32k"))
        elif kind == 1:  # a long generation
            self.at(start + 2, lambda: self.send(100, 1_000, "long generation"))
        elif kind == 2:  # a burst far beyond the batch limit
            self.at(start + 10, lambda: [self.send(64, 32, "burst beyond the batch limit") for _ in range(200)])
        elif kind == 3:  # clients that give up
            for n in range(30):
                self.at(start + n, lambda: self._leaver())
        elif kind == 4:  # refusals: 4xx, 429, our own 503: neutral at the gateway
            for n in range(300):
                self.at(start + n * 0.2, lambda: self._neutral())
        elif kind == 5:  # vLLM's pause, for half a minute, with requests waiting in it
            self.at(start + 10, lambda: self._pause(PauseMode.KEEP))
            self.at(start + 40, lambda: self.engine.resume())
        elif kind == 6:  # held at the batch limit; /metrics answers in seconds, then not at all for a while
            self.at(start + 5, lambda: [self.send(200, 60, "batch limit, /metrics slow") for _ in range(150)])
            self.at(start + 6, lambda: self._freeze_metrics())
            self.at(start + 30, lambda: self._thaw_metrics())
        # kind 7: quiet but for chat; the minute after it is often idle

    def _leaver(self) -> None:
        number = self.send(500, 400, "client abort")
        self.at(self.now + 1.5, lambda: self.abort(number))

    def _neutral(self) -> None:
        self.kinds.add("4xx, 429")
        self.neutral += 1

    def _pause(self, mode: PauseMode) -> None:
        self.kinds.add("pause")
        self.take(self.engine.pause(mode, self.now))

    def _freeze_metrics(self) -> None:
        self.stale = (self.steps, self.now)

    def _thaw_metrics(self) -> None:
        self.stale = None

    def run(self) -> None:
        for minute in range(HOUR_SECONDS // 60):
            self.plan_minute(minute)
        for second in range(1, HOUR_SECONDS + 1):
            self.run_engine_until(float(second))
            self.look(max(self.now, float(second)))


@pytest.mark.parametrize("chunked", [True, False], ids=["chunked prefill", "whole prefill"])
def test_no_false_trip_in_an_hour(chunked: bool) -> None:
    hour = Hour(seed=7, chunked=chunked)
    hour.run()
    trips = [e for d in hour.decisions for e in d.journal if e.kind == "transition"]
    assert trips == []
    assert {m.message.event for d in hour.decisions for m in d.outbox} == set()
    # The hour was what it claims to be.
    assert len(hour.kinds) == 8, hour.kinds
    assert hour.success > 3_000
    assert hour.aborts > 100
    if not chunked:
        assert hour.longest_step > 0.6, "32k prefills held the engine"


def test_the_same_hour_with_a_hang_in_it_trips() -> None:
    """The soak can fail: an engine that stops for good in minute 31 is caught within five seconds."""
    hour = Hour(seed=7, chunked=True)
    for minute in range(31, 33):
        hour.plan_minute(minute)
    hour.now = 1840.0
    for second in range(1841, 1880):
        hour.run_engine_until(float(second))
        hour.look(max(hour.now, float(second)))
    assert not [e for d in hour.decisions for e in d.journal if e.kind == "transition"]
    hour.send(100, 50, "stuck")
    for second in range(1880, 1886):
        decision = hour.look(float(second))
        if decision.desired.pools[0].reject_percent == 100:
            break
    assert decision.desired.pools[0].reject_percent == 100
