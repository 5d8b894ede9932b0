"""Read /proc: who a process is, whose child and session it belongs to, and which process listens on a port."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sre.signals.types import ProcessIdentity

PROC = Path("/proc")
GONE_STATES = frozenset("ZXx")
"""A zombie has released everything but its number: for us it is gone."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that we use."""

    pid: int
    comm: str
    """Name, at most 15 bytes; may hold blanks, brackets and newlines."""
    state: str
    """One letter: R S D T t Z X I."""
    parent: int
    group: int
    session: int
    start_ticks: int

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start_ticks)

    @property
    def gone(self) -> bool:
        return self.state in GONE_STATES


def parse_stat(text: str) -> Stat:
    """
    Parse the one line of /proc/PID/stat: ``pid (comm) state ppid pgrp session … starttime …``.

    The name may itself hold ``)``, so fields are counted after the *last* one; starttime is field 22.

    Raises:
        ValueError: It is not such a line.
    """
    head, open_bracket, rest = text.partition("(")
    comm, close_bracket, tail = rest.rpartition(")")
    fields = tail.split()
    if not open_bracket or not close_bracket or len(fields) < 20 or len(fields[0]) != 1:
        raise ValueError(f"not a /proc stat line: {text[:80]!r}")
    return Stat(int(head), comm, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def read_stat(pid: int) -> Stat | None:
    """Return what /proc says of ``pid``; None when there is no such process."""
    try:
        return parse_stat((PROC / str(pid) / "stat").read_text("utf-8", "replace"))
    except (OSError, ValueError):
        return None


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return the identity of the living process ``pid``; None when it is gone (a zombie is gone)."""
    stat = read_stat(pid)
    return None if stat is None or stat.gone else stat.identity


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether exactly this process still lives: same pid, same start time, not a zombie."""
    return identity_of(identity.pid) == identity


def boot_id() -> str:
    """Identity of this boot of the kernel."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def owner_of(pid: int) -> int | None:
    """Return the uid that owns ``pid``; None when it is gone."""
    try:
        return (PROC / str(pid)).stat().st_uid
    except OSError:
        return None


def command_line(pid: int) -> tuple[str, ...]:
    """Return the arguments of ``pid``; empty when it is gone, a kernel thread, or not readable."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode("utf-8", "surrogateescape") for part in raw.rstrip(b"\0").split(b"\0")) if raw else ()


def environment(pid: int, names: Iterable[str]) -> Mapping[str, str]:
    """
    Return those of ``names`` that are in the environment ``pid`` was started with.

    Empty when the process is gone, belongs to someone else, or has overwritten the area (setproctitle does).
    """
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    wanted = {name.encode(): name for name in names}
    found: dict[str, str] = {}
    for part in raw.split(b"\0"):
        key, separator, value = part.partition(b"=")
        if separator and key in wanted:
            found.setdefault(wanted[key], value.decode("utf-8", "surrogateescape"))
    return found


def process_table() -> dict[int, Stat]:
    """Return all living processes by pid (zombies left out), as far as /proc shows them."""
    table: dict[int, Stat] = {}
    for entry in os.listdir(PROC):
        if entry.isdigit():
            stat = read_stat(int(entry))
            if stat is not None and not stat.gone:
                table[stat.pid] = stat
    return table


def members_of(leader: ProcessIdentity, table: Mapping[int, Stat], known: Iterable[ProcessIdentity] = ()) -> list[Stat]:
    """
    Return the living processes that belong to ``leader``: itself, its session, and all descendants of these.

    A session number cannot be given to another process while a member of the session lives; so the session counts
    when the leader lives, or when nobody with that pid lives (its members are then what the leader left behind).

    Args:
        leader: A process that was started in a session of its own (session id = its pid).
        known: Identities seen earlier as members; they count even after they moved to another session.
    """
    holder = table.get(leader.pid)
    session_is_ours = holder is None or holder.identity == leader
    known_set = set(known)
    ours = {
        pid
        for pid, stat in table.items()
        if stat.identity in known_set
        or stat.identity == leader
        or (session_is_ours and stat.session == leader.pid and stat.start_ticks >= leader.start_ticks)
    }
    grew = True
    while grew:
        more = {pid for pid, stat in table.items() if stat.parent in ours and pid not in ours}
        ours |= more
        grew = bool(more)
    return [table[pid] for pid in sorted(ours)]


def is_orphan(stat: Stat, table: Mapping[int, Stat]) -> bool:
    """
    Whether the parent that started this process is dead and someone outside its session took it over.

    A process that leads its own session left its parent on purpose and is no orphan.
    """
    if stat.session == stat.pid:
        return False
    parent = table.get(stat.parent)
    return parent is None or parent.session != stat.session


def listening_inodes(port: int) -> set[int]:
    """Return the socket inodes that listen on TCP ``port``, IPv4 and IPv6, in our network namespace."""
    inodes: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(int(fields[9]))
    return inodes


def listeners(port: int) -> list[int]:
    """Return the pids that listen on TCP ``port``, as far as we may look into their file descriptors."""
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    if not wanted:
        return []
    pids = []
    for entry in os.listdir(PROC):
        if not entry.isdigit():
            continue
        folder = PROC / entry / "fd"
        try:
            descriptors = os.listdir(folder)
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                target = os.readlink(folder / descriptor)
            except OSError:
                continue
            if target in wanted:
                pids.append(int(entry))
                break
    return sorted(pids)


def bind_error(host: str, port: int) -> OSError | None:
    """Return why nobody could listen on ``host:port`` now; None when it is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None
