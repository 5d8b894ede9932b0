"""
Metrics of NVIDIA's dcgm-exporter, in both generations of names.

Up to 4.8 the names are those of DCGM 4.6 and before (per cent, MiB, MHz, mJ); 4.9.0 (DCGM 4.7) renames 23 fields of its
defaults, 11 of them with another unit (ratio 0..1, bytes, hertz, joules). Counters are exposed without ``_total``
being appended. What a CSV selects is what is exposed: only ``optional=False`` is in every default.

Sources: the exporter's CSV files up to 4.8, the release notes of 4.9.0 (numbers and units of the renamed fields), and
DCGM 4.7's field identifiers (the names). That 4.9.0's CSV uses exactly these identifiers is inferred.
"""

from __future__ import annotations

from functools import partial

from sre.metrics.types import Exporter, Kind, Metric, Unit, Version

RENAMED_IN = Version(4, 9)

# Labels
GPU = "gpu"
UUID = "UUID"
PCI_BUS_ID = "pci_bus_id"
DEVICE = "device"
MODEL_NAME = "modelName"
HOSTNAME_OLD = "Hostname"
HOSTNAME = "hostname"
"""Spelled like this since 4.8.3."""
DRIVER_VERSION_OLD = "DCGM_FI_DRIVER_VERSION"
DRIVER_VERSION = "DCGM_FI_SYSTEM_DRIVER_VERSION"
MIG_INSTANCE = "GPU_I_ID"
MIG_PROFILE = "GPU_I_PROFILE"
POD = "pod"
NAMESPACE = "namespace"
CONTAINER = "container"
XID = "xid"
ERR_CODE = "err_code"
ERR_MESSAGE = "err_msg"

PER_GPU = (GPU, UUID, DEVICE, MODEL_NAME)
_SOMETIMES = (
    PCI_BUS_ID, HOSTNAME_OLD, HOSTNAME, DRIVER_VERSION_OLD, DRIVER_VERSION, MIG_INSTANCE, MIG_PROFILE,
    POD, NAMESPACE, CONTAINER, ERR_CODE, ERR_MESSAGE,
)  # fmt: skip

_MEBIBYTES = (0.0, 2_000_000.0)
"""2 TB of GPU memory, in MiB: what is larger is bytes."""
_BYTES = (0.0, 4e12)
_MEGAHERTZ = (0.0, 20_000.0)
_HERTZ = (0.0, 2e10)


def _dcgm(
    name: str,
    kind: Kind,
    text: str,
    *,
    labels: tuple[str, ...] = (),
    unit: Unit = Unit.ONE,
    new: bool | None = None,
    by: str | None = None,
    optional: bool = False,
    rate_already: bool = False,
    plausible: tuple[float, float] | None = None,
    late: bool = False,
) -> Metric:
    """A field; ``new``: True since 4.9 only, False up to 4.8 only; ``by``: its name since 4.9."""
    old = new is False or by is not None
    return Metric(
        name, kind, text, (*PER_GPU, *_SOMETIMES, *labels), unit=unit, exporter=Exporter.DCGM, bare=True,
        rate_already=rate_already, since=RENAMED_IN if new else None, removed=RENAMED_IN if old else None,
        replaced_by=by, optional=optional, optional_labels=_SOMETIMES, plausible=plausible, late=late,
    )  # fmt: skip


_gauge = partial(_dcgm, kind=Kind.GAUGE)
_counter = partial(_dcgm, kind=Kind.COUNTER)
_new = partial(_dcgm, kind=Kind.GAUGE, new=True)
_new_counter = partial(_dcgm, kind=Kind.COUNTER, new=True)

# ---- Since 4.9 ------------------------------------------------------------------------------------------------------

