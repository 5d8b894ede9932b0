"""
How fast the load generator is, and how late, on a stub that costs little; beside it a bare aiohttp loop, and
``vllm bench serve``.

Aims on two cores: 2,000 requests/s sent with a 99th percentile of lateness below 20 ms, 20,000 SSE events/s with TTFT
wrong by at most 5 ms, 0.4 CPU-seconds per 1,000 requests of 16 events, and three times the rate that vllm bench serve
holds in the same run. What is compared takes turns, so that a busy machine slows both: where other work shares the
cores, trust the ratios before the figures. Lines have the load average; medians have their range beside them.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sre.adapters.clock import SystemClock
from sre.adapters.load import HttpLoad
from sre.adapters.load.calibration import running_stub
from sre.gate.stages import Arrivals, RequestClass, StageKind, StageLoad, StagePlan
from tests.support.vllm import tiny_model  # noqa: F401 - a fixture

ROUNDS = 5
SECONDS = 3.0
TOKENS = 16
PROMPT_TOKENS = 64
FIRST_TOKEN_SECONDS, TOKEN_SECONDS = 0.05, 0.005
BESIDE_RPS = 500
LIMIT_SECONDS = 0.02
LADDER_RPS = (100, 250, 500, 1000, 1500, 2000, 3000, 4000, 5000, 6000)
TRIES = 3
VLLM_SECONDS = 120
VLLM_BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""What the vllm command runs; that itself does not start from a folder without package metadata."""


def load_average() -> str:
    return "load average " + " ".join(f"{value:.1f}" for value in os.getloadavg())


def rank(values: list[float], ratio: float) -> float:
    return sorted(values)[max(0, round(ratio * len(values) + 0.499999) - 1)]


def stage(rate: float, tokens: int = TOKENS) -> StagePlan:
    kind = RequestClass("short", 1.0, PROMPT_TOKENS, tokens)
    return StagePlan(
        f"{rate:g}", StageKind.STAIRCASE, rate, SECONDS, (kind,), seed=1, arrivals=Arrivals.CONSTANT
    )  # fmt: skip


async def ours(url: str, plan: StagePlan, processes: int) -> tuple[StageLoad, dict[int, float]]:
    """A stage after a short one that opens the connections, and when the stub wrote each first token."""
    load = HttpLoad(url, model="stub", clock=SystemClock(), processes=processes, request_timeout_seconds=30)
    async with load:
        await load.run(stage(plan.rate_rps / 4), watch=lambda _: None, drain_seconds=30)
        result = await load.run(plan, watch=lambda _: None, drain_seconds=30)
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(f"{url}/stamps") as response:
        stamps = json.loads(await response.read())
    salt = max(name.rpartition("-")[0] for name in stamps if name.rpartition("-")[0].endswith("-2"))
    return result, {
        int(name.rpartition("-")[2]): float(row["first_token_at"])
        for name, row in stamps.items()
        if name.startswith(salt + "-")
    }


def figures(result: StageLoad, wrote: dict[int, float]) -> dict[str, float]:
    errors = [
        one.first_content_at - wrote[one.number]
        for one in result.records
        if one.first_content_at is not None and one.number in wrote
    ]
    lags = [one.lag_seconds for one in result.records if one.lag_seconds is not None]
    spent = max(one.intended_at for one in result.records) - result.started_at
    chunks = sum(one.chunks for one in result.records)
    return {
        "failed": sum(one.failed for one in result.records),
        "lag_p50_ms": 1000 * rank(lags, 0.5),
        "lag_p99_ms": 1000 * rank(lags, 0.99),
        "ttft_error_p50_ms": 1000 * rank(errors, 0.5),
        "ttft_error_p99_ms": 1000 * rank(errors, 0.99),
        "chunks_per_s": chunks / spent,
        "cpu_s_per_1k": 1000 * result.client.cpu_seconds / len(result.records),
    }


def show(name: str, rounds: list[dict[str, float]]) -> None:
    """Median of each figure, and its range."""
    parts = []
    for key in rounds[0]:
        values = sorted(one[key] for one in rounds)
        middle = f"{statistics.median(values):.{0 if values[-1] > 1000 else 2}f}"
        parts.append(f"{key} {middle}" + ("" if values[0] == values[-1] else f" ({values[0]:.2f}-{values[-1]:.2f})"))
    print(f"  {name}: " + "  ".join(parts) + f"  [{load_average()}]")


