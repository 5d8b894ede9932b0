"""What people and Prometheus ask of a guard whose disk hangs: answers in bounded time, and nothing old as if new."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sre.actions.records import JournalRow, OutboxLoad
from sre.adapters.store import GuardStore
from sre.control.blocking import BlockingCalls
from sre.control.desk import Desk
from sre.errors import StateError
from sre.metrics import own
from sre.servers.exporter import serve_metrics
from sre.servers.guard_api import guard_app, serve_unix
from sre.settings.paths import StatePaths
from sre.testing.clock import ManualClock
from sre.wiring.guard import Numbers, ProcessEvidence
from sre.wiring.guard_store import FRESH_SECONDS, OutboxWatch, StoreView
from tests.guard.world import World
from tests.store.hanging import HangingDisk
from tests.store.samples import intent, post

Until = Callable[..., Awaitable[Any]]


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    await made.tick()
    yield made
    await made.bury()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a blocking call of a test waits for; open at the end."""
    event = threading.Event()
    yield event
    event.set()


async def ask(socket: Path, path: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session,
        session.get(f"http://guard{path}") as answer,
    ):
        return answer.status, await answer.json()


async def test_while_a_commit_hangs_journal_and_outbox_are_read_beside_it(
    tmp_path: Path, wait_until_async: Until
) -> None:
    clock, disk, path = ManualClock(), HangingDisk(), tmp_path / "guard.db"
    with GuardStore.open(path, clock=clock, boot_id="boot", trace=disk) as store:
        store.commit(state=None, journal=[intent(), intent("sim-1")], outbox=[post()])
        view = StoreView(path, clock=clock, boot_id="boot")
        with disk.hanging():
            commit = asyncio.create_task(asyncio.to_thread(store.commit, state="stuck"))
            await wait_until_async(lambda: disk.waiting)
            numbers = Numbers()
            numbers.outbox = OutboxWatch(view.outbox_load, clock, BlockingCalls("outbox"))
            async with asyncio.timeout(5):
                await numbers.outbox.look()
            assert (("mail", "pending"), 1.0) in numbers()[own.OUTBOX_MESSAGES]
            assert [row.seq for row in view.journal(1, 10)] == [2]
        await commit


async def test_what_waits_in_the_outbox_is_shown_from_the_last_look_and_left_out_when_old(
    gate: threading.Event,
) -> None:
    clock, hanging = ManualClock(), False

    def read() -> Sequence[OutboxLoad]:
        if hanging:
            gate.wait()
        return [OutboxLoad("mail", 2, 5, 7.0, perhaps_told=3)]

    numbers = Numbers()
    assert own.OUTBOX_MESSAGES not in numbers()
    numbers.outbox = OutboxWatch(read, clock, BlockingCalls("outbox", seconds=0.05))
    assert own.OUTBOX_MESSAGES not in numbers(), "nothing seen yet"
    await numbers.outbox.look()
    hanging = True
    clock.advance(FRESH_SECONDS)
    threads = threading.active_count()
    for _ in range(3):
        await numbers.outbox.look()
    assert threading.active_count() <= threads
    rows = numbers()
    assert dict(rows[own.OUTBOX_MESSAGES]) == {
        ("mail", "pending"): 2.0, ("mail", "dead"): 2.0, ("mail", "perhaps_told"): 3.0
    }, "what people may have is no page"  # fmt: skip
    assert rows[own.OUTBOX_OLDEST_SECONDS] == [(("mail",), 7.0 + FRESH_SECONDS)]
    clock.advance(1)
    assert not {own.OUTBOX_MESSAGES, own.OUTBOX_OLDEST_SECONDS} & set(numbers())


async def test_a_journal_that_cannot_be_read_in_time_is_503_and_the_rest_answers(
    world: World, short_dir: Path, gate: threading.Event
) -> None:
    def read(after: int, limit: int) -> Sequence[JournalRow]:
        gate.wait()
        return ()

    assert world.guard is not None
    desk = Desk(world.guard, world.policy, world.clock, read, journal_seconds=0.05)
    socket = short_dir / "guard.sock"
    async with serve_unix(guard_app(desk), socket), asyncio.timeout(5):
        status, body = await ask(socket, "/journal")
        assert status == 503
        assert body["error"].startswith("journal: no answer for 0.05 s; check the disk")
        assert (await ask(socket, "/status"))[0] == 200
        gate.set()


