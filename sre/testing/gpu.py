"""GPUs in memory, for tests of what reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sre.clock import Clock
from sre.signals.types import GpuSeen, Reading, Seen


class FakeGpuReader:
    """
    ``GpuReader`` whose values are set by the test. Fresh GPUs idle at 40 °C with half their memory taken.

    ``hang`` and ``recover`` switch between "a GPU call does not return" (all readings UNREACHABLE) and normal.
    """

    def __init__(self, clock: Clock, count: int = 1, *, source: str = "sim") -> None:
        self._clock = clock
        self._hung = False
        self.closed = False
        now = clock.monotonic()
        self._gpus = {
            index: GpuSeen(
                index=index,
                uuid=f"FAKE-GPU-{index}",
                source=source,
                memory_used_ratio=Reading.of(0.5, now),
                temperature_celsius=Reading.of(40.0, now),
                utilization_ratio=Reading.of(0.0, now),
                power_watts=Reading.of(60.0, now),
            )
            for index in range(count)
        }

    def set(
        self,
        index: int = 0,
        *,
        memory_used_ratio: float | None = None,
        temperature_celsius: float | None = None,
        injected: bool = False,
    ) -> None:
        """Let GPU ``index`` show these values from now on; None leaves a value as it is."""
        now, gpu = self._clock.monotonic(), self._gpus[index]
        self._gpus[index] = dataclasses.replace(
            gpu,
            injected=injected,
            memory_used_ratio=gpu.memory_used_ratio
            if memory_used_ratio is None
            else Reading.of(memory_used_ratio, now),
            temperature_celsius=gpu.temperature_celsius
            if temperature_celsius is None
            else Reading.of(temperature_celsius, now),
        )

    def lose(self, index: int) -> None:
        """Let GPU ``index`` fall off the bus; the others stay."""
        gone = Reading.missing(self._clock.monotonic(), Seen.UNREACHABLE)
        self._gpus[index] = _with_all(self._gpus[index], gone)

    def hang(self) -> None:
        self._hung = True

    def recover(self) -> None:
        self._hung = False

    async def read(self) -> Sequence[GpuSeen]:
        now = self._clock.monotonic()
        if self._hung:
            return [_with_all(gpu, Reading.missing(now, Seen.UNREACHABLE)) for gpu in self._gpus.values()]
        return [_dated(gpu, now) for gpu in self._gpus.values()]

    async def close(self) -> None:
        self.closed = True


def _with_all(gpu: GpuSeen, reading: Reading) -> GpuSeen:
    return dataclasses.replace(
        gpu,
        memory_used_ratio=reading,
        temperature_celsius=reading,
        utilization_ratio=reading,
        power_watts=reading,
        processes=(),
    )


def _dated(gpu: GpuSeen, now: float) -> GpuSeen:
    return dataclasses.replace(
        gpu,
        memory_used_ratio=dataclasses.replace(gpu.memory_used_ratio, sampled_at=now),
        temperature_celsius=dataclasses.replace(gpu.temperature_celsius, sampled_at=now),
        utilization_ratio=dataclasses.replace(gpu.utilization_ratio, sampled_at=now),
        power_watts=dataclasses.replace(gpu.power_watts, sampled_at=now),
    )
