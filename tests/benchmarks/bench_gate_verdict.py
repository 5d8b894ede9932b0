"""
How often the deploy gate is wrong: equal builds that fail (A/A), slower builds that do not.

Targets, with the default policy (5 against 5 runs, three cells, 5 %): A/A at most 5 % FAIL of 200 gates, +20 % P99 at
least 85 % FAIL, and no PASS at all where the client was the limit. On the simulated engine in virtual time: a step of
100 qps, 20 s (2,000 requests) per run; both sides drawn anew for each gate. Takes some 15 minutes on two cores.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sre.gate.judge import judge
from sre.gate.result import RunResult
from sre.gate.verdict import Reason, Verdict
from tests.gate.verdict.simulated import DEFAULTS, FIT_CLIENT, Model, Tally, many_gates, p99_ratio, virtual_run
from tests.support.virtual_gate import VirtualTarget

GATES = int(os.environ.get("SRE_BENCH_GATES", "200"))
RUNS = 5
RATE_RPS, SECONDS = 100.0, 20.0
RUN_VARIATION = 0.05
"""Of a run's engine; the percentile's own error comes on top."""

SAME = VirtualTarget(run_variation_ratio=RUN_VARIATION)
SLOWER = replace(SAME, slowness=1.2)
TAIL = replace(SAME, slow_share=0.04, slow_factor=1.41)
"""Of four in a hundred requests only: medians and means do not see it."""
LATE_CLIENT = replace(SAME, client_lag_seconds=0.02)

SCENARIOS = {"A/A": SAME, "+20 %": SLOWER, "tail +20 %": TAIL, "client late": LATE_CLIENT}


def side(target: VirtualTarget, gate: int, name: str) -> Sequence[RunResult]:
    """Five runs. Run k has the same schedule on every side, as in the gate; noise of its own."""
    return [
        virtual_run(target, 1000 * gate + run, rate_rps=RATE_RPS, seconds=SECONDS, number=run, side=name)
        for run in range(RUNS)
    ]


def one_gate(gate: int) -> dict[str, object]:
    """Scenario → verdict, reasons, ratio of the P99s."""
    baseline = side(SAME, gate, "baseline")
    found: dict[str, object] = {}
    for name, target in SCENARIOS.items():
        candidate = side(target, gate, name)
        seen = judge(candidate, baseline, DEFAULTS, calibration=FIT_CLIENT)
        found[name] = (seen.verdict.value, [reason.value for reason in seen.reasons], p99_ratio(candidate, baseline))
    return found


@pytest.mark.benchmark
@pytest.mark.timeout(7200)
def test_verdicts_on_the_simulated_engine() -> None:
    began = time.perf_counter()
    workers = os.cpu_count() or 1
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.bench_gate_verdict", str(first), str(GATES), str(workers)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(workers)
    ]
    try:
        gates = [json.loads(line) for worker in started for line in worker.communicate()[0].splitlines()]
    finally:
        for worker in started:
            worker.kill()
            worker.wait()
    assert len(gates) == GATES
    print(
        f"\n{GATES} gates, {RUNS} against {RUNS} runs of {RATE_RPS * SECONDS:.0f} requests, runs vary by "
        f"{RUN_VARIATION:.0%}, {time.perf_counter() - began:.0f} s"
    )
    shares = {}
    for name in SCENARIOS:
        seen = Tally(
            Counter(Verdict(gate[name][0]) for gate in gates),
            Counter(Reason(reason) for gate in gates for reason in gate[name][1]),
        )
        ratio = sum(gate[name][2] for gate in gates) / GATES
        print(f"  {name:12} TTFT P99 x {ratio:.2f}: {seen}")
        shares[name] = seen
    assert shares["A/A"].failed_share <= 0.05
    assert shares["+20 %"].failed_share >= 0.85
    assert shares["client late"].verdicts[Verdict.PASS] == 0
    assert shares["client late"].verdicts[Verdict.FAIL] == 0


@pytest.mark.benchmark
@pytest.mark.timeout(3600)
def test_verdicts_on_lognormal_latencies() -> None:
    """Sigma 0.5, as many gates, over noise, requests and runs: what to configure for which machine."""
    print(f"\n{GATES} gates each, lognormal latencies; FAIL at +0 / +10 / +20 %, PASS at +0 / +20 %")
    print("  runs  requests  runs vary   FAIL +0  +10  +20   PASS +0  +20 %")
    for runs in (5, 7, 10):
        for requests in (500, 2000, 5000):
            for variation in (0.03, 0.05, 0.08):
                same = Model(run_variation=variation, requests=requests)
                seen = [
                    many_gates(GATES, same, replace(same, slowness=slowness), runs=runs) for slowness in (1, 1.1, 1.2)
                ]
                fails = " ".join(f"{one.failed_share:5.0%}" for one in seen)
                passes = " ".join(f"{one.verdicts[Verdict.PASS] / GATES:5.0%}" for one in (seen[0], seen[2]))
                print(f"  {runs:4}  {requests:8}  {variation:9.0%}   {fails}   {passes}")


@pytest.mark.benchmark
@pytest.mark.timeout(3600)
def test_a_day_of_its_own_looks_like_a_regression() -> None:
    """Why a baseline is spread over days, or both sides are interleaved."""
    print(f"\n{GATES} A/A gates each, 2,000 requests, runs vary by 3 %")
    for day in (0.0, 0.03, 0.05):
        model = Model(side_variation=day)
        print(f"  days vary by {day:.0%}, each side of one day:      {many_gates(GATES, model, model)}")
        if day:
            spread = Model(run_variation=math.hypot(0.03, day))
            print(f"  days vary by {day:.0%}, baseline of five days:     {many_gates(GATES, spread, model)}")


if __name__ == "__main__":
    first, gates, step = map(int, sys.argv[1:])
    for number in range(first, gates, step):
        print(json.dumps(one_gate(number)), flush=True)