async def test_the_journal_is_served_after_a_number(world: World, short_dir: Path) -> None:
    assert world.guard is not None
    path = short_dir / "guard.db"
    with GuardStore.open(path, clock=world.clock, boot_id="boot") as store:
        store.commit(state=None, journal=[intent(), intent("sim-1")])
        view = StoreView(path, clock=world.clock, boot_id="boot")
        desk = Desk(world.guard, world.policy, world.clock, view.journal)
        socket = short_dir / "guard.sock"
        async with serve_unix(guard_app(desk), socket):
            status, rows = await ask(socket, "/journal?after=1&limit=10")
            assert status == 200
            assert [(row["seq"], row["target"]) for row in rows] == [(2, "sim-1")]
            path.unlink()
            status, body = await ask(socket, "/journal")
            assert status == 503
            assert str(path) in body["error"]


async def test_healthz_is_200_only_while_the_guard_ticks(world: World, free_port: Callable[[], int]) -> None:
    assert world.guard is not None
    port = free_port()

    async def healthz() -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
            return answer.status, (await answer.text()).strip()

    async with serve_metrics(world.metrics, "127.0.0.1", port):
        world.metrics.source = None
        assert (await healthz())[0] == 503
        world.metrics.source = Desk(world.guard, world.policy, world.clock)
        world.clock.advance(9)
        assert await healthz() == (200, "ok")
        world.clock.advance(5)
        status, text = await healthz()
        assert status == 503
        assert "last tick" in text
        world.guard.ticked_at = None
        assert (await healthz())[0] == 503


async def test_evidence_says_what_could_not_be_taken_in_time(tmp_path: Path, gate: threading.Event) -> None:
    class Slow(ProcessEvidence):
        def _collect(self, engine: str) -> dict[str, str]:
            gate.wait()
            return {}

    class Refused(ProcessEvidence):
        def _collect(self, engine: str) -> dict[str, str]:
            raise PermissionError(13, "Permission denied", "/proc/1")

    paths = StatePaths(tmp_path)
    slow = Slow(paths, seconds=0.05)
    async with asyncio.timeout(5):
        for _ in range(2):
            assert list(await slow("sim-0")) == ["not-taken.txt"]
        assert "no answer for 0.05 s" in (await slow("sim-0"))["not-taken.txt"]
        assert "Permission denied" in (await Refused(paths)("sim-0"))["not-taken.txt"]


async def test_evidence_holds_log_processes_and_kernel(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    paths.create()
    (paths.logs / "sim-0.log").write_text("first\nlast\n")
    taken = await ProcessEvidence(paths)("sim-0")
    assert set(taken) == {"sim-0.log", "processes.txt", "kernel.log"}
    assert taken["sim-0.log"] == "first\nlast"


async def test_after_a_call_that_did_not_return_others_fail_at_once_until_it_does(
    gate: threading.Event, wait_until_async: Until
) -> None:
    calls = BlockingCalls("disk", seconds=0.05)
    with pytest.raises(StateError, match="disk: no answer"):
        await calls(gate.wait)
    ran: list[str] = []
    with pytest.raises(StateError):
        await calls(lambda: ran.append("never"))
    gate.set()

    async def answers() -> bool:
        try:
            return await calls(lambda: True)
        except StateError:
            return False

    await wait_until_async(answers)
    assert ran == []


async def test_a_call_whose_caller_was_cancelled_is_waited_for_by_the_next(gate: threading.Event) -> None:
    calls = BlockingCalls("disk")
    began = threading.Event()
    order: list[str] = []

    def first() -> None:
        began.set()
        gate.wait()
        order.append("first")

    task = asyncio.create_task(calls(first))
    await asyncio.to_thread(began.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    asyncio.get_running_loop().call_later(0.01, gate.set)
    await calls(lambda: order.append("second"))
    assert order == ["first", "second"]
