"""Engines under contract: each test of the engine contract runs on the simulated engine and on the real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import EngineProcess, running_sim
from tests.support.vllm import ENVIRONMENT, MAX_MODEL_LEN, running_vllm, tiny_model

__all__ = ["tiny_model"]

OPTIONS = ("--enable-server-load-tracking", "--enable-request-id-headers")
KINDS = ("sim", pytest.param("vllm", marks=pytest.mark.vllm))


def _engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[EngineProcess]:
    log = folder / "engine.log"
    if request.param == "sim":
        options = (*OPTIONS, "--max-model-len", str(MAX_MODEL_LEN), "--time-scale", "4")
        with running_sim(
            log, *options, environment={"VLLM_SERVER_DEV_MODE": ENVIRONMENT["VLLM_SERVER_DEV_MODE"]}
        ) as sim:
            yield sim
    else:
        python = request.getfixturevalue("vllm_python")
        model = request.getfixturevalue("tiny_model")
        with running_vllm(python, model, log, *OPTIONS) as vllm:
            yield vllm


@pytest.fixture(scope="session", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One engine for all tests of the contract; the last one ends it."""
    yield from _engine(request, tmp_path_factory.mktemp("engine"))


@pytest.fixture(params=KINDS)
def doomed_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineProcess]:
    """An engine of a test's own, to be killed."""
    yield from _engine(request, tmp_path)
