"""
Engine core of the simulated engine: a process of its own, as vLLM's ``VLLM::EngineCore`` is.

It owns the scheduler, lets its steps take their time, and tells the API server what came of them. When the API server
dies without a word it stays, as vLLM's does: its memory is then held by an orphan, until somebody ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sre.servers import simulated_engine_wire as wire
from sre.simulator.engine import Engine, PauseMode, Report
from sre.simulator.faults import NO_FAULTS, Faults, parse_faults
from sre.simulator.host_load import host_load
from sre.simulator.scheduler import Finish, Limits, Request, Step

TITLE = "VLLM::EngineCore"
"""As vLLM's: finding and ending such processes is the same code for both."""
FAULT_POLL_SECONDS = 0.05
GPU_WRITE_SECONDS = 0.5
FLUSH_SECONDS = 0.001
"""Reports of steps shorter than this travel together."""
LONGEST_LAG_SECONDS = 0.02
"""Steps that end late (a slow machine, a stopped process) are not caught up beyond this."""
LARGEST_BACKLOG_BYTES = 64 << 20
"""The API server does not read: no further step."""
ORPHAN_SECONDS = 600.0
"""An orphan nobody ends, ends: a simulator shall not outlive the day."""
PR_SET_NAME = 15


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """What the API server tells its core at the start, as JSON in argv."""

    socket_fd: int
    name: str
    limits: Mapping[str, Any]
    time_scale: float
    load_seconds: float
    seed: int
    gpus: Sequence[int]
    gpu_file: str | None
    fault_file: str | None
    shutdown_timeout_seconds: float

    def to_argument(self) -> str:
        return json.dumps(asdict(self))


