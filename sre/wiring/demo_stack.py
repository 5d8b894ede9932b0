"""The demo's own stack: its configuration, `sre up` as a process, and the certainty that nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from sre.adapters.processes import proc
from sre.adapters.processes.pidfd import PidFd
from sre.adapters.supervisor_client import SupervisorClient
from sre.errors import DependencyError, ExitedEarly, NotReady
from sre.settings.load import load_settings
from sre.settings.models import Root
from sre.settings.paths import StatePaths, state_paths

EngineKind = Literal["sim", "vllm"]

DEMO_MARK = "SRE_DEMO_ID"
"""Environment variable of everything that this demo starts, however it is detached."""
MODEL = {"sim": "sim-7b", "vllm": "tiny"}
ENGINE = {"sim": "sim-0", "vllm": "vllm-0"}
READY_SECONDS = {"sim": 30.0, "vllm": 300.0}

# What the demo shortens, and why the story stays true: detection keeps its defaults, only waits are cut.
SHORTENED: dict[str, dict[EngineKind, dict[str, float]]] = {
    "hang": {
        "sim": {
            "start_grace_seconds": 2.0, "restart_after_seconds": 8.0,
            "canary_first_token_timeout_seconds": 2.0, "canary_timeout_seconds": 4.0,
        },
        "vllm": {
            "start_grace_seconds": 8.0, "restart_after_seconds": 12.0,
            "canary_first_token_timeout_seconds": 3.0, "canary_timeout_seconds": 6.0,
        },
    },
    "half_open": {
        "sim": {"open_seconds": 3.0, "probe_interval_seconds": 0.5, "ramp_dwell_seconds": 2.0},
        "vllm": {"open_seconds": 3.0, "probe_interval_seconds": 0.5, "ramp_dwell_seconds": 2.0},
    },
}  # fmt: skip


def shortened(kind: EngineKind) -> list[tuple[str, float, float]]:
    """(setting, the demo's value, the default) of every wait that the demo cuts."""
    defaults = Root().guard.model_dump()
    return [
        (f"guard.{section}.{name}", value, float(defaults[section][name]))
        for section, kinds in SHORTENED.items()
        for name, value in kinds[kind].items()
    ]


@dataclass(frozen=True, slots=True)
class DemoEngine:
    """What the demo serves."""

    kind: EngineKind
    python: str | None = None
    model: Path | None = None

    @property
    def name(self) -> str:
        return ENGINE[self.kind]

    @property
    def served_name(self) -> str:
        return MODEL[self.kind]

    def settings(self) -> dict[str, Any]:
        """Its entry in sre.yaml."""
        common: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "gpus": [0],
            "drain_timeout_seconds": 1.0,
            "stop_timeout_seconds": 3.0,
            "ready_timeout_seconds": READY_SECONDS[self.kind],
        }
        if self.kind == "sim":
            return common | {"model": self.served_name}
        return common | {
            "model": str(self.model),
            "served_model_name": self.served_name,
            "build": "cpu",
            "python": self.python,
            "args": ["--enforce-eager", "--dtype", "float32", "--max-model-len", "512"],
        }


def unused_ports(count: int) -> list[int]:
    """TCP ports on loopback that were free a moment ago, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def write_configuration(folder: Path, engine: DemoEngine, mail_url: str, sms_url: str) -> Path:
    """Write sre.yaml and the files with the channels' addresses; return the path of sre.yaml."""
    channels = []
    for name, kind, url in (("mail", "email", mail_url), ("sms", "sms", sms_url)):
        secret = folder / f"{name}-url"
        secret.touch(mode=0o600)
        secret.write_text(url)
        channels.append({"name": name, "kind": kind, "url": f"file:{secret}"})
    gateway_port, metrics_port = unused_ports(2)
    document = {
        "stack": {
            "name": "demo",
            "state_dir": str(folder / "state"),
            "engines": [engine.settings()],
            "gateway": {"port": gateway_port},
        },
        "guard": {
            "metrics_port": metrics_port,
            **{section: kinds[engine.kind] for section, kinds in SHORTENED.items()},
        },
        "notify": {"channels": channels},
        # The demo does more than to hold the fault; on a busy machine its sign of life may be late.
        "chaos": {"lease_seconds": 5.0},
    }
    path = folder / "sre.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    return path


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


