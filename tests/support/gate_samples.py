"""One gate result with everything in it that reports must show: for golden files, the codec and a look at the page."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence

from sre.gate.bottleneck import Attribution, Demand, Limit
from sre.gate.fingerprint import Fingerprint
from sre.gate.knee import Knee, Probe
from sre.gate.latency_budget import BudgetPart, BudgetStage, BudgetTable
from sre.gate.long_tail import Arm, LongTail
from sre.gate.records import Cause, Outcome, RequestRecord
from sre.gate.result import GateResult, RunResult, Smoke, StageResult
from sre.gate.self_checks import Check
from sre.gate.stages import (
    Calibration,
    ClientCost,
    InFlightSample,
    RequestClass,
    Resource,
    ResourceUse,
    StageKind,
    StageLoad,
    StagePlan,
    StageSignals,
)
from sre.gate.summary import ClassSummary, Distribution, StageSummary
from sre.gate.verdict import Cell, CellVerdict, GateVerdict, Reason, Verdict

HOSTILE = "qwen|`x`<script>alert(1)</script>&\"'\n::error::]]>%0A\x1b[31m"
"""A model's name as nobody should choose it."""

SHORT = RequestClass("short", 1.0, 256, 32, headers=(("x-priority", "high"),))


def rank(ordered: Sequence[float], share: float) -> float | None:
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def distribution(values: Sequence[float]) -> Distribution:
    values = sorted(values)
    good = [value for value in values if math.isfinite(value)]
    return Distribution(
        count=len(values), infinite=len(values) - len(good), p50=rank(values, 0.5), p90=rank(values, 0.9),
        p95=rank(values, 0.95), p99=rank(values, 0.99), p999=rank(values, 0.999), successes_p99=rank(good, 0.99),
        p99_lower=rank(values, 0.98) if len(values) >= 299 else None,
        p99_upper=rank(values, 0.997) if len(values) >= 299 else None,
    )  # fmt: skip


