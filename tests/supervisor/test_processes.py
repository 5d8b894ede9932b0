"""Real processes of this machine: identity, families, take-over, logs, lock, files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sre.adapters.processes import proc
from sre.adapters.processes.files import LedgerFile, known_ports, resolve_ports, stack_id, write_atomically
from sre.adapters.processes.host import ProcessHost, RunningProcess
from sre.adapters.processes.lock import StackLock
from sre.adapters.processes.logs import rotate, tail
from sre.adapters.processes.pidfd import PidFd
from sre.errors import BinaryNotFound, ConfigError, ProcessError, StateError
from sre.settings.stack import StackSettings
from sre.signals.types import ProcessIdentity
from sre.stack.ledger import Ledger
from sre.stack.processes import Command, ExitStatus
from tests.supervisor.fakes import spec

pytestmark = pytest.mark.integration

SLEEP = "import time; time.sleep(60)"
WITH_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).wait()"
WITH_RUNAWAY = (
    f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True).wait()"
)


@pytest.fixture
def host(short_dir: Path) -> ProcessHost:
    return ProcessHost(stack_id(short_dir), os.environ | {"SRE_PROCESS": "inherited by mistake"}, short_dir)


@pytest.fixture
def start(host: ProcessHost, short_dir: Path) -> Iterator[Callable[..., RunningProcess]]:
    """Start Python code as a supervised process; everything started ends with the test."""
    started: list[RunningProcess] = []

    def run(code: str, name: str = "p", **command: Any) -> RunningProcess:
        wanted = spec(
            name, command=Command((sys.executable, "-c", code), **command), log_path=str(short_dir / f"{name}.log")
        )
        process = host.spawn(wanted, "launch-1")
        started.append(process)
        return process

    yield run
    for process in started:
        for stat in proc.members_of(process.identity, proc.process_table()):
            held = PidFd.open(stat.identity)
            if held is not None:
                with held:
                    held.send(signal.SIGKILL)
        while process.exit_status() is None:
            time.sleep(0.01)
        process.close()


def family(process: RunningProcess) -> list[ProcessIdentity]:
    return [stat.identity for stat in proc.members_of(process.identity, proc.process_table())]


async def test_process_runs_in_its_own_session_with_marks_and_writes_its_own_log(
    start: Callable[..., RunningProcess], host: ProcessHost, short_dir: Path
) -> None:
    code = "import os; print(os.environ['SRE_PROCESS'], os.environ['A'], os.environ['B'], os.environ['C'], flush=True)"
    secret = short_dir / "secret"
    secret.write_text("hidden\n")
    process = start(code, env={"A": "a"}, env_defaults={"B": "b", "HOME": "no"}, secret_env={"C": f"file:{secret}"})
    assert await process.wait() == ExitStatus(0)
    log = tail(short_dir / "p.log", 5)
    assert "sre starts p" in log[0]
    assert log[1] == "p a b hidden"
    assert (short_dir / "p.log").stat().st_mode & 0o777 == 0o600


async def test_marks_are_found_and_only_by_their_own_stack(
    start: Callable[..., RunningProcess], host: ProcessHost, short_dir: Path
) -> None:
    process = start(SLEEP)
    (found,) = host.marked()
    assert (found.identity, found.name, found.launch_id, found.leader) == (process.identity, "p", "launch-1", True)
    assert found.argv == (sys.executable, "-c", SLEEP)
    assert ProcessHost("another", os.environ, short_dir).marked() == []


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", ExitStatus(3)), ("import os; os.kill(os.getpid(), 9)", ExitStatus(-9))],
)
async def test_end_of_a_child_is_known_exactly(
    start: Callable[..., RunningProcess], code: str, status: ExitStatus
) -> None:
    process = start(code)
    assert await process.wait() == status
    assert process.exit_status() == status
    assert not process.signal(signal.SIGTERM)


async def test_taken_over_process_is_watched_without_being_a_child(
    start: Callable[..., RunningProcess], host: ProcessHost
) -> None:
    child = start(SLEEP)
    adopted = host.adopt(child.identity)
    assert adopted is not None
    assert adopted.adopted
    assert adopted.exit_status() is None
    adopted.signal(signal.SIGTERM)
    assert await adopted.wait() == ExitStatus(None)
    adopted.close()


def test_number_of_another_process_is_never_held(start: Callable[..., RunningProcess], host: ProcessHost) -> None:
    process = start(SLEEP)
    other = ProcessIdentity(process.identity.pid, process.identity.start_ticks + 1)
    assert host.adopt(other) is None
    assert PidFd.open(other) is None
    assert not host.alive(other)


@pytest.mark.parametrize("code", [WITH_CHILD, WITH_RUNAWAY])
async def test_whole_family_ends_the_stopped_and_the_moved_too(
    start: Callable[..., RunningProcess], host: ProcessHost, wait_until_async: Any, code: str
) -> None:
    process = start(code)
    members = await wait_until_async(lambda: len(family(process)) == 2 and family(process), what="a child")
    child = next(member for member in members if member != process.identity)
    os.kill(child.pid, signal.SIGSTOP)
    assert await host.end_family(process.identity, [child], term_seconds=0.2) == ()
    assert not host.alive(process.identity)
    assert not host.alive(child)


async def test_family_is_found_after_its_leader_died(
    start: Callable[..., RunningProcess], host: ProcessHost, wait_until_async: Any
) -> None:
    process = start(WITH_CHILD)
    members = await wait_until_async(lambda: len(family(process)) == 2 and family(process), what="a child")
    child = next(member for member in members if member != process.identity)
    process.signal(signal.SIGKILL)
    await process.wait()
    assert host.alive(child)
    assert [member.identity for member in host.families({"p": (process.identity, ())})["p"]] == [child]
    assert await host.end_family(process.identity) == ()
    assert not host.alive(child)


def test_program_that_is_not_there_is_said_in_a_sentence(host: ProcessHost, short_dir: Path) -> None:
    unfit = short_dir / "unfit"
    unfit.write_text("")
    for program, why in (("/no/such/program", "is missing"), (str(unfit), "may not be executed")):
        wanted = spec("p", command=Command((program,)), log_path=str(short_dir / "p.log"))
        with pytest.raises(BinaryNotFound, match=f"p: {program} {why}; install it"):
            host.spawn(wanted, "x")
    with pytest.raises(ProcessError, match="cannot write"):
        host.spawn(spec("p", command=Command(("x",)), log_path="/no/such/folder/p.log"), "x")
    secret = spec("p", command=Command(("x",), secret_env={"K": "env:SRE_NOT_SET"}), log_path=str(short_dir / "p.log"))
    with pytest.raises(ConfigError, match="SRE_NOT_SET is not set"):
        host.spawn(secret, "x")


def test_who_listens_on_a_port_is_named(free_port: Callable[[], int]) -> None:
    import socket

    port = free_port()
    assert proc.bind_error("127.0.0.1", port) is None
    assert proc.listeners(port) == []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        error = proc.bind_error("127.0.0.1", port)
        assert error is not None
        assert proc.listeners(port) == [os.getpid()]
    assert proc.bind_error("203.0.113.1", port) is not None, "not an address of this machine"


# Logs


def test_log_is_rotated_in_place_and_its_writer_goes_on(short_dir: Path) -> None:
    log = short_dir / "p.log"
    writer = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        for number in range(4):
            os.write(writer, f"{number}".encode() * 100)
            assert rotate(log, max_bytes=99, backups=2)
            assert log.stat().st_size == 0
        os.write(writer, b"end\n")
    finally:
        os.close(writer)
    assert not rotate(log, max_bytes=99, backups=2)
    assert sorted(path.name for path in short_dir.iterdir()) == ["p.log", "p.log.1", "p.log.2"]
    assert log.read_text() == "end\n"
    assert log.with_name("p.log.1").read_text() == "3" * 100
    assert log.with_name("p.log.2").read_text() == "2" * 100


def test_without_backups_a_log_is_only_emptied(short_dir: Path) -> None:
    log = short_dir / "p.log"
    log.write_text("x" * 100)
    assert rotate(log, max_bytes=99, backups=0)
    assert [path.name for path in short_dir.iterdir()] == ["p.log"]
    assert not rotate(short_dir / "none.log", max_bytes=1, backups=1)


def test_tail_of_a_long_line_and_of_no_file(short_dir: Path) -> None:
    log = short_dir / "p.log"
    log.write_bytes(b"x" * 200_000 + b"\n\xff last\n")
    assert tail(log, 1) == ["� last"]
    assert tail(short_dir / "none.log", 3) == []


# Lock and files


def test_lock_names_its_holder_and_dies_with_it(short_dir: Path) -> None:
    path = short_dir / "lock"
    code = (
        "import sys, pathlib, time; from sre.adapters.processes.lock import StackLock;"
        "assert StackLock(pathlib.Path(sys.argv[1])).acquire() is False, 'held by another process'"
    )
    lock = StackLock(path)
    assert lock.acquire()
    assert lock.holder() == os.getpid()
    assert not StackLock(path).acquire()
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=30).returncode == 0
    lock.release()
    again = StackLock(path)
    assert again.acquire()
    again.release()
    with pytest.raises(StateError):
        StackLock(short_dir / "no" / "lock").acquire()


def test_file_is_written_whole_or_not_at_all(short_dir: Path) -> None:
    path = short_dir / "f"
    write_atomically(path, "old")
    assert path.stat().st_mode & 0o777 == 0o600
    blocker = short_dir / f".f.{os.getpid()}"
    blocker.mkdir()
    with pytest.raises(StateError, match="cannot be written"):
        write_atomically(path, "new")
    blocker.rmdir()
    assert path.read_text() == "old"
    assert [entry.name for entry in short_dir.iterdir()] == ["f"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"null", b'{"checksum": "x", "body": {}}'])
def test_ledger_that_cannot_be_trusted_says_so(short_dir: Path, content: bytes) -> None:
    ledger = LedgerFile(short_dir / "l.json")
    assert ledger.load() is None
    ledger.save(Ledger("boot"))
    assert ledger.load() == Ledger("boot")
    (short_dir / "l.json").write_bytes(content)
    with pytest.raises(StateError, match="marks in their environment"):
        ledger.load()


def test_ports_are_chosen_once_and_again_only_when_they_are_lost(short_dir: Path) -> None:
    stack = StackSettings.model_validate({"engines": [{"name": "a"}, {"name": "b", "port": 9}, {"name": "c"}]})
    path = short_dir / "ports.json"
    assert known_ports(stack, path) is None
    first = [engine.port for engine in resolve_ports(stack, path).engines]
    assert first[1] == 9
    assert len(set(first)) == 3
    assert all(port is not None and (port == 9 or 20_000 <= port < 32_000) for port in first)
    assert [engine.port for engine in resolve_ports(stack, path).engines] == first
    known = known_ports(stack, path)
    assert known is not None
    assert [engine.port for engine in known.engines] == first
    assert first[0] is not None
    second = [engine.port for engine in resolve_ports(stack, path, {first[0]}).engines]
    assert second[0] != first[0]
    assert second[1:] == first[1:]
    path.write_text("{broken")
    assert None not in [engine.port for engine in resolve_ports(stack, path).engines]