class DemoStack:
    """``sre up`` on the demo's configuration, as a process of its own."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self.settings: Root = load_settings(config)
        self.paths: StatePaths = state_paths(self.settings.stack, None, os.environ)
        self.supervisor = SupervisorClient(self.paths.supervisor_socket)
        self.log = config.with_name("sre-up.log")
        self._mark = str(uuid.uuid4())
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def gateway_url(self) -> str:
        gateway = self.settings.stack.gateway
        return f"http://{gateway.host}:{gateway.port}"

    def environment(self) -> Mapping[str, str]:
        """What its processes inherit: our environment with the demo's mark, and without what points ``sre`` elsewhere:
        SRE_STATE_DIR of an operator's shell must never make this the operator's stack."""
        ours = {name: value for name, value in os.environ.items() if name not in ("SRE_STATE_DIR", "SRE_CONFIG")}
        return {**ours, DEMO_MARK: self._mark}

    def start(self) -> None:
        """Start it in a session of its own: a Ctrl-C at the terminal reaches the demo alone, which then stops it."""
        own = ["--config", str(self._config), "--state-dir", str(self.paths.root)]
        argv = [sys.executable, "-m", "sre", *own, "up"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(), start_new_session=True
            )

    async def wait_ready(self, timeout_seconds: float) -> float:
        """
        Return the seconds until every process of the stack was ready.

        Raises:
            ExitedEarly: ``sre up`` ended.
            NotReady: It took longer than ``timeout_seconds``.
        """
        began = time.monotonic()
        phase = "unknown"
        while time.monotonic() - began < timeout_seconds:
            if self._process is not None and self._process.poll() is not None:
                raise ExitedEarly(f"sre up: ended with code {self._process.returncode}: {self.last_words()}")
            try:
                report = await self.supervisor.status()
            except DependencyError:
                await asyncio.sleep(0.1)
                continue
            if report.phase == "ready":
                return time.monotonic() - began
            phase = report.message or report.phase
            await asyncio.sleep(0.1)
        raise NotReady(f"sre up: not ready within {timeout_seconds:g} s ({phase}): {self.last_words()}")

    def last_words(self) -> str:
        """The last lines of its log, on one line."""
        try:
            lines = self.log.read_text("utf-8", "replace").split("\n")
        except OSError:
            return "no log"
        return " | ".join(line.strip() for line in lines if line.strip())[-300:] or "empty log"

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop it as a person would, ever more firmly; afterwards nothing of it runs, whatever happened."""
        try:
            await self._stop_politely(hurry)
        finally:
            self.end_leftovers()

    async def _stop_politely(self, hurry: asyncio.Event) -> None:
        process = self._process
        if process is not None:
            # The second SIGTERM means: no more draining.
            for number, seconds in ((signal.SIGTERM, 12.0), (signal.SIGTERM, 6.0), (signal.SIGKILL, 5.0)):
                if process.poll() is not None:
                    break
                process.send_signal(number)
                await self._wait_ended(process, hurry, seconds)

    async def _wait_ended(self, process: subprocess.Popen[bytes], hurry: asyncio.Event, seconds: float) -> None:
        ended = asyncio.create_task(asyncio.to_thread(_wait, process, seconds))
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait({ended, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()

    def end_leftovers(self) -> int:
        """Kill what still carries the demo's mark; return how many processes that were. Blocks for 5 s at most."""
        killed: set[int] = set()
        deadline = time.monotonic() + 5.0
        while (left := self._marked()) and time.monotonic() < deadline:
            for stat in left:
                handle = PidFd.open(stat.identity)
                if handle is not None:
                    with handle:
                        killed.add(stat.pid)
                        handle.send(signal.SIGKILL)
            time.sleep(0.05)
        if self._process is not None:
            self._process.poll()  # reap
        return len(killed)

    def _marked(self) -> list[proc.Stat]:
        return [
            stat
            for stat in proc.process_table().values()
            if stat.pid != os.getpid()
            and not stat.gone
            and proc.environment(stat.pid, [DEMO_MARK]).get(DEMO_MARK) == self._mark
        ]
