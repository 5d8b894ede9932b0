"""Reads what the kernel counts on this host. Blocking: a hung driver holds the caller as long as it likes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sre.signals.host import (
    NETWORK_FILES,
    HostCounters,
    NetworkCounters,
    Unseen,
    is_network_card,
    parse_diskstats,
    parse_meminfo,
    parse_network,
    parse_snmp,
    parse_stat,
    parse_vmstat,
    without_steps_back,
)

T = TypeVar("T")

MAX_FILE_BYTES = 4 * 1024 * 1024
"""/proc/stat names every interrupt of every CPU: some 100 KB on large hosts."""
MAX_DEVICES = 256
"""A series per device; more network cards than this are bridges and tunnels under names we do not know."""


class HostCountersReader:
    """
    Args:
        root: Stands for ``/``.
        ticks_per_second: Unit of /proc/stat; None asks the system.
    """

    def __init__(
        self, monotonic: Callable[[], float], root: Path = Path("/"), *, ticks_per_second: int | None = None
    ) -> None:
        self._monotonic = monotonic
        self._proc = root / "proc"
        self._net = root / "sys" / "class" / "net"
        self._ticks = os.sysconf("SC_CLK_TCK") if ticks_per_second is None else ticks_per_second
        self._before: HostCounters | None = None

    def read(self) -> HostCounters:
        """Read everything once. Never raises: what cannot be read stands in ``unseen``. Not for two threads at once."""
        at = self._monotonic()
        unseen: dict[str, str] = {}

        def taken(name: str, parse: Callable[[str], T | Unseen]) -> T | None:
            found = self._parsed(self._proc / name, parse)
            if isinstance(found, Unseen):
                unseen[name] = found.why
                return None
            return found

        now = HostCounters(
            at=at,
            disks=taken("diskstats", parse_diskstats) or (),
            networks=self._networks(unseen),
            tcp=taken("net/snmp", parse_snmp),
            cpu=taken("stat", lambda text: parse_stat(text, self._ticks)),
            faults=taken("vmstat", parse_vmstat),
            memory=taken("meminfo", parse_meminfo),
            unseen=unseen,
        )
        self._before = without_steps_back(self._before, now)
        return self._before

    def _parsed(self, file: Path, parse: Callable[[str], T | Unseen]) -> T | Unseen:
        try:
            return parse(_text(file))
        except OSError as error:
            return Unseen(error.strerror or type(error).__name__)

    def _networks(self, unseen: dict[str, str]) -> tuple[NetworkCounters, ...]:
        try:
            names = sorted(name for name in os.listdir(self._net) if is_network_card(name))
        except OSError as error:
            unseen["net"] = error.strerror or type(error).__name__
            return ()
        found: list[NetworkCounters] = []
        for name in names[:MAX_DEVICES]:
            card = self._card(name)
            if isinstance(card, Unseen):
                unseen[f"net/{name}"] = card.why
            else:
                found.append(card)
        return tuple(found)

    def _card(self, name: str) -> NetworkCounters | Unseen:
        folder = self._net / name / "statistics"
        statistics: dict[str, str] = {}
        for file in NETWORK_FILES.values():
            try:
                statistics[file] = _text(folder / file)
            except OSError:
                continue  # the card left meanwhile, or its driver has no such count
        return parse_network(name, statistics)


def _text(file: Path) -> str:
    with open(file, "rb", buffering=0) as stream:
        parts: list[bytes] = []
        size = 0
        while size < MAX_FILE_BYTES and (part := stream.read(65536)):
            parts.append(part)
            size += len(part)
    return b"".join(parts).decode("ascii", "replace")
