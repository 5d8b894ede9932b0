"""What NVML says beyond the rules' readings: in our units, each for itself, and nothing where a card is silent."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.adapters.clock import SystemClock
from sre.adapters.gpu.overlay import GpuOverlay, apply_overlay
from sre.adapters.gpu.protocol import ChildOptions, SimOptions, decode_gpus, encode_gpus
from sre.adapters.gpu.reader import ChildGpuReader
from sre.adapters.gpu.xid_totals import XidTotals
from sre.signals.codec import from_json, to_json
from sre.signals.types import GpuDetails, GpuSeen, Reading, Seen, Snapshot
from tests.gpu.support import GIB, NvmlStandin

MIB = 1024**2
NOTHING = {
    f.name: None
    for f in dataclasses.fields(GpuDetails)
    if f.name not in ("sampled_at", "throttled", "xid_events", "xid_last", "memory_used_bytes", "memory_total_bytes")
}
FULL_CARD = {
    "0.total": 81920, "0.free": 8192, "0.field_82": 91, "0.field_82.type": 1, "0.field_4": 3, "0.field_145": 1,
    "0.field_145.type": 1, "0.field_138": 7, "0.field_139": 11, "0.throttle": 0x44, "0.throttle_supported": 0x1FF,
}  # fmt: skip


@pytest.fixture
def standin(short_dir: Path) -> NvmlStandin:
    return NvmlStandin(short_dir / "lib")


@contextlib.asynccontextmanager
async def reading(standin: NvmlStandin, deadline_seconds: float) -> AsyncIterator[ChildGpuReader]:
    made = ChildGpuReader(
        ChildOptions("nvml"),
        SystemClock(),
        deadline_seconds=deadline_seconds,
        patience_seconds=20.0,
        initial_backoff_seconds=0.05,
        max_backoff_seconds=0.1,
        environ=standin.environ,
    )
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def reader(standin: NvmlStandin) -> AsyncIterator[ChildGpuReader]:
    """Waits for an answer for as long as a busy machine needs."""
    async with reading(standin, 20.0) as made:
        yield made


@pytest.fixture
async def impatient_reader(standin: NvmlStandin) -> AsyncIterator[ChildGpuReader]:
    """For a library that hangs."""
    async with reading(standin, 2.0) as made:
        yield made


async def details(reader: ChildGpuReader, index: int = 0) -> GpuDetails:
    found = (await reader.read())[index].details
    assert found is not None
    return found


def told(found: GpuDetails, names: Sequence[str] = tuple(NOTHING)) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names}


@pytest.mark.integration
async def test_a_card_that_says_everything(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    standin.set(FULL_CARD)
    assert dataclasses.replace(await details(reader), sampled_at=0.0) == GpuDetails(
        sampled_at=0.0,
        memory_used_bytes=73728 * MIB,
        memory_total_bytes=81920 * MIB,
        memory_temperature_celsius=91.0,
        nvlink_received_bytes=11 * 1024,
        nvlink_sent_bytes=7 * 1024,
        ecc_uncorrected_errors=3,
        row_remap_failed=True,
        throttled=(
            ("sw_power_cap", True),
            ("hw_slowdown", False),
            ("sync_boost", False),
            ("sw_thermal_slowdown", False),
            ("hw_thermal_slowdown", True),
            ("hw_power_brake", False),
        ),
        xid_last=0,
    )


@pytest.mark.integration
async def test_a_card_that_says_nothing_has_no_zeros(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    unsupported = pynvml.NVML_ERROR_NOT_SUPPORTED
    standin.set(
        {
            "nvmlDeviceGetMemoryInfo.error": unsupported,
            "nvmlDeviceGetMemoryInfo_v2.error": unsupported,
            "nvmlDeviceGetCurrentClocksThrottleReasons.error": unsupported,
            "0.event_types": 0,
        }
    )
    found = await details(reader)
    assert found == GpuDetails(found.sampled_at)


@pytest.mark.integration
async def test_a_card_of_before_these_calls_keeps_its_readings(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    missing = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    calls = ("FieldValues", "CurrentClocksThrottleReasons", "SupportedClocksThrottleReasons", "SupportedEventTypes")
    standin.set({f"nvmlDeviceGet{call}.error": missing for call in calls})
    (gpu,) = await reader.read()
    assert {r.seen for r in (gpu.memory_used_ratio, gpu.temperature_celsius, gpu.power_watts)} == {Seen.OK}
    assert gpu.details is not None
    assert told(gpu.details) == NOTHING
    assert (gpu.details.throttled, gpu.details.xid_last) == ((), None)
    assert gpu.details.memory_total_bytes == 81920 * MIB


@pytest.mark.integration
@pytest.mark.parametrize("celsius", [0, 200])
async def test_a_memory_without_a_sensor_has_no_temperature(
    reader: ChildGpuReader, standin: NvmlStandin, celsius: int
) -> None:
    standin.set(FULL_CARD | {"0.field_82": celsius})
    found = await details(reader)
    assert found.memory_temperature_celsius is None
    assert found.ecc_uncorrected_errors == 3


@pytest.mark.integration
async def test_a_value_of_a_type_we_do_not_know_is_not_seen(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    standin.set(FULL_CARD | {"0.field_4.type": 77})
    found = await details(reader)
    assert found.ecc_uncorrected_errors is None
    assert found.memory_temperature_celsius == 91.0


@pytest.mark.integration
async def test_reasons_the_card_does_not_know_are_left_out(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    standin.set(FULL_CARD | {"0.throttle_supported": 0x4})
    assert (await details(reader)).throttled == (("sw_power_cap", True),)


@pytest.mark.integration
async def test_xids_are_counted_from_the_start_per_gpu_and_number(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    standin.set({"count": 2, "1.xid": 31, "1.xid_count": 5})  # before anybody listens
    assert (await details(reader, 1)).xid_last == 0
    standin.set({"1.xid": 79, "1.xid_count": 7})
    first, second = await details(reader, 0), await details(reader, 1)
    assert (first.xid_last, first.xid_events) == (0, ())
    assert (second.xid_last, second.xid_events) == (79, ((79, 2),))
    standin.set({"1.xid": 48, "1.xid_count": 8})
    await reader.read()
    second = await details(reader, 1)
    assert (second.xid_last, second.xid_events) == (48, ((48, 1), (79, 2)))


@pytest.mark.integration
async def test_xids_stay_with_their_card_where_indices_move(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    standin.set(count=2)
    await reader.read()
    standin.set({"0.xid": 79, "0.xid_count": 1, "1.xid": 31, "1.xid_count": 1})
    await reader.read()
    standin.set({"count": 1, "0.uuid": 1})
    (gpu,) = await reader.read()
    assert gpu.uuid == "GPU-standin-1"
    assert gpu.details is not None
    assert gpu.details.xid_events == ((31, 1),)


@pytest.mark.integration
async def test_a_gpu_that_cannot_be_listened_to_does_not_deafen_the_others(
    reader: ChildGpuReader, standin: NvmlStandin
) -> None:
    standin.set({"count": 2, "0.nvmlDeviceRegisterEvents.error": pynvml.NVML_ERROR_NO_PERMISSION})
    await reader.read()
    standin.set({"0.xid": 79, "0.xid_count": 1, "1.xid": 31, "1.xid_count": 1})
    await reader.read()
    assert (await details(reader, 0)).xid_last is None
    assert (await details(reader, 1)).xid_last == 31


@pytest.mark.integration
async def test_a_failing_event_call_costs_no_reading(reader: ChildGpuReader, standin: NvmlStandin) -> None:
    await reader.read()
    standin.set({"nvmlEventSetWait_v2.error": pynvml.NVML_ERROR_GPU_IS_LOST, "0.xid": 79, "0.xid_count": 1})
    (gpu,) = await reader.read()
    assert gpu.temperature_celsius.seen is Seen.OK
    standin.set({"nvmlEventSetWait_v2.error": 0})
    await reader.read()
    assert (await details(reader)).xid_events == ((79, 1),)


@pytest.mark.integration
async def test_xids_outlive_a_gpu_that_is_lost_and_a_reader_that_hangs(
    impatient_reader: ChildGpuReader, standin: NvmlStandin, wait_until_async: Callable[..., Awaitable[Any]]
) -> None:
    reader = impatient_reader
    await reader.read()
    standin.set({"0.xid": 79, "0.xid_count": 1})
    await reader.read()
    standin.set({"0.lost": 1})
    (gpu,) = await reader.read()
    assert gpu.temperature_celsius.seen is Seen.UNREACHABLE
    assert gpu.uuid == "GPU-standin-0"
    assert gpu.details is not None
    assert (gpu.details.xid_last, gpu.details.memory_used_bytes) == (79, None)
    standin.set({"0.lost": 0, "nvmlDeviceGetTemperature.hang": 1})

    async def given_up() -> bool:
        return (await reader.read())[0].temperature_celsius.seen is Seen.UNREACHABLE

    await wait_until_async(given_up)
    assert (await details(reader)).xid_events == ((79, 1),), "while nothing can be read"
    assert (await reader.read())[0].uuid == "GPU-standin-0"
    standin.set({"nvmlDeviceGetTemperature.hang": 0})

    async def back() -> bool:
        return (await reader.read())[0].temperature_celsius.seen is Seen.OK

    await wait_until_async(back)
    assert (await details(reader)).xid_last == 79
    standin.set({"0.xid": 48, "0.xid_count": 2})
    await reader.read()
    assert (await details(reader)).xid_events == ((48, 1), (79, 1)), "the new process counts on"


@pytest.mark.integration
async def test_a_simulated_gpu_says_what_its_model_knows_and_no_more(short_dir: Path) -> None:
    sim = SimOptions(str(short_dir), 1, 80 * GIB, 0.6, 38.0, 68.0)
    made = ChildGpuReader(ChildOptions("sim", None, sim), SystemClock(), deadline_seconds=20, patience_seconds=20)
    try:
        found = await details(made)
    finally:
        await made.close()
    assert told(found) == NOTHING
    assert (found.memory_total_bytes, found.throttled) == (80 * GIB, ())
    assert (found.xid_last, found.xid_events) == (0, ())
    assert 0 < (found.memory_used_bytes or 0) < GIB, "no engine: the driver's share"


# ---- pure ----------------------------------------------------------------------------------------------------------


def test_totals_know_nothing_until_a_process_could_listen() -> None:
    totals = XidTotals().seen(None).seen(GpuDetails(1.0)).process_ended()
    assert totals.put(None, 2.0) is None
    assert totals.put(GpuDetails(1.0), 2.0) == GpuDetails(1.0)


counts = st.dictionaries(st.sampled_from([13, 48, 79]), st.integers(1, 9))


@given(st.lists(counts, max_size=5))
def test_totals_are_the_sum_over_all_processes(lives: list[dict[int, int]]) -> None:
    totals = XidTotals()
    for life in lives:
        for share in ({}, life):  # each process counts from zero
            totals = totals.seen(GpuDetails(0.0, xid_last=next(iter(share), 0), xid_events=tuple(share.items())))
        totals = totals.process_ended()
    assert dict(totals.events) == {
        xid: sum(life.get(xid, 0) for life in lives) for xid in {xid for life in lives for xid in life}
    }


optional_count = st.none() | st.integers(0, 2**63)
any_details = st.builds(
    GpuDetails,
    sampled_at=st.floats(0, 1e9),
    memory_used_bytes=optional_count,
    memory_total_bytes=optional_count,
    memory_temperature_celsius=st.none() | st.floats(1, 150),
    nvlink_received_bytes=optional_count,
    nvlink_sent_bytes=optional_count,
    ecc_uncorrected_errors=optional_count,
    row_remap_failed=st.none() | st.booleans(),
    throttled=st.lists(st.tuples(st.text(max_size=9), st.booleans()), max_size=3).map(tuple),
    xid_last=optional_count,
    xid_events=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 9)), max_size=3).map(tuple),
)


def gpu(found: GpuDetails | None) -> GpuSeen:
    return GpuSeen(0, "u", "nvml", Reading.of(0.5, 1.0), Reading.of(50.0, 1.0), details=found)


@given(st.none() | any_details)
def test_details_survive_the_pipe_and_the_trace(found: GpuDetails | None) -> None:
    (back,) = decode_gpus(encode_gpus(1, [gpu(found)]).encode(), 1)
    assert back.details == found
    snapshot = Snapshot(1.0, 2.0, {}, {0: gpu(found)})
    assert from_json(json.loads(json.dumps(to_json(snapshot)))).gpus[0].details == found


def test_a_trace_of_a_guard_that_knew_no_details_is_read() -> None:
    data = to_json(Snapshot(1.0, 2.0, {}, {0: gpu(None)}))
    del data["gpus"]["0"]["details"]
    assert from_json(data).gpus[0] == gpu(None)


@pytest.mark.parametrize(("ratio", "used"), [(0.25, 20), (0.97, 78), (1.5, 80), (-1.0, 0)])
def test_an_injected_memory_share_shows_in_bytes_too(ratio: float, used: int) -> None:
    full = GpuDetails(1.0, memory_used_bytes=10, memory_total_bytes=80, xid_last=0)
    (over,) = apply_overlay([gpu(full)], {0: GpuOverlay(memory_used_ratio=ratio)}, now=2.0)
    assert over.details == dataclasses.replace(full, memory_used_bytes=used)
    (silent,) = apply_overlay([gpu(GpuDetails(1.0))], {0: GpuOverlay(memory_used_ratio=ratio)}, now=2.0)
    assert silent.details == GpuDetails(1.0)
    assert not math.isnan(over.memory_used_ratio.value or 0.0)
