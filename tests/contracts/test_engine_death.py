"""The engine core dies: the same on the simulated engine and on the real vLLM."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import PATIENCE_SECONDS, WaitUntil
from tests.contracts.streams import ENDLESS, Stream
from tests.support.engines import EngineProcess, group_members, refused

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def test_a_killed_core_ends_everything_with_500_and_exit_code_0(
    doomed_engine: EngineProcess, wait_until: WaitUntil
) -> None:
    engine = doomed_engine
    with ThreadPoolExecutor(4) as pool:
        whole = [pool.submit(engine.complete, ENDLESS) for _ in range(2)]
        stream = Stream(engine, ENDLESS)
        wait_until(lambda: len(stream.lines) > 1, interval=0.01)
        os.kill(engine.core_pid, signal.SIGKILL)
        for request in whole:
            answer = request.result(PATIENCE_SECONDS)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["code"]) == (500, "InternalServerError", 500)
        *_, error_event, done = stream.events()
        assert (stream.status, error_event["error"]["code"], done) == (200, 500, "[DONE]")
    wait_until(lambda: refused(engine), what="port closed")
    assert engine.wait_exit(PATIENCE_SECONDS) == 0  # any exit nobody asked for is a crash, code 0 too
    assert "EngineDeadError" in engine.log.read_text(errors="replace")
    wait_until(lambda: not group_members(engine.process.pid), what="no process left")
