"""The gate through the gateway of sre up, with its signals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sre.adapters.gate_files import GateFiles
from tests.e2e.live import live_stack
from tests.support.gate_settings import SHORT_GATE

SIM = {"name": "sim-0", "kind": "sim", "model": "sim-7b", "sim": {"time_scale": 4}}


@pytest.mark.integration
def test_the_gate_loads_the_gateway_of_the_stack_by_default(short_dir: Path, free_port: Callable[[], int]) -> None:
    with live_stack(short_dir, free_port, [SIM]) as live:
        live.wait_closed()
        config = yaml.safe_load((short_dir / "sre.yaml").read_text())
        (short_dir / "sre.yaml").write_text(yaml.safe_dump(config | {"gate": SHORT_GATE}))
        done = live.sre("gate", "run", "--output", "json", timeout=120)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["url"] == f"http://127.0.0.1:{live.port}"
        result = GateFiles(live.paths.root / "gate").read(answer["id"])
    stages = result.runs[0].stages
    assert result.model == "sim-7b"
    for stage in stages:
        assert stage.signals is not None
        assert stage.signals.engine["requests_finished"] >= 30, stage.signals.unseen
        assert stage.signals.gateway.get("requests", 0) >= 30, stage.signals.unseen
        assert [check for check in stage.checks if check.ok is False] == []
    assert result.latency_budget is not None
    assert len(result.latency_budget.stages) == 2
    assert dict(result.fingerprint.fields)["engines"] == "1"