GPU_UTIL_RATIO = _new("DCGM_FI_DEV_GPU_UTIL_RATIO", text="Share of time with a kernel running.", unit=Unit.RATIO)
"""Before DCGM 4.7 this name is an alias of the field in per cent: a custom CSV can expose it as 0..100."""
MEMORY_UTIL_RATIO = _new("DCGM_FI_DEV_MEMORY_UTIL_RATIO", text="Share of time memory was copied.", unit=Unit.RATIO)
ENC_UTIL_RATIO = _new("DCGM_FI_DEV_ENC_UTIL_RATIO", text="Use of the encoder.", unit=Unit.RATIO)
DEC_UTIL_RATIO = _new("DCGM_FI_DEV_DEC_UTIL_RATIO", text="Use of the decoder.", unit=Unit.RATIO)
FB_USED_BYTES = _new("DCGM_FI_DEV_FB_USED_BYTES", text="Memory in use.", unit=Unit.BYTES, plausible=_BYTES)
FB_FREE_BYTES = _new("DCGM_FI_DEV_FB_FREE_BYTES", text="Memory free.", unit=Unit.BYTES, plausible=_BYTES)
FB_RESERVED_BYTES = _new(
    "DCGM_FI_DEV_FB_RESERVED_BYTES", text="Memory kept by the driver.", unit=Unit.BYTES, plausible=_BYTES
)
FB_CAPACITY_BYTES = _new(
    "DCGM_FI_DEV_FB_CAPACITY_BYTES", text="Memory of the card.", unit=Unit.BYTES, plausible=(1e8, 4e12)
)
SM_CLOCK_HERTZ = _new("DCGM_FI_DEV_SM_CLOCK_HERTZ", text="Clock of the SMs.", unit=Unit.HERTZ, plausible=_HERTZ)
MEMORY_CLOCK_HERTZ = _new(
    "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", text="Clock of the memory.", unit=Unit.HERTZ, plausible=_HERTZ
)
GPU_TEMP_CELSIUS = _new("DCGM_FI_DEV_GPU_TEMP_CELSIUS", text="Temperature of the core.", unit=Unit.CELSIUS)
MEMORY_TEMP_CELSIUS = _new(
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", text="Temperature of the memory; 0 on cards without a sensor.",
    unit=Unit.CELSIUS, optional=True,
)  # fmt: skip
BOARD_POWER_WATTS = _new("DCGM_FI_DEV_BOARD_POWER_WATTS", text="Power drawn.", unit=Unit.WATTS)
GPU_ENERGY_JOULES = _new_counter(
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", text="Energy since the driver was loaded.", unit=Unit.JOULES
)
XID_ERROR = _new("DCGM_FI_DEV_XID_ERROR", text="Number of the last XID; never goes back to 0 by itself.")
PCIE_REPLAY = _new_counter("DCGM_FI_DEV_PCIE_REPLAY_TOTAL", text="PCIe packets sent again.")
NVLINK_THROUGHPUT = _new(
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", text="NVLink traffic, both directions, all links.",
    unit=Unit.BYTES_PER_SECOND, optional=True, rate_already=True,
)  # fmt: skip
ROW_REMAP_UNCORRECTABLE = _new_counter(
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", text="Rows remapped for uncorrectable errors.", optional=True
)
ROW_REMAP_CORRECTABLE = _new_counter(
    "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", text="Rows remapped for correctable errors.", optional=True
)
ROW_REMAP_FAILED = _new(
    "DCGM_FI_DEV_ROW_REMAP_FAILED", text="1: a row could not be remapped.", unit=Unit.STATE, optional=True
)
GR_ENGINE_UTIL_RATIO = _new(
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", text="Share of time any engine was active; also per MIG instance.",
    unit=Unit.RATIO, optional=True,
)  # fmt: skip
TENSOR_UTIL_RATIO = _new(
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO", text="Share of cycles the tensor pipe was active.", unit=Unit.RATIO, optional=True
)
DRAM_UTIL_RATIO = _new(
    "DCGM_FI_PROF_DRAM_UTIL_RATIO", text="Share of cycles the memory interface was active.",
    unit=Unit.RATIO, optional=True,
)  # fmt: skip
THERMAL_THROTTLE = _new_counter(
    "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", text="Time slowed down for heat.",
    unit=Unit.SECONDS, optional=True,
)  # fmt: skip
POWER_THROTTLE = _new_counter(
    "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", text="Time slowed down for power.",
    unit=Unit.SECONDS, optional=True,
)  # fmt: skip
PAGE_RETIRED_SBE = _new_counter(
    "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL", text="Pages retired for single-bit errors.", optional=True
)
PAGE_RETIRED_DBE = _new_counter(
    "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL", text="Pages retired for double-bit errors.", optional=True
)

# ---- Up to 4.8 ------------------------------------------------------------------------------------------------------

