"""
What the gateway costs: all filters, logs and routes, against an Envoy that only forwards.

Both run in turn, many short rounds, on the same machine, with the same stub engine and load generator (http_load.c,
one thread each). Aims: at least 0.6 of the bare Envoy's requests/s; at most 5 ms more at the 99th percentile of the
delay of a chunk with 64 streams; a trip in force after at most 50 ms (99th percentile of 100).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sre.actions.types import PoolDesired, RejectReason
from sre.adapters.envoy import find_envoy, prepare
from sre.settings.paths import StatePaths
from sre.settings.stack import GatewaySettings, StackSettings
from sre.stack.gateway import envoy_argv
from sre.stack.gateway_names import open_gateway
from tests.conftest import unused_port
from tests.gateway.harness import Bench, engine_settings, running

SOURCE = Path(__file__).with_name("http_load.c")
CONNECTIONS = 32
ROUNDS = 25
ROUND_SECONDS = 0.4
STREAMS = 64
STREAM_ROUNDS = 7
INTERVAL_MS = 10
CHUNKS = 200
TRIPS = 100


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running Envoy."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far; /proc counts it in nanoseconds."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def compiled(folder: Path) -> str:
    """The load generator, compiled into ``folder``."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler; on Debian: apt-get install gcc libc6-dev")
    program = folder / "http_load"
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
    return str(program)


