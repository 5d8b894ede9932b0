"""
The reference curves G1 to G4 as the gate measures them: load on the simulated engine in virtual time, records,
summaries.

``python -m tests.gate.diagnosis.curves`` draws ``curves.svg`` beside this file anew.

What of the figures holds together, and what does not:

* G1, tokens per second x 3.2: holds. P99 + 47 % holds together with it for requests of which 2.2 decode times lie
  outside the batch (network, serialization, a prompt from the prefix cache), and only for these: with all of the time
  in the engine the same load gives x 2.5, since 8 requests share 3.2 times the speed. Both are measured here.
* G2 holds, read as 15 % of the latency at batch 8 per further request. A client cannot see it directly: it is the
  difference between the time per token with long and with short contexts. It comes out 6 % high beyond batch 16, where
  the share of scheduling (G3) has grown. Compounded, 15 % per request would be a factor of 1.9e7 at batch 128,
  against G5.
* G3 is no client's figure: the efficiency is the engine's own (as with --enable-mfu-metrics), over the same stages. The
  peak at batch 4 cannot be the best batch for throughput, too: tokens per second grow on beyond it (G1: to 8).
* G4 holds: a 32k prompt stops everybody for 0.8 s; in chunks of 256 tokens for less than 50 ms. Then the long prompt
  itself takes about 5 times as long, since each chunk reads all weights again: bounding others' wait and the 800 ms
  exclude each other.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from sre.gate.stages import Arrivals, RequestClass, StagePlan
from sre.gate.summary import StageSummary, summarize
from sre.simulator.cost import CostModel
from sre.simulator.scheduler import Limits
from tests.support.virtual_gate import VirtualStage, VirtualTarget, plan, serve

PICTURE = Path(__file__).with_name("curves.svg")
DECODE = RequestClass("decode", 1.0, 896, 256)
"""Mean context 1,024 tokens: where the cost model's share of KV reading holds."""
FIXED_OVER_DECODE = 2.2
BATCHES = (1, 2, 4, 8)
WIDE = (8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class Held:
    """The gate's figures of a stage in which ``batch`` requests were always running."""

    batch: int
    tokens_per_second: float
    efficiency: float


def constant(rate_rps: float, seconds: float, kind: RequestClass) -> StagePlan:
    return plan(rate_rps, seconds, classes=(kind,), arrivals=Arrivals.CONSTANT)


def patient(limits: Limits) -> VirtualTarget:
    """A client that waits as long as the queue of an overloaded stage takes."""
    return VirtualTarget(limits, timeout_seconds=1e9)


def measured(stage: VirtualStage) -> StageSummary:
    return summarize(stage.load)


def step_seconds(batch: int) -> float:
    return CostModel().step_seconds(batch, batch * 1024, [])


@functools.cache
def held(batch: int) -> Held:
    """Offered half as much again as it can take, with this many slots."""
    rate = batch / (DECODE.max_tokens * step_seconds(batch))
    stage = serve(constant(1.5 * rate, 120 / rate, DECODE), patient(Limits(max_num_seqs=batch)))
    tokens = measured(stage).output_tokens_per_second or 0.0
    steps = [step for step in stage.engine.steps if step.running == batch == step.tokens]
    compute = CostModel().compute_seconds(batch)
    return Held(batch, tokens, len(steps) * compute / sum(step.seconds for step in steps))


@functools.cache
def latency_p99(batch: int, fixed_over_decode: float = FIXED_OVER_DECODE) -> float:
    """P99 of requests that arrive so evenly that ``batch`` of them are in the engine, and none waits."""
    alone = DECODE.max_tokens * step_seconds(1)
    rate = 0.97 * batch / (DECODE.max_tokens * step_seconds(batch))
    target = VirtualTarget(Limits(), fixed_seconds=fixed_over_decode * alone)
    summary = measured(serve(constant(rate, 300 / rate, DECODE), target))
    found = summary.classes["all"].e2e.p99
    assert found is not None
    return found


@functools.cache
def kv_read(batch: int) -> float:
    """KV reading per token, in seconds: time per token with a long context less that with a short one."""
    times = []
    for prompt in (1536, 128):  # both computed in one step that the weights dominate: it is the same in both
        kind = RequestClass("context", 1.0, prompt, 400)
        rate = 1.5 * batch / (kind.max_tokens * step_seconds(batch))
        stage = serve(constant(rate, 60 * batch / rate / 8, kind), patient(Limits(max_num_seqs=batch)))
        found = measured(stage).classes["all"].tpot.p50
        assert found is not None
        times.append(found)
    return times[0] - times[1]


@functools.cache
def wait_for_long(chunk_tokens: int | None) -> tuple[float, float]:
    """(longest gap in a short answer, TTFT of a 32k prompt beside it), P99 and median; chunks None: whole prompt."""
    limits = Limits(chunked_prefill=False) if chunk_tokens is None else Limits(max_num_batched_tokens=chunk_tokens)
    short, long = RequestClass("short", 1.0, 32, 100), RequestClass("long", 0.1, 32_768, 1)
    stage = plan(1.0, 200, classes=(short,), extra_classes=(long,), arrivals=Arrivals.CONSTANT)
    summary = measured(serve(stage, VirtualTarget(limits, fixed_seconds=0.0), gaps=True))
    gap, ttft = summary.classes["short"].max_gap.p99, summary.classes["long"].ttft.p50
    assert gap is not None
    assert ttft is not None
    return gap, ttft


def draw(path: Path) -> None:
    """Write the picture; the same bytes for the same figures."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "sre", "svg.fonttype": "none", "font.size": 8})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.2), layout="constrained")
    throughput, latency, kv, efficiency, longs, none = figure.subplots(2, 3).flat
    none.set_axis_off()
    none.text(0, 1, (__doc__ or "").split("not:\n", 1)[1].strip().replace("* ", "\n* "), va="top", fontsize=4.6)
    throughput.plot(
        BATCHES, [held(b).tokens_per_second / held(1).tokens_per_second for b in BATCHES], "o-", label="gate"
    )
    throughput.plot([8], [3.2], "r+", markersize=14, label="G1: x 3.2")
    throughput.set(title="Tokens/s over batch 1", xlabel="batch")
    for share, label in ((FIXED_OVER_DECODE, "2.2 decode times outside"), (0.0, "all in the engine")):
        growth = [latency_p99(b, share) / latency_p99(1, share) for b in BATCHES]
        latency.plot(BATCHES, growth, "o-", label=f"gate, {label}")
    latency.plot([8], [1.47], "r+", markersize=14, label="G1: + 47 %")
    latency.set(title="P99 over batch 1", xlabel="batch")
    kv.plot(WIDE, [kv_read(b) / kv_read(8) for b in WIDE], "o-", label="gate, by context length")
    kv.plot(WIDE, [1 + 0.15 * (b - 8) for b in WIDE], "r--", label="G2: + 15 % each")
    kv.set(title="KV read over batch 8", xlabel="batch")
    more = (*BATCHES, 12, 16, 32)
    efficiency.plot(more, [held(b).efficiency for b in more], "o-", label="engine, same stages")
    efficiency.plot([4], [0.9], "r+", markersize=14, label="G3: peak, 90 %+")
    efficiency.set(title="Compute efficiency", xlabel="batch")
    bars = [wait_for_long(None)[0], wait_for_long(256)[0]]
    longs.bar(["whole prompt", "chunks of 256"], bars, label="gate: longest gap of shorts, P99")
    longs.axhline(0.8, color="r", linestyle="--", label="G4: 0.8 s")
    longs.set(title="A 32k prompt beside shorts (s)")
    for one in (throughput, latency, kv, efficiency, longs):
        one.legend(fontsize=6)
        one.grid(alpha=0.3)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(PICTURE)
