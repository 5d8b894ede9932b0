"""
What the simulated engine itself costs: requests/s of 16-token answers in accelerated time, and CPU per request.

    python -m tests.benchmarks.bench_sim_engine [ROUNDS]

Target: 1,000 requests/s on two cores, the load generator included. Medians of several rounds; time scale 100, so that
the cost model is no limit.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.engines import EngineProcess, running_sim

CONNECTIONS = 64
ROUND_SECONDS = 3.0
OPTIONS = ("--time-scale", "100")


class _Client(asyncio.Protocol):
    """One connection that sends the next request as soon as the answer is whole. Bare: the generator shares the CPU."""

    def __init__(self, request: bytes, stream: bool, latencies: list[float]) -> None:
        self._request = request
        self._stream = stream
        self._latencies = latencies

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._whole():
            assert b" 200 " in self._received[:20], bytes(self._received)
            self._latencies.append(time.perf_counter() - self._sent_at)
            self._next()

    def _next(self) -> None:
        self._received = bytearray()
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def _whole(self) -> bool:
        if self._stream:
            return self._received.endswith(b"0\r\n\r\n")
        head, found, body = self._received.partition(b"\r\n\r\n")
        return bool(found) and len(body) >= int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0])


def _request(stream: bool) -> bytes:
    body = b'{"model":"tiny","prompt":"Hello there friend","max_tokens":16,"ignore_eos":true,"stream":%s}'
    body %= b"true" if stream else b"false"
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def _load(port: int, stream: bool) -> list[float]:
    latencies: list[float] = []
    loop = asyncio.get_running_loop()
    transports = []
    for _ in range(CONNECTIONS):
        client = _Client(_request(stream), stream, latencies)
        transports.append((await loop.create_connection(lambda client=client: client, "127.0.0.1", port))[0])  # type: ignore[misc]
    await asyncio.sleep(0.5)
    latencies.clear()
    await asyncio.sleep(ROUND_SECONDS)
    result = sorted(latencies)
    for transport in transports:
        transport.abort()
    return result


def _cpu_seconds(pid: int) -> float:
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(engine: EngineProcess, stream: bool, rounds: int) -> str:
    """One line with the medians over ``rounds``."""
    rates, medians, tails, front, core = [], [], [], [], []
    for _ in range(rounds):
        pids = (engine.process.pid, engine.core_pid)
        before = [_cpu_seconds(pid) for pid in pids]
        latencies = asyncio.run(_load(engine.port, stream))
        after = [_cpu_seconds(pid) for pid in pids]
        count = len(latencies) * (1 + 0.5 / ROUND_SECONDS)  # the CPU of the warm-up counts, so do its requests
        rates.append(len(latencies) / ROUND_SECONDS)
        medians.append(latencies[len(latencies) // 2])
        tails.append(latencies[int(len(latencies) * 0.99)])
        front.append((after[0] - before[0]) / count)
        core.append((after[1] - before[1]) / count)
    form = "stream" if stream else "whole "
    server, engine_core = statistics.median(front) * 1e6, statistics.median(core) * 1e6
    return (
        f"{form} 16-token answers: {statistics.median(rates):.0f}/s, P50 {statistics.median(medians) * 1e3:.0f} ms, "
        f"P99 {statistics.median(tails) * 1e3:.0f} ms; CPU per answer: API server {server:.0f} us, "
        f"core {engine_core:.0f} us"
    )


@pytest.mark.benchmark
def test_sim_engine_speed() -> None:
    run(3)


def run(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder, running_sim(Path(folder) / "engine.log", *OPTIONS) as engine:
        print(
            f"\nsimulated engine, {CONNECTIONS} connections, medians of {rounds} x {ROUND_SECONDS:g} s, target 1000/s"
        )
        for stream in (False, True):
            print(measure(engine, stream, rounds))


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
