"""How long `sre rules lint` takes on 50,000 lines of rules, all expressions different. Target: 5 s."""

from __future__ import annotations

import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

LINES = 50_000
ROUNDS = 5
NOISE_PROCESSES = 2


def rules(lines: int, seed: int = 1) -> str:
    """A rule file of about so many lines: groups of records and alerts, every expression its own."""
    choose = random.Random(seed)
    out = ["groups:"]
    number = 0
    while len(out) < lines:
        out += [f"  - name: group-{number}", "    interval: 30s", "    rules:"]
        for _ in range(10):
            number += 1
            job, window, threshold = f"job-{number}", f"{choose.randint(2, 30)}m", choose.randint(1, 99) / 100
            out += [
                f"      - record: model_name:vllm_hits_{number}:ratio_rate5m",
                "        expr: |",
                f'          sum by (model_name) (rate(vllm:prefix_cache_hits_total{{job="{job}"}}[{window}]))',
                "          /",
                f'          (sum by (model_name) (rate(vllm:prefix_cache_queries_total{{job="{job}"}}[{window}])) > 0)',
                f"      - alert: PrefixCacheHitsLow{number}",
                f"        expr: model_name:vllm_hits_{number}:ratio_rate5m < {threshold}",
                "        for: 10m",
                "        labels:",
                "          severity: ticket",
                "        annotations:",
                '          summary: "{{ $labels.model_name }} finds little in its prefix cache"',
                f'          description: "{{{{ $value | humanizePercentage }}}} of the tokens of job {job}."',
                f"          runbook_url: https://example.org/runbooks/PrefixCacheHitsLow{number}.md",
            ]
    return "\n".join(out[:lines]) + "\n"


def timed(path: Path) -> tuple[float, float]:
    """Wall clock and CPU of the whole command, start of Python included, seconds."""
    began, used = time.perf_counter(), cpu_of_children()
    subprocess.run([sys.executable, "-m", "sre", "rules", "lint", str(path)], capture_output=True, check=True)
    return time.perf_counter() - began, cpu_of_children() - used


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(what: str, seconds: list[tuple[float, float]]) -> None:
    wall, cpu = (sorted(column) for column in zip(*seconds, strict=True))
    print(f"\n{what}: median {statistics.median(wall):.2f} s, slowest {wall[-1]:.2f} s of {len(seconds)}; "
          f"CPU {statistics.median(cpu):.2f} s")  # fmt: skip


@pytest.mark.benchmark
def test_lint_speed(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(rules(LINES))
    report(f"sre rules lint of {LINES:,} lines (target 5 s)", [timed(path) for _ in range(ROUNDS)])
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(NOISE_PROCESSES)]
    try:
        report(f"the same beside {NOISE_PROCESSES} busy processes", [timed(path) for _ in range(ROUNDS)])
    finally:
        for process in busy:
            process.kill()
            process.wait()
