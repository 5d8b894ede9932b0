"""This machine: whether the target is on it, its counters, and what the fingerprint says of it. Everything blocks."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import platform
import socket
from pathlib import Path
from typing import Protocol

from sre.gate.host_signals import HostRead, parse_pressure
from sre.signals.host import HostCounters

PRESSURES = ("cpu", "io", "memory")


class HostSource(Protocol):
    """Counters of this host; blocks."""

    def read(self) -> HostCounters: ...


def is_this_machine(host: str) -> bool:
    """Whether ``host`` is an address of this machine. Asks the resolver; a name it does not know is not."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_own(str(address)) for address in found)


def _is_own(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if parsed.is_loopback or parsed.is_unspecified:
        return True
    # Only an address of this machine can be bound.
    with socket.socket(socket.AF_INET6 if parsed.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def host_read(source: HostSource, root: Path) -> HostRead:
    counters = source.read()
    pressure = {
        name: value
        for name in PRESSURES
        if (value := parse_pressure(_text(root / "proc" / "pressure" / name))) is not None
    }
    links = {}
    for card in counters.networks:
        speed = _text(root / "sys" / "class" / "net" / card.device / "speed").strip()
        # -1: the driver does not know. Unit: Mbit/s.
        if speed.isascii() and speed.isdigit() and int(speed) > 0:
            links[card.device] = int(speed) * 1e6
    return HostRead(counters, pressure, links)


def client_host(root: Path) -> list[tuple[str, str]]:
    """Machine of the load generator; its name only as a hash: results are published."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in _text(root / "proc" / "cpuinfo").splitlines()
            if line.startswith(("model name", "Model", "cpu model"))
        ),
        platform.machine(),
    )
    name = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]
    return [("client_cpu", model), ("client_cores", str(len(os.sched_getaffinity(0)))), ("client_host", name)]


def _text(file: Path) -> str:
    try:
        return file.read_text("ascii", "replace")
    except OSError:
        return ""