def stage(
    rate: float, run: int, *, seconds: float = 6, capacity: float = 700, kind: StageKind = StageKind.STAIRCASE,
    side: str = "candidate", arm: str = "",
) -> StageResult:  # fmt: skip
    """What an M/M/1-like server of ``capacity`` would show at ``rate``; every number from a seed."""
    draw = random.Random(int(rate) * 100 + run)
    saturated = rate > capacity
    planned = int(rate * seconds)
    slow = 1 / max(1 - rate / capacity, 0.05)
    ttft = [0.02 * slow * draw.lognormvariate(0, 0.4) + (draw.random() * 8 if saturated else 0) for _ in range(planned)]
    if saturated:
        for index in range(0, planned, 40):
            ttft[index] = math.inf
    failed = sum(math.isinf(value) for value in ttft)
    e2e = [value + 0.3 for value in ttft]
    tpot = [value if math.isinf(value) else 0.009 + 0.001 * draw.random() for value in ttft]
    gap = distribution([0.02 for _ in ttft])
    each = [
        ClassSummary(
            request_class=name, planned=planned, ok=planned - failed, failed=failed,
            causes={"ok": planned - failed} | ({"timeout": failed} if failed else {}),
            ttft=distribution(ttft), e2e=distribution(e2e), tpot=distribution(tpot), max_gap=gap,
            prompt_tokens=planned * 256, output_tokens=(planned - failed) * 32, cached_tokens=None,
            events_per_token=0.75 if saturated else 1.0,
        )
        for name in ("short", "all")
    ]  # fmt: skip
    level = rate * 0.32
    growth = max(rate - capacity, 0)
    curve = tuple((t / 4, int(level + growth * t / 4 + draw.gauss(0, level**0.5))) for t in range(int(seconds * 4)))
    thin = tuple(sorted(ttft)[:: max(1, planned // 150)])
    done = min(rate, capacity) * (1 + draw.gauss(0, 0.002))
    summary = StageSummary(
        planned=planned, sent=planned, ok=planned - failed, failed=failed, cancelled=0, shed=0, offered_rps=rate,
        completed_rps=done, output_tokens_per_second=done * 32,
        classes={entry.request_class: entry for entry in each}, in_flight=curve, in_flight_mean=level,
        in_flight_max=max(count for _, count in curve), in_flight_slope_per_second=growth, in_flight_slope_error=0.4,
        saturated=saturated, sign="in-flight grows by 300 a second" if saturated else "in-flight level",
        lag_p50_seconds=0.0002, lag_p99_seconds=0.0021, lag_max_seconds=0.0093, client_cpu_seconds_per_1000=0.31,
        duration_seconds=seconds, drain_seconds=1.25, ttft_sample_seconds={"short": thin},
        e2e_sample_seconds={"short": tuple(value + 0.3 for value in thin)},
    )  # fmt: skip
    plan = StagePlan(f"{rate:g}qps", kind, rate, seconds, (SHORT,), 1, run=run, side=side, arm=arm)
    signals = StageSignals(
        seconds=seconds + 1,
        uses=(
            ResourceUse(Resource.ENGINE_BUSY, min(rate / capacity, 0.99), False, "vllm:iteration_tokens_total"),
            ResourceUse(Resource.NETWORK, rate / 90_000, False, "lo bytes", rate * 8e3, "bit/s", 1e9),
        ),
        unseen={"compute": "the engine exports no estimate of FLOPs; start it with --enable-mfu-metrics"},
        engine={"queue_seconds_mean": 0.004 * slow, "prefill_seconds_mean": 0.011, "decode_seconds_mean": 0.28},
    )
    checks = (
        Check("littles_law", True, "mean in flight 32.0, rate x mean latency 32.4: 1 % apart"),
        Check("clock", None, "no stamp of the server"),
    )
    return StageResult(plan, summary, signals, checks, aborted="hopeless" if saturated else "")


def skipped(rate: float, run: int) -> StageResult:
    plan = StagePlan(f"{rate:g}qps", StageKind.STAIRCASE, rate, 6, (SHORT,), 1, run=run)
    return StageResult(plan, None, None, skipped="500qps was given up: <error_share>")


def verdicts() -> GateVerdict:
    base = (0.0300, 0.0310, 0.0320, 0.0330, 0.0340)
    cells = (
        CellVerdict(
            Cell("100qps", "short", "ttft_p99_seconds"), "baseline", Verdict.FAIL, Reason.REGRESSION,
            (0.0420, 0.0440, 0.0450, 0.0460, math.inf), base, None, 0.004, 0.0119, 0.40625, 0.061, 0.82,
            detail="median 45 ms against 32 ms (+41 %), U 25 of 25, p .004, .012 after Holm",
        ),
        CellVerdict(
            Cell("100qps", "short", "throughput_rps"), "baseline", Verdict.PASS, Reason.NO_REGRESSION,
            (99.8, 100.1, 100.0, 99.9, 100.2), (100.0, 100.1, 99.9, 100.0, 100.0), None, 0.5, 1.0, 0.001, 0.001, 0.99,
            detail="median 100/s against 100/s (+0.1 %)",
        ),
        CellVerdict(
            Cell("500qps", "short", "e2e_p99_seconds"), "baseline", Verdict.INCONCLUSIVE, Reason.NOISY,
            (0.9, 1.4, 0.8, 1.9, 1.1), (0.8, 1.3, 0.9, 1.7, 1.2), None, 0.42, 0.84, 0.06, 0.31, 0.11,
            detail="the runs vary by 31 %: a slowdown of 20 % would be seen in 11 % of gates only",
        ),
        CellVerdict(
            Cell("100qps", "all", "failed_ratio"), "objective", Verdict.PASS, Reason.WITHIN_OBJECTIVES,
            (0.0, 0.0, 0.0, 0.0, 0.0), bound=0.01, detail="0 of 15,000 failed",
        ),
        CellVerdict(
            Cell("1000qps", "all", "failed_ratio"), "objective", Verdict.INCONCLUSIVE, Reason.NOT_MEASURED, (),
            bound=0.01, detail="the stage was skipped",
        ),
        CellVerdict(
            Cell("500qps", "short", "tpot_p99_seconds"), "baseline", Verdict.PASS, Reason.NO_REGRESSION,
            (0.01, 0.01), (0.01, 0.01), gated=False, detail=f"looked at, not gated: {HOSTILE}",
        ),
    )  # fmt: skip
    return GateVerdict(
        Verdict.FAIL, (Reason.REGRESSION, Reason.NOISY, Reason.NOT_MEASURED), cells,
        "TTFT P99 of short at 100qps: 45 ms against 32 ms of the baseline (+41 %, p .012).", "default",
    )  # fmt: skip


def arm(policy: str, suffering: float, *, skipped: str = "") -> Arm:
    draw = random.Random(policy)
    alone = [0.3 + 0.02 * draw.lognormvariate(0, 0.4) for _ in range(400)]
    mixed = [value + suffering * draw.random() for value in alone]
    mixed[:6] = [math.inf] * 6
    each = (0.031, 0.03, 0.032, 0.033, 0.031)
    return Arm(
        policy=policy, ttft_p99_alone_seconds=each, ttft_p99_mixed_seconds=tuple(v + suffering for v in each),
        e2e_p99_alone_seconds=tuple(v + 0.3 for v in each),
        e2e_p99_mixed_seconds=(*(v + 0.3 + suffering for v in each[:4]), math.inf),
        tpot_p99_alone_seconds=(0.01,) * 5, tpot_p99_mixed_seconds=(0.012,) * 5,
        samples_alone_seconds=tuple(sorted(alone)), samples_mixed_seconds=tuple(sorted(mixed)),
        long_prompt_tokens=32_741.5, long_requests=1_650, long_failed=3, p_value=0.004, effect_ratio=suffering / 0.031,
        skipped=skipped,
    )  # fmt: skip


@functools.cache
def rich(*, name: str = "tiny", interrupted: str = "the server went away in run 2, stage 500qps") -> GateResult:
    """
    A run that failed: a regression, noise, a stage skipped, failures as infinitely slow, an interruption, names that
    mean something to HTML, XML, Markdown, a terminal and GitHub. ``name``: of the model.
    """
    runs = tuple(
        RunResult(run, "candidate", (stage(100, run), stage(500, run), last), 1_790_000_000 + 100 * run)
        for run, last in enumerate((stage(1000, 0), stage(1000, 1), skipped(1000, 2)))
    )
    return GateResult(
        id="20261201T030500Z-k3f9",
        url="http://127.0.0.1:8000",
        model=name,
        tool_version="0.1.0",
        wall_started_at=1_790_000_000.0,
        wall_ended_at=1_790_000_321.5,
        fingerprint=Fingerprint(
            (("arrivals", "poisson"), ("model", name), ("seed", "1"), ("stages", "100, 500, 1000")),
            (("server", "vllm 0.32.0"),),
        ),
        smoke=Smoke(True, "one whole and one streamed answer", name, 4096, True, True, "tokenize", "vllm 0.32.0"),
        calibration=Calibration(1000, 2000, 0.0006, 0.0021, 0.0019, 0.29, 1, False),
        runs=runs,
        knee=Knee(
            687.5, 750, 718.75, 31.25, "resolved",
            (Probe(100, False, "in-flight level"), Probe(500, False, "in-flight level"),
             Probe(1000, True, "in-flight grows"), Probe(750, True, "completed 0.93 of sent"), Probe(687.5, None, "")),
        ),
        long_tail=LongTail(
            100, 0.1, (arm("", 0.8), arm("chunked", 0.05), arm("batch", 0, skipped="http://127.0.0.1:9: refused")),
            "chunked", "with longs, TTFT P99 of the shorts: 831 ms under the target's policy, 81 ms under chunked",
        ),
        verdict=verdicts(),
        bottleneck=Attribution(
            Resource.ENGINE_BUSY, True, 718.75,
            (Demand(Resource.ENGINE_BUSY, 1 / 700, 700, 0.03, "vllm:iteration_tokens_total"),
             Demand(Resource.STORAGE, 1e-7, math.inf, 0.9, "host disk", why="does not follow", counts=False),
             Demand(Resource.NETWORK, 1 / 90_000, 90_000, 0.001, "lo bytes", 0, 0.011, "1000qps", 8e6, "bit/s", 1e9)),
            (Limit(Resource.KV_CACHE, 0.991, "1000qps", "vllm:kv_cache_usage_perc"),),
            127.5, True, ("compute: the engine exports no estimate of FLOPs",),
            "the engine's steps bind: 1/D is 700/s, the knee 719/s",
        ),
        latency_budget=BudgetTable((
            BudgetStage("100qps", (
                BudgetPart("network", 0.05, 0.001, True, "time to first byte of /health"),
                BudgetPart("load", 0.03, 0.041, False, "vllm:request_queue_time_seconds"),
                BudgetPart("compute", 0.1, 0.29, False, "prefill and decode"),
                BudgetPart("serialization", 0.02, None, None, "nothing shows it"),
            ), 0.34, 0.008, 0.024, "queue up alone: capacity"),
        )),
        checks=(Check("sums", True, "45,000 = 44,250 + 750"), Check("token_rates", False, "peak 3,100, mean 3,200")),
        interrupted=interrupted,
        knee_stages=(stage(750, 0, kind=StageKind.KNEE), stage(687.5, 0, kind=StageKind.KNEE)),
        omitted={"signals.gateway": "no sre gateway behind this URL"},
        notes=("12 answers held fewer tokens than asked for", f"hostile: {HOSTILE}"),
    )  # fmt: skip


@functools.cache
def passed() -> GateResult:
    """The least: one run, no baseline, everything optional left out."""
    run = RunResult(0, "candidate", (stage(100, 0),), 1_790_000_000)
    cell = CellVerdict(
        Cell("100qps", "all", "failed_ratio"), "objective", Verdict.PASS, Reason.WITHIN_OBJECTIVES, (0.0,), bound=0.01
    )
    return GateResult(
        "20261201T030500Z-aaaa", "http://127.0.0.1:8000", "tiny", "0.1.0", 1_790_000_000.0, 1_790_000_030.0,
        Fingerprint(()), None, None, (run,), None, None,
        GateVerdict(Verdict.PASS, (Reason.WITHIN_OBJECTIVES,), (cell,), "All objectives held; there is no baseline."),
        None, None, omitted={"knee": "switched off", "long_tail": "not asked for"},
    )  # fmt: skip


def load(requests: int = 4) -> StageLoad:
    """A stage as the generator hands it over: a success, a failure, one never sent, one ended by us."""
    started = 5_000.25
    records = [
        RequestRecord(
            0, "short", started, started + 0.001, started + 0.02, started + 0.03, None, started + 0.031,
            started + 0.231, started + 0.232, 4, 0.08, 0.2, 200, Outcome.SUCCESS, Cause.OK, "length",
            256, 32, 0, 256, 32,
        ),
        RequestRecord(
            1, "short", started + 0.01, started + 0.011, ended_at=started + 0.02, status=503,
            outcome=Outcome.FAILURE, cause=Cause.SERVER_ERROR, detail="HTTP 503\nbusy \x1b[31m" + "x" * 300,
        ),
        RequestRecord(2, "short", started + 0.02, cause=Cause.SHED_BY_CLIENT),
        RequestRecord(3, "short", started + 0.03, started + 0.031, ended_at=started + 0.05),
    ]  # fmt: skip
    plan = StagePlan("100qps", StageKind.STAIRCASE, 100, 0.04, (SHORT,), 1)
    return StageLoad(
        plan, 4, started, started + 0.04, started + 0.232, records[:requests], (InFlightSample(started, 0),),
        ClientCost(0.01, 1, 0.001, 0.001, 0.001, 0.001), wall_started_at=1_790_000_000.0,
    )  # fmt: skip
