"""The gate on the real vLLM with no stack of ours behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sre.adapters.gate_files import GateFiles
from tests.support.gate_settings import SHORT_GATE
from tests.support.vllm import running_vllm, tiny_model

__all__ = ["tiny_model"]


@pytest.fixture
def vllm_url(vllm_python: str, tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    with running_vllm(vllm_python, tiny_model, tmp_path / "vllm.log") as engine:
        yield engine.url


@pytest.mark.vllm
@pytest.mark.integration
def test_the_real_vllm_with_no_stack_of_ours_behind_it(vllm_url: str, short_dir: Path) -> None:
    # The tiny model's tokens are random; of four, all may be ones that have no text: an answer all the same.
    mix = [{"name": "short", "prompt_tokens": 40, "max_tokens": 4}]
    load = {**SHORT_GATE["load"], "stages_qps": [2, 4], "stage_seconds": 5, "mix": mix}
    long_tail = {"enabled": True, "runs": 1, "seconds": 4, "long_prompt_tokens": 200, "long_max_tokens": 24}
    (short_dir / "sre.yaml").write_text(yaml.safe_dump({"gate": {**SHORT_GATE, "load": load, "long_tail": long_tail}}))

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
