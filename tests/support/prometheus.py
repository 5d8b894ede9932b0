"""A real Prometheus and a real Alertmanager, configured for tests: everything within a second, nothing kept."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest
import requests
import yaml

from tests.conftest import PATIENCE_SECONDS, log_tail, require_binary, unused_port

T = TypeVar("T")

READY_SECONDS = 20.0
RETENTION = "2h"
STARTS = 3
"""Somebody else may take the free port before the program does."""


@dataclass(frozen=True, slots=True)
class Target:
    """``host:port`` and the labels of its series; ``__metrics_path__`` or ``instance`` among them where they differ."""

    address: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Series:
    """One series: labels (``__name__`` among them) and samples as (seconds since 1970, value)."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """The latest value."""
        return self.samples[-1][1]


class Server:
    """A program that serves HTTP on loopback, and its log."""

    def __init__(self, url: str, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.url, self.log, self._process = url, log, process
        self._session = requests.Session()

    def get(self, path: str, **params: Any) -> requests.Response:
        return self._session.get(self.url + path, params=params, timeout=30)

    def close(self) -> None:
        """End it, by force if it does not go."""
        self._session.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def until(
        self,
        what: str,
        predicate: Callable[[], T],
        timeout: float = PATIENCE_SECONDS,
        interval: float = 0.1,
        logs: tuple[Path, ...] = (),
    ) -> T:
        """Poll until true; fail with the end of our log, and of ``logs``, at the deadline."""
        deadline = time.monotonic() + timeout
        while True:
            found: Any = None
            with contextlib.suppress(requests.RequestException):
                found = predicate()
            if found:
                return found  # type: ignore[no-any-return]
            if time.monotonic() >= deadline:
                pytest.fail(
                    f"not within {timeout:g} s: {what}; last: {found!r}\n{log_tail(self.log, *logs)}", pytrace=False
                )
            time.sleep(interval)

    def running(self) -> bool:
        return self._process.poll() is None


class Prometheus(Server):
    """Its HTTP API. Every method fails the test with Prometheus' own words when it refuses."""

    def _ask(self, path: str, **params: Any) -> Any:
        answer = self.get(path, **params)
        body = answer.json()
        if body["status"] != "success":
            pytest.fail(f"Prometheus: {body.get('error')} in {params.get('query', path)}")
        return body["data"]

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """The vector at a time (default: now); of a range selector, its raw samples."""
        data = self._ask("/api/v1/query", query=expression, **({} if at is None else {"time": at}))
        if data["resultType"] == "scalar":
            return [Series({}, ((data["result"][0], float(data["result"][1])),))]
        return [
            Series(one["metric"], tuple((t, float(v)) for t, v in one.get("values", [one.get("value")])))
            for one in data["result"]
        ]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        data = self._ask("/api/v1/query_range", query=expression, start=start, end=end, step=step)
        return [Series(one["metric"], tuple((t, float(v)) for t, v in one["values"])) for one in data["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule of every group, in order, with health, lastError, evaluationTime and, of alerts, alerts."""
        return [rule for group in self._ask("/api/v1/rules")["groups"] for rule in group["rules"]]

    def alerts(self, name: str, state: str = "") -> list[dict[str, Any]]:
        """Active alerts of this name, pending ones included unless a state is asked for."""
        return [
            alert
            for alert in self._ask("/api/v1/alerts")["alerts"]
            if alert["labels"]["alertname"] == name and state in ("", alert["state"])
        ]

    def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("/api/v1/targets")["activeTargets"]
        return found

    def names(self, *selectors: str) -> frozenset[str]:
        """Names of all series, recorded ones included; or of those that fit a selector."""
        chosen = {"match[]": list(selectors)} if selectors else {}
        return frozenset(self._ask("/api/v1/label/__name__/values", **chosen))


class Alertmanager(Server):
    """Its HTTP API."""

    def alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/v2/alerts").json()
        return found


@contextlib.contextmanager
def _serving(
    kind: Callable[[str, Path, subprocess.Popen[bytes]], Any], argv: Callable[[int], list[str]], log: Path
) -> Iterator[Any]:
    """Start on a free port and wait until it is ready."""
    for start in range(1, STARTS + 1):
        port = unused_port()
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv(port), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent
            )
        server = kind(f"http://127.0.0.1:{port}", log, process)
        try:
            deadline = time.monotonic() + READY_SECONDS
            ready = False
            while not ready and server.running() and time.monotonic() < deadline:
                with contextlib.suppress(requests.RequestException):
                    ready = server.get("/-/ready").ok
                time.sleep(0 if ready else 0.05)
            if not ready and not server.running() and start < STARTS and "address already in use" in log_tail(log):
                continue
            if not ready:
                state = "still not ready" if server.running() else f"ended with {process.returncode}"
                pytest.fail(f"{argv(port)[0]} {state} after {READY_SECONDS:g} s\n{log_tail(log)}", pytrace=False)
            yield server
            return
        finally:
            server.close()


@contextlib.contextmanager
def running_prometheus(
    folder: Path,
    jobs: Mapping[str, Sequence[Target]],
    rules: Mapping[str, str] | None = None,
    *,
    alertmanager: str = "",
    scrape_interval: str = "1s",
) -> Iterator[Prometheus]:
    """
    A Prometheus that scrapes ``jobs`` and evaluates ``rules``; its data goes into ``folder``.

    Args:
        rules: Name of a file (without suffix) → its text. Groups without an interval run with the scrapes.
        alertmanager: URL of the one that is told.
    """
    program = require_binary("prometheus", "apt-get install prometheus brings it")
    folder.mkdir(exist_ok=True)
    for name, text in (rules or {}).items():
        (folder / f"{name}.rules.yml").write_text(text)
    document: dict[str, Any] = {
        "global": {
            "scrape_interval": scrape_interval,
            "scrape_timeout": scrape_interval,
            "evaluation_interval": scrape_interval,
        },
        "rule_files": ["*.rules.yml"],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [{"targets": [one.address], "labels": dict(one.labels)} for one in targets],
            }
            for job, targets in jobs.items()
        ],
    }
    if alertmanager:
        host = alertmanager.removeprefix("http://")
        document["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [host]}]}]}
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(document))

    def argv(port: int) -> list[str]:
        return [
            program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            f"--storage.tsdb.retention.time={RETENTION}", f"--web.listen-address=127.0.0.1:{port}",
        ]  # fmt: skip

    with _serving(Prometheus, argv, folder / "prometheus.log") as server:
        yield server