def only_forward(documents: dict[str, Any]) -> None:
    """Take out everything but one route to the one cluster."""
    (listener,) = [r for r in documents["lds"]["resources"] if r["name"] == "gw"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
    listener["filter_chains"][0]["filters"][0]["typed_config"] = {
        "@type": manager["@type"],
        "stat_prefix": "gw",
        "rds": manager["rds"],
        "http_filters": [{"name": "router", "typed_config": router}],
    }
    listener.pop("per_connection_buffer_limit_bytes")
    documents["lds"]["resources"] = [listener]
    host = documents["rds"]["resources"][0]["virtual_hosts"][0]
    host["routes"] = [{"match": {"prefix": "/"}, "route": {"cluster": "pool-m", "timeout": "0s"}}]


@contextmanager
def proxy(root: Path, engine_port: int, change: Callable[[dict[str, Any]], None] | None = None) -> Iterator[Proxy]:
    """An Envoy with the gateway's documents, or with what ``change`` made of them."""
    stack = StackSettings(engines=engine_settings("a"), gateway=GatewaySettings(port=unused_port()))
    paths = StatePaths(root)
    paths.create()
    prepare(paths, stack, {"a": ("127.0.0.1", engine_port)})
    if change is not None:
        files = {name: paths.gateway / "dyn" / f"{name}.json" for name in ("lds", "rds")}
        documents = {name: json.loads(path.read_text()) for name, path in files.items()}
        change(documents)
        for name, path in files.items():
            path.write_text(json.dumps(documents[name]))
    process = subprocess.Popen(envoy_argv(find_envoy(stack)), cwd=paths.gateway, stderr=subprocess.DEVNULL)
    try:
        yield Proxy(stack.gateway.port, process.pid)
    finally:
        process.terminate()
        process.wait()


def until_serving(program: str, port: int) -> None:
    """Return once requests are answered."""
    for _ in range(200):
        done = subprocess.run(
            [program, "requests", str(port), "1", "0.02"], capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and json.loads(done.stdout)["requests"] > 0:
            return
        time.sleep(0.05)
    pytest.fail(f"nothing answers on port {port}")


def _measured(program: str, target: Proxy, *arguments: str) -> dict[str, float]:
    before = target.cpu_seconds()
    done = subprocess.run(
        [program, arguments[0], str(target.port), *arguments[1:]], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    if found["errors"]:
        pytest.fail(f"{found['errors']} errors: {done.stdout}")
    return found | {"cpu": target.cpu_seconds() - before}


def _medians(rounds: list[dict[str, float]], key: str) -> float:
    return statistics.median(r[key] for r in rounds)


@pytest.mark.benchmark
def test_requests_per_second_and_chunk_delay_against_a_bare_envoy() -> None:
    """Prints medians over all rounds, and the ratios of the rounds that ran next to each other."""
    with tempfile.TemporaryDirectory(prefix="sre-", dir="/tmp") as name:
        root = Path(name)
        program, port = compiled(root), unused_port()
        engine = subprocess.Popen([program, "serve", str(port), str(INTERVAL_MS), str(CHUNKS)])
        try:
            with proxy(root / "bare", port, only_forward) as bare, proxy(root / "full", port) as full:
                for target in (bare, full):
                    until_serving(program, target.port)
                _requests(program, {"bare Envoy": bare, "gateway": full})
                _streams(program, {"bare Envoy": bare, "gateway": full})
        finally:
            engine.kill()
            engine.wait()


def _requests(program: str, targets: dict[str, Proxy]) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in targets}
    for _ in range(ROUNDS):
        for name, target in targets.items():
            one = _measured(program, target, "requests", str(CONNECTIONS), str(ROUND_SECONDS))
            one["rate"] = one["requests"] / one["seconds"]
            one["cpu_ms"] = 1000 * one["cpu"] / max(1.0, one["requests"])
            found[name].append(one)
    print(f"\n{CONNECTIONS} connections, 16-token JSON answers, medians of {ROUNDS} rounds of {ROUND_SECONDS} s:")
    for name, rounds in found.items():
        print(
            f"  {name:11} {_medians(rounds, 'rate'):8.0f} requests/s   p50 {_medians(rounds, 'p50_ms'):5.2f} ms   "
            f"p99 {_medians(rounds, 'p99_ms'):5.2f} ms   {_medians(rounds, 'cpu_ms'):.4f} CPU-ms/request"
        )
    bare, full = found.values()
    ratios = sorted(f["rate"] / b["rate"] for b, f in zip(bare, full, strict=True))
    costs = sorted(b["cpu_ms"] / f["cpu_ms"] for b, f in zip(bare, full, strict=True))
    print(
        f"  ratio of requests/s, median of neighbouring rounds: {statistics.median(ratios):.2f} (aim 0.60);"
        f" of CPU per request: {statistics.median(costs):.2f}"
    )


def _streams(program: str, targets: dict[str, Proxy]) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in targets}
    for _ in range(STREAM_ROUNDS):
        for name, target in targets.items():
            one = _measured(program, target, "streams", str(STREAMS), "1")
            one["cpu_us"] = 1e6 * one["cpu"] / one["chunks"]
            found[name].append(one)
    rate = STREAMS * 1000 / INTERVAL_MS
    print(f"{STREAMS} streams, {rate:.0f} chunks/s, delay of a chunk, medians of {STREAM_ROUNDS} rounds:")
    for name, rounds in found.items():
        print(
            f"  {name:11} p50 {_medians(rounds, 'p50_ms'):5.2f} ms   p99 {_medians(rounds, 'p99_ms'):5.2f} ms   "
            f"{_medians(rounds, 'cpu_us'):.1f} CPU-us/chunk"
        )
    bare, full = found.values()
    print(f"  added p99: {_medians(full, 'p99_ms') - _medians(bare, 'p99_ms'):.2f} ms (aim at most 5)")


async def _trip(bench: Bench, reason: RejectReason) -> tuple[float, float]:
    """(seconds until apply returned, seconds until the last request that was still admitted was sent)."""
    base = open_gateway(bench.envoy.stack)
    admitted_at = 0.0
    stop = asyncio.Event()

    async def hammer() -> None:
        nonlocal admitted_at
        while not stop.is_set():
            sent = time.perf_counter()
            if (await bench.ask())[0] == 200:
                admitted_at = max(admitted_at, sent)

    hammers = [asyncio.create_task(hammer()) for _ in range(2)]
    await asyncio.sleep(0.02)
    start = time.perf_counter()
    await bench.gateway.apply(replace(base, pools=(PoolDesired("m", 100, reason),)))
    applied = time.perf_counter() - start
    await asyncio.sleep(0.01)
    stop.set()
    await asyncio.gather(*hammers)
    await bench.gateway.apply(base)
    return applied, max(0.0, admitted_at - start)


@pytest.mark.benchmark
async def test_time_from_a_trip_to_its_effect(short_dir: Path) -> None:
    """Each trip has another reason than the one before: the slower case, since the route is rewritten too."""
    async with running(short_dir) as bench:
        reasons = list(RejectReason)
        found = [await _trip(bench, reasons[n % len(reasons)]) for n in range(TRIPS)]
    for name, values in (
        ("apply returned, confirmed", sorted(f[0] for f in found)),
        ("last request admitted", sorted(f[1] for f in found)),
    ):
        print(
            f"\n{TRIPS} trips, {name}: p50 {1000 * values[TRIPS // 2]:.1f} ms, "
            f"p99 {1000 * values[TRIPS - 2]:.1f} ms, worst {1000 * values[-1]:.1f} ms (aim p99 at most 50)",
            end="",
        )
    print()


if __name__ == "__main__":
    options = ["-m", "benchmark", "-s", "-q", "-o", "python_files=bench_*.py"]
    raise SystemExit(subprocess.call([sys.executable, "-m", "pytest", __file__, *options]))