async def bare(url: str, rate: float) -> dict[str, float]:
    """What a bare aiohttp loop spends on the same requests."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.bare_aiohttp", url, repr(rate), repr(SECONDS),
        stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    output, _ = await process.communicate()
    found: dict[str, float] = json.loads(output)
    return found


@pytest.mark.benchmark
async def test_rate_lateness_and_cost() -> None:
    """Medians over rounds."""
    print(f"\n{TOKENS}-token answers, an event each; medians of {ROUNDS} rounds of {SECONDS:g} s")
    cases = ((500, 1, TOKEN_SECONDS), (1400, 2, TOKEN_SECONDS), (2000, 2, TOKEN_SECONDS), (2000, 2, 0.0))
    for rate, processes, apart in cases:
        rounds = []
        for _ in range(ROUNDS):
            async with running_stub(FIRST_TOKEN_SECONDS, apart) as url:
                rounds.append(figures(*await ours(url, stage(rate), processes)))
        show(f"{rate} requests/s, events {1000 * apart:g} ms apart, {processes} process(es)", rounds)
    print("  aims: lag_p99 < 20, chunks/s >= 20,000 with ttft_error <= 5 ms, cpu <= 0.4")


@pytest.mark.benchmark
async def test_cost_beside_a_bare_aiohttp_loop() -> None:
    """The same requests by both, in turns; ours with all that it does, and with what its parent process spends."""
    print(f"\nCPU-seconds per 1,000 requests at {BESIDE_RPS} requests/s, one process each; medians of {ROUNDS} rounds")
    for apart in (TOKEN_SECONDS, 0.0):
        mine: list[float] = []
        theirs: list[float] = []
        for _ in range(ROUNDS):
            async with running_stub(FIRST_TOKEN_SECONDS, apart) as url:
                mine.append(figures(*await ours(url, stage(BESIDE_RPS), 1))["cpu_s_per_1k"])
                theirs.append((await bare(url, BESIDE_RPS))["cpu_s_per_1k"])
        ratios = sorted(one / other for one, other in zip(mine, theirs, strict=True))
        print(
            f"  events {1000 * apart:g} ms apart: sre gate {statistics.median(mine):.2f}, bare aiohttp with json "
            f"{statistics.median(theirs):.2f}; ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            f"  [{load_average()}]"
        )


async def our_lag(rate: float) -> float:
    """99th percentile of lateness, seconds; failures make it infinite."""
    async with running_stub(FIRST_TOKEN_SECONDS, TOKEN_SECONDS) as url:
        load = HttpLoad(url, model="stub", clock=SystemClock(), request_timeout_seconds=30)
        async with load:
            await load.run(stage(rate / 4), watch=lambda _: None, drain_seconds=30)
            result = await load.run(stage(rate), watch=lambda _: None, drain_seconds=30)
    if any(one.failed or one.sent_at is None for one in result.records):
        return float("inf")
    return rank([one.lag_seconds or 0.0 for one in result.records], 0.99)


def vllm_lag(python: str, model: Path, url: str, rate: float, folder: Path) -> float:
    """The same of vllm bench serve: start times against its own constant schedule, the best request as moment 0."""
    name = f"{rate:g}.json"
    argv = [
        python, "-c", VLLM_BENCH_SERVE, "--backend", "openai", "--base-url", url,
        "--endpoint", "/v1/completions", "--model", str(model), "--dataset-name", "random",
        "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(TOKENS),
        "--num-prompts", str(int(rate * SECONDS)), "--request-rate", f"{rate:g}", "--burstiness", "inf",
        "--seed", "1", "--ignore-eos", "--disable-tqdm", "--save-result", "--save-detailed",
        "--result-dir", str(folder), "--result-filename", name,
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=VLLM_SECONDS, check=False)
    if done.returncode:
        pytest.fail(f"vllm bench serve: {done.stderr[-1500:]}", pytrace=False)
    found = json.loads((folder / name).read_text())
    starts = found["start_times"]
    late = [start - number / rate for number, start in enumerate(starts)]
    first = min(late)
    return rank([value - first for value in late], 0.99)


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
async def test_rate_held_against_vllm_bench_serve(vllm_python: str, tiny_model: Path) -> None:  # noqa: F811
    """The highest rate at which each sends 99 % of requests within 20 ms of their moment."""
    print(f"\nhighest rate with lag P99 < {1000 * LIMIT_SECONDS:g} ms; {load_average()}")
    held = {"sre gate": 0.0, "vllm bench serve": 0.0}
    going = set(held)
    with tempfile.TemporaryDirectory(prefix="sre-") as name:
        for rate in LADDER_RPS:
            for client in sorted(going):
                # The best of three: what else runs here may have come in between.
                lags = []
                for _ in range(TRIES):
                    if client == "sre gate":
                        lags.append(await our_lag(rate))
                    else:
                        async with running_stub(FIRST_TOKEN_SECONDS, TOKEN_SECONDS) as url:
                            lags.append(
                                await asyncio.to_thread(vllm_lag, vllm_python, tiny_model, url, rate, Path(name))
                            )
                    if lags[-1] < LIMIT_SECONDS:
                        break
                print(f"  {rate:5} requests/s  {client:17} lag P99 {1000 * min(lags):8.1f} ms   {load_average()}")
                if min(lags) < LIMIT_SECONDS:
                    held[client] = rate
                else:
                    going.discard(client)
            if not going:
                break
    ratio = held["sre gate"] / held["vllm bench serve"] if held["vllm bench serve"] else float("inf")
    print(f"  held: {held}; ratio {ratio:.1f} (aim 3)")
