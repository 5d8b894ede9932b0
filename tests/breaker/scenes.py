"""Snapshots for tests of the breaker: one engine on a clock that moves by ticks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sre.breaker.decide import Decision, decide
from sre.breaker.effects import StartCanary
from sre.breaker.machine import EngineBreaker
from sre.breaker.memory import Memory
from sre.breaker.policy import Policy
from sre.breaker.state import GuardState
from sre.settings.guard import DEFAULT_RULES, BudgetSettings, HalfOpenSettings, HangSettings
from sre.signals.types import (
    CanaryResult,
    CanaryVerdict,
    EngineSeen,
    GatewaySeen,
    GpuSeen,
    OutcomeCounts,
    ProcessIdentity,
    ProcessState,
    Reading,
    Snapshot,
)

POLICY = Policy(
    mode="auto",
    rules=DEFAULT_RULES,
    hang=HangSettings(),
    half_open=HalfOpenSettings(jitter_ratio=0.0),
    budgets=BudgetSettings(),
    min_healthy_engines=1,
    max_evidence_age_seconds=10.0,
    retry_after_seconds=5,
    channels=("mail", "sms"),
    hold_for_contexts_seconds=2.0,
)


@dataclass
class EngineScene:
    """The true state of one engine; ``seen`` is what the guard gets of it."""

    name: str = "e0"
    pool: str = "m"
    managed: bool = True
    process: ProcessState = ProcessState.READY
    pid: int = 100
    ready_at: float | None = -100.0
    last_exit_asked: bool | None = None
    in_flight: float | None = 4.0
    steps: float | None = 0.0
    stepping: bool = True
    step_sample_age: float = 0.0
    sent: float = 0.0
    kv_usage: float | None = None
    success: int = 0
    failure: int = 0
    failed_batches: int = 0
    paused: bool = False
    answers_canaries: CanaryVerdict | None = CanaryVerdict.SUCCESS
    """None: a canary never reports."""
    gpus: tuple[int, ...] = (0,)
    canary: CanaryResult | None = None


@dataclass
class Scene:
    """A stack on a manual clock: ``tick`` lets a second pass and decides."""

    policy: Policy = POLICY
    at: float = 1000.0
    wall: float = 1_800_000_000.0
    engines: dict[str, EngineScene] = field(default_factory=lambda: {"e0": EngineScene()})
    gpu_memory: float | None = 0.6
    gpu_temperature: float | None = 60.0
    gateway_reachable: bool = True
    state: GuardState = field(default_factory=GuardState)
    memory: Memory = field(default_factory=Memory)
    decisions: list[Decision] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        gpu = GpuSeen(
            0, "GPU-0", "sim", Reading.of(self.gpu_memory, self.at), Reading.of(self.gpu_temperature, self.at)
        )
        return Snapshot(
            at=self.at,
            wall=self.wall,
            engines={n: self._seen(e) for n, e in self.engines.items()},
            gpus={0: gpu},
            gateway=GatewaySeen(self.gateway_reachable, self.at),
            supervisor_reachable=True,
        )

    def _seen(self, e: EngineScene) -> EngineSeen:
        return EngineSeen(
            name=e.name,
            pool=e.pool,
            managed=e.managed,
            process=e.process,
            identity=ProcessIdentity(e.pid, 1) if e.process is not ProcessState.STOPPED else None,
            ready_at=e.ready_at,
            last_exit_asked=e.last_exit_asked,
            in_flight=Reading.of(e.in_flight, self.at),
            steps_total=Reading.of(e.steps, self.at - e.step_sample_age),
            sent_bytes_total=Reading.of(e.sent, self.at),
            signals={
                "consecutive_failed_batches": Reading.of(float(e.failed_batches), self.at),
                "kv_cache_usage_ratio": Reading.of(e.kv_usage, self.at),
            },
            outcomes=OutcomeCounts(e.success, e.failure),
            paused=e.paused,
            canary=e.canary,
            gpus=e.gpus,
        )

    def tick(self, seconds: float = 1.0) -> Decision:
        """Let ``seconds`` pass, then decide; canaries that were asked for answer by the next tick."""
        self.at += seconds
        self.wall += seconds
        for e in self.engines.values():
            if e.stepping and e.steps is not None and (e.in_flight or 0) > 0:
                e.steps += 5
        decision = decide(self.state, self.memory, self.snapshot(), self.policy)
        self.state, self.memory = decision.state, decision.memory
        for effect in decision.effects:
            if isinstance(effect, StartCanary):
                self._answer(self.engines[effect.engine], effect.number)
        self.decisions.append(decision)
        return decision

    def _answer(self, e: EngineScene, number: int) -> None:
        if e.answers_canaries is None:
            return
        e.canary = CanaryResult(e.name, number, e.answers_canaries, "test", self.at, self.at + 0.1)
        if e.answers_canaries is CanaryVerdict.SUCCESS and e.steps is not None:
            e.steps += 1

    def ticks(self, count: int) -> list[Decision]:
        return [self.tick() for _ in range(count)]

    def tick_until(self, predicate: object, most: int = 400) -> Decision:
        """Tick until ``predicate(decision)`` holds."""
        assert callable(predicate)
        for _ in range(most):
            decision = self.tick()
            if predicate(decision):
                return decision
        raise AssertionError(f"not within {most} ticks; breakers: {self.state.breakers}")

    def breaker(self, name: str = "e0") -> EngineBreaker:
        return self.state.breakers[name]


def hang(scene: Scene, name: str = "e0") -> None:
    """The engine takes no step any more and answers no canary."""
    engine = scene.engines[name]
    engine.stepping = False
    engine.answers_canaries = CanaryVerdict.FAILURE


def policy(base: Policy = POLICY, **half_open: object) -> Policy:
    """``base`` with other half-open settings."""
    merged = {**base.half_open.model_dump(), **half_open}
    return replace(base, half_open=HalfOpenSettings.model_validate(merged))


def reject(decision: Decision, pool: str = "m") -> int:
    """Share of new requests that the gateway should refuse, percent."""
    return next(p.reject_percent for p in decision.desired.pools if p.pool == pool)


def transitions(decisions: list[Decision], engine: str = "e0") -> list[str]:
    """Named transitions of ``engine``, in order."""
    return [e.reason for d in decisions for e in d.journal if e.kind == "transition" and e.target == engine]


def weights(decision: Decision) -> Mapping[str, tuple[int, bool]]:
    return {e.engine: (e.weight_percent, e.draining) for e in decision.desired.engines}
