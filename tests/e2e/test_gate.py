"""The gate through the gateway of sre up, with its signals; and on the real vLLM with no stack of ours behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sre.adapters.gate_files import GateFiles
from tests.e2e.live import live_stack
from tests.support.vllm import running_vllm, tiny_model

__all__ = ["tiny_model"]

SIM = {"name": "sim-0", "kind": "sim", "model": "sim-7b", "sim": {"time_scale": 4}}
GATE: dict[str, Any] = {
    # What is asked here does not depend on how busy the machine is.
    "client_lag_p99_seconds": 30.0,
    "load": {
        "stages_qps": [10, 20],
        "stage_seconds": 4,
        "drain_seconds": 20,
        "warm_up_requests": 2,
        "warm_up_seconds": 0.5,
        "mix": [{"name": "short", "prompt_tokens": 40, "max_tokens": 4}],
    },
    "knee": {"enabled": False},
    "baseline": {"runs": 1},
    "objectives": [{"failed_ratio": 0.3}],
}


@pytest.mark.integration
def test_the_gate_loads_the_gateway_of_the_stack_by_default(short_dir: Path, free_port: Callable[[], int]) -> None:
    with live_stack(short_dir, free_port, [SIM]) as live:
        live.wait_closed()
        config = yaml.safe_load((short_dir / "sre.yaml").read_text())
        (short_dir / "sre.yaml").write_text(yaml.safe_dump(config | {"gate": GATE}))
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


@pytest.fixture
def vllm_url(vllm_python: str, tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    with running_vllm(vllm_python, tiny_model, tmp_path / "vllm.log") as engine:
        yield engine.url


@pytest.mark.vllm
@pytest.mark.integration
def test_the_real_vllm_with_no_stack_of_ours_behind_it(vllm_url: str, short_dir: Path) -> None:
    # The tiny model's tokens are random; of four, all may be ones that have no text: an answer all the same.
    mix = [{"name": "short", "prompt_tokens": 40, "max_tokens": 4}]
    load = {**GATE["load"], "stages_qps": [2, 4], "stage_seconds": 5, "mix": mix}
    long_tail = {"enabled": True, "runs": 1, "seconds": 4, "long_prompt_tokens": 200, "long_max_tokens": 24}
    (short_dir / "sre.yaml").write_text(yaml.safe_dump({"gate": {**GATE, "load": load, "long_tail": long_tail}}))

    def gate(*options: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "sre", "-c", str(short_dir / "sre.yaml"), "--state-dir", str(short_dir / "s")]
        argv += ["gate", "run", "--url", vllm_url, *options]
        return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)

    done = gate("--output", "json")
    assert done.returncode == 0, done.stderr
    result = GateFiles(short_dir / "s" / "gate").read(json.loads(done.stdout)["id"])
    wrong = gate("--model", "nobody")
    assert result.smoke is not None
    assert result.smoke.server.startswith("vllm 0.")
    assert (result.smoke.prompt_sizing, result.smoke.usage_reported) == ("tokenize", True)
    for stage in result.runs[0].stages:
        assert stage.summary is not None
        assert stage.summary.failed == 0, stage.summary.classes["all"].causes
        # The tiny model's tokenizer knows few words: the nonce alone has 39 tokens, give or take 3.
        assert stage.summary.classes["short"].prompt_tokens == pytest.approx(40 * stage.summary.ok, rel=0.15)
        assert stage.signals is not None
        assert stage.signals.engine["requests_finished"] > 0, stage.signals.unseen
    assert result.long_tail is not None
    (arm,) = result.long_tail.arms
    assert arm.long_failed == 0
    assert (wrong.returncode, "serves no model nobody; it serves tiny" in wrong.stderr) == (1, True)
