"""The gate's signal reader on the simulated engine and on the real vLLM."""

from __future__ import annotations

import asyncio

import pytest

from sre.adapters.clock import SystemClock
from sre.adapters.gate_signals import GateSignals
from sre.adapters.host_counters import HostCountersReader
from sre.gate.stages import Resource
from sre.settings.gate import CONDITIONS, SUBJECT
from tests.support.engines import EngineProcess

pytestmark = pytest.mark.integration

REQUESTS = 12


async def test_what_an_engine_did_during_a_stage_is_read(engine: EngineProcess) -> None:
    clock = SystemClock()
    reader = GateSignals(
        (f"{engine.url}/metrics",), clock=clock, host=HostCountersReader(clock.monotonic), batch_slots=64
    )
    async with reader.around() as result:
        for _ in range(3):
            answers = await asyncio.gather(*(asyncio.to_thread(engine.complete, 24) for _ in range(REQUESTS // 3)))
            assert all(answer.status_code == 200 for answer in answers)
            await asyncio.sleep(0.3)  # what an engine counts of a request comes right after its answer
    signals = result()
    assert signals.seconds > 0
    assert signals.engine["requests_finished"] == REQUESTS
    assert signals.engine["generation_tokens"] == REQUESTS * 24
    assert signals.engine["steps"] >= 24
    for name in ("queue", "prefill", "decode", "ttft", "e2e"):
        assert signals.engine[f"{name}_seconds_mean"] >= 0
    parts = sum(signals.engine[f"{name}_seconds_mean"] for name in ("queue", "prefill", "decode"))
    assert parts == pytest.approx(signals.engine["e2e_seconds_mean"], rel=0.25, abs=0.05)
    assert 0 <= signals.engine["kv_usage_mean"] <= signals.engine["kv_usage_max"] < 1
    assert signals.engine["running_mean"] >= 0
    uses = {use.resource: use for use in signals.uses}
    assert {Resource.KV_CACHE, Resource.BATCH_SLOTS, Resource.CPU} <= set(uses)
    assert 0 < uses[Resource.CPU].utilization <= 1
    assert uses[Resource.BATCH_SLOTS].occupancy
    assert "--enable-mfu-metrics" in signals.unseen[Resource.COMPUTE.value]
    assert 0 < signals.host["round_trip_seconds"] < 2
    assert "engine" not in signals.unseen
    assert not [name for name in signals.unseen if name.startswith("restart")]


async def test_an_engine_tells_what_it_is(engine: EngineProcess) -> None:
    described = dict(await GateSignals((f"{engine.url}/metrics",), clock=SystemClock()).describe())
    assert described["engine_version"][0].isdigit()
    assert int(described["max_model_len"]) > 0
    assert described["engines"] == "1"
    assert "engine.block_size" in described
    assert "engine.num_gpu_blocks" not in described
    assert int(described["client_cores"]) >= 1
    assert len(described["client_host"]) == 12
    assert set(described) <= {*CONDITIONS, *SUBJECT}
