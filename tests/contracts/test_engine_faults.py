"""Contract of the fault file: a simulated engine, and a real vLLM with our middleware, act out the same faults."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sre.watchdog.processes import boot_id
from tests.conftest import WaitUntil
from tests.support.engines import EngineProcess

pytestmark = pytest.mark.integration

Place = Callable[..., None]


@pytest.fixture
def place(engine: EngineProcess, wait_until: WaitUntil) -> Iterator[Place]:
    """Write the engine's fault file; removed afterwards, and the engine serves again."""
    path: Path = engine.extra["fault_file"]

    def write(*, run_id: str, lasts_seconds: float = 60.0, boot: str | None = None, **faults: Any) -> None:
        temporary = path.with_suffix(".new")
        document = {
            "boot_id": boot or boot_id(),
            "expires_monotonic": time.monotonic() + lasts_seconds,
            "run_id": run_id,
            "faults": faults,
        }
        temporary.write_text(json.dumps(document))
        temporary.rename(path)

    yield write
    path.unlink(missing_ok=True)
    # One good answer may be chance under a ratio; the engine looks at the file now and then only.
    wait_until(lambda: all(engine.complete(1).status_code == 200 for _ in range(12)), 10.0, what="the fault is over")


def test_full_error_ratio_fails_every_completion_with_an_openai_error(
    engine: EngineProcess, place: Place, wait_until: WaitUntil
) -> None:
    place(run_id="all", error_ratio=1.0)
    wait_until(lambda: engine.complete(1).status_code == 500, 10.0, what="the fault is in force")
    answers = [engine.complete(1), engine.post("/v1/chat/completions", chat(engine))]
    assert [answer.status_code for answer in answers] == [500, 500]
    assert all(answer.json()["error"]["code"] == 500 for answer in answers)
    assert [engine.get(path).status_code for path in ("/health", "/v1/models", "/metrics")] == [200, 200, 200]


def test_half_error_ratio_fails_half(engine: EngineProcess, place: Place, wait_until: WaitUntil) -> None:
    place(run_id="half", error_ratio=0.5)
    wait_until(lambda: engine.complete(1).status_code == 500, 10.0, what="the fault is in force")
    statuses = [engine.complete(1).status_code for _ in range(40)]
    assert set(statuses) == {200, 500}
    assert 8 <= statuses.count(500) <= 32  # seven standard deviations of a fair coin are 22


def test_so_many_batches_fail_and_then_none(engine: EngineProcess, place: Place, wait_until: WaitUntil) -> None:
    place(run_id="batches", batch_failures=2)
    wait_until(lambda: engine.complete(1).status_code == 500, 10.0, what="the fault is in force")
    statuses = []
    for _ in range(3):
        time.sleep(0.1)  # to the middleware, requests within 50 ms are one batch
        statuses.append(engine.complete(1).status_code)
    assert statuses == [500, 200, 200]


def test_fault_ends_by_itself(engine: EngineProcess, place: Place, wait_until: WaitUntil) -> None:
    place(run_id="short", error_ratio=1.0, lasts_seconds=1.5)
    wait_until(lambda: engine.complete(1).status_code == 500, 10.0, what="the fault is in force")
    wait_until(lambda: engine.complete(1).status_code == 200, 5.0, what="the fault has expired")


def test_fault_of_another_boot_is_ignored(engine: EngineProcess, place: Place, wait_until: WaitUntil) -> None:
    place(run_id="before", error_ratio=1.0)
    wait_until(lambda: engine.complete(1).status_code == 500, 10.0, what="the fault is in force")
    place(run_id="other", error_ratio=1.0, boot="another-boot")
    wait_until(lambda: engine.complete(1).status_code == 200, 5.0, what="the file of another boot ends it")
    assert [engine.complete(1).status_code for _ in range(5)] == [200] * 5


def chat(engine: EngineProcess) -> dict[str, Any]:
    return {"model": engine.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
