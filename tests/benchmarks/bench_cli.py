"""How long `sre --help` takes: fresh interpreters, wall clock. Target: 0.2 s."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest

ROUNDS = 20


@pytest.mark.benchmark
def test_help_speed() -> None:
    def once(*argv: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *argv], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    once("-m", "sre", "--help")  # fills the file cache
    pairs = [(once("-c", "pass"), once("-m", "sre", "--help")) for _ in range(ROUNDS)]
    bare, full = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"\nsre --help: median {full:.3f} s of {ROUNDS}, of which bare Python {bare:.3f} s (target 0.2 s)")


@pytest.mark.benchmark
def test_generate_speed() -> None:
    def once() -> float:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "sre", "rules", "generate", "--stdout"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        return time.perf_counter() - began

    once()
    took = sorted(once() for _ in range(7))
    print(f"\nsre rules generate: median {statistics.median(took):.2f} s of 7, slowest {took[-1]:.2f} s (target 1 s)")
