"""Simulated GPUs: the sum of what living simulated engines say they do to them, through the pure model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sre.signals.types import GpuDetails, GpuSeen, Reading
from sre.simulator.gpu import GpuLoad, GpuModel, state

FRESH_SECONDS = 3.0
"""An engine that has not written for so long computes nothing: its memory stays, its utilization is 0."""
MAX_FILE_BYTES = 65536


class SimulatedBackend:
    """
    Args:
        folder: One ``ENGINE.json`` per simulated engine; files of dead processes and of other boots are ignored.
        boot_id: This boot.
        start_ticks: Field 22 of /proc/PID/stat of a living process, None for a dead one.
    """

    source = "sim"

    def __init__(
        self,
        folder: Path,
        count: int,
        model: GpuModel,
        *,
        boot_id: str,
        monotonic: Callable[[], float],
        start_ticks: Callable[[int], int | None],
    ) -> None:
        self._folder = folder
        self._count = count
        self._model = model
        self._boot_id = boot_id
        self._monotonic = monotonic
        self._start_ticks = start_ticks
        self._temperatures: dict[int, float] = {}
        self._read_at: float | None = None

    def read(self) -> Sequence[GpuSeen]:
        at = self._monotonic()
        elapsed = 0.0 if self._read_at is None else at - self._read_at
        self._read_at = at
        loads: dict[int, list[GpuLoad]] = {}
        for index, load in self._loads(at):
            loads.setdefault(index, []).append(load)
        gpus = []
        for index in range(self._count):
            now = state(self._model, loads.get(index, ()), self._temperatures.get(index), elapsed)
            self._temperatures[index] = now.temperature_celsius
            gpus.append(
                GpuSeen(
                    index=index,
                    uuid=f"SIM-GPU-{index}",
                    source=self.source,
                    memory_used_ratio=Reading.of(now.memory_used_ratio, at),
                    temperature_celsius=Reading.of(now.temperature_celsius, at),
                    utilization_ratio=Reading.of(now.utilization_ratio, at),
                    power_watts=Reading.of(now.power_watts, at),
                    processes=now.processes,
                    # It has no links, sensors and rows that could fail: only what the model knows is shown.
                    details=GpuDetails(
                        at,
                        memory_used_bytes=now.memory_used_bytes,
                        memory_total_bytes=self._model.memory_total_bytes,
                        xid_last=0,
                    ),
                )
            )
        return gpus

    def _loads(self, at: float) -> Iterator[tuple[int, GpuLoad]]:
        try:
            files = sorted(self._folder.glob("*.json"))
        except OSError:
            return
        for file in files:
            document = read_object(file)
            try:
                yield from self._engine(document, at)
            except (KeyError, TypeError, ValueError, AttributeError):
                continue  # not a file of ours; engines replace theirs as a whole, so half a file does not occur

    def _engine(self, document: dict[str, Any], at: float) -> Iterator[tuple[int, GpuLoad]]:
        pid = int(document["pid"])
        if document["boot_id"] != self._boot_id or self._start_ticks(pid) != int(document["start_ticks"]):
            return
        fresh = at - float(document["updated_monotonic"]) <= FRESH_SECONDS
        for index, gpu in document["gpus"].items():
            memory = gpu.get("memory_used_bytes")
            utilization = float(gpu.get("utilization_ratio", 0.0)) if fresh else 0.0
            yield int(index), GpuLoad(pid, None if memory is None else int(memory), utilization)


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in ``file``; empty when there is none, or it is larger than 64 KiB."""
    try:
        with file.open("rb") as stream:
            document = json.loads(stream.read(MAX_FILE_BYTES))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
