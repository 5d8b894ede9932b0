"""
Lines between reader and child, one JSON object each.

Child, once: ``{"hello": SOURCE, "problem": TEXT|null}``; with a problem it then exits. Reader: ``{"read": N}``.
Child: ``{"read": N, "gpus": [...]}``. The child ends when its stdin does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sre.signals.codec import gpu_details
from sre.signals.types import GpuSeen, Reading, Seen

SOURCE_NONE = "none"
FIELDS = ("memory_used_ratio", "temperature_celsius", "utilization_ratio", "power_watts")


@dataclass(frozen=True, slots=True)
class SimOptions:
    """Simulated GPUs: the folder engines write to, and the model's figures."""

    folder: str
    count: int
    memory_total_bytes: int
    memory_used_ratio: float
    idle_temperature_celsius: float
    load_temperature_celsius: float


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """
    What the child is to read.

    Attributes:
        backend: ``auto`` is NVML where this machine has it, else ``sim`` where that is given, else none.
        overlay: File of chaos values, if any.
    """

    backend: Literal["auto", "nvml", "sim"]
    overlay: str | None = None
    sim: SimOptions | None = None


def encode_options(options: ChildOptions) -> str:
    return json.dumps(asdict(options))


def decode_options(text: str) -> ChildOptions:
    data = json.loads(text)
    sim = data.pop("sim")
    return ChildOptions(**data, sim=None if sim is None else SimOptions(**sim))


def encode_gpus(number: int, gpus: Sequence[GpuSeen]) -> str:
    return json.dumps({"read": number, "gpus": [_plain(gpu) for gpu in gpus]})


def _plain(gpu: GpuSeen) -> dict[str, Any]:
    readings = {name: getattr(gpu, name) for name in FIELDS}
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "source": gpu.source,
        "injected": gpu.injected,
        "processes": gpu.processes,
        "details": None if gpu.details is None else asdict(gpu.details),
        **{name: [r.value, r.seen.value, r.sampled_at] for name, r in readings.items()},
    }


def decode_gpus(line: bytes, number: int) -> tuple[GpuSeen, ...]:
    """Return the answer to read ``number``. Raises ValueError when the line is anything else."""
    try:
        data = json.loads(line)
        if data["read"] != number:
            raise ValueError(f"answer to read {data['read']!r}, not {number}")
        return tuple(_gpu(gpu) for gpu in data["gpus"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not an answer: {error!r}") from error


def _gpu(data: dict[str, Any]) -> GpuSeen:
    return GpuSeen(
        index=int(data["index"]),
        uuid=str(data["uuid"]),
        source=str(data["source"]),
        injected=bool(data["injected"]),
        processes=tuple((int(pid), int(held)) for pid, held in data["processes"]),
        details=gpu_details(data["details"]),
        **{name: _reading(data[name]) for name in FIELDS},
    )


def _reading(data: list[Any]) -> Reading:
    value, seen, at = data
    if Seen(seen) is not Seen.OK:
        return Reading.missing(float(at), Seen(seen))
    if not math.isfinite(float(value)):
        raise ValueError(f"value {value!r}")
    return Reading(float(value), float(at))
