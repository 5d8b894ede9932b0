"""What one read of the GPUs costs the guard and its child. Targets, at one read a second: 1 % of a core, 30 MB."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from sre.adapters.clock import SystemClock
from sre.adapters.gpu.protocol import ChildOptions, SimOptions
from sre.adapters.gpu.reader import ChildGpuReader
from tests.gpu.support import GIB, NvmlStandin

READS = 300


async def _measure(name: str, options: ChildOptions, environ: Mapping[str, str] | None) -> None:
    reader = ChildGpuReader(options, SystemClock(), deadline_seconds=5, patience_seconds=20, environ=environ)
    try:
        began = time.perf_counter()
        await reader.read()
        first = time.perf_counter() - began
        (child,) = psutil.Process().children()
        ours, theirs = time.process_time(), sum(child.cpu_times()[:2])
        wall = []
        for _ in range(READS):
            began = time.perf_counter()
            await reader.read()
            wall.append(time.perf_counter() - began)
        ours, theirs = time.process_time() - ours, sum(child.cpu_times()[:2]) - theirs
        print(
            f"\n{name}: first read {first:.2f} s; then cpu per read {ours / READS * 1e3:.2f} ms here and"
            f" {theirs / READS * 1e3:.2f} ms in the child; wall median {statistics.median(wall) * 1e3:.2f} ms;"
            f" child rss {child.memory_info().rss / 1e6:.0f} MB"
        )
    finally:
        await reader.close()


@pytest.mark.benchmark
async def test_simulated_gpu() -> None:
    await _measure("simulated GPU", ChildOptions("sim", None, SimOptions("/nowhere", 1, 80 * GIB, 0.6, 38, 68)), None)


@pytest.mark.benchmark
async def test_nvml_with_eight_gpus(short_dir: Path) -> None:
    standin = NvmlStandin(short_dir / "lib")
    standin.set(count=8)
    await _measure("NVML stand-in, 8 GPUs", ChildOptions("nvml"), standin.environ)
