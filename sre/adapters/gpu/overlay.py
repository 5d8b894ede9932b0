"""
Values that a chaos fault puts over what was read, at the reader's seam: they act the same on real and simulated GPUs.

The file: ``{"boot_id", "expires_monotonic", "run_id", "gpus": {"0": {"temperature_celsius", "memory_used_ratio",
"hang"}}}``. It ends by itself: after ``expires_monotonic``, or in another boot, it is as if it were not there.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sre.signals.types import GpuSeen, Reading

MAX_FILE_BYTES = 65536


@dataclass(frozen=True, slots=True)
class GpuOverlay:
    """What one GPU is to show; None leaves the value as it was read."""

    temperature_celsius: float | None = None
    memory_used_ratio: float | None = None
    hang: bool = False


def load_overlay(file: Path, *, boot_id: str, now: float) -> Mapping[int, GpuOverlay]:
    """Return the overlay in force at monotonic ``now`` per GPU index; empty when there is none. Never raises."""
    try:
        with file.open("rb") as stream:
            return parse_overlay(stream.read(MAX_FILE_BYTES), boot_id=boot_id, now=now)
    except OSError:
        return {}


def parse_overlay(text: bytes, *, boot_id: str, now: float) -> Mapping[int, GpuOverlay]:
    """As ``load_overlay``, from the file's content. A file that is not exactly of the form above is no overlay."""
    try:
        document = json.loads(text)
        if document["boot_id"] != boot_id or not now < _number(document["expires_monotonic"]):
            return {}
        return {
            int(index): GpuOverlay(
                _optional(gpu.get("temperature_celsius")),
                _optional(gpu.get("memory_used_ratio")),
                gpu.get("hang") is True,
            )
            for index, gpu in document["gpus"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"not a number: {value!r}")
    return float(value)


def _optional(value: Any) -> float | None:
    return None if value is None else _number(value)


def apply_overlay(gpus: Sequence[GpuSeen], overlay: Mapping[int, GpuOverlay], *, now: float) -> Sequence[GpuSeen]:
    """Return ``gpus`` with the overlay's values, marked ``injected``. GPUs that were not read are not invented."""
    return [_applied(gpu, overlay[gpu.index], now) if gpu.index in overlay else gpu for gpu in gpus]


def _applied(gpu: GpuSeen, over: GpuOverlay, now: float) -> GpuSeen:
    memory, temperature = over.memory_used_ratio, over.temperature_celsius
    if memory is None and temperature is None:
        return gpu
    details = gpu.details
    if memory is not None and details is not None and details.memory_total_bytes is not None:
        # One fault, told by every value that would tell it.
        taken = round(memory * details.memory_total_bytes)
        details = dataclasses.replace(details, memory_used_bytes=max(0, min(taken, details.memory_total_bytes)))
    return dataclasses.replace(
        gpu,
        injected=True,
        details=details,
        memory_used_ratio=gpu.memory_used_ratio if memory is None else Reading.of(memory, now),
        temperature_celsius=gpu.temperature_celsius if temperature is None else Reading.of(temperature, now),
    )


def hangs(gpus: Sequence[GpuSeen], overlay: Mapping[int, GpuOverlay]) -> bool:
    """Whether a read of ``gpus`` is to hang: one hung GPU holds up the whole caller."""
    return any(overlay[gpu.index].hang for gpu in gpus if gpu.index in overlay)
