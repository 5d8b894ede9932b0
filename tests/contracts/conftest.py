"""Engines under contract: each test of the engine contract runs on the simulated engine and on the real vLLM."""

from __future__ import annotations

import os
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


RACES_WITH_VLLM = frozenset(
    {
        "test_abort_requests_ends_with_200_and_finish_reason_abort",
        "test_pause_abort_lets_new_requests_hang_until_resume",
        "test_pause_keep_freezes_running_requests",
    }
)
"""Tests whose requests race with the real vLLM: on an idle machine the tiny model is done before the order arrives,
since its context ends even the longest answer within a second."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out, visibly, what does not yet hold still on the real vLLM; SRE_CONTRACT_ALL=1 runs it."""
    if os.environ.get("SRE_CONTRACT_ALL") == "1":
        return
    for item in items:
        if "[vllm" in item.name and getattr(item, "originalname", item.name) in RACES_WITH_VLLM:
            reason = "races with the real vLLM, not with the simulated engine; SRE_CONTRACT_ALL=1 runs it"
            item.add_marker(pytest.mark.skip(reason=reason))
