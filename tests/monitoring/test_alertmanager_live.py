"""A real Alertmanager with our configuration: who is told what, and what a fault silences."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests
import yaml

from sre.monitoring.alertmanager import configuration
from sre.monitoring.catalogue_rules import all_alerts
from sre.monitoring.model import Alert
from sre.monitoring.render import alert_annotations, alert_labels
from sre.settings.monitoring import MonitoringSettings
from tests.conftest import WaitUntil, require_binary, unused_port

pytestmark = pytest.mark.integration

SETTINGS = MonitoringSettings()
ALERTS: dict[str, Alert] = {alert.name: alert for alert in all_alerts(SETTINGS)}
TOKEN = "s3cret-token"


@dataclass
class Webhook:
    """What was posted: authorization and payload."""

    port: int
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def payloads(self, alertname: str, status: str = "firing") -> list[dict[str, Any]]:
        return [
            payload
            for _, payload in self.posts
            if payload["groupLabels"].get("alertname") == alertname and payload["status"] == status
        ]


@pytest.fixture(scope="module")
def webhook() -> Iterator[Webhook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.posts.append((self.headers.get("Authorization", ""), json.loads(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen = Webhook(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield seen
    server.shutdown()
    thread.join()
    server.server_close()


class Alertmanager:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        return requests.get(f"{self._url}/-/ready", timeout=30).ok

    def post(self, *alerts: dict[str, Any]) -> None:
        requests.post(f"{self._url}/api/v2/alerts", json=list(alerts), timeout=30).raise_for_status()

    def seen(self) -> list[dict[str, Any]]:
        alerts: list[dict[str, Any]] = requests.get(f"{self._url}/api/v2/alerts", timeout=30).json()
        return alerts

    def inhibited(self) -> set[str]:
        """Names and the labels that tell them apart."""
        return {name_of(alert["labels"]) for alert in self.seen() if alert["status"]["inhibitedBy"]}


def name_of(labels: dict[str, str]) -> str:
    where = labels.get("instance") or labels.get("node") or labels.get("model_name") or "-"
    return f"{labels['alertname']} {where}"


def alert(name: str, **labels: str) -> dict[str, Any]:
    """One of our alerts with the labels it really has."""
    rule = ALERTS[name]
    assert set(labels) <= rule.expr.labels | rule.labels.keys()
    return {
        "labels": {"alertname": name, **labels, **alert_labels(rule)},
        "annotations": alert_annotations(rule, SETTINGS),
    }


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory, webhook: Webhook) -> Iterator[Alertmanager]:
    """Our configuration, its waits shortened so that a test can see through them."""
    program = require_binary("prometheus-alertmanager", "apt-get install it", "alertmanager")
    folder = tmp_path_factory.mktemp("alertmanager")
    token = folder / "token"
    token.write_text(TOKEN)
    settings = MonitoringSettings(
        webhook_url=f"http://127.0.0.1:{webhook.port}/api/v1/alerts", webhook_token_file=str(token)
    )
    document = configuration(settings)
    for route in (document["route"], *document["route"]["routes"]):
        route.update({"group_wait": "1s", "group_interval": "1s"})
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(document))
    port = unused_port()
    with (folder / "alertmanager.log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        yield Alertmanager(port)
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture(scope="module", autouse=True)
def posted(alertmanager: Alertmanager, webhook: Webhook) -> None:
    """One evening: a broken card on n1, a burning objective of model m, an engine down on n3, a guard nobody knows."""
    deadline = time.monotonic() + 10
    while True:
        try:
            if alertmanager.ready():
                break
        except requests.ConnectionError:
            pass
        assert time.monotonic() < deadline, "Alertmanager is not ready after 10 s"
        time.sleep(0.05)
    alertmanager.post(
        alert("GpuXidFatal", node="n1", gpu="0", UUID="GPU-1"),
        alert("GpuThrottled", node="n1", gpu="0", UUID="GPU-1"),
        alert("GpuThrottled", node="n1", gpu="1", UUID="GPU-2"),
        alert("SloAvailabilityBurn1h", model_name="m"),
        alert("VllmEngineDown", node="n3", instance="n3:8000"),
        # The form of absence has no instance: it must not silence what has none either.
        alert("SreGuardDown", job="sre"),
    )
    alertmanager.post(
        alert("VllmQueueGrowing", node="n1", instance="n1:8000", model_name="m"),
        alert("VllmQueueGrowing", node="n2", instance="n2:8000", model_name="m"),
        alert("VllmQueueGrowing", node="n2", instance="n2:8001", model_name="m"),
        alert("VllmQueueGrowing", node="n2", instance="n2:8002", model_name="other"),
        alert("VllmEngineHung", node="n1", engine="e1", model_name="m"),
        alert("VllmAllEnginesDown", job="vllm"),
        alert("SloAvailabilityBurn3d", model_name="m"),
        alert("SloAvailabilityBurn3d", model_name="other"),
        alert("SloTtftBurn3d", model_name="m"),
        alert("VllmErrorRatioHigh", node="n3", instance="n3:8000", model_name="m"),
        alert("VllmErrorRatioHigh", node="n3", instance="n3:8001", model_name="m"),
        alert("NodeDiskSaturated", node="n1", instance="n1:9100", device="sda"),
        alert("NodeDiskAwaitHigh", node="n1", instance="n1:9100", device="sda"),
        alert("NodeDiskAwaitHigh", node="n1", instance="n1:9100", device="sdb"),
        alert("SreGuardPaused", instance="n1:9401"),
        alert("VllmPrefixCacheHitLow", node="n2", instance="n2:8000", model_name="m"),
    )


INHIBITED = {
    "VllmQueueGrowing n1:8000",
    "SloAvailabilityBurn3d m",
    "VllmErrorRatioHigh n3:8000",
    "NodeDiskAwaitHigh n1:9100",
    "GpuThrottled n1",
}


def test_faults_silence_their_symptoms_and_nothing_else(alertmanager: Alertmanager, wait_until: WaitUntil) -> None:
    wait_until(lambda: alertmanager.inhibited() >= INHIBITED, 10, what="inhibition")
    assert alertmanager.inhibited() == INHIBITED
    inhibited = [seen["labels"] for seen in alertmanager.seen() if seen["status"]["inhibitedBy"]]
    assert [found["device"] for found in inhibited if "device" in found] == ["sda"]
    assert [found["gpu"] for found in inhibited if "gpu" in found] == ["0"]


def test_an_alert_without_node_is_not_silenced_by_a_broken_card(
    alertmanager: Alertmanager, webhook: Webhook, wait_until: WaitUntil
) -> None:
    (payload,) = wait_until(lambda: webhook.payloads("VllmAllEnginesDown"), 10, what="VllmAllEnginesDown")
    assert payload["receiver"] == "sre-page"
    assert "node" not in payload["commonLabels"]


def test_severity_chooses_who_is_told(alertmanager: Alertmanager, webhook: Webhook, wait_until: WaitUntil) -> None:
    wait_until(lambda: webhook.payloads("GpuXidFatal") and webhook.payloads("SreGuardPaused"), 10, what="both")
    receivers = {name_of(seen["labels"]): [r["name"] for r in seen["receivers"]] for seen in alertmanager.seen()}
    assert receivers["GpuXidFatal n1"] == ["sre-page"]
    assert receivers["SreGuardPaused n1:9401"] == ["sre-ticket"]
    assert receivers["VllmPrefixCacheHitLow n2:8000"] == ["sre-quiet"]
    assert webhook.payloads("GpuXidFatal")[0]["receiver"] == "sre-page"
    assert webhook.payloads("SreGuardPaused")[0]["receiver"] == "sre-ticket"
    assert webhook.payloads("VllmPrefixCacheHitLow") == []


def test_alerts_are_grouped_by_name_dimension_and_model(webhook: Webhook, wait_until: WaitUntil) -> None:
    wait_until(lambda: len(webhook.payloads("VllmQueueGrowing")) >= 2, 10, what="two groups")
    groups = {payload["groupLabels"]["model_name"]: payload for payload in webhook.payloads("VllmQueueGrowing")}
    assert groups["m"]["version"] == "4"
    assert groups["m"]["groupLabels"] == {
        "alertname": "VllmQueueGrowing",
        "dimension": "batching",
        "model_name": "m",
    }
    assert {one["labels"]["instance"] for one in groups["m"]["alerts"]} == {"n2:8000", "n2:8001"}
    assert {one["labels"]["instance"] for one in groups["other"]["alerts"]} == {"n2:8002"}
    assert groups["m"]["truncatedAlerts"] == 0
    assert groups["m"]["commonAnnotations"]["runbook_url"] == "runbooks/VllmQueueGrowing.md#vllmqueuegrowing"


def test_our_webhook_is_given_its_token(webhook: Webhook, wait_until: WaitUntil) -> None:
    wait_until(lambda: webhook.posts, 10, what="a post")
    assert {authorization for authorization, _ in webhook.posts} == {f"Bearer {TOKEN}"}


def test_what_was_told_is_told_again_when_it_ends(
    alertmanager: Alertmanager, webhook: Webhook, wait_until: WaitUntil
) -> None:
    wait_until(lambda: webhook.payloads("GpuXidFatal"), 10, what="firing")
    ended = alert("GpuXidFatal", node="n1", gpu="0", UUID="GPU-1")
    # Long ago by any clock: Alertmanager then takes the alert as over.
    alertmanager.post({**ended, "startsAt": "2020-01-01T00:00:00Z", "endsAt": "2020-01-01T00:01:00Z"})
    (payload,) = wait_until(lambda: webhook.payloads("GpuXidFatal", "resolved"), 10, what="resolved")
    assert payload["alerts"][0]["status"] == "resolved"
    # What the fault silenced speaks again.
    wait_until(lambda: "VllmQueueGrowing n1:8000" not in alertmanager.inhibited(), 10, what="inhibition to end")
