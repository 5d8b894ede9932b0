"""A real Envoy in a temporary folder, in front of stub engines."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from sre.adapters.clock import SystemClock
from sre.adapters.envoy import EnvoyGateway, find_envoy, prepare
from sre.settings.paths import StatePaths
from sre.settings.stack import EngineSettings, GatewaySettings, StackSettings
from sre.stack.gateway import envoy_argv
from tests.conftest import PATIENCE_SECONDS, log_tail, unused_port
from tests.gateway.stub import StubEngine


class HastyClock(SystemClock):
    """The machine's clock, moved on by ``advance`` where a test would have to wait."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


class RunningEnvoy:
    """Envoy under test. ``url`` is where clients connect."""

    def __init__(self, root: Path, stack: StackSettings, managed: dict[str, tuple[str, int]]) -> None:
        self.paths = StatePaths(root)
        self.paths.create()
        self.stack = stack
        self.managed = managed
        self.problems = prepare(self.paths, stack, managed)
        self.url = f"http://127.0.0.1:{stack.gateway.port}"
        self.log = root / "envoy.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - spawning takes a millisecond
                envoy_argv(find_envoy(self.stack)), cwd=self.paths.gateway, stdout=log, stderr=log
            )
        await self._until_listening()

    async def _until_listening(self) -> None:
        assert self._process is not None
        for _ in range(400):
            if self._process.poll() is not None:
                raise AssertionError(f"envoy ended with {self._process.returncode}\n{log_tail(self.log)}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.stack.gateway.port)
            except OSError:
                await asyncio.sleep(0.025)
                continue
            writer.close()
            await writer.wait_closed()
            return
        raise AssertionError(f"envoy does not listen\n{log_tail(self.log)}")

    def kill(self) -> None:
        """SIGKILL, and reap."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Bench:
    """Everything a gateway test needs: engines by name, the running Envoy, the adapter, a client session."""

    def __init__(
        self,
        envoy: RunningEnvoy,
        engines: dict[str, StubEngine],
        gateway: EnvoyGateway,
        http: aiohttp.ClientSession,
        clock: HastyClock,
    ) -> None:
        self.envoy, self.engines, self.gateway, self.http, self.clock = envoy, engines, gateway, http, clock

    def post(self, path: str = "/v1/completions", *, headers: dict[str, str] | None = None, **body: Any) -> Any:
        """POST a completion; use as ``async with``. Without ``model`` the first pool is asked."""
        body.setdefault("model", next(iter(self.envoy.stack.pools)))
        body.setdefault("max_tokens", 4)
        return self.http.post(self.envoy.url + path, json=body, headers=headers or {})

    async def ask(self, path: str = "/v1/completions", **body: Any) -> tuple[int, dict[str, str], str]:
        """POST and read to the end: (status, headers with lower-case names, text)."""
        headers = body.pop("headers", None)
        async with self.post(path, headers=headers, **body) as response:
            text = await response.text()
            return response.status, {k.lower(): v for k, v in response.headers.items()}, text

    async def lose_log(self) -> None:
        """Put a folder where the access log was, and read what was still to be read of it."""
        path = self.gateway.access_log
        path.rename(path.with_name("lost"))
        path.mkdir()
        for _ in range(10):  # Envoy flushes every 0.1 s: between two flushes the reader leaves the old file
            self.gateway.poll_log()
            await asyncio.sleep(0.02)

    async def find_log(self) -> None:
        """Let Envoy write where it is read again."""
        self.gateway.access_log.rmdir()
        await self.gateway.observe()

    async def finished(self, count: int, timeout: float = PATIENCE_SECONDS) -> list[Any]:
        """Poll the log until ``count`` requests ended; return them in log order."""
        out: list[Any] = []
        for _ in range(int(timeout / 0.05)):
            out.extend(self.gateway.poll_log())
            if len(out) >= count:
                return out
            await asyncio.sleep(0.05)
        raise AssertionError(f"{len(out)} of {count} requests ended in the log: {out}\n{log_tail(self.envoy.log)}")


def engine_settings(*names: str, **more: Any) -> tuple[EngineSettings, ...]:
    """Engines of one pool, model ``m``."""
    return tuple(EngineSettings(name=n, model="m", **more) for n in names)


@asynccontextmanager
async def running(
    root: Path, *, engines: tuple[EngineSettings, ...] | None = None, start: bool = True, **gateway: Any
) -> AsyncIterator[Bench]:
    """Stub engines, Envoy and adapter; all ended afterwards. ``gateway`` are fields of GatewaySettings."""
    engines = engines or engine_settings("a")
    stack = StackSettings(engines=engines, gateway=GatewaySettings(port=unused_port(), **gateway))
    stubs = {e.name: StubEngine(unused_port()) for e in engines}
    envoy = RunningEnvoy(root, stack, {name: ("127.0.0.1", s.port) for name, s in stubs.items()})
    clock = HastyClock()
    adapter = EnvoyGateway(envoy.paths, stack, clock)
    try:
        for stub in stubs.values():
            await stub.start()
        adapter.poll_log()  # what comes from now on is news
        if start:
            await envoy.start()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            yield Bench(envoy, stubs, adapter, http, clock)
    finally:
        for stub in stubs.values():
            await stub.stop()
        await adapter.close()
        envoy.stop()


async def until(check: Callable[[], Awaitable[bool]], what: str, timeout: float = PATIENCE_SECONDS) -> None:
    """Poll ``check`` until it is true; fail with ``what`` at the deadline."""
    for _ in range(int(timeout / 0.02)):
        if await check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {timeout:g} s: {what}")
