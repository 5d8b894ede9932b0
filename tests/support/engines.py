"""Start real engine processes (simulated or vLLM) for tests, look inside, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import log_tail, unused_port

CORE_TITLE = b"VLLM::EngineCore"
REPOSITORY = Path(__file__).parents[2]


@dataclass
class EngineProcess:
    """A running API server with its engine core."""

    process: subprocess.Popen[bytes]
    port: int
    model: str
    log: Path
    is_vllm: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def core_pid(self) -> int:
        """The engine core: a process of the same group with vLLM's title."""
        for pid in group_members(self.process.pid):
            with contextlib.suppress(OSError):
                if (Path("/proc") / str(pid) / "cmdline").read_bytes().startswith(CORE_TITLE):
                    return pid
        raise LookupError(f"no engine core in group {self.process.pid}")

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=options.pop("timeout", 10), **options)

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=options.pop("timeout", 60), **options)

    def complete(self, tokens: int = 3, **fields: Any) -> requests.Response:
        """A completion of exactly ``tokens`` tokens."""
        body = {"model": self.model, "prompt": "Hello there", "max_tokens": tokens, "ignore_eos": True}
        return self.post("/v1/completions", body | fields)

    def families(self) -> dict[str, Metric]:
        """/metrics, parsed."""
        return {family.name: family for family in text_string_to_metric_families(self.get("/metrics").text)}

    def value(self, sample: str, **labels: str) -> float:
        """Sum of the samples called ``sample`` that have ``labels``."""
        found = [
            item.value
            for family in self.families().values()
            for item in family.samples
            if item.name == sample and labels.items() <= item.labels.items()
        ]
        assert found, f"no sample {sample} {labels}"
        return sum(found)

    def wait_exit(self, timeout: float) -> int:
        """Exit code; fails with the log when it takes longer."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout:g} s\n{log_tail(self.log)}", pytrace=False)

    def kill(self) -> None:
        """End the whole group, whatever its state."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def group_members(group: int) -> list[int]:
    """Living processes of a process group."""
    members = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group and fields[0] not in "ZX":
                    members.append(int(folder.name))
    return members


def start(
    argv: Sequence[str], port: int, model: str, log: Path, *, environment: Mapping[str, str] | None = None
) -> EngineProcess:
    """Start an engine in a session of its own; not yet ready."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
            cwd=REPOSITORY,
        )
    return EngineProcess(process, port, model, log)


def wait_ready(engine: EngineProcess, timeout: float) -> None:
    """Until /health answers 200; fails with the log."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if engine.process.poll() is not None:
            pytest.fail(f"ended with {engine.process.returncode} while starting\n{log_tail(engine.log)}", pytrace=False)
        with contextlib.suppress(requests.RequestException):
            if engine.get("/health", timeout=2).status_code == 200:
                return
        time.sleep(0.05)
    pytest.fail(f"not ready within {timeout:g} s\n{log_tail(engine.log)}", pytrace=False)


def sim_argv(port: int, *options: str, model: str = "tiny") -> list[str]:
    """Command line of a simulated engine that loads quickly."""
    return [
        sys.executable, "-m", "sre.servers.simulated_engine", "--port", str(port), "--model", model,
        "--load-seconds", "0.05", *options,
    ]  # fmt: skip


@contextlib.contextmanager
def running_sim(
    log: Path, *options: str, model: str = "tiny", environment: Mapping[str, str] | None = None
) -> Iterator[EngineProcess]:
    """A simulated engine that is ready; its whole group is gone afterwards."""
    port = unused_port()
    engine = start(sim_argv(port, *options, model=model), port, model, log, environment=environment)
    try:
        wait_ready(engine, 15)
        yield engine
    finally:
        engine.kill()


class Exchange:
    """A completion on a bare connection: what came back so far, and the choice to hang up."""

    def __init__(self, engine: EngineProcess, tokens: int, stream: bool = False, n: int = 1) -> None:
        body = {"prompt": "x", "max_tokens": tokens, "ignore_eos": True, "stream": stream, "n": n}
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        self._socket = socket.create_connection(("127.0.0.1", engine.port))
        self._socket.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        self.received = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._socket.recv(65536):
                self.received += data

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._socket.close()


def refused(engine: EngineProcess) -> bool:
    """Whether the port is closed."""
    try:
        socket.create_connection(("127.0.0.1", engine.port), timeout=2).close()
    except ConnectionRefusedError:
        return True
    return False
