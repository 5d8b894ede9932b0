"""Continuous batching: order, budget, chunks, prefix cache, preemption; time passed in."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sre.simulator.cost import CostModel
from sre.simulator.kv_cache import BLOCK_TOKENS, KvCache, blocks_for
from sre.simulator.scheduler import Finish, Limits, Progress, Request, Scheduler, Step


def scheduler(**limits: int | bool) -> Scheduler:
    return Scheduler(Limits(**limits), CostModel())  # type: ignore[arg-type]


def run(engine: Scheduler) -> list[Progress]:
    """All progress until nothing is left."""
    progress: list[Progress] = []
    while (step := engine.begin_step(0.0)) is not None:
        progress += engine.finish_step(step)
    return progress


def step_once(engine: Scheduler, now: float = 0.0) -> tuple[Step, list[Progress]]:
    step = engine.begin_step(now)
    assert step is not None
    return step, engine.finish_step(step)


def test_a_prompt_gives_its_first_token_in_the_step_that_computes_its_end() -> None:
    engine = scheduler(max_num_batched_tokens=100)
    engine.add(Request(1, 250, 2))
    assert [step_once(engine)[1] for _ in range(2)] == [[], []]
    _, (first,) = step_once(engine)
    assert (first.first, first.finished) == (True, None)
    _, (last,) = step_once(engine)
    assert (last.first, last.finished) == (False, Finish.LENGTH)
    assert engine.begin_step(0.0) is None


def test_running_requests_come_before_the_queue_and_the_budget_is_shared() -> None:
    engine = scheduler(max_num_batched_tokens=64)
    engine.add(Request(1, 8, 50))
    step_once(engine)
    engine.add(Request(2, 200, 5))
    step, _ = step_once(engine)
    assert [(request.id, tokens) for request, tokens in step.scheduled] == [(1, 1), (2, 63)]


def test_no_more_than_max_num_seqs_run() -> None:
    engine = scheduler(max_num_seqs=2)
    for key in range(5):
        engine.add(Request(key, 8, 3, arrived_at=key))
    step_once(engine)
    assert (len(engine.running), engine.waiting) == (2, 3)


def test_first_come_first_served_ignores_priorities() -> None:
    engine = scheduler(max_num_seqs=1)
    engine.add(Request(1, 8, 1, priority=5, arrived_at=1))
    engine.add(Request(2, 8, 1, priority=-5, arrived_at=2))
    assert [progress.request.id for progress in run(engine)] == [1, 2]


def test_priority_policy_takes_the_lowest_number_first() -> None:
    engine = scheduler(max_num_seqs=1, by_priority=True)
    for key, priority in ((1, 5), (2, 0), (3, -1)):
        engine.add(Request(key, 8, 1, priority=priority, arrived_at=key))
    assert [progress.request.id for progress in run(engine)] == [3, 2, 1]


def test_a_prompt_seen_before_is_computed_only_at_its_end() -> None:
    engine = scheduler()
    hashes = (11, 12, 13, 14)
    engine.add(Request(1, 64, 1, hashes=hashes))
    run(engine)
    again = Request(2, 64, 1, hashes=hashes)
    engine.add(again)
    step, _ = step_once(engine)
    assert step.scheduled == [(again, 16)]  # at least one token is computed: the last block is
    assert (again.cached, engine.prefix_queries, engine.prefix_hits) == (48, 128, 48)


def test_another_beginning_finds_nothing() -> None:
    engine = scheduler()
    engine.add(Request(1, 64, 1, hashes=(11, 12, 13, 14)))
    run(engine)
    other = Request(2, 64, 1, hashes=(21, 12, 13, 14))
    engine.add(other)
    run(engine)
    assert other.cached == 0


def test_without_prefix_caching_nothing_is_found() -> None:
    engine = scheduler(prefix_caching=False)
    for key in (1, 2):
        engine.add(Request(key, 64, 1, hashes=(11, 12, 13, 14)))
        run(engine)
    assert engine.prefix_hits == 0


def test_a_full_cache_preempts_the_latest_and_it_still_finishes() -> None:
    engine = scheduler(kv_cache_tokens=160)
    first, second = Request(1, 60, 60, arrived_at=1), Request(2, 60, 60, arrived_at=2)
    engine.add(first)
    engine.add(second)
    done = [progress.request.id for progress in run(engine) if progress.finished]
    assert done == [1, 2]
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert (first.generated, second.generated) == (60, 60)
    assert engine.cache.usage_ratio == 0


def test_an_aborted_request_frees_its_blocks_in_the_middle_of_a_step() -> None:
    engine = scheduler()
    request = Request(1, 64, 10)
    engine.add(request)
    step = engine.begin_step(0.0)
    assert step is not None
    assert engine.abort(request)
    assert engine.finish_step(step) == []
    assert engine.cache.usage_ratio == 0
    assert not engine.abort(request)


def test_aborted_requests_in_a_blocked_queue_are_forgotten() -> None:
    engine = scheduler(max_num_seqs=1)
    engine.add(Request(0, 8, 10**6))
    step_once(engine)
    for key in range(1, 2000):
        request = Request(key, 8, 1, arrived_at=key)
        engine.add(request)
        engine.abort(request)
    assert engine.waiting == 0
    assert len(engine._queue) < 100  # memory is bounded while nothing is scheduled


@given(
    st.lists(st.tuples(st.integers(1, 120), st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.sampled_from([16, 64, 2048]),
    st.booleans(),
)
@settings(max_examples=80)
def test_every_request_gets_exactly_its_tokens(
    asked: list[tuple[int, int, int]], seqs: int, budget: int, by_priority: bool
) -> None:
    engine = scheduler(max_num_seqs=seqs, max_num_batched_tokens=budget, kv_cache_tokens=192, by_priority=by_priority)
    for key, (prompt, output, family) in enumerate(asked):
        hashes = tuple(family * 1000 + at for at in range(prompt // BLOCK_TOKENS))
        engine.add(Request(key, prompt, output, hashes=hashes, priority=family, arrived_at=key))
    tokens = Counter(progress.request.id for progress in run(engine))
    assert tokens == {key: output for key, (_, output, _) in enumerate(asked)}
    assert engine.cache.usage_ratio == 0
    assert engine.idle


class KvCacheMachine(RuleBasedStateMachine):
    """The cache against the holdings of its users."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KvCache(20 * BLOCK_TOKENS)
        self.held: list[tuple[list[int], int]] = []

    @rule(family=st.integers(0, 2), blocks=st.integers(1, 8), extra=st.integers(0, 3))
    def use(self, family: int, blocks: int, extra: int) -> None:
        hashes = [family * 100 + at for at in range(blocks)]
        found = self.cache.cached_blocks(hashes)
        if not self.cache.take(hashes[:found], blocks - found + extra):
            return
        shared = hashes[:found]
        for value in hashes[found:]:
            if not self.cache.share(value):
                break
            shared.append(value)
        self.held.append((shared, blocks - len(shared) + extra))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 50))
    def release(self, which: int) -> None:
        shared, private = self.held.pop(which % len(self.held))
        self.cache.release(shared, private)

    @rule()
    def forget(self) -> None:
        self.cache.forget()

    @invariant()
    def blocks_in_use_are_those_that_are_held(self) -> None:
        distinct = {value for shared, _ in self.held for value in shared}
        used = len(distinct) + sum(private for _, private in self.held)
        assert round(self.cache.usage_ratio * self.cache.total) == used

    @invariant()
    def idle_blocks_fit_beside_those_in_use(self) -> None:
        assert round(self.cache.usage_ratio * self.cache.total) + self.cache.idle <= self.cache.total


TestKvCache = KvCacheMachine.TestCase
TestKvCache.settings = settings(max_examples=60, stateful_step_count=30)


def test_blocks_for_rounds_up() -> None:
    assert [blocks_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