@contextlib.contextmanager
def running_alertmanager(folder: Path, configuration: Mapping[str, Any]) -> Iterator[Alertmanager]:
    """An Alertmanager on its own, with this configuration."""
    program = require_binary("prometheus-alertmanager", "apt-get install it", "alertmanager")
    folder.mkdir(exist_ok=True)
    config = folder / "alertmanager.yml"
    config.write_text(yaml.safe_dump(dict(configuration)))

    def argv(port: int) -> list[str]:
        return [
            program, f"--config.file={config}", f"--storage.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
        ]  # fmt: skip

    with _serving(Alertmanager, argv, folder / "alertmanager.log") as server:
        yield server


@dataclass(frozen=True, slots=True)
class Told:
    """One alert of one notification, and when it came (seconds since 1970)."""

    at: float
    receiver: str
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: str


class Receiver:
    """Where Alertmanager posts: keeps every alert that it is told of."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.authorizations: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                at = time.time()
                receiver.authorizations.add(self.headers.get("Authorization", ""))
                receiver.told += [
                    Told(at, body["receiver"], one["status"], one["labels"], one["annotations"], one["startsAt"])
                    for one in body["alerts"]
                ]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/api/v1/alerts"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def first(self, alertname: str, status: str = "firing", *, since: float = 0.0) -> Told | None:
        """The first notification of it that came after a time."""
        fitting = (one for one in self.told if one.labels["alertname"] == alertname and one.status == status)
        return next((one for one in fitting if one.at > since), None)
