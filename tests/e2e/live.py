"""A whole stack through the real command: sre up with Envoy, engines and guard; load; mail and SMS that arrive."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import requests
import yaml

from sre.adapters.processes.proc import is_alive, members_of, process_table
from sre.servers.sinks import MailSink, SmsSink
from sre.settings.paths import StatePaths
from sre.signals.types import ProcessIdentity
from sre.wiring.guard_client import ask
from tests.conftest import PATIENCE_SECONDS, log_tail

T = TypeVar("T")

QUICK_HALF_OPEN = {
    "open_seconds": 2.0,
    "probe_interval_seconds": 0.5,
    "ramp_dwell_seconds": 0.5,
    "ramp_percents": [50, 100],
    "successes_to_ramp": 2,
    "latch_after_openings": 50,
    "stable_after_seconds": 0.5,
}


class Live:
    """One running stack and its clients."""

    def __init__(self, folder: Path, free_port: Callable[[], int], engines: list[dict[str, Any]]) -> None:
        self.folder, self.paths = folder, StatePaths(folder / "s")
        self.port, self.metrics_port = free_port(), free_port()
        self.model = engines[0].get("served_model_name", engines[0]["model"])
        self.mail, self.sms = MailSink(), SmsSink()
        self.engines = engines
        self._load: threading.Thread | None = None
        self._stop_load = threading.Event()
        self.answers: list[tuple[float, int, str | None, str | None]] = []
        """(monotonic at the end, status, x-sre-reason, finish_reason or how it broke)."""

    def configure(self, **guard: Any) -> None:
        channels = []
        for name, kind, url in (("mail", "email", self.mail.channel_url), ("sms", "sms", self.sms.channel_url)):
            secret = self.folder / f"{name}.url"
            secret.write_text(url)
            channels.append({"name": name, "kind": kind, "url": f"file:{secret}"})
        document = {
            "stack": {
                "name": "live",
                "engines": self.engines,
                "gateway": {"port": self.port},
                "restart": {"initial_backoff_seconds": 0.1},
            },
            "guard": {"metrics_port": self.metrics_port, "gpu_reader": "sim", "half_open": QUICK_HALF_OPEN, **guard},
            # A loaded test machine may hold up the injector for longer than the lease of a second.
            "chaos": {"lease_seconds": 5.0},
            "notify": {"channels": channels, "initial_backoff_seconds": 1.0},
        }
        (self.folder / "sre.yaml").write_text(yaml.safe_dump(document))

    def command(self, *arguments: str) -> list[str]:
        base = [sys.executable, "-m", "sre", "-c", str(self.folder / "sre.yaml"), "--state-dir", str(self.paths.root)]
        return [*base, *arguments]

    def sre(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=timeout, check=False, cwd=self.folder
        )

    def up(self, timeout: float = PATIENCE_SECONDS) -> None:
        done = self.sre("up", "--detach", timeout=timeout)
        assert done.returncode == 0, f"{done.stderr}\n{log_tail(self.paths.logs)}"

    def until(self, what: str, predicate: Callable[[], T], timeout: float = PATIENCE_SECONDS) -> T:
        """Poll until true; on the deadline show what the guard knew and the logs."""
        deadline = time.monotonic() + timeout
        while True:
            found = None
            with contextlib.suppress(Exception):
                found = predicate()
            if found:
                return found
            if time.monotonic() >= deadline:
                with contextlib.suppress(Exception):
                    what += "\n" + json.dumps(self.status(), indent=1)
                raise AssertionError(f"not within {timeout:g} s: {what}\n{log_tail(self.paths.logs)}")
            time.sleep(0.05)

    # ---- what is seen -----------------------------------------------------------------------------------------------

    def status(self) -> Any:
        return ask(self.paths.guard_socket, "GET", "/status")

    def breaker(self, engine: str = "") -> dict[str, Any]:
        data: dict[str, Any] = self.status()["engines"][engine or self.engines[0]["name"]]
        return data

    def wait_closed(self, timeout: float = PATIENCE_SECONDS) -> None:
        self.until(
            "all closed", lambda: all(e["state"] == "closed" for e in self.status()["engines"].values()), timeout
        )

    def journal(self, **match: Any) -> list[dict[str, Any]]:
        rows = ask(self.paths.guard_socket, "GET", "/journal?limit=2000")
        return [r for r in rows if all(r.get(k) == v for k, v in match.items())]

    def identity(self, name: str) -> ProcessIdentity:
        """Of a process of the stack, from the ledger: it outlives the supervisor."""
        body = json.loads(self.paths.ledger.read_text())["body"]
        entry = next(e for e in body["entries"] if e["name"] == name)
        return ProcessIdentity(entry["identity"]["pid"], entry["identity"]["start_ticks"])

    def core(self, engine: str = "") -> int:
        """Pid of the engine core."""
        leader = self.identity(engine or self.engines[0]["name"])
        for stat in members_of(leader, process_table()):
            if stat.comm.startswith("VLLM::EngineCor"):
                return stat.pid
        raise LookupError("no engine core")

    # ---- clients ----------------------------------------------------------------------------------------------------

    def ask(
        self, max_tokens: int = 16, stream: bool = True, timeout: float = 60.0
    ) -> tuple[int, str | None, str | None]:
        """One completion: (status, x-sre-reason, finish_reason or how it broke)."""
        body = {"model": self.model, "prompt": "hello", "max_tokens": max_tokens, "stream": stream, "ignore_eos": True}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        with requests.post(url, json=body, stream=True, timeout=timeout) as answer:
            reason = answer.headers.get("x-sre-reason")
            if answer.status_code != 200:
                return answer.status_code, reason, None
            finish: str | None = "cut"
            try:
                if not stream:
                    return 200, reason, answer.json()["choices"][0]["finish_reason"]
                for line in answer.iter_lines():
                    if line.startswith(b"data: {"):
                        choice = json.loads(line[6:])
                        finish = choice["choices"][0]["finish_reason"] if choice.get("choices") else "error"
            except requests.RequestException:
                finish = "cut"
            return 200, reason, finish

    def start_load(self, clients: int = 6, max_tokens: int = 48, pause: float = 0.05) -> None:
        """Clients that ask again and again, bounded in number, time and count, until ``stop_load``."""
        self._stop_load.clear()
        ends = time.monotonic() + 240

        def client() -> None:
            for _ in range(2000):
                if self._stop_load.is_set() or time.monotonic() > ends:
                    return
                try:
                    status, reason, finish = self.ask(max_tokens)
                except requests.RequestException as error:
                    status, reason, finish = 0, None, type(error).__name__
                self.answers.append((time.monotonic(), status, reason, finish))
                self._stop_load.wait(pause if status == 200 else max(pause, 0.2))

        self._threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def stop_load(self) -> None:
        self._stop_load.set()
        for thread in self._threads:
            thread.join(70)

    def refused(self, reason: str) -> bool:
        """Ask something new: is it refused, for this reason? The clients under load may all wait for a stuck engine."""
        return self.ask(1, timeout=1.0)[:2] == (503, reason)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def down(self) -> None:
        """Stop all; whatever is left is ended by its identity."""
        names = [e["name"] for e in self.engines] + ["guard", "gateway"]
        known: dict[str, ProcessIdentity] = {}
        for name in names:
            with contextlib.suppress(Exception):
                known[name] = self.identity(name)
        with contextlib.suppress(Exception):
            os.kill(self.core(), signal.SIGCONT)
        done = self.sre("down", "--now", timeout=90)
        left = [name for name, identity in known.items() if is_alive(identity)]
        for name in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(known[name].pid, signal.SIGKILL)
        assert done.returncode == 0, done.stderr
        assert not left, f"left running after sre down: {left}"


@contextlib.contextmanager
def live_stack(
    folder: Path, free_port: Callable[[], int], engines: list[dict[str, Any]], *, ready: float = 60.0, **guard: Any
) -> Iterator[Live]:
    """A stack that is up and armed; taken down afterwards whatever happened."""
    live = Live(folder, free_port, engines)
    with live.mail, live.sms:
        live.configure(**guard)
        try:
            live.up(ready)
            live.until("the guard saw the engines", lambda: live.breaker()["process"] == "ready")
            yield live
        finally:
            live._stop_load.set()
            live.down()
