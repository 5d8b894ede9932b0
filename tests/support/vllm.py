"""The real vLLM on a CPU with a tiny random model, for tests. Fixtures: import them in a conftest."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sre.adapters.engines import tiny_model as recipe
from tests.conftest import unused_port
from tests.support.engines import REPOSITORY, EngineProcess, start, wait_ready

READY_SECONDS = 240.0
"""About 30 s on a quiet machine with two cores, most of it imports; several times that on a busy one."""
MAX_MODEL_LEN = recipe.MAX_POSITIONS
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}


def python_path(further: str = "") -> str:
    """PYTHONPATH of a vLLM under test: lets its processes wait without keeping others from running."""
    return os.pathsep.join(filter(None, (str(Path(__file__).parent / "vllm_site"), further)))


@pytest.fixture(scope="session")
def tiny_model(vllm_python: str) -> Path:
    """Folder of a tiny random Llama, made once and kept in .setup/."""
    folder = REPOSITORY / ".setup" / "tiny-model"
    if not recipe.is_tiny_model(folder):
        done = subprocess.run([vllm_python, recipe.__file__, str(folder)], capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.fail(f"cannot make the tiny model: {done.stderr[-2000:]}", pytrace=False)
    return folder


def vllm_argv(python: str, model: Path, port: int, *options: str) -> list[str]:
    """Command line of vLLM's API server on a CPU."""
    return [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32",
        "--max-model-len", str(MAX_MODEL_LEN), *options,
    ]  # fmt: skip


@contextlib.contextmanager
def running_vllm(
    python: str, model: Path, log: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[EngineProcess]:
    """vLLM, ready; its whole group is gone afterwards."""
    port = unused_port()
    argv = vllm_argv(python, model, port, *options)
    given = dict(environment or {})
    given["PYTHONPATH"] = python_path(given.get("PYTHONPATH", ""))
    engine = start(argv, port, "tiny", log, environment=ENVIRONMENT | given)
    engine.is_vllm = True
    try:
        wait_ready(engine, READY_SECONDS)
        yield engine
    finally:
        engine.kill()
