"""A stack of stub engines, run through the real command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sre.adapters.processes.proc import identity_of, is_alive, process_table
from sre.errors import SreError
from sre.settings.paths import StatePaths
from sre.signals.types import ProcessIdentity
from sre.wiring.status import stack_status
from sre.wiring.up import down
from tests.conftest import PATIENCE_SECONDS

STUB = Path(__file__).with_name("stub_vllm.py")


class Stack:
    """One stack under test; ``close`` leaves nothing running."""

    def __init__(self, folder: Path, free_port: Callable[[], int]) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "sre.yaml"
        self.free_port = free_port
        self.gateway_port = free_port()
        self.metrics_port = free_port()
        self.processes: list[subprocess.Popen[str]] = []
        self.configure()

    def configure(self, engines: list[dict[str, Any]] | None = None, **stack: Any) -> None:
        """Write sre.yaml: one stub engine unless said otherwise."""
        document = {
            "stack": {
                "name": "test",
                "engines": engines if engines is not None else [self.stub()],
                "gateway": {"port": self.gateway_port},
                "restart": {"initial_backoff_seconds": 0.1},
                **stack,
            },
            "guard": {"metrics_port": self.metrics_port},
        }
        self.config.write_text(yaml.safe_dump(document))

    def stub(self, name: str = "stub-0", **settings: Any) -> dict[str, Any]:
        """Settings of a stub engine."""
        return {
            "name": name,
            "kind": "vllm",
            "build": "cpu",
            "model": "stub-model",
            "python": str(STUB),
            "stop_timeout_seconds": 5,
            "drain_timeout_seconds": 2,
            **settings,
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sre", "-c", str(self.config), "--state-dir", str(self.state), *arguments]

    def run(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run ``sre ARGUMENTS`` to its end."""
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=timeout, cwd=self.folder, check=False
        )

    def up(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``sre up`` in the foreground of its own session; its output goes to ``out`` and ``err``."""
        with (self.folder / "out").open("a") as out, (self.folder / "err").open("a") as err:
            process = subprocess.Popen(
                self.command("up", "--no-guard", *arguments),
                stdout=out,
                stderr=err,
                text=True,
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def up_ready(self, *arguments: str, timeout: float = PATIENCE_SECONDS) -> subprocess.Popen[str]:
        """Start ``sre up`` and wait for its ready line."""
        lines = self.output.count("ready: ")
        process = self.up(*arguments)
        self.wait(lambda: self.output.count("ready: ") > lines, timeout, process)
        return process

    def wait(
        self, predicate: Callable[[], Any], timeout: float = PATIENCE_SECONDS, up: subprocess.Popen[str] | None = None
    ) -> Any:
        """Poll until true; fail with all logs."""
        deadline = time.monotonic() + timeout
        while True:
            found = predicate()
            if found:
                return found
            if time.monotonic() > deadline or (up is not None and up.poll() is not None):
                pytest.fail(f"not within {timeout:g} s\n{self.talk}\n{self.logs}", pytrace=False)
            time.sleep(0.05)

    @property
    def output(self) -> str:
        return (self.folder / "out").read_text() if (self.folder / "out").exists() else ""

    @property
    def talk(self) -> str:
        return (self.folder / "err").read_text() if (self.folder / "err").exists() else ""

    @property
    def logs(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.state.glob("logs/*.log")))

    def status(self) -> dict[str, Any]:
        """What ``sre status -o json`` says, without the start of a command."""
        return asyncio.run(stack_status(StatePaths(self.state))).to_json()

    def ledger(self) -> dict[str, Any]:
        """Entries of the ledger by name."""
        body = json.loads((self.state / "run" / "processes.json").read_text())["body"]
        return {entry["name"]: entry for entry in body["entries"]}

    def identity(self, name: str) -> ProcessIdentity:
        """Identity of a process by the ledger, once it is ready."""

        def ready() -> dict[str, int] | None:
            entry = self.ledger().get(name)
            return entry["identity"] if entry and entry["identity"] and entry["ready_at"] is not None else None

        found = self.wait(ready)
        return ProcessIdentity(found["pid"], found["start_ticks"])

    def core_of(self, leader: ProcessIdentity) -> ProcessIdentity:
        """The engine core of an engine."""

        def core() -> ProcessIdentity | None:
            for stat in process_table().values():
                if stat.session == leader.pid and stat.pid != leader.pid:
                    return stat.identity
            return None

        found: ProcessIdentity = self.wait(core)
        return found

    def kill(self, identity: ProcessIdentity, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal exactly this process."""
        assert identity_of(identity.pid) == identity
        os.kill(identity.pid, number)

    def gone(self, *identities: ProcessIdentity) -> bool:
        return not any(is_alive(identity) for identity in identities)

    def ours(self) -> list[str]:
        """Living processes of this stack, by the state folder in their environment marks or arguments."""
        found = []
        mark = str(self.folder).encode()
        for stat in process_table().values():
            try:
                line = Path(f"/proc/{stat.pid}/cmdline").read_bytes() + Path(f"/proc/{stat.pid}/environ").read_bytes()
            except OSError:
                continue
            if mark in line and stat.pid != os.getpid():
                found.append(f"{stat.pid} {stat.comm}")
        return found

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(SreError):  # one that just starts does not answer yet
            self._down()
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            process.wait(20)
        self._down()

    def _down(self) -> None:
        asyncio.run(down(None, StatePaths(self.state), lambda *_: None, now=True, drain_timeout_seconds=None))


@pytest.fixture
def stack(short_dir: Path, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    # The folder is in the environment of everything that is started: what is left can be found by it.
    monkeypatch.setenv("SRE_TEST_FOLDER", str(short_dir))
    made = Stack(short_dir, free_port)
    try:
        yield made
    finally:
        made.close()
    assert made.ours() == []
