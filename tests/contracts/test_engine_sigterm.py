"""
SIGTERM to an engine: the same on the simulated engine and on the real vLLM.

A file of its own, and last by its name: it ends the engine that the other contracts share. (A start of vLLM takes half
a minute.)
"""

from __future__ import annotations

import contextlib
import signal
import subprocess

import pytest

from sre.metrics import vllm
from tests.conftest import PATIENCE_SECONDS, WaitUntil
from tests.contracts.streams import ENDLESS
from tests.support.engines import EngineProcess, Exchange, refused

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def test_sigterm_finishes_no_request_and_exits_0(engine: EngineProcess, wait_until: WaitUntil) -> None:
    """
    What a client gets is 200 with finish_reason abort, mostly. A busy vLLM kills its core before it has told of the
    aborts: then it is 500, or no answer at all, and the API server waits for its clients to go. So they go.
    """
    exchanges = [Exchange(engine, ENDLESS, stream) for stream in (False, False, True)]
    try:
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 3)
        engine.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refused(engine))
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine.process.wait(3)
    finally:
        for exchange in exchanges:
            exchange.close()
    for exchange in exchanges:
        assert exchange.received[:13] in (b"", b"HTTP/1.1 200 ", b"HTTP/1.1 500 ")
        assert b'"finish_reason":"stop"' not in exchange.received
        assert b'"finish_reason":"length"' not in exchange.received
    assert engine.wait_exit(PATIENCE_SECONDS) == 0
