"""The webhook over real HTTP: who may post, what is refused and how, and that nothing is slowed by what misbehaves."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sre.actions.records import OutboxState
from sre.adapters.incident_files import IncidentFiles
from sre.incidents.records import Incident
from sre.notify.alert_records import Verdict
from sre.servers.alert_webhook import PATH
from tests.webhook.live import BEARER, LIMITS, TOKEN, Receiver, receiver
from tests.webhook.scenes import body, document, one

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module")
async def webhook(tmp_path: Path) -> AsyncIterator[Receiver]:
    async with receiver(tmp_path) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Receiver]:
    """For whatever is refused: one webhook whose store is never written by it."""
    async with receiver(tmp_path_factory.mktemp("shared")) as made:
        yield made


def stored(webhook: Receiver) -> int:
    """Rows of everything that an alert leaves behind; not what a person is told of a refusal."""
    found = 0
    with sqlite3.connect(webhook.store.path) as connection:
        for table, condition in (
            ("alert_episode", "1"),
            ("alert_incident", "1"),
            ("outbox", "incident_id NOT LIKE 'alerts-refused-%'"),
            ("journal", "reason != 'alerts-refused'"),
        ):
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                found += connection.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()[0]
    connection.close()
    return found


def refusals(webhook: Receiver) -> list[str]:
    """What a person is told of refusals, on one channel."""
    rows = webhook.store.outbox(limit=10_000)
    return [r.message.summary for r in rows if r.channel == "mail" and r.message.reason == "alerts-refused"]


# ---- who may ---------------------------------------------------------------------------------------------------------


async def test_what_was_answered_200_is_on_disk(webhook: Receiver) -> None:
    status, text = await webhook.post(body(one(node="n1")))
    assert (status, json.loads(text)) == (200, {"alerts": 1, "unreadable": 0})
    assert {row.state for row in webhook.store.outbox()} == {OutboxState.PENDING}
    assert len(webhook.store.outbox()) == 2


async def test_basic_credentials_open_it_too(webhook: Receiver) -> None:
    good = base64.b64encode(b"prometheus:s3cret-password").decode()
    assert (await webhook.post(body(one()), {"Authorization": f"Basic {good}"}))[0] == 200
    assert (await webhook.post(body(one()), {"Authorization": f"bearer {TOKEN}"}))[0] == 200


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Token {TOKEN}",
        TOKEN,
        "Basic !!!",
        "Basic " + base64.b64encode(b"prometheus:").decode(),
        "Basic " + base64.b64encode(b"prometheus").decode(),
        "Bearer ÿþ",
    ],
)
async def test_others_are_refused_and_nothing_is_stored(shared: Receiver, authorization: str | None) -> None:
    webhook, before, told = shared, shared.counts.requests["unauthorized"], refusals(shared)
    knocks = webhook.intake.duties.knocks.turned_away
    headers = {} if authorization is None else {"Authorization": authorization}
    status, text = await webhook.post(body(one()), headers)
    assert status == 401
    assert "webhook.token" in text
    assert TOKEN not in text
    assert stored(webhook) == 0
    assert webhook.counts.requests["unauthorized"] == before + 1
    assert webhook.intake.duties.knocks.turned_away == knocks + 1
    await webhook.intake.turn()
    assert refusals(webhook) == told, "whoever may not post pages nobody"


# ---- what can never be stored ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"", "empty"),
        (b"{", "not_json"),
        (b"\xff\xfe", "not_utf8"),
        (b"[]", "not_an_object"),
        (b"[" * 100_000, "too_deep"),
        (b'{"a":' * 100_000, "too_deep"),
        (b"[" * 250_000, "too_many_parts"),
        (b'{"version":"4","version":"4"}', "duplicate_key"),
        (json.dumps(document(one(), version="3")).encode(), "wrong_version"),
        (b'{"version":"4"}', "no_alerts"),
        (b'{"version":"4","alerts":[{}]}', "no_readable_alert"),
        (b'{"version":"4","alerts":[{"labels":{"a":"b"},"status":"firing","startsAt":"NaN"}]}', "no_readable_alert"),
    ],
)
async def test_a_payload_that_never_can_be_stored_is_refused_by_name(shared: Receiver, raw: bytes, named: str) -> None:
    status, text = await shared.post(raw)
    assert status == 400
    assert f"webhook: {named}:" in json.loads(text)["error"]
    assert stored(shared) == 0


async def test_a_compressed_body_is_refused_before_it_is_unpacked(shared: Receiver) -> None:
    webhook = shared
    bomb = gzip.compress(b"0" * 20_000_000)
    status, text = await webhook.post(bomb, {**BEARER, "Content-Encoding": "gzip"})
    assert status == 415, text  # 413, did it come as far as its size
    assert stored(webhook) == 0


async def test_a_body_of_ten_mebibytes_is_refused_whether_it_says_so_or_not(webhook: Receiver) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 2**20

    assert (await webhook.post(b"x" * 10 * 2**20))[0] == 413
    status, text = await webhook.post(chunks())
    assert status == 413
    assert "webhook.max_body_bytes" in text
    assert webhook.intake is not None
    assert stored(webhook) == 0
    assert (await webhook.post(body(one())))[0] == 200, "the room of what was refused is given back"


async def test_other_paths_and_methods_say_where_to_post(shared: Receiver) -> None:
    answer = await shared.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"404" in answer
    assert PATH.encode() in answer
    assert b"405" in await shared.raw(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def test_a_refusal_of_whoever_may_post_is_told_once_per_cause(
    webhook: Receiver, wait_until_async: Callable[..., Awaitable[Any]]
) -> None:
    """Alertmanager never sends it again: what it held is lost, and somebody must know."""
    elsewhere = webhook.url.replace(PATH, "/alerts")
    for _ in range(3):
        assert (await webhook.post(b"x" * 2 * 2**20))[0] == 413
        assert (await webhook.post(b"{", {**BEARER, "Content-Encoding": "gzip"}))[0] == 415
        assert (await webhook.post(b"{}"))[0] == 400
        assert (await webhook.post(body(one()), url=elsewhere))[0] == 404
        assert (await webhook.post(body(one()), {}, url=elsewhere))[0] == 404
    await wait_until_async(lambda: len(refusals(webhook)) >= 4)  # the webhook's own turns tell it, too
    await webhook.intake.turn()
    assert len(refusals(webhook)) == 4
    assert any("webhook.max_body_bytes" in summary for summary in refusals(webhook))
    assert {r.severity for r in webhook.store.outbox()} == {"page"}
    assert stored(webhook) == 0


# ---- what misbehaves, and the healthy beside it ----------------------------------------------------------------------


def head(length: int, extra: str = "") -> bytes:
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {length}\r\n{extra}\r\n"
    ).encode()


async def test_headers_without_end_are_refused(webhook: Receiver) -> None:
    flood = [b"POST / HTTP/1.1\r\nHost: x\r\n", *(b"X-%d: %s\r\n" % (n, b"y" * 4000) for n in range(50))]
    assert b" 431 " in await webhook.raw(*flood)
    assert b" 400 " in await webhook.raw(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2000 + b"\r\n")
    assert webhook.counts.requests["too_large_headers"] == 1


async def test_slow_headers_and_slow_bodies_are_told_to_come_again(webhook: Receiver) -> None:
    slow_head, slow_body, silent = await asyncio.gather(
        webhook.raw(b"POST ", *[b"x"] * 7, pause=0.1),
        webhook.raw(head(1000), *[b"x"] * 7, pause=0.1),
        webhook.raw(),
    )
    assert b" 503 " in slow_head
    assert b" 503 " in slow_body
    assert b"Retry-After" in slow_body
    assert silent == b"", "a connection opened in stock is closed without a word"
    assert webhook.counts.requests["slow"] == webhook.counts.requests["slow_headers"] == 1


async def test_a_body_that_breaks_off_stores_nothing(webhook: Receiver) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", webhook.port)
    writer.write(head(1000) + b'{"version"')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await webhook.post(body(one())))[0] == 200
    assert webhook.intake is not None


async def test_nothing_that_misbehaves_slows_a_healthy_post(
    tmp_path: Path, wait_until_async: Callable[..., Any]
) -> None:
    limits = type(LIMITS)(LIMITS.body_bytes, LIMITS.seconds, 64)
    async with receiver(tmp_path, limits=limits) as webhook:
        stop = asyncio.Event()

        async def again(make: object) -> None:
            while not stop.is_set():
                await make()  # type: ignore[operator]

        misbehaving = [
            lambda: webhook.raw(),
            lambda: webhook.raw(b"POST / HTTP/1.1\r\nX: ", b"y", pause=0.5),
            lambda: webhook.raw(head(1000), b"{", pause=0.5),
            lambda: webhook.post(b"x" * 5 * 2**20),
            lambda: webhook.post(b"[" * 50_000),
            lambda: webhook.post(body(one()), {"Authorization": "Bearer wrong"}),
        ]
        tasks = [asyncio.create_task(again(make)) for make in misbehaving * 3]
        await wait_until_async(lambda: sum(webhook.counts.requests.values()) > 0)  # they are at work
        taken = []
        for number in range(12):
            began = time.monotonic()
            status, text = await webhook.post(body(one(node=f"n{number}")))
            taken.append(time.monotonic() - began)
            assert status == 200, text
        stop.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(taken)[len(taken) // 2] < 0.5, taken
        assert max(taken) < 3.0, taken
        assert webhook.counts.verdicts[Verdict.OPENED] == 12


async def test_half_open_connections_make_way_for_one_that_is_whole(
    tmp_path: Path, wait_until_async: Callable[..., Any]
) -> None:
    limits = type(LIMITS)(LIMITS.body_bytes, 30.0, 4)
    async with receiver(tmp_path, limits=limits) as webhook:
        silent = [asyncio.create_task(webhook.raw(b"POST / HTTP/1.1\r\nX: ", read_seconds=20)) for _ in range(8)]
        await wait_until_async(lambda: webhook.connections() == 4)
        began = time.monotonic()
        assert (await webhook.post(body(one())))[0] == 200
        assert time.monotonic() - began < 10, "none of those that last 30 s was waited for"
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)


async def test_two_hundred_identical_posts_at_once_are_one_incident(tmp_path: Path) -> None:
    limits = type(LIMITS)(LIMITS.body_bytes, 10.0, 256)
    async with receiver(tmp_path, limits=limits) as webhook:
        raw = body(one(node="n1"), one(node="n1", instance="i2"))
        answers = await asyncio.gather(*(webhook.post(raw) for _ in range(200)))
        assert {status for status, _ in answers} == {200}
        rows = webhook.store.outbox()
        assert sorted((row.channel, row.message.event) for row in rows) == [("mail", "open"), ("sms", "open")]
        assert webhook.counts.verdicts == {Verdict.OPENED: 1, Verdict.JOINED: 1, Verdict.DUPLICATE: 398}


# ---- a disk that refuses ---------------------------------------------------------------------------------------------


async def test_a_full_disk_means_come_again_and_ends_by_itself(webhook: Receiver) -> None:
    assert (await webhook.post(body(one(node="n0"))))[0] == 200
    connection = webhook.store._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    storm = body(*(one(node=f"n{number}", annotations={"summary": "s" * 900}) for number in range(200)))
    status, text = await webhook.post(storm)
    assert status == 503
    assert "disk is full" in text
    assert webhook.counts.requests["unstored"] == 1
    answer = await webhook.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b" 503 " in answer
    assert str(webhook.folder).encode() not in answer
    connection.execute("PRAGMA max_page_count=1073741823")
    assert (await webhook.post(storm))[0] == 200
    assert b" 200 " in await webhook.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


async def test_an_incident_has_a_folder_that_says_when_it_ended(
    webhook: Receiver, wait_until_async: Callable[..., Awaitable[Any]]
) -> None:
    files = IncidentFiles(webhook.folder / "incidents")

    def ended() -> Incident | None:
        found = [files.read(name) for name in files.list()]
        return found[0] if [one is not None and one.resolved for one in found] == [True] else None

    await webhook.post(body(one(node="n1")))
    await webhook.post(body(one(node="n1", status="resolved")))
    found = await wait_until_async(ended)  # the webhook's own turns write it, beside the posts
    assert found.facts["reason"] == "VllmQueueGrowing"
