"""The Supervisor port: the same assertions on the fake and on the real supervisor behind its socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sre.actions.ports import Supervisor as SupervisorPort
from sre.adapters.supervisor_client import SupervisorClient
from sre.control.supervisor import StackFacts, Supervisor
from sre.errors import DependencyError, MalformedResponse, Rejected, Unreachable
from sre.servers.guard_api import serve_unix
from sre.servers.supervisor_api import supervisor_app
from sre.settings.stack import RestartSettings
from sre.signals.types import ProcessIdentity, ProcessState
from sre.stack.processes import Role
from sre.testing.clock import ManualClock
from sre.testing.supervisor import FakeSupervisor
from tests.supervisor.fakes import FakeGatewayDrain, FakeHost, FakeLedgers, FakeProbe, NoLogs, spec

Wait = Callable[..., Awaitable[Any]]


@dataclass
class Subject:
    """What is under contract, and a way to let its engine die."""

    port: SupervisorPort
    kill: Callable[[], None]
    socket: Path = Path()


def _supervisor(clock: ManualClock, host: FakeHost) -> Supervisor:
    return Supervisor(
        StackFacts("test", ProcessIdentity(1, 1), "http://127.0.0.1:8080", "/state", None),
        [
            spec("gateway", Role.GATEWAY),
            spec("sim-0", port=9000, host="127.0.0.1", pool="sim-7b"),
            spec("far", command=None, kind="external", port=9001, host="10.0.0.1", pool="sim-7b"),
        ],
        host=host,
        ledger=FakeLedgers(host),
        probe=FakeProbe(),
        gateway=FakeGatewayDrain(host, [0]),
        clock=clock,
        policy=RestartSettings(),
        logs=NoLogs(),
        say=lambda *_: None,
    )


@pytest.fixture(params=["fake", "real"])
async def subject(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Subject]:
    if request.param == "fake":
        fake = FakeSupervisor(ManualClock())
        yield Subject(fake, lambda: fake.kill("sim-0"))
    else:
        async with _real(short_dir) as made:
            yield made


@pytest.fixture
async def real(short_dir: Path) -> AsyncIterator[Subject]:
    async with _real(short_dir) as made:
        yield made


@contextlib.asynccontextmanager
async def _real(short_dir: Path) -> AsyncIterator[Subject]:
    host = FakeHost()
    supervisor = _supervisor(ManualClock(), host)
    socket = short_dir / "s.sock"
    task = asyncio.create_task(supervisor.run())
    assert await supervisor.wait_ready()

    def kill() -> None:
        host.missing.add("sim-0")  # so that it stays dead long enough to be looked at
        host.die(host.processes["sim-0"].identity, 0)

    async with serve_unix(supervisor_app(supervisor), socket):
        yield Subject(SupervisorClient(socket), kill, socket)
    supervisor.request_stop(drain=False)
    await task


async def _engine(port: SupervisorPort) -> Any:
    return next(engine for engine in await port.engines() if engine.name == "sim-0")


async def test_engines_are_told_with_identity_and_state(subject: Subject) -> None:
    engine = await _engine(subject.port)
    assert (engine.kind, engine.pool, engine.host, engine.port) == ("sim", "sim-7b", "127.0.0.1", 9000)
    assert engine.process is ProcessState.READY
    assert isinstance(engine.identity, ProcessIdentity)
    assert engine.ready_at is not None
    assert engine.restarts == 0
    assert engine.last_exit_asked is None


async def test_restart_replaces_the_expected_process_once(subject: Subject, wait_until_async: Wait) -> None:
    first = (await _engine(subject.port)).identity
    assert await subject.port.restart("sim-0", first, "hang") is True

    async def replaced() -> bool:
        engine = await _engine(subject.port)
        return bool(engine.process is ProcessState.READY and engine.identity != first)

    await wait_until_async(replaced)
    second = (await _engine(subject.port)).identity
    assert await subject.port.restart("sim-0", first, "hang") is False
    engine = await _engine(subject.port)
    assert engine.identity == second
    assert engine.restarts == 1
    assert "hang" in engine.last_exit
    assert engine.last_exit_asked is True


async def test_restart_of_a_process_nobody_knows_changes_nothing(subject: Subject) -> None:
    before = await _engine(subject.port)
    assert await subject.port.restart("sim-0", ProcessIdentity(1, 1), "hang") is False
    assert (await _engine(subject.port)).identity == before.identity


async def test_dead_engine_has_no_identity_and_says_how_it_ended(subject: Subject, wait_until_async: Wait) -> None:
    first = (await _engine(subject.port)).identity
    subject.kill()

    async def dead() -> Any:
        engine = await _engine(subject.port)
        return engine if engine.identity is None else None

    engine = await wait_until_async(dead)
    assert engine.process in {ProcessState.CRASHED, ProcessState.FAILED}
    assert engine.ready_at is None
    assert "exit code 0" in engine.last_exit
    assert engine.last_exit_asked is False
    assert await subject.port.restart("sim-0", first, "engine_dead") is False


async def test_unknown_engine_is_rejected(subject: Subject) -> None:
    with pytest.raises(Rejected):
        await subject.port.restart("nobody", ProcessIdentity(1, 1), "hang")


# What only the real one has: a socket.


async def test_nobody_there_is_unreachable(short_dir: Path) -> None:
    with pytest.raises(Unreachable, match="sre up"):
        await SupervisorClient(short_dir / "none.sock").engines()


async def test_external_engine_is_never_restarted(real: Subject) -> None:
    with pytest.raises(Rejected, match="external"):
        await real.port.restart("far", ProcessIdentity(1, 1), "hang")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/engines/sim-0/restart", b"{}", 400),
        ("/engines/sim-0/restart", b"not json", 400),
        ("/engines/sim-0/restart", b"[1]", 400),
        ("/engines/sim-0/restart", b'{"expected": {"pid": "1", "start_ticks": 2}, "reason": "x"}', 400),
        ("/engines/sim-0/restart", b'{"expected": {"pid": 1, "start_ticks": 2}, "reason": "two\\nlines"}', 400),
        ("/engines/sim-0/restart", b'{"expected": null, "reason": "x"}', 400),
        ("/engines/sim-0/restart", b"[" * 5000, 400),
        ("/engines/sim-0/restart", b"\xff\xfe", 400),
        ("/engines/nobody/restart", b"{}", 404),
        ("/shutdown", b'{"drain_timeout_seconds": "soon"}', 400),
        ("/shutdown", b'{"drain_timeout_seconds": NaN}', 400),
        ("/shutdown", b'{"drain": "no"}', 400),
    ],
)
async def test_orders_that_make_no_sense_change_nothing(real: Subject, path: str, body: bytes, status: int) -> None:
    before = (await _engine(real.port)).identity
    connector = aiohttp.UnixConnector(path=str(real.socket))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"http://supervisor{path}", data=body) as response,
    ):
        assert response.status == status
        assert isinstance(json.loads(await response.read())["error"], str)
    assert (await _engine(real.port)).identity == before


async def test_socket_is_for_its_owner_only_and_says_what_it_can(real: Subject) -> None:
    assert real.socket.stat().st_mode & 0o777 == 0o600
    connector = aiohttp.UnixConnector(path=str(real.socket))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://supervisor/") as response:
        text = await response.text()
    for route in ("GET /status", "GET /engines", "POST /engines/NAME/restart", "POST /shutdown"):
        assert route in text


@pytest.mark.parametrize("answer", [b"", b"[]", b"{", b'{"engines": 1}', b'{"engines": [{}]}', b"\xff"])
async def test_answer_that_cannot_be_read_is_malformed(short_dir: Path, answer: bytes) -> None:
    from aiohttp import web

    async def reply(_: web.Request) -> web.Response:
        return web.Response(body=answer)

    app = web.Application()
    app.router.add_get("/engines", reply)
    async with serve_unix(app, short_dir / "odd.sock"):
        with pytest.raises(MalformedResponse):
            await SupervisorClient(short_dir / "odd.sock").engines()


async def test_supervisor_that_does_not_answer_is_given_up(short_dir: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(short_dir / "mute.sock"))
        mute.listen()
        with pytest.raises(DependencyError, match="did not answer in time"):
            await SupervisorClient(short_dir / "mute.sock", timeout_seconds=0.1).engines()
