"""What NVML says of a GPU beyond the rules' readings. Each value is asked for by itself: what a card lacks is None."""

from __future__ import annotations

from typing import Any

import pynvml

ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field: the sum over all links."""
KIB = 1024
LOWEST_MEMORY_CELSIUS = 1
"""Cards without a sensor in their memory say 0."""

MEMORY_TEMPERATURE = (pynvml.NVML_FI_DEV_MEMORY_TEMP, 0)
ECC_UNCORRECTED = (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, 0)
ROW_REMAP_FAILURE = (pynvml.NVML_FI_DEV_REMAPPED_FAILURE, 0)
NVLINK_SENT_KIB = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS)
NVLINK_RECEIVED_KIB = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS)
FIELDS = (MEMORY_TEMPERATURE, ECC_UNCORRECTED, ROW_REMAP_FAILURE, NVLINK_SENT_KIB, NVLINK_RECEIVED_KIB)

THROTTLE_REASONS: tuple[tuple[str, int], ...] = (
    ("sw_power_cap", pynvml.nvmlClocksThrottleReasonSwPowerCap),
    ("hw_slowdown", pynvml.nvmlClocksThrottleReasonHwSlowdown),
    ("sync_boost", pynvml.nvmlClocksThrottleReasonSyncBoost),
    ("sw_thermal_slowdown", pynvml.nvmlClocksThrottleReasonSwThermalSlowdown),
    ("hw_thermal_slowdown", pynvml.nvmlClocksThrottleReasonHwThermalSlowdown),
    ("hw_power_brake", pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
)
"""An idle GPU, and clocks that somebody set, are no throttling."""

_UNION_MEMBER = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


def field_details(handle: Any) -> dict[str, Any]:
    """Fields of ``GpuDetails`` that come as NVML field values: one call for all, each with a verdict of its own."""
    try:
        answers = pynvml.nvmlDeviceGetFieldValues(handle, list(FIELDS))
    except pynvml.NVMLError:
        return {}
    values = {wanted: _value(answer) for wanted, answer in zip(FIELDS, answers, strict=True)}
    temperature, failure = values[MEMORY_TEMPERATURE], values[ROW_REMAP_FAILURE]
    plausible = temperature is not None and LOWEST_MEMORY_CELSIUS <= temperature <= 150
    return {
        "memory_temperature_celsius": temperature if plausible else None,
        "ecc_uncorrected_errors": _count(values[ECC_UNCORRECTED]),
        "row_remap_failed": None if failure is None else failure != 0,
        "nvlink_sent_bytes": _count(values[NVLINK_SENT_KIB], KIB),
        "nvlink_received_bytes": _count(values[NVLINK_RECEIVED_KIB], KIB),
    }


def _value(answer: Any) -> float | None:
    member = _UNION_MEMBER.get(int(answer.valueType))
    if answer.nvmlReturn != pynvml.NVML_SUCCESS or member is None:
        return None
    value: float = getattr(answer.value, member)
    return value


def _count(value: float | None, unit: int = 1) -> int | None:
    return int(value) * unit if value is not None and value >= 0 else None


def throttle_details(handle: Any) -> tuple[tuple[str, bool], ...]:
    """(reason, whether it holds now) of the reasons that this card knows; empty when it does not say."""
    try:
        now = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        known = int(pynvml.nvmlDeviceGetSupportedClocksThrottleReasons(handle))
    except pynvml.NVMLError:
        return ()
    return tuple((reason, bool(now & bit)) for reason, bit in THROTTLE_REASONS if known & bit)
