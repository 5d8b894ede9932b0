"""Random histories of two engines: what must hold in every one of them."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sre.breaker.effects import RestartEngine, StartCanary
from sre.breaker.machine import BreakerState, EngineBreaker
from sre.breaker.manual import Command, obey
from sre.breaker.memory import Memory
from sre.breaker.state import decode, encode
from sre.signals.codec import from_json, to_json
from sre.signals.types import CanaryResult, CanaryVerdict, ProcessState
from tests.breaker.scenes import POLICY, EngineScene, Scene, reject, weights

ENGINES = st.sampled_from(["e0", "e1"])

LEGAL = {
    ("closed", "open"),
    ("open", "half_open"),
    ("open", "open"),  # the same opening shows another face, or is latched
    ("half_open", "half_open"),
    ("half_open", "open"),
    ("half_open", "closed"),
    # By a person, or when a person's override ends:
    ("closed", "forced_open"), ("closed", "disabled"), ("open", "forced_open"), ("open", "disabled"),
    ("half_open", "forced_open"), ("half_open", "disabled"), ("forced_open", "forced_open"),
    ("forced_open", "disabled"), ("disabled", "forced_open"), ("disabled", "disabled"),
    ("forced_open", "open"), ("disabled", "closed"), ("forced_open", "half_open"), ("disabled", "half_open"),
    ("disabled", "open"), ("closed", "closed"),
}  # fmt: skip


class BreakerHistories(RuleBasedStateMachine):
    """Two engines of one pool, e0 on GPU 0."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(engines={"e0": EngineScene(), "e1": EngineScene(name="e1", pid=7000, gpus=())})
        self.before: dict[str, EngineBreaker] = {}
        self.opened_at: dict[str, float] = {}
        self.by_hand: set[str] = set()
        self.next_pid = 8000
        self.opens: dict[str, int] = {}
        self.resolves: dict[str, int] = {}

    @initialize()
    def start(self) -> None:
        self.observe()

    def observe(self) -> None:
        self.before = dict(self.scene.state.breakers)
        decision = self.scene.tick()
        self.check(decision)

    def check(self, decision: object) -> None:
        from sre.breaker.decide import Decision

        assert isinstance(decision, Decision)
        for entry in decision.journal:
            if entry.kind == "transition":
                assert (entry.data["from"], entry.data["to"]) in LEGAL, entry
        for name, after in decision.state.breakers.items():
            was = self.before.get(name)
            if was is None:
                continue
            assert after.generation >= was.generation
            if was.state is BreakerState.OPEN and after.state is not BreakerState.OPEN and name not in self.by_hand:
                assert self.scene.at >= was.open_until, "open lasts at least the wait"
                assert not was.latched, "a latch is a person's to end"
            if was.override is not None and name not in self.by_hand:
                until = was.override.until
                assert after.override == was.override or (until is not None and self.scene.at >= until)
        for effect in decision.effects:
            if isinstance(effect, RestartEngine):
                assert effect.expected.pid == self.scene.engines[effect.engine].pid, "only the process that was judged"
        for message in decision.outbox:
            if message.channel == "mail" and message.message.event == "open":
                self.opens[message.message.incident_id] = self.opens.get(message.message.incident_id, 0) + 1
            if message.channel == "mail" and message.message.event == "resolve":
                self.resolves[message.message.incident_id] = self.resolves.get(message.message.incident_id, 0) + 1
        self.by_hand.clear()

    @rule(count=st.integers(1, 15))
    def time_passes(self, count: int) -> None:
        for _ in range(count):
            self.observe()

    @rule(engine=ENGINES)
    def hangs(self, engine: str) -> None:
        self.scene.engines[engine].stepping = False
        self.scene.engines[engine].answers_canaries = CanaryVerdict.FAILURE

    @rule(engine=ENGINES)
    def goes_on(self, engine: str) -> None:
        self.scene.engines[engine].stepping = True
        self.scene.engines[engine].answers_canaries = CanaryVerdict.SUCCESS

    @rule(engine=ENGINES, load=st.sampled_from([0.0, 1.0, 50.0, None]))
    def load_changes(self, engine: str, load: float | None) -> None:
        self.scene.engines[engine].in_flight = load

    @rule(engine=ENGINES, verdict=st.sampled_from([None, *CanaryVerdict]))
    def canaries_answer(self, engine: str, verdict: CanaryVerdict | None) -> None:
        self.scene.engines[engine].answers_canaries = verdict

    @rule(engine=ENGINES, number=st.integers(-5, 50), verdict=st.sampled_from(list(CanaryVerdict)))
    def a_late_canary_reports(self, engine: str, number: int, verdict: CanaryVerdict) -> None:
        at = self.scene.at
        self.scene.engines[engine].canary = CanaryResult(engine, number, verdict, "late", at - 60, at)

    @rule(engine=ENGINES, good=st.integers(0, 40), bad=st.integers(0, 40), batches=st.integers(0, 5))
    def requests_end(self, engine: str, good: int, bad: int, batches: int) -> None:
        scene = self.scene.engines[engine]
        scene.success += good
        scene.failure += bad
        scene.failed_batches = 0 if good else min(batches, bad)

    @rule(celsius=st.sampled_from([30.0, 84.0, 86.0, 120.0, None]), memory=st.sampled_from([0.1, 0.94, 0.99, None]))
    def gpu_changes(self, celsius: float | None, memory: float | None) -> None:
        self.scene.gpu_temperature, self.scene.gpu_memory = celsius, memory

    @rule(engine=ENGINES)
    def dies(self, engine: str) -> None:
        self.scene.engines[engine].process = ProcessState.CRASHED

    @rule(engine=ENGINES, state=st.sampled_from(list(ProcessState)))
    def process_changes(self, engine: str, state: ProcessState) -> None:
        self.scene.engines[engine].process = state

    @rule(engine=ENGINES, asked=st.sampled_from([None, True, False]))
    def comes_back(self, engine: str, asked: bool | None) -> None:
        scene = self.scene.engines[engine]
        self.next_pid += 1
        scene.process, scene.pid, scene.ready_at = ProcessState.READY, self.next_pid, self.scene.at
        scene.last_exit_asked = asked

    @rule()
    def guard_restarts(self) -> None:
        """State is read back from its JSON; memory is gone."""
        data = json.loads(json.dumps(encode(self.scene.state, boot_id="b", at=self.scene.at, wall=self.scene.wall)))
        assert decode(data, boot_id="b", at=self.scene.at + 1, wall=self.scene.wall + 1) == self.scene.state
        self.scene.memory = Memory()

    @rule(shift=st.floats(-1e6, 1e6))
    def wall_clock_jumps(self, shift: float) -> None:
        self.scene.wall = max(1.0, self.scene.wall + shift)

    @rule(
        engine=ENGINES,
        verb=st.sampled_from(["trip", "reset", "force-open", "disable", "auto"]),
        expires=st.sampled_from([None, 5.0, 60.0]),
    )
    def a_person_orders(self, engine: str, verb: str, expires: float | None) -> None:
        scene = self.scene
        if verb == "trip" and scene.state.breakers[engine].effective is BreakerState.DISABLED:
            return
        self.before = dict(scene.state.breakers)
        command = Command(verb, engine, "ann", "drill", expires)
        decision = obey(scene.state, scene.memory, scene.snapshot(), scene.policy, command)
        scene.state, scene.memory = decision.state, decision.memory
        scene.decisions.append(decision)
        self.by_hand.add(engine)
        self.check(decision)
        if verb == "trip":
            assert scene.state.breakers[engine].effective in (BreakerState.OPEN, BreakerState.FORCED_OPEN)

    # ---- invariants -------------------------------------------------------------------------------------------------

    @invariant()
    def a_pool_that_admits_has_an_engine_that_takes(self) -> None:
        if self.scene.decisions and reject(self.scene.decisions[-1]) < 100:
            assert any(not draining for _, draining in weights(self.scene.decisions[-1]).values())

    @invariant()
    def a_refusal_has_a_reason(self) -> None:
        if self.scene.decisions:
            pool = self.scene.decisions[-1].desired.pools[0]
            assert (pool.reject_percent > 0) == (pool.reason is not None)

    @invariant()
    def at_most_one_canary_per_engine_is_under_way(self) -> None:
        if self.scene.decisions:
            asked = [e.engine for e in self.scene.decisions[-1].effects if isinstance(e, StartCanary)]
            assert len(asked) == len(set(asked))

    @invariant()
    def each_incident_pages_once_and_resolves_once(self) -> None:
        assert all(n == 1 for n in self.opens.values())
        assert all(n == 1 for n in self.resolves.values())
        assert set(self.resolves) <= set(self.opens)

    @invariant()
    def an_open_incident_belongs_to_an_engine_that_is_not_closed(self) -> None:
        for name in self.scene.state.incidents:
            breaker = self.scene.state.breakers[name]
            assert breaker.state is not BreakerState.CLOSED or breaker.override is not None

    @invariant()
    def restarts_stay_within_the_budget(self) -> None:
        for name in self.scene.engines:
            recent = [t for e, t in self.scene.state.restarts if e == name and self.scene.at - t < 3600]
            assert len(recent) <= POLICY.budgets.restarts_per_engine_per_hour

    @invariant()
    def snapshots_survive_their_json(self) -> None:
        snapshot = self.scene.snapshot()
        assert from_json(json.loads(json.dumps(to_json(snapshot)))) == snapshot

    # ---- liveness ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.scene.decisions) > 3)
    @rule()
    def with_all_well_closed_is_reached_from_anywhere(self) -> None:
        """A latch and an endless override are a person's to end, so a person ends them first."""
        scene = self.scene
        scene.gpu_temperature, scene.gpu_memory = 50.0, 0.5
        for engine in scene.engines.values():
            if engine.process is not ProcessState.READY:
                self.next_pid += 1
                engine.pid = self.next_pid
            engine.process, engine.stepping, engine.in_flight = ProcessState.READY, True, 1.0
            engine.answers_canaries, engine.failed_batches, engine.paused = CanaryVerdict.SUCCESS, 0, False
        for name, breaker in list(scene.state.breakers.items()):
            endless = breaker.override is not None and breaker.override.until is None
            if breaker.latched or endless:
                self.before = dict(scene.state.breakers)
                decision = obey(scene.state, scene.memory, scene.snapshot(), POLICY, Command("reset", name, "ann", "x"))
                scene.state, scene.memory = decision.state, decision.memory
                self.by_hand.add(name)
                self.check(decision)
        worst = POLICY.half_open.max_open_seconds * 1.2 + 200
        for _ in range(int(worst)):
            self.observe()
            if all(b.state is BreakerState.CLOSED and not b.override for b in scene.state.breakers.values()):
                break
        assert all(b.state is BreakerState.CLOSED for b in scene.state.breakers.values()), scene.state.breakers
        assert reject(scene.decisions[-1]) == 0
        assert not scene.state.incidents


TestBreakerHistories = BreakerHistories.TestCase
TestBreakerHistories.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # Shrinking replays thousands of ticks per try: minutes for a shorter history of the same failure.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
