"""
How fast the load generator is, and how late, on a stub that costs little; beside it a bare aiohttp loop, and
``vllm bench serve``.

Aims on two cores: 2,000 requests/s sent with a 99th percentile of lateness below 20 ms, 20,000 SSE events/s with TTFT
wrong by at most 5 ms, 0.4 CPU-seconds per 1,000 requests of 16 events, and three times the rate that vllm bench serve
holds in the same run. What is compared takes turns, so that a busy machine slows both: where other work shares the
cores, trust the ratios before the figures. Lines have the load average; medians have their range beside them.

Against vllm bench serve the stub is one in C (load_stub.c), where there is a compiler: the one in Python takes as much
of the two cores as our client, and one core of it ends at 3,000 to 4,000 requests/s. The kernel's part of a loopback
remains, so beside the rates stands what depends on no stub: the CPU time of both clients for the same requests.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
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
FIRST_RPS, STEP, CLOSE = 500.0, 1.5, 1.1
"""Of the search: first rate, factor until one is not held, and how far apart held and missed may be at its end."""
LEAST_RPS = 50.0
SEARCH_SECONDS = 1200.0
TRIES = 3
CPU_ROUNDS, CPU_SECONDS = 3, 8.0
VLLM_SECONDS = 120
VLLM_BENCH_SERVE = """
import argparse, time
from vllm.benchmarks import serve
spent, requests, figures = [], serve.get_request, serve.calculate_metrics
def get_request(*given, **named):
    spent.append(time.process_time())
    return requests(*given, **named)
def calculate_metrics(*given, **named):
    print("client CPU seconds", time.process_time() - spent[0])
    return figures(*given, **named)
serve.get_request, serve.calculate_metrics = get_request, calculate_metrics
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""
"""
What the vllm command runs; that itself does not start from a folder without package metadata. CPU time is counted from
the first request to the last answer: its start of 9 s, and what it makes of the answers, are not its load.
"""
STUB_SOURCE = Path(__file__).with_name("load_stub.c")


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