GPU_UTIL = _gauge(
    "DCGM_FI_DEV_GPU_UTIL", text="Share of time with a kernel running.", unit=Unit.PERCENT, by=GPU_UTIL_RATIO.name
)
MEM_COPY_UTIL = _gauge(
    "DCGM_FI_DEV_MEM_COPY_UTIL", text="Share of time memory was copied.", unit=Unit.PERCENT, by=MEMORY_UTIL_RATIO.name
)
ENC_UTIL = _gauge("DCGM_FI_DEV_ENC_UTIL", text="Use of the encoder.", unit=Unit.PERCENT, by=ENC_UTIL_RATIO.name)
DEC_UTIL = _gauge("DCGM_FI_DEV_DEC_UTIL", text="Use of the decoder.", unit=Unit.PERCENT, by=DEC_UTIL_RATIO.name)
FB_USED = _gauge(
    "DCGM_FI_DEV_FB_USED", text="Memory in use.", unit=Unit.MEBIBYTES, plausible=_MEBIBYTES, by=FB_USED_BYTES.name
)
FB_FREE = _gauge(
    "DCGM_FI_DEV_FB_FREE", text="Memory free.", unit=Unit.MEBIBYTES, plausible=_MEBIBYTES, by=FB_FREE_BYTES.name
)
FB_RESERVED = _gauge(
    "DCGM_FI_DEV_FB_RESERVED", text="Memory kept by the driver.", unit=Unit.MEBIBYTES, plausible=_MEBIBYTES,
    by=FB_RESERVED_BYTES.name, optional=True,
)  # fmt: skip
FB_TOTAL = _gauge(
    "DCGM_FI_DEV_FB_TOTAL", text="Memory of the card.", unit=Unit.MEBIBYTES, plausible=_MEBIBYTES,
    by=FB_CAPACITY_BYTES.name, optional=True,
)  # fmt: skip
SM_CLOCK = _gauge(
    "DCGM_FI_DEV_SM_CLOCK", text="Clock of the SMs.", unit=Unit.MEGAHERTZ, plausible=_MEGAHERTZ, by=SM_CLOCK_HERTZ.name
)
MEM_CLOCK = _gauge(
    "DCGM_FI_DEV_MEM_CLOCK", text="Clock of the memory.", unit=Unit.MEGAHERTZ, plausible=_MEGAHERTZ,
    by=MEMORY_CLOCK_HERTZ.name,
)  # fmt: skip
GPU_TEMP = _gauge("DCGM_FI_DEV_GPU_TEMP", text="Temperature of the core.", unit=Unit.CELSIUS, by=GPU_TEMP_CELSIUS.name)
MEMORY_TEMP = _gauge(
    "DCGM_FI_DEV_MEMORY_TEMP", text="Temperature of the memory; 0 on cards without a sensor.", unit=Unit.CELSIUS,
    by=MEMORY_TEMP_CELSIUS.name, optional=True,
)  # fmt: skip
POWER_USAGE = _gauge("DCGM_FI_DEV_POWER_USAGE", text="Power drawn.", unit=Unit.WATTS, by=BOARD_POWER_WATTS.name)
TOTAL_ENERGY_CONSUMPTION = _counter(
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", text="Energy since the driver was loaded.", unit=Unit.MILLIJOULES,
    by=GPU_ENERGY_JOULES.name,
)  # fmt: skip
XID_ERRORS = _gauge(
    "DCGM_FI_DEV_XID_ERRORS", text="Number of the last XID; never goes back to 0 by itself.", by=XID_ERROR.name
)
PCIE_REPLAY_COUNTER = _counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", text="PCIe packets sent again.", by=PCIE_REPLAY.name)
NVLINK_BANDWIDTH_TOTAL = _counter(
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", text="NVLink traffic, all links; a rate, though typed as a counter.",
    unit=Unit.MEGABYTES_PER_SECOND, by=NVLINK_THROUGHPUT.name, optional=True, rate_already=True,
)  # fmt: skip
UNCORRECTABLE_REMAPPED_ROWS = _counter(
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", text="Rows remapped for uncorrectable errors.",
    by=ROW_REMAP_UNCORRECTABLE.name, optional=True,
)  # fmt: skip
CORRECTABLE_REMAPPED_ROWS = _counter(
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", text="Rows remapped for correctable errors.",
    by=ROW_REMAP_CORRECTABLE.name, optional=True,
)  # fmt: skip
ROW_REMAP_FAILURE = _gauge(
    "DCGM_FI_DEV_ROW_REMAP_FAILURE", text="1: a row could not be remapped.", unit=Unit.STATE,
    by=ROW_REMAP_FAILED.name, optional=True,
)  # fmt: skip
PROF_GR_ENGINE_ACTIVE = _gauge(
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE", text="Share of time any engine was active; also per MIG instance.",
    unit=Unit.RATIO, by=GR_ENGINE_UTIL_RATIO.name, optional=True,
)  # fmt: skip
PROF_PIPE_TENSOR_ACTIVE = _gauge(
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", text="Share of cycles the tensor pipe was active.", unit=Unit.RATIO,
    by=TENSOR_UTIL_RATIO.name, optional=True,
)  # fmt: skip
PROF_DRAM_ACTIVE = _gauge(
    "DCGM_FI_PROF_DRAM_ACTIVE", text="Share of cycles the memory interface was active.", unit=Unit.RATIO,
    by=DRAM_UTIL_RATIO.name, optional=True,
)  # fmt: skip
THERMAL_VIOLATION = _counter(
    "DCGM_FI_DEV_THERMAL_VIOLATION", text="Time slowed down for heat; old releases say microseconds.",
    unit=Unit.NANOSECONDS, by=THERMAL_THROTTLE.name, optional=True,
)  # fmt: skip
POWER_VIOLATION = _counter(
    "DCGM_FI_DEV_POWER_VIOLATION", text="Time slowed down for power; old releases say microseconds.",
    unit=Unit.NANOSECONDS, by=POWER_THROTTLE.name, optional=True,
)  # fmt: skip
RETIRED_SBE = _counter(
    "DCGM_FI_DEV_RETIRED_SBE", text="Pages retired for single-bit errors.", by=PAGE_RETIRED_SBE.name, optional=True
)
RETIRED_DBE = _counter(
    "DCGM_FI_DEV_RETIRED_DBE", text="Pages retired for double-bit errors.", by=PAGE_RETIRED_DBE.name, optional=True
)
NVLINK_CRC_FLIT_ERRORS = _counter(
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", text="NVLink flow-control CRC errors.", new=False, optional=True
)
NVLINK_CRC_DATA_ERRORS = _counter(
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", text="NVLink data CRC errors.",
    by="DCGM_FI_DEV_NVLINK_CRC_ERROR_TOTAL", optional=True,
)  # fmt: skip
NVLINK_REPLAY_ERRORS = _counter(
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", text="NVLink packets sent again.",
    by="DCGM_FI_DEV_NVLINK_REPLAY_TOTAL", optional=True,
)  # fmt: skip
NVLINK_RECOVERY_ERRORS = _counter(
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", text="NVLink recoveries.",
    by="DCGM_FI_DEV_NVLINK_RECOVERY_TOTAL", optional=True,
)  # fmt: skip

