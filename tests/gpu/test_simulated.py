"""The simulated GPU: memory from living engines, heat that follows the load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.adapters.gpu.simulated import FRESH_SECONDS, SimulatedBackend
from sre.settings.stack import SimGpuSettings
from sre.signals.types import Seen
from sre.simulator.gpu import THERMAL_TIME_CONSTANT_SECONDS, GpuLoad, GpuModel, state

GIB = 1024**3
MODEL = GpuModel(80 * GIB, 0.6, 38.0, 68.0)
BUSY = GpuLoad(7, 48 * GIB, 1.0)


def test_an_idle_gpu_is_cool_and_nearly_empty() -> None:
    now = state(MODEL, [], None, 0.0)
    assert now.temperature_celsius == 38.0
    assert now.memory_used_ratio < 0.01
    assert now.power_watts > 0


def test_the_first_reading_is_the_steady_one() -> None:
    assert state(MODEL, [BUSY], None, 0.0).temperature_celsius == 68.0


def test_heat_follows_the_load_with_the_time_constant() -> None:
    after_one = state(MODEL, [BUSY], 38.0, THERMAL_TIME_CONSTANT_SECONDS).temperature_celsius
    assert after_one == pytest.approx(38.0 + 30.0 * 0.632, abs=0.1)
    assert state(MODEL, [BUSY], 38.0, 1000.0).temperature_celsius == pytest.approx(68.0)
    assert state(MODEL, [], 68.0, THERMAL_TIME_CONSTANT_SECONDS).temperature_celsius < 50.0


@pytest.mark.parametrize("engines", [1, 2, 3])
@pytest.mark.parametrize("held", [None, 0, 10 * GIB])
def test_the_configured_share_is_taken_at_least_however_many_engines(engines: int, held: int | None) -> None:
    now = state(MODEL, [GpuLoad(pid, held, 0.1) for pid in range(engines)], None, 0.0)
    assert now.memory_used_ratio == pytest.approx(0.6, abs=0.01)
    assert {share for _, share in now.processes} == {48 * GIB // engines}


def test_engines_that_hold_more_than_their_share_show_it() -> None:
    assert state(MODEL, [GpuLoad(1, 72 * GIB, 0.1)], None, 0.0).memory_used_ratio == pytest.approx(0.907, abs=0.001)


def test_the_default_steady_state_is_below_the_default_rule() -> None:
    defaults = SimGpuSettings()
    model = GpuModel(
        defaults.memory_total_bytes,
        defaults.memory_used_ratio,
        defaults.idle_temperature_celsius,
        defaults.load_temperature_celsius,
    )
    now = state(model, [GpuLoad(1, None, 1.0)], None, 0.0)
    assert now.memory_used_ratio < 0.93
    assert now.temperature_celsius < 80.0


@given(
    st.lists(
        st.builds(GpuLoad, st.integers(1, 9), st.none() | st.integers(-GIB, 200 * GIB), st.floats(-1, 3)), max_size=5
    ),
    st.none() | st.floats(-50, 150),
    st.floats(-5, 1e6),
)
def test_values_stay_in_their_range(loads: list[GpuLoad], before: float | None, elapsed: float) -> None:
    now = state(MODEL, loads, before, elapsed)
    assert 0.0 <= now.memory_used_ratio <= 1.0
    assert 0.0 <= now.utilization_ratio <= 1.0
    coolest, hottest = min(38.0, 38.0 if before is None else before), max(68.0, 68.0 if before is None else before)
    assert coolest - 1e-6 <= now.temperature_celsius <= hottest + 1e-6


class Machine:
    """A backend over a folder, in which pid 7 lives with start time 70."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 100.0
        self.backend = SimulatedBackend(
            folder, 2, MODEL, boot_id="b", monotonic=lambda: self.now, start_ticks={7: 70}.get
        )

    def write(self, name: str = "e", **changes: Any) -> None:
        document = {
            "pid": 7,
            "start_ticks": 70,
            "boot_id": "b",
            "updated_monotonic": self.now,
            "gpus": {"0": {"memory_used_bytes": 48 * GIB, "utilization_ratio": 0.5}},
        }
        (self.folder / f"{name}.json").write_text(json.dumps(document | changes))

    def memory(self, index: int = 0) -> float:
        value = self.backend.read()[index].memory_used_ratio.value
        assert value is not None
        return value


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_memory_of_a_living_engine_is_shown_on_its_gpu(machine: Machine) -> None:
    machine.write()
    first, second = machine.backend.read()
    assert first.memory_used_ratio.value == pytest.approx(0.607, abs=0.001)
    assert first.utilization_ratio.value == 0.5
    assert first.processes == ((7, 48 * GIB),)
    assert (first.source, first.uuid) == ("sim", "SIM-GPU-0")
    assert second.processes == ()


def test_engines_on_one_gpu_divide_its_memory_and_add_up_their_load(machine: Machine) -> None:
    for name in ("a", "b"):
        machine.write(name, gpus={"0": {"memory_used_bytes": 64 * GIB, "utilization_ratio": 0.2}})
    gpu = machine.backend.read()[0]
    assert gpu.memory_used_ratio.value == pytest.approx(0.807, abs=0.001)
    assert gpu.utilization_ratio.value == pytest.approx(0.4)
    assert [held for _, held in gpu.processes] == [32 * GIB, 32 * GIB]


@pytest.mark.parametrize(
    "changes",
    [{"pid": 8}, {"start_ticks": 71}, {"boot_id": "other"}, {"gpus": None}, {"gpus": {"0": 5}}, {"pid": "many"}],
    ids=["dead", "pid-reused", "other-boot", "no-gpus", "odd-gpu", "odd-pid"],
)
def test_files_of_the_dead_and_odd_files_hold_no_memory(machine: Machine, changes: dict[str, Any]) -> None:
    machine.write(**changes)
    assert machine.memory() < 0.01


def test_a_file_that_is_no_json_hides_no_other(machine: Machine) -> None:
    (machine.folder / "a.json").write_bytes(b"\xff{")
    machine.write("b")
    assert machine.memory() > 0.5


def test_a_stopped_engine_keeps_its_memory_and_computes_nothing(machine: Machine) -> None:
    machine.write()
    machine.now += FRESH_SECONDS + 0.1
    gpu = machine.backend.read()[0]
    assert gpu.memory_used_ratio.value == pytest.approx(0.607, abs=0.001)
    assert gpu.utilization_ratio.value == 0.0


def test_no_folder_is_an_idle_gpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "missing")
    assert machine.memory() < 0.01
    assert machine.backend.read()[0].temperature_celsius.seen is Seen.OK
