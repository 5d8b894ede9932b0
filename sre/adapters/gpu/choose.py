"""Which reader ``guard.gpu_reader`` stands for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sre.adapters.gpu.protocol import ChildOptions, SimOptions
from sre.adapters.gpu.reader import ChildGpuReader, NoGpuReader
from sre.clock import Clock
from sre.settings.guard import GuardSettings
from sre.settings.stack import StackSettings


def gpu_reader(
    guard: GuardSettings,
    stack: StackSettings,
    *,
    overlay: Path,
    sim_folder: Path,
    clock: Clock,
    patience_seconds: float = 0.5,
    environ: Mapping[str, str] | None = None,
) -> ChildGpuReader | NoGpuReader:
    """
    Return the reader that the settings ask for.

    ``auto`` reads NVML where this machine has it, else simulated GPUs if an engine is simulated, else reports the GPUs
    that engines are configured to use as not seen. An NVML that is there and does not work is never replaced by a
    simulation.

    Args:
        overlay: File of chaos values (``StatePaths.gpu_overlay``).
        sim_folder: Where simulated engines say how they load their GPUs (``StatePaths.sim_gpu``).
        patience_seconds: How long one ``read`` may wait for values younger than the last ones.
    """
    if guard.gpu_reader == "none":
        return NoGpuReader()
    simulated = guard.gpu_reader == "sim" or any(engine.kind == "sim" for engine in stack.engines)
    sim = None
    if simulated and guard.gpu_reader != "nvml":
        sim = SimOptions(
            folder=str(sim_folder),
            count=stack.sim_gpu.count,
            memory_total_bytes=stack.sim_gpu.memory_total_bytes,
            memory_used_ratio=stack.sim_gpu.memory_used_ratio,
            idle_temperature_celsius=stack.sim_gpu.idle_temperature_celsius,
            load_temperature_celsius=stack.sim_gpu.load_temperature_celsius,
        )
    return ChildGpuReader(
        ChildOptions(backend=guard.gpu_reader, overlay=str(overlay), sim=sim),
        clock,
        deadline_seconds=guard.gpu_deadline_seconds,
        patience_seconds=min(patience_seconds, guard.gpu_deadline_seconds),
        expected_gpus={index for engine in stack.engines if engine.kind != "external" for index in engine.gpus},
        environ=environ,
    )
