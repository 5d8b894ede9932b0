"""NVIDIA GPUs through NVML (nvidia-ml-py). Each field fails for itself; a lost GPU does not hide the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from sre.adapters.gpu.backend import BackendFailed, NotHere
from sre.adapters.gpu.card_names import CardNames
from sre.adapters.gpu.nvml_details import field_details, throttle_details
from sre.adapters.gpu.nvml_events import XidEvents
from sre.signals.types import GpuDetails, GpuSeen, Reading, Seen

REINITIALIZE_AFTER_SECONDS = 30.0
"""NVML keeps saying "lost" of a GPU that came back until it is initialized anew; so often that is tried."""

_NOT_HERE = frozenset({pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_TIMEOUT})
_ABSENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    }
)
_OLD_DRIVER = frozenset(
    {
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
    }
)


class NvmlBackend:
    """
    Raises:
        NotHere: No library, no driver, or no GPU.
        BackendFailed: NVML is there and does not work.
    """

    source = "nvml"

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._initialized_at = monotonic()
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            kind = NotHere if error.value in _NOT_HERE else BackendFailed
            raise kind(f"NVML: {error}") from error
        if count == 0:
            raise NotHere("NVML: the driver shows no GPU")
        self._xids = XidEvents()
        self._uuids = CardNames()
        self._handles(count)  # events count from now on, not from the first read

    def read(self) -> Sequence[GpuSeen]:
        try:
            handles = self._handles(pynvml.nvmlDeviceGetCount())
            self._xids.look()
            gpus = [self._gpu(index, handle) for index, handle in enumerate(handles)]
            lost = any(gpu.memory_used_ratio.seen is Seen.UNREACHABLE for gpu in gpus)
            if lost and self._monotonic() - self._initialized_at >= REINITIALIZE_AFTER_SECONDS:
                self._initialized_at = self._monotonic()
                self._xids.forget_session()
                pynvml.nvmlShutdown()
                pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise BackendFailed(f"NVML: {error}") from error
        return gpus

    def _handles(self, count: int) -> list[Any]:
        """A handle per index, or the error why there is none. Those that are new are listened to."""
        handles: list[Any] = []
        for index in range(count):
            try:
                handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))
            except pynvml.NVMLError as error:
                handles.append(error)
        answering = {i: h for i, h in enumerate(handles) if not isinstance(h, pynvml.NVMLError)}
        self._uuids.seen({index: _uuid(handle) for index, handle in answering.items()})
        self._xids.listen({self._uuids.card(index): handle for index, handle in answering.items()})
        return handles

    def _gpu(self, index: int, handle: Any) -> GpuSeen:
        at, uuid, xids = self._monotonic(), self._uuids.of(index), self._xids.of(self._uuids.card(index))
        if isinstance(handle, pynvml.NVMLError):
            why = self._missing(handle)
            return GpuSeen(index, uuid, self.source, why, why, why, why, details=GpuDetails(at, **xids))
        memory, used, total = self._memory(handle)
        return GpuSeen(
            index=index,
            uuid=uuid,
            source=self.source,
            memory_used_ratio=memory,
            temperature_celsius=self._reading(
                lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU), -40.0, 150.0
            ),
            utilization_ratio=self._reading(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, 0.0, 1.0),
            power_watts=self._reading(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000, 0.0, 10_000.0),
            processes=_processes(handle),
            details=GpuDetails(
                at,
                memory_used_bytes=used,
                memory_total_bytes=total,
                throttled=throttle_details(handle),
                **field_details(handle),
                **xids,
            ),
        )

    def _memory(self, handle: Any) -> tuple[Reading, int | None, int | None]:
        """Share taken, bytes taken, bytes of the card."""
        try:
            free, total = _free_and_total(handle)
        except pynvml.NVMLError as error:
            return self._missing(error), None, None
        if not 0 <= free <= total or total == 0:
            return Reading.missing(self._monotonic(), Seen.INVALID), None, None
        return Reading.of(1.0 - free / total, self._monotonic()), total - free, total

    def _reading(self, ask: Callable[[], Any], low: float, high: float) -> Reading:
        try:
            value = float(ask())
        except pynvml.NVMLError as error:
            return self._missing(error)
        if not low <= value <= high:
            return Reading.missing(self._monotonic(), Seen.INVALID)
        return Reading.of(value, self._monotonic())

    def _missing(self, error: Any) -> Reading:
        """Not offered by this card is ABSENT, a GPU that does not answer is UNREACHABLE, anything else INVALID."""
        if error.value in _ABSENT:
            return Reading.missing(self._monotonic(), Seen.ABSENT)
        return Reading.missing(self._monotonic(), Seen.UNREACHABLE if error.value in _LOST else Seen.INVALID)


def _free_and_total(handle: Any) -> tuple[int, int]:
    """
    Bytes of the GPU's memory that somebody can still have, and all of it; so the driver's reserve counts as taken.

    The two interfaces call different things "used" (the old one includes the reserve, the new one does not); free and
    total mean the same in both.
    """
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in _OLD_DRIVER:
            raise
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.free), int(memory.total)


def _uuid(handle: Any) -> str:
    try:
        uuid = pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError:
        return ""
    return uuid.decode("ascii", "replace") if isinstance(uuid, bytes) else str(uuid)


def _processes(handle: Any) -> tuple[tuple[int, int], ...]:
    """(pid, bytes) of compute processes; those without an account (containers, MIG) are left out."""
    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return ()
    return tuple((int(p.pid), int(p.usedGpuMemory)) for p in running if p.usedGpuMemory is not None)
