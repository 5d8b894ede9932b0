"""
What one scrape of an engine's /metrics costs the guard, in CPU time, over real HTTP.

Aim: at most 1.5 ms per scrape of about 1,000 lines. The server runs in another process, so that only our side counts.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sre.adapters.clock import SystemClock
from sre.adapters.engine_telemetry import EngineEndpoint, VllmTelemetry, parse

ROOT = Path(__file__).resolve().parents[2]
REAL = (ROOT / "tests" / "telemetry" / "data" / "vllm-0.32.0.metrics.txt").read_bytes()
BODY = REAL + REAL.replace(b'engine="0"', b'engine="1"')
"""Two data-parallel ranks: about 1,200 lines."""
SCRAPES = 300


class _Metrics(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve() -> None:
    """Serve BODY, saying the port on stdout, until killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Metrics)
    print(server.server_port, flush=True)
    server.serve_forever()


async def _scrapes(url: str, count: int) -> tuple[list[float], list[float]]:
    telemetry = VllmTelemetry({"e": EngineEndpoint(url)}, SystemClock(), patience_seconds=10)
    cpu, wall = [], []
    try:
        for _ in range(count + 20):
            cpu_before, wall_before = time.process_time(), time.perf_counter()
            sample = await telemetry.sample("e")
            cpu.append(time.process_time() - cpu_before)
            wall.append(time.perf_counter() - wall_before)
            if sample.steps_total.value != 48.0:
                pytest.fail(f"misread: {telemetry.problem('e')}")
    finally:
        await telemetry.close()
    return cpu[20:], wall[20:]


@pytest.mark.benchmark
def test_scrape_cost() -> None:
    argv = [sys.executable, "-c", "from tests.benchmarks.bench_scrape import serve; serve()"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            cpu, wall = asyncio.run(_scrapes(f"http://127.0.0.1:{int(server.stdout.readline())}", SCRAPES))
        finally:
            server.kill()
    before = time.process_time()
    for _ in range(SCRAPES):
        parse(BODY, 0.0)
    parsing = (time.process_time() - before) / SCRAPES
    print(
        f"\nscrape of {BODY.count(10)} lines ({len(BODY)} bytes), {SCRAPES} times:"
        f" cpu mean {statistics.fmean(cpu) * 1e3:.2f} ms (of it parsing {parsing * 1e3:.2f} ms; target 1.50 ms),"
        f" wall median {statistics.median(wall) * 1e3:.2f} ms, max {max(wall) * 1e3:.2f} ms"
    )