def compiled(folder: Path) -> str | None:
    """The stub in C, compiled into ``folder``; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    program = folder / "load_stub"
    subprocess.run([compiler, "-O2", "-o", str(program), str(STUB_SOURCE)], check=True)
    return str(program)


@asynccontextmanager
async def stub(program: str | None) -> AsyncIterator[str]:
    """The base URL of a stub that ends with the block: ``program``, or the one in Python."""
    if program is None:
        async with running_stub(FIRST_TOKEN_SECONDS, TOKEN_SECONDS) as url:
            yield url
        return
    argv = [program, repr(1000 * FIRST_TOKEN_SECONDS), repr(1000 * TOKEN_SECONDS), str(TOKENS)]
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.stdin.close()
        await process.wait()


@dataclass(frozen=True)
class Sent:
    """How late a client was (P99, seconds; infinite if a request failed), and its CPU seconds per 1,000 requests."""

    lag_seconds: float
    cpu_per_1000: float


async def our_client(url: str, rate: float, seconds: float = SECONDS) -> Sent:
    plan = replace(stage(rate), duration_seconds=seconds)
    load = HttpLoad(url, model="stub", clock=SystemClock(), request_timeout_seconds=30)
    async with load:
        await load.run(stage(rate / 4), watch=lambda _: None, drain_seconds=30)
        result = await load.run(plan, watch=lambda _: None, drain_seconds=30)
    failed = any(one.failed or one.sent_at is None for one in result.records)
    lag = math.inf if failed else rank([one.lag_seconds or 0.0 for one in result.records], 0.99)
    return Sent(lag, 1000 * result.client.cpu_seconds / len(result.records))


@dataclass(frozen=True)
class VllmBench:
    """``vllm bench serve``."""

    python: str
    model: Path
    folder: Path

    def client(self, url: str, rate: float, seconds: float = SECONDS) -> Sent:
        """Start times against its own constant schedule, the best request as moment 0."""
        argv = [
            self.python, "-c", VLLM_BENCH_SERVE, "--backend", "openai", "--base-url", url,
            "--endpoint", "/v1/completions", "--model", str(self.model), "--dataset-name", "random",
            "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(TOKENS),
            "--num-prompts", str(int(rate * seconds)), "--request-rate", f"{rate:g}", "--burstiness", "inf",
            "--seed", "1", "--ignore-eos", "--disable-tqdm", "--save-result", "--save-detailed",
            "--result-dir", str(self.folder), "--result-filename", "result.json",
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=VLLM_SECONDS, check=False)
        spent = re.search(r"^client CPU seconds (\S+)$", done.stdout, re.MULTILINE)
        if done.returncode or spent is None:
            pytest.fail(f"vllm bench serve: {done.stderr[-1500:]}", pytrace=False)
        starts = json.loads((self.folder / "result.json").read_text())["start_times"]
        late = [start - number / rate for number, start in enumerate(starts)]
        first = min(late)
        return Sent(rank([value - first for value in late], 0.99), 1000 * float(spent[1]) / len(starts))


@dataclass
class Search:
    """For the highest rate that is held: by steps until one is not, then between the two."""

    held: float = 0.0
    missed: float = math.inf

    @property
    def rate(self) -> float | None:
        """To be tried next; None: found."""
        if math.isinf(self.missed):
            return self.held * STEP or FIRST_RPS
        if not self.held:
            return self.missed / STEP if self.missed / STEP > LEAST_RPS else None
        return math.sqrt(self.held * self.missed) if self.missed > self.held * CLOSE else None

    def note(self, rate: float, held: bool) -> None:
        if held:
            self.held = rate
        else:
            self.missed = rate


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
async def test_rate_held_against_vllm_bench_serve(
    vllm_python: str,
    tiny_model: Path,  # noqa: F811
) -> None:
    """The highest rate at which each sends 99 % of requests within 20 ms of their moment."""
    print(f"\nhighest rate with lag P99 < {1000 * LIMIT_SECONDS:g} ms; {load_average()}")
    found = {"sre gate": Search(), "vllm bench serve": Search()}
    ends = time.monotonic() + SEARCH_SECONDS
    with tempfile.TemporaryDirectory(prefix="sre-") as name:
        program = compiled(Path(name))
        theirs = VllmBench(vllm_python, tiny_model, Path(name))
        while any(one.rate is not None for one in found.values()) and time.monotonic() < ends:
            for client, search in found.items():
                if (rate := search.rate) is None:
                    continue
                # The best of three: what else runs here may have come in between.
                lags: list[float] = []
                while len(lags) < TRIES and min(lags, default=math.inf) >= LIMIT_SECONDS:
                    async with stub(program) as url:
                        if client == "sre gate":
                            sent = await our_client(url, rate)
                        else:
                            sent = await asyncio.to_thread(theirs.client, url, rate)
                    lags.append(sent.lag_seconds)
                search.note(rate, min(lags) < LIMIT_SECONDS)
                print(f"  {rate:5.0f} requests/s  {client:17} lag P99 {1000 * min(lags):8.1f} ms   {load_average()}")
    for client, search in found.items():
        print(f"  {client} holds {search.held:.0f} requests/s, and no longer {search.missed:.0f}")
    ours, other = found.values()
    if other.held:
        least, most = ours.held / min(other.missed, other.held * STEP), min(ours.missed, ours.held * STEP) / other.held
        written = "C" if program else "Python"
        print(
            f"  ratio {ours.held / other.held:.1f} (between {least:.1f} and {most:.1f}; aim 3); stub in {written}, "
            f"{os.cpu_count()} cores"
        )


@pytest.mark.benchmark
@pytest.mark.timeout(600)
async def test_cost_against_vllm_bench_serve(vllm_python: str, tiny_model: Path) -> None:  # noqa: F811
    """CPU time of both for the same requests, in turns: neither a stub is in it, nor how two cores are shared."""
    mine: list[float] = []
    other: list[float] = []
    with tempfile.TemporaryDirectory(prefix="sre-") as name:
        program = compiled(Path(name))
        theirs = VllmBench(vllm_python, tiny_model, Path(name))
        for _ in range(CPU_ROUNDS):
            async with stub(program) as url:
                mine.append((await our_client(url, BESIDE_RPS, CPU_SECONDS)).cpu_per_1000)
            async with stub(program) as url:
                other.append((await asyncio.to_thread(theirs.client, url, BESIDE_RPS, CPU_SECONDS)).cpu_per_1000)
    ratios = sorted(one / two for one, two in zip(other, mine, strict=True))
    print(
        f"\nCPU-seconds per 1,000 requests at {BESIDE_RPS} requests/s: sre gate {statistics.median(mine):.2f}, "
        f"vllm bench serve {statistics.median(other):.2f}; {statistics.median(ratios):.1f} times as much "
        f"({ratios[0]:.1f}-{ratios[-1]:.1f})  [{load_average()}]"
    )
