"""The computed capacity against what the engine does when it is flooded, in virtual time."""

from __future__ import annotations

import random

import pytest

from sre.simulator.capacity import Bound, Kind, capacity
from sre.simulator.scheduler import Limits
from sre.simulator.virtual_load import Arrival, drive

SHORT = (Kind(64, 4),)
CHAT = (Kind(256, 32),)
VARIED = (Kind(64, 8, 0.7), Kind(256, 24, 0.3))
UNEVEN = (Kind(128, 9, 0.45), Kind(128, 24, 0.45), Kind(4096, 16, 0.1))
LONG_TAIL = (Kind(128, 16, 0.9), Kind(4096, 16, 0.1))

CASES = [
    (Limits(max_num_seqs=32), SHORT, Bound.SLOTS, 0.03),
    (Limits(max_num_seqs=64), SHORT, Bound.SLOTS, 0.03),
    (Limits(max_num_seqs=256), SHORT, Bound.STEP_TOKENS, 0.03),
    (Limits(max_num_seqs=64), CHAT, Bound.SLOTS, 0.03),
    (Limits(max_num_seqs=256), CHAT, Bound.STEP_TOKENS, 0.03),
    (Limits(max_num_seqs=16), (Kind(512, 64),), Bound.SLOTS, 0.03),
    (Limits(max_num_seqs=32), VARIED, Bound.SLOTS, 0.03),
    (Limits(max_num_seqs=128), (Kind(64, 1, 0.5), Kind(256, 10, 0.5)), Bound.STEP_TOKENS, 0.03),
    (Limits(max_num_batched_tokens=256, max_num_seqs=64), (Kind(512, 32),), Bound.STEP_TOKENS, 0.03),
    (Limits(max_num_batched_tokens=512, max_num_seqs=64), (Kind(2000, 16),), Bound.STEP_TOKENS, 0.03),
    (Limits(kv_cache_tokens=16_000), (Kind(512, 64),), Bound.KV_CACHE, 0.04),
    (Limits(kv_cache_tokens=16_000), (Kind(256, 200),), Bound.KV_CACHE, 0.04),
    # Slots and tokens near each other
    (Limits(max_num_seqs=64), LONG_TAIL, Bound.STEP_TOKENS, 0.05),
    # A small batch: the phase of the answers, and fewer entries per step than a Poisson count can have
    (Limits(max_num_seqs=8), SHORT, Bound.SLOTS, 0.07),
    (Limits(max_num_seqs=8), VARIED, Bound.SLOTS, 0.07),
    # Whole prompts in one step
    (Limits(max_num_seqs=32, chunked_prefill=False), VARIED, Bound.SLOTS, 0.03),
    (Limits(max_num_seqs=64, chunked_prefill=False), UNEVEN, Bound.SLOTS, 0.05),
]


def flooded(limits: Limits, mix: tuple[Kind, ...], rate: float, seconds: float) -> float:
    """Requests that end per second when ``rate`` arrive, the first third left out."""
    chance = random.Random(2)
    at, arrivals = 0.0, []
    while at < seconds:
        at += chance.expovariate(rate)
        kind = chance.choices(mix, [kind.share for kind in mix])[0]
        arrivals.append(Arrival(at, kind.prompt_tokens, kind.output_tokens))
    run = drive(limits, arrivals, seed=2, until=seconds)
    return sum(seconds / 3 <= one.last_token_at < seconds for one in run.served) / (seconds * 2 / 3)


@pytest.mark.parametrize(
    ("limits", "mix", "bound", "tolerance"),
    CASES,
    ids=[f"{case[2].value}-{number}" for number, case in enumerate(CASES)],
)
def test_the_engine_serves_what_was_computed(
    limits: Limits, mix: tuple[Kind, ...], bound: Bound, tolerance: float
) -> None:
    found = capacity(limits, mix)
    assert found.bound is bound
    # Enough of the rare kind, whose count varies most
    seconds = max(10.0, 1500 / found.requests_per_second / min(1.0, 5 * min(kind.share for kind in mix)))
    served = flooded(limits, mix, 1.2 * found.requests_per_second, seconds)
    assert served == pytest.approx(found.requests_per_second, rel=tolerance)


def test_below_it_the_queue_stays_and_above_it_grows() -> None:
    limits = Limits(max_num_seqs=32)
    rate = capacity(limits, VARIED).requests_per_second
    chance = random.Random(5)
    growth = []
    for factor in (0.9, 1.1):
        at, arrivals = 0.0, []
        while at < 60:
            at += chance.expovariate(rate * factor)
            kind = chance.choices(VARIED, [kind.share for kind in VARIED])[0]
            arrivals.append(Arrival(at, kind.prompt_tokens, kind.output_tokens))
        run = drive(limits, arrivals, seed=1, until=60)
        growth.append(run.occupancy(50, 60).waiting_mean - run.occupancy(10, 20).waiting_mean)
    assert growth[0] < 50 < 150 < growth[1]


def test_more_of_the_binding_limit_gives_more_and_more_of_another_gives_nothing() -> None:
    few = capacity(Limits(max_num_seqs=16), CHAT)
    assert capacity(Limits(max_num_seqs=32), CHAT).requests_per_second > 1.2 * few.requests_per_second
    more_cache = capacity(Limits(max_num_seqs=16, kv_cache_tokens=800_000), CHAT)
    assert more_cache.requests_per_second == pytest.approx(few.requests_per_second)
    assert few.batch == pytest.approx(16, rel=0.02)
