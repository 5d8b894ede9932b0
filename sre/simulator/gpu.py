"""
Model of a GPU that is not there: memory, temperature and power from what the simulated engines do to it.

Memory is what the engines say they hold, at least the configured steady share, since vLLM reserves it at its start.
Engines on one GPU divide it among them, as an operator would have to configure it. The temperature approaches a level
set by the utilization, exponentially. Nothing here is fitted to a card: the figures only have the order of a
data-centre GPU, so that rules, drills and dashboards meet plausible values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

THERMAL_TIME_CONSTANT_SECONDS = 8.0
"""Origin: gut feeling; a cooled card reaches its load temperature within about half a minute."""
IDLE_WATTS = 60.0
LOAD_WATTS = 400.0
DRIVER_BYTES = 600 * 1024**2
"""Taken on an idle GPU; order of magnitude of an 80 GB card."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """
    One simulated GPU.

    Attributes:
        memory_used_ratio: Share of the memory that is taken at least while an engine lives.
        load_temperature_celsius: Steady temperature at utilization 1.
    """

    memory_total_bytes: int
    memory_used_ratio: float
    idle_temperature_celsius: float
    load_temperature_celsius: float


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """What one living engine does to one GPU. ``memory_used_bytes`` None or 0: it does not say."""

    pid: int
    memory_used_bytes: int | None
    utilization_ratio: float


@dataclass(frozen=True, slots=True)
class GpuState:
    """What the simulated GPU shows."""

    memory_used_bytes: int
    memory_used_ratio: float
    temperature_celsius: float
    utilization_ratio: float
    power_watts: float
    processes: tuple[tuple[int, int], ...]
    """(pid, bytes) per engine."""


def state(
    model: GpuModel, loads: Sequence[GpuLoad], temperature_before_celsius: float | None, elapsed_seconds: float
) -> GpuState:
    """
    Return what the GPU shows ``elapsed_seconds`` after it had ``temperature_before_celsius``.

    Args:
        temperature_before_celsius: None at first: the temperature is then the steady one of the present load.
    """
    reserved = int(model.memory_total_bytes * model.memory_used_ratio)
    processes = tuple((load.pid, max(load.memory_used_bytes or 0, reserved) // len(loads)) for load in loads)
    used = min(model.memory_total_bytes, DRIVER_BYTES + sum(held for _, held in processes))
    utilization = min(1.0, max(0.0, math.fsum(load.utilization_ratio for load in loads)))
    target = model.idle_temperature_celsius + utilization * (
        model.load_temperature_celsius - model.idle_temperature_celsius
    )
    temperature = target
    if temperature_before_celsius is not None:
        decay = math.exp(-max(0.0, elapsed_seconds) / THERMAL_TIME_CONSTANT_SECONDS)
        temperature = target + (temperature_before_celsius - target) * decay
    return GpuState(
        memory_used_bytes=used,
        memory_used_ratio=used / model.memory_total_bytes,
        temperature_celsius=temperature,
        utilization_ratio=utilization,
        power_watts=IDLE_WATTS + utilization * (LOAD_WATTS - IDLE_WATTS),
        processes=processes,
    )
