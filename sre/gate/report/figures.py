"""Numbers as people read them; one place, so that every report says the same."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Sequence

NOTHING = "–"
FAILED = "failed"
"""An infinite time: the request got no usable answer."""

METRICS = {
    "ttft_p99_seconds": "TTFT P99",
    "ttft_p95_seconds": "TTFT P95",
    "ttft_p50_seconds": "TTFT P50",
    "e2e_p99_seconds": "end to end P99",
    "e2e_p95_seconds": "end to end P95",
    "e2e_p50_seconds": "end to end P50",
    "tpot_p99_seconds": "TPOT P99",
    "tpot_p95_seconds": "TPOT P95",
    "tpot_p50_seconds": "TPOT P50",
    "failed_ratio": "failed",
    "throughput_rps": "answers per second",
    "throughput_ratio": "answered of offered",
    "output_tokens_per_second": "output tokens per second",
}


def metric(name: str) -> str:
    """A cell's metric in words; a name we do not know as it is."""
    return METRICS.get(name, name)


def of_metric(name: str, value: float | None) -> str:
    """A value with the unit that the metric's name says."""
    if name.endswith("_seconds"):
        return seconds(value)
    if name.endswith("_ratio"):
        return percent(value)
    return number(value)


def seconds(value: float | None) -> str:
    """``45.2 ms``, ``1.24 s``; infinite: failed."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return FAILED
    if 0 < abs(value) < 0.0001:
        return f"{_three(value * 1e6)} µs"
    if abs(value) < 1:
        return f"{_three(value * 1000)} ms"
    return f"{_three(value)} s"


def number(value: float | None) -> str:
    """Three digits that count, or all of a large number's."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return _three(value)


def percent(value: float | None, *, signed: bool = False) -> str:
    """A ratio in per cent."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = _three(value * 100)
    return f"{'+' if signed and value > 0 and not text.startswith('+') else ''}{text} %"


def probability(value: float | None) -> str:
    """``0.12``; small ones with a digit more: 0.0498 is below 0.05, which 0.050 would not show; ``< 0.001``."""
    if value is None or math.isnan(value):
        return NOTHING
    return "< 0.001" if value < 0.001 else f"{value:.4f}" if value < 0.1 else f"{value:.3f}"


def yes_no(value: bool | None, *, unknown: str = "cannot tell") -> str:
    return unknown if value is None else "yes" if value else "no"


def median(values: Sequence[float]) -> float | None:
    """Middle of the runs; infinite if half of them are; None without any."""
    return statistics.median(values) if values else None


def utc(wall: float) -> str:
    """``2026-12-01 03:05:00 UTC``; a moment no calendar has: as a number."""
    try:
        return datetime.datetime.fromtimestamp(wall, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{wall:g}"


def counted(count: int, one: str, many: str = "") -> str:
    """``1 run``, ``5 runs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _three(value: float) -> str:
    if value == 0:
        return "0"
    size = abs(value)
    digits = max(0, 2 - math.floor(math.log10(size))) if size < 100 else 0
    if digits > 6:
        return f"{value:.2g}"
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
