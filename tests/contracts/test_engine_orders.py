"""What interrupts an engine: clients that go, aborts, pauses, sleep, a stopped core. The same on both engines."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from sre.metrics import vllm
from tests.conftest import PATIENCE_SECONDS, WaitUntil
from tests.contracts.streams import ENDLESS, LONG, Stream, running_stream
from tests.support.engines import EngineProcess, Exchange

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

STEPS = vllm.ITERATION_TOKENS.sample


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def test_a_client_that_goes_away_ends_its_requests_uncounted(engine: EngineProcess, wait_until: WaitUntil) -> None:
    aborted = engine.value("vllm:request_success_total", finished_reason="abort")
    exchange = Exchange(engine, ENDLESS, n=8)
    try:
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 8)
        assert engine.get("/load").json() == {"server_load": 1}
    finally:
        exchange.close()
    assert exchange.received == b""
    wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 0)
    wait_until(lambda: engine.get("/load").json() == {"server_load": 0})
    assert engine.value("vllm:request_success_total", finished_reason="abort") == aborted


def test_abort_requests_ends_with_200_and_finish_reason_abort(
    engine: EngineProcess, pool: ThreadPoolExecutor, wait_until: WaitUntil
) -> None:
    # The stream first: by its first token we know it runs. Of the other nothing is seen until its end, so its time
    # should not pass while we wait for a token.
    stream = running_stream(engine, wait_until, ENDLESS, path="/v1/chat/completions")
    whole = pool.submit(engine.complete, ENDLESS)
    wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 2)
    assert engine.post("/abort_requests", {}).json() == {"status": "aborted", "aborted": 2}
    answer = whole.result(PATIENCE_SECONDS)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["finish_reason"] == "abort"
    assert stream.finish_reason() == "abort"
    assert engine.post("/abort_requests", {"request_ids": ["x"]}).json() == {"status": "aborted", "aborted": 1}


def test_pause_abort_lets_new_requests_hang_until_resume(
    engine: EngineProcess, pool: ThreadPoolExecutor, wait_until: WaitUntil
) -> None:
    running = running_stream(engine, wait_until, ENDLESS)
    assert engine.get("/is_paused").json() == {"is_paused": False}
    assert engine.post("/pause?mode=abort").json() == {"status": "paused"}
    try:
        assert running.finish_reason() == "abort"
        assert engine.get("/is_paused").json() == {"is_paused": True}
        held = pool.submit(engine.complete, 3)
        wait_until(lambda: engine.get("/load").json() == {"server_load": 1})
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 0)
        assert engine.value(vllm.REQUESTS_WAITING.sample) == 0
        assert engine.get("/health").status_code == 200
        assert not held.done()
    finally:
        assert engine.post("/resume").json() == {"status": "resumed"}
    assert held.result(PATIENCE_SECONDS).json()["choices"][0]["finish_reason"] == "length"


def test_pause_keep_freezes_running_requests(engine: EngineProcess, wait_until: WaitUntil) -> None:
    exchange = Exchange(engine, ENDLESS)
    try:
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 1)
        assert engine.post("/pause?mode=keep").json() == {"status": "paused"}
        try:
            wait_until(_flat(engine))
            steps = engine.value(STEPS)
            assert engine.value(vllm.REQUESTS_RUNNING.sample) == 1
            assert exchange.received == b""
        finally:
            engine.post("/resume")
        wait_until(lambda: engine.value(STEPS) > steps)
    finally:
        exchange.close()
    wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 0)


def test_pause_wait_returns_when_running_requests_have_finished(engine: EngineProcess, wait_until: WaitUntil) -> None:
    running = running_stream(engine, wait_until, LONG)
    try:
        assert engine.post("/pause?mode=wait").json() == {"status": "paused"}
        assert running.finish_reason() == "length"
    finally:
        engine.post("/resume")
    wrong = engine.post("/pause?mode=bogus").json()["error"]
    assert (wrong["type"], wrong["param"], wrong["code"]) == ("Bad Request", "query.mode", 400)


def test_sleep_is_told_by_the_gauge(engine: EngineProcess) -> None:
    def state() -> dict[str, float]:
        samples = engine.families()[vllm.ENGINE_SLEEP_STATE.name].samples
        return {sample.labels["sleep_state"]: sample.value for sample in samples}

    assert state() == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    assert engine.post("/sleep?level=1").json() == {"status": "sleeping", "level": 1}
    try:
        assert engine.get("/is_sleeping").json() == {"is_sleeping": True}
        assert state() == {"awake": 0, "weights_offloaded": 1, "discard_all": 0}
    finally:
        assert engine.post("/wake_up").json() == {"status": "awake", "tags": None}
    assert engine.get("/is_sleeping").json() == {"is_sleeping": False}
    families = engine.families()
    for metric in (vllm.SLEEP_OPERATION_DURATION, vllm.SLEEP_OPERATIONS_IN_FLIGHT):
        assert families[metric.name].type == metric.kind.value
    bounds = {s.labels["le"] for s in families[vllm.SLEEP_OPERATION_DURATION.name].samples if "le" in s.labels}
    assert bounds == {str(float(bound)) for bound in vllm.SLEEP_OPERATION} | {"+Inf"}


def test_reset_prefix_cache(engine: EngineProcess) -> None:
    assert engine.post("/reset_prefix_cache").json() == {"success": True}


def test_a_stopped_core_looks_healthy_and_stalls_and_loses_nothing(
    engine: EngineProcess, pool: ThreadPoolExecutor, wait_until: WaitUntil
) -> None:
    core, steps = engine.core_pid, engine.value(STEPS)
    os.kill(core, signal.SIGSTOP)
    try:
        whole = [pool.submit(engine.complete, 20) for _ in range(2)]
        stream = Stream(engine, 20)
        wait_until(lambda: engine.get("/load").json() == {"server_load": 3})
        for path in ("/health", "/ping", "/v1/models", "/metrics", "/version"):
            assert engine.get(path).status_code == 200
        with pytest.raises(requests.Timeout):
            engine.get("/is_paused", timeout=1.5)  # asks the core: the one thing that tells
        assert engine.value(STEPS) == steps
        assert engine.value(vllm.REQUESTS_RUNNING.sample) == 0  # the gauges are those of the last step
        assert engine.value(vllm.REQUESTS_WAITING.sample) == 0
        assert stream.lines == []
        assert not any(request.done() for request in whole)
    finally:
        os.kill(core, signal.SIGCONT)
    assert [request.result(PATIENCE_SECONDS).json()["usage"]["completion_tokens"] for request in whole] == [20, 20]
    assert stream.finish_reason() == "length"


def _flat(engine: EngineProcess) -> Callable[[], bool]:
    """True once two looks, 0.5 s apart, saw the same number of steps and tokens."""

    def look() -> tuple[float, float]:
        families = engine.families()
        steps = next(s.value for s in families[vllm.ITERATION_TOKENS.name].samples if s.name == STEPS)
        tokens = next(
            s.value for s in families[vllm.GENERATION_TOKENS.name].samples if s.name == vllm.GENERATION_TOKENS.sample
        )
        return steps, tokens

    def flat() -> bool:
        before = look()
        time.sleep(0.5)  # flatness shows only over time
        return look() == before

    return flat
