"""A real Prometheus that scrapes the recorded pages: what verify says of it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from sre.cli.app import App
from sre.cli.rules_verify import verify
from sre.errors import ExitCode
from tests.conftest import WaitUntil, log_tail, require_binary, unused_port

pytestmark = pytest.mark.integration

DATA = Path(__file__).parent / "data"
JOBS = {"vllm": "vllm-0.32", "dcgm": "dcgm-4.9", "node": "node-1.5"}
OFF = {"GpuNvlinkErrors", "GpuEccUncorrected", "GpuThrottled", "NodeNetworkMissedErrors"}
"""What needs fields or options that no exporter has by default."""


class Pages(BaseHTTPRequestHandler):
    """Gives ``/<name>/metrics`` from the recorded pages."""

    def do_GET(self) -> None:
        path = DATA / f"{self.path.split('/')[1]}.metrics.txt"
        body = path.read_bytes() if path.exists() else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@dataclass(frozen=True)
class Running:
    url: str
    pages: str


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Prometheus with three healthy jobs and one target of the guard that is down."""
    binary = require_binary("prometheus", "apt install prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    pages = f"127.0.0.1:{server.server_address[1]}"
    jobs: list[dict[str, Any]] = [
        {"job_name": job, "metrics_path": f"/{page}/metrics", "static_configs": [{"targets": [pages]}]}
        for job, page in JOBS.items()
    ]
    jobs.append({"job_name": "sre", "static_configs": [{"targets": [f"127.0.0.1:{unused_port()}"]}]})
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = unused_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield Running(f"http://127.0.0.1:{port}", f"http://{pages}")
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        server.shutdown()
        server.server_close()
        thread.join()
        assert process.returncode is not None, log_tail(folder / "log")


@pytest.fixture
def scraped(prometheus: Running, wait_until: WaitUntil) -> Running:
    """Once every target has been scraped."""

    def all_scraped() -> bool:
        try:
            answer = requests.get(f"{prometheus.url}/api/v1/targets", timeout=30).json()
        except (requests.RequestException, ValueError):
            return False
        targets = answer["data"]["activeTargets"]
        return sorted(target["health"] for target in targets) == ["down", "up", "up", "up"]

    wait_until(all_scraped, 30, what="three targets up and one down")
    return prometheus


def ask(monkeypatch: pytest.MonkeyPatch, folder: Path, *urls: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.chdir(folder)
    arguments = [word for url in urls for word in ("--url", url)]
    result = CliRunner().invoke(
        verify, [*arguments, "--output", "json"], obj=App(None, None, False), standalone_mode=False
    )
    assert result.exception is None, result.exception
    data: dict[str, Any] = json.loads(result.stdout)
    return int(result.return_value), data


def test_a_prometheus_is_judged_by_what_it_scrapes(
    scraped: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, data = ask(monkeypatch, tmp_path, scraped.url)
    assert code == ExitCode.NO
    assert {one["exporter"]: one["problems"] for one in data["exporters"]} == {
        "vllm": [], "dcgm-exporter": [], "node_exporter": [], "prometheus": [],
    }  # fmt: skip
    alerts = {alert["name"]: alert for alert in data["alerts"]}
    verdicts = {verdict: set() for verdict in ("can fire", "cannot fire", "misleads", "no traffic", "not looked at")}
    for name, alert in alerts.items():
        verdicts[alert["verdict"]].add(name)
    assert verdicts["not looked at"] == verdicts["misleads"] == verdicts["no traffic"] == set()
    assert {name for name in verdicts["cannot fire"] if not name.startswith("Sre")} <= OFF
    # The guard's target is down, and that is the reason given; its alerts of absence can fire.
    assert alerts["SreBreakerOpen"]["reasons"][0]["cause"] == "target down"
    assert "SreGuardDown" in verdicts["can fire"]


def test_another_job_name_is_told(scraped: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sre.yaml").write_text("monitoring: {jobs: {vllm: inference}}\n")
    _, data = ask(monkeypatch, tmp_path, scraped.url)
    (alert,) = [one for one in data["alerts"] if one["name"] == "VllmKvCacheNearlyFull"]
    assert alert["verdict"] == "cannot fire"
    assert "monitoring.jobs" in alert["reasons"][0]["text"]


def test_pages_and_prometheus_agree(scraped: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What can fire by the exporters' pages can fire by the Prometheus that scrapes them."""
    _, by_pages = ask(monkeypatch, tmp_path, *(f"{scraped.pages}/{page}/metrics" for page in JOBS.values()))
    _, by_prometheus = ask(monkeypatch, tmp_path, scraped.url)
    fleet = {alert["name"]: alert["verdict"] for alert in by_prometheus["alerts"]}
    for alert in by_pages["alerts"]:
        if alert["verdict"] != "not looked at":
            assert fleet[alert["name"]] == alert["verdict"], alert["name"]