class Core:
    """The loop: commands in, steps, reports out."""

    def __init__(self, options: CoreOptions) -> None:
        self._options = options
        self._socket = socket.socket(fileno=options.socket_fd)
        self._socket.setblocking(False)
        self._engine = Engine(Limits(**options.limits), seed=options.seed, time_scale=options.time_scale)
        self._unpacker = wire.Unpacker()
        self._inbox: list[wire.Message] = []
        self._outbox: list[wire.Message] = []
        self._unsent = bytearray()
        self._flushed_at = 0.0
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._terminate_at: float | None = None
        self._told_to_end = False
        self._orphaned_at: float | None = None
        self._waiting_pauses: list[int] = []
        self._dropped = False
        """Requests went without a step: the gauges say too much."""
        self._boot_id = _boot_id()
        self._faults_at = 0.0
        self._fault_stamp: tuple[int, int] | None = None
        self._gpu = GpuFile(options.gpu_file, options.gpus, self._boot_id)

    def run(self) -> None:
        """Until told to end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the API server decides
        signal.signal(signal.SIGTERM, lambda *_: self._on_sigterm())
        self._load()
        busy_until = 0.0
        while not self._finished():
            self._take_commands()
            now = time.monotonic()
            self._poll_faults(now)
            self._gpu.write_if_due(now, self._engine.batch)
            begun = None
            if len(self._unsent) < LARGEST_BACKLOG_BYTES and self._orphaned_at is None:
                begun = self._engine.begin_step(now)
            if begun is None:
                self._answer_pauses()
                if self._dropped:
                    self._dropped = False
                    self._outbox.append(pack_report(self._engine.state(now)))
                self._flush(now)
                self._wait(self._idle_until(now))
                continue
            step, seconds = begun
            self._dropped = False  # its report tells
            if busy_until < now - LONGEST_LAG_SECONDS:
                busy_until = now
            self._let_pass(step, busy_until, busy_until + seconds)
            busy_until += seconds
        self._flush(time.monotonic(), all_of_it=True)
        self._gpu.remove()

    def _let_pass(self, step: Step, begin: float, end: float) -> None:
        now = time.monotonic()
        if end - now > FLUSH_SECONDS or now - self._flushed_at >= FLUSH_SECONDS:
            self._flush(now)
        while (now := time.monotonic()) < end:
            self._gpu.write_if_due(now, self._engine.batch)
            self._wait(min(end, self._gpu.due_at))
        self._gpu.busy_seconds += end - begin
        report = self._engine.finish_step(step, time.monotonic())
        self._outbox.append(pack_report(report))

    def _load(self) -> None:
        until = time.monotonic() + self._options.load_seconds
        while time.monotonic() < until and not self._finished():
            self._wait(until)
        self._gpu.write_if_due(time.monotonic(), 0)
        self._outbox.append((wire.READY, os.getpid()))

    def _finished(self) -> bool:
        now = time.monotonic()
        if self._orphaned_at is not None:
            return self._told_to_end or now > self._orphaned_at + ORPHAN_SECONDS
        if self._terminate_at is None:
            return False
        if self._engine.unfinished and now < self._terminate_at and not self._engine.stopped:
            return False
        self._outbox.append(pack_report(self._engine.abort_all(now)))
        return True

    def _on_sigterm(self) -> None:
        self._told_to_end = True
        if self._terminate_at is None:
            self._terminate_at = time.monotonic() + self._options.shutdown_timeout_seconds

    def _idle_until(self, now: float) -> float:
        due = min(self._gpu.due_at, now + GPU_WRITE_SECONDS)
        held = self._engine.next_due()
        if held is not None and not self._engine.stopped:
            due = min(due, held)
        if self._terminate_at is not None:
            due = min(due, self._terminate_at)
        return due

    def _wait(self, until: float) -> None:
        """Read and write until ``until``, a command or a signal."""
        timeout = max(0.0, until - time.monotonic())
        readers: list[int | socket.socket] = (
            [self._wake] if self._orphaned_at is not None else [self._wake, self._socket]
        )
        writers = [self._socket] if self._unsent and self._orphaned_at is None else []
        readable, writable, _ = select.select(readers, writers, [], timeout)
        if self._wake in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 512)
        if writable:
            self._send()
        if self._socket in readable:
            self._receive()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if data:
            self._inbox += self._unpacker.feed(data)
        elif not self._told_to_end:
            self._orphaned_at = time.monotonic()
            self._engine.abort_all(self._orphaned_at)
            log(f"the API server is gone; this process (pid {os.getpid()}) stays as an orphan until it is ended")
        else:
            self._orphaned_at = 0.0  # told to end and nobody listens: nothing is left to do

    def _take_commands(self) -> None:
        if self._orphaned_at is None:
            self._receive()
        inbox, self._inbox = self._inbox, []
        now = time.monotonic()
        for message in inbox:
            kind = message[0]
            if kind == wire.ADD:
                _, key, prompt, output, finish, priority, hashes, arrived = message
                request = Request(key, prompt, output, Finish(finish), priority, hashes, arrived)
                self._poll_faults(now)
                self._engine.add(request, now)
            elif kind == wire.ABORT:
                self._engine.abort(message[1])
                self._dropped = True
            else:
                self._call(message[1], message[2], message[3], now)

    def _call(self, key: int, name: str, argument: Any, now: float) -> None:
        engine = self._engine
        value: Any = None
        if name == "pause":
            self._outbox.append(pack_report(engine.pause(PauseMode(argument), now)))
            self._dropped = True
            if engine.pausing:
                self._waiting_pauses.append(key)
                return
        elif name == "resume":
            engine.resume()
        elif name == "sleep":
            engine.sleep(argument)
        elif name == "wake_up":
            engine.wake_up()
        elif name == "is_paused":
            value = engine.paused or engine.pausing
        elif name == "is_sleeping":
            value = engine.sleep_level is not None
        elif name == "reset_prefix_cache":
            engine.forget_prefixes()
            value = not engine.batch
        self._outbox.append((wire.REPLY, key, value))

    def _answer_pauses(self) -> None:
        if self._waiting_pauses and not self._engine.pausing:
            self._outbox += [(wire.REPLY, key, None) for key in self._waiting_pauses]
            self._waiting_pauses.clear()

    def _flush(self, now: float, *, all_of_it: bool = False) -> None:
        self._flushed_at = now
        if self._outbox:
            self._unsent += wire.pack(self._outbox)
            self._outbox = []
        if self._orphaned_at is not None:
            self._unsent.clear()
            return
        if all_of_it:
            self._socket.settimeout(1.0)
        self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
        except (BlockingIOError, TimeoutError):
            pass
        except ConnectionError:
            self._unsent.clear()  # the end of the stream is noticed when reading

    def _poll_faults(self, now: float) -> None:
        if self._options.fault_file is None or now - self._faults_at < FAULT_POLL_SECONDS:
            return
        self._faults_at = now
        path = Path(self._options.fault_file)
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._fault_stamp:
                return
            faults: Faults = parse_faults(path.read_text(), self._boot_id)
            self._fault_stamp = stamp
        except FileNotFoundError:
            faults = NO_FAULTS
            self._fault_stamp = None
        except (OSError, ValueError) as error:
            log(f"fault file {path}: {error}; ignored")
            self._fault_stamp = stamp
            faults = NO_FAULTS
        self._engine.set_faults(faults)


class GpuFile:
    """How this engine loads its simulated GPUs, written about twice a second for whoever reads that GPU."""

    def __init__(self, path: str | None, gpus: Sequence[int], boot_id: str) -> None:
        self._path = Path(path) if path and gpus else None
        self._gpus = gpus
        self._boot_id = boot_id
        self._start_ticks = _start_ticks()
        self._written_at: float | None = None
        self.due_at = 0.0 if self._path else float("inf")
        self.busy_seconds = 0.0
        """Seconds of steps since the last write."""

    def write_if_due(self, now: float, batch: int) -> None:
        if self._path is None or now < self.due_at:
            return
        elapsed = now - self._written_at if self._written_at is not None else GPU_WRITE_SECONDS
        utilization = min(1.0, self.busy_seconds / elapsed) if elapsed > 0 else 0.0
        self._written_at, self.due_at, self.busy_seconds = now, now + GPU_WRITE_SECONDS, 0.0
        gpu = {"memory_used_bytes": host_load(batch).gpu_memory_bytes, "utilization_ratio": round(utilization, 4)}
        document = {
            "pid": os.getpid(),
            "start_ticks": self._start_ticks,
            "boot_id": self._boot_id,
            "updated_monotonic": now,
            "gpus": {str(index): gpu for index in self._gpus},
        }
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(json.dumps(document))
            os.replace(draft, self._path)
        except OSError as error:
            log(f"GPU file {self._path}: {error.strerror}; not written any more")
            self._path = None
            self.due_at = float("inf")

    def remove(self) -> None:
        """The process ends in order: its memory is free."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def pack_report(report: Report) -> wire.Message:
    """A report as plain tuples."""
    return (
        wire.REPORT,
        report.at,
        report.tokens,
        report.first,
        [(ended.id, ended.finish.value, ended.token, ended.preemptions) for ended in report.ended],
        report.preempted,
        (report.running, report.waiting, report.deferred, report.kv_usage_ratio) if report.stepped else None,
        report.prefix_queries,
        report.prefix_hits,
    )


def log(message: str) -> None:
    """One line on stderr, as the API server's log; a closed pipe is no reason to die."""
    try:
        sys.stderr.write(f"(EngineCore pid={os.getpid()}) {time.strftime('%m-%d %H:%M:%S')} {message}\n")
        sys.stderr.flush()
    except OSError:
        pass


def set_title(title: str) -> None:
    """
    Show ``title`` as this process's command line and name (/proc/PID/cmdline, comm).

    Writes over the memory that held argv: what the kernel shows is read from there.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: 48 and 49, counted from field 3
    data = title.encode()[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, data, len(data))
    ctypes.CDLL(None).prctl(PR_SET_NAME, title.encode()[:15] + b"\0", 0, 0, 0)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_ticks() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def main(argv: Sequence[str]) -> None:
    """``argv[1]``: CoreOptions as JSON."""
    options = CoreOptions(**json.loads(argv[1]))
    set_title(TITLE)
    Core(options).run()


if __name__ == "__main__":
    main(sys.argv)
