"""A real Alertmanager and a real Prometheus post to the webhook inside a real guard; mail and SMS really arrive."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from sre.monitoring.alertmanager import configuration
from sre.monitoring.catalogue_rules import all_groups
from sre.monitoring.model import Alert, Group
from sre.monitoring.render import rule_file
from sre.settings.monitoring import MonitoringSettings
from tests.conftest import PATIENCE_SECONDS, log_tail, unused_port
from tests.support.prometheus import Alertmanager, Prometheus, Target, running_alertmanager, running_prometheus
from tests.webhook.guard_process import TOKEN, GuardProcess, guard_process
from tests.webhook.live import Receiver, receiver
from tests.webhook.scenes import document, one

pytestmark = pytest.mark.integration

STORM = 60


def alertmanager_configuration(url: str, token_file: Path) -> dict[str, Any]:
    """Ours, its waits shortened so that a test can see through them."""
    made = configuration(MonitoringSettings(webhook_url=url, webhook_token_file=str(token_file)))
    for route in (made["route"], *made["route"]["routes"]):
        route.update({"group_wait": "0s", "group_interval": "1s"})
    for route in made["route"]["routes"][:2]:
        route["repeat_interval"] = "1s"
    # Each alert its own notification: as many posts as there are alerts.
    made["route"]["group_by"] = ["..."]
    return made


def pipeline_rules() -> str:
    """The generated rules that the proof needs."""
    settings = MonitoringSettings()
    wanted = [
        rule
        for group in all_groups(settings)
        for rule in group.rules
        if isinstance(rule, Alert) and rule.name in ("SreWatchdog", "SreCanary")
    ]
    assert len(wanted) == 2
    return rule_file([Group("pipeline", tuple(wanted))], settings)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="sre-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def guard(folder: Path) -> Iterator[GuardProcess]:
    (folder / "g").mkdir()
    with guard_process(folder / "g", unused_port, heartbeat={"timeout_seconds": 6.0}) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def alertmanager(folder: Path, guard: GuardProcess) -> Iterator[Alertmanager]:
    made = alertmanager_configuration(guard.url, guard.folder / "token")
    with running_alertmanager(folder / "alertmanager", made) as server:
        yield server


def send(alertmanager: Alertmanager, *labels: dict[str, str], over: bool = False) -> None:
    ends = {"endsAt": datetime.now(UTC).isoformat()} if over else {}  # noqa: TID251 - Alertmanager's own clock
    alerts = [
        {"labels": one_, "annotations": {"summary": f"{one_['alertname']} at {one_['node']}"}, **ends}
        for one_ in labels
    ]
    requests.post(f"{alertmanager.url}/api/v2/alerts", json=alerts, timeout=30).raise_for_status()


@pytest.fixture(scope="module")
def prometheus(folder: Path, guard: GuardProcess, alertmanager: Alertmanager) -> Iterator[Prometheus]:
    jobs = {"sre": [Target(f"127.0.0.1:{guard.metrics_port}")]}
    with running_prometheus(
        folder / "prometheus", jobs, {"pipeline": pipeline_rules()}, alertmanager=alertmanager.url
    ) as server:
        yield server


def test_where_a_canary_stops_is_named(guard: GuardProcess, alertmanager: Alertmanager, folder: Path) -> None:
    """A Prometheus without the rules: it answers, and fires nothing. Then one that does not answer."""
    jobs = {"sre": [Target(f"127.0.0.1:{guard.metrics_port}")]}
    with running_prometheus(folder / "bare", jobs, {}, alertmanager=alertmanager.url) as bare:
        urls = ("--prometheus", bare.url, "--alertmanager", alertmanager.url)
        done = guard.sre("notify", "test", "--end-to-end", *urls, "--wait", "1")
        assert done.returncode == 3, done.stdout + done.stderr
        assert "stopped at prometheus: does it scrape the guard" in done.stdout
    done = guard.sre("notify", "test", "--end-to-end", *urls, "--wait", "1")
    assert done.returncode == 5, done.stdout + done.stderr
    assert "does not answer" in done.stdout


def test_a_canary_comes_through_and_each_hop_is_measured(
    guard: GuardProcess, prometheus: Prometheus, alertmanager: Alertmanager, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = ("--prometheus", prometheus.url, "--alertmanager", alertmanager.url)
    done = guard.sre("notify", "test", "--end-to-end", *urls, "--wait", "40", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    proof = json.loads(done.stdout)
    assert [hop["hop"] for hop in proof["hops"]] == [
        "exported", "prometheus", "alertmanager", "webhook", "stored", "channel mail", "channel sms",
    ]  # fmt: skip
    assert all(hop["wall"] is not None for hop in proof["hops"])
    assert proof["seconds"] < 30
    assert len(guard.mails("TEST")) == 1
    assert not guard.rows("SELECT id FROM incident WHERE id LIKE 'canary%'"), "a test is no incident"
    with capsys.disabled():
        print("\ncanary:", ", ".join(f"{hop['hop']} {hop['seconds'] or 0:.2f} s" for hop in proof["hops"]))


def test_silence_is_noticed_and_its_end_too(
    guard: GuardProcess, prometheus: Prometheus, alertmanager: Alertmanager
) -> None:
    """Alertmanager forgets the way to the webhook: its heartbeat stays away, and then comes back."""
    quiet = "SELECT count(*) FROM alert_incident WHERE join_key = 'heartbeat' AND resolved_wall IS NULL"
    guard.until("a heartbeat", lambda: guard.rows("SELECT 1 FROM alert_heartbeat") and not guard.rows(quiet)[0][0])
    before, ended = len(silent(guard)), len(heard(guard))
    silence = {
        "matchers": [{"name": "alertname", "value": "SreWatchdog", "isRegex": False, "isEqual": True}],
        "startsAt": datetime.fromtimestamp(time.time(), UTC).isoformat(),
        "endsAt": datetime.fromtimestamp(time.time() + 600, UTC).isoformat(),
        "createdBy": "test",
        "comment": "test",
    }
    made = requests.post(f"{alertmanager.url}/api/v2/silences", json=silence, timeout=30).json()["silenceID"]
    guard.until("the page", lambda: len(silent(guard)) > before)
    requests.delete(f"{alertmanager.url}/api/v2/silence/{made}", timeout=30).raise_for_status()
    guard.until("its end", lambda: len(heard(guard)) > ended)


def silent(guard: GuardProcess) -> list[str]:
    return [text for text in guard.mails("OPEN") if "no heartbeat" in text]


def heard(guard: GuardProcess) -> list[str]:
    return [text for text in guard.mails("RESOLVED") if "heartbeat is heard again" in text]


def test_what_ended_is_told_to_have_ended(guard: GuardProcess, alertmanager: Alertmanager) -> None:
    labels = {"alertname": "Solo", "node": "n1", "severity": "page"}
    send(alertmanager, labels)
    found = "SELECT id FROM alert_incident WHERE name = 'Solo' AND resolved_wall IS NULL"
    identifier = guard.until("it is stored", lambda: guard.rows(found))[0][0]
    send(alertmanager, labels, over=True)
    ended = "SELECT 1 FROM alert_incident WHERE id = ? AND resolved_wall IS NOT NULL"
    guard.until("its end is stored", lambda: guard.rows(ended, identifier))
    shown = guard.until("its folder is closed", lambda: resolved(guard, identifier))
    assert shown["facts"]["reason"] == "Solo"
    assert shown["facts"]["joined_by"] == "alertname=Solo,node=n1"


def resolved(guard: GuardProcess, identifier: str) -> Any:
    done = guard.sre("incident", "show", identifier, "-o", "json")
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    return found if found.get("resolved_wall") else None


def test_a_storm_while_the_guard_is_killed_loses_nothing_and_tells_nothing_twice(
    guard: GuardProcess, alertmanager: Alertmanager
) -> None:
    names = [f"storm-{number}" for number in range(STORM)]
    for begin in range(0, STORM, 20):
        send(alertmanager, *({"alertname": "Storm", "node": n, "severity": "page"} for n in names[begin : begin + 20]))
        time.sleep(0.15)
        guard.kill()
        guard.start()
    count = "SELECT count(*) FROM alert_episode WHERE name = 'Storm' AND firing_wall IS NOT NULL"
    guard.until("all are stored", lambda: guard.rows(count)[0][0] == STORM)
    opened = guard.rows("SELECT count(*), count(DISTINCT join_key) FROM alert_incident WHERE name = 'Storm'")
    assert opened == [(STORM, STORM)]
    told = (
        "SELECT channel, count(*), count(DISTINCT incident_id) FROM outbox WHERE event = 'open'"
        " AND incident_id IN (SELECT id FROM alert_incident WHERE name = 'Storm') GROUP BY channel"
    )
    assert guard.rows(told) == [("mail", STORM, STORM), ("sms", STORM, STORM)]


def test_the_same_payload_two_hundred_times_at_once(guard: GuardProcess) -> None:
    payload = document(one("Many", node="n1", starts=time.time()))
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: guard.post(payload, timeout=30).status_code, range(200)))
    assert answers == [200] * 200
    told = (
        "SELECT channel, count(*) FROM outbox"
        " WHERE incident_id IN (SELECT id FROM alert_incident WHERE name = 'Many') GROUP BY channel"
    )
    assert guard.rows(told) == [("mail", 1), ("sms", 1)]


def test_a_second_webhook_on_the_same_state_is_refused(guard: GuardProcess) -> None:
    done = guard.sre("webhook", "serve")
    assert done.returncode == 3
    assert "webhook.enabled" in done.stderr


def test_the_metrics_say_what_came(guard: GuardProcess) -> None:
    assert guard.post(document(one()), token="wrong").status_code == 401
    text = requests.get(f"http://127.0.0.1:{guard.metrics_port}/metrics", timeout=30).text
    assert 'sre_webhook_requests_total{outcome="unauthorized"} 1.0' in text
    assert "sre_webhook_up 1.0" in text
    assert "sre_webhook_commit_seconds_bucket" in text
    assert TOKEN not in text
    assert TOKEN not in guard.log.read_text()


def test_a_guard_that_began_without_its_state_goes_on_once_it_can_be_had(folder: Path) -> None:
    """A full disk that has room again, a damaged file that was moved away: nobody has to restart it."""
    (folder / "d").mkdir()
    with guard_process(folder / "d", unused_port, heartbeat={"enabled": False}) as made:
        made.paths.root.mkdir(mode=0o700)
        made.paths.guard_db.write_bytes(b"no database" * 1000)
        made.start()
        payload = document(one("Late", node="n1", starts=time.time()))
        assert made.process is not None
        process = made.process
        assert made.post(payload).status_code == 503
        made.paths.guard_db.rename(made.paths.guard_db.with_suffix(".corrupt"))

        def accepted() -> bool:
            try:
                return made.post(payload).status_code == 200
            except requests.ConnectionError:
                return False  # it begins anew

        made.until("it is taken in", accepted)
        made.until("the mail", lambda: made.mails("OPEN"))
        assert made.process is process
        assert process.poll() is None
        made.stop()
        assert process.returncode == 0, log_tail(made.log)


def test_by_itself_it_takes_in_tells_and_stops_when_asked(folder: Path) -> None:
    (folder / "w").mkdir()
    with guard_process(folder / "w", unused_port) as alone:
        alone.start("webhook", "serve")
        leaky = {"summary": f"refused with {TOKEN}."}
        assert alone.post(document(one("Alone", node="n1", starts=time.time(), annotations=leaky))).status_code == 200
        alone.until("the mail", lambda: alone.mails("OPEN"))

        def written() -> str:
            return "".join(file.read_text() for file in alone.paths.incidents.rglob("*") if file.is_file())

        alone.until("the folder", lambda: "refused with <hidden>." in written())
        assert TOKEN not in written()
        second = alone.sre("guard", "run")
        assert second.returncode == 3, second.stderr
        assert "sre webhook serve (pid" in second.stderr
        assert alone.process is not None
        process = alone.process
        alone.stop()
        assert process.returncode == 0, log_tail(alone.log)


async def test_alertmanager_comes_again_until_a_full_disk_has_room(tmp_path: Path) -> None:
    async with receiver(tmp_path) as webhook:
        assert (await webhook.post(json.dumps(document(one(node="first"))).encode()))[0] == 200
        connection = webhook.store._connection
        connection.execute(f"PRAGMA max_page_count={connection.execute('PRAGMA page_count').fetchone()[0]}")
        (tmp_path / "token").write_text("correct-horse-battery-staple")
        made = alertmanager_configuration(webhook.url, tmp_path / "token")
        # One notification, larger than the room left: it waits until all its alerts are there.
        made["route"]["group_by"] = ["alertname"]
        for route in (made["route"], *made["route"]["routes"]):
            route["group_wait"] = "1s"
        with running_alertmanager(tmp_path / "am", made) as server:
            many = [{"alertname": "Full", "node": f"n{n}" * 40, "severity": "page"} for n in range(60)]
            await asyncio.to_thread(send, server, *many)
            await until(lambda: webhook.counts.requests["unstored"] >= 1)
            assert webhook.counts.requests["accepted"] == 1
            connection.execute("PRAGMA max_page_count=1073741823")
            await until(lambda: webhook.counts.requests["accepted"] >= 2)
            await until(lambda: len(told_of(webhook, "Full")) == 60)


def told_of(webhook: Receiver, alertname: str) -> set[str]:
    return {row.message.incident_id for row in webhook.store.outbox() if row.message.reason == alertname}


async def until(predicate: Any, timeout: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.05)
