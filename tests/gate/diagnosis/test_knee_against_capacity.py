"""The knee that the gate finds in virtual time against the capacity that is computed: within 10 %."""

from __future__ import annotations

import pytest

from sre.gate.knee import Probe, conclude, next_probe
from sre.gate.plan import seed_of
from sre.gate.saturation import judge
from sre.gate.stages import RequestClass, StageKind
from sre.simulator.capacity import Bound, Kind, capacity
from sre.simulator.scheduler import Limits
from tests.support.virtual_gate import VirtualTarget, plan, serve

CHAT = (RequestClass("chat", 1.0, 256, 32),)
SHORT = (RequestClass("short", 1.0, 64, 4),)
LONG = (RequestClass("short", 0.9, 128, 16), RequestClass("long", 0.1, 4096, 16))
ANSWERS = (RequestClass("essay", 1.0, 256, 100),)

CONFIGURATIONS = [
    (Limits(max_num_seqs=64), SHORT, Bound.SLOTS),
    (Limits(max_num_seqs=256), SHORT, Bound.STEP_TOKENS),
    (Limits(max_num_seqs=32), CHAT, Bound.SLOTS),
    (Limits(max_num_seqs=64), LONG, Bound.STEP_TOKENS),
    (Limits(kv_cache_tokens=16_000), ANSWERS, Bound.KV_CACHE),
]


@pytest.mark.parametrize(
    ("limits", "mix", "bound"), CONFIGURATIONS, ids=[f"{case[2].value}-{i}" for i, case in enumerate(CONFIGURATIONS)]
)
def test_the_knee_lies_within_10_percent_of_the_capacity(
    limits: Limits, mix: tuple[RequestClass, ...], bound: Bound
) -> None:
    known = capacity(limits, [Kind(kind.prompt_tokens, kind.max_tokens, kind.share) for kind in mix])
    assert known.bound is bound
    target = VirtualTarget(limits)
    # The staircase's ratio of 1 : 5 : 10, and a capacity anywhere in it; stages as long as answers make necessary.
    scale = known.requests_per_second / 700
    seconds = max(30.0, 1500 / known.requests_per_second)

    def probe(rate: float, kind: StageKind) -> Probe:
        # A schedule of its own per rate, as the gate's: bad luck in one must not be bad luck in all.
        stage = plan(rate, seconds, classes=mix, kind=kind, seed=seed_of(7, 0, f"{rate:.6g}"))
        found = judge(serve(stage, target).load)
        return Probe(rate, found.saturated, found.sign)

    history = [probe(rate * scale, StageKind.STAIRCASE) for rate in (100.0, 500.0, 1000.0)]
    left = 5
    while (rate := next_probe(history, resolution_ratio=0.05, probes_left=left)) is not None:
        history.append(probe(rate, StageKind.KNEE))
        left -= 1
    knee = conclude(history, resolution_ratio=0.05)
    assert knee.reason == "resolved"
    assert knee.estimate_rps == pytest.approx(known.requests_per_second, rel=0.10)
