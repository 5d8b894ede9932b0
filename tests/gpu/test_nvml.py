"""NVML through the real nvidia-ml-py, against our stand-in library: fields, errors, lost GPUs, a missing library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

from sre.adapters.clock import SystemClock
from sre.adapters.gpu.choose import gpu_reader
from sre.adapters.gpu.protocol import ChildOptions
from sre.adapters.gpu.reader import ChildGpuReader, NoGpuReader
from sre.settings.guard import GuardSettings
from sre.settings.stack import EngineSettings, StackSettings
from sre.signals.types import GpuSeen, Seen
from tests.gpu.support import NvmlStandin, no_nvml, write_overlay

pytestmark = pytest.mark.integration


@pytest.fixture
def standin(short_dir: Path) -> NvmlStandin:
    return NvmlStandin(short_dir / "lib")


@pytest.fixture
async def reader(standin: NvmlStandin, short_dir: Path) -> AsyncIterator[ChildGpuReader]:
    made = ChildGpuReader(
        ChildOptions("nvml", str(short_dir / "overlay.json")),
        SystemClock(),
        deadline_seconds=20.0,
        patience_seconds=20.0,
        environ=standin.environ,
    )
    try:
        yield made
    finally:
        await made.close()


async def only(reader: ChildGpuReader) -> GpuSeen:
    (gpu,) = await reader.read()
    return gpu


async def test_every_field_in_our_units(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    standin.set(
        {"0.total": 81920, "0.free": 8192, "0.reserved": 600, "0.temperature": 71, "0.utilization": 97,
         "0.milliwatts": 312500, "0.process_pid": 4711, "0.process_mib": 1024},
    )  # fmt: skip
    gpu = await only(reader)
    assert gpu.memory_used_ratio.value == pytest.approx(0.9)
    assert gpu.temperature_celsius.value == 71.0
    assert gpu.utilization_ratio.value == pytest.approx(0.97)
    assert gpu.power_watts.value == pytest.approx(312.5)
    assert gpu.uuid == "GPU-standin-0"
    assert gpu.processes == ((4711, 1024 * 1024**2),)
    assert gpu.source == "nvml"


async def test_an_old_driver_gives_the_same_memory_ratio(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    standin.set({"0.free": 8192})
    new = await only(reader)
    standin.set({"nvmlDeviceGetMemoryInfo_v2.error": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
    old = await only(reader)
    assert old.memory_used_ratio.value == new.memory_used_ratio.value == pytest.approx(0.9)


async def test_a_process_without_an_account_is_left_out(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    standin.set({"0.process_pid": 4711})
    assert (await only(reader)).processes == ()


FIELDS = {
    "nvmlDeviceGetMemoryInfo_v2": "memory_used_ratio",
    "nvmlDeviceGetTemperature": "temperature_celsius",
    "nvmlDeviceGetUtilizationRates": "utilization_ratio",
    "nvmlDeviceGetPowerUsage": "power_watts",
}


@pytest.mark.parametrize("function", FIELDS)
async def test_an_error_of_one_field_is_that_fields_alone(
    reader: ChildGpuReader, standin: NvmlStandin, function: str
) -> None:
    standin.set({f"{function}.error": pynvml.NVML_ERROR_UNKNOWN})
    gpu = await only(reader)
    seen = {name: getattr(gpu, name).seen for name in FIELDS.values()}
    assert seen.pop(FIELDS[function]) is Seen.INVALID
    assert set(seen.values()) == {Seen.OK}
    assert reader.problem is None


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, Seen.ABSENT),
        (pynvml.NVML_ERROR_NO_PERMISSION, Seen.ABSENT),
        (pynvml.NVML_ERROR_TIMEOUT, Seen.UNREACHABLE),
        (pynvml.NVML_ERROR_UNKNOWN, Seen.INVALID),
        (9999, Seen.INVALID),
    ],
)
async def test_each_error_has_its_meaning(reader: ChildGpuReader, standin: NvmlStandin, error: int, seen: Seen) -> None:
    standin.set({"nvmlDeviceGetTemperature.error": error})
    assert (await only(reader)).temperature_celsius.seen is seen


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"0.temperature": 4_000_000}, "temperature_celsius"),
        ({"0.utilization": 300}, "utilization_ratio"),
        ({"0.total": 0, "0.free": 0}, "memory_used_ratio"),
        ({"0.total": 10, "0.free": 20}, "memory_used_ratio"),
    ],
)
async def test_an_impossible_value_is_invalid(
    reader: ChildGpuReader, standin: NvmlStandin, values: Mapping[str, int], field: str
) -> None:
    standin.set(values)
    assert getattr(await only(reader), field).seen is Seen.INVALID


async def test_a_lost_gpu_hides_no_other(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    standin.set({"count": 3, "1.lost": 1})
    first, lost, third = await reader.read()
    assert lost.memory_used_ratio.seen is lost.temperature_celsius.seen is Seen.UNREACHABLE
    assert first.temperature_celsius.seen is third.temperature_celsius.seen is Seen.OK


async def test_a_gpu_lost_later_keeps_its_place(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    standin.set({"count": 2})
    await reader.read()
    standin.set({"0.lost": 1})
    first, second = await reader.read()
    assert (first.index, first.temperature_celsius.seen) == (0, Seen.UNREACHABLE)
    assert first.uuid == "GPU-standin-0", "its series go on"
    assert (second.index, second.temperature_celsius.seen) == (1, Seen.OK)


async def test_a_driver_that_goes_away_makes_all_unreachable(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    await reader.read()
    standin.set({"nvmlDeviceGetCount_v2.error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
    assert (await only(reader)).temperature_celsius.seen is Seen.UNREACHABLE
    assert reader.problem is not None
    assert "NVML" in reader.problem


async def test_an_overlay_acts_on_nvml_too_and_is_marked(reader: ChildGpuReader, short_dir: Path) -> None:
    write_overlay(short_dir / "overlay.json", {"0": {"temperature_celsius": 92.0, "memory_used_ratio": 0.97}})
    gpu = await only(reader)
    assert (gpu.temperature_celsius.value, gpu.memory_used_ratio.value) == (92.0, 0.97)
    assert gpu.injected
    assert gpu.power_watts.value == pytest.approx(250.0)


def chosen(folder: Path, environ: Mapping[str, str], mode: str, *engines: Any) -> ChildGpuReader | NoGpuReader:
    return gpu_reader(
        GuardSettings(gpu_reader=mode, gpu_deadline_seconds=20),  # type: ignore[arg-type]
        StackSettings(engines=engines),
        overlay=folder / "overlay.json",
        sim_folder=folder / "sim-gpu",
        clock=SystemClock(),
        patience_seconds=20.0,
        environ=environ,
    )


SIM = EngineSettings(name="s", gpus=(0,))
VLLM = EngineSettings(name="v", kind="vllm", model="m", gpus=(0,))
DRIVER = "nvmlInitWithFlags.error"


@pytest.mark.parametrize(
    ("mode", "engine", "library", "source", "seen"),
    [
        ("auto", SIM, "works", "nvml", Seen.OK),
        ("auto", SIM, "no driver", "sim", Seen.OK),
        ("auto", SIM, "missing", "sim", Seen.OK),
        ("auto", SIM, "no gpu", "sim", Seen.OK),
        ("auto", SIM, "broken", "nvml", Seen.UNREACHABLE),
        ("auto", VLLM, "missing", "nvml", Seen.UNREACHABLE),
        ("sim", VLLM, "works", "sim", Seen.OK),
        ("nvml", SIM, "works", "nvml", Seen.OK),
        ("nvml", SIM, "missing", "nvml", Seen.UNREACHABLE),
    ],
)
async def test_which_source_is_read(
    short_dir: Path, standin: NvmlStandin, mode: str, engine: Any, library: str, source: str, seen: Seen
) -> None:
    environ = standin.environ if library != "missing" else no_nvml(short_dir / "nothing")
    if library == "no driver":
        standin.set({DRIVER: pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
    elif library == "no gpu":
        standin.set(count=0)
    elif library == "broken":
        standin.set({DRIVER: pynvml.NVML_ERROR_UNKNOWN})
    reader = chosen(short_dir, environ, mode, engine)
    try:
        (gpu,) = await reader.read()
        assert (gpu.index, gpu.source, gpu.temperature_celsius.seen) == (0, source, seen)
        assert (reader.problem is None) is (seen is Seen.OK)
    finally:
        await reader.close()


async def test_without_gpus_and_simulation_nothing_is_read_and_nothing_is_started_again(
    short_dir: Path, wait_until_async: Callable[..., Awaitable[Any]]
) -> None:
    engine = EngineSettings(name="v", kind="vllm", model="m", build="cpu")
    reader = chosen(short_dir, no_nvml(short_dir / "nothing"), "auto", engine)
    try:
        assert list(await reader.read()) == []
        assert reader.source == "none"
        assert reader.problem is not None
        await wait_until_async(lambda: reader.stuck == 0)
        assert list(await reader.read()) == []
        assert reader.stuck == 0
        assert reader.replaced == 0
    finally:
        await reader.close()


async def test_no_reader_reads_nothing(short_dir: Path, standin: NvmlStandin) -> None:
    reader = chosen(short_dir, standin.environ, "none", SIM)
    assert list(await reader.read()) == []
    await reader.close()


async def test_a_gpu_that_an_engine_uses_and_the_driver_does_not_show_is_absent(
    short_dir: Path, standin: NvmlStandin
) -> None:
    reader = chosen(short_dir, standin.environ, "nvml", EngineSettings(name="s", gpus=(0, 5)))
    try:
        shown, missing = await reader.read()
        assert (shown.index, shown.temperature_celsius.seen) == (0, Seen.OK)
        assert (missing.index, missing.temperature_celsius.seen) == (5, Seen.ABSENT)
    finally:
        await reader.close()
