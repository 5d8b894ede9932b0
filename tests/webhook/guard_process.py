"""A real guard with a webhook, in a process that can be killed: beside an engine and a gateway that are not there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import requests
import yaml

from sre.servers.sinks import MailSink, SmsSink
from sre.settings.paths import StatePaths
from tests.conftest import PATIENCE_SECONDS, log_tail

T = TypeVar("T")

TOKEN = "a-token-only-tests-know"


class GuardProcess:
    """Its configuration, its sinks, its life."""

    def __init__(self, folder: Path, free_port: Callable[[], int], **webhook: Any) -> None:
        self.folder, self.paths = folder, StatePaths(folder / "s")
        self.port, self.metrics_port = free_port(), free_port()
        self.mail, self.sms = MailSink(), SmsSink()
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "guard.log"
        self._webhook = webhook
        self._engine_port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v1/alerts"

    def configure(self) -> None:
        channels = []
        for name, kind, url in (("mail", "email", self.mail.channel_url), ("sms", "sms", self.sms.channel_url)):
            (self.folder / f"{name}.url").write_text(url)
            channels.append({"name": name, "kind": kind, "url": f"file:{self.folder / name}.url"})
        (self.folder / "token").write_text(TOKEN)
        document = {
            "stack": {
                "engines": [
                    {"name": "e1", "kind": "external", "model": "m", "url": f"http://127.0.0.1:{self._engine_port}"}
                ]
            },
            "guard": {"metrics_port": self.metrics_port, "gpu_reader": "none"},
            "notify": {"channels": channels, "initial_backoff_seconds": 0.5},
            "webhook": {
                "enabled": True, "port": self.port, "token": f"file:{self.folder / 'token'}", **self._webhook
            },
        }  # fmt: skip
        (self.folder / "sre.yaml").write_text(yaml.safe_dump(document))

    def command(self, *arguments: str) -> list[str]:
        base = [sys.executable, "-m", "sre", "-c", str(self.folder / "sre.yaml"), "--state-dir", str(self.paths.root)]
        return [*base, *arguments]

    def sre(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=timeout, check=False, cwd=self.folder
        )

    def start(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(*(arguments or ("guard", "run"))), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.until("the webhook listens", self.listens)

    def listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, log_tail(self.log)
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """-9, with whatever it started."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process = None

    def post(self, document: dict[str, Any], token: str = TOKEN, timeout: float = 30.0) -> requests.Response:
        return requests.post(
            self.url, data=json.dumps(document), headers={"Authorization": f"Bearer {token}"}, timeout=timeout
        )

    def rows(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        """What is on disk."""
        connection = sqlite3.connect(f"file:{self.paths.guard_db}?mode=ro", uri=True)
        try:
            return connection.execute(query, args).fetchall()
        finally:
            connection.close()

    def until(self, what: str, predicate: Callable[[], T], timeout: float = PATIENCE_SECONDS) -> T:
        deadline = time.monotonic() + timeout
        while True:
            found = predicate()
            if found:
                return found
            if time.monotonic() >= deadline:
                raise AssertionError(f"not within {timeout:g} s: {what}; last {found!r}\n{log_tail(self.log)}")
            time.sleep(0.05)

    def mails(self, event: str) -> list[str]:
        return [mail.text for mail in self.mail.mails() if event in mail.subject]


@contextlib.contextmanager
def guard_process(folder: Path, free_port: Callable[[], int], **webhook: Any) -> Iterator[GuardProcess]:
    made = GuardProcess(folder, free_port, **webhook)
    with made.mail, made.sms:
        made.configure()
        try:
            yield made
        finally:
            made.stop()
