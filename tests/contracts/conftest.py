"""Engines under contract: each test of the engine contract runs on the simulated engine and on the real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sre.servers import vllm_hooks
from sre.stack.commands import FAULT_FILE_VARIABLE, FAULT_MIDDLEWARE
from tests.support.engines import EngineProcess, running_sim
from tests.support.vllm import ENVIRONMENT, MAX_MODEL_LEN, running_vllm, tiny_model

__all__ = ["tiny_model"]

OPTIONS = ("--enable-server-load-tracking", "--enable-request-id-headers")
KINDS = ("sim", pytest.param("vllm", marks=pytest.mark.vllm))


def _engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[EngineProcess]:
    log, fault_file = folder / "engine.log", folder / "faults.json"
    if request.param == "sim":
        options = (
            *OPTIONS, "--max-model-len", str(MAX_MODEL_LEN), "--time-scale", "8", "--fault-file", str(fault_file),
        )  # fmt: skip
        with running_sim(
            log, *options, environment={"VLLM_SERVER_DEV_MODE": ENVIRONMENT["VLLM_SERVER_DEV_MODE"]}
        ) as sim:
            sim.extra["fault_file"] = fault_file
            yield sim
    else:
        python = request.getfixturevalue("vllm_python")
        model = request.getfixturevalue("tiny_model")
        hook = {"PYTHONPATH": str(Path(vllm_hooks.__file__).parent), FAULT_FILE_VARIABLE: str(fault_file)}
        options = (*OPTIONS, "--middleware", FAULT_MIDDLEWARE)
        with running_vllm(python, model, log, *options, environment=hook) as vllm:
            vllm.extra["fault_file"] = fault_file
            yield vllm


@pytest.fixture(scope="package", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One engine for all contracts; test_engine_sigterm.py, the last of them, ends it."""
    yield from _engine(request, tmp_path_factory.mktemp("engine"))


@pytest.fixture(params=KINDS)
def doomed_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineProcess]:
    """An engine of a test's own, to be killed."""
    yield from _engine(request, tmp_path)
