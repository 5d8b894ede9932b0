"""The supervisor's files: the ledger and the chosen ports. Written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
from collections.abc import Collection, Mapping
from pathlib import Path

from sre.adapters.processes.proc import bind_error
from sre.errors import StateError
from sre.settings.stack import EngineSettings, StackSettings
from sre.stack.commands import with_ports
from sre.stack.ledger import Ledger, decode, encode

CHOSEN_PORTS = (20_000, 32_000)
"""Where ports are chosen that sre.yaml leaves open: below Linux' range of ephemeral ports (32768 …)."""


def stack_id(root: Path) -> str:
    """Return what marks the processes of the stack in state folder ``root``: the same for every supervisor of it."""
    return hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]


def disk_remedy(error: OSError, otherwise: str = "correct its permissions") -> str:
    """
    What to do where a disk refuses a file.

    Args:
        otherwise: What is said of an error that has no remedy of its own.
    """
    return {
        errno.ENOSPC: "free space on its disk",
        errno.EDQUOT: "free space within your quota",
        errno.EFBIG: "free space on its disk or raise the limit of file sizes",
        errno.EACCES: "correct its permissions",
        errno.EPERM: "correct its permissions",
        errno.EROFS: "mount its disk writable",
        errno.EISDIR: "remove the folder that is in its place",
        errno.EEXIST: "remove the file that is in a folder's place",
        errno.ENOTDIR: "remove the file that is in a folder's place",
    }.get(error.errno or 0, otherwise)


def write_atomically(path: Path, text: str, *, instead: str = "") -> None:
    """
    Replace ``path`` by ``text``, on disk when this returns; a crash leaves the old or the new content. Mode 0600.

    Args:
        instead: What else can be done where the disk refuses, for the message: "choose another folder".

    Raises:
        StateError: The disk refuses; the old content stands.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        other = f", or {instead}" if instead else ""
        raise StateError(f"{path}: cannot be written: {error.strerror}; {disk_remedy(error)}{other}") from error


class LedgerFile:
    """The ledger on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Ledger | None:
        """
        Return the ledger; None when there is none.

        Raises:
            StateError: There is one, and it cannot be trusted. The sentence says what happens then.
        """
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise StateError(self._sentence(why or "unreadable")) from error
        try:
            return decode(text)
        except ValueError as error:
            raise StateError(self._sentence(str(error))) from error

    def _sentence(self, why: str) -> str:
        return (
            f"ledger {self._path}: {why}; looking for this stack's processes by the marks in their environment instead"
        )

    def save(self, ledger: Ledger) -> None:
        """Write the ledger. Raises StateError when the disk refuses."""
        write_atomically(self._path, encode(ledger))


def read_ports(path: Path) -> dict[str, int]:
    """Return the ports chosen earlier, by engine name; empty when there are none or the file is no longer readable."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {str(name): port for name, port in data.items() if type(port) is int and 0 < port < 65536}


def resolve_ports(stack: StackSettings, path: Path, avoid: Collection[int] = ()) -> StackSettings:
    """
    Return ``stack`` with a port for every engine that we run. One that sre.yaml does not give is chosen once, among
    the free ones, and kept in ``path``.

    Args:
        avoid: Ports kept from earlier that someone else has taken since; others are chosen instead.

    Raises:
        StateError: The file cannot be written, or no port is free.
    """
    kept = {name: port for name, port in read_ports(path).items() if port not in avoid}
    ports = {engine.name: kept[engine.name] for engine in stack.engines if _chosen(engine) and engine.name in kept}
    missing = [engine for engine in stack.engines if _chosen(engine) and engine.name not in ports]
    if missing:
        taken = {engine.port for engine in stack.engines} | {stack.gateway.port} | set(ports.values()) | set(avoid)
        for engine in missing:
            ports[engine.name] = _free_port(engine.host, {port for port in taken if port is not None})
            taken.add(ports[engine.name])
        write_atomically(path, json.dumps(ports, indent=1, sort_keys=True) + "\n")
    return with_ports(stack, ports)


def known_ports(stack: StackSettings, path: Path) -> StackSettings | None:
    """Return ``stack`` with the ports chosen earlier; None when one was not chosen yet. Changes nothing."""
    kept: Mapping[str, int] = read_ports(path)
    if any(_chosen(engine) and engine.name not in kept for engine in stack.engines):
        return None
    return with_ports(stack, kept)


def _chosen(engine: EngineSettings) -> bool:
    return engine.kind != "external" and engine.port is None


def _free_port(host: str, taken: Collection[int]) -> int:
    """
    A free port below the range from which the kernel takes the ports of outgoing connections: one of those could be
    taken while the engine restarts, by the very connection attempts of the gateway.
    """
    for _ in range(200):
        port = random.randrange(*CHOSEN_PORTS)
        if port not in taken and bind_error(host, port) is None:
            return port
    error = bind_error(host, 0)
    why = f" ({error.strerror or error})" if error else ""
    raise StateError(f"no free port found on {host}{why}; write port: of the engine in sre.yaml")
