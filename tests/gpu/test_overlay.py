"""The overlay file: exactly its form, only in its time and boot, and never a GPU that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.adapters.gpu.overlay import GpuOverlay, apply_overlay, hangs, load_overlay, parse_overlay
from sre.signals.types import GpuSeen, Reading, Seen


def text(**changes: Any) -> bytes:
    document = {
        "boot_id": "b",
        "expires_monotonic": 100.0,
        "run_id": "r",
        "gpus": {"0": {"temperature_celsius": 92.0, "memory_used_ratio": 0.97, "hang": False}},
    }
    return json.dumps(document | changes).encode()


def gpu(index: int) -> GpuSeen:
    return GpuSeen(index, f"u{index}", "nvml", Reading.of(0.5, 1.0), Reading.missing(1.0, Seen.ABSENT))


def test_values_in_force() -> None:
    assert parse_overlay(text(), boot_id="b", now=99.9) == {0: GpuOverlay(92.0, 0.97, False)}


@pytest.mark.parametrize(
    ("content", "now"),
    [
        (text(), 100.0),
        (text(boot_id="other"), 1.0),
        (text(expires_monotonic="soon"), 1.0),
        (text(expires_monotonic=float("inf")), 1.0),
        (text(gpus=[1]), 1.0),
        (text(gpus={"zero": {}}), 1.0),
        (text(gpus={"0": {"temperature_celsius": "hot"}}), 1.0),
        (text(gpus={"0": {"temperature_celsius": float("nan")}}), 1.0),
        (text()[:-7], 1.0),
        (b"[]", 1.0),
        (b"", 1.0),
    ],
    ids=["expired", "boot", "when", "never-ends", "list", "index", "text", "nan", "cut", "array", "empty"],
)
def test_anything_else_is_no_overlay(content: bytes, now: float) -> None:
    assert parse_overlay(content, boot_id="b", now=now) == {}


def test_no_file_is_no_overlay(tmp_path: Path) -> None:
    assert load_overlay(tmp_path / "missing.json", boot_id="b", now=1.0) == {}


@given(st.binary(max_size=200))
def test_no_content_raises(content: bytes) -> None:
    parse_overlay(content, boot_id="b", now=1.0)


def test_values_are_put_over_what_was_read_and_marked() -> None:
    first, second = apply_overlay([gpu(0), gpu(1)], {0: GpuOverlay(temperature_celsius=92.0)}, now=7.0)
    assert first.temperature_celsius == Reading(92.0, 7.0)
    assert first.memory_used_ratio == Reading(0.5, 1.0)
    assert first.injected
    assert second == gpu(1)


def test_a_gpu_that_was_not_read_is_not_invented() -> None:
    assert apply_overlay([gpu(1)], {0: GpuOverlay(92.0)}, now=7.0) == [gpu(1)]


def test_only_gpus_that_are_there_can_hang() -> None:
    assert hangs([gpu(0)], {0: GpuOverlay(hang=True)})
    assert not hangs([gpu(1)], {0: GpuOverlay(hang=True)})
    assert not hangs([gpu(0)], {})
