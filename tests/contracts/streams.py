"""Answers of an engine that last: long enough to break into."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from typing import Any

from tests.conftest import WaitUntil
from tests.support.engines import EngineProcess

ENDLESS = 15_000
"""Tokens of an answer that is broken off: tens of seconds on both engines."""
LONG = 3000
"""Tokens of an answer that is waited for: seconds, long enough to break into."""
MESSAGES = [{"role": "user", "content": "Hello there"}]


class Stream:
    """A streamed completion read by a thread of its own."""

    def __init__(self, engine: EngineProcess, tokens: int, path: str = "/v1/completions", **fields: Any) -> None:
        body = {"model": engine.model, "max_tokens": tokens, "ignore_eos": True, "stream": True, **fields}
        body |= {"messages": MESSAGES} if "chat" in path else {"prompt": "Hello there"}
        self._connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=120)
        self._connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            for line in self._answer:
                if line.strip():
                    self.lines.append(line.decode().strip())

    def events(self) -> list[Any]:
        """All payloads, when the stream has ended."""
        self._finish(120)
        return [p if p == "[DONE]" else json.loads(p) for p in (line.removeprefix("data: ") for line in self.lines)]

    def finish_reason(self) -> str | None:
        """How the stream ended."""
        *_, last, done = self.events()
        assert done == "[DONE]"
        reason: str | None = last["choices"][0]["finish_reason"]
        return reason

    def _finish(self, timeout: float) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive()
        self._answer.close()
        self._connection.close()


def running_stream(engine: EngineProcess, wait_until: WaitUntil, tokens: int, path: str = "/v1/completions") -> Stream:
    """A stream of ``tokens`` that has just begun."""
    stream = Stream(engine, tokens, path)
    wait_until(lambda: len(stream.lines) > 1, interval=0.01)
    return stream