# ---- The same in both generations -----------------------------------------------------------------------------------

NVLINK_CRC_ERROR = _new_counter("DCGM_FI_DEV_NVLINK_CRC_ERROR_TOTAL", text="NVLink CRC errors.", optional=True)
NVLINK_REPLAY = _new_counter("DCGM_FI_DEV_NVLINK_REPLAY_TOTAL", text="NVLink packets sent again.", optional=True)
NVLINK_RECOVERY = _new_counter("DCGM_FI_DEV_NVLINK_RECOVERY_TOTAL", text="NVLink recoveries.", optional=True)
ECC_SBE_VOLATILE = _counter(
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", text="Single-bit ECC errors since the driver was loaded.", optional=True
)
ECC_DBE_VOLATILE = _counter(
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", text="Double-bit ECC errors since the driver was loaded.", optional=True
)
ECC_SBE_AGGREGATE = _counter(
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", text="Single-bit ECC errors of the card's life.", optional=True
)
ECC_DBE_AGGREGATE = _counter(
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", text="Double-bit ECC errors of the card's life.", optional=True
)
PROF_PCIE_TX_BYTES = _gauge(
    "DCGM_FI_PROF_PCIE_TX_BYTES", text="PCIe bytes sent per second; some CSVs type it as a counter.",
    unit=Unit.BYTES_PER_SECOND, optional=True, rate_already=True,
)  # fmt: skip
PROF_PCIE_RX_BYTES = _gauge(
    "DCGM_FI_PROF_PCIE_RX_BYTES", text="PCIe bytes received per second; some CSVs type it as a counter.",
    unit=Unit.BYTES_PER_SECOND, optional=True, rate_already=True,
)  # fmt: skip
VGPU_LICENSE_STATUS = _gauge("DCGM_FI_DEV_VGPU_LICENSE_STATUS", text="License of the vGPU.", optional=True)
EXP_XID_ERRORS_COUNT = _gauge(
    "DCGM_EXP_XID_ERRORS_COUNT", text="XIDs in the exporter's time window.", labels=(XID,), late=True, optional=True
)
EXP_XID_ERRORS_TOTAL = _counter(
    "DCGM_EXP_XID_ERRORS_TOTAL",
    text="XIDs since the exporter started; since 4.8.3.",
    labels=(XID,),
    late=True,
    optional=True,
)
EXP_CLOCK_EVENTS_COUNT = _gauge(
    "DCGM_EXP_CLOCK_EVENTS_COUNT", text="Clock events in the exporter's time window.", labels=("clock_event",),
    late=True, optional=True,
)  # fmt: skip
EXP_GPU_HEALTH_STATUS = _gauge(
    "DCGM_EXP_GPU_HEALTH_STATUS", text="Health of the card as DCGM judges it.",
    labels=("health_watch", "health_error_code"), optional=True,
)  # fmt: skip

DCGM_METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
